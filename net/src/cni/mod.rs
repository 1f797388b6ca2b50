//! Container Network Interface: Pods' interfaces and addresses are made by plugins, other programs, instead of by this crate.
//! <https://www.cni.dev/docs/spec/>, version 1.1.
//!
//! ```text
//!  conf_dir --> config.rs  NetworkList --.            .--> exec.rs  plugin, plugin ...  (ADD, CHECK, GC, STATUS: in order; DEL: from the last)
//!                                        |--> Cni ----|--> result.rs  addresses
//!  record.rs  Attachment, by owner <-----'            '--> the Pod's namespace, pinned at a path for them
//! ```

mod config;
mod exec;
mod record;
mod result;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

use podwright_journal::JournalWriter;
use serde_json::{Map, Value, json};

use crate::{links::POD_LINK, netlink};
use config::Plugin;
pub use config::{CapabilityArguments, NetworkList};
use exec::{Call, Runner};
use record::{Attachment, Records};

/// The capability of plugins that map ports of the node to a Pod.
pub const PORT_MAPPINGS: &str = "portMappings";
/// The capability of limiting traffic.
pub const BANDWIDTH: &str = "bandwidth";

/// Why plugins did not attach a Pod, or take back.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error("no networks found in {0}")]
    NoNetwork(String),
    #[error("{0}: {1}")]
    Unreadable(String, #[source] io::Error),
    #[error("{0}: {1}")]
    Unwritable(String, #[source] io::Error),
    #[error("{0}: {1}")]
    Invalid(String, String),
    #[error("failed to find plugin {0:?} in path [{1}]")]
    NotInstalled(String, String),
    #[error("plugin type={kind:?} failed ({}): {why}", command.to_lowercase())]
    Plugin { kind: String, command: &'static str, why: String },
    #[error("the result of the plugins: {0}")]
    Result(String),
    #[error("{0:?} cannot be the id of a container")]
    Name(String),
    #[error(transparent)]
    Kernel(Box<crate::Error>),
}

impl From<crate::Error> for CniError {
    fn from(error: crate::Error) -> CniError {
        CniError::Kernel(Box::new(error))
    }
}

/// Where networks and plugins are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniConfig {
    /// The folder of network configuration lists; the first one by name counts. None: nothing is attached by plugins, they only take
    /// back.
    pub conf_dir: Option<PathBuf>,
    /// The folders of plugins, as `CNI_PATH`.
    pub bin_dirs: Vec<PathBuf>,
}

/// What a Pod asks of its network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// `CNI_ARGS`
    pub arguments: Vec<(String, String)>,
    /// For plugins with these capabilities.
    pub asked: CapabilityArguments,
}

/// Attaches Pods by plugins.
pub struct Cni {
    config: CniConfig,
    records: Records,
    pins: PathBuf,
    node: OwnedFd,
    /// Written to while plugins collect garbage.
    turns: RwLock<()>,
}

impl Cni {
    /// Whether something has been attached by plugins that keep their state in `folder`.
    pub fn was_used(folder: &Path) -> bool {
        folder.exists()
    }

    /// For plugins that run in the network namespace `node`; what is attached is kept in `folder`.
    ///
    /// # Errors
    ///
    /// Folders cannot be made.
    pub fn open(config: CniConfig, folder: &Path, node: BorrowedFd<'_>) -> Result<Cni, CniError> {
        let pins = folder.join("netns");
        let unwritable = |error| CniError::Unwritable(folder.display().to_string(), error);
        std::fs::create_dir_all(&pins).map_err(unwritable)?;
        let records = Records::open(&folder.join("attachments")).map_err(unwritable)?;
        let node = node.try_clone_to_owned().map_err(unwritable)?;
        Ok(Cni { config, records, pins, node, turns: RwLock::default() })
    }

    /// The network that the next Pod is attached to.
    ///
    /// # Errors
    ///
    /// There is none, or it is not valid.
    pub fn network(&self) -> Result<NetworkList, CniError> {
        let none = || CniError::NoNetwork("no folder".to_owned());
        NetworkList::first(self.config.conf_dir.as_deref().ok_or_else(none)?)
    }

    /// Whether a Pod can be attached: `STATUS` of all plugins, where they know it.
    ///
    /// # Errors
    ///
    /// There is no network, or a plugin is not ready.
    pub fn status(&self) -> Result<(), CniError> {
        let list = self.network()?;
        let call = Call { command: "STATUS", container: None, netns: None, interface: None, arguments: &[] };
        let none = CapabilityArguments::new();
        let ask = |plugin: &Plugin| {
            let given = list.given(plugin, &none, None);
            self.runner(&JournalWriter::none()).run(&plugin.kind, &call, &given).map(drop)
        };
        list.plugins.iter().filter(|_| list.has_status()).try_for_each(ask)
    }

