//! Unpacks a layer's tar into a directory that overlayfs can stack: whiteouts, opaque directories, owners, xattrs.
//!
//! Every path goes through `openat2` and stays below the layer's root, whatever the archive says. Layers that omit their
//! directories, link to files of lower layers, or write below a lower layer's symlink are unpacked as on a mounted stack, because
//! missing directories are looked up in the layers below.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use super::attributes::{Attributes, xattr_bytes};
use super::digest::HashingReader;
use super::directories::Directories;
use super::limits::{Allowance, Options};
use super::tarball::{Entry, Kind, TarReader, lossy};
use super::view::{LayerView, MAX_SYMLINKS, OPAQUE, ViewEntry, find_beneath, is_whiteout, join, parts, steps};
use super::{ImageError, Result};

/// No image needs deeper trees; they would only make their removal fail.
const MAX_DEPTH: usize = 256;

/// Maximum bytes of all xattrs of a layer, including those inherited from directories and files below. The first [`PLAIN_XATTRS`]
/// of each file are covered by its entry's cost: labels and capabilities.
const MAX_LAYER_XATTRS: usize = 16 << 20;
const PLAIN_XATTRS: usize = 256;

/// Maximum window of a zstd frame (2^27 bytes): as used by `zstd --ultra -22`, and the most that `zstd -d` accepts by default.
const MAX_WINDOW_LOG: u32 = 27;

/// The properties of an unpacked layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unpacked {
    /// Digest of the uncompressed tar.
    pub diff_id: String,
    /// Length of the uncompressed tar.
    pub bytes: u64,
}

/// Decompresses a plain, gzip or zstd stream, detected by its first bytes.
pub(super) fn decompress<'a>(reader: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    Ok(match reader.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::Decoder::with_buffer(reader)?;
            decoder.window_log_max(MAX_WINDOW_LOG)?;
            Box::new(decoder)
        }
        _ => Box::new(reader),
    })
}

/// Unpacks the tar (plain or compressed) into `root`, an empty directory, as a layer on top of `below` (uppermost first). Fails if
/// it is damaged, hostile, or exceeds a limit.
pub(super) fn unpack(
    tar: impl Read,
    root: &Path,
    below: &[PathBuf],
    options: &Options,
    allowance: &Arc<Allowance>,
) -> Result<Unpacked> {
    let fail = |e: io::Error| ImageError::io("unpack into", root, e);
    let reader = HashingReader::new(decompress(tar).map_err(fail)?, options.max_layer_bytes);
    let mut tar = TarReader::new(BufReader::with_capacity(1 << 17, allowance.unpacked(reader)));
    let mut layer = Layer::open(root, below, allowance.clone())?;
    while let Some(entry) = tar.next_entry().map_err(fail)? {
        allowance.entry(entry.headers)?;
        if entry.size > options.max_layer_bytes {
            let (path, most) = (lossy(&entry.path), options.max_layer_bytes);
            return Err(ImageError::Invalid(format!("{path} is larger than the {most} bytes that are allowed")));
        }
        layer.apply(&entry, &mut tar).map_err(|e| ImageError::io("unpack", Path::new(&lossy(&entry.path)), e))?;
    }
    layer.finish().map_err(fail)?;
    // What the buffer has read ahead is already hashed.
    let mut rest = tar.into_inner().into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(fail)?;
    let (diff_id, bytes) = rest.into_inner().finish().map_err(fail)?;
    Ok(Unpacked { diff_id, bytes })
}

/// The layer being unpacked.
struct Layer {
    root: OwnedFd,
    below: LayerView,
    /// The directory of the last entry, by its path in the archive.
    last: Option<(Vec<u8>, Directory)>,
    /// By canonical path; their attributes are set last, after all writes to them.
    directories: Directories,
    /// Total bytes of xattrs.
    xattrs: usize,
    allowance: Arc<Allowance>,
}

struct Directory {
    fd: OwnedFd,
    /// Without symlinks, relative to the root.
    path: Vec<u8>,
}

fn invalid(message: impl Into<String>) -> io::Error {
    ImageError::Invalid(message.into()).into()
}

