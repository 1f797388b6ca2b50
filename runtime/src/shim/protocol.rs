//! The protocol between agent and shim: plans, complete and validated, so that the shim only executes them; answers; and the frames
//! that carry both.
//!
//! A frame is a header of 8 bytes (length of the text as u32, number of descriptors as u8, protocol version as u8, two zero bytes),
//! then JSON. Descriptors travel with the first byte of their frame. Unknown fields are ignored and new ones have defaults, so that
//! a new agent drives old shims; a change that breaks this raises [`VERSION`].
//!
//! A shim outlives the agent that started it, so either may be the older one. Both support [`VERSION`] and the one before
//! ([`OLDEST`]): an agent begins with the newest; a shim without it closes the connection before doing anything, and is asked again
//! in the previous one. A shim answers each agent in the agent's version. A message whose meaning differs between two versions is
//! translated here, where the frame's version is known.
//!
//! ```text
//! 1   the first
//! 2   the same messages; a shim answers in the version of the request, and so also works with an older agent
//! ```

use std::io::{Error as IoError, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use podwright_journal::Cause;
use podwright_sys::credentials::CapSets;
use podwright_sys::users::IdRange;

mod bounds;
#[cfg(test)]
mod recorded;
mod types;

pub use bounds::{Failure, FailureKind};
pub use types::{BIRTH, Exit, ExitReason, LogSpec, PidMode, StartFailure};

pub const VERSION: u8 = 2;
/// The oldest supported version.
pub const OLDEST: u8 = 1;
const HEADER: usize = 8;
/// Maximum text size of a valid frame: the connection is closed on a larger one.
pub const MAX_FRAME: usize = 8 << 20;

/// Agent to shim. Every request gets one [`Message::Reply`] with its `id`, in any order.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    #[serde(default)]
    pub cause: Cause,
    pub call: Call,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Call {
    /// -> [`Answer::State`], with the network namespace as descriptor if there is a sandbox.
    State,
    /// Descriptor: the network namespace to join, if `join_net`. -> [`Answer::State`] as above.
    Sandbox(Box<SandboxPlan>),
    /// Descriptors: the seccomp programs. -> [`Answer::Pid`] when it is ready to start.
    Create(Box<ContainerPlan>),
    /// -> [`Answer::Done`] when the process has been executed. May directly follow its [`Call::Create`], and then waits for the
    /// birth; shims of earlier releases refuse that.
    Start {
        key: String,
    },
    Signal {
        key: String,
        signal: i32,
    },
    /// Kills all processes of its cgroup.
    Kill {
        key: String,
    },
    /// Drops a container that has exited (or was never created).
    Remove {
        key: String,
    },
    /// Descriptors: stdin, stdout, stderr as `ExecPlan` says, then the seccomp programs. -> [`Answer::Pid`], with the pty's master
    /// as descriptor if there is a terminal.
    Exec(Box<ExecPlan>),
    ExecSignal {
        exec: u64,
        signal: i32,
    },
    /// Descriptors: stdin (read end) if requested, stdout, stderr (write ends).
    Attach {
        key: String,
        stdin: bool,
    },
    Resize {
        key: String,
        columns: u16,
        rows: u16,
    },
    /// Kills everything and ends the shim; the reply is sent when everything is dead.
    Shutdown,
}

/// Shim to agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    Reply {
        id: u64,
        result: Result<Answer, Failure>,
    },
    /// A container exited; its exit record is on disk.
    Exited {
        key: String,
        exit: Exit,
    },
    ExecExited {
        exec: u64,
        code: i32,
    },
    /// `pause` exited by itself.
    SandboxGone,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Pid(u32),
    State(ShimState),
}

