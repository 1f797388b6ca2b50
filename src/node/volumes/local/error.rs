//! Why a volume of the built-in provisioner is not made, not removed, or not held to its size.

use std::{io, path::PathBuf};

use podwright_api::persistent_volume::local::PROVISIONER;
use podwright_runtime::sys::SysError;

use super::Identity;

pub type Result<T> = std::result::Result<T, LocalError>;

#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Its removal has begun: no Pod that was on its way to it makes it again.
    #[error("the volume has been deleted")]
    Deleted,
    /// The uid of the Pod.
    #[error("it is in use by Pod {0}")]
    InUse(String),
    /// Where something is mounted in it.
    #[error("{0} is mounted in it")]
    MountedIn(PathBuf),
    #[error("path \"{0}\" does not exist")]
    NoSuchPath(PathBuf),
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    #[error("{0:?} is no name of a volume of {PROVISIONER}")]
    NotAName(String),
    /// Nothing that can be read says whose the folder is.
    #[error("{path} is not of this node's making: {why}")]
    Foreign { path: PathBuf, why: String },
    #[error("{path} is the data of the volume {} with the uid {}, not {uid}", known.name, known.uid)]
    Anothers { path: PathBuf, known: Identity, uid: String },
    /// Its file system counts no projects, or does not limit them.
    #[error("{0}")]
    NotEnforced(String),
    #[error("{0}: it was given to no project")]
    NoProject(PathBuf),
    #[error(transparent)]
    Limit(#[from] SysError),
    /// A file or folder of which `call` says what was to be done with it.
    #[error("{call} {path}: {source}")]
    Call { call: &'static str, path: PathBuf, source: io::Error },
    /// The folder is removed, its object is not yet let go of.
    #[error("the data is gone, the object is not: {0}")]
    ObjectStays(String),
    #[error("{0}")]
    Panicked(String),
    /// A removal went on past these errors.
    #[error("{}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Several(Vec<LocalError>),
}

/// Words an error of the operating system by the file that it is about, and by what was to be done with that.
pub fn call(call: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LocalError {
    let path = path.into();
    move |source| LocalError::Call { call, path, source }
}
