//! The only way to open files that a container sees or may have replaced: without blocking.
//!
//! Such a file may be a symlink elsewhere, a FIFO without a writer, a device with side effects on open, or under a lease: a file's
//! owner can block open(2) and truncate(2) for `/proc/sys/fs/lease-break-time` seconds, repeatedly (fcntl(2), "Leases"). Calls that
//! do not open files break no lease: stat, chmod, chown, link, rename and unlink, and open with O_PATH.
//!
//! So the file is first opened with O_PATH (its last component must not be a symlink), and reopened through that descriptor,
//! non-blocking, once it is known to be regular. A lease is the error [`ErrorKind::WouldBlock`], with a message.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error as IoError, ErrorKind, Read, Result as IoResult, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::fs::proc_fd;

/// Opens a regular file for reading; its last component must not be a symlink. Errors: `NotFound`, `WouldBlock` (it is under a
/// lease), `InvalidInput` (it is not a regular file), those of open(2).
pub fn open(path: &Path) -> IoResult<File> {
    reopen(&place(path, OFlags::NOFOLLOW)?, OFlags::RDONLY)
}

/// The first `most` bytes of a file. Errors: those of [`open()`].
pub fn read(path: &Path, most: usize) -> IoResult<Vec<u8>> {
    start_of(open(path)?, most)
}

/// [`read`] for a file of the host, which may be a symlink, as `/etc/resolv.conf` often is.
pub fn read_linked(path: &Path, most: usize) -> IoResult<Vec<u8>> {
    start_of(reopen(&place(path, OFlags::empty())?, OFlags::RDONLY)?, most)
}

/// Creates a new file, for writing. Errors: `AlreadyExists`, those of open(2).
pub fn create(path: &Path, mode: u32) -> IoResult<File> {
    // O_EXCL neither opens nor follows anything existing.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(fs::openat(CWD, path, flags, Mode::from_raw_mode(mode))?.into())
}

/// Makes a file contain exactly `bytes`, in place: containers may have it mounted. Creates a missing one, with mode 0666 minus the
/// umask. Returns the file for further use. Errors: those of [`open()`], and of writing.
pub fn write(path: &Path, bytes: &[u8]) -> IoResult<File> {
    let place = match place(path, OFlags::NOFOLLOW) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let mut file = create(path, 0o666)?;
            file.write_all(bytes)?;
            return Ok(file);
        }
        other => other?,
    };
    let file = reopen(&place, OFlags::RDONLY)?;
    // Reading one byte more reveals whether there is more. A container may have written more than fits into memory.
    if start_of(file.try_clone()?, bytes.len() + 1)? == bytes {
        return Ok(file);
    }
    let mut file = reopen(&place, OFlags::WRONLY)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Opens a file of an open folder for appending; creates a missing one. Errors: those of [`open()`].
pub fn append(folder: BorrowedFd<'_>, name: &OsStr, mode: u32) -> IoResult<File> {
    let place = || -> IoResult<OwnedFd> {
        Ok(fs::openat(folder, name, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?)
    };
    let held = match place() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            fs::openat(folder, name, flags, Mode::from_raw_mode(mode))?;
            place()
        }
        held => held,
    };
    reopen(&held?, OFlags::WRONLY | OFlags::APPEND)
}

/// Truncates a file to at most `most` bytes. Errors: those of [`open()`].
pub fn cut(path: &Path, most: u64) -> IoResult<()> {
    let place = place(path, OFlags::NOFOLLOW)?;
    let stat = fs::fstat(&place)?;
    match stat.st_size > most as i64 || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        true => reopen(&place, OFlags::WRONLY)?.set_len(most),
        false => Ok(()),
    }
}

fn place(path: &Path, how: OFlags) -> IoResult<OwnedFd> {
    Ok(fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC | how, Mode::empty())?)
}

