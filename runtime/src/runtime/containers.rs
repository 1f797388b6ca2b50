//! Operations on existing containers: start, signal, stop, remove, inspect.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oci_spec::runtime::LinuxDeviceCgroup;

use super::{Errors, Guard, Held, Runtime, Sandbox, not_found, now};
use crate::records::{ContainerRecord, Devices};
use crate::spec::*;
use crate::{Error, JournalWriter, Result, cgroup, inspect};
use podwright_shim::protocol::Call;
use podwright_sys::Kernel;

/// Time limit for the kernel to kill.
const KILL: Duration = Duration::from_secs(20);

impl Runtime {
    /// Applies these device rules to a container created without any by an earlier agent, and to one whose program was removed
    /// externally; existing rules are kept. Open devices stay open.
    pub async fn hold_devices(
        &self,
        id: &ContainerId,
        rules: &[LinuxDeviceCgroup],
        journal: &JournalWriter,
    ) -> Result<()> {
        let sandbox = self.get(&id.sandbox)?;
        let _turn = sandbox.turn.lock().await;
        let (had, ended) = sandbox.with_container(id, |c| (c.record.devices, c.exit.borrow().is_some()))?;
        let (kernel, cgroup) = (Kernel::new(journal), self.container_cgroup(id)?);
        let found = match had {
            Some(Devices::Held) if !ended => Held::found(&cgroup)?,
            _ => None,
        };
        let is_held = found.is_some() || matches!(had, Some(Devices::Open | Devices::Refused));
        sandbox.with_container(id, |c| c.held = found)?;
        if ended || is_held {
            return Ok(());
        }
        let guard = self.0.guard(rules)?;
        let (devices, held) = (Some(guard.devices()), Held::of(&guard)?);
        let (of, noted) = (sandbox.clone(), id.clone());
        self.blocking(move |inner| {
            if let Guard::Program(program) = &guard {
                kernel.attach_device_program(&cgroup, program.as_fd())?;
            }
            of.note(&inner.folders, &noted, |record, _| record.devices = devices)
        })
        .await?;
        sandbox.with_container(id, |c| c.held = held)
    }

    /// Changes the limits of a container that has not exited, in place, and its stored labels, durably. Returns the limits that
    /// cannot be enforced. Errors: [`Error::Conflict`] if it has exited.
    pub async fn update_container(
        &self,
        id: &ContainerId,
        resources: &Resources,
        labels: Labels,
        journal: &JournalWriter,
    ) -> Result<Vec<String>> {
        let sandbox = self.get(&id.sandbox)?;
        let _turn = sandbox.turn.lock().await;
        if sandbox.with_container(id, |c| c.exit.borrow().is_some())? {
            return Err(Error::Conflict(format!("container {id} has ended")));
        }
        let (kernel, cgroup) = (Kernel::new(journal), self.container_cgroup(id)?);
        let (resources, of, id) = (resources.clone(), sandbox.clone(), id.clone());
        self.blocking(move |inner| {
            let unenforced = cgroup::change(&kernel, &cgroup, &resources)?;
            of.note(&inner.folders, &id, |record, _| {
                record.labels.extend(labels.clone());
                record.resources = record.resources.take().map(|limits| limits.with(&resources));
            })?;
            Ok(unenforced)
        })
        .await
    }

    /// Lets a created container execute its process; returns the start time, which every later agent will report too. Errors:
    /// [`Error::Start`], after which it is `Exited` with code 128.
    pub async fn start_container(&self, id: &ContainerId, journal: &JournalWriter) -> Result<Timestamp> {
        let sandbox = self.get(&id.sandbox)?;
        let status = sandbox.with_container(id, |c| c.status())?;
        match (status.state, status.started) {
            (ContainerState::Running, Some(started)) => return Ok(started),
            (ContainerState::Exited, _) => return Err(Error::Conflict(format!("container {id} has ended"))),
            _ => {}
        }
        let client = sandbox.client()?;
        let started = now();
        // Writing the record need not delay the start: until it is written, a restarted agent asks the shim.
        let (asked, noted) = tokio::join!(
            client.ask(journal.cause(), Call::Start { key: id.key() }, &[]),
            self.note_start(&sandbox, id, started),
        );
        self.settle_start(&sandbox, id, started, asked.map(drop), noted).await
    }

