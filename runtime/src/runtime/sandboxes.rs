//! Sandboxes: run, stop, remove.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::hearing::hear;
use super::names::{PAUSE, shim};
use super::{Errors, Guard, Inner, Runtime, Sandbox, check_name, now};
use crate::cgroup;
use crate::compile;
use crate::records::{SandboxRecord, at, remove_folder};
use crate::shim_client::ShimClient;
use crate::spec::{Event, Exit, ExitReason, Network, Resources, SandboxSpec, SandboxStatus, Stats};
use crate::sysctl;
use crate::{Cause, Error, JournalWriter, Result};
use podwright_shim::handshake::Secret;
use podwright_shim::protocol::{Answer, Call, OLDEST, SandboxPlan, ShimState, VERSION};
use podwright_sys::{Kernel, process};

/// How long a shim may take to kill and reap everything.
const SHUTDOWN: Duration = Duration::from_secs(30);

impl Runtime {
    /// Makes a sandbox ready: cgroup, shim, `pause` in its namespaces. Does nothing if it is ready already.
    ///
    /// The steps: record it; create its cgroups and folders, start its shim; have the shim create `pause`. A partial creation is
    /// removed again. Errors: [`Error::Conflict`] if it was stopped, or its shim died: remove it first.
    pub async fn run_sandbox(&self, spec: SandboxSpec, journal: &JournalWriter) -> Result<SandboxStatus> {
        check_name("sandbox id", &spec.id)?;
        sysctl::files(&spec)?;
        if spec.users.is_some() {
            compile::own_users(&spec)?;
            self.user_namespaces().map_err(|why| Error::Invalid(format!("users: {why}")))?;
        }
        if let Some(why) = self.lost().get(&spec.id) {
            return Err(Error::Conflict(format!("sandbox {} still runs, and cannot be taken over: {why}", spec.id)));
        }
        let record = SandboxRecord { spec: spec.clone(), created: now(), stopped: false, secret: true };
        let (sandbox, fresh) = {
            let mut all = self.sandboxes();
            let fresh = !all.contains_key(&spec.id);
            (all.entry(spec.id.clone()).or_insert_with(|| Sandbox::new(record.clone())).clone(), fresh)
        };
        let _turn = sandbox.turn.lock().await;
        if !fresh {
            let ready = sandbox.state().ready();
            return match ready {
                true => Ok(sandbox.status()),
                false => Err(Error::Conflict(format!("sandbox {} is not ready: remove it first", spec.id))),
            };
        }
        match self.start_sandbox(&sandbox, record, journal).await {
            Ok(()) => Ok(sandbox.status()),
            Err(e) => {
                let _ = self.clear_sandbox(&sandbox, journal).await;
                self.sandboxes().remove(&spec.id);
                Err(e)
            }
        }
    }

    async fn start_sandbox(
        &self,
        sandbox: &Arc<Sandbox>,
        record: SandboxRecord,
        journal: &JournalWriter,
    ) -> Result<()> {
        let (spec, for_shim) = (record.spec.clone(), journal.clone());
        let (net, (pidfd, secret)) = self
            .blocking(move |inner| {
                inner.folders.write_sandbox(&record)?;
                let net = open_net(&record.spec)?;
                Ok((net, inner.start_shim(&record.spec, &for_shim)?))
            })
            .await?;
        reap_later(pidfd);
        let plan = self.sandbox_plan(&spec, net.is_some(), journal)?;
        let fds: Vec<_> = net.iter().map(|fd| fd.as_fd()).collect();
        let call = || Call::Sandbox(Box::new(plan.clone()));
        let (answer, fds) = self.connect(sandbox, Some(secret), journal.cause(), call, &fds).await?;
        self.adopt(sandbox, answer, fds);
        Ok(())
    }

    fn sandbox_plan(&self, spec: &SandboxSpec, join_net: bool, journal: &JournalWriter) -> Result<SandboxPlan> {
        Ok(SandboxPlan {
            id: spec.id.clone(),
            hostname: spec.hostname.clone(),
            new_net: spec.network == Network::New,
            join_net,
            new_ipc: !spec.host_ipc,
            new_pid: compile::own_pid(spec),
            users: spec.users,
            sysctls: sysctl::files(spec)?,
            cgroup: self.0.tree.path(&spec.cgroup.child(PAUSE)),
            shm: compile::own_shm(spec).then(|| self.0.folders.shm(&spec.id)),
            journal: journal.path(),
            run: Some(self.0.folders.run(&spec.id)),
        })
    }

