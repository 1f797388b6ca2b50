//! State kept across a crash: one small JSON file per sandbox and per container, beside what it describes.
//!
//! ```text
//! <state>/sandboxes/<id>/sandbox.json            written before anything of it is created
//!                        secret                  authenticates agent and shim to each other, for root only
//!                        shim.log                what the shim could not report
//!                        c/<key>/container.json  written before anything of it is created
//!                                annotation      the caller's data: read on request
//!                                exit.json       written by the shim, durably, before it is reported
//!                                upper work rootfs
//! <state>/copies/<id>/sandbox secret c/<key>     copies of sandbox.json, secret, and started containers' container.json
//! <state>/sandboxes/.aside-...                   removed data until its deletion; the same beside a container's folder
//! <run>/<id>/s                                   the shim's socket, created again if it is removed
//!            shm                                 the sandbox's /dev/shm
//! ```
//!
//! All are written atomically by one writer. They describe live processes, which do not survive a power loss: so only exits, which
//! are reported, are synced before going on, and the shim syncs the records of what has ended ([`podwright_journal::kept`]). A
//! record damaged or removed externally is written again: from the known state while running, and from its copy when an agent
//! starts. If both are damaged, the shim reports what it knows of containers; a live sandbox of which nothing is known is left
//! alone (see [`crate::runtime`]). Copies are not kept beside the sockets, because they contain environments and secrets.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use podwright_journal::kept;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::owner::{Owner, Owners, SANDBOX};
use crate::removals::{Removals, is_aside};
use crate::spec::{ContainerId, Exit, IdRange, Labels, LogSpec, Resources, SandboxSpec};
use crate::{Config, Error, Result};
use podwright_shim::handshake::Secret;
use podwright_sys::tree::remove_all;

const ANNOTATION: &str = "annotation";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub spec: SandboxSpec,
    pub created: Timestamp,
    /// A stop was requested: it is completed in any case.
    #[serde(default)]
    pub stopped: bool,
    /// Its shim was given a secret: without it, the sandbox is lost. `false`: from an agent that had no secrets, or did not record
    /// them.
    #[serde(default)]
    pub secret: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: ContainerId,
    pub created: Timestamp,
    #[serde(default)]
    pub started: Option<Timestamp>,
    pub labels: Labels,
    pub log: Option<LogSpec>,
    pub stdin: bool,
    pub terminal: bool,
    /// From its OCI spec, for exec's defaults.
    pub hostname: String,
    /// `None`: created by an agent without device rules.
    #[serde(default)]
    pub devices: Option<Devices>,
    /// The limits of its cgroup. `None`: created by an agent that did not record them.
    #[serde(default)]
    pub resources: Option<Resources>,
}

/// An annotation that an earlier agent wrote into the record itself.
#[derive(Deserialize)]
struct Annotated {
    annotation: String,
}

/// How a container's devices are restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Devices {
    /// Unrestricted.
    Open,
    /// By a program on its cgroup.
    Held,
    /// Not by a program, because this host refuses them: its processes lack CAP_MKNOD.
    Refused,
}

/// The folders of a runtime.
#[derive(Clone, Debug)]
pub struct Folders {
    pub state: PathBuf,
    pub copies: PathBuf,
    pub run: PathBuf,
    pub removals: Removals,
    pub owners: Owners,
    written: Arc<Mutex<HashMap<PathBuf, Print>>>,
}

/// A file's identity when last read or written: inode, size, and change time.
type Print = (u64, u64, i64, i64);

fn print(path: &Path) -> Option<Print> {
    fs::symlink_metadata(path).ok().as_ref().map(print_of)
}

fn print_of(found: &fs::Metadata) -> Print {
    (found.ino(), found.size(), found.ctime(), found.ctime_nsec())
}

/// A file's contents, and its identity before reading: concurrent changes alter the identity.
fn read_whole(path: &Path) -> Option<(Vec<u8>, Print)> {
    let mut file = fs::File::open(path).ok()?;
    let (found, mut bytes) = (file.metadata().ok()?, Vec::new());
    file.read_to_end(&mut bytes).ok()?;
    Some((bytes, print_of(&found)))
}