/// The complete state of a shim.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ShimState {
    /// The pid of `pause`; 0 without a sandbox.
    pub sandbox: u32,
    pub containers: Vec<ContainerSnapshot>,
    /// Whether it sets processes' AppArmor profiles; missing in earlier releases.
    pub app_armor: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerSnapshot {
    pub key: String,
    pub pid: u32,
    /// Nanoseconds since 1970.
    pub started_ns: Option<u64>,
    pub exit: Option<Exit>,
    /// From its plan, for an agent that has lost its record. Missing in earlier releases.
    #[serde(default)]
    pub log: Option<LogSpec>,
    #[serde(default)]
    pub stdin: bool,
    #[serde(default)]
    pub terminal: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxPlan {
    pub id: String,
    /// Empty: no own UTS namespace.
    pub hostname: String,
    pub new_net: bool,
    pub join_net: bool,
    pub new_ipc: bool,
    pub new_pid: bool,
    /// The host ids of its user namespace, if it has one: then that owns all its new namespaces.
    pub users: Option<IdRange>,
    /// Files below `/proc`, with the text to write; see `sysctl::files` of the runtime.
    pub sysctls: Vec<(PathBuf, String)>,
    /// The cgroup of `pause`, an absolute path.
    pub cgroup: PathBuf,
    /// Where to mount the shared `/dev/shm`, if it is not the host's.
    pub shm: Option<PathBuf>,
    /// The journal to write to.
    pub journal: Option<PathBuf>,
    /// The folder of the shim's own socket, where it listens again if the socket's name is removed. `None`: it does not.
    pub run: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerPlan {
    pub key: String,
    /// The absolute path of its cgroup, newly created.
    pub cgroup: PathBuf,
    /// The path of its exit record.
    pub exit_file: PathBuf,
    pub log: Option<LogSpec>,
    pub stdin: bool,
    pub stdin_once: bool,
    pub pid: PidMode,
    /// The container whose PID namespace it joins, if `pid` is `Container`.
    #[serde(default)]
    pub pid_of: Option<String>,
    pub root: RootPlan,
    /// In order; parents before children.
    pub mounts: Vec<MountPlan>,
    pub devices: Vec<DevicePlan>,
    /// Create the standard `/dev` nodes and links (it has its own `/dev`).
    pub standard_devices: bool,
    pub masked_paths: Vec<PathBuf>,
    pub readonly_paths: Vec<PathBuf>,
    pub process: ProcessPlan,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RootPlan {
    /// Lowest first; empty: `dir` itself is the root.
    pub layers: Vec<PathBuf>,
    pub upper: PathBuf,
    pub work: PathBuf,
    /// The mount point of the root in the container's mount namespace.
    pub dir: PathBuf,
    pub readonly: bool,
    /// The image's device nodes cannot be opened.
    #[serde(default)]
    pub nodev: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    pub target: PathBuf,
    pub what: MountKind,
    /// `MOUNT_ATTR_*` bits.
    pub set: u64,
    pub clear: u64,
    /// The attributes apply to everything below too (`rro`).
    pub recursive_attrs: bool,
    /// `MS_PRIVATE`, `MS_SLAVE` or `MS_SHARED`; always recursive.
    pub propagation: u64,
    /// Idmapped with the sandbox's user namespace, if it has one.
    #[serde(default)]
    pub idmap: Option<Idmap>,
}

/// Which part of a bind mount is idmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Idmap {
    /// Only the mount itself.
    Single,
    /// Including the mounts below it.
    Recursive,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountKind {
    Bind {
        source: PathBuf,
        recursive: bool,
    },
    /// `(option, value)`; without a value it is a flag.
    Fs {
        fstype: String,
        options: Vec<(String, Option<String>)>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    pub path: PathBuf,
    /// `b`, `c` or `p`.
    pub kind: char,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The program and its credentials: for a container's first process and for an exec.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessPlan {
    pub args: Vec<String>,
    /// `NAME=value`
    pub env: Vec<String>,
    pub cwd: PathBuf,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub umask: Option<u32>,
    pub caps: CapSets,
    pub no_new_privs: bool,
    /// Its AppArmor profile. Shims of earlier releases set none: see [`ShimState::app_armor`].
    pub app_armor: Option<String>,
    /// (`RLIMIT_*`, soft, hard)
    pub rlimits: Vec<(u32, u64, u64)>,
    pub oom_score_adj: Option<i32>,
    pub terminal: bool,
    pub size: Option<(u16, u16)>,
    /// Flags of the filters whose programs are passed as descriptors, in loading order.
    pub seccomp: Vec<u32>,
    /// Time limit for being born, and then for being executed, in milliseconds; then it is killed.
    #[serde(default = "birth_ms")]
    pub birth_ms: u64,
}

fn birth_ms() -> u64 {
    BIRTH.as_millis() as u64
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecPlan {
    /// The agent's id of it, unique among all its agents (random).
    pub exec: u64,
    pub key: String,
    pub process: ProcessPlan,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// Kill it after this time.
    pub timeout_ms: Option<u64>,
}

impl Call {
    /// What an oversized plan is for, in users' terms.
    pub fn subject(&self) -> String {
        match self {
            Call::Sandbox(plan) => format!("sandbox {}", plan.id),
            Call::Create(plan) => format!("container {}: args, env and mounts", plan.key),
            Call::Exec(plan) => format!("exec in container {}: args and env", plan.key),
            _ => "request".to_owned(),
        }
    }
}

/// A bounded writer: fails beyond the size of a frame.
struct Bounded<F>(usize, F);

impl<F: FnMut(&[u8])> Write for Bounded<F> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        let Some(left) = self.0.checked_sub(bytes.len()) else {
            let why = format!("argument list too long: more than {MAX_FRAME} bytes of JSON");
            return Err(IoError::new(ErrorKind::InvalidInput, why));
        };
        self.0 = left;
        (self.1)(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> Result<(), IoError> {
        Ok(())
    }
}

/// The size of a part, if a frame holds it with this much else. Fails if not.
pub fn fits(part: &impl Serialize, beside: usize) -> Result<usize, IoError> {
    let mut length = 0;
    let left = MAX_FRAME.saturating_sub(beside);
    serde_json::to_writer(Bounded(left, |bytes: &[u8]| length += bytes.len()), part)?;
    Ok(length)
}

/// The bytes of a frame, in that version of the protocol. Fails if the receiver would reject its size.
pub fn encode(message: &impl Serialize, fds: usize, version: u8) -> Result<Vec<u8>, IoError> {
    let mut frame = vec![0u8; HEADER];
    serde_json::to_writer(Bounded(MAX_FRAME, |bytes: &[u8]| frame.extend_from_slice(bytes)), message)?;
    let length = u32::try_from(frame.len() - HEADER).map_err(|_| IoError::from(ErrorKind::InvalidInput))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4] = fds as u8;
    frame[5] = version;
    Ok(frame)
}

/// Received bytes and descriptors, split into frames.
#[derive(Debug)]
pub struct Frames {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// The version of the last frame: what the peer speaks. Initially the oldest.
    pub version: u8,
    /// Remaining bytes of a skipped frame.
    pub left_out: usize,
}

/// A frame, or the beginning and length of an oversized one.
#[derive(Debug)]
pub enum Frame<T> {
    Whole(T, Vec<OwnedFd>),
    TooLong(Vec<u8>, usize),
}

/// How many bytes of an oversized frame are inspected.
const BEGINNING: usize = 64;

impl Default for Frames {
    fn default() -> Frames {
        Frames { bytes: Vec::new(), fds: Vec::new(), version: OLDEST, left_out: 0 }
    }
}

impl Frames {
    /// The next frame of an authenticated peer. The rest of an oversized one is skipped.
    pub fn take_known<T: DeserializeOwned>(&mut self) -> Result<Option<Frame<T>>, IoError> {
        let gone = self.left_out.min(self.bytes.len());
        self.bytes.drain(..gone);
        self.left_out -= gone;
        let Some(header) = self.bytes.first_chunk::<HEADER>().copied() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if length <= MAX_FRAME || !(OLDEST..=VERSION).contains(&header[5]) {
            return Ok(self.take()?.map(|(value, fds)| Frame::Whole(value, fds)));
        }
        let Some(beginning) = self.bytes.get(HEADER..HEADER + BEGINNING) else { return Ok(None) };
        let beginning = beginning.to_vec();
        self.fds.drain(..self.fds.len().min(header[4] as usize));
        self.left_out = HEADER + length;
        Ok(Some(Frame::TooLong(beginning, length)))
    }

    /// The next complete frame with its descriptors, if any.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<OwnedFd>)>, IoError> {
        let bad = |why: String| IoError::new(ErrorKind::InvalidData, why);
        let Some(header) = self.bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let (count, version) = (header[4] as usize, header[5]);
        if !(OLDEST..=VERSION).contains(&version) || length > MAX_FRAME {
            let spoken = format!("versions {OLDEST} to {VERSION} are spoken here");
            return Err(bad(format!("a frame of protocol version {version} and {length} bytes: {spoken}")));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        if self.fds.len() < count {
            return Err(bad(format!("{} of {count} descriptors came", self.fds.len())));
        }
        self.version = version;
        let value = serde_json::from_slice(&self.bytes[HEADER..HEADER + length])?;
        self.bytes.drain(..HEADER + length);
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
        Ok(Some((value, self.fds.drain(..count).collect())))
    }
}

#[cfg(test)]
mod tests;
