//! What must be known after a crash: one small JSON file per sandbox and per container, beside what it describes.
//!
//! ```text
//! <state>/sandboxes/<id>/sandbox.json            written before anything of it is made
//!                        secret                  what agent and shim know each other by, root's alone
//!                        shim.log                what the shim could not tell anyone
//!                        c/<key>/container.json  written before anything of it is made
//!                                annotation      what its caller wants to find again: read when asked for
//!                                exit.json       written by the shim, durably, before anyone is told
//!                                upper work rootfs
//! <run>/<id>/s                                   the shim's socket
//!            shm                                 the sandbox's /dev/shm
//! ```
//!
//! A process crash loses nothing that was written. Only exits must survive a power loss, for the rest does not run after one: the
//! shim brings them to the disk, and with them the records of what has ended. A record that somebody else damages or removes while
//! what it describes is known is written again.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::spec::{ContainerId, Exit, Labels, LogSpec, Resources, SandboxSpec};
use crate::sys::fs::write_durably;
use crate::sys::tree::remove_all;
use crate::{Config, Error, Result};

const ANNOTATION: &str = "annotation";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub spec: SandboxSpec,
    pub created: Timestamp,
    /// Asked to stop: it is finished being stopped, whatever is found of it.
    #[serde(default)]
    pub stopped: bool,
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
    /// As its OCI spec says, for exec's defaults.
    pub hostname: String,
    /// `None`: it was made by an agent that knew no device rules.
    #[serde(default)]
    pub devices: Option<Devices>,
    /// The limits of its cgroup. `None`: it was made by an agent that did not note them.
    #[serde(default)]
    pub resources: Option<Resources>,
}

/// What an earlier agent wrote into the record itself.
#[derive(Deserialize)]
struct Annotated {
    annotation: String,
}

/// What decides which devices a container may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Devices {
    /// Nothing: it may use all.
    Open,
    /// A program on its cgroup.
    Held,
    /// Nothing, because this host refuses such programs: its processes have no CAP_MKNOD.
    Refused,
}

/// The folders of a runtime.
#[derive(Clone, Debug)]
pub struct Folders {
    pub state: PathBuf,
    pub run: PathBuf,
    written: Arc<Mutex<HashMap<PathBuf, Print>>>,
}

/// A file as it was when it was read or written last: inode, size, and when it was changed.
type Print = (u64, u64, i64, i64);

fn print(path: &Path) -> Option<Print> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

impl Folders {
    pub fn new(config: &Config) -> Folders {
        Folders { state: config.state_dir.join("sandboxes"), run: config.run_dir.clone(), written: Arc::default() }
    }

    pub fn make(&self) -> Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        // What containers write, and the sockets of their shims, are nobody else's business.
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        [&self.state, &self.run].into_iter().try_for_each(|dir| private.create(dir).map_err(at(dir)))
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

    /// The ids of all sandboxes that have a folder.
    pub fn sandboxes(&self) -> Vec<String> {
        names(&self.state)
    }

    /// The ids of all sandboxes that have a folder for their shim's socket.
    pub fn runs(&self) -> Vec<String> {
        names(&self.run)
    }

    /// The records of a sandbox's containers; a folder without one is half made: its path.
    pub fn container_records(&self, id: &str) -> (Vec<ContainerRecord>, Vec<PathBuf>) {
        let (mut records, mut half_made) = (Vec::new(), Vec::new());
        for name in names(&self.containers(id)) {
            let folder = self.containers(id).join(name);
            match read(&folder.join("container.json")) {
                Some(record) => {
                    // The record will be written again, without it.
                    let annotation: Option<Annotated> = read(&folder.join("container.json"));
                    let parted =
                        annotation.map_or(Ok(()), |a| write_bytes(&folder.join(ANNOTATION), a.annotation.as_bytes()));
                    if let Err(error) = parted {
                        tracing::warn!(%error, "a container's annotation is lost");
                    }
                    self.note(&folder.join("container.json"));
                    records.push(record);
                }
                None => half_made.push(folder),
            }
        }
        (records, half_made)
    }

    pub fn read_sandbox(&self, id: &str) -> Option<SandboxRecord> {
        let path = self.sandbox_record(id);
        let record = read(&path);
        self.note(&path);
        record
    }

    pub fn write_sandbox(&self, record: &SandboxRecord) -> Result<()> {
        let path = self.sandbox_record(&record.spec.id);
        write(&path, record)?;
        self.note(&path);
        Ok(())
    }

