//! Creates containers: from a specification to a process ready to be executed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use jiff::Timestamp;
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxSeccomp, Spec};

use super::{Container, Filters, Guard, Held, Inner, Runtime, Sandbox, check_name, now};
use crate::compile::{self, Places};
use crate::records::ContainerRecord;
use crate::seccomp;
use crate::shim_client::ShimClient;
use crate::spec::*;
use crate::{Error, JournalWriter, Result, cgroup, devices, projects};
use podwright_shim::protocol::{Answer, Call, ContainerPlan};
use podwright_sys::Kernel;

/// Why a container was not run: it was not created, and nothing of it is left; or it was not started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("create: {0}")]
    Create(Error),
    #[error("start: {0}")]
    Start(Error),
}

/// A container that its shim has yet to fork.
struct Unborn {
    id: ContainerId,
    client: Arc<ShimClient>,
    plan: ContainerPlan,
    filters: Arc<Filters>,
    container: Container,
}

impl Runtime {
    /// Prepares a container up to, but not including, its `execve`.
    ///
    /// The steps: check and compile its spec; record it; create its folders and its cgroup with device rules and limits; have the
    /// shim fork it and build its root. A partial creation is removed again. Fails as [`Error`] describes.
    pub async fn create_container(&self, spec: ContainerSpec, journal: &JournalWriter) -> Result<ContainerStatus> {
        let sandbox = self.get(&spec.id.sandbox)?;
        let _turn = sandbox.turn.lock().await;
        let id = spec.id.clone();
        if let Some(unborn) = self.make_ready(&sandbox, spec, journal).await? {
            self.bear(&sandbox, unborn, journal).await?;
        }
        sandbox.with_container(&id, |c| c.status())
    }

    /// Combines [`Runtime::create_container`] and [`Runtime::start_container`], sending both requests without waiting in between.
    pub async fn run_container(
        &self,
        spec: ContainerSpec,
        journal: &JournalWriter,
    ) -> std::result::Result<Timestamp, RunError> {
        let id = spec.id.clone();
        let sandbox = self.get(&id.sandbox).map_err(RunError::Create)?;
        let turn = sandbox.turn.lock().await;
        let unborn = self.make_ready(&sandbox, spec, journal).await.map_err(RunError::Create)?;
        let Some(unborn) = unborn else {
            drop(turn);
            return self.start_container(&id, journal).await.map_err(RunError::Start);
        };
        let client = unborn.client.clone();
        let born = async {
            self.bear(&sandbox, unborn, journal).await?;
            drop(turn);
            let started = now();
            // Not earlier: a container recorded as started must be known to its shim.
            Ok((started, self.note_start(&sandbox, &id, started).await))
        };
        let (born, asked) = tokio::join!(biased; born, client.ask(journal.cause(), Call::Start { key: id.key() }, &[]));
        let (started, noted) = born.map_err(RunError::Create)?;
        match asked {
            // A shim of an earlier release cannot start one before its creation is complete.
            Err(Error::Conflict(_) | Error::NotFound(_)) => match self.note_no_start(&sandbox, &id, started).await {
                Ok(()) => self.start_container(&id, journal).await,
                Err(e) => Err(e),
            },
            asked => self.settle_start(&sandbox, &id, started, asked.map(drop), noted).await,
        }
        .map_err(RunError::Start)
    }

    /// Steps 1 to 3 of a creation; `None`: it already exists. The caller holds the sandbox's turn.
    async fn make_ready(
        &self,
        sandbox: &Arc<Sandbox>,
        spec: ContainerSpec,
        journal: &JournalWriter,
    ) -> Result<Option<Unborn>> {
        check_name("container name", &spec.id.name)?;
        self.must_be(sandbox)?;
        if let Ok(status) = sandbox.with_container(&spec.id, |c| c.status()) {
            return match status.state {
                ContainerState::Created => Ok(None),
                _ => Err(Error::Conflict(format!("container {} has been started before", spec.id))),
            };
        }
        let client = sandbox.client()?;
        let sandbox_spec = sandbox.state().record.spec.clone();
        // Unknown processes in a cgroup of that name are left alone: the new container would replace it.
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
        let (id, wanted) = (spec.id, (spec.resources, spec.annotation));
        match self.prepare(&sandbox_spec, record.clone(), plan.clone(), wanted, guard, journal).await {
            Ok(unenforced) => {
                let mut container = Container::new(record, 0, None);
                (container.unenforced, container.held) = (unenforced, held);
                Ok(Some(Unborn { id, client, plan, filters, container }))
            }
            Err(e) => {
                let _ = self.clear_container(sandbox, &id, journal).await;
                Err(e)
            }
        }
    }

    /// Step 4: has the shim fork it. It is known from here on. The caller holds the sandbox's turn.
    async fn bear(&self, sandbox: &Arc<Sandbox>, unborn: Unborn, journal: &JournalWriter) -> Result<()> {
        let Unborn { id, client, plan, filters, mut container } = unborn;
        container.unborn = true;
        sandbox.state().containers.insert(id.key(), container);
        let fds: Vec<_> = filters.iter().map(|(fd, _)| fd.as_fd()).collect();
        match client.ask(journal.cause(), Call::Create(Box::new(plan)), &fds).await {
            Ok((answer, _)) => {
                let pid = if let Answer::Pid(pid) = answer { pid } else { 0 };
                self.0.born(sandbox, &id.key(), pid);
                Ok(())
            }
            // The shim has a live, unknown container with this key: nothing of it is removed.
            Err(e @ Error::Conflict(_)) if may_have(&client, &id.key()).await => {
                sandbox.state().containers.remove(&id.key());
                Err(e)
            }
            Err(e) => {
                let _ = self.clear_container(sandbox, &id, journal).await;
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
                    // Both: overlayfs moves what it creates in one to the other, and nothing can be moved between projects.
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

    /// The compiled filters of a profile, for a process with this bounding set, with or without a user namespace; cached.
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
    /// The device restriction of a container; each list of rules is loaded once, which takes a fraction of a millisecond.
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

/// Whether a shim has a container of this key that has not exited; assumed if it does not respond.
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
