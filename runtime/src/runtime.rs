//! The agent's side: what CRI calls the RuntimeService, as async methods.

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

/// All sandboxes and containers of one node. Cheap to clone. Every method may be repeated after a failure or a crash.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    folders: Folders,
    tree: Tree,
    /// The shim's program, sealed, shared by all shims.
    shim: OwnedFd,
    /// What this process may hand on.
    bounding: u64,
    birth_ms: u64,
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
    lost: Mutex<BTreeMap<String, lost::Lost>>,
    events: broadcast::Sender<Event>,
    /// Whether there can be user namespaces; see [`Runtime::user_namespaces`].
    users: OnceLock<std::result::Result<(), String>>,
    /// Compiled seccomp profiles by their JSON.
    seccomp: Mutex<Cache<String, Arc<Filters>>>,
    /// Loaded programs that decide about devices.
    devices: Mutex<Cache<Vec<Instruction>, Arc<OwnedFd>>>,
    /// The cgroups that belong to no sandbox, with their limits.
    made: Mutex<BTreeMap<CgroupName, Resources>>,
}

/// Compiled filters, each in a sealed memfd, with their flags.
type Filters = Vec<(OwnedFd, u32)>;

/// What is to decide which devices a container may use; [`Devices`] with the program itself.
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

/// One sandbox, as far as we know.
struct Sandbox {
    id: String,
    /// Held by whoever makes, stops or removes it, or makes or removes a container of it.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<SandboxInner>,
}

struct SandboxInner {
    record: SandboxRecord,
    client: Option<Arc<ShimClient>>,
    reader: Option<Reader>,
    /// What its shim knows us by.
    secret: Option<Secret>,
    /// Of `pause`; 0: not ready.
    pid: u32,
    netns: Option<OwnedFd>,
    /// Its `/dev/shm`, where it has one of its own.
    shm: Option<Kept>,
    /// Its sysctls, as the kernel shows what was written; `None`: nobody has looked yet.
    sysctls: Option<Vec<String>>,
    /// What decides about the devices of `pause`, where a program does and is known.
    held: Option<Held>,
    /// Whether its shim sets AppArmor profiles.
    app_armor: bool,
    /// When its shim was asked anew for what it knows, because it had told what nobody takes.
    asked_again: Option<Instant>,
    containers: BTreeMap<String, Container>,
}

struct Container {
    record: ContainerRecord,
    /// When it was asked to start, and is not known to have: its record on the disk says so already.
    starting: Option<Timestamp>,
    /// Held by whoever writes its record or removes it; see [`noting`].
    turn: Arc<Mutex<()>>,
    /// Of its first process; 0: none.
    pid: u32,
    exit: watch::Sender<Option<Exit>>,
    /// Limits that this host cannot enforce.
    unenforced: Vec<String>,
    /// Its shim has not answered yet that it is there: an end is news only after that.
    unborn: bool,
    /// Being removed: its end is nobody's news, and another one may have its name when that is heard.
    leaving: bool,
    /// What decides about its devices, where a program does and is known.
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

    /// The connection to its shim. Errors: there is none.
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
    /// Opens the folders, finds every shim of an earlier agent and reconnects; containers whose shim died are killed and
    /// reported as [`ContainerStatusUnknown`](crate::ExitReason); what was half made is removed. What lives and cannot be taken over
    /// is left alone: see [`Runtime::lost`]. Errors: a shim lives with which there is no version of the protocol in common; it is
    /// not touched.
    pub async fn open(config: Config) -> Result<Runtime> {
        Runtime::open_as(config, true).await
    }

    /// The same, to remove everything: a shim that cannot be spoken to is taken for dead, and what it looked after is killed.
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

    /// Whether this machine can give a sandbox [`users`](SandboxSpec::users) of its own: tried for real, once. Errors: what is
    /// missing.
    pub fn user_namespaces(&self) -> std::result::Result<(), String> {
        self.0.users.get_or_init(|| try_users::try_users(&self.0.folders.state)).clone()
    }

    /// The cgroup of a sandbox, as an absolute path; of a container if its key is given.
    pub fn cgroup_path(&self, sandbox: &SandboxSpec, container: Option<&ContainerId>) -> std::path::PathBuf {
        match container {
            Some(id) => self.0.tree.path(&sandbox.cgroup.child(&id.key())),
            None => self.0.tree.path(&sandbox.cgroup),
        }
    }

    /// Makes a cgroup of the tree (a QoS class) and sets its limits; returns what cannot be enforced here.
    pub fn make_cgroup(
        &self,
        name: &CgroupName,
        resources: &Resources,
        journal: &JournalWriter,
    ) -> Result<Vec<String>> {
        let kernel = Kernel::new(journal);
        // What is given last is what is kept and written last.
        let mut made = self.0.made.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.0.tree.make(&kernel, name)?;
        made.insert(name.clone(), resources.clone());
        cgroup::apply(&kernel, &path, resources)
    }

    /// Removes the runtime's cgroup subtree, killing what is left in it: for a node that leaves nothing behind.
    pub async fn remove_root(&self, journal: &JournalWriter) -> Result<()> {
        let kernel = Kernel::new(journal);
        self.blocking(move |inner| Ok(inner.tree.remove_root(&kernel)?)).await
    }

    /// Exits, as they happen. A receiver that lags must look at [`Runtime::list`].
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.0.events.subscribe()
    }

    /// All sandboxes with their containers.
    pub async fn list(&self) -> Vec<SandboxStatus> {
        let all: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        all.iter().map(|s| s.status()).collect()
    }

    /// Containers whose first process is there, with their labels: without all that [`Runtime::list`] copies of each sandbox.
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

    /// Whether a container is there and has not exited.
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

    /// Runs kernel work that may block for a moment off the async threads.
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

/// Collects the errors of a teardown that goes on.
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