    pub(super) async fn note_start(&self, sandbox: &Arc<Sandbox>, id: &ContainerId, started: Timestamp) -> Result<()> {
        self.note(sandbox, id, move |_, starting| *starting = Some(started)).await
    }

    /// Reverts that; others may have requested a start as well.
    pub(super) async fn note_no_start(
        &self,
        sandbox: &Arc<Sandbox>,
        id: &ContainerId,
        started: Timestamp,
    ) -> Result<()> {
        self.note(sandbox, id, move |_, starting| *starting = starting.filter(|at| *at != started)).await
    }

    /// The result of a start: its time, as recorded.
    pub(super) async fn settle_start(
        &self,
        sandbox: &Arc<Sandbox>,
        id: &ContainerId,
        started: Timestamp,
        asked: Result<()>,
        noted: Result<()>,
    ) -> Result<Timestamp> {
        if asked.is_err() {
            self.note_no_start(sandbox, id, started).await?;
        }
        if let Err(Error::Start { .. }) = asked {
            // Its exit record follows at once; callers should not see an intermediate state.
            self.await_exit(sandbox, id, KILL).await?;
        }
        asked?;
        let started = sandbox.with_container(id, |c| {
            c.unborn = false;
            let at = c.starting.take();
            *c.record.started.get_or_insert(at.unwrap_or(started))
        })?;
        noted.map(|()| started)
    }

    async fn note(
        &self,
        sandbox: &Arc<Sandbox>,
        id: &ContainerId,
        change: impl Fn(&mut ContainerRecord, &mut Option<Timestamp>) + Send + 'static,
    ) -> Result<()> {
        let (sandbox, id) = (sandbox.clone(), id.clone());
        self.blocking(move |inner| sandbox.note(&inner.folders, &id, change)).await
    }

    /// The annotation of a known container.
    pub async fn annotation(&self, id: &ContainerId) -> Result<String> {
        self.get(&id.sandbox)?.with_container(id, |_| ())?;
        let id = id.clone();
        self.blocking(move |inner| inner.folders.read_annotation(&id)).await
    }

    /// The file of the annotation; it need not exist.
    pub fn annotation_file(&self, id: &ContainerId) -> std::path::PathBuf {
        self.0.folders.annotation(id)
    }

    /// Sends a signal to the first process of a container; does nothing if it has exited.
    pub async fn signal_container(&self, id: &ContainerId, signal: i32, journal: &JournalWriter) -> Result<()> {
        let sandbox = self.get(&id.sandbox)?;
        if sandbox.with_container(id, |c| c.exit.borrow().is_some())? {
            return Ok(());
        }
        let asked = sandbox.client()?.ask(journal.cause(), Call::Signal { key: id.key(), signal }, &[]).await;
        asked.map(drop)
    }

    /// Sends `signal`, waits for at most `grace`, kills the rest, and returns when it has exited. `None`: there is no such
    /// container.
    pub async fn stop_container(
        &self,
        id: &ContainerId,
        signal: i32,
        grace: Duration,
        journal: &JournalWriter,
    ) -> Result<Option<Exit>> {
        let Some(sandbox) = self.find(&id.sandbox) else { return Ok(None) };
        // One being created belongs to its creator.
        let known = sandbox.with_container(id, |c| (!c.unborn).then(|| c.exit.borrow().clone()));
        let Ok(Some(exit)) = known else { return Ok(None) };
        if exit.is_some() {
            return Ok(exit);
        }
        if !grace.is_zero()
            && self.signal_container(id, signal, journal).await.is_ok()
            && let Ok(exit) = self.await_exit(&sandbox, id, grace).await
        {
            return Ok(Some(exit));
        }
        match sandbox.client() {
            Ok(client) => match client.ask(journal.cause(), Call::Kill { key: id.key() }, &[]).await {
                // Then the handler of the lost shim kills it.
                Ok(_) | Err(Error::ShimGone(_) | Error::NotFound(_)) => {}
                Err(e) => return Err(e),
            },
            Err(_) => tracing::debug!("container {id} has no shim any more"),
        }
        self.await_exit(&sandbox, id, KILL).await.map(Some)
    }

