//! What a caller asks for, and the states it is told: the words of this crate's API.

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

/// Labels and annotations: found again by [`Runtime::list`](crate::Runtime::list), also after a restart.
pub type Labels = BTreeMap<String, String>;

/// Where a runtime keeps its things. Two runtimes may share a machine if all folders and `cgroup_root` differ.
#[derive(Clone, Debug)]
pub struct Config {
    /// Durable: records of sandboxes and containers, exit codes, writable layers.
    pub state_dir: PathBuf,
    /// Lives until reboot: sockets of shims, the sandboxes' `/dev/shm`.
    pub run_dir: PathBuf,
    /// The runtime's own subtree below the cgroup v2 mount, as `/podwright`.
    pub cgroup_root: PathBuf,
    /// The `podwright-shim` binary. It is read once, at open.
    pub shim: PathBuf,
    /// How long a process may take to be born, and then to be executed, at most [`BIRTH`](crate::BIRTH).
    pub birth_timeout: Duration,
    /// Who is asked whose a sandbox is whose record is lost.
    pub owners: Owners,
}

/// A sandbox: namespaces, a parent cgroup, and the shim that holds them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Unique on this runtime; letters, digits, `-`, `_`, `.`; at most 128. (A Pod's uid and sandbox attempt.)
    pub id: String,
    /// Empty: the host's (for host network). Cut by nobody: at most 64 bytes.
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub pid: PidMode,
    /// Use the host's IPC namespace.
    #[serde(default)]
    pub host_ipc: bool,
    /// The ids that its containers' users are on the host, in a user namespace of its own. `None`: the host's user namespace.
    /// Errors when it cannot be had: see [`Runtime::user_namespaces`](crate::Runtime::user_namespaces).
    #[serde(default)]
    pub users: Option<IdRange>,
    /// Sysctls of its own namespaces, as `net.core.somaxconn` -> `1024`; see [`crate::sysctl`].
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Made with all its parents.
    pub cgroup: CgroupName,
    /// Limits of the sandbox as a whole.
    #[serde(default)]
    pub resources: Resources,
    #[serde(default)]
    pub labels: Labels,
    /// Any text that the caller wants to find again (the Pod as admitted).
    #[serde(default)]
    pub annotation: String,
    /// With whom it shares the turns in which what its containers have left is removed (the Pod's namespace); see
    /// [`crate::removals`]. Small letters, digits and `-`. Empty: with all of whom nothing is known.
    #[serde(default)]
    pub owner: String,
}

impl SandboxSpec {
    /// Whose its folder is.
    pub(crate) fn owner(&self) -> Owner {
        Owner::new(&self.owner, self.users)
    }

    /// A sandbox with a network of its own, and nothing else asked for.
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

/// A cgroup below a runtime's root, as `burstable/pod6f1c`. Never the root itself and never outside of it: so nobody kills
/// or removes more than one sandbox by a name that is missing or torn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "PathBuf", into = "PathBuf")]
pub struct CgroupName(PathBuf);

impl CgroupName {
    /// The cgroup of this name right below the root. What would make a path of the name is taken out of it.
    pub fn new(name: &str) -> CgroupName {
        CgroupName(file_name(name).into())
    }

    /// The cgroup of this name right below this one.
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

/// Which network namespace a sandbox has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Network {
    /// A new one, with `lo` up and nothing else; see [`Runtime::netns`](crate::Runtime::netns).
    #[default]
    New,
    /// The one the agent runs in.
    Host,
    /// An existing one, by its path (the node's own, when the node is isolated).
    Path(PathBuf),
}

/// cgroup v2 settings. What is `None` keeps the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// cpu.weight, 1..=10000.
    pub cpu_weight: Option<u64>,
    /// cpu.max: microseconds per `cpu_period_us`.
    pub cpu_quota_us: Option<u64>,
    /// Microseconds; 100,000 if not given.
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
    /// memory.oom.group: an OOM kill takes the whole cgroup.
    pub oom_group: Option<bool>,
    /// pids.max
    pub pids_max: Option<u64>,
    /// Page size as `2MB` -> bytes.
    pub hugetlb: BTreeMap<String, u64>,
    /// Any other file of the cgroup -> its text.
    pub unified: BTreeMap<String, String>,
}

