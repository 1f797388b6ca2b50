//! A file's attributes: owner, mode, times and xattrs, read from an entry or a lower layer and set on created files.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::ImageError;
use super::tarball::Entry;
use super::view::{ViewEntry, find_beneath, proc_path};

/// Maximum bytes of a file's xattrs, names and values together: the kernel caches them in memory, and each directory of an upper
/// layer gets a copy of those below.
pub(super) const MAX_XATTRS: usize = 64 << 10;

/// Owner, mode, times and xattrs, as an entry or a lower layer has them.
#[derive(Debug, Clone)]
pub(super) struct Attributes {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub mtime: (i64, i64),
    pub xattrs: Vec<(String, Vec<u8>)>,
}

impl From<&Entry> for Attributes {
    fn from(entry: &Entry) -> Attributes {
        let Entry { uid, gid, mode, mtime, .. } = *entry;
        Attributes { uid, gid, mode, mtime, xattrs: entry.xattrs.clone() }
    }
}

impl Attributes {
    /// For a directory that no layer describes.
    pub(super) fn plain() -> Attributes {
        Attributes { uid: 0, gid: 0, mode: 0o755, mtime: (0, 0), xattrs: Vec::new() }
    }

    pub(super) fn of(found: &ViewEntry) -> io::Result<Attributes> {
        let stat = &found.stat;
        // Symlinks in /proc/self/fd resolve to their targets, so a symlink's own xattrs cannot be read this way.
        let xattrs = if found.kind() == FileType::Symlink { Vec::new() } else { xattrs_of(&found.proc_path())? };
        Ok(Attributes {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
            xattrs,
        })
    }

    fn times(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.mtime.0, tv_nsec: self.mtime.1 as _ };
        Timestamps { last_access: time, last_modification: time }
    }

    fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    /// In this order: chown clears setuid bits and capabilities; the time is set last.
    pub(super) fn set_on_file(&self, fd: impl AsFd) -> io::Result<()> {
        let (uid, gid) = self.owner();
        rustix::fs::fchown(&fd, uid, gid)?;
        self.set_xattrs(&proc_path(&fd))?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(self.mode))?;
        Ok(rustix::fs::futimens(&fd, &self.times())?)
    }

    /// For what cannot be opened: symlinks, devices, FIFOs.
    pub(super) fn set_on_name(&self, dir: &OwnedFd, name: &[u8], symlink: bool) -> io::Result<()> {
        let (uid, gid) = self.owner();
        rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        if !symlink {
            if let Some(found) = find_beneath(dir, name)? {
                self.set_xattrs(&found.proc_path())?;
            }
            // Created by us a moment ago and not a symlink, so nothing is followed.
            rustix::fs::chmodat(dir, name, Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        }
        Ok(rustix::fs::utimensat(dir, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn set_xattrs(&self, path: &str) -> io::Result<()> {
        for (name, value) in &self.xattrs {
            // overlayfs' own marks are set only by us: an image could redirect lookups with them.
            if name.starts_with("trusted.overlay.") || name.starts_with("user.overlay.") {
                continue;
            }
            match rustix::fs::setxattr(path, name.as_str(), value, XattrFlags::empty()) {
                // As containerd: ignored on file systems without xattrs.
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                // user.* is only for files and directories.
                Err(Errno::PERM) if name.starts_with("user.") => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("set {name}: {error}"))),
            }
        }
        Ok(())
    }
}

/// The size of a file's xattrs, names and values. Fails if it exceeds the limit.
pub(super) fn xattr_bytes(xattrs: &[(String, Vec<u8>)]) -> io::Result<usize> {
    let bytes = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_XATTRS { Err(too_many(bytes)) } else { Ok(bytes) }
}

fn too_many(bytes: usize) -> io::Error {
    let why = format!("extended attributes of a file have {bytes} bytes, more than {MAX_XATTRS}");
    ImageError::Invalid(why).into()
}

/// The readable xattrs; never holds more than the limit, each in exactly sized memory.
fn xattrs_of(path: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let query = || rustix::fs::listxattr_query(path);
    let names = whole(query, |buffer| rustix::fs::listxattr(path, buffer)).unwrap_or_default();
    let mut bytes = 0;
    let mut xattrs = Vec::new();
    for name in names.split(|b| *b == 0).filter_map(|name| std::str::from_utf8(name).ok()).filter(|n| !n.is_empty()) {
        let query = || rustix::fs::getxattr_query(path, name);
        let Ok(value) = whole(query, |buffer| rustix::fs::getxattr(path, name, buffer)) else { continue };
        bytes += name.len() + value.len();
        if bytes > MAX_XATTRS {
            return Err(too_many(bytes));
        }
        xattrs.push((name.to_owned(), value));
    }
    Ok(xattrs)
}

/// Calls `read` with a buffer of the size that `query` returns.
fn whole(
    query: impl Fn() -> rustix::io::Result<usize>,
    read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; query()?];
    let length = read(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}
