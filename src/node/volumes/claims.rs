//! Claims: locates the PersistentVolume of a Pod's claim on this node, and checks whether the Pod may use it.
//!
//! Upstream: `getPVCExtractPV`, `getPVSpec` and `createVolumeSpec` of the kubelet's volume manager, and its plugins `local` and
//! `host_path`. The path of a built-in provisioner's volume follows from its name, not its manifest.

use std::{os::unix::fs::FileTypeExt, path::PathBuf};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Volume};

use super::{
    error::{ClaimError, MountError, VolumeError, call},
    kinds::host_path,
    local::{Identity, capacity},
};
use crate::spec::PodExt;
use podwright_api::persistent_volume::{Used, claim_phase, claim_ref, is_own, is_reachable, uid, volume_name};

/// A volume on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundVolume {
    /// The PersistentVolume's name.
    pub volume: String,
    pub path: PathBuf,
    pub kind: Kind,
    /// A device for the containers, not a folder.
    pub block: bool,
    /// Only one Pod may use it.
    pub alone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With the required type of `path`.
    HostPath(String),
    Local,
    /// Of the built-in provisioner, with its size limit.
    Provisioned(Identity, Option<u64>),
}

/// The name of the PersistentVolume that a claim is bound to.
///
/// # Errors
///
/// The Pod must wait: the claim is unbound, belongs to another Pod, or is being deleted.
pub fn bound<'c>(pod: &Pod, used: &Used, claim: &'c PersistentVolumeClaim) -> Result<&'c str, ClaimError> {
    let name = || format!("{}/{}", pod.namespace(), used.name);
    if used.ephemeral {
        is_own(pod, claim)?;
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(ClaimError::BeingDeleted(name()));
    }
    if claim_phase(claim) != "Bound" {
        return Err(ClaimError::NotBound(name()));
    }
    volume_name(claim).ok_or_else(|| ClaimError::NoVolumeName(name()))
}

/// Whether any container uses a Pod's volume as a folder, and whether any uses it as a device.
fn wanted(pod: &Pod, name: &str) -> (bool, bool) {
    let parts = pod.parts();
    let mut mounts = parts.iter().flat_map(|part| part.container.volume_mounts.iter().flatten());
    let mut devices = parts.iter().flat_map(|part| part.container.volume_devices.iter().flatten());
    (mounts.any(|mount| mount.name == name), devices.any(|device| device.name == name))
}

/// The volume of a claim on this node, from its manifest; nothing on the machine has been checked yet.
///
/// # Errors
///
/// The PersistentVolume does not belong to the claim, has the wrong mode for the Pod's containers, is out of this node's reach, or
/// of an unsupported type.
pub fn place(
    pod: &Pod,
    volume: &Volume,
    claim: &PersistentVolumeClaim,
    found: &PersistentVolume,
    node: Option<&Node>,
) -> Result<BoundVolume, MountError> {
    let name = found.metadata.name.clone().unwrap_or_default();
    let refused = |why: ClaimError| Err(MountError::unprocessed(&volume.name, why));
    let Some(to) = claim_ref(found).filter(|to| uid(to).is_some()) else {
        return refused(ClaimError::Unclaimed(name));
    };
    let (theirs, ours) = (uid(to).unwrap_or_default(), claim.metadata.uid.as_deref().unwrap_or_default());
    if theirs != ours {
        return refused(ClaimError::AnothersVolume { volume: name, theirs: theirs.into(), ours: ours.into() });
    }
    let spec = found.spec.clone().unwrap_or_default();
    let block = spec.volume_mode.as_deref() == Some("Block");
    match (block, wanted(pod, &volume.name)) {
        (true, (true, _)) => return refused(ClaimError::BlockAsFolder(volume.name.clone())),
        (false, (_, true)) => return refused(ClaimError::FolderAsBlock(volume.name.clone())),
        _ => {}
    }
    let labels = node.and_then(|node| node.metadata.labels.as_ref());
    let node_name = node.and_then(|node| node.metadata.name.as_deref()).unwrap_or_default();
    if !is_reachable(found, node_name, |key| labels?.get(key).map(String::as_str)) {
        return Err(MountError::NodeAffinity { volume: name });
    }
    let (path, kind) = match (spec.host_path, spec.local, Identity::of(found)) {
        (Some(host), ..) => (host.path, Kind::HostPath(host.type_.unwrap_or_default())),
        (None, Some(local), Some(identity)) => (local.path, Kind::Provisioned(identity, capacity(found))),
        (None, Some(local), None) => (local.path, Kind::Local),
        (None, None, _) => return refused(ClaimError::NotSupported(source(found))),
    };
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let alone = modes.iter().any(|mode| mode == "ReadWriteOncePod");
    Ok(BoundVolume { volume: name, path: PathBuf::from(path), kind, block, alone })
}

/// The field of a volume's source: `nfs`, `csi`, ...
fn source(volume: &PersistentVolume) -> String {
    const OTHERS: [&str; 8] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeMode",
    ];
    let spec = serde_json::to_value(&volume.spec).unwrap_or_default();
    let fields = spec.as_object().into_iter().flatten();
    let mut kinds = fields.filter(|(name, value)| !OTHERS.contains(&name.as_str()) && value.is_object());
    kinds.next().map_or_else(|| "none".to_owned(), |(name, _)| name.clone())
}

impl BoundVolume {
    /// Checks that the path can be mounted.
    ///
    /// # Errors
    ///
    /// It does not exist, or is of another type.
    pub fn check(&self) -> Result<(), MountError> {
        if let Kind::HostPath(kind) = &self.kind {
            host_path::check(&self.path, kind).map_err(|why| self.failed("MountVolume.SetUp", why))?;
        }
        // Without a required type a host folder need not exist: it is created, as container runtimes do.
        let found = std::fs::metadata(&self.path);
        if self.kind == Kind::HostPath(String::new()) && !self.block && found.is_err() {
            let made = std::fs::create_dir_all(&self.path);
            return made.map_err(|e| self.failed("MountVolume.SetUp", call("mkdir", &self.path)(e)));
        }
        let Ok(found) = found else {
            let stage = if self.block { "MapVolume.MapBlockVolume" } else { "MountVolume.NewMounter initialization" };
            return Err(self.failed(stage, VolumeError::NoSuchPath(self.path.clone())));
        };
        let kind = found.file_type();
        match (self.block, &self.kind) {
            (true, _) if !kind.is_block_device() => {
                Err(self.failed("MapVolume.MapBlockVolume", VolumeError::NotABlockDevice(self.path.clone())))
            }
            (false, Kind::Local | Kind::Provisioned(..)) if !kind.is_dir() => {
                Err(self.failed("MountVolume.MountDevice", VolumeError::NotADirectory(self.path.clone())))
            }
            _ => Ok(()),
        }
    }

    /// The error in upstream's words for a failed volume.
    pub fn failed(&self, stage: &'static str, why: VolumeError) -> MountError {
        MountError::Failed { stage, volume: self.volume.clone(), block: self.block, why }
    }
}
