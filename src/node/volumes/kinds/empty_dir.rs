//! emptyDirs: folders of the node's disk, or in memory.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use podwright_runtime::{
    projects,
    sys::{Kernel, mount::Holds},
};

use super::{
    super::{
        error::{Result, file},
        fs_group,
    },
    Location, Measured, Order, Row, SetUp, never, no_objects,
};
use crate::{mounts, qos, spec::PodExt};

pub const ROW: Row = Row {
    field: "emptyDir",
    is: |volume| volume.empty_dir.is_some(),
    location: Location::PodFolder,
    set_up: SetUp::Once(set_up),
    measured,
    refers_to: no_objects,
    shows_pod: never,
    read_only: never,
    scratch: true,
    unsupported: &[],
};

fn medium(source: &EmptyDirVolumeSource) -> &str {
    source.medium.as_deref().unwrap_or_default()
}

fn in_memory(source: &EmptyDirVolumeSource) -> bool {
    medium(source) == "Memory"
}

fn measured(volume: &Volume) -> Measured {
    match volume.empty_dir.as_ref().map(medium) {
        Some("") => Measured::Disk,
        Some("Memory") => Measured::FileSystem,
        _ => Measured::Nothing,
    }
}

fn set_up(order: &Order) -> Result<()> {
    let Some(source) = &order.volume.empty_dir else { return Ok(()) };
    let ours = !mounts::is_mount(&order.path);
    let made = empty_dir(&order.kernel, &order.path, source, &order.pod, fs_group(&order.pod));
    let hold = || if in_memory(source) { order.held.mount(&order.kernel, &order.path, ours) } else { Ok(()) };
    let kept = made.and_then(|()| hold());
    kept.map_err(file(&order.path))
}

/// How a volume of so many bytes is mounted: with as many inodes as take as much of the kernel, and some for a small one.
fn memory_of(bytes: i64) -> String {
    const INODE: i64 = 1024;
    let inodes = (bytes / INODE).max(1024);
    format!("mode=0777,size={bytes},nr_inodes={inodes}")
}

/// Makes one, with nothing in it, unless it is there.
fn empty_dir(
    kernel: &Kernel,
    path: &Path,
    source: &EmptyDirVolumeSource,
    pod: &Pod,
    fs_group: Option<u32>,
) -> io::Result<()> {
    let fresh = !path.exists();
    fs::create_dir_all(path)?;
    let medium = medium(source);
    if in_memory(source) && !mounts::is_mount(path) {
        let limit = source.size_limit.as_ref().map(qos::units).filter(|l| *l > 0);
        let limit = limit.into_iter().chain(qos::pod_limit(pod, "memory").map(|m| m / 1000)).min();
        let size = limit.map_or_else(|| "mode=0777".to_owned(), memory_of);
        kernel.mount_tmpfs("tmpfs", path, Holds::Anything, &size)?;
    } else if !medium.is_empty() && !in_memory(source) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, format!("unknown storage medium \"{medium}\"")));
    } else if !fresh {
        return Ok(());
    } else if medium.is_empty() && pod.has_own_users() {
        // Before anything is in it.
        projects::give(kernel, &[path], None).map_err(io::Error::other)?;
    }
    let mut mode = 0o777;
    if let Some(group) = fs_group {
        chown(path, None, Some(group))?;
        mode |= 0o2000;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
