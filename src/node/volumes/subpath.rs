//! `subPath`, safe against symlinks that a container plants: resolved below the volume by the kernel, held by a descriptor.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, open, openat2};

use crate::node::mounts;

const FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Opens `sub` below `volume`, making folders that do not exist. It never leaves the volume.
pub fn open_beneath(volume: &Path, sub: &str) -> io::Result<OwnedFd> {
    let root = open(volume, FLAGS | OFlags::DIRECTORY, Mode::empty())?;
    let sub = Path::new(sub);
    if sub.is_absolute() || sub.components().any(|c| c == Component::ParentDir) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("subPath {} leaves its volume", sub.display()),
        ));
    }
    match openat2(&root, sub, FLAGS, Mode::empty(), BENEATH) {
        Err(rustix::io::Errno::NOENT) => make(&root, sub),
        other => Ok(other?),
    }
}

/// Makes the folders of `sub`, each by a descriptor of its parent, as open to its users as the volume itself.
fn make(root: &OwnedFd, sub: &Path) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode & 0o7777);
    let mut done = PathBuf::new();
    let mut parent = root.try_clone()?;
    for part in sub.components() {
        if part == Component::CurDir {
            continue;
        }
        done.push(part);
        let opened = match openat2(root, &done, FLAGS, Mode::empty(), BENEATH) {
            Err(rustix::io::Errno::NOENT) => {
                let made = match mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(0o700)) {
                    Err(rustix::io::Errno::EXIST) => false,
                    other => other.map(|()| true)?,
                };
                let folder = openat2(root, &done, FLAGS, Mode::empty(), BENEATH)?;
                if made {
                    rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), mode)?;
                }
                folder
            }
            other => other?,
        };
        parent = opened;
    }
    Ok(parent)
}

/// Binds what `held` refers to onto `target`, a folder or file that is made to fit.
pub fn bind(held: &OwnedFd, target: &Path) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
    let is_folder = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(held)?.st_mode).is_dir();
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    mounts::unmount(target)?;
    if is_folder {
        std::fs::create_dir_all(target)?;
    } else {
        open_file(target)?;
    }
    rustix::mount::mount_bind_recursive(source.as_str(), target)?;
    Ok(())
}

fn open_file(target: &Path) -> io::Result<()> {
    rustix::fs::openat(CWD, target, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o640))?;
    Ok(())
}