impl Folders {
    pub fn new(config: &Config) -> Folders {
        let (state, copies) = (config.state_dir.join("sandboxes"), config.state_dir.join("copies"));
        let (run, owners) = (config.run_dir.clone(), config.owners.clone());
        Folders { state, copies, run, removals: Removals::default(), owners, written: Arc::default() }
    }

    pub fn make(&self) -> Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        // What containers write, and their shims' sockets, must be private.
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        [&self.state, &self.copies, &self.run].into_iter().try_for_each(|dir| private.create(dir).map_err(at(dir)))
    }

    pub fn sandbox(&self, id: &str) -> PathBuf {
        self.state.join(id)
    }

    pub fn containers(&self, id: &str) -> PathBuf {
        self.sandbox(id).join("c")
    }

    pub fn container(&self, id: &ContainerId) -> PathBuf {
        self.containers(&id.sandbox).join(id.key())
    }

    pub fn run(&self, id: &str) -> PathBuf {
        self.run.join(id)
    }

    pub fn shm(&self, id: &str) -> PathBuf {
        self.run(id).join("shm")
    }

    /// The folder of a sandbox's copies.
    pub fn copy(&self, id: &str) -> PathBuf {
        self.copies.join(id)
    }

    fn container_copy(&self, id: &ContainerId) -> PathBuf {
        self.copy(&id.sandbox).join("c").join(id.key())
    }

    /// The ids of all sandboxes with a folder.
    pub fn sandboxes(&self) -> Vec<String> {
        let mut all = names(&self.state);
        all.retain(|name| !is_aside(name));
        all
    }

    /// The ids of all sandboxes with copies.
    pub fn copied(&self) -> Vec<String> {
        names(&self.copies)
    }

    /// The ids of all sandboxes with a folder for their shim's socket.
    pub fn runs(&self) -> Vec<String> {
        names(&self.run)
    }

    /// The records of a sandbox's containers; and those with a folder or a copy, but no readable record.
    pub fn container_records(&self, id: &str) -> (Vec<ContainerRecord>, Vec<ContainerId>) {
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        let keys = names(&self.containers(id)).into_iter().chain(names(&self.copy(id).join("c")));
        let keys: BTreeSet<String> = keys.filter(|name| !name.ends_with(".tmp") && !is_aside(name)).collect();
        for container in keys.iter().filter_map(|key| format!("{id}/{key}").parse::<ContainerId>().ok()) {
            let path = self.container_record(&container);
            // The record will be rewritten without it.
            let annotation: Option<Annotated> = read(&path);
            let parted = annotation.map_or(Ok(()), |a| self.write_annotation(&container, &a.annotation));
            if let Err(error) = parted {
                tracing::warn!(%error, "failed to keep a container's annotation");
            }
            let is_its = |record: &ContainerRecord| record.id == container;
            let is_copied = |record: &ContainerRecord| record.started.is_some();
            match self.read_or_copy([path, self.container_copy(&container)], is_its, is_copied) {
                Some(record) => records.push(record),
                None => unreadable.push(container),
            }
        }
        (records, unreadable)
    }

    pub fn read_sandbox(&self, id: &str) -> Option<SandboxRecord> {
        let is_its = |record: &SandboxRecord| record.spec.id == id;
        self.read_or_copy([self.sandbox_record(id), self.copy(id).join("sandbox")], is_its, |_| true)
    }

    /// Reads a record, or its copy if it is damaged or missing. Restores the missing one of the two.
    fn read_or_copy<T: DeserializeOwned>(
        &self,
        paths: [PathBuf; 2],
        is_its: impl Fn(&T) -> bool,
        is_copied: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let found = paths.each_ref().map(|path| read_whole(path));
        let parse = |bytes: &[u8]| serde_json::from_slice(bytes).ok().filter(&is_its);
        let sound = |(of, found): (usize, &Option<(Vec<u8>, Print)>)| {
            let (bytes, _) = found.as_ref()?;
            Some((of, bytes.clone(), parse(bytes)?))
        };
        let (of, bytes, record) = found.iter().enumerate().find_map(sound)?;
        if of != 0 {
            tracing::warn!("{} was damaged: restoring it from its copy", paths[0].display());
        }
        for (at, path) in paths.iter().enumerate().take(if is_copied(&record) { 2 } else { 1 }) {
            if let Some(found) = found[at].as_ref().filter(|found| found.0 == bytes) {
                self.note(path, found.1);
            } else if let Err(error) = self.keep(path, &bytes) {
                tracing::warn!("{error}");
            }
        }
        Some(record)
    }

    /// The secret shared by agent and shim of a sandbox; `None`: there is none. Restores a missing file or copy if possible. Fails
    /// if both are damaged.
    pub fn read_secret(&self, id: &str) -> Result<Option<Secret>> {
        let paths = self.secrets(id);
        let found = paths.each_ref().map(|path| read_whole(path));
        let secret = found.iter().flatten().find_map(|(bytes, _)| Secret::of(bytes));
        match secret {
            Some(secret) => {
                for (path, found) in paths.iter().zip(&found) {
                    if let Some(found) = found.as_ref().filter(|found| found.0 == secret.bytes()) {
                        self.note(path, found.1);
                    } else if let Err(error) = self.keep(path, secret.bytes()) {
                        tracing::warn!("{error}");
                    }
                }
                Ok(Some(secret))
            }
            None if found.iter().all(|found| found.is_none()) => Ok(None),
            None => Err(at(&paths[0])(std::io::Error::other("the shim's secret is damaged"))),
        }
    }

    pub fn write_secret(&self, id: &str, secret: &Secret) -> Result<()> {
        self.secrets(id).iter().try_for_each(|path| self.keep(path, secret.bytes()))
    }

    fn secrets(&self, id: &str) -> [PathBuf; 2] {
        [self.sandbox(id), self.copy(id)].map(|folder| folder.join("secret"))
    }

    pub fn write_sandbox(&self, record: &SandboxRecord) -> Result<()> {
        let id = &record.spec.id;
        let bytes = json(&self.sandbox_record(id), record)?;
        self.keep(&self.sandbox_record(id), &bytes)?;
        self.keep(&self.copy(id).join("sandbox"), &bytes)
    }

    /// A container that was never started has no copy: nothing of it is alive.
    pub fn write_container(&self, record: &ContainerRecord) -> Result<()> {
        let path = self.container_record(&record.id);
        let bytes = json(&path, record)?;
        self.keep(&path, &bytes)?;
        match record.started {
            Some(_) => self.keep(&self.container_copy(&record.id), &bytes),
            None => Ok(()),
        }
    }

    fn keep(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let written = kept::replace(path, bytes).map_err(at(path))?;
        let (inode, _, second, nanosecond) = print_of(&written);
        // Truncating it at once changes its identity, too.
        self.note(path, (inode, bytes.len() as u64, second, nanosecond));
        Ok(())
    }

    /// Removes all records of a container; its folder is moved aside.
    pub fn remove_container(&self, id: &ContainerId, owner: &Owner) -> Result<()> {
        let copy = self.container_copy(id);
        match fs::remove_file(&copy) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at(&copy)(e)),
            _ => self.put_aside(&self.container(id), owner),
        }
    }

    /// Removes all records of a sandbox; its folder with the record is moved aside last, so that a failure is found again.
    pub fn forget(&self, id: &str, owner: &Owner) -> Result<()> {
        remove_folder(&self.copy(id))?;
        self.put_aside(&self.sandbox(id), owner)
    }

    /// The same without a record: its users come from `known`, from its caller, or from its files' ids. Blocks, at most until
    /// `end`.
    pub fn forget_unrecorded(&self, id: &str, known: Option<Option<IdRange>>, end: Instant) -> Result<()> {
        let noted = self.owners.of(id);
        let name = noted.as_ref().map(|owner| owner.name().to_owned()).unwrap_or_default();
        let owner = match (known, noted) {
            (Some(users), _) => Owner::new(&name, users),
            (None, Some(noted)) => noted,
            (None, None) => Owner::found_in(&name, &self.sandbox(id), end.saturating_duration_since(Instant::now())),
        };
        self.forget(id, &owner)
    }

    /// Deletes what an earlier agent has moved aside of an existing sandbox.
    pub fn find_aside(&self, id: &str) {
        let containers = self.containers(id);
        self.removals.find(&containers);
        for key in names(&containers).iter().filter(|key| !is_aside(key)) {
            self.removals.find(&containers.join(key));
        }
    }

    pub fn put_aside(&self, folder: &Path, owner: &Owner) -> Result<()> {
        self.removals.put_aside(folder, owner).map_err(at(folder))
    }

    /// The files that an agent needs to recover a sandbox and these containers.
    pub fn kept<'a>(&self, id: &str, containers: impl Iterator<Item = &'a ContainerId>) -> BTreeSet<PathBuf> {
        let of_containers = containers.flat_map(|id| [self.container_record(id), self.container_copy(id)]);
        let own = [self.sandbox_record(id), self.copy(id).join("sandbox")];
        own.into_iter().chain(self.secrets(id)).chain(of_containers).collect()
    }

    pub fn sandbox_record(&self, id: &str) -> PathBuf {
        self.sandbox(id).join(SANDBOX)
    }

    pub fn container_record(&self, id: &ContainerId) -> PathBuf {
        self.container(id).join("container.json")
    }

    /// Stores the identity of a file whose content is known to be right: as it was written, or before it was read. The current file
    /// may already be someone else's.
    fn note(&self, path: &Path, print: Print) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), print);
    }

    /// Whether a record was changed or removed externally. Reliable only while holding its turn: otherwise it may be being written.
    pub fn is_damaged(&self, path: &Path) -> bool {
        let known = self.written.lock().unwrap_or_else(PoisonError::into_inner).get(path).copied();
        known.is_some_and(|known| print(path) != Some(known))
    }

    /// Those of these records that were changed or removed externally, or are being written. Drops others.
    pub fn damaged(&self, records: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
        let known = {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.retain(|path, _| records.contains(path));
            written.clone()
        };
        let others = known.into_iter().filter(|(path, known)| print(path) != Some(*known));
        others.map(|(path, _)| path).collect()
    }

    pub fn annotation(&self, id: &ContainerId) -> PathBuf {
        self.container(id).join(ANNOTATION)
    }

    /// Stores a container's annotation. It is not kept in memory: it may be a megabyte, for each attempt of a container.
    pub fn write_annotation(&self, id: &ContainerId, annotation: &str) -> Result<()> {
        let path = self.annotation(id);
        kept::replace(&path, annotation.as_bytes()).map(drop).map_err(at(&path))
    }

    /// Empty if none was written.
    pub fn read_annotation(&self, id: &ContainerId) -> Result<String> {
        let path = self.annotation(id);
        match fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            read => read.map_err(at(&path)),
        }
    }

    pub fn read_exit(&self, id: &ContainerId) -> Option<Exit> {
        read(&self.container(id).join("exit.json"))
    }

    pub fn write_exit(&self, id: &ContainerId, exit: &Exit) -> Result<()> {
        let path = self.container(id).join("exit.json");
        let bytes = serde_json::to_vec(exit).map_err(|e| at(&path)(e.into()))?;
        kept::replace_durably(&path, &bytes).map_err(at(&path))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// Ignores a torn or foreign file.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn json(path: &Path, record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|e| at(path)(e.into()))
}

/// Removes a folder with its contents; succeeds if it does not exist.
pub fn remove_folder(path: &Path) -> Result<()> {
    remove_all(path).map_err(at(path))
}

pub fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

#[cfg(test)]
mod tests;