    /// Connects to a sandbox's shim (`made`: the secret of one just started), sends its first request, and receives its events from
    /// now on.
    ///
    /// The request uses the newest protocol version; a shim that closes the connection on it has done nothing, and is asked with
    /// the previous version. Errors: [`Error::Protocol`] if it is alive, and closes the connection on each.
    pub(super) async fn connect(
        &self,
        sandbox: &Arc<Sandbox>,
        made: Option<Secret>,
        cause: &Cause,
        call: impl Fn() -> Call,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>)> {
        let run = self.0.folders.run(&sandbox.id);
        for version in (OLDEST..=VERSION).rev() {
            let (messages, heard) = mpsc::unbounded_channel();
            // It is paired once, whatever the outcome of the following request.
            let first = made.clone().filter(|_| version == VERSION);
            let (of, is_first) = (sandbox.id.clone(), first.is_some());
            let secret = match first {
                Some(secret) => Some(secret),
                None => self.blocking(move |inner| inner.folders.read_secret(&of)).await?,
            };
            if secret.is_none() && sandbox.state().record.secret {
                return Err(at(&self.0.folders.sandbox(&sandbox.id))(std::io::Error::other(
                    "the shim's secret is lost",
                )));
            }
            sandbox.state().secret.clone_from(&secret);
            let secret = secret.map(|secret| (secret, is_first));
            let (client, reader) = ShimClient::connect(&sandbox.id, &run, secret, version, messages).await?;
            let answered = client.ask(cause, call(), fds).await;
            if matches!(answered, Err(Error::ShimGone(_))) {
                match client.is_trusted() {
                    true => continue,
                    false => return answered,
                }
            }
            if version != VERSION {
                tracing::info!("the shim of sandbox {} speaks version {version} of the protocol", sandbox.id);
            }
            {
                let mut state = sandbox.state();
                (state.client, state.reader) = (Some(client.clone()), Some(reader));
            }
            tokio::spawn(hear(Arc::downgrade(&self.0), Arc::downgrade(sandbox), client, heard));
            return answered;
        }
        Err(Error::Protocol(sandbox.id.clone()))
    }

    /// Takes over the shim's state of its sandbox.
    pub(super) fn adopt(&self, sandbox: &Sandbox, answer: Answer, mut fds: Vec<OwnedFd>) -> ShimState {
        let Answer::State(known) = answer else { return ShimState::default() };
        let mut state = sandbox.state();
        state.pid = known.sandbox;
        state.netns = fds.pop();
        state.app_armor = known.app_armor;
        drop(state);
        if known.sandbox != 0 {
            self.keep_shm(sandbox);
        }
        known
    }

    /// Whether containers of this sandbox can have AppArmor profiles: shims of earlier releases set none. Fails if the sandbox is
    /// unknown.
    pub fn sets_app_armor(&self, sandbox: &str) -> Result<bool> {
        Ok(self.get(sandbox)?.state().app_armor)
    }

    /// The network namespace of a ready sandbox.
    pub async fn netns(&self, sandbox: &str) -> Result<OwnedFd> {
        let sandbox = self.get(sandbox)?;
        let state = sandbox.state();
        let not_ready = || Error::Conflict(format!("sandbox {} is not ready", sandbox.id));
        let netns = state.netns.as_ref().filter(|_| state.ready()).ok_or_else(not_ready)?;
        netns.try_clone().map_err(|e| Error::Kernel(format!("dup: {e}")))
    }

    /// Kills what still runs and ends `pause` and its namespaces. Records and logs stay.
    pub async fn stop_sandbox(&self, sandbox: &str, journal: &JournalWriter) -> Result<()> {
        let Some(sandbox) = self.find(sandbox) else { return Ok(()) };
        let _turn = sandbox.turn.lock().await;
        if self.must_be(&sandbox).is_err() {
            return Ok(());
        }
        self.end_sandbox(&sandbox, journal).await
    }

