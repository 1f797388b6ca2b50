//! emptyDirs: folders of the node's disk, or in memory.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{PermissionsExt, chown},
    },
    path::Path,
};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use podwright_runtime::{
    kept::{is_sole_mount, source_at},
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

/// The source of volumes in memory that agents up to 0.2.0 have mounted: it names none.
const UNNAMED: &str = "tmpfs";

fn medium(source: &EmptyDirVolumeSource) -> &str {
    source.medium.as_deref().unwrap_or_default()
}

fn in_memory(source: &EmptyDirVolumeSource) -> bool {
    medium(source) == "Memory"
}

/// Whether a volume is an emptyDir in memory: a mount of its own, of which the agent keeps a descriptor.
pub fn is_in_memory(volume: &Volume) -> bool {
    volume.empty_dir.as_ref().is_some_and(in_memory)
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
    let made = match medium(source) {
        "" => on_disk(&order.kernel, &order.path, &order.pod, fs_group(&order.pod)),
        "Memory" => memory(order, &options(source, &order.pod, fs_group(&order.pod))),
        medium => Err(io::Error::new(io::ErrorKind::Unsupported, format!("unknown storage medium \"{medium}\""))),
    };
    made.map_err(file(&order.path))
}

/// With nothing in it, unless it is there. Made whole under another name, which no volume has: an agent that was killed meanwhile has left nothing that is taken for one.
fn on_disk(kernel: &Kernel, path: &Path, pod: &Pod, fs_group: Option<u32>) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".new-{name}"));
    fs::create_dir_all(&new)?;
    if pod.has_own_users() {
        // Before it has any content.
        projects::give(kernel, &[&new], None).map_err(io::Error::other)?;
    }
    if let Some(group) = fs_group {
        chown(&new, None, Some(group))?;
    }
    fs::set_permissions(&new, fs::Permissions::from_mode(mode(fs_group)))?;
    fs::rename(&new, path)
}

/// A mount is there or not, never half of it.
fn memory(order: &Order, options: &str) -> io::Result<()> {
    let (kernel, path) = (&order.kernel, &order.path);
    fs::create_dir_all(path)?;
    let source = mounts::source_of_volume(order.pod.namespace(), order.pod.uid(), &order.volume.name);
    let mounted = match mounts::is_mount(path) {
        true => None,
        false => Some(kernel.mount_tmpfs(&source, path, Holds::Anything, options)?),
    };
    let is_own = || match source_at(path) {
        Some(found) if found == source => true,
        Some(found) => found == UNNAMED && is_sole_mount(path),
        None => false,
    };
    order.held.mount(kernel, path, mounted.as_ref().map(OwnedFd::as_fd), is_own)
}

fn mode(fs_group: Option<u32>) -> u32 {
    if fs_group.is_some() { 0o2777 } else { 0o777 }
}

/// Mount options of one in memory: its mode and group, its size, and a number of inodes with the same memory use, with a minimum
/// for small ones.
fn options(source: &EmptyDirVolumeSource, pod: &Pod, fs_group: Option<u32>) -> String {
    const INODE: i64 = 1024;
    let limit = source.size_limit.as_ref().map(qos::units).filter(|l| *l > 0);
    let limit = limit.into_iter().chain(qos::pod_limit(pod, "memory").map(|m| m / 1000)).min();
    let mut options = format!("mode={:04o}", mode(fs_group));
    options.extend(fs_group.map(|group| format!(",gid={group}")));
    options.extend(limit.map(|bytes| format!(",size={bytes},nr_inodes={}", (bytes / INODE).max(1024))));
    options
}
