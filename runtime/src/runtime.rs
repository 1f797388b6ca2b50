//! The agent's side: the operations of CRI's RuntimeService, as async methods.

mod cache;
mod containers;
mod creation;
mod exec;
mod facts;
mod healing;
mod hearing;
mod layers;
mod lost;
mod names;
mod noting;
mod recovery;
mod sandboxes;
mod try_users;
mod usage;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::{broadcast, watch};

use crate::cgroup::{self, Tree};
use crate::devices::Instruction;
use crate::records::{ContainerRecord, Devices, Folders, SandboxRecord, at};
use crate::shim_client::{Reader, ShimClient};
use crate::spec::*;
use crate::{Error, JournalWriter, Result};
use cache::Cache;
pub use creation::RunError;
pub use exec::ExecSession;
use healing::Held;
pub use layers::{Quiet, Restless};
use podwright_shim::handshake::Secret;
use podwright_sys::Kernel;
use podwright_sys::kept::Kept;

/// All sandboxes and containers of one node. Cheap to clone. Every method may be retried after a failure or a crash.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    folders: Folders,
    tree: Tree,
    /// The shim's program in a sealed memfd, shared by all shims.
    shim: OwnedFd,
    /// The capabilities that this process may pass on.
    bounding: u64,
    birth_ms: u64,
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
    lost: Mutex<BTreeMap<String, lost::Lost>>,
    events: broadcast::Sender<Event>,
    /// Whether user namespaces work; see [`Runtime::user_namespaces`].
    users: OnceLock<std::result::Result<(), String>>,
    /// Compiled seccomp profiles, by JSON.
    seccomp: Mutex<Cache<String, Arc<Filters>>>,
    /// Loaded device filter programs.
    devices: Mutex<Cache<Vec<Instruction>, Arc<OwnedFd>>>,
    /// The cgroups outside sandboxes, with their limits.
    made: Mutex<BTreeMap<CgroupName, Resources>>,
}

/// Compiled filters, each in a sealed memfd, with their flags.
type Filters = Vec<(OwnedFd, u32)>;

/// How a container's devices are restricted; [`Devices`] with the program itself.
#[derive(Clone)]
enum Guard {
    Open,
    Program(Arc<OwnedFd>),
    Refused,
}

impl Guard {
    fn devices(&self) -> Devices {
        match self {
            Guard::Open => Devices::Open,
            Guard::Program(_) => Devices::Held,
            Guard::Refused => Devices::Refused,
        }
    }
}

/// The known state of one sandbox.
struct Sandbox {
    id: String,
    /// Held while it is created, stopped or removed, or a container in it is created or removed.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<SandboxInner>,
}

struct SandboxInner {
    record: SandboxRecord,
    client: Option<Arc<ShimClient>>,
    reader: Option<Reader>,
    /// The secret by which its shim authenticates us.
    secret: Option<Secret>,
    /// Of `pause`; 0: not ready.
    pid: u32,
    netns: Option<OwnedFd>,
    /// Its `/dev/shm`, if it has its own.
    shm: Option<Kept>,
    /// Its sysctls, as the kernel shows what was written; `None`: not read yet.
    sysctls: Option<Vec<String>>,
    /// The device filter of `pause`, if it has a known one.
    held: Option<Held>,
    /// Whether its shim sets AppArmor profiles.
    app_armor: bool,
    /// When its shim was queried again, after its events were dropped.
    asked_again: Option<Instant>,
    containers: BTreeMap<String, Container>,
}

struct Container {
    record: ContainerRecord,
    /// When its start was requested, until it is known to have started: already in its record on disk.
    starting: Option<Timestamp>,
    /// Held while its record is written or removed; see [`noting`].
    turn: Arc<Mutex<()>>,
    /// The pid of its first process; 0: none.
    pid: u32,
    exit: watch::Sender<Option<Exit>>,
    /// Limits that this host cannot enforce.
    unenforced: Vec<String>,
    /// Its shim has not yet confirmed its creation: its exit is reported only after that.
    unborn: bool,
    /// Being removed: its exit is not reported, as a new container may have its name by then.
    leaving: bool,
    /// Its device filter, if it has a known one.
    held: Option<Held>,
}

impl Container {
    fn new(record: ContainerRecord, pid: u32, exit: Option<Exit>) -> Container {
        Container {
            record,
            starting: None,
            turn: Arc::default(),
            pid,
            exit: watch::Sender::new(exit),
            unenforced: Vec::new(),
            unborn: false,
            leaving: false,
            held: None,
        }
    }

