//! Compares the kernel's state behind each interface with the desired one, and repairs it.
//!
//! | interface | desired state | compared and repaired by |
//! |---|---|---|
//! | nf_tables | [`crate::state::NetworkState`], mirrored in memory | [`crate::dataplane::Dataplane`] |
//! | rtnetlink of the node and of each Pod | [`LinkState`] | [`crate::links::Links`] |
//! | the same | [`crate::overlay::Overlay`] | [`crate::links::Links`] |
//! | sysctls | [`Settings`] | [`Settings`] |
//! | the mount of the namespace, the record of addresses | that they exist | [`netlink`], [`crate::ipam::Ipam`] |

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use podwright_journal::JournalWriter;

use super::super::addresses::service_routes;
use super::super::settings::Settings;
use super::super::{Inner, lock};
use crate::links::{self, Lacks, LinkState};
use crate::{Error, NodeNetns, Result, netlink};

impl Inner {
    /// Repairs the tables if others have written to the ruleset, or in any case if `whole`.
    pub(super) fn mend_tables(&self, whole: bool) -> Result<Vec<String>> {
        let mut dataplane = lock(&self.dataplane);
        if self.is_removed() || !(dataplane.is_suspect()? || whole) {
            return Ok(Vec::new());
        }
        self.written_by_others.notify_one();
        dataplane.mend()
    }

    /// Repairs the node's settings, the mount that pins its namespace, and the record of Pods' addresses.
    pub(super) fn mend_settings(&self) -> Result<Vec<String>> {
        let _links = lock(&self.links);
        if self.is_removed() {
            return Ok(Vec::new());
        }
        let settings = Settings::of(&self.config);
        let mut mended = self.netns.run_blocking(move || settings.mend())??;
        if let Some(path) = self.netns.pinned()
            && !is_pinned(&self.netns)?
        {
            netlink::unpin(path)?;
            netlink::pin(self.netns.fd(), path)?;
            mended.push(format!("the mount of the node's network namespace at {}", path.display()));
        }
        if lock(&self.ipam).mend()? {
            mended.push("the record of Pods' addresses".to_owned());
        }
        Ok(mended)
    }

    /// Keeps the node's addresses, and restores at once what has gone with one: the routes of Services and to all Pods.
    pub(super) fn mend_addresses(&self) -> Result<Vec<String>> {
        let mut links = lock(&self.links);
        if self.is_removed() {
            return Ok(Vec::new());
        }
        let mended = lock(&self.presence).keep(&self.addresses, &mut links)?;
        if !mended.is_empty() {
            let wanted = self.link_state();
            links::loopback_up(self.netns.fd())?;
            links.set_own(&wanted)?;
            links.route_again(&wanted.pods)?;
        }
        Ok(mended)
    }

    /// Repairs the addresses and routes of the node's `lo`, and finds what the node's side of Pods' links lacks.
    pub(super) fn mend_node(&self) -> Result<Lacks> {
        let mut links = lock(&self.links);
        if self.is_removed() {
            return Ok(Lacks::default());
        }
        let wanted = self.link_state();
        let lacks = links.compare(&wanted)?;
        if !lacks.node.is_empty() {
            links::loopback_up(self.netns.fd())?;
            links.set_own(&wanted)?;
        }
        Ok(lacks)
    }

    /// The current desired state of the node's links.
    fn link_state(&self) -> LinkState {
        let owners: Vec<String> = lock(&self.attached).keys().cloned().collect();
        let ipam = lock(&self.ipam);
        let pods = owners.into_iter().filter_map(|owner| Some((owner.clone(), ipam.addresses(&owner)?.to_vec())));
        LinkState {
            pods: pods.collect(),
            addresses: self.config.dns.clone(),
            routes: service_routes(&self.config, &self.addresses),
        }
    }

    pub(super) fn lacking_in_pod(&self, owner: &str) -> Result<Option<String>> {
        let mut links = lock(&self.links);
        let Some((netns, addresses, _)) = self.attached(owner)? else { return Ok(None) };
        links.lacks_in_pod(owner, netns.as_fd(), &addresses)
    }

    /// Makes a Pod's link as it should be: as it was made at first, which keeps what is there.
    pub(in crate::node) fn mend_pod(&self, owner: &str) -> Result<()> {
        let mut links = lock(&self.links);
        match self.attached(owner)? {
            Some((netns, addresses, journal)) => links.attach(owner, netns.as_fd(), &addresses, &journal).map(drop),
            // It is being detached.
            None => Ok(()),
        }
    }

    fn attached(&self, owner: &str) -> Result<Option<(OwnedFd, Vec<IpAddr>, JournalWriter)>> {
        let attached = lock(&self.attached);
        let (Some(attached), false) = (attached.get(owner), self.is_removed()) else { return Ok(None) };
        let addresses = match lock(&self.ipam).addresses(owner) {
            Some(addresses) => addresses.to_vec(),
            None if attached.unknown => return Err(Error::UnknownAddresses),
            None => return Ok(None),
        };
        let netns = attached.netns.try_clone().map_err(|e| Error::call("dup", e))?;
        Ok(Some((netns, addresses, attached.journal.clone())))
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }
}

/// Whether the file at the pin's path is the namespace.
fn is_pinned(netns: &NodeNetns) -> Result<bool> {
    let Some(path) = netns.pinned() else { return Ok(true) };
    match netlink::open_pinned(path)? {
        Some(found) => Ok(netlink::inode(found.as_fd())? == netns.inode()?),
        None => Ok(false),
    }
}
