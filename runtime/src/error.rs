//! What can go wrong, told so that a caller can act on it.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such sandbox, container or exec session. Removing and stopping never give it.
    #[error("{0} not found")]
    NotFound(String),
    /// It exists already, with another spec or in another state than the call needs.
    #[error("{0}")]
    Conflict(String),
    /// The spec asks for something impossible or not supported; nothing was made.
    #[error("invalid spec: {0}")]
    Invalid(String),
    /// The container's process could not be executed: the message is what containerd would report as `StartError`.
    #[error("{message}")]
    Start { kind: StartFailure, message: String },
    /// A call to the kernel failed while making or removing something.
    #[error("{0}")]
    Kernel(String),
    /// The sandbox's shim is gone; its containers were killed.
    #[error("the shim of sandbox {0} is gone")]
    ShimGone(String),
    /// The shim lives, but agent and shim have no version of their protocol in common. Nothing of the sandbox was touched.
    #[error(
        "the shim of sandbox {0} speaks no version of the protocol from {old} to {new}: a podwright that is too old, or too new, has \
         started it. It runs on, untouched. Start that podwright again, or one of a release between (each drives the shims of the \
         one before); or end its Pods with `podwright reset`",
        old = crate::protocol::OLDEST,
        new = crate::protocol::VERSION
    )]
    Protocol(String),
    #[error("{0} did not end within {1:?}")]
    Timeout(String, std::time::Duration),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    /// A teardown went on past these errors.
    #[error("{}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

/// Why a process could not be started, and so with which exit code shells and runtimes report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
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
    /// (containerd reports 128 for all of them, as [`ContainerStatus::exit_code`](crate::ContainerStatus) does.)
    pub fn exit_code(self) -> i32 {
        match self {
            StartFailure::NotFoundInPath | StartFailure::NoSuchFile => 127,
            StartFailure::PermissionDenied | StartFailure::ExecFailed => 126,
            StartFailure::Setup => 128,
        }
    }
}
