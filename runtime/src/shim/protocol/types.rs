//! Types shared by the agent and its shims.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Time limit for a process's birth, and then for its execution: kubelet's `runtimeRequestTimeout`.
pub const BIRTH: Duration = Duration::from_secs(120);

/// The PID namespaces of a sandbox's containers, unless their OCI spec overrides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PidMode {
    /// One per container.
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
    /// Number of files kept, including the current one.
    pub max_files: u32,
}

impl LogSpec {
    /// kubelet's defaults: 10 MiB, 5 files.
    pub fn new(path: impl Into<PathBuf>) -> LogSpec {
        LogSpec { path: path.into(), max_bytes: 10 << 20, max_files: 5 }
    }
}

/// A container's exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// 0..=255; 128 + signal after a signal; 128 if it could not be started; 137 if the exit was not observed.
    pub code: i32,
    /// The terminating signal, or 0.
    pub signal: i32,
    pub reason: ExitReason,
    /// The reason in words; for `StartError` containerd's message.
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
    /// Its shim died, or the machine was rebooted.
    ContainerStatusUnknown,
}

impl ExitReason {
    /// Upstream's reason, as in `state.terminated.reason`.
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

/// Why a process could not be started, which determines the exit code that shells and runtimes report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartFailure {
    /// `exec: "x": executable file not found in $PATH`
    NotFoundInPath,
    /// `exec: "/x": stat /x: no such file or directory`
    NoSuchFile,
    /// `exec: "/x": permission denied`
    PermissionDenied,
    /// Not an executable format, or another error of execve.
    ExecFailed,
    /// The container's rootfs, mounts, ids or limits could not be set up.
    Setup,
}

impl StartFailure {
    /// 127 not found, 126 not executable, 128 earlier failures: as in runc and shells. (containerd reports 128 for all of them, and
    /// so does a container's status.)
    pub fn exit_code(self) -> i32 {
        match self {
            StartFailure::NotFoundInPath | StartFailure::NoSuchFile => 127,
            StartFailure::PermissionDenied | StartFailure::ExecFailed => 126,
            StartFailure::Setup => 128,
        }
    }
}
