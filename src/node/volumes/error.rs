//! Errors of Pods' volumes, in a form that callers can act on.
//!
//! ```text
//!   MountError     a volume is not set up: becomes the event of its Pod, in upstream's words
//!   ClaimError       its claim provides none
//!   VolumeError      a failure of it, or of a Pod's folder
//!     LocalError       of the built-in provisioner
//! ```

use std::{io, path::PathBuf};

use podwright_api::{Status, persistent_volume::NotOwner};
use podwright_runtime::sys::SysError;

use super::{DEEPEST, local::LocalError};
use crate::{
    executor::{ActionError, Reason},
    objects::ObjectError,
    translate::env::FieldError,
};

/// The default error of volume operations.
pub type Result<T, E = VolumeError> = std::result::Result<T, E>;

/// A failure of a volume, or of a Pod's folder.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("this kind of volume is not supported by this node")]
    NotSupported,
    /// A required API object: `configmap` or `secret`, and its name.
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    /// `kind`: the object's kind, as in upstream's message.
    #[error("references non-existent {kind} key: {key}")]
    NoSuchKey { kind: &'static str, key: String },
    #[error("a path of {0} elements, more than {DEEPEST}")]
    TooDeep(usize),
    #[error("the Pod's volumes show more than {0} bytes of API objects")]
    TooLarge(usize),
    /// The namespace would exceed its share of the node's memory.
    #[error("the volumes of namespace {namespace} would have {bytes} bytes of this node's memory, and may have {most}")]
    OverShare { namespace: String, bytes: usize, most: usize },
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("failed to fetch token: {0}")]
    Token(#[source] Status),
    #[error("failed to fetch token: the server gave no token")]
    NoToken,
    /// The host path is not of the required type: `a directory`, `a socket file`, ...
    #[error("hostPath type check failed: {path} is not {wanted}")]
    HostPathType { path: PathBuf, wanted: &'static str },
    #[error("{0} is an invalid volume type")]
    UnknownHostPathType(String),
    #[error("path \"{0}\" does not exist")]
    NoSuchPath(PathBuf),
    #[error("{0} is not a block device")]
    NotABlockDevice(PathBuf),
    #[error("{0} is not a directory; this node makes no file systems on devices")]
    NotADirectory(PathBuf),
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    TakenByAnother,
    /// Mounts below a Pod's folder must not be deleted.
    #[error("{0}: something is still mounted there")]
    StillMounted(PathBuf),
    /// Of the built-in provisioner.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// A file operation; `call` says which.
    #[error("{call} {path}: {source}")]
    Call { call: &'static str, path: PathBuf, source: io::Error },
    /// A failed mount.
    #[error(transparent)]
    Mount(#[from] SysError),
    /// Work on a blocking thread panicked.
    #[error("{0}")]
    Panicked(String),
    /// A teardown that continued past these errors.
    #[error("{}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Several(Vec<VolumeError>),
}

/// Why a claim does not provide a volume, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("it names no claim")]
    Unnamed,
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    NotOwner(#[from] NotOwner),
    /// `namespace/name`, as in the next two. A claim being deleted gets no new users.
    #[error("error processing PVC {0}: PVC is being deleted")]
    BeingDeleted(String),
    #[error("error processing PVC {0}: PVC is not bound")]
    NotBound(String),
    #[error("error processing PVC {0}: PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName(String),
    #[error("found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim")]
    Unclaimed(String),
    #[error("found PV object {volume} but its pv.Spec.ClaimRef.UID {theirs} does not point to claim.UID {ours}")]
    AnothersVolume { volume: String, theirs: String, ours: String },
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    BlockAsFolder(String),
    #[error("volume {0} has volumeMode Filesystem, but is specified in volumeDevices")]
    FolderAsBlock(String),
    /// The field of its source: `nfs`, `csi`, ...
    #[error("this node does not mount volumes of the kind {0}")]
    NotSupported(String),
    #[error("{0}")]
    Panicked(String),
}

/// Why a volume of a Pod is not set up.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Failed before mounting: upstream's `WaitForAttachAndMount`. `volume`: its name in the Pod.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {why}"
    )]
    Unprocessed { volume: String, why: ClaimError },
    /// The PersistentVolume of that name is not accessible from this node.
    #[error("MountVolume.NodeAffinity check failed for volume {volume:?} : no matching NodeSelectorTerms")]
    NodeAffinity { volume: String },
    /// `stage`: upstream's operation. `volume`: its name in the Pod, or that of the claim's PersistentVolume.
    #[error("{stage} failed for volume {volume:?} : {why}")]
    Failed { stage: &'static str, volume: String, block: bool, why: VolumeError },
}

impl MountError {
    /// The folder or the files of a volume cannot be created.
    pub fn set_up(volume: &str, why: VolumeError) -> MountError {
        MountError::Failed { stage: "MountVolume.SetUp", volume: volume.to_owned(), block: false, why }
    }

    /// A claim provides no volume.
    pub fn unprocessed(volume: &str, why: impl Into<ClaimError>) -> MountError {
        MountError::Unprocessed { volume: volume.to_owned(), why: why.into() }
    }

    fn reason(&self) -> Reason {
        match self {
            MountError::Failed { block: true, .. } => Reason::FailedMapVolume,
            _ => Reason::FailedMount,
        }
    }
}

impl From<MountError> for ActionError {
    fn from(error: MountError) -> ActionError {
        ActionError::new(error.reason(), error)
    }
}

/// Wraps an OS error with the file.
pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.into();
    move |source| VolumeError::File { path, source }
}

/// Wraps an OS error with the file and the operation.
pub fn call(call: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.into();
    move |source| VolumeError::Call { call, path, source }
}

/// All errors of a teardown.
pub fn all(mut errors: Vec<VolumeError>) -> Result<()> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(VolumeError::Several(errors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_failed_with_which_volume_in_upstreams_words() {
        let missing = VolumeError::NotFound { kind: "configmap", name: "m".into() };
        let told = ActionError::from(MountError::set_up("v", missing));
        assert_eq!(
            told.to_string(),
            "FailedMount: MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found"
        );
        let why = VolumeError::NoSuchPath("/dev/x".into());
        let stage = "MapVolume.MapBlockVolume";
        let device = MountError::Failed { stage, volume: "pv".into(), block: true, why };
        assert_eq!(ActionError::from(device).reason, Reason::FailedMapVolume);
        let unbound = MountError::unprocessed("v", ClaimError::NotBound("default/c".into()));
        assert!(
            unbound
                .to_string()
                .ends_with("failed to process volumes=[v]: error processing PVC default/c: PVC is not bound")
        );
    }

    #[test]
    fn errors_of_a_teardown_are_told_in_one_line() {
        let still = |path: &str| VolumeError::StillMounted(path.into());
        assert!(all(Vec::new()).is_ok());
        assert!(matches!(all(vec![still("/a")]), Err(VolumeError::StillMounted(_))));
        let both = all(vec![still("/a"), still("/b")]).unwrap_err();
        assert_eq!(both.to_string(), "/a: something is still mounted there; /b: something is still mounted there");
    }
}
