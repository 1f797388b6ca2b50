//! Containers: create, start, signal, stop, remove, look into.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxSeccomp, Spec};

use super::{Container, Errors, Filters, Guard, Held, Inner, Runtime, Sandbox, check_name, not_found, now};
use crate::compile::{self, Places};
use crate::records::{ContainerRecord, Devices};
use crate::seccomp;
use crate::shim_client::ShimClient;
use crate::spec::*;
use crate::{Error, JournalWriter, Result, cgroup, devices, inspect, projects};
use podwright_shim::protocol::{Answer, Call, ContainerPlan};
use podwright_sys::Kernel;

/// How long the kernel may take to kill.
const KILL: Duration = Duration::from_secs(20);

impl Runtime {
    /// Prepares a container up to, but not including, its `execve`.
    ///
    /// The steps: check and compile its spec; record it; make its folders and its cgroup with its device rules and limits;
    /// have the shim fork it and build its root. What fails half-way is removed again.
    pub async fn create_container(&self, spec: ContainerSpec, journal: &JournalWriter) -> Result<ContainerStatus> {
        check_name("container name", &spec.id.name)?;
        let sandbox = self.get(&spec.id.sandbox)?;
        let _turn = sandbox.turn.lock().await;
        self.must_be(&sandbox)?;
        if let Ok(status) = sandbox.with_container(&spec.id, |c| c.status()) {
            return match status.state {
                ContainerState::Created => Ok(status),
                _ => Err(Error::Conflict(format!("container {} has been started before", spec.id))),
            };
        }
        let client = sandbox.client()?;
        let sandbox_spec = sandbox.state().record.spec.clone();
        // What lives in a cgroup of that name, and nobody here knows of, is left alone: the new one would take its place.
        if !cgroup::procs(&self.cgroup_path(&sandbox_spec, Some(&spec.id))).is_empty()
            && may_have(&client, &spec.id.key()).await
        {
            return Err(Error::Conflict(format!("container {} runs, and nothing is known of it here", spec.id)));
        }
        let guard = self.0.guard(device_rules(&spec.oci))?;
        let unguarded = matches!(guard, Guard::Refused);
        let mut plan = compile::container(&spec, &sandbox_spec, &self.0.places(&sandbox_spec, &spec.id, unguarded))?;
        if plan.process.app_armor.is_some() && !sandbox.state().app_armor {
            return Err(Error::Conflict(format!(
                "the shim of sandbox {} is of an earlier release, which sets no AppArmor profiles",
                sandbox.id
            )));
        }
        let profile = spec.oci.linux().as_ref().and_then(|l| l.seccomp().clone());
        let own_users = sandbox_spec.users.is_some();
        let filters = self.filters(profile, plan.process.caps.bounding, own_users).await?;
        plan.process.birth_ms = self.0.birth_ms;
        plan.process.seccomp = filters.iter().map(|(_, flags)| *flags).collect();
        let (devices, resources, held) = (Some(guard.devices()), Some(spec.resources.clone()), Held::of(&guard)?);
        let record = ContainerRecord { devices, resources, ..record_of(&spec, &plan, &sandbox_spec) };
        let wanted = (spec.resources, spec.annotation);
        let made = self.prepare(&sandbox_spec, record.clone(), plan.clone(), wanted, guard, journal).await;
        let asked = match made {
            Err(e) => Err(e),
            Ok(unenforced) => {
                let fds: Vec<_> = filters.iter().map(|(fd, _)| fd.as_fd()).collect();
                let asked = client.ask(journal.cause(), Call::Create(Box::new(plan)), &fds).await;
                asked.map(|(answer, _)| (answer, unenforced))
            }
        };
        match asked {
            Ok((answer, unenforced)) => {
                let pid = if let Answer::Pid(pid) = answer { pid } else { 0 };
                let mut container = Container::new(record, pid, None);
                (container.unenforced, container.held) = (unenforced, held);
                let status = container.status();
                sandbox.state().containers.insert(spec.id.key(), container);
                Ok(status)
            }
            // The shim has one of that key already that lives, and nobody here knows of it: nothing of it is removed.
            Err(e @ Error::Conflict(_)) if may_have(&client, &spec.id.key()).await => Err(e),
            Err(e) => {
                let _ = self.clear_container(&sandbox, &spec.id, journal).await;
                Err(e)
            }
        }
    }

