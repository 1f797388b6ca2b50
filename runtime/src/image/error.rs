//! Errors of images, distinguished as far as an agent needs (wait reasons, retries).

use std::path::Path;

/// An image error. `Clone`, because all waiters of one pull get the same one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The name does not parse: Kubernetes' `InvalidImageName`.
    #[error("couldn't parse image name {name:?}: {reason}")]
    InvalidName { name: String, reason: String },
    /// The registry (or this store, for names that are never pulled) does not have it.
    #[error("{0}")]
    NotFound(String),
    /// The registry requires credentials, or rejected the given ones.
    #[error("{0}")]
    Unauthorized(String),
    /// The registry is unreachable or fails; retry later.
    #[error("{0}")]
    Network(String),
    /// The content does not match its digest; never stored.
    #[error("{what}: unexpected digest {actual}, expected {expected}")]
    DigestMismatch { what: String, expected: String, actual: String },
    /// No space (or quota) left in the store.
    #[error("{0}")]
    DiskFull(String),
    /// Not supported by this store: no manifest for this platform, an unknown media type.
    #[error("{0}")]
    Unsupported(String),
    /// A damaged or hostile archive, manifest or layer.
    #[error("{0}")]
    Invalid(String),
    /// Another process has locked the store.
    #[error("image store {0} is in use by another process")]
    Locked(String),
    /// Any other failed local operation, naming operation, path and errno.
    #[error("{0}")]
    Local(String),
}

impl ImageError {
    /// A failed local operation: `<op> <path>: <error>`; a full disk is distinguished.
    pub(super) fn io(op: &str, path: &Path, error: impl Into<std::io::Error>) -> ImageError {
        let error = error.into();
        // Our own readers pass typed errors through `io::Error`.
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

    /// Prefixes the message with `<context>: ` and keeps the kind.
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
