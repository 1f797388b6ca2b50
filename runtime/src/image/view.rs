//! A read-only look through stacked layers as overlayfs would show them, without mounting anything.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{ImageError, Result};

/// What marks a directory that hides everything of the same name below it.
pub(super) const OPAQUE: &str = "trusted.overlay.opaque";
/// As many symlinks as the kernel follows in one path.
pub(super) const MAX_SYMLINKS: usize = 40;

/// How often a path that is resolved may look into layers: some thousand times is a deep path through links in many layers. A
/// link may hold hundreds of steps, and each may cost a look into every layer.
const MAX_LOOKS: u64 = 8192;

/// Layers, uppermost first.
pub(super) struct LayerView {
    layers: Vec<OwnedFd>,
    /// What was opened to see whether it is there.
    looks: Cell<u64>,
}

/// Something found in a view.
pub(super) struct ViewEntry {
    /// `O_PATH`, a symlink itself and not its target.
    pub fd: OwnedFd,
    pub stat: Stat,
}

impl ViewEntry {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// A name that system calls without an `AT_EMPTY_PATH` understand.
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

/// Opens what is at `path` (relative, no symlink on the way) below `root`: none when nothing is there.
pub(super) fn find_beneath(root: impl AsFd, path: &[u8]) -> rustix::io::Result<Option<ViewEntry>> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(root, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(fd) => rustix::fs::fstat(&fd).map(|stat| Some(ViewEntry { fd, stat })),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The parts of a path that mean something; `..` is left in.
pub(super) fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").map(|part| part.to_vec())
}

pub(super) fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    parts.join(&b'/')
}

/// What a look costs: the kernel goes through the whole path.
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

    /// How often a layer was looked into since this was last asked.
    pub(super) fn looks(&self) -> u64 {
        self.looks.take()
    }

    /// What a merged mount would show at `path`, none of whose directories is a symlink.
    pub(super) fn find(&self, path: &[u8]) -> rustix::io::Result<Option<ViewEntry>> {
        for layer in &self.layers {
            match self.look(layer, path) {
                Ok(Some(found)) if is_whiteout(&found.stat) => return Ok(None),
                Ok(Some(found)) => return Ok(Some(found)),
                // A file or symlink in a directory's place hides the directories below it.
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

    /// Whether a directory that this layer has on the way to `path` is opaque (or gone), so that nothing below counts.
    fn hides_below(&self, layer: &OwnedFd, path: &[u8]) -> rustix::io::Result<bool> {
        let parts: Vec<Vec<u8>> = parts(path).collect();
        // From the top: most layers have nothing there, and what a missing directory holds is missing too.
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

    /// As `find`, following symlinks inside the view, with at most [`MAX_LOOKS`] steps into layers.
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

    /// A regular file of at most `limit` bytes, symlinks followed inside the view; anything else is as good as nothing.
    pub(super) fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let fail = |e: std::io::Error| ImageError::io("read from image", path.as_ref(), e);
        let found = match self.resolve(path.as_bytes()) {
            Ok(Some(found)) if found.kind() == FileType::RegularFile => found,
            Ok(_) | Err(Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(fail(error.into())),
        };
        let file = File::open(found.proc_path()).map_err(fail)?;
        let mut bytes = Vec::new();
        // The size alone would not do: who asks must not see half a file.
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

    /// A link has room for hundreds of steps, and a path may lead through 40 of them: each look into 128 layers.
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
        // Each read has its own count.
        for path in ["long", "l25", "long"] {
            assert_eq!(view.read_file(path, 10).unwrap().as_deref(), Some(&b"found"[..]), "{path}");
        }
        let endless = view.read_file("l0", 10).unwrap_err();
        assert!(endless.to_string().contains("Too many levels of symbolic links"), "{endless}");
        assert!(view.looks() < 5 * MAX_LOOKS);
    }
}
