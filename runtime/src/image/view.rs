//! A read-only view of stacked layers as overlayfs would show them, without mounting.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{ImageError, Result};

/// Marks an opaque directory, which hides those of the same name below it.
pub(super) const OPAQUE: &str = "trusted.overlay.opaque";
/// Maximum symlinks in one path, as in the kernel.
pub(super) const MAX_SYMLINKS: usize = 40;

/// Maximum layer lookups for resolving a path: some thousand cover a deep path through links in many layers. A link may hold
/// hundreds of steps, each needing a lookup in every layer.
const MAX_LOOKS: u64 = 8192;

/// Layers, uppermost first.
pub(super) struct LayerView {
    layers: Vec<OwnedFd>,
    /// Number of lookups.
    looks: Cell<u64>,
}

/// Something found in a view.
pub(super) struct ViewEntry {
    /// `O_PATH`; a symlink itself, not its target.
    pub fd: OwnedFd,
    pub stat: Stat,
}

impl ViewEntry {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// A path for system calls without `AT_EMPTY_PATH`.
    pub(super) fn proc_path(&self) -> String {
        proc_path(&self.fd)
    }

    pub(super) fn read_link(&self) -> rustix::io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.fd, c"", Vec::new())?.into_bytes())
    }
}

pub(super) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// overlayfs' whiteout: a character device 0:0.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Opens `path` (relative, no symlink on the way) below `root`: none if it does not exist.
pub(super) fn find_beneath(root: impl AsFd, path: &[u8]) -> rustix::io::Result<Option<ViewEntry>> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(root, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(fd) => rustix::fs::fstat(&fd).map(|stat| Some(ViewEntry { fd, stat })),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The significant components of a path; keeps `..`.
pub(super) fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").map(|part| part.to_vec())
}

pub(super) fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    parts.join(&b'/')
}

/// The cost of a lookup: the kernel walks the whole path.
pub(super) fn steps(path: &[u8]) -> u64 {
    1 + path.iter().filter(|byte| **byte == b'/').count() as u64
}

impl LayerView {
    pub(super) fn open(layers: &[PathBuf]) -> Result<LayerView> {
        let open = |path: &PathBuf| {
            rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|e| ImageError::io("open", path, e))
        };
        Ok(LayerView { layers: layers.iter().map(open).collect::<Result<_>>()?, looks: Cell::new(0) })
    }

    /// The number of layer lookups since the last call.
    pub(super) fn looks(&self) -> u64 {
        self.looks.take()
    }

    /// What a merged mount would show at `path`, whose directories contain no symlink.
    pub(super) fn find(&self, path: &[u8]) -> rustix::io::Result<Option<ViewEntry>> {
        for layer in &self.layers {
            match self.look(layer, path) {
                Ok(Some(found)) if is_whiteout(&found.stat) => return Ok(None),
                Ok(Some(found)) => return Ok(Some(found)),
                // A file or symlink in place of a directory hides the directories below it.
                Err(Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(error) => return Err(error),
                Ok(None) if self.hides_below(layer, path)? => return Ok(None),
                Ok(None) => {}
            }
        }
        Ok(None)
    }

    fn look(&self, layer: &OwnedFd, path: &[u8]) -> rustix::io::Result<Option<ViewEntry>> {
        self.looks.update(|looks| looks + steps(path));
        find_beneath(layer, path)
    }

    /// Whether one of this layer's directories on the way to `path` is opaque (or whited out), hiding the layers below.
    fn hides_below(&self, layer: &OwnedFd, path: &[u8]) -> rustix::io::Result<bool> {
        let parts: Vec<Vec<u8>> = parts(path).collect();
        // From the top: most layers have nothing there, and everything in a missing directory is missing too.
        for depth in 0..parts.len() {
            match self.look(layer, &join(&parts[..depth])) {
                Ok(Some(found)) if is_whiteout(&found.stat) || is_opaque(&found) => return Ok(true),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(false),
                Err(Errno::NOTDIR | Errno::LOOP) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// As `find`, following symlinks inside the view, with at most [`MAX_LOOKS`] layer lookups.
    fn resolve(&self, path: &[u8]) -> rustix::io::Result<Option<ViewEntry>> {
        let mut pending: VecDeque<Vec<u8>> = parts(path).collect();
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        let before = self.looks.get();
        while let Some(part) = pending.pop_front() {
            if part == b".." {
                done.pop();
                continue;
            }
            done.push(part);
            if self.looks.get().saturating_sub(before) > MAX_LOOKS {
                return Err(Errno::LOOP);
            }
            let Some(found) = self.find(&join(&done))? else { return Ok(None) };
            if found.kind() == FileType::Symlink {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(Errno::LOOP);
                }
                let target = found.read_link()?;
                done.pop();
                if target.starts_with(b"/") {
                    done.clear();
                }
                parts(&target).rev().for_each(|part| pending.push_front(part));
            } else if pending.is_empty() {
                return Ok(Some(found));
            }
        }
        self.find(&join(&done))
    }

    /// A regular file of at most `limit` bytes, following symlinks inside the view; anything else counts as missing.
    pub(super) fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let fail = |e: std::io::Error| ImageError::io("read from image", path.as_ref(), e);
        let found = match self.resolve(path.as_bytes()) {
            Ok(Some(found)) if found.kind() == FileType::RegularFile => found,
            Ok(_) | Err(Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(fail(error.into())),
        };
        let file = File::open(found.proc_path()).map_err(fail)?;
        let mut bytes = Vec::new();
        // Checking the size alone is not enough: the caller must not see a truncated file.
        file.take(limit + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > limit {
            return Err(ImageError::Invalid(format!("{path} of the image is larger than {limit} bytes")));
        }
        Ok(Some(bytes))
    }
}

pub(super) fn is_opaque(dir: &ViewEntry) -> bool {
    let mut value = [0u8; 1];
    rustix::fs::getxattr(dir.proc_path(), OPAQUE, &mut value).is_ok_and(|length| length == 1 && value[0] == b'y')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A link has room for hundreds of steps, and a path may contain 40 of them: each is a lookup in 128 layers.
    #[test]
    fn a_way_through_links_ends_after_so_many_looks() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("file"), "found").unwrap();
        let way = |steps: usize, to: &str| "d/../".repeat(steps) + to;
        symlink(way(700, "file"), at("long")).unwrap();
        symlink(way(700, "file"), at("l30")).unwrap();
        for n in 0..30 {
            symlink(way(700, &format!("l{}", n + 1)), at(&format!("l{n}"))).unwrap();
        }
        let view = LayerView::open(&[dir.path().to_owned()]).unwrap();
        // Each read has its own counter.
        for path in ["long", "l25", "long"] {
            assert_eq!(view.read_file(path, 10).unwrap().as_deref(), Some(&b"found"[..]), "{path}");
        }
        let endless = view.read_file("l0", 10).unwrap_err();
        assert!(endless.to_string().contains("Too many levels of symbolic links"), "{endless}");
        assert!(view.looks() < 5 * MAX_LOOKS);
    }
}