    /// Steps 2 and 3 of a creation. Returns the limits that cannot be enforced.
    async fn prepare(
        &self,
        sandbox: &SandboxSpec,
        record: ContainerRecord,
        plan: ContainerPlan,
        (resources, annotation): (Resources, String),
        guard: Guard,
        journal: &JournalWriter,
    ) -> Result<Vec<String>> {
        let (kernel, relative) = (Kernel::new(journal), sandbox.cgroup.child(&record.id.key()));
        let project = sandbox.users.map(|_| self.project(&record.id));
        self.blocking(move |inner| {
            inner.folders.write_annotation(&record.id, &annotation)?;
            inner.folders.write_container(&record)?;
            if !plan.root.layers.is_empty() {
                for folder in [&plan.root.upper, &plan.root.work, &plan.root.dir] {
                    kernel.mkdir(folder)?;
                }
                if let Some(earlier) = project {
                    // Both: what an overlay makes in the one it moves to the other, and nothing moves between projects.
                    projects::give(&kernel, &[&plan.root.upper, &plan.root.work], earlier)?;
                }
            }
            let cgroup = inner.tree.make_leaf(&kernel, &relative)?;
            if let Guard::Program(program) = &guard {
                kernel.attach_device_program(&cgroup, program.as_fd())?;
            }
            cgroup::apply(&kernel, &cgroup, &resources)
        })
        .await
    }

    /// Holds a container that an agent without device rules made to these, as if it had been made with them, and one whose program
    /// somebody has taken away; one that has its rules keeps those. What its processes have open stays open.
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

    /// Sets other limits for a container that has not ended, in place, and notes labels with it, durably. Returns the limits
    /// that cannot be enforced. Errors: [`Error::Conflict`] if it has ended.
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