    pub fn write_container(&self, record: &ContainerRecord) -> Result<()> {
        let path = self.container_record(&record.id);
        write(&path, record)?;
        self.note(&path);
        Ok(())
    }

    pub fn sandbox_record(&self, id: &str) -> PathBuf {
        self.sandbox(id).join("sandbox.json")
    }

    pub fn container_record(&self, id: &ContainerId) -> PathBuf {
        self.container(id).join("container.json")
    }

    /// This record is as it should be.
    fn note(&self, path: &Path) {
        let print = print(path);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match print {
            Some(print) => drop(written.insert(path.to_owned(), print)),
            None => drop(written.remove(path)),
        }
    }

    /// Those of these records that somebody else has changed or removed. Others are forgotten.
    pub fn damaged(&self, records: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
        let known = {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.retain(|path, _| records.contains(path));
            written.clone()
        };
        let others = known.into_iter().filter(|(path, known)| print(path) != Some(*known));
        others.map(|(path, _)| path).collect()
    }

    /// Notes a container's annotation. Nobody holds it in memory: it may be a megabyte, of each attempt to run a container.
    pub fn write_annotation(&self, id: &ContainerId, annotation: &str) -> Result<()> {
        write_bytes(&self.container(id).join(ANNOTATION), annotation.as_bytes())
    }

    /// Empty where none was ever written.
    pub fn read_annotation(&self, id: &ContainerId) -> Result<String> {
        let path = self.container(id).join(ANNOTATION);
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
        write_durably(&path, &bytes).map_err(at(&path))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// A torn or foreign file is no record.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Replaces a record whole; its folder is made.
fn write(path: &Path, record: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(record).map_err(|e| at(path)(e.into()))?;
    write_bytes(path, &bytes)
}

fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    let act = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let aside = path.with_extension("tmp");
        fs::write(&aside, bytes)?;
        fs::rename(&aside, path)
    };
    act().map_err(at(path))
}

/// Removes a folder with all in it; a missing one is fine.
pub fn remove_folder(path: &Path) -> Result<()> {
    remove_all(path).map_err(at(path))
}

pub fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &ContainerId) -> ContainerRecord {
        ContainerRecord {
            id: id.clone(),
            created: Timestamp::UNIX_EPOCH,
            started: None,
            labels: Labels::new(),
            log: None,
            stdin: false,
            terminal: false,
            hostname: String::new(),
            devices: None,
            resources: None,
        }
    }

    fn folders(dir: &Path) -> Folders {
        Folders { state: dir.join("state"), run: dir.join("run"), written: Arc::default() }
    }

    #[test]
    fn a_record_that_somebody_else_changes_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, id) = (folders(dir.path()), ContainerId::new("s", "c", 0));
        let path = folders.container_record(&id);
        let all = BTreeSet::from([path.clone(), dir.path().join("never written")]);
        for damage in ["", "{", "gone"] {
            folders.write_container(&record(&id)).unwrap();
            assert_eq!(folders.damaged(&all), BTreeSet::new());
            match damage {
                "gone" => fs::remove_file(&path).unwrap(),
                bytes => fs::write(&path, bytes).unwrap(),
            }
            assert_eq!(folders.damaged(&all), BTreeSet::from([path.clone()]), "{damage:?}");
        }
        assert_eq!(folders.damaged(&BTreeSet::new()), BTreeSet::new(), "what is no longer known is not missed");
    }

    #[test]
    fn an_annotation_has_a_file_of_its_own_and_that_of_an_earlier_agent_gets_one() {
        let dir = tempfile::tempdir().unwrap();
        let folders = folders(dir.path());
        let (new, earlier) = (ContainerId::new("s", "new", 0), ContainerId::new("s", "earlier", 0));
        folders.write_annotation(&new, "mine").unwrap();
        folders.write_container(&record(&new)).unwrap();
        let mut json = serde_json::to_value(record(&earlier)).unwrap();
        json["annotation"] = "of old".into();
        write(&folders.container(&earlier).join("container.json"), &json).unwrap();

        let (records, half_made) = folders.container_records("s");
        assert_eq!((records.len(), half_made.len()), (2, 0));
        for record in &records {
            assert!(!serde_json::to_string(record).unwrap().contains("annotation"), "held in memory");
            folders.write_container(record).unwrap();
        }
        folders.container_records("s");
        for (id, expected) in [(&new, "mine"), (&earlier, "of old"), (&ContainerId::new("s", "none", 0), "")] {
            assert_eq!(folders.read_annotation(id).unwrap(), expected);
        }
    }
}
