//! After a crash: find what an earlier agent made, take over what lives, account for what died, remove what is half made.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Container, Runtime, Sandbox};
use crate::cgroup;
use crate::plan::{Call, ContainerSnapshot, State};
use crate::records::{ContainerRecord, SandboxRecord, remove_folder};
use crate::sys::Kernel;
use crate::{Error, Result, Scribe};

impl Runtime {
    /// Takes over every sandbox that has a folder, all at once.
    pub(super) async fn recover(&self) {
        let mut tasks = tokio::task::JoinSet::new();
        for id in self.0.folders.sandboxes() {
            let runtime = self.clone();
            tasks.spawn(async move {
                if let Err(e) = runtime.recover_sandbox(&id).await {
                    tracing::warn!("sandbox {id}: {e}");
                }
            });
        }
        tasks.join_all().await;
    }

    async fn recover_sandbox(&self, id: &str) -> Result<()> {
        let Some(record) = self.0.folders.read_sandbox(id) else {
            // A folder without a record: nothing of it can have been made in the kernel.
            return remove_folder(&self.0.folders.sandbox(id));
        };
        let sandbox = Sandbox::new(record.clone());
        self.sandboxes().insert(id.to_owned(), sandbox.clone());
        let (records, half_made) = self.0.folders.container_records(id);
        for folder in half_made {
            remove_folder(&folder)?;
        }
        let state = self.reconnect(&sandbox).await;
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

    /// The shim's state, if it lives.
    async fn reconnect(&self, sandbox: &Arc<Sandbox>) -> Option<State> {
        let link = self.connect(sandbox).ok()?;
        let (answer, fds) = link.ask(Scribe::none().cause(), Call::State, &[]).await.ok()?;
        Some(self.adopt(sandbox, answer, fds))
    }

    /// Containers that the shim knows, or that have an exit record, exist; others were never made whole.
    async fn take_over_containers(&self, sandbox: &Arc<Sandbox>, records: Vec<ContainerRecord>, state: Option<&State>) {
        let spec = sandbox.state().record.spec.clone();
        for mut record in records {
            let known = state.and_then(|s| s.containers.iter().find(|c| c.key == record.id.key()));
            let exit = known.and_then(|k| k.exit.clone()).or_else(|| self.0.folders.read_exit(&record.id));
            if known.is_none() && exit.is_none() && state.is_some() {
                let (kernel, path) = (Kernel::new(&Scribe::none()), self.cgroup_path(&spec, Some(&record.id)));
                let folder = self.0.folders.container(&record.id);
                let removed = self.blocking(move |_| {
                    cgroup::remove(&kernel, &path)?;
                    remove_folder(&folder)
                });
                if let Err(e) = removed.await {
                    tracing::warn!("half-made container {}: {e}", record.id);
                }
                continue;
            }
            let started = known.and_then(started);
            record.started = record.started.or(started);
            let pid = known.map_or(0, |k| k.pid);
            let key = record.id.key();
            sandbox.state().containers.insert(key, Container::new(record, pid, exit));
        }
    }

    /// The shim is dead (or the machine was restarted): so must its processes be.
    async fn bury(&self, sandbox: &Arc<Sandbox>, record: &SandboxRecord) -> Result<()> {
        let spec = record.spec.clone();
        let killed = self.blocking(move |inner| {
            cgroup::kill(&Kernel::new(&Scribe::none()), &inner.tree.path(&spec.cgroup)).map_err(Error::from)
        });
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

fn started(snapshot: &ContainerSnapshot) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(snapshot.started_ns?)).ok()
}