/// Reopens a held file, if it is regular.
fn reopen(place: &OwnedFd, access: OFlags) -> IoResult<File> {
    if FileType::from_raw_mode(fs::fstat(place)?.st_mode) != FileType::RegularFile {
        return Err(IoError::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match fs::openat(CWD, proc_fd(place.as_fd()), flags, Mode::empty()) {
        Err(Errno::WOULDBLOCK) => Err(IoError::new(ErrorKind::WouldBlock, "another process holds a lease on the file")),
        other => Ok(other?.into()),
    }
}

fn start_of(file: File, most: usize) -> IoResult<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use super::*;

    /// Far below the 45 s that a lease blocks open(2).
    const AT_ONCE: Duration = Duration::from_secs(10);

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn append_to(path: &Path) -> IoResult<File> {
        append(File::open(path.parent().unwrap()).unwrap().as_fd(), path.file_name().unwrap(), 0o600)
    }

    /// The signal for a broken lease (`include/uapi/asm-generic/fcntl.h`); the default one would kill us.
    const F_SETSIG: i32 = 10;

    /// Takes a lease on a file, as long as the result is open.
    fn lease(path: &Path, kind: i32) -> File {
        let held = File::open(path).unwrap();
        // SAFETY: an open descriptor and plain values.
        unsafe {
            assert_eq!(libc::fcntl(held.as_raw_fd(), F_SETSIG, libc::SIGURG), 0);
            let taken = libc::fcntl(held.as_raw_fd(), libc::F_SETLEASE, kind);
            assert_eq!(taken, 0, "{}", IoError::last_os_error());
        }
        held
    }

    fn refuses<T>(kind: ErrorKind, act: impl FnOnce() -> IoResult<T>) {
        let begun = Instant::now();
        let refused = act().err().map(|e| (e.kind(), e.to_string()));
        assert_eq!(refused.as_ref().map(|(kind, _)| *kind), Some(kind), "{refused:?}");
        assert!(begun.elapsed() < AT_ONCE, "it waited {:?}", begun.elapsed());
    }

    #[test]
    fn a_lease_is_an_error_at_once() {
        let (_dir, path) = file("what is there");
        let held = lease(&path, libc::F_WRLCK);
        refuses(ErrorKind::WouldBlock, || read(&path, 10));
        refuses(ErrorKind::WouldBlock, || read_linked(&path, 10));
        refuses(ErrorKind::WouldBlock, || write(&path, b"other"));
        refuses(ErrorKind::WouldBlock, || append_to(&path));
        refuses(ErrorKind::WouldBlock, || cut(&path, 1));
        drop(held);
        assert_eq!(read(&path, 4).unwrap(), b"what");
    }

    #[test]
    fn a_lease_for_reading_keeps_nobody_from_reading() {
        let (_dir, path) = file("what is there");
        let _held = lease(&path, libc::F_RDLCK);
        assert_eq!(read(&path, 100).unwrap(), b"what is there");
        write(&path, b"what is there").unwrap();
        refuses(ErrorKind::WouldBlock, || write(&path, b"other"));
    }

    #[test]
    fn nothing_but_regular_files_is_opened() {
        let (dir, path) = file("precious");
        let (fifo, link) = (dir.path().join("fifo"), dir.path().join("link"));
        fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for wrong in [&fifo, &link, &dir.path().to_owned()] {
            refuses(ErrorKind::InvalidInput, || read(wrong, 10));
            refuses(ErrorKind::InvalidInput, || write(wrong, b"x"));
            refuses(ErrorKind::InvalidInput, || append_to(wrong));
            refuses(ErrorKind::InvalidInput, || cut(wrong, 0));
            refuses(ErrorKind::AlreadyExists, || create(wrong, 0o600));
        }
        refuses(ErrorKind::NotFound, || read(&dir.path().join("none"), 10));
        assert_eq!(read_linked(&link, 100).unwrap(), b"precious");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_file_changes_in_place_and_is_cut() {
        let (dir, path) = file("longer than what comes");
        let seen_before = File::open(&path).unwrap();
        write(&path, b"short").unwrap();
        assert_eq!(start_of(seen_before, 100).unwrap(), b"short");
        cut(&path, 100).unwrap();
        cut(&path, 2).unwrap();
        assert_eq!(read(&path, 100).unwrap(), b"sh");
        let new = dir.path().join("new");
        write(&new, b"made").unwrap();
        append_to(&new).unwrap().write_all(b", and more").unwrap();
        assert_eq!(read(&new, 100).unwrap(), b"made, and more");
    }
}