/// The components of an entry's path, with `.` and `..` resolved lexically; `..` above the root is rejected.
fn clean(path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    if path.contains(&0) {
        return Err(invalid("path with a NUL byte"));
    }
    let mut clean: Vec<Vec<u8>> = Vec::new();
    for part in parts(path) {
        if part != b".." {
            clean.push(part);
        } else if clean.pop().is_none() {
            return Err(invalid("path leads out of the root"));
        }
    }
    check_depth(&clean)?;
    Ok(clean)
}

fn check_depth(path: &[Vec<u8>]) -> io::Result<()> {
    if path.len() > MAX_DEPTH { Err(invalid(format!("more than {MAX_DEPTH} directories deep"))) } else { Ok(()) }
}

impl Layer {
    fn open(root: &Path, below: &[PathBuf], allowance: Arc<Allowance>) -> Result<Layer> {
        let fail = |e: Errno| ImageError::io("open", root, e);
        let fd = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let below = LayerView::open(below)?;
        let found = below.find(b"").map_err(fail)?;
        let (fd, directories) = (fd.map_err(fail)?, Directories::default());
        let mut layer = Layer { root: fd, below, last: None, directories, xattrs: 0, allowance };
        let attributes = found.map_or_else(|| Ok(Attributes::plain()), |found| layer.inherit(&found));
        let remembered = attributes.and_then(|attributes| layer.directories.remember(Vec::new(), attributes));
        remembered.map_err(|e| ImageError::io("read", root, e))?;
        Ok(layer)
    }

    /// Counts the xattrs of an item in the layer; returns their size.
    fn count(&mut self, xattrs: &[(String, Vec<u8>)]) -> io::Result<usize> {
        let bytes = xattr_bytes(xattrs)?;
        self.xattrs = self.xattrs.saturating_add(bytes.saturating_sub(PLAIN_XATTRS));
        match self.xattrs > MAX_LAYER_XATTRS {
            true => Err(invalid(format!("extended attributes of a layer have more than {MAX_LAYER_XATTRS} bytes"))),
            false => Ok(bytes),
        }
    }

    /// The attributes of a lower layer's item, for the same one in this layer.
    fn inherit(&mut self, found: &ViewEntry) -> io::Result<Attributes> {
        let attributes = Attributes::of(found)?;
        // Those of an entry are counted when the archive is read.
        let bytes = self.count(&attributes.xattrs)?;
        self.allowance.spend(bytes as u64)?;
        Ok(attributes)
    }

    fn apply(&mut self, entry: &Entry, tar: &mut TarReader<impl Read>) -> io::Result<()> {
        let mut path = clean(&entry.path)?;
        self.count(&entry.xattrs)?;
        let Some(name) = path.pop() else {
            if entry.kind == Kind::Directory {
                self.directories.remember(Vec::new(), Attributes::from(entry))?;
            }
            return Ok(());
        };
        let (key, dir) = match self.last.take() {
            Some((key, dir)) if key == join(&path) => (key, dir),
            _ => (join(&path), self.directory(&path)?),
        };
        let applied = match name.strip_prefix(b".wh.") {
            Some(b".wh..opq") => self.make_opaque(&dir.fd, &dir.path),
            // aufs bookkeeping.
            Some(rest) if rest.starts_with(b".wh.") => Ok(()),
            Some(hidden) => self.white_out(&dir, hidden),
            None => self.create(&dir, &name, entry, tar),
        };
        self.last = Some((key, dir));
        applied
    }

    fn make_opaque(&mut self, dir: &OwnedFd, path: &[u8]) -> io::Result<()> {
        self.directories.hide_below(path)?;
        Ok(rustix::fs::fsetxattr(dir, OPAQUE, b"y", XattrFlags::empty())?)
    }

    /// Whites out `name` of the layers below. This layer's own entry of that name stays (OCI image spec, "Whiteouts": they apply to
    /// lower layers only).
    fn white_out(&mut self, dir: &Directory, name: &[u8]) -> io::Result<()> {
        if matches!(name, b"" | b"." | b"..") {
            return Err(invalid("whiteout of nothing"));
        }
        match find_beneath(&dir.fd, name)? {
            None => Ok(rustix::fs::mknodat(&dir.fd, name, FileType::CharacterDevice, Mode::empty(), 0)?),
            Some(found) if found.kind() == FileType::Directory => {
                let fd = open_directory(&dir.fd, name)?;
                self.make_opaque(&fd, &below_path(&dir.path, name))
            }
            Some(_) => Ok(()),
        }
    }

