//! Files: inside a container's root (never following its symlinks outside), sealed memfds, durable records.

use std::ffi::CString;
use std::fs::File;
use std::io::{Error as IoError, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{self, AtFlags, FileType, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags};
use rustix::io::Errno;

use podwright_journal::Args;

use super::{Kernel, SysResult};

/// Resolution of image paths: `/` and `..` and symlinks stay inside, no magic links.
const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
/// The same for paths that the runtime relies on: no symlinks at all.
const PLAIN: ResolveFlags = INSIDE.union(ResolveFlags::NO_SYMLINKS);

/// Filesystems by their magic (statfs(2)).
pub const PROC: i64 = libc::PROC_SUPER_MAGIC as i64;
pub const SYSFS: i64 = 0x6265_6572;
pub const DEVPTS: i64 = 0x1cd1;
pub const TMPFS: i64 = libc::TMPFS_MAGIC as i64;

impl Kernel {
    /// Opens `path` inside `root` as O_PATH, if it exists.
    pub fn find_inside(&self, root: BorrowedFd<'_>, path: &Path) -> SysResult<Option<OwnedFd>> {
        self.op_if("openat2", |a| a.path(path), || find_inside(root, relative(path)))
    }

    /// Opens a path of the caller's own mount namespace as O_PATH.
    pub fn open_path(&self, path: &Path) -> SysResult<OwnedFd> {
        self.op("open", |a| a.path(path), || Ok(fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Like [`Kernel::find_inside`], but creates it, with its parents, if missing: a folder, or an empty file.
    pub fn make_inside(&self, root: BorrowedFd<'_>, path: &Path, folder: bool) -> SysResult<OwnedFd> {
        let found = find_inside(root, relative(path));
        if let Ok(Some(found)) = found {
            return Ok(found);
        }
        let call = if folder { "mkdirat" } else { "mknodat" };
        self.op(call, |a| a.path(path), || found.and_then(|_| create_inside(root, relative(path), folder)))
    }

    /// Like [`Kernel::find_inside`], for paths that must not contain symlinks: one on the way is an error (ELOOP).
    pub fn find_plain(&self, root: BorrowedFd<'_>, path: &Path) -> SysResult<Option<OwnedFd>> {
        self.op_if("openat2", |a| a.path(path), || find(root, relative(path), PLAIN))
    }

    /// Writes to a file of a genuine `/proc` (such as `sys/kernel/domainname`), and to nothing else that may be mounted there.
    pub fn write_proc(&self, name: &Path, text: &str) -> SysResult<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.write_proc_by(|| fs::open("/proc", flags, Mode::empty()), name, text)
    }

    /// [`Kernel::write_proc`] if `/proc` is another one or missing: `proc` is the machine's, as O_PATH.
    pub fn write_proc_of(&self, proc: BorrowedFd<'_>, name: &Path, text: &str) -> SysResult<()> {
        self.write_proc_by(|| Ok(proc), name, text)
    }

    fn write_proc_by<P: AsFd>(
        &self,
        proc: impl FnOnce() -> rustix::io::Result<P>,
        name: &Path,
        text: &str,
    ) -> SysResult<()> {
        self.op(
            "write",
            |a| a.text("/proc/").path(name).text(" <- ").text(text),
            || {
                let proc = proc()?;
                if !is_of(proc.as_fd(), PROC) {
                    return Err(IoError::other("/proc is no procfs"));
                }
                let below = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let file = fs::openat2(proc, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty(), below)?;
                if !is_of(file.as_fd(), PROC) {
                    return Err(IoError::other("not a file of procfs"));
                }
                File::from(file).write_all(text.as_bytes())
            },
        )
    }

    /// Creates devices, pipes or sockets inside an open folder, with these modes (minus the umask) and owners; existing ones are
    /// kept. Fails if something of another type exists.
    pub fn mknod_in(&self, folder: BorrowedFd<'_>, nodes: &[Node<'_>]) -> SysResult<()> {
        self.op("mknodat", |a| listed(a, nodes), || nodes.iter().try_for_each(|node| make_node(folder, node)))
    }

    /// Changes the owner of a file inside an open folder, or of the folder itself (an empty name); does not follow symlinks.
    pub fn chown_in(&self, folder: BorrowedFd<'_>, name: &str, uid: u32, gid: u32) -> SysResult<()> {
        self.op(
            "fchownat",
            |a| a.text(name).text(" to ").number(uid).text(":").number(gid),
            || {
                let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
                Ok(fs::chownat(folder, name, Some(fs::Uid::from_raw(uid)), Some(fs::Gid::from_raw(gid)), flags)?)
            },
        )
    }

    /// Creates symlinks inside an open folder, each a name and its target; existing files are kept.
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

    /// Creates a folder with its parents.
    pub fn mkdir(&self, path: &Path) -> SysResult<()> {
        self.op("mkdir", |a| a.path(path), || std::fs::create_dir_all(path))
    }

    /// Removes an empty folder (a cgroup); succeeds if it does not exist.
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

    /// An immutable in-memory file: its content can be executed, mapped and shared.
    pub fn sealed_memfd(&self, name: &str, bytes: &[u8]) -> SysResult<OwnedFd> {
        self.op(
            "memfd_create",
            |a| a.text(name).text(", ").number(bytes.len() as u64).text(" bytes"),
            || {
                let fd = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
                let mut file = File::from(fd);
                file.write_all(bytes)?;
                seal(&file)?;
                Ok(file.into())
            },
        )
    }

    /// A sealed in-memory file that everyone may execute but only processes that bypass its mode may read: a process that executes
    /// it without that privilege is non-dumpable from its first instruction on (`would_dump` of execve(2)).
    pub fn sealed_program(&self, name: &str, bytes: &[u8]) -> SysResult<OwnedFd> {
        let file = self.sealed_memfd(name, bytes)?;
        self.op("fchmod", |a| a.text(name).text(", 0111"), || Ok(fs::fchmod(&file, Mode::from_raw_mode(0o111))?))?;
        Ok(file)
    }
}

/// Number and interval of attempts to seal a file in use.
const SEALING: u32 = 100;
const SEALING_PAUSE: Duration = Duration::from_millis(10);

/// Seals a file permanently. While its pages are referenced, even by the kernel itself, this fails temporarily (EBUSY of fcntl(2)).
fn seal(file: &File) -> Result<(), IoError> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    for _ in 1..SEALING {
        match fs::fcntl_add_seals(file, seals) {
            Err(Errno::BUSY) => std::thread::sleep(SEALING_PAUSE),
            done => return Ok(done?),
        }
    }
    Ok(fs::fcntl_add_seals(file, seals)?)
}

/// A device, pipe or socket to create.
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
    let made = match fs::mknodat(folder, node.name, node.kind, mode, node.dev) {
        Err(rustix::io::Errno::EXIST) => false,
        made => made.map(|()| true)?,
    };
    // It may have been replaced concurrently: checked without opening it, and without following symlinks.
    let at = fs::openat(folder, node.name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fs::fstat(&at)?;
    let device = matches!(node.kind, FileType::CharacterDevice | FileType::BlockDevice);
    if FileType::from_raw_mode(stat.st_mode) != node.kind || device && stat.st_rdev != node.dev {
        return Err(IoError::other(format!("{} is there, and something else", node.name)));
    }
    if made && node.owner != (0, 0) {
        let (uid, gid) = (fs::Uid::from_raw(node.owner.0), fs::Gid::from_raw(node.owner.1));
        fs::chownat(&at, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

fn find_inside(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, IoError> {
    find(root, path, INSIDE)
}

fn find(root: BorrowedFd<'_>, path: &Path, how: ResolveFlags) -> Result<Option<OwnedFd>, IoError> {
    /// openat2(2) returns EAGAIN during concurrent renames on the path.
    const ATTEMPTS: usize = 128;
    for _ in 0..ATTEMPTS {
        match fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
            Err(rustix::io::Errno::AGAIN) => {}
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
            found => return Ok(Some(found?)),
        }
    }
    Err(IoError::from_raw_os_error(libc::EAGAIN))
}

/// Whether this file is on a filesystem with this magic.
pub fn is_of(fd: BorrowedFd<'_>, magic: i64) -> bool {
    fs::fstatfs(fd).is_ok_and(|s| s.f_type as i64 == magic)
}

/// Whether this is a character device with this number.
pub fn is_device(fd: BorrowedFd<'_>, major: u32, minor: u32) -> bool {
    fs::fstat(fd).is_ok_and(|s| {
        FileType::from_raw_mode(s.st_mode) == FileType::CharacterDevice
            && (fs::major(s.st_rdev), fs::minor(s.st_rdev)) == (major, minor)
    })
}

/// Whether this is the slave of a pty.
pub fn is_pty(fd: BorrowedFd<'_>) -> bool {
    let device = fs::fstat(fd).is_ok_and(|s| {
        FileType::from_raw_mode(s.st_mode) == FileType::CharacterDevice && (136..=143).contains(&fs::major(s.st_rdev))
    });
    device && is_of(fd, DEVPTS)
}

/// Creates what is missing, with its parents. Fails if something of another type exists.
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

/// `path` made absolute and free of `.` and `..`, lexically.
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

/// Renames `from` to the unused name `to`, both in the folder `parent`, and syncs. Fails as rename(2) and fsync(2).
pub fn move_durably(parent: &Path, from: &str, to: &str) -> Result<(), IoError> {
    let folder = File::open(parent)?;
    rustix::fs::renameat_with(&folder, from, &folder, to, rustix::fs::RenameFlags::NOREPLACE)?;
    folder.sync_all()
}

/// Syncs a folder, so that removals from it are on disk.
pub fn sync_folder(path: &Path) -> Result<(), IoError> {
    File::open(path)?.sync_all()
}

/// Whether this is a pty multiplexer (character device 5:2). An image could have put anything at /dev/ptmx.
pub fn is_ptmx(fd: BorrowedFd<'_>) -> bool {
    is_device(fd, 5, 2) && is_of(fd, DEVPTS)
}

/// A path to an open descriptor, for calls that only accept paths.
pub fn proc_fd(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// A C string of arguments received over the wire; an embedded NUL is an error.
pub fn c_string(text: &str) -> Result<CString, IoError> {
    CString::new(text).map_err(|_| IoError::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_file_that_is_in_use_for_a_moment_is_sealed_after_it() {
        const SIZE: usize = 4096;
        let file = File::from(fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(SIZE as u64).unwrap();
        let (at, how) = (std::ptr::null_mut(), libc::PROT_WRITE);
        // SAFETY: a new mapping at a free address; it is not accessed.
        let held = unsafe { libc::mmap(at, SIZE, how, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(held, libc::MAP_FAILED);
        // Pointers are not Send.
        let held = held as usize;
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let sealing = scope.spawn(|| seal(&file));
            std::thread::sleep(5 * SEALING_PAUSE);
            assert!(!sealing.is_finished(), "somebody could write to it");
            // SAFETY: it was mapped above, and is unused.
            assert_eq!(unsafe { libc::munmap(held as *mut _, SIZE) }, 0);
            sealing.join().unwrap().unwrap();
        });
        assert!(begun.elapsed() >= 5 * SEALING_PAUSE && (&file).write_all(b"x").is_err());
    }
}
