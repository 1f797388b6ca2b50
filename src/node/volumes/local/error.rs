//! Errors of the built-in provisioner's volumes.

use std::{io, path::PathBuf};

use podwright_api::persistent_volume::local::PROVISIONER;
use podwright_runtime::sys::SysError;

use super::Identity;

pub type Result<T> = std::result::Result<T, LocalError>;

#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Its removal has begun: no pending Pod may recreate it.
    #[error("the volume has been deleted")]
    Deleted,
    /// In use by the Pod with this uid.
    #[error("it is in use by Pod {0}")]
    InUse(String),
    /// The path of a mount inside it.
    #[error("{0} is mounted in it")]
    MountedIn(PathBuf),
    #[error("path \"{0}\" does not exist")]
    NoSuchPath(PathBuf),
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    #[error("{0:?} is no name of a volume of {PROVISIONER}")]
    NotAName(String),
    /// No readable record says which volume the folder is.
    #[error("{path} is not of this node's making: {why}")]
    Foreign { path: PathBuf, why: String },
    #[error("{path} is the data of the volume {} with the uid {}, not {uid}", known.name, known.uid)]
    Anothers { path: PathBuf, known: Identity, uid: String },
    /// Its file system has no project quotas, or does not enforce them.
    #[error("{0}")]
    NotEnforced(String),
    #[error("{0}: it was given to no project")]
    NoProject(PathBuf),
    #[error(transparent)]
    Limit(#[from] SysError),
    /// A file operation; `call` says which.
    #[error("{call} {path}: {source}")]
    Call { call: &'static str, path: PathBuf, source: io::Error },
    /// The folder is removed, but its object's finalizer is not yet.
    #[error("the data is gone, the object is not: {0}")]
    ObjectStays(String),
    #[error("{0}")]
    Panicked(String),
    /// A removal that continued past these errors.
    #[error("{}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Several(Vec<LocalError>),
}

/// Wraps an OS error with the file and the operation.
pub fn call(call: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LocalError {
    let path = path.into();
    move |source| LocalError::Call { call, path, source }
}
