//! What the agent and its shims call by the same names.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How long a process may take to be born, and then to be executed: as kubelet's `runtimeRequestTimeout`.
pub const BIRTH: Duration = Duration::from_secs(120);

/// Which PID namespace the containers of a sandbox have, unless their OCI spec says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PidMode {
    /// One each.
    #[default]
    Container,
    /// One for the sandbox, with `pause` as PID 1.
    Sandbox,
    /// The host's.
    Host,
}

/// A container's log: `path`, and `path.1` (newest) .. `path.N` after rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSpec {
    pub path: PathBuf,
    /// Rotate when larger.
    pub max_bytes: u64,
    /// Keep so many files, the current one included.
    pub max_files: u32,
}

impl LogSpec {
    /// kubelet's defaults: 10 MiB, 5 files.
    pub fn new(path: impl Into<PathBuf>) -> LogSpec {
        LogSpec { path: path.into(), max_bytes: 10 << 20, max_files: 5 }
    }
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// 0..=255; 128 + signal after a signal; 128 if it could not be started; 137 if nobody saw how it ended.
    pub code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    pub reason: ExitReason,
    /// Why, in words; for `StartError` what containerd would say.
    pub message: String,
    pub finished: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExitReason {
    /// Exit code 0.
    Completed,
    Error,
    OOMKilled,
    StartError,
    /// Its shim died, or the machine was restarted.
    ContainerStatusUnknown,
}

impl ExitReason {
    /// Upstream's word, as in `state.terminated.reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            ExitReason::Completed => "Completed",
            ExitReason::Error => "Error",
            ExitReason::OOMKilled => "OOMKilled",
            ExitReason::StartError => "StartError",
            ExitReason::ContainerStatusUnknown => "ContainerStatusUnknown",
        }
    }
}

/// Why a process could not be started, and so with which exit code shells and runtimes report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartFailure {
    /// `exec: "x": executable file not found in $PATH`
    NotFoundInPath,
    /// `exec: "/x": stat /x: no such file or directory`
    NoSuchFile,
    /// `exec: "/x": permission denied`
    PermissionDenied,
    /// Not an executable format, or another refusal of execve.
    ExecFailed,
    /// The container's rootfs, mounts, ids or limits could not be set up.
    Setup,
}

impl StartFailure {
    /// 127 not found, 126 cannot be executed, 128 never got that far: as runc and shells count them.
    /// (containerd reports 128 for all of them, and so does the status of a container.)
    pub fn exit_code(self) -> i32 {
        match self {
            StartFailure::NotFoundInPath | StartFailure::NoSuchFile => 127,
            StartFailure::PermissionDenied | StartFailure::ExecFailed => 126,
            StartFailure::Setup => 128,
        }
    }
}
