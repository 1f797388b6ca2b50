//! Errors of the runtime, in a form that callers can act on.

use std::path::PathBuf;

use podwright_shim::protocol::StartFailure;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such sandbox, container or exec session. Never returned by remove and stop.
    #[error("{0} not found")]
    NotFound(String),
    /// It already exists with another spec, or is in another state than the call needs.
    #[error("{0}")]
    Conflict(String),
    /// The spec is invalid or not supported; nothing was created.
    #[error("invalid spec: {0}")]
    Invalid(String),
    /// The container's process could not be executed: the message is what containerd would report as `StartError`.
    #[error("{message}")]
    Start { kind: StartFailure, message: String },
    /// A system call failed while creating or removing something.
    #[error("{0}")]
    Kernel(String),
    /// The sandbox's shim is gone; its containers were killed.
    #[error("the shim of sandbox {0} is gone")]
    ShimGone(String),
    /// The shim is alive, but agent and shim share no protocol version. The sandbox was not touched.
    #[error(
        "the shim of sandbox {0} speaks no version of the protocol from {old} to {new}: a podwright that is too old, or too new, has \
         started it. It runs on, untouched. Start that podwright again, or one of a release between (each drives the shims of the \
         one before); or end its Pods with `podwright reset`",
        old = podwright_shim::protocol::OLDEST,
        new = podwright_shim::protocol::VERSION
    )]
    Protocol(String),
    #[error("{0} did not end within {1:?}")]
    Timeout(String, std::time::Duration),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    /// A teardown that continued past these errors.
    #[error("{}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

impl From<podwright_sys::SysError> for Error {
    fn from(e: podwright_sys::SysError) -> Error {
        Error::Kernel(e.to_string())
    }
}
