//! After a crash: find what an earlier agent made, take over what lives, account for what died, remove what is half made.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use super::sandboxes::{PAUSE, SHIMS, shim};
use super::{Container, Errors, Runtime, Sandbox};
use crate::plan::{Call, ContainerSnapshot, State};
use crate::records::{ContainerRecord, SandboxRecord, remove_folder};
use crate::spec::CgroupName;
use crate::sys::Kernel;
use crate::{Error, Result, Scribe};

impl Runtime {
    /// Takes over every sandbox that has a folder, all at once. `strict`: a shim that lives and cannot be spoken to is an error, and
    /// not touched; else it is as good as dead.
    pub(super) async fn recover(&self, strict: bool) -> Result<()> {
        let found = self.0.folders.sandboxes().into_iter().map(|id| (self.0.folders.read_sandbox(&id), id));
        let found: Vec<(Option<SandboxRecord>, String)> = found.collect();
        self.sweep_strays(found.iter().filter_map(|(record, _)| record.as_ref())).await;
        let mut tasks = tokio::task::JoinSet::new();
        for (record, id) in found {
            let runtime = self.clone();
            tasks.spawn(async move {
                match runtime.recover_sandbox(&id, record, strict).await {
                    Err(e @ Error::Protocol(_)) => Err(e),
                    Err(e) => {
                        tracing::warn!("sandbox {id}: {e}");
                        Ok(())
                    }
                    Ok(()) => Ok(()),
                }
            });
        }
        tasks.join_all().await.into_iter().collect()
    }

    /// Writes those records again that somebody else has damaged or removed while what they describe is known; which.
    pub async fn mend_records(&self) -> Vec<PathBuf> {
        let sandboxes: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        let mut records = BTreeSet::new();
        for sandbox in &sandboxes {
            let (folders, state) = (&self.0.folders, sandbox.state());
            records.insert(folders.sandbox_record(&sandbox.id));
            records.extend(state.containers.values().map(|container| folders.container_record(&container.record.id)));
        }
        let damaged = self.blocking(move |inner| Ok(inner.folders.damaged(&records))).await.unwrap_or_default();
        let mut mended = Vec::new();
        for sandbox in sandboxes.iter().filter(|_| !damaged.is_empty()) {
            match self.mend_records_of(sandbox, &damaged).await {
                Ok(paths) => mended.extend(paths),
                Err(error) => tracing::warn!("records of sandbox {}: {error}", sandbox.id),
            }
        }
        mended
    }

    async fn mend_records_of(&self, sandbox: &Arc<Sandbox>, damaged: &BTreeSet<PathBuf>) -> Result<Vec<PathBuf>> {
        // Whoever changes it just now writes its record, or removes it; else it is looked at again.
        let Ok(_turn) = sandbox.turn.try_lock() else { return Ok(Vec::new()) };
        let is_known = self.find(&sandbox.id).is_some_and(|found| Arc::ptr_eq(&found, sandbox));
        let folders = self.0.folders.clone();
        let (own, containers): (Option<SandboxRecord>, Vec<ContainerRecord>) = {
            let state = sandbox.state();
            let is_damaged = |path: PathBuf| is_known && damaged.contains(&path);
            let own = is_damaged(folders.sandbox_record(&sandbox.id)).then(|| state.record.clone());
            let all = state.containers.values().map(|container| &container.record);
            (own, all.filter(|record| is_damaged(folders.container_record(&record.id))).cloned().collect())
        };
        let write = move |_: &super::Inner| {
            let mut mended = Vec::new();
            if let Some(record) = &own {
                folders.write_sandbox(record)?;
                mended.push(folders.sandbox_record(&record.spec.id));
            }
            for record in &containers {
                folders.write_container(record)?;
                mended.push(folders.container_record(&record.id));
            }
            Ok(mended)
        };
        self.blocking(write).await
    }

    async fn recover_sandbox(&self, id: &str, record: Option<SandboxRecord>, strict: bool) -> Result<()> {
        let Some(record) = record else {
            // A folder without a record: nothing of it can have been made in the kernel.
            return remove_folder(&self.0.folders.sandbox(id));
        };
        let sandbox = Sandbox::new(record.clone());
        self.sandboxes().insert(id.to_owned(), sandbox.clone());
        let (records, half_made) = self.0.folders.container_records(id);
        for folder in half_made {
            remove_folder(&folder)?;
        }
        let state = match self.reconnect(&sandbox).await {
            Err(e) if strict => return Err(e),
            Err(e) => {
                tracing::warn!("{e}");
                None
            }
            Ok(state) => state,
        };
        let never_ready =
            state.as_ref().map_or(records.is_empty() && !record.stopped, |s| s.sandbox == 0 && records.is_empty());
        self.take_over_containers(&sandbox, records, state.as_ref()).await;
        if never_ready || record.stopped {
            return self.finish_removal(&sandbox, &record, never_ready).await;
        }
        match state {
            None => self.bury(&sandbox, &record).await?,
            Some(state) if state.sandbox == 0 => self.kill_orphans(&sandbox).await,
            Some(_) => {}
        }
        Ok(())
    }