impl Resources {
    /// These, with what `other` sets in their place.
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
/// Of the OCI spec these are honoured: `process` (all but selinux, ioPriority, scheduler; `rlimits: None` keeps the
/// agent's), `root.readonly`, `mounts`, `linux.{maskedPaths,readonlyPaths,seccomp,devices}`,
/// `linux.resources.devices` (see [`crate::devices`]; none given: only what harms nobody). Namespaces are the
/// sandbox's; hostname and sysctls too. A mount's options are upstream's (`rbind`, `rro`, `rslave`, `rshared`, ...), and runc's
/// `idmap` and `ridmap`: a bind whose files belong inside to whom they belong on the host (0 to 0), whatever range
/// [`SandboxSpec::users`] is. Without `users` they change nothing.
/// What is not among the mounts is added: `/dev` with its standard nodes, `/dev/pts`, `/dev/mqueue` (unless `/dev` is a
/// bind), and `/dev/shm`, which is the sandbox's. HOME, PATH, HOSTNAME and TERM are set where nobody says.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    pub id: ContainerId,
    /// A container of the same sandbox whose PID namespace this one joins, where containers have one each. It must run.
    pub pid_of: Option<ContainerId>,
    pub oci: oci_spec::runtime::Spec,
    pub rootfs: Rootfs,
    /// Where its output goes, in CRI's format; its folder is made. `None`: nowhere.
    pub log: Option<LogSpec>,
    /// Keep stdin open for attach.
    pub stdin: bool,
    /// Close stdin when the first attached stream ends it.
    pub stdin_once: bool,
    pub resources: Resources,
    pub labels: Labels,
    /// Any text that the caller wants to find again: [`Runtime::annotation`](crate::Runtime::annotation).
    pub annotation: String,
}

/// What a container's `/` is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rootfs {
    /// An overlay of these folders, the image's lowest layer first; the writable layer is the runtime's.
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
    /// Of `pause`, in the agent's PID namespace; 0 when gone.
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
    /// Of its first process, in the agent's PID namespace; 0 unless created or running.
    pub pid: u32,
    pub created: Timestamp,
    pub started: Option<Timestamp>,
    pub exit: Option<Exit>,
    pub labels: Labels,
    pub log: Option<LogSpec>,
    /// Limits that this host cannot enforce (cgroup files it does not have). Known to the agent that created it.
    #[serde(default)]
    pub unenforced: Vec<String>,
}

/// Something happened by itself. Sent after it was made durable.
#[derive(Clone, Debug)]
pub enum Event {
    ContainerExited {
        id: ContainerId,
        exit: Exit,
    },
    /// The sandbox became [`SandboxState::NotReady`] without being asked to.
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
    /// Give it a stdin (else /dev/null).
    pub stdin: bool,
    /// Terminal size as (columns, rows), with `process.terminal`.
    pub size: Option<(u16, u16)>,
}

/// Streams of a process: our ends of its pipes, non-blocking, so that backpressure is the kernel's. With a terminal
/// `stdin` and `stdout` are the same pty and there is no `stderr`; reading it gives EIO at the end (take it as EOF).
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// What [`Runtime::exec_sync`](crate::Runtime::exec_sync) gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub code: i32,
    /// The first 16 KiB (more is read and dropped).
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
    /// memory.current less inactive file pages, as kubelet counts: bytes. Where the controller is missing: what the processes
    /// have resident.
    pub memory_working_set: Option<u64>,
    pub pids: Option<u64>,
    pub oom_kills: Option<u64>,
}

/// Counters as they were read at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub at: Instant,
    /// CPU time used so far.
    pub cpu_us: u64,
    /// The working set, in bytes; see [`Stats::memory_working_set`].
    pub memory: u64,
}

/// What [`Runtime::usage`](crate::Runtime::usage) gives.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// `None`: `/proc` does not tell.
    pub machine: Option<Usage>,
    /// Those that run.
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