    fn create(
        &mut self,
        dir: &Directory,
        name: &[u8],
        entry: &Entry,
        tar: &mut TarReader<impl Read>,
    ) -> io::Result<()> {
        let path = below_path(&dir.path, name);
        let mut hidden = false;
        if let Some(found) = find_beneath(&dir.fd, name)? {
            hidden = is_whiteout(&found.stat);
            let both_directories = entry.kind == Kind::Directory && found.kind() == FileType::Directory;
            let link_to_itself = entry.kind == Kind::Hardlink && join(&clean(&entry.link)?) == path;
            if link_to_itself {
                return Ok(());
            }
            if !both_directories {
                remove_tree(&dir.fd, name, &found)?;
                if found.kind() == FileType::Directory {
                    self.directories.forget(&path);
                }
            }
        }
        match entry.kind {
            Kind::File => {
                // Disk space beyond the data read from the archive, which is counted there.
                self.allowance.spend(entry.padding())?;
                return create_file(dir, name, entry, tar);
            }
            Kind::Hardlink => return self.link(dir, name, entry),
            Kind::Directory => {
                match rustix::fs::mkdirat(&dir.fd, name, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                if hidden {
                    self.make_opaque(&open_directory(&dir.fd, name)?, &path)?;
                }
                return self.directories.remember(path, Attributes::from(entry));
            }
            Kind::Symlink => {
                if entry.link.contains(&0) {
                    return Err(invalid("link target with a NUL byte"));
                }
                rustix::fs::symlinkat(entry.link.as_slice(), &dir.fd, name)?;
            }
            Kind::Char | Kind::Block | Kind::Fifo => {
                let (kind, device) = match entry.kind {
                    Kind::Char => (FileType::CharacterDevice, entry.device),
                    Kind::Block => (FileType::BlockDevice, entry.device),
                    _ => (FileType::Fifo, (0, 0)),
                };
                let device = rustix::fs::makedev(device.0, device.1);
                rustix::fs::mknodat(&dir.fd, name, kind, Mode::from_raw_mode(0o600), device)?;
            }
        }
        Attributes::from(entry).set_on_name(&dir.fd, name, entry.kind == Kind::Symlink)
    }

    /// A hard link; a target from a lower layer is copied up first, as overlayfs would.
    fn link(&mut self, dir: &Directory, name: &[u8], entry: &Entry) -> io::Result<()> {
        let mut path = clean(&entry.link)?;
        let target = path.pop().ok_or_else(|| invalid("hard link to the root"))?;
        let to = self.directory(&path)?;
        if find_beneath(&to.fd, &target)?.is_none_or(|found| is_whiteout(&found.stat)) {
            let lower = self.find_below(&below_path(&to.path, &target))?;
            let missing = || invalid(format!("hard link to {}, which is not there", lossy(&entry.link)));
            let lower = lower.ok_or_else(missing)?;
            // The holes of a sparse file may get filled.
            self.allowance.spend(u64::try_from(lower.stat.st_size).unwrap_or(0))?;
            let attributes = self.inherit(&lower)?;
            copy_up(&lower, &attributes, &to, &target)?;
        }
        Ok(rustix::fs::linkat(&to.fd, target.as_slice(), &dir.fd, name, AtFlags::empty())?)
    }

    /// Opens a directory of this layer, creating it if necessary; symlinks on the way stay inside the root.
    fn directory(&mut self, path: &[Vec<u8>]) -> io::Result<Directory> {
        match find_beneath(&self.root, &join(path)) {
            Ok(Some(found)) if found.kind() == FileType::Directory => {
                return Ok(Directory { fd: open_directory(&self.root, &join(path))?, path: join(path) });
            }
            // Does not exist yet, or contains symlinks: walk.
            Ok(_) | Err(Errno::LOOP | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut pending: VecDeque<Vec<u8>> = path.iter().cloned().collect();
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        while let Some(part) = pending.pop_front() {
            if part == b".." {
                done.pop();
                continue;
            }
            done.push(part);
            check_depth(&done)?;
            let Some(target) = self.step(&join(&done))? else { continue };
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(Errno::LOOP.into());
            }
            done.pop();
            if target.starts_with(b"/") {
                done.clear();
            }
            parts(&target).rev().for_each(|part| pending.push_front(part));
        }
        Ok(Directory { fd: open_directory(&self.root, &join(&done))?, path: join(&done) })
    }

    /// One step of a walk: ensures a directory at `path`, or returns the target of a symlink there.
    fn step(&mut self, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.allowance.look(steps(path))?;
        let own = find_beneath(&self.root, path)?;
        let hidden = own.as_ref().is_some_and(|found| is_whiteout(&found.stat));
        let found = match own {
            Some(found) if !hidden => Some((found, true)),
            _ if hidden => None,
            _ => self.find_below(path)?.map(|found| (found, false)),
        };
        let attributes = match &found {
            None => Attributes::plain(),
            Some((found, own)) => match (found.kind(), own) {
                (FileType::Symlink, _) => return Ok(Some(found.read_link()?)),
                (FileType::Directory, true) => return Ok(None),
                (FileType::Directory, false) => self.inherit(found)?,
                _ => return Err(invalid(format!("{} is not a directory", lossy(path)))),
            },
        };
        if hidden {
            rustix::fs::unlinkat(&self.root, path, AtFlags::empty())?;
        }
        // An implicit one costs as much as one with an entry.
        self.allowance.entry(1)?;
        rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(0o700))?;
        if hidden {
            self.make_opaque(&open_directory(&self.root, path)?, path)?;
        }
        self.directories.remember(path.to_vec(), attributes)?;
        Ok(None)
    }

    /// What the layers below have at `path`; counts the lookup cost.
    fn find_below(&self, path: &[u8]) -> io::Result<Option<ViewEntry>> {
        if self.directories.is_hidden(path) {
            return Ok(None);
        }
        let found = self.below.find(path)?;
        self.allowance.look(self.below.looks())?;
        Ok(found)
    }

    fn finish(self) -> io::Result<()> {
        for (path, attributes) in self.directories.attributes() {
            let fd = open_directory(&self.root, path)?;
            attributes.set_on_file(&fd)?;
        }
        Ok(())
    }
}

fn below_path(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn open_directory(root: &OwnedFd, path: &[u8]) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)?)
}

