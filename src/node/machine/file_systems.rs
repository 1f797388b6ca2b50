//! Free space of the file systems that hold Pods' data and images.

use std::path::Path;

use super::Machine;
use crate::storage::{Disks, Space};

/// The file systems of Pods and of images.
pub fn disks(machine: &Machine) -> Disks {
    disks_of(machine.volumes.root(), machine.images.root())
}

/// The file systems of these folders: for Pods, and for images.
pub fn disks_of(pods: &Path, images: &Path) -> Disks {
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).ok();
    Disks { nodefs: space(pods), imagefs: space(images), shared: device(pods) == device(images) }
}

pub fn space(path: &Path) -> Option<Space> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(Space {
        bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        bytes_free: stat.f_bavail.saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_favail,
    })
}