    async fn await_exit(&self, sandbox: &Sandbox, id: &ContainerId, timeout: Duration) -> Result<Exit> {
        let mut exit = sandbox.with_container(id, |c| c.exit.subscribe())?;
        let ended = async { exit.wait_for(|e| e.is_some()).await.ok().and_then(|e| e.clone()) };
        match tokio::time::timeout(timeout, ended).await {
            Ok(Some(exit)) => Ok(exit),
            Ok(None) => Err(not_found(id)),
            Err(_) => Err(Error::Timeout(format!("container {id}"), timeout)),
        }
    }

    /// Removes a container (killing it if necessary), its writable layer and its record. Its exit is not reported.
    pub async fn remove_container(&self, id: &ContainerId, journal: &JournalWriter) -> Result<()> {
        let Some(sandbox) = self.find(&id.sandbox) else { return Ok(()) };
        let _ = sandbox.with_container(id, |c| c.leaving = true);
        if let Err(e) = self.stop_container(id, libc::SIGKILL, Duration::ZERO, journal).await {
            let _ = sandbox.with_container(id, |c| c.leaving = false);
            return Err(e);
        }
        let _turn = sandbox.turn.lock().await;
        self.clear_container(&sandbox, id, journal).await
    }

    /// Drops a container that has exited, or was never completed. The caller holds its sandbox's turn.
    pub(super) async fn clear_container(
        &self,
        sandbox: &Arc<Sandbox>,
        id: &ContainerId,
        journal: &JournalWriter,
    ) -> Result<()> {
        let mut errors = Errors::default();
        if let Ok(client) = sandbox.client() {
            let _ = client.ask(journal.cause(), Call::Kill { key: id.key() }, &[]).await;
            match client.ask(journal.cause(), Call::Remove { key: id.key() }, &[]).await {
                Ok(_) | Err(Error::ShimGone(_) | Error::Conflict(_)) => {}
                Err(e) => errors.0.push(e),
            }
        }
        let (kernel, id, spec) = (Kernel::new(journal), id.clone(), sandbox.state().record.spec.clone());
        let sandbox = sandbox.clone();
        let removed = self.blocking(move |inner| {
            let mut errors = Errors::default();
            errors.note(inner.tree.remove(&kernel, &spec.cgroup.child(&id.key())));
            errors.note(sandbox.forget(&inner.folders, &id));
            errors.result()
        });
        errors.note(removed.await);
        errors.result()
    }

    /// Sets the terminal size of a container (columns, rows).
    pub async fn resize(&self, id: &ContainerId, (columns, rows): (u16, u16)) -> Result<()> {
        let client = self.get(&id.sandbox)?.client()?;
        let call = Call::Resize { key: id.key(), columns, rows };
        client.ask(JournalWriter::none().cause(), call, &[]).await.map(drop)
    }

    /// Usage of one container.
    pub async fn stats(&self, id: &ContainerId) -> Result<Stats> {
        Ok(cgroup::stats(&self.container_cgroup(id)?))
    }

    /// Limits of a container as read from the kernel: file -> text.
    pub async fn limits(&self, id: &ContainerId) -> Result<Vec<(String, String)>> {
        Ok(cgroup::read_back(&self.container_cgroup(id)?))
    }

    /// The processes of a container, its first one first, at most `most`.
    pub async fn processes(&self, id: &ContainerId, most: usize) -> Result<Vec<ProcessInfo>> {
        let cgroup = self.container_cgroup(id)?;
        let first = self.get(&id.sandbox)?.with_container(id, |c| c.pid)?;
        self.blocking(move |_| Ok(inspect::processes(&cgroup, first, most))).await
    }

    pub(super) fn container_cgroup(&self, id: &ContainerId) -> Result<std::path::PathBuf> {
        let sandbox = self.get(&id.sandbox)?;
        sandbox.with_container(id, |_| ())?;
        let spec = sandbox.state().record.spec.clone();
        Ok(self.cgroup_path(&spec, Some(id)))
    }
}