    /// Attaches the Pod whose namespace is `pod`; returns its addresses. One that is attached stays as it is.
    ///
    /// # Errors
    ///
    /// A plugin fails; the others have taken back then.
    pub fn add(
        &self,
        owner: &str,
        pod: BorrowedFd<'_>,
        request: &Request,
        journal: &JournalWriter,
    ) -> Result<Vec<IpAddr>, CniError> {
        if !config::is_name(owner) {
            return Err(CniError::Name(owner.to_owned()));
        }
        let inode = netlink::inode(pod)?;
        match self.records.get(owner)? {
            Some(known) if known.inode == inode && !known.result.is_null() && self.is_pinned(owner, inode)? => {
                return result::addresses(&known.result, &known.interface);
            }
            // Of an agent that died, or of an earlier sandbox.
            Some(_) => self.del(owner, journal)?,
            None => {}
        }
        let Request { arguments, asked } = request.clone();
        let interface = POD_LINK.to_owned();
        let mut attachment =
            Attachment { interface, inode, list: self.network()?, arguments, asked, result: Value::Null };
        let _turn = self.changing();
        // Before anything is made: what a crash leaves is found by its record.
        self.records.put(owner, &attachment)?;
        crate::links::loopback_up(pod)?;
        self.pin(owner, pod, inode)?;
        let added = self.add_all(owner, &attachment, journal).and_then(|result| {
            let addresses = result::addresses(&result, &attachment.interface)?;
            attachment.result = result;
            self.records.put(owner, &attachment)?;
            Ok(addresses)
        });
        added.inspect_err(|_| {
            if let Err(error) = self.del(owner, journal) {
                tracing::warn!(%error, owner, "failed to take back a Pod's attachment to its network");
            }
        })
    }

    fn is_pinned(&self, owner: &str, inode: u64) -> Result<bool, CniError> {
        let there = netlink::open_pinned(&self.pinned(owner))?;
        Ok(there.map(|there| netlink::inode(there.as_fd())).transpose()? == Some(inode))
    }

    /// Pins the namespace of an owner at its path, in the place of an earlier one.
    fn pin(&self, owner: &str, pod: BorrowedFd<'_>, inode: u64) -> Result<(), CniError> {
        let path = self.pinned(owner);
        if self.is_pinned(owner, inode)? {
            return Ok(());
        }
        netlink::unpin(&path)?;
        Ok(netlink::pin(pod, &path)?)
    }

    /// The result of the last plugin; each gets that of the one before.
    fn add_all(&self, owner: &str, attachment: &Attachment, journal: &JournalWriter) -> Result<Value, CniError> {
        let path = self.pinned(owner);
        let call = call("ADD", owner, Some(&path), attachment);
        let mut result: Option<Value> = None;
        for plugin in &attachment.list.plugins {
            let given = attachment.list.given(plugin, &attachment.asked, result.as_ref());
            result = Some(self.runner(journal).run(&plugin.kind, &call, &given)?);
        }
        result.ok_or_else(|| CniError::Result("there are no plugins".to_owned()))
    }

    /// Has all plugins take back, from the last one on; an unknown owner is not an error.
    ///
    /// # Errors
    ///
    /// The first plugin's that fails; the others have been asked. It can be tried again.
    pub fn del(&self, owner: &str, journal: &JournalWriter) -> Result<(), CniError> {
        let Some(attachment) = self.records.get(owner)? else { return Ok(netlink::unpin(&self.pinned(owner))?) };
        let pin = self.pinned(owner);
        // A namespace that is gone has no path.
        let netns = netlink::open_pinned(&pin)?.map(|_| pin.as_path());
        let call = call("DEL", owner, netns, &attachment);
        let list = &attachment.list;
        let previous = Some(&attachment.result).filter(|result| list.has_check() && !result.is_null());
        let take_back = |plugin: &Plugin| {
            self.runner(journal).run(&plugin.kind, &call, &list.given(plugin, &attachment.asked, previous)).map(drop)
        };
        let failed: Vec<CniError> = list.plugins.iter().rev().filter_map(|plugin| take_back(plugin).err()).collect();
        if let Some(first) = failed.into_iter().next() {
            return Err(first);
        }
        netlink::unpin(&pin)?;
        self.records.remove(owner)
    }

