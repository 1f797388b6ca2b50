//! After a crash: finds what an earlier agent created, takes over what is alive, records what died, removes what is half created.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::time::timeout;

use super::names::{PAUSE, SHIMS, shim};
use super::{Container, Errors, Inner, Runtime, Sandbox};
use crate::records::{ContainerRecord, Devices, SandboxRecord, remove_folder};
use crate::removals::LOOK;
use crate::spec::{CgroupName, ContainerId, Labels, SandboxSpec};
use crate::{Error, JournalWriter, Result, cgroup};
use podwright_shim::protocol::{Call, ContainerSnapshot, ShimState};
use podwright_sys::{Kernel, process};

/// How long a live shim may take to listen again: it checks every second.
const RETURN: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);
/// How long repairs wait for a sandbox's turn, or its shim, until the next check.
pub(super) const TURN: Duration = Duration::from_secs(1);

impl Runtime {
    /// Takes over all sandboxes found, concurrently. `strict`: a live shim that does not respond is not touched, and a version
    /// mismatch is an error; otherwise it counts as dead.
    pub(super) async fn recover(&self, strict: bool) -> Result<()> {
        let found = self.blocking(|inner| Ok(inner.findings())).await?;
        // Bounds the total delay, however many are to be scanned.
        let end = Instant::now() + LOOK;
        let mut known = Vec::new();
        for Finding { id, record, lives } in found {
            match record {
                Some(record) => known.push(record),
                None if lives && strict => self.lose(&id, None, "its records and their copies are damaged").await,
                // Nothing of it is left in the kernel, or should be.
                None => {
                    let of = id.clone();
                    if let Err(e) = self.blocking(move |inner| inner.folders.forget_unrecorded(&of, None, end)).await {
                        tracing::warn!("sandbox {id}: {e}");
                    }
                }
            }
        }
        let ids: Vec<String> = known.iter().map(|record| record.spec.id.clone()).collect();
        let find = move |inner: &Inner| {
            ids.iter().for_each(|id| inner.folders.find_aside(id));
            Ok(())
        };
        self.blocking(find).await?;
        self.sweep_strays(&known).await;
        let mut tasks = tokio::task::JoinSet::new();
        for record in known {
            let (runtime, id) = (self.clone(), record.spec.id.clone());
            tasks.spawn(async move {
                match runtime.recover_sandbox(record, strict).await {
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

    /// Rewrites records that were damaged or removed externally while their objects are known, and has shims listen again if their
    /// socket was removed; returns which.
    pub async fn mend_records(&self) -> Vec<PathBuf> {
        let sandboxes: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        let mut records = BTreeSet::new();
        for sandbox in &sandboxes {
            let state = sandbox.state();
            let containers = state.containers.values().map(|container| &container.record.id);
            records.extend(self.0.folders.kept(&sandbox.id, containers));
        }
        let damaged = self.blocking(move |inner| Ok(inner.folders.damaged(&records))).await.unwrap_or_default();
        // Independently: none waits for another's disk or shim.
        let mended = sandboxes.iter().map(|sandbox| async {
            let records = self.mend_records_of(sandbox, &damaged).await.unwrap_or_else(|error| {
                tracing::warn!("failed to read the records of sandbox {}: {error}", sandbox.id);
                Vec::new()
            });
            records.into_iter().chain(self.mend_socket(sandbox).await)
        });
        futures::future::join_all(mended).await.into_iter().flatten().collect()
    }

    async fn mend_records_of(&self, sandbox: &Arc<Sandbox>, damaged: &BTreeSet<PathBuf>) -> Result<Vec<PathBuf>> {
        if damaged.is_empty() {
            return Ok(Vec::new());
        }
        // A concurrent operation writes its record, or removes it. Slower ones are checked again later.
        let Ok(_turn) = timeout(TURN, sandbox.turn.lock()).await else { return Ok(Vec::new()) };
        if !self.find(&sandbox.id).is_some_and(|found| Arc::ptr_eq(&found, sandbox)) {
            return Ok(Vec::new());
        }
        let folders = &self.0.folders;
        let (of_sandbox, own, secret, containers) = {
            let state = sandbox.state();
            let of = |id: &ContainerId| -> Vec<PathBuf> {
                let all = folders.kept(&sandbox.id, [id].into_iter());
                let own = folders.kept(&sandbox.id, std::iter::empty());
                all.difference(&own).filter(|path| damaged.contains(*path)).cloned().collect()
            };
            let all = state.containers.values().map(|container| &container.record);
            let containers: Vec<_> = all.map(|record| (of(&record.id), record.id.clone())).collect();
            let own = folders.kept(&sandbox.id, std::iter::empty());
            let own: Vec<PathBuf> = own.into_iter().filter(|path| damaged.contains(path)).collect();
            (own, state.record.clone(), state.secret.clone(), containers)
        };
        let sandbox = sandbox.clone();
        let write = move |inner: &super::Inner| {
            let mut mended = of_sandbox;
            mended.retain(|path| inner.folders.is_damaged(path));
            if !mended.is_empty() {
                inner.folders.write_sandbox(&own)?;
                secret.iter().try_for_each(|secret| inner.folders.write_secret(&own.spec.id, secret))?;
            }
            for (paths, id) in containers.into_iter().filter(|(paths, _)| !paths.is_empty()) {
                if sandbox.mend(&inner.folders, &id, &paths)? {
                    mended.extend(paths);
                }
            }
            Ok(mended)
        };
        self.blocking(write).await
    }

    /// A shim checks its socket's name whenever its state is requested. A connected agent does not need it; the next one will.
    async fn mend_socket(&self, sandbox: &Arc<Sandbox>) -> Option<PathBuf> {
        let path = self.0.folders.run(&sandbox.id).join("s");
        let is_there = || std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
        if is_there() || !sandbox.state().ready() {
            return None;
        }
        let client = sandbox.client().ok()?;
        // A busy one is asked again later.
        timeout(TURN, client.ask(JournalWriter::none().cause(), Call::State, &[])).await.ok()?.ok()?;
        is_there().then(|| path.clone())
    }

    async fn recover_sandbox(&self, record: SandboxRecord, strict: bool) -> Result<()> {
        let id = record.spec.id.clone();
        let sandbox = Sandbox::new(record.clone());
        self.sandboxes().insert(id.clone(), sandbox.clone());
        // One that was to be removed may go.
        let state = match self.reconnect(&sandbox, strict && !record.stopped).await? {
            Reached::Alive(state) => Some(state),
            Reached::Dead => None,
            Reached::Mute(why) => {
                self.sandboxes().remove(&id);
                self.lose(&id, Some(record.spec.cgroup), &why).await;
                return Ok(());
            }
        };
        let of = id.clone();
        let (mut records, unreadable) = self.blocking(move |inner| Ok(inner.folders.container_records(&of))).await?;
        for container in unreadable {
            match state.as_ref().and_then(|s| s.containers.iter().find(|known| known.key == container.key())) {
                Some(known) => records.push(self.rebuild(&record.spec, container, known).await),
                // Whatever fails here, live containers are taken over.
                None => {
                    if let Err(e) = self.0.folders.remove_container(&container, &record.spec.owner()) {
                        tracing::warn!("failed to remove the partially created container {container}: {e}");
                    }
                }
            }
        }
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

    /// The record of a container that only its shim knows: the caller's data is lost. Used by this agent even if it cannot be
    /// written.
    async fn rebuild(&self, sandbox: &SandboxSpec, id: ContainerId, known: &ContainerSnapshot) -> ContainerRecord {
        tracing::warn!("the record of container {id} is lost: rebuilding it from its shim");
        let started = started(known);
        let record = ContainerRecord {
            id,
            created: started.unwrap_or_else(super::now),
            started,
            labels: Labels::new(),
            log: known.log.clone(),
            stdin: known.stdin,
            terminal: known.terminal,
            hostname: sandbox.hostname.clone(),
            devices: Some(Devices::Held),
            resources: None,
        };
        let written = record.clone();
        if let Err(e) = self.blocking(move |inner| inner.folders.write_container(&written)).await {
            tracing::warn!("failed to rebuild the record of container {}: {e}", record.id);
        }
        record
    }

    /// Removes remains of sandboxes without any record: processes, cgroups, sockets, mounts.
    async fn sweep_strays(&self, known: &[SandboxRecord]) {
        let (mut ids, mut cgroups): (BTreeSet<String>, Vec<CgroupName>) =
            known.iter().map(|r| (r.spec.id.clone(), r.spec.cgroup.clone())).unzip();
        for (id, lost) in self.0.lost().iter() {
            ids.insert(id.clone());
            cgroups.extend(lost.cgroup.clone());
        }
        let swept = self.blocking(move |inner| {
            let (mut errors, kernel) = (Errors::default(), Kernel::new(&JournalWriter::none()));
            let shims = inner.tree.children(&CgroupName::new(SHIMS)).into_iter().chain(inner.folders.runs());
            for id in shims.collect::<BTreeSet<String>>().difference(&ids) {
                tracing::warn!("removing the remains of a sandbox without a record: {id}");
                errors.note(inner.sweep_shim(id, &kernel));
                errors.note(remove_folder(&inner.folders.run(id)));
            }
            let is_known =
                |cgroup: &&CgroupName| cgroups.iter().any(|known| cgroup.as_path().starts_with(known.as_path()));
            for cgroup in inner.tree.having(PAUSE).iter().filter(|cgroup| !is_known(cgroup)) {
                tracing::warn!("removing the remains of a sandbox without a record: {}", cgroup.as_path().display());
                errors.note(inner.tree.remove(&kernel, cgroup));
            }
            errors.result()
        });
        if let Err(e) = swept.await {
            tracing::warn!("failed to remove the remains of earlier sandboxes: {e}");
        }
    }

    /// The state reported by a sandbox's shim. A hanging one is killed. `patient`: a live one that holds processes and cannot be
    /// reached gets some time to listen again, and is then left alone; otherwise it is killed. Fails if there is no common version.
    async fn reconnect(&self, sandbox: &Arc<Sandbox>, patient: bool) -> Result<Reached> {
        let (journal, begun) = (JournalWriter::none(), Instant::now());
        loop {
            match self.connect(sandbox, None, journal.cause(), || Call::State, &[]).await {
                Ok((answer, fds)) => return Ok(Reached::Alive(self.adopt(sandbox, answer, fds))),
                Err(Error::Timeout(..)) => {
                    tracing::warn!("killing the hanging shim of sandbox {}", sandbox.id);
                    {
                        let mut state = sandbox.state();
                        (state.client, state.reader) = (None, None);
                    }
                    self.end_shim(&sandbox.id).await;
                    return Ok(Reached::Dead);
                }
                Err(e @ Error::Protocol(_)) if patient => return Err(e),
                Err(e) => {
                    let holds = self.0.shim_lives(&sandbox.id) && self.0.has_processes(sandbox);
                    match patient && holds {
                        // One without processes need not be left alone; it may never have received its secret, because an earlier
                        // agent died before sending it: then it will never accept a connection.
                        false => {
                            self.end_shim(&sandbox.id).await;
                            return Ok(Reached::Dead);
                        }
                        true if begun.elapsed() < RETURN => tokio::time::sleep(AGAIN).await,
                        true => return Ok(Reached::Mute(e.to_string())),
                    }
                }
            }
        }
    }

    /// Kills an unusable shim, if there is one.
    async fn end_shim(&self, id: &str) {
        let cgroup = shim(id);
        let killed = self.blocking(move |inner| Ok(inner.tree.kill(&Kernel::new(&JournalWriter::none()), &cgroup)?));
        if let Err(e) = killed.await {
            tracing::warn!("sandbox {id}: {e}");
        }
    }

    /// Containers that the shim knows, or with an exit record, exist; others were never completed.
    async fn take_over_containers(
        &self,
        sandbox: &Arc<Sandbox>,
        records: Vec<ContainerRecord>,
        state: Option<&ShimState>,
    ) {
        let spec = sandbox.state().record.spec.clone();
        for mut record in records {
            let key = record.id.key();
            let known = state.and_then(|s| s.containers.iter().find(|c| c.key == key));
            let exit = known.and_then(|k| k.exit.clone()).or_else(|| self.0.folders.read_exit(&record.id));
            if known.is_none() && exit.is_none() && state.is_some() {
                let (kernel, cgroup) = (Kernel::new(&JournalWriter::none()), spec.cgroup.child(&key));
                let (id, owner) = (record.id.clone(), spec.owner());
                let removed = self.blocking(move |inner| {
                    inner.tree.remove(&kernel, &cgroup)?;
                    inner.folders.remove_container(&id, &owner)
                });
                if let Err(e) = removed.await {
                    tracing::warn!("failed to remove the partially created container {}: {e}", record.id);
                }
                continue;
            }
            if let Some(known) = known {
                // The record is written while the start is requested: only the shim knows whether it received the request.
                let started = started(known);
                record.started = started.and(record.started).or(started);
            }
            let pid = known.map_or(0, |k| k.pid);
            sandbox.state().containers.insert(key, Container::new(record, pid, exit));
        }
    }

    /// The shim is dead (or the machine was rebooted): its processes must be, too.
    async fn bury(&self, sandbox: &Arc<Sandbox>, record: &SandboxRecord) -> Result<()> {
        let spec = record.spec.clone();
        let killed = self.blocking(move |inner| {
            inner.tree.kill(&Kernel::new(&JournalWriter::none()), &spec.cgroup).map_err(Error::from)
        });
        let killed = killed.await;
        self.mark_unknown(sandbox);
        killed
    }

    /// It was being stopped or removed, or never became ready.
    async fn finish_removal(&self, sandbox: &Arc<Sandbox>, record: &SandboxRecord, never_ready: bool) -> Result<()> {
        let none = JournalWriter::none();
        if never_ready {
            self.clear_sandbox(sandbox, &none).await?;
            self.sandboxes().remove(&record.spec.id);
            return Ok(());
        }
        self.end_sandbox(sandbox, &none).await
    }
}

/// What is found of a sandbox at startup.
pub(super) struct Finding {
    id: String,
    record: Option<SandboxRecord>,
    /// Its shim has processes.
    lives: bool,
}

/// The result of calling a shim.
enum Reached {
    Alive(ShimState),
    Dead,
    /// It is alive but cannot be reached: the reason.
    Mute(String),
}

impl super::Inner {
    /// Every sandbox with a folder, a copy of one, or a live shim; damaged records are repaired on the way.
    fn findings(&self) -> Vec<Finding> {
        let (folders, shims) = (&self.folders, self.tree.children(&CgroupName::new(SHIMS)));
        let living: BTreeSet<String> = shims.into_iter().filter(|id| self.shim_lives(id)).collect();
        let kept: BTreeSet<String> = folders.sandboxes().into_iter().collect();
        let copied = folders.copied().into_iter();
        let ids: BTreeSet<String> = copied.chain(living.iter().cloned()).chain(kept.iter().cloned()).collect();
        let finding = |id: String| {
            let lives = living.contains(&id);
            // A copy alone is left by a removal, unless the original was removed externally.
            let record = (lives || kept.contains(&id)).then(|| folders.read_sandbox(&id)).flatten();
            Finding { id, record, lives }
        };
        ids.into_iter().map(finding).collect()
    }

    pub(super) fn shim_lives(&self, id: &str) -> bool {
        !cgroup::procs(&self.tree.path(&shim(id))).is_empty()
    }

    /// Whether anything runs in a sandbox, its `pause` or a container.
    fn has_processes(&self, sandbox: &Sandbox) -> bool {
        let path = self.tree.path(&sandbox.state().record.spec.cgroup);
        !cgroup::procs(&path).is_empty()
    }

    /// The cgroup of the sandbox whose `pause` is a child of this shim.
    pub(super) fn cgroup_held_by(&self, id: &str) -> Option<CgroupName> {
        let shims = cgroup::procs(&self.tree.path(&shim(id)));
        let is_child = |pid: &u32| process::parent_of(*pid).is_some_and(|parent| shims.contains(&parent));
        let mut sandboxes = self.tree.having(PAUSE).into_iter();
        sandboxes.find(|sandbox| cgroup::procs(&self.tree.path(&sandbox.child(PAUSE))).iter().any(is_child))
    }
}

fn started(snapshot: &ContainerSnapshot) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(snapshot.started_ns?)).ok()
}