    /// Removes what there is of sandboxes that nothing is recorded of: processes, cgroups, sockets, mounts.
    async fn sweep_strays(&self, records: impl Iterator<Item = &SandboxRecord>) {
        let (ids, cgroups): (BTreeSet<String>, Vec<CgroupName>) =
            records.map(|r| (r.spec.id.clone(), r.spec.cgroup.clone())).unzip();
        let swept = self.blocking(move |inner| {
            let (mut errors, kernel) = (Errors::default(), Kernel::new(&Scribe::none()));
            let tree = inner.tree.names();
            let shims = tree.iter().filter_map(shim_of).chain(inner.folders.runs());
            for id in shims.collect::<BTreeSet<String>>().difference(&ids) {
                tracing::warn!("a shim of a sandbox without a record is removed: {id}");
                errors.note(inner.sweep_shim(id, &kernel));
                errors.note(remove_folder(&inner.folders.run(id)));
            }
            for cgroup in tree.iter().filter_map(sandbox_of).filter(|c| !cgroups.contains(c)) {
                tracing::warn!("a sandbox without a record is removed: {}", cgroup.as_path().display());
                errors.note(inner.tree.remove(&kernel, &cgroup));
            }
            errors.result()
        });
        if let Err(e) = swept.await {
            tracing::warn!("remainders of earlier sandboxes: {e}");
        }
    }

    /// The shim's state, if it lives. One that hangs is killed. Error: it lives, and cannot be spoken to.
    async fn reconnect(&self, sandbox: &Arc<Sandbox>) -> Result<Option<State>> {
        let scribe = Scribe::none();
        let told = self.connect(sandbox, false, scribe.cause(), || Call::State, &[]).await;
        if let Err(Error::Timeout(..)) = told {
            tracing::warn!("the shim of sandbox {} hangs: it is killed", sandbox.id);
            {
                let mut state = sandbox.state();
                (state.link, state.reader) = (None, None);
            }
            let cgroup = shim(&sandbox.id);
            let killed = self.blocking(move |inner| Ok(inner.tree.kill(&Kernel::new(&scribe), &cgroup)?));
            if let Err(e) = killed.await {
                tracing::warn!("sandbox {}: {e}", sandbox.id);
            }
            return Ok(None);
        }
        match told {
            Ok((answer, fds)) => Ok(Some(self.adopt(sandbox, answer, fds))),
            Err(e @ Error::Protocol(_)) => Err(e),
            // Nobody listens any more.
            Err(_) => Ok(None),
        }
    }

    /// Containers that the shim knows, or that have an exit record, exist; others were never made whole.
    async fn take_over_containers(&self, sandbox: &Arc<Sandbox>, records: Vec<ContainerRecord>, state: Option<&State>) {
        let spec = sandbox.state().record.spec.clone();
        for mut record in records {
            let key = record.id.key();
            let known = state.and_then(|s| s.containers.iter().find(|c| c.key == key));
            let exit = known.and_then(|k| k.exit.clone()).or_else(|| self.0.folders.read_exit(&record.id));
            if known.is_none() && exit.is_none() && state.is_some() {
                let (kernel, cgroup) = (Kernel::new(&Scribe::none()), spec.cgroup.child(&key));
                let folder = self.0.folders.container(&record.id);
                let removed = self.blocking(move |inner| {
                    inner.tree.remove(&kernel, &cgroup)?;
                    remove_folder(&folder)
                });
                if let Err(e) = removed.await {
                    tracing::warn!("half-made container {}: {e}", record.id);
                }
                continue;
            }
            if let Some(known) = known {
                // The record is written while the start is asked for: only the shim knows whether it heard of it.
                let started = started(known);
                record.started = started.and(record.started).or(started);
            }
            let pid = known.map_or(0, |k| k.pid);
            sandbox.state().containers.insert(key, Container::new(record, pid, exit));
        }
    }

    /// The shim is dead (or the machine was restarted): so must its processes be.
    async fn bury(&self, sandbox: &Arc<Sandbox>, record: &SandboxRecord) -> Result<()> {
        let spec = record.spec.clone();
        let killed = self
            .blocking(move |inner| inner.tree.kill(&Kernel::new(&Scribe::none()), &spec.cgroup).map_err(Error::from));
        let killed = killed.await;
        self.mark_unknown(sandbox);
        killed
    }

    /// It was being stopped or removed, or never became ready.
    async fn finish_removal(&self, sandbox: &Arc<Sandbox>, record: &SandboxRecord, never_ready: bool) -> Result<()> {
        let none = Scribe::none();
        if never_ready {
            self.clear_sandbox(sandbox, &none).await?;
            self.sandboxes().remove(&record.spec.id);
            return Ok(());
        }
        self.end_sandbox(sandbox, &none).await
    }
}

/// The sandbox whose shim has this cgroup.
fn shim_of(cgroup: &CgroupName) -> Option<String> {
    Some(cgroup.as_path().strip_prefix(SHIMS).ok()?.to_str()?.to_owned()).filter(|id| !id.is_empty())
}

/// The sandbox's cgroup whose `pause` has this one.
fn sandbox_of(cgroup: &CgroupName) -> Option<CgroupName> {
    cgroup.as_path().ends_with(PAUSE).then(|| cgroup.as_path().parent()?.to_owned().try_into().ok())?
}

fn started(snapshot: &ContainerSnapshot) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(snapshot.started_ns?)).ok()
}
