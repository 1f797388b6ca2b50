//! `subPath`, safe against concurrent changes by containers: the kernel resolves it below the volume, and it is bound by that
//! descriptor.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use podwright_runtime::sys::{Kernel, beneath::open_or_make, shared};
use rustix::fs::{FileType, fstat};

/// Bind-mounts `sub` below `volume` onto `target`, which is created as folder or file to match. Creates missing folders of `sub`.
///
/// # Errors
///
/// It leads out of the volume, or cannot be created or mounted.
pub fn bind(kernel: &Kernel, volume: &Path, sub: &str, target: &Path) -> io::Result<()> {
    let held = open_or_make(volume, Path::new(sub))?;
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    kernel.unmount_all(target)?;
    make_target(&held, target)?;
    Ok(kernel.bind_held(held.as_fd(), &volume.join(sub), target)?)
}

fn make_target(held: &OwnedFd, target: &Path) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(held)?.st_mode).is_dir() {
        return std::fs::create_dir_all(target);
    }
    match shared::create(target, 0o640) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}
