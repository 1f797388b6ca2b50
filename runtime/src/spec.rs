//! Specifications and states: the types of this crate's API.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use podwright_shim::protocol::{Exit, ExitReason, LogSpec, PidMode};
pub use podwright_sys::users::IdRange;

use crate::owner::{Owner, Owners};

/// Labels and annotations: returned by [`Runtime::list`](crate::Runtime::list), also after a restart.
pub type Labels = BTreeMap<String, String>;

/// A runtime's paths. Two runtimes may share a machine if all folders and `cgroup_root` differ.
#[derive(Clone, Debug)]
pub struct Config {
    /// Persistent: records of sandboxes and containers, exit codes, writable layers.
    pub state_dir: PathBuf,
    /// Kept until reboot: sockets of shims, the sandboxes' `/dev/shm`.
    pub run_dir: PathBuf,
    /// The runtime's own subtree below the cgroup v2 mount, such as `/podwright`.
    pub cgroup_root: PathBuf,
    /// The `podwright-shim` binary. Read once, on open.
    pub shim: PathBuf,
    /// Time limit for a process's birth, and then for its execution, at most [`BIRTH`](crate::BIRTH).
    pub birth_timeout: Duration,
    /// Provides the owner of a sandbox whose record is lost.
    pub owners: Owners,
}

/// A sandbox: namespaces, a parent cgroup, and the shim that holds them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Unique on this runtime; letters, digits, `-`, `_`, `.`; at most 128. (A Pod's uid and sandbox attempt.)
    pub id: String,
    /// Empty: the host's (for host network). At most 64 bytes.
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub pid: PidMode,
    /// Use the host's IPC namespace.
    #[serde(default)]
    pub host_ipc: bool,
    /// The host ids of its containers' users, in its own user namespace. `None`: the host's user namespace. Fails if not supported:
    /// see [`Runtime::user_namespaces`](crate::Runtime::user_namespaces).
    #[serde(default)]
    pub users: Option<IdRange>,
    /// Sysctls of its own namespaces, such as `net.core.somaxconn` -> `1024`; see [`crate::sysctl`].
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Created with all its parents.
    pub cgroup: CgroupName,
    /// Limits of the sandbox as a whole.
    #[serde(default)]
    pub resources: Resources,
    #[serde(default)]
    pub labels: Labels,
    /// Any text to be stored for the caller (the admitted Pod).
    #[serde(default)]
    pub annotation: String,
    /// The owner for whom leftovers of its containers are deleted in turns (the Pod's namespace); see [`crate::removals`].
    /// Lower-case letters, digits and `-`. Empty: shared by all unknown owners.
    #[serde(default)]
    pub owner: String,
}

impl SandboxSpec {
    /// The owner of its folder.
    pub(crate) fn owner(&self) -> Owner {
        Owner::new(&self.owner, self.users)
    }

    /// A sandbox with its own network and default settings.
    pub fn new(id: impl Into<String>, cgroup: CgroupName) -> SandboxSpec {
        SandboxSpec {
            id: id.into(),
            hostname: String::new(),
            network: Network::default(),
            pid: PidMode::default(),
            host_ipc: false,
            users: None,
            sysctls: BTreeMap::new(),
            cgroup,
            resources: Resources::default(),
            labels: Labels::new(),
            annotation: String::new(),
            owner: String::new(),
        }
    }
}

/// A cgroup below a runtime's root, such as `burstable/pod6f1c`. Never the root itself or outside it: so a missing or torn name
/// cannot kill or remove more than one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "PathBuf", into = "PathBuf")]
pub struct CgroupName(PathBuf);

impl CgroupName {
    /// The cgroup of this name directly below the root. Path syntax in the name is removed.
    pub fn new(name: &str) -> CgroupName {
        CgroupName(file_name(name).into())
    }

    /// The cgroup of this name directly below this one.
    pub fn child(&self, name: &str) -> CgroupName {
        CgroupName(self.0.join(file_name(name)))
    }

    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

fn file_name(name: &str) -> String {
    match name {
        "" | "." | ".." => "_".to_owned(),
        _ => name.replace(['/', '\0'], "_"),
    }
}

impl TryFrom<PathBuf> for CgroupName {
    type Error = crate::Error;

    fn try_from(path: PathBuf) -> Result<CgroupName, crate::Error> {
        let inside = path.components().all(|c| matches!(c, Component::Normal(_))) && path.components().next().is_some();
        if inside { Ok(CgroupName(path)) } else { Err(crate::Error::Invalid(format!("cgroup {path:?}"))) }
    }
}

impl From<CgroupName> for PathBuf {
    fn from(name: CgroupName) -> PathBuf {
        name.0
    }
}

/// The network namespace of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Network {
    /// A new one, with only `lo` up; see [`Runtime::netns`](crate::Runtime::netns).
    #[default]
    New,
    /// The one the agent runs in.
    Host,
    /// An existing one, by its path (the node's own, when the node is isolated).
    Path(PathBuf),
}

