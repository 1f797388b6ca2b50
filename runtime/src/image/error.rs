//! What can go wrong with an image, told apart as far as an agent must (wait reasons, retries).

use std::path::Path;

/// An image error. `Clone`, because everyone who waits for one pull gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The name does not parse: Kubernetes' `InvalidImageName`.
    #[error("couldn't parse image name {name:?}: {reason}")]
    InvalidName { name: String, reason: String },
    /// The registry (or, for names that are never pulled, this store) does not have it.
    #[error("{0}")]
    NotFound(String),
    /// The registry wants credentials, or refused those it got.
    #[error("{0}")]
    Unauthorized(String),
    /// The registry cannot be reached or fails; worth another try later.
    #[error("{0}")]
    Network(String),
    /// Bytes that are not what their digest says; never stored.
    #[error("{what}: unexpected digest {actual}, expected {expected}")]
    DigestMismatch { what: String, expected: String, actual: String },
    /// No space (or quota) left below the store.
    #[error("{0}")]
    DiskFull(String),
    /// Something this store cannot use: no manifest for this platform, an unknown media type.
    #[error("{0}")]
    Unsupported(String),
    /// A damaged or hostile archive, manifest or layer.
    #[error("{0}")]
    Invalid(String),
    /// Another process owns the store.
    #[error("image store {0} is in use by another process")]
    Locked(String),
    /// Any other failure of a local operation, naming operation, path and errno.
    #[error("{0}")]
    Local(String),
}

impl ImageError {
    /// A failed local operation: `<op> <path>: <error>`; a full disk is told apart.
    pub(super) fn io(op: &str, path: &Path, error: impl Into<std::io::Error>) -> ImageError {
        let error = error.into();
        // Readers of ours smuggle typed errors through `io::Error`.
        if let Some(inner) = error.get_ref().and_then(|e| e.downcast_ref::<ImageError>()) {
            return inner.clone();
        }
        let text = format!("{op} {}: {error}", path.display());
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ImageError::DiskFull(text),
            std::io::ErrorKind::PermissionDenied => {
                ImageError::Local(format!("{text} (unpacking images needs root: CAP_CHOWN, CAP_MKNOD, CAP_SYS_ADMIN)"))
            }
            _ => ImageError::Local(text),
        }
    }

    /// Puts `<context>: ` before the message and keeps the kind.
    pub fn context(self, context: impl std::fmt::Display) -> ImageError {
        use ImageError::*;
        match self {
            NotFound(m) => NotFound(format!("{context}: {m}")),
            Unauthorized(m) => Unauthorized(format!("{context}: {m}")),
            Network(m) => Network(format!("{context}: {m}")),
            DigestMismatch { what, expected, actual } => {
                DigestMismatch { what: format!("{context}: {what}"), expected, actual }
            }
            DiskFull(m) => DiskFull(format!("{context}: {m}")),
            Unsupported(m) => Unsupported(format!("{context}: {m}")),
            Invalid(m) => Invalid(format!("{context}: {m}")),
            Local(m) => Local(format!("{context}: {m}")),
            other @ (InvalidName { .. } | Locked(_)) => other,
        }
    }
}

impl From<ImageError> for std::io::Error {
    fn from(error: ImageError) -> std::io::Error {
        std::io::Error::other(error)
    }
}