    /// Lets a created container execute its process; when that was, as every later agent will say too. Errors:
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
        // The record need not wait for the start: until it is written, an agent that starts again asks the shim.
        let (asked, noted) = tokio::join!(
            client.ask(journal.cause(), Call::Start { key: id.key() }, &[]),
            self.note(&sandbox, id, move |_, starting| *starting = Some(started)),
        );
        if asked.is_err() {
            // Somebody else may have asked as well.
            self.note(&sandbox, id, move |_, starting| *starting = starting.filter(|at| *at != started)).await?;
        }
        if let Err(Error::Start { .. }) = asked {
            // Its exit record follows at once; nobody should see it half-way.
            self.await_exit(&sandbox, id, KILL).await?;
        }
        asked?;
        let started = sandbox.with_container(id, |c| {
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

    /// The text that was given to a container that is still known.
    pub async fn annotation(&self, id: &ContainerId) -> Result<String> {
        self.get(&id.sandbox)?.with_container(id, |_| ())?;
        let id = id.clone();
        self.blocking(move |inner| inner.folders.read_annotation(&id)).await
    }

    /// The file of that text; it need not exist.
    pub fn annotation_file(&self, id: &ContainerId) -> std::path::PathBuf {
        self.0.folders.annotation(id)
    }

    /// Sends a signal to the first process of a container; nothing happens if it has ended.
    pub async fn signal_container(&self, id: &ContainerId, signal: i32, journal: &JournalWriter) -> Result<()> {
        let sandbox = self.get(&id.sandbox)?;
        if sandbox.with_container(id, |c| c.exit.borrow().is_some())? {
            return Ok(());
        }
        let asked = sandbox.client()?.ask(journal.cause(), Call::Signal { key: id.key(), signal }, &[]).await;
        asked.map(drop)
    }

    /// Sends `signal`, waits for at most `grace`, kills what is left, and returns when it has ended. `None`: there is no
    /// such container.
    pub async fn stop_container(
        &self,
        id: &ContainerId,
        signal: i32,
        grace: Duration,
        journal: &JournalWriter,
    ) -> Result<Option<Exit>> {
        let Some(sandbox) = self.find(&id.sandbox) else { return Ok(None) };
        let Ok(exit) = sandbox.with_container(id, |c| c.exit.borrow().clone()) else { return Ok(None) };
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
                // Then whoever finds the shim gone does the killing.
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

    /// Removes a container (killing it if need be), its writable layer and its record. No event tells of its end.
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

    /// Forgets a container that has ended, or was never made whole. Its sandbox's turn is held by the caller.
    async fn clear_container(&self, sandbox: &Arc<Sandbox>, id: &ContainerId, journal: &JournalWriter) -> Result<()> {
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

    /// Limits of a container as the kernel has them: file -> text.
    pub async fn limits(&self, id: &ContainerId) -> Result<Vec<(String, String)>> {
        Ok(cgroup::read_back(&self.container_cgroup(id)?))
    }

    /// The processes of a container, its first one first, and `most` of them.
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

    /// The compiled filters of a profile, for a process with this bounding set and users of its own or not; each in use is compiled
    /// once.
    pub(super) async fn filters(
        &self,
        profile: Option<LinuxSeccomp>,
        bounding: u64,
        own_users: bool,
    ) -> Result<Arc<Filters>> {
        let Some(profile) = profile else { return Ok(Arc::default()) };
        let key = serde_json::to_string(&(&profile, bounding, own_users));
        let key = key.map_err(|e| Error::Invalid(format!("seccomp profile: {e}")))?;
        if let Some(known) = self.0.seccomp.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known);
        }
        let filters = self.blocking(move |_| load(&profile, bounding, own_users)).await?;
        self.0.seccomp.lock().unwrap_or_else(PoisonError::into_inner).insert(key, filters.clone());
        Ok(filters)
    }
}

impl Inner {
    /// What decides about a container's devices; each list of rules is loaded once, which takes a fraction of a millisecond.
    pub(super) fn guard(&self, rules: &[LinuxDeviceCgroup]) -> Result<Guard> {
        let Some(program) = devices::program(rules)? else { return Ok(Guard::Open) };
        if self.tree.capabilities.devices_refused.is_some() {
            return Ok(Guard::Refused);
        }
        let mut known = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = known.get(&program) {
            return Ok(Guard::Program(loaded));
        }
        let loaded = Arc::new(Kernel::new(&JournalWriter::none()).load_device_program(&program)?);
        known.insert(program, loaded.clone());
        Ok(Guard::Program(loaded))
    }
}

/// Whether a shim has a container of this key that has not ended; one that does not tell may.
async fn may_have(client: &ShimClient, key: &str) -> bool {
    match client.ask(JournalWriter::none().cause(), Call::State, &[]).await {
        Ok((Answer::State(state), _)) => state.containers.iter().any(|known| known.key == key && known.exit.is_none()),
        _ => true,
    }
}

fn load(profile: &LinuxSeccomp, bounding: u64, own_users: bool) -> Result<Arc<Filters>> {
    let kernel = Kernel::new(&JournalWriter::none());
    let seal =
        |p: seccomp::Program| -> Result<(OwnedFd, u32)> { Ok((kernel.sealed_memfd("seccomp", &p.bytes)?, p.flags)) };
    Ok(Arc::new(seccomp::compile(profile, bounding, own_users)?.into_iter().map(seal).collect::<Result<Filters>>()?))
}

fn device_rules(spec: &Spec) -> &[LinuxDeviceCgroup] {
    let resources = spec.linux().as_ref().and_then(|l| l.resources().as_ref());
    resources.and_then(|r| r.devices().as_deref()).unwrap_or_default()
}

fn record_of(spec: &ContainerSpec, plan: &ContainerPlan, sandbox: &SandboxSpec) -> ContainerRecord {
    ContainerRecord {
        id: spec.id.clone(),
        created: now(),
        started: None,
        labels: spec.labels.clone(),
        log: spec.log.clone(),
        stdin: spec.stdin,
        terminal: plan.process.terminal,
        hostname: sandbox.hostname.clone(),
        devices: None,
        resources: None,
    }
}

impl Inner {
    fn places(&self, sandbox: &SandboxSpec, id: &ContainerId, unguarded: bool) -> Places {
        let own = compile::own_shm(sandbox);
        Places {
            folder: self.folders.container(id),
            cgroup: self.tree.path(&sandbox.cgroup.child(&id.key())),
            shm: if own { self.folders.shm(&sandbox.id) } else { "/dev/shm".into() },
            bounding: self.bounding,
            unguarded,
        }
    }
}