/// cgroup v2 settings. `None` keeps the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// cpu.weight, 1..=10000.
    pub cpu_weight: Option<u64>,
    /// cpu.max: microseconds per `cpu_period_us`.
    pub cpu_quota_us: Option<u64>,
    /// Microseconds; 100,000 by default.
    pub cpu_period_us: Option<u64>,
    /// memory.max in bytes.
    pub memory_max: Option<u64>,
    /// memory.high in bytes.
    pub memory_high: Option<u64>,
    /// memory.low in bytes.
    pub memory_low: Option<u64>,
    /// memory.min in bytes.
    pub memory_min: Option<u64>,
    /// memory.swap.max in bytes.
    pub memory_swap_max: Option<u64>,
    /// memory.oom.group: an OOM kill affects the whole cgroup.
    pub oom_group: Option<bool>,
    /// pids.max
    pub pids_max: Option<u64>,
    /// Page size such as `2MB` -> bytes.
    pub hugetlb: BTreeMap<String, u64>,
    /// Any other file of the cgroup -> its content.
    pub unified: BTreeMap<String, String>,
}

impl Resources {
    /// These settings, overridden by those of `other`.
    pub fn with(mut self, other: &Resources) -> Resources {
        fn set<T: Clone>(mine: &mut Option<T>, theirs: &Option<T>) {
            if theirs.is_some() {
                mine.clone_from(theirs);
            }
        }
        set(&mut self.cpu_weight, &other.cpu_weight);
        set(&mut self.cpu_quota_us, &other.cpu_quota_us);
        set(&mut self.cpu_period_us, &other.cpu_period_us);
        set(&mut self.memory_max, &other.memory_max);
        set(&mut self.memory_high, &other.memory_high);
        set(&mut self.memory_low, &other.memory_low);
        set(&mut self.memory_min, &other.memory_min);
        set(&mut self.memory_swap_max, &other.memory_swap_max);
        set(&mut self.oom_group, &other.oom_group);
        set(&mut self.pids_max, &other.pids_max);
        self.hugetlb.extend(other.hugetlb.clone());
        self.unified.extend(other.unified.clone());
        self
    }
}

/// A container's name inside a runtime: `<sandbox>/<name>.<attempt>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerId {
    pub sandbox: String,
    pub name: String,
    pub attempt: u32,
}

impl ContainerId {
    pub fn new(sandbox: impl Into<String>, name: impl Into<String>, attempt: u32) -> ContainerId {
        ContainerId { sandbox: sandbox.into(), name: name.into(), attempt }
    }

    /// `<name>.<attempt>`: unique in its sandbox; the name of its folder and its cgroup.
    pub fn key(&self) -> String {
        format!("{}.{}", self.name, self.attempt)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.sandbox, self.name, self.attempt)
    }
}

impl FromStr for ContainerId {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<ContainerId, crate::Error> {
        let parse = || {
            let (sandbox, key) = text.split_once('/')?;
            let (name, attempt) = key.rsplit_once('.')?;
            Some(ContainerId::new(sandbox, name, attempt.parse().ok()?))
        };
        parse().ok_or_else(|| crate::Error::Invalid(format!("{text:?} is not sandbox/name.attempt")))
    }
}

/// A container to create.
///
/// Supported parts of the OCI spec: `process` (except selinux, ioPriority, scheduler; `rlimits: None` keeps the agent's),
/// `root.readonly`, `mounts`, `linux.{maskedPaths,readonlyPaths,seccomp,devices}`, `linux.resources.devices` (see
/// [`crate::devices`]; by default only harmless ones). Namespaces are the sandbox's, as are hostname and sysctls. Mount options are
/// upstream's (`rbind`, `rro`, `rslave`, `rshared`, ...), and runc's `idmap` and `ridmap`: a bind whose files have the same owners
/// inside as on the host (0 to 0), whatever range [`SandboxSpec::users`] is. Without `users` they have no effect. Missing mounts
/// are added: `/dev` with its standard nodes, `/dev/pts`, `/dev/mqueue` (unless `/dev` is a bind), and the sandbox's `/dev/shm`.
/// HOME, PATH, HOSTNAME and TERM are set if missing.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    pub id: ContainerId,
    /// A container of the same sandbox whose PID namespace this one joins, if containers have one each. It must be running.
    pub pid_of: Option<ContainerId>,
    pub oci: oci_spec::runtime::Spec,
    pub rootfs: Rootfs,
    /// The log for its output, in CRI's format; its folder is created. `None`: discarded.
    pub log: Option<LogSpec>,
    /// Keep stdin open for attach.
    pub stdin: bool,
    /// Close stdin when the first attached stream ends.
    pub stdin_once: bool,
    pub resources: Resources,
    pub labels: Labels,
    /// Any text to be stored for the caller: [`Runtime::annotation`](crate::Runtime::annotation).
    pub annotation: String,
}