fn new_file(dir: &Directory, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(&dir.fd, name, flags, Mode::from_raw_mode(0o600))?))
}

fn create_file(dir: &Directory, name: &[u8], entry: &Entry, tar: &mut TarReader<impl Read>) -> io::Result<()> {
    let mut file = new_file(dir, name)?;
    tar.copy_data(entry, &mut file)?;
    Attributes::from(entry).set_on_file(&file)
}

/// Copies a lower layer's file (or symlink, or device) into this one, with attributes.
fn copy_up(lower: &ViewEntry, attributes: &Attributes, dir: &Directory, name: &[u8]) -> io::Result<()> {
    match find_beneath(&dir.fd, name)? {
        Some(found) if is_whiteout(&found.stat) => rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty())?,
        _ => {}
    }
    match lower.kind() {
        FileType::RegularFile => {
            let mut file = new_file(dir, name)?;
            io::copy(&mut File::open(lower.proc_path())?, &mut file)?;
            attributes.set_on_file(&file)
        }
        FileType::Symlink => {
            rustix::fs::symlinkat(lower.read_link()?, &dir.fd, name)?;
            attributes.set_on_name(&dir.fd, name, true)
        }
        FileType::Directory => Err(invalid("hard link to a directory")),
        kind => {
            rustix::fs::mknodat(&dir.fd, name, kind, Mode::from_raw_mode(0o600), lower.stat.st_rdev)?;
            attributes.set_on_name(&dir.fd, name, false)
        }
    }
}

/// Removes what an entry replaces. Only this thread writes below the root.
fn remove_tree(dir: &OwnedFd, name: &[u8], found: &ViewEntry) -> io::Result<()> {
    if found.kind() != FileType::Directory {
        return Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?);
    }
    let inner = open_directory(dir, name)?;
    for child in rustix::fs::Dir::read_from(&inner)? {
        let child = child?;
        let child = child.file_name().to_bytes();
        if child != b"."
            && child != b".."
            && let Some(found) = find_beneath(&inner, child)?
        {
            remove_tree(&inner, child, &found)?;
        }
    }
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