    fn is_running(&self) -> bool {
        self.record.started.is_some() && self.exit.borrow().is_none()
    }

    fn status(&self) -> ContainerStatus {
        let exit = self.exit.borrow().clone();
        ContainerStatus {
            id: self.record.id.clone(),
            state: match (&exit, self.record.started) {
                (Some(_), _) => ContainerState::Exited,
                (None, Some(_)) => ContainerState::Running,
                (None, None) => ContainerState::Created,
            },
            pid: if exit.is_some() { 0 } else { self.pid },
            created: self.record.created,
            started: self.record.started,
            exit,
            labels: self.record.labels.clone(),
            log: self.record.log.clone(),
            unenforced: self.unenforced.clone(),
        }
    }
}

impl Sandbox {
    fn new(record: SandboxRecord) -> Arc<Sandbox> {
        let state = SandboxInner {
            record,
            client: None,
            reader: None,
            secret: None,
            pid: 0,
            netns: None,
            shm: None,
            sysctls: None,
            held: None,
            app_armor: false,
            asked_again: None,
            containers: BTreeMap::new(),
        };
        Arc::new(Sandbox {
            id: state.record.spec.id.clone(),
            turn: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// Never held across an await.
    fn state(&self) -> MutexGuard<'_, SandboxInner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> SandboxStatus {
        let state = self.state();
        SandboxStatus {
            spec: state.record.spec.clone(),
            state: if state.ready() { SandboxState::Ready } else { SandboxState::NotReady },
            pid: state.pid,
            created: state.record.created,
            containers: state.containers.values().map(Container::status).collect(),
        }
    }

    /// The connection to its shim. Fails if there is none.
    fn client(&self) -> Result<Arc<ShimClient>> {
        let state = self.state();
        state.client.clone().filter(|l| !l.is_dead()).ok_or_else(|| Error::ShimGone(self.id.clone()))
    }

    fn with_container<T>(&self, id: &ContainerId, act: impl FnOnce(&mut Container) -> T) -> Result<T> {
        let mut state = self.state();
        state.containers.get_mut(&id.key()).map(act).ok_or_else(|| not_found(id))
    }
}

impl SandboxInner {
    fn ready(&self) -> bool {
        self.pid != 0 && !self.record.stopped && self.client.as_ref().is_some_and(|l| !l.is_dead())
    }
}

fn not_found(id: &ContainerId) -> Error {
    Error::NotFound(format!("container {id}"))
}

impl Runtime {
    /// Opens the folders, finds every shim of an earlier agent and reconnects; containers whose shim died are killed and reported
    /// as [`ContainerStatusUnknown`](crate::ExitReason); half-created ones are removed. Live ones that cannot be taken over are
    /// left alone: see [`Runtime::lost`]. Fails if a live shim shares no protocol version; it is not touched.
    pub async fn open(config: Config) -> Result<Runtime> {
        Runtime::open_as(config, true).await
    }

    /// The same in order to remove everything: a shim that does not respond is treated as dead, and its processes are killed.
    pub async fn open_to_remove(config: Config) -> Result<Runtime> {
        Runtime::open_as(config, false).await
    }

    async fn open_as(config: Config, strict: bool) -> Result<Runtime> {
        let folders = Folders::new(&config);
        folders.make()?;
        let kernel = Kernel::new(&JournalWriter::none());
        let tree = Tree::open(&kernel, &config.cgroup_root)?;
        let program = std::fs::read(&config.shim).map_err(at(&config.shim))?;
        let runtime = Runtime(Arc::new(Inner {
            folders,
            tree,
            shim: kernel.sealed_memfd("podwright-shim", &program)?,
            bounding: crate::profile::bounding_set(),
            birth_ms: config.birth_timeout.min(crate::BIRTH).as_millis() as u64,
            sandboxes: Mutex::default(),
            lost: Mutex::default(),
            events: broadcast::Sender::new(4096),
            users: OnceLock::new(),
            seccomp: Mutex::default(),
            devices: Mutex::default(),
            made: Mutex::default(),
        }));
        let find = |inner: &Inner| {
            inner.folders.removals.find(&inner.folders.state);
            Ok(())
        };
        runtime.blocking(find).await?;
        runtime.recover(strict).await?;
        Ok(runtime)
    }

    /// What this host's cgroups can enforce.
    pub fn cgroups(&self) -> &cgroup::Capabilities {
        &self.0.tree.capabilities
    }

    /// Checks that this machine supports user namespaces for sandboxes ([`users`](SandboxSpec::users)): tried once. Fails with what
    /// is missing.
    pub fn user_namespaces(&self) -> std::result::Result<(), String> {
        self.0.users.get_or_init(|| try_users::try_users(&self.0.folders.state)).clone()
    }

    /// The cgroup of a sandbox, or of the given container, as an absolute path.
    pub fn cgroup_path(&self, sandbox: &SandboxSpec, container: Option<&ContainerId>) -> std::path::PathBuf {
        match container {
            Some(id) => self.0.tree.path(&sandbox.cgroup.child(&id.key())),
            None => self.0.tree.path(&sandbox.cgroup),
        }
    }

    /// Creates a cgroup in the tree (a QoS class) and sets its limits; returns those that cannot be enforced here.
    pub fn make_cgroup(
        &self,
        name: &CgroupName,
        resources: &Resources,
        journal: &JournalWriter,
    ) -> Result<Vec<String>> {
        let kernel = Kernel::new(journal);
        // Concurrent calls store and write in the same order.
        let mut made = self.0.made.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.0.tree.make(&kernel, name)?;
        made.insert(name.clone(), resources.clone());
        cgroup::apply(&kernel, &path, resources)
    }

    /// Removes the runtime's cgroup subtree, killing what is left in it: for a node that must leave nothing behind.
    pub async fn remove_root(&self, journal: &JournalWriter) -> Result<()> {
        let kernel = Kernel::new(journal);
        self.blocking(move |inner| Ok(inner.tree.remove_root(&kernel)?)).await
    }

    /// Exits, as they happen. A lagging receiver must check [`Runtime::list`].
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.0.events.subscribe()
    }

    /// All sandboxes with their containers.
    pub async fn list(&self) -> Vec<SandboxStatus> {
        let all: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        all.iter().map(|s| s.status()).collect()
    }

    /// Containers with a running first process, and their labels: without the copying of [`Runtime::list`].
    pub fn running(&self) -> Vec<(ContainerId, Labels)> {
        let all: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        let of = |sandbox: &Arc<Sandbox>| -> Vec<(ContainerId, Labels)> {
            let state = sandbox.state();
            let running = state.containers.values().filter(|c| c.pid != 0 && c.exit.borrow().is_none());
            running.map(|c| (c.record.id.clone(), c.record.labels.clone())).collect()
        };
        all.iter().flat_map(of).collect()
    }

    /// One sandbox with its containers.
    pub async fn sandbox(&self, id: &str) -> Option<SandboxStatus> {
        self.find(id).map(|s| s.status())
    }

    /// Whether a container exists and has not exited.
    pub fn is_alive(&self, id: &ContainerId) -> bool {
        let Some(sandbox) = self.find(&id.sandbox) else { return false };
        let state = sandbox.state();
        state.containers.values().any(|c| c.record.id == *id && c.exit.borrow().is_none())
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.0.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.sandboxes().get(id).cloned()
    }

    fn get(&self, id: &str) -> Result<Arc<Sandbox>> {
        self.find(id).ok_or_else(|| Error::NotFound(format!("sandbox {id}")))
    }

    /// Runs blocking kernel work off the async threads.
    async fn blocking<T: Send + 'static>(&self, act: impl FnOnce(&Inner) -> Result<T> + Send + 'static) -> Result<T> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || act(&inner)).await;
        done.unwrap_or_else(|e| Err(Error::Kernel(format!("a task of the runtime failed: {e}"))))
    }
}

/// Ids become file and cgroup names.
fn check_name(what: &str, name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(fine) {
        return Err(Error::Invalid(format!("{what} {name:?}")));
    }
    Ok(())
}

/// Collects the errors of a teardown that continues.
#[derive(Default)]
struct Errors(Vec<Error>);

impl Errors {
    fn note<T, E: Into<Error>>(&mut self, result: std::result::Result<T, E>) -> Option<T> {
        result.map_err(|e| self.0.push(e.into())).ok()
    }

    fn result(mut self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            _ => Err(Error::Several(self.0)),
        }
    }
}

fn now() -> Timestamp {
    Timestamp::now()
}
