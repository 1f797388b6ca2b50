//! Files: inside a container's root (never through its symlinks to the outside), sealed memfds, durable records.

use std::ffi::CString;
use std::fs::File;
use std::io::{Error as IoError, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags};

use podwright_journal::Args;

use super::{Kernel, SysResult};

/// How paths of an image are resolved: `/` and `..` and symlinks stay inside, no /proc magic.
const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

impl Kernel {
    /// Opens `path` inside `root` as a handle (O_PATH), if there is such a path.
    pub fn find_inside(&self, root: BorrowedFd<'_>, path: &Path) -> SysResult<Option<OwnedFd>> {
        self.op_if("openat2", |a| a.path(path), || find_inside(root, relative(path)))
    }

    /// Opens a path of the caller's own mount namespace, as a place alone.
    pub fn open_path(&self, path: &Path) -> SysResult<OwnedFd> {
        self.op("open", |a| a.path(path), || Ok(fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Like [`Kernel::find_inside`], but makes it, with its parents, if it is missing: a folder, or an empty file.
    pub fn make_inside(&self, root: BorrowedFd<'_>, path: &Path, folder: bool) -> SysResult<OwnedFd> {
        let found = find_inside(root, relative(path));
        if let Ok(Some(found)) = found {
            return Ok(found);
        }
        let call = if folder { "mkdirat" } else { "mknodat" };
        self.op(call, |a| a.path(path), || found.and_then(|_| create_inside(root, relative(path), folder)))
    }

    /// Devices, pipes or sockets inside an open folder, with exactly these modes and owners; what is there already stays.
    pub fn mknod_in(&self, folder: BorrowedFd<'_>, nodes: &[Node<'_>]) -> SysResult<()> {
        self.op("mknodat", |a| listed(a, nodes), || nodes.iter().try_for_each(|node| make_node(folder, node)))
    }

    /// Symlinks inside an open folder, each a name and its target; what is there already stays.
    pub fn symlink_in(&self, folder: BorrowedFd<'_>, links: &[(&str, &str)]) -> SysResult<()> {
        let make = |(name, target): &(&str, &str)| match fs::symlinkat(*target, folder, *name) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            done => Ok(done?),
        };
        self.op(
            "symlinkat",
            |a| a.list(links, |a, (name, target)| a.text(name).text(" -> ").text(target)),
            || links.iter().try_for_each(make),
        )
    }

    /// Writes a kernel file (sysctl, cgroup, /proc/self/...).
    pub fn write(&self, path: &Path, text: &str) -> SysResult<()> {
        self.op(
            "write",
            |a| a.path(path).text(" <- ").text(text),
            || {
                let mut file = File::options().write(true).open(path)?;
                file.write_all(text.as_bytes())
            },
        )
    }

    /// Makes a folder with its parents.
    pub fn mkdir(&self, path: &Path) -> SysResult<()> {
        self.op("mkdir", |a| a.path(path), || std::fs::create_dir_all(path))
    }

    /// Removes an empty folder (a cgroup); a missing one is fine.
    pub fn rmdir(&self, path: &Path) -> SysResult<()> {
        self.op(
            "rmdir",
            |a| a.path(path),
            || match std::fs::remove_dir(path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                done => done,
            },
        )
    }

    /// A file in memory that nobody can change any more: what it holds can be executed or mapped, and shared.
    pub fn sealed_memfd(&self, name: &str, bytes: &[u8]) -> SysResult<OwnedFd> {
        self.op(
            "memfd_create",
            |a| a.text(name).text(", ").number(bytes.len() as u64).text(" bytes"),
            || {
                let fd = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
                let mut file = File::from(fd);
                file.write_all(bytes)?;
                fs::fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
                Ok(file.into())
            },
        )
    }
}

/// A device, pipe or socket to be made.
pub struct Node<'a> {
    pub name: &'a str,
    pub kind: FileType,
    pub mode: u32,
    pub dev: u64,
    /// User and group.
    pub owner: (u32, u32),
}

fn listed<'a>(args: Args<'a>, nodes: &[Node<'_>]) -> Args<'a> {
    args.list(nodes, |args, node| {
        let kind = match node.kind {
            FileType::CharacterDevice => "CharacterDevice",
            FileType::BlockDevice => "BlockDevice",
            FileType::Fifo => "Fifo",
            FileType::Socket => "Socket",
            _ => "RegularFile",
        };
        let args = args.text(node.name).text(" ").text(kind).text(" ").octal(node.mode);
        args.text(" ").number(fs::major(node.dev)).text(":").number(fs::minor(node.dev))
    })
}

fn make_node(folder: BorrowedFd<'_>, node: &Node<'_>) -> Result<(), IoError> {
    let mode = Mode::from_raw_mode(node.mode);
    match fs::mknodat(folder, node.name, node.kind, mode, node.dev) {
        Err(rustix::io::Errno::EXIST) => return Ok(()),
        made => made?,
    }
    fs::chmodat(folder, node.name, mode, AtFlags::empty())?;
    if node.owner != (0, 0) {
        let (uid, gid) = (fs::Uid::from_raw(node.owner.0), fs::Gid::from_raw(node.owner.1));
        fs::chownat(folder, node.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn find_inside(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, IoError> {
    match fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), INSIDE) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// Makes what is not there, and its parents.
fn create_inside(root: BorrowedFd<'_>, path: &Path, folder: bool) -> Result<OwnedFd, IoError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = match find_inside(root, parent)? {
        Some(parent) => parent,
        None => create_inside(root, parent, true)?,
    };
    let name = path.file_name().ok_or_else(|| IoError::from_raw_os_error(libc::EINVAL))?;
    let made = if folder {
        fs::mkdirat(parent.as_fd(), name, Mode::from_raw_mode(0o755))
    } else {
        fs::mknodat(parent.as_fd(), name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
    };
    match made {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {
            find_inside(root, path)?.ok_or_else(|| IoError::from_raw_os_error(libc::ENOENT))
        }
        Err(e) => Err(e.into()),
    }
}

/// `path` without its leading `/`, and without `.` and `..` components that would be lost on a missing parent.
fn relative(path: &Path) -> &Path {
    let path = path.strip_prefix("/").unwrap_or(path);
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// `path` made absolute and free of `.` and `..`, as text alone.
pub fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

/// Replaces `path` by `bytes` so that a crash leaves the old or the new, and returns when it is on the disk.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), IoError> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&temporary, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_data(),
        None => Ok(()),
    }
}

/// Is this a pty multiplexer (character device 5:2)? An image could have put anything at /dev/ptmx.
pub fn is_ptmx(fd: BorrowedFd<'_>) -> bool {
    fs::fstat(fd).is_ok_and(|s| {
        FileType::from_raw_mode(s.st_mode) == FileType::CharacterDevice
            && (fs::major(s.st_rdev), fs::minor(s.st_rdev)) == (5, 2)
    })
}

/// A path to an open descriptor, for calls that take only paths.
pub fn proc_fd(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// A C string of arguments that came over the wire; an embedded NUL is an error.
pub fn c_string(text: &str) -> Result<CString, IoError> {
    CString::new(text).map_err(|_| IoError::from_raw_os_error(libc::EINVAL))
}