    /// Whether a Pod's attachment is as it should be: `CHECK` of all plugins, where they know it.
    ///
    /// # Errors
    ///
    /// A plugin finds that it is not.
    pub fn check(&self, owner: &str, journal: &JournalWriter) -> Result<(), CniError> {
        let Some(attachment) = self.records.get(owner)?.filter(|attachment| !attachment.result.is_null()) else {
            return Ok(());
        };
        let list = &attachment.list;
        if list.disable_check || !list.has_check() {
            return Ok(());
        }
        let path = self.pinned(owner);
        let call = call("CHECK", owner, Some(&path), &attachment);
        let check = |plugin: &Plugin| {
            let given = list.given(plugin, &attachment.asked, Some(&attachment.result));
            self.runner(journal).run(&plugin.kind, &call, &given).map(drop)
        };
        list.plugins.iter().try_for_each(check)
    }

    /// Whether an owner is attached, or was and is not taken back yet.
    pub fn has(&self, owner: &str) -> bool {
        !matches!(self.records.get(owner), Ok(None))
    }

    /// The addresses of all that are attached, by owner.
    ///
    /// # Errors
    ///
    /// The records cannot be read.
    pub fn addresses(&self) -> Result<BTreeMap<String, Vec<IpAddr>>, CniError> {
        let attached = self.records.all()?.into_iter().filter_map(|(owner, found)| Some((owner, found.ok()?)));
        Ok(attached
            .filter_map(|(owner, found)| Some((owner, result::addresses(&found.result, &found.interface).ok()?)))
            .collect())
    }

    /// Takes back what does not belong to the living, and has plugins forget what no attachment has (`GC`, where they know it).
    /// Returns those that have gone, and what has failed; the rest is done all the same.
    pub fn retain(&self, living: &BTreeSet<String>) -> (BTreeSet<String>, Vec<CniError>) {
        let (mut gone, mut failed) = (BTreeSet::new(), Vec::new());
        match self.owners() {
            Ok(owners) => {
                for owner in owners.into_iter().filter(|owner| !living.contains(owner)) {
                    match self.del(&owner, &JournalWriter::none()) {
                        Ok(()) => drop(gone.insert(owner)),
                        Err(error) => failed.push(error),
                    }
                }
            }
            Err(error) => failed.push(error),
        }
        failed.extend(self.collect_garbage().err());
        (gone, failed)
    }

    /// Whoever has a record, or a namespace that is pinned: one may be left without the other.
    fn owners(&self) -> Result<BTreeSet<String>, CniError> {
        let unreadable = |error| CniError::Unreadable(self.pins.display().to_string(), error);
        let mut owners: BTreeSet<String> = self.records.all()?.into_keys().collect();
        for entry in std::fs::read_dir(&self.pins).map_err(unreadable)? {
            owners.extend(entry.map_err(unreadable)?.file_name().into_string());
        }
        Ok(owners)
    }

    /// Nothing is attached meanwhile: what has just been given would be taken away. Nor is anything collected while a record cannot be
    /// read, which may be a living Pod's.
    fn collect_garbage(&self) -> Result<(), CniError> {
        // Without a network there is nobody to ask.
        let Ok(list) = self.network() else { return Ok(()) };
        if list.disable_gc || !list.has_status() {
            return Ok(());
        }
        let _alone = self.turns.write().unwrap_or_else(PoisonError::into_inner);
        let mut valid = Vec::new();
        for (owner, found) in self.records.all()? {
            let attachment = found?;
            if attachment.list.name == list.name {
                valid.push(json!({ "containerID": owner, "ifname": attachment.interface }));
            }
        }
        let call = Call { command: "GC", container: None, netns: None, interface: None, arguments: &[] };
        let collect = |plugin: &Plugin| {
            let mut given: Map<String, Value> = list.given(plugin, &CapabilityArguments::new(), None);
            given.insert("cni.dev/valid-attachments".to_owned(), Value::Array(valid.clone()));
            self.runner(&JournalWriter::none()).run(&plugin.kind, &call, &given).map(drop)
        };
        let failed: Vec<CniError> = list.plugins.iter().filter_map(|plugin| collect(plugin).err()).collect();
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// Held while something is attached.
    fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.turns.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn runner<'a>(&'a self, journal: &'a JournalWriter) -> Runner<'a> {
        Runner { folders: &self.config.bin_dirs, node: self.node.as_fd(), journal }
    }

    /// Where the namespace of an owner is pinned.
    fn pinned(&self, owner: &str) -> PathBuf {
        self.pins.join(owner)
    }
}

fn call<'a>(command: &'static str, owner: &'a str, netns: Option<&'a Path>, of: &'a Attachment) -> Call<'a> {
    Call { command, container: Some(owner), netns, interface: Some(&of.interface), arguments: &of.arguments }
}