    /// Stops it and removes everything left of it, including its containers. Logs are the caller's.
    pub async fn remove_sandbox(&self, sandbox: &str, journal: &JournalWriter) -> Result<()> {
        self.clear_lost(sandbox, journal).await?;
        let Some(sandbox) = self.find(sandbox) else { return Ok(()) };
        let _turn = sandbox.turn.lock().await;
        if self.must_be(&sandbox).is_err() {
            return Ok(());
        }
        self.clear_sandbox(&sandbox, journal).await?;
        self.sandboxes().remove(&sandbox.id);
        Ok(())
    }

    /// Ends the shim with all its processes. The caller holds its turn.
    pub(super) async fn end_sandbox(&self, sandbox: &Arc<Sandbox>, journal: &JournalWriter) -> Result<()> {
        let mut errors = Errors::default();
        let record = {
            let mut state = sandbox.state();
            state.record.stopped = true;
            state.netns = None;
            // It is not restored from here on.
            state.shm = None;
            state.record.clone()
        };
        let spec = record.spec.clone();
        errors.note(self.blocking(move |inner| inner.folders.write_sandbox(&record)).await);
        if let Ok(client) = sandbox.client() {
            let asked = client.ask(journal.cause(), Call::Shutdown, &[]);
            match tokio::time::timeout(SHUTDOWN, asked).await {
                Ok(Ok(_)) | Ok(Err(Error::ShimGone(_))) => {}
                Ok(Err(e)) => errors.0.push(e),
                Err(_) => errors.0.push(Error::Timeout(format!("shim of sandbox {}", sandbox.id), SHUTDOWN)),
            }
        }
        let journal = journal.clone();
        errors.note(self.blocking(move |inner| inner.sweep(&spec, &journal)).await);
        sandbox.state().pid = 0;
        self.mark_unknown(sandbox);
        errors.result()
    }

    /// [`Runtime::end_sandbox`], then its folders: what its containers have left is moved aside.
    pub(super) async fn clear_sandbox(&self, sandbox: &Arc<Sandbox>, journal: &JournalWriter) -> Result<()> {
        let mut errors = Errors::default();
        errors.note(self.end_sandbox(sandbox, journal).await);
        let (of, owner) = (sandbox.clone(), sandbox.state().record.spec.owner());
        let removed = self.blocking(move |inner| {
            remove_folder(&inner.folders.run(&of.id))?;
            of.forget_all();
            inner.folders.forget(&of.id, &owner)
        });
        errors.note(removed.await);
        errors.result()
    }

    /// Containers of a lost shim have exited with unknown result.
    pub(super) fn mark_unknown(&self, sandbox: &Sandbox) {
        let mut ended = Vec::new();
        for container in sandbox.state().containers.values_mut() {
            let id = container.record.id.clone();
            if container.exit.borrow().is_none() {
                let exit = self.0.folders.read_exit(&id).unwrap_or_else(|| {
                    let exit = unknown();
                    if let Err(e) = self.0.folders.write_exit(&id, &exit) {
                        tracing::warn!("failed to read the exit record of container {id}: {e}");
                    }
                    exit
                });
                container.exit.send_replace(Some(exit.clone()));
                if !container.leaving && !container.unborn {
                    ended.push(Event::ContainerExited { id, exit });
                }
            }
        }
        for event in ended {
            let _ = self.0.events.send(event);
        }
    }

    /// Changes the limits of a whole sandbox, in place, durably. Returns those that cannot be enforced.
    pub async fn update_sandbox(
        &self,
        id: &str,
        resources: &Resources,
        journal: &JournalWriter,
    ) -> Result<Vec<String>> {
        let sandbox = self.get(id)?;
        let _turn = sandbox.turn.lock().await;
        self.must_be(&sandbox)?;
        let mut record = sandbox.state().record.clone();
        record.spec.resources = record.spec.resources.with(resources);
        let (kernel, path) = (Kernel::new(journal), self.0.tree.path(&record.spec.cgroup));
        let (resources, noted) = (resources.clone(), record.clone());
        let unenforced = self
            .blocking(move |inner| {
                let unenforced = cgroup::change(&kernel, &path, &resources)?;
                inner.folders.write_sandbox(&noted)?;
                Ok(unenforced)
            })
            .await?;
        sandbox.state().record.spec.resources = record.spec.resources;
        Ok(unenforced)
    }

    /// The previous holder of the turn may have removed the sandbox: then nothing more is written for it.
    pub(super) fn must_be(&self, sandbox: &Arc<Sandbox>) -> Result<()> {
        match self.find(&sandbox.id) {
            Some(found) if Arc::ptr_eq(&found, sandbox) => Ok(()),
            _ => Err(Error::NotFound(format!("sandbox {}", sandbox.id))),
        }
    }

