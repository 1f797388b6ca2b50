//! The only way to write the record of a known container: one writer at a time, with the state current at that time.
//!
//! A container may be started while its limits are changed, or its record is repaired: no writer reverts another's change, or takes
//! another's file for damage.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use super::{Errors, Sandbox};
use crate::Result;
use crate::records::{ContainerRecord, Folders};
use crate::spec::ContainerId;

impl Sandbox {
    pub(super) fn turn_of(&self, id: &ContainerId) -> Result<Arc<Mutex<()>>> {
        self.with_container(id, |c| c.turn.clone())
    }

    /// Changes the record of a container, and its requested start time: first on disk, then in memory. Blocks. Errors:
    /// [`NotFound`](crate::Error::NotFound) if it is gone; then nothing is written.
    pub(super) fn note(
        &self,
        folders: &Folders,
        id: &ContainerId,
        change: impl Fn(&mut ContainerRecord, &mut Option<Timestamp>),
    ) -> Result<()> {
        let turn = self.turn_of(id)?;
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut record, mut starting) = self.with_container(id, |c| (c.record.clone(), c.starting))?;
        change(&mut record, &mut starting);
        folders.write_container(&noted(record, starting))?;
        self.with_container(id, |c| change(&mut c.record, &mut c.starting))
    }

    /// Rewrites a container's record if one of these files was damaged externally. Blocks. Returns whether it did.
    pub(super) fn mend(&self, folders: &Folders, id: &ContainerId, damaged: &[PathBuf]) -> Result<bool> {
        let Ok(turn) = self.turn_of(id) else { return Ok(false) };
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        // A concurrent writer has left another file than the expected one.
        if !damaged.iter().any(|path| folders.is_damaged(path)) {
            return Ok(false);
        }
        let (record, starting) = self.with_container(id, |c| (c.record.clone(), c.starting))?;
        folders.write_container(&noted(record, starting)).map(|()| true)
    }

    /// Removes the records of a container, and drops it: nothing of it is written from then on. Blocks.
    pub(super) fn forget(&self, folders: &Folders, id: &ContainerId) -> Result<()> {
        // A container that was never completed has no other writers.
        let turn = self.turn_of(id).unwrap_or_default();
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut errors = Errors::default();
        let owner = self.state().record.spec.owner();
        errors.note(folders.remove_container(id, &owner));
        self.state().containers.remove(&id.key());
        errors.result()
    }

    /// Drops all containers; nothing of them is written from then on: the sandbox's folder is about to be removed. Blocks.
    pub(super) fn forget_all(&self) {
        let all: Vec<_> = self.state().containers.iter().map(|(key, c)| (key.clone(), c.turn.clone())).collect();
        for (key, turn) in all {
            // A writer in progress finishes first.
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            self.state().containers.remove(&key);
        }
    }
}

fn noted(record: ContainerRecord, starting: Option<Timestamp>) -> ContainerRecord {
    ContainerRecord { started: record.started.or(starting), ..record }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Config;
    use crate::records::SandboxRecord;
    use crate::runtime::Container;
    use crate::spec::{CgroupName, Labels, SandboxSpec};

    fn world(dir: &std::path::Path) -> (Folders, Arc<Sandbox>, ContainerId) {
        let folders = Folders::new(&Config {
            state_dir: dir.join("state"),
            run_dir: dir.join("run"),
            cgroup_root: dir.join("none"),
            shim: dir.join("none"),
            birth_timeout: Duration::ZERO,
            owners: Default::default(),
        });
        let id = ContainerId::new("s", "c", 0);
        let spec = SandboxSpec::new("s", CgroupName::new("s"));
        let sandbox =
            Sandbox::new(SandboxRecord { spec, created: Timestamp::UNIX_EPOCH, stopped: false, secret: false });
        let record = ContainerRecord {
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
        };
        folders.write_container(&record).unwrap();
        sandbox.state().containers.insert(id.key(), Container::new(record, 0, None));
        (folders, sandbox, id)
    }

    fn read(folders: &Folders, id: &ContainerId) -> ContainerRecord {
        serde_json::from_slice(&std::fs::read(folders.container_record(id)).unwrap()).unwrap()
    }

    /// One writer has read the record, and is delayed; the other one comes in between.
    #[test]
    fn of_two_that_write_a_record_at_once_none_undoes_what_the_other_has_noted() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, sandbox, id) = world(dir.path());
        let (looked, has_looked) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (folders, sandbox, id) = (&folders, &sandbox, &id);
            scope.spawn(move || {
                let slowly = |record: &mut ContainerRecord, _: &mut Option<Timestamp>| {
                    record.labels.insert("slow".into(), "1".into());
                    looked.send(()).unwrap();
                    may_go_on.recv().unwrap_or_default();
                };
                sandbox.note(folders, id, slowly).unwrap();
            });
            has_looked.recv().unwrap();
            let quick = scope.spawn(move || {
                sandbox.note(folders, id, |_, starting| *starting = Some(Timestamp::UNIX_EPOCH)).unwrap();
            });
            let mending = scope.spawn(move || {
                let path = folders.container_record(id);
                sandbox.mend(folders, id, &[path]).unwrap()
            });
            // Without turns they would finish long before that.
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until && !(quick.is_finished() && mending.is_finished()) {
                std::thread::yield_now();
            }
            drop(go_on);
            assert!(!mending.join().unwrap(), "nobody else has changed it");
        });
        let found = read(&folders, &id);
        assert_eq!((found.labels.len(), found.started), (1, Some(Timestamp::UNIX_EPOCH)));
        let known = sandbox.with_container(&id, |c| (c.record.labels.len(), c.record.started, c.starting)).unwrap();
        assert_eq!(known, (1, None, found.started), "it has been asked to start");
        let all: BTreeSet<PathBuf> = folders.kept("s", [&id].into_iter());
        assert_eq!(folders.damaged(&all), BTreeSet::new());
    }

    #[test]
    fn what_is_removed_is_not_written_again_and_what_is_damaged_is() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, sandbox, id) = world(dir.path());
        let path = folders.container_record(&id);
        std::fs::write(&path, "{").unwrap();
        assert!(sandbox.mend(&folders, &id, std::slice::from_ref(&path)).unwrap());
        assert_eq!(read(&folders, &id).id, id);
        sandbox.forget(&folders, &id).unwrap();
        assert!(sandbox.note(&folders, &id, |_, _| ()).is_err());
        assert!(!sandbox.mend(&folders, &id, &[path]).unwrap());
        assert!(!folders.container(&id).exists());
    }

    /// A start writes its record while it waits for the shim.
    #[tokio::test]
    async fn nothing_is_written_for_a_sandbox_that_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, sandbox, id) = world(dir.path());
        let (writes, written) = mpsc::channel();
        let (of, at, own) = (sandbox.clone(), folders.clone(), id.clone());
        let writer = std::thread::spawn(move || {
            of.note(&at, &own, move |_, _| {
                writes.send(()).ok();
                std::thread::sleep(Duration::from_millis(20));
            })
        });
        written.recv().unwrap();
        sandbox.forget_all();
        folders.forget("s", &crate::removals::Owner::default()).unwrap();
        assert!(writer.join().unwrap().is_ok(), "it was there first");
        assert!(sandbox.note(&folders, &id, |_, _| ()).is_err());
        assert!(!folders.sandbox("s").exists() && !folders.copy("s").exists());
        folders.removals.gone(dir.path()).await;
    }
}
