//! Errors of the machine, in a form that callers can act on.

use std::{io, path::PathBuf, time::Duration};

use podwright_runtime::{Error as RuntimeError, image::ImageError};

use crate::{executor::ExecutorError, volumes::error::VolumeError};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Network(#[from] podwright_net::Error),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Volumes(#[from] VolumeError),
    /// The data stored with a sandbox or a container cannot be parsed or encoded.
    #[error(transparent)]
    Record(#[from] serde_json::Error),
    /// The Pod's journal cannot be removed.
    #[error(transparent)]
    Journal(io::Error),
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// A file operation; `call` says which.
    #[error("{call} {path}: {source}")]
    Call { call: &'static str, path: PathBuf, source: io::Error },
    /// The name of the Pod's log folder is too long for any file system: upstream's words.
    #[error("mkdir {0}: file name too long")]
    NameTooLong(PathBuf),
    #[error("project quota: {0}")]
    ProjectQuota(#[source] io::Error),
    #[error("sandbox {0} is gone")]
    SandboxGone(String),
    /// A sandbox of the Pod that cannot be used any more.
    #[error("sandbox {id} of the Pod still runs, and cannot be taken over: {why}. Delete the Pod to end it")]
    SandboxLost { id: String, why: String },
    /// The sandbox was created without the user namespace that the Pod requests, by an agent that did not support it.
    #[error("the Pod's sandbox has no user namespace of its own: delete the Pod")]
    NoUserNamespace,
    /// A Pod that has ended did not release its ids.
    #[error("it keeps the ids of its users: not all of it is gone")]
    UsersKept,
    /// A memory limit would fall below current usage.
    #[error("{0}")]
    MemoryInUse(String),
    #[error("command timed out after {0:?}")]
    TimedOut(Duration),
    /// Work on a blocking thread panicked.
    #[error("{0}")]
    Panicked(String),
    /// A teardown that continued past these errors.
    #[error("{}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

impl From<Error> for ExecutorError {
    fn from(error: Error) -> ExecutorError {
        match error {
            Error::TimedOut(limit) => ExecutorError::TimedOut(limit),
            Error::MemoryInUse(why) => ExecutorError::MemoryInUse(why),
            other => ExecutorError::Failed(Box::new(other)),
        }
    }
}

/// Wraps an OS error with the file and the operation.
pub fn call(call: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
    let path = path.into();
    move |source| Error::Call { call, path, source }
}

/// All errors of a teardown.
pub fn all(results: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut errors: Vec<Error> = results.into_iter().filter_map(|result| result.err()).collect();
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(Error::Several(errors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_teardown_are_told_in_one_line() {
        let gone = |what: &str| Err(Error::SandboxGone(what.to_owned()));
        assert!(all([Ok(()), Ok(())]).is_ok());
        assert!(matches!(all([Ok(()), gone("a")]), Err(Error::SandboxGone(_))));
        let both = all([gone("a"), all([gone("b"), Ok(()), gone("c")])]).unwrap_err();
        assert_eq!(both.to_string(), "sandbox a is gone; sandbox b is gone; sandbox c is gone");
    }

    #[test]
    fn what_a_worker_can_act_on_stays_told_apart() {
        let late = ExecutorError::from(Error::TimedOut(Duration::from_secs(2)));
        assert!(matches!(late, ExecutorError::TimedOut(_)));
        assert_eq!(late.to_string(), "command timed out after 2s");
        assert!(matches!(ExecutorError::from(Error::MemoryInUse(String::new())), ExecutorError::MemoryInUse(_)));
        let denied = call("rename", "/a")(io::ErrorKind::PermissionDenied.into());
        assert_eq!(ExecutorError::from(denied).to_string(), "rename /a: permission denied");
    }
}