    /// Stores another annotation with a sandbox, durably.
    pub async fn annotate_sandbox(&self, id: &str, annotation: String) -> Result<()> {
        let sandbox = self.get(id)?;
        let _turn = sandbox.turn.lock().await;
        self.must_be(&sandbox)?;
        let mut record = sandbox.state().record.clone();
        record.spec.annotation.clone_from(&annotation);
        self.blocking(move |inner| inner.folders.write_sandbox(&record)).await?;
        sandbox.state().record.spec.annotation = annotation;
        Ok(())
    }

    /// Usage of a sandbox and everything in it.
    pub async fn sandbox_stats(&self, sandbox: &str) -> Result<Stats> {
        let sandbox = self.get(sandbox)?;
        let path = self.0.tree.path(&sandbox.state().record.spec.cgroup);
        Ok(cgroup::stats(&path))
    }
}

/// Upstream's words for an unobserved exit.
fn unknown() -> Exit {
    Exit {
        code: 137,
        signal: 0,
        reason: ExitReason::ContainerStatusUnknown,
        message: "The container could not be located when the pod was terminated".into(),
        finished: now(),
    }
}

impl Inner {
    /// Creates the cgroups and folders of a sandbox and starts its shim, which listens at once, and authenticates us by the secret.
    fn start_shim(&self, spec: &SandboxSpec, journal: &JournalWriter) -> Result<(OwnedFd, Secret)> {
        let kernel = Kernel::new(journal);
        let pod = self.tree.make(&kernel, &spec.cgroup)?;
        cgroup::apply(&kernel, &pod, &spec.resources)?;
        cgroup::bound(&kernel, &pod)?;
        let pause = self.tree.make_leaf(&kernel, &spec.cgroup.child(PAUSE))?;
        if let Guard::Program(program) = self.guard(&[])? {
            kernel.attach_device_program(&pause, program.as_fd())?;
        }
        let leaf = self.tree.make_leaf(&kernel, &shim(&spec.id))?;
        let run = self.folders.run(&spec.id);
        kernel.mkdir(&run)?;
        let socket = podwright_shim::socket::listen(&run).map_err(at(&run))?;
        let secret = Secret::make().map_err(at(&self.folders.sandbox(&spec.id)))?;
        self.folders.write_secret(&spec.id, &secret)?;
        let log = self.folders.sandbox(&spec.id).join("shim.log");
        let log = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&log).map_err(at(&log))?;
        let leaf = File::open(&leaf).map_err(at(&leaf))?;
        let args = ["podwright-shim".to_owned(), spec.id.clone()];
        let (_, pidfd) = kernel.spawn(self.shim.as_fd(), &args, leaf.as_fd(), socket.as_fd(), log.as_fd())?;
        Ok((pidfd, secret))
    }

    /// Removes a sandbox's kernel state: processes, cgroups, the `/dev/shm` mount.
    pub(super) fn sweep(&self, spec: &SandboxSpec, journal: &JournalWriter) -> Result<()> {
        let kernel = Kernel::new(journal);
        let mut errors = Errors::default();
        errors.note(self.sweep_shim(&spec.id, &kernel));
        errors.note(self.tree.remove(&kernel, &spec.cgroup));
        errors.result()
    }

    /// Removes a shim and the mounts for its sandbox.
    pub(super) fn sweep_shim(&self, id: &str, kernel: &Kernel) -> Result<()> {
        let mut errors = Errors::default();
        errors.note(self.tree.remove(kernel, &shim(id)));
        errors.note(kernel.detach(&self.folders.shm(id)));
        errors.result()
    }
}

fn open_net(spec: &SandboxSpec) -> Result<Option<OwnedFd>> {
    match &spec.network {
        Network::Path(path) => Ok(Some(File::open(path).map_err(at(path))?.into())),
        Network::New | Network::Host => Ok(None),
    }
}

/// Our shims are our children until we die: they must not stay zombies.
fn reap_later(pidfd: OwnedFd) {
    tokio::spawn(async move {
        if let Ok(fd) = process::watch(pidfd) {
            let _ = fd.readable().await;
            process::reap_pidfd(fd.get_ref().as_fd());
        }
    });
}