/// The root filesystem of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rootfs {
    /// An overlay of these folders, the image's lowest layer first; the runtime provides the writable layer.
    Layers(Vec<PathBuf>),
    /// This folder itself.
    Dir(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxState {
    Ready,
    /// Stopped, or its shim or `pause` is gone: it can only be removed.
    NotReady,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxStatus {
    pub spec: SandboxSpec,
    pub state: SandboxState,
    /// The pid of `pause`, in the agent's PID namespace; 0 when gone.
    pub pid: u32,
    pub created: Timestamp,
    pub containers: Vec<ContainerStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerState {
    Created,
    Running,
    Exited,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerStatus {
    pub id: ContainerId,
    pub state: ContainerState,
    /// The pid of its first process, in the agent's PID namespace; 0 unless created or running.
    pub pid: u32,
    pub created: Timestamp,
    pub started: Option<Timestamp>,
    pub exit: Option<Exit>,
    pub labels: Labels,
    pub log: Option<LogSpec>,
    /// Limits that this host cannot enforce (missing cgroup files). Only known to the agent that created it.
    #[serde(default)]
    pub unenforced: Vec<String>,
}

/// An unrequested change. Sent after it was recorded durably.
#[derive(Clone, Debug)]
pub enum Event {
    ContainerExited {
        id: ContainerId,
        exit: Exit,
    },
    /// The sandbox became [`SandboxState::NotReady`] without a request.
    SandboxGone {
        id: String,
    },
}

/// A process to run inside a running container.
#[derive(Clone, Debug)]
pub struct ExecSpec {
    /// args, env, cwd, user, capabilities, terminal, no_new_privileges: usually the container's own with other args.
    pub process: oci_spec::runtime::Process,
    /// Applied as for the container; `None`: no filter.
    pub seccomp: Option<oci_spec::runtime::LinuxSeccomp>,
    /// Provide stdin (otherwise /dev/null).
    pub stdin: bool,
    /// Terminal size as (columns, rows), with `process.terminal`.
    pub size: Option<(u16, u16)>,
}

/// Streams of a process: our ends of its pipes, non-blocking, so that backpressure is the kernel's. With a terminal `stdin` and
/// `stdout` are the same pty and there is no `stderr`; reading returns EIO at the end (treat it as EOF).
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// The result of [`Runtime::exec_sync`](crate::Runtime::exec_sync).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub code: i32,
    /// The first 16 KiB (the rest is read and discarded).
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Usage of a cgroup. `None`: the controller is missing on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    pub cpu_usage_us: Option<u64>,
    /// memory.current, bytes.
    pub memory_current: Option<u64>,
    /// memory.current without inactive file pages, as in kubelet: bytes. Without the controller: the processes' resident memory.
    pub memory_working_set: Option<u64>,
    pub pids: Option<u64>,
    pub oom_kills: Option<u64>,
}

/// Counters at a point in time.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub at: Instant,
    /// CPU time used so far.
    pub cpu_us: u64,
    /// The working set, in bytes; see [`Stats::memory_working_set`].
    pub memory: u64,
}

/// The result of [`Runtime::usage`](crate::Runtime::usage).
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// `None`: not available in `/proc`.
    pub machine: Option<Usage>,
    /// The running ones.
    pub containers: Vec<RunningUsage>,
}

/// The usage of a running container.
#[derive(Clone, Debug)]
pub struct RunningUsage {
    pub id: ContainerId,
    pub labels: Labels,
    pub usage: Usage,
}

/// A process as the kernel shows it, for `inspect`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    pub pid: u32,
    pub comm: String,
    pub args: Vec<String>,
    /// Namespace -> inode number, as in `/proc/<pid>/ns`.
    pub namespaces: BTreeMap<String, u64>,
    pub uid: u32,
    pub gid: u32,
    /// The five sets as hex, by their names in `/proc/<pid>/status` (`CapEff` ...).
    pub capabilities: BTreeMap<String, String>,
    pub no_new_privs: bool,
    /// 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    pub cgroup: String,
    /// Lines of `/proc/<pid>/mountinfo`; only for a container's first process.
    pub mounts: Vec<String>,
}
