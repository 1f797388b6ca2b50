//! Paths below a folder that containers change concurrently: opened and created without leaving it, or changing what exists.

use std::ffi::OsStr;
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{self, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::umask;
use rustix::thread::{UnshareFlags, unshare_unsafe};

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Symlinks that stay below the folder may be followed.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// Paths that we create contain no symlinks.
const PLAIN: ResolveFlags = BENEATH.union(ResolveFlags::NO_SYMLINKS);
/// openat2(2) returns EAGAIN during concurrent renames on the path.
const ATTEMPTS: usize = 128;

/// Opens `path` below `folder` as O_PATH, whatever it is; creates missing folders, with the permissions of `folder` itself.
/// Existing symlinks are followed if they stay below `folder`; where folders are created, none is. Existing files are never
/// changed. Errors: `InvalidInput` (`path` is absolute or has `..`), EXDEV (it leads out), ELOOP and ENOTDIR (a folder being
/// created was replaced), those of openat2(2) and mkdirat(2).
pub fn open_or_make(folder: &Path, path: &Path) -> IoResult<OwnedFd> {
    let root = fs::openat(CWD, folder, PLACE | OFlags::DIRECTORY, Mode::empty())?;
    if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(IoError::new(ErrorKind::InvalidInput, format!("{} leads out of its folder", path.display())));
    }
    let mode = Mode::from_raw_mode(fs::fstat(&root)?.st_mode & 0o7777);
    let (mut found, missing) = deepest(root, path)?;
    for part in missing.components().filter(|part| *part != Component::CurDir) {
        let part = part.as_os_str();
        match make_folder(found.as_fd(), part, mode) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => made?,
        }
        found = open(found.as_fd(), part.as_ref(), OFlags::DIRECTORY | OFlags::NOFOLLOW, PLAIN)?;
    }
    Ok(found)
}

/// Opens a folder by an absolute path without symlinks, as O_PATH; creates its missing parts. Errors: ELOOP and ENOTDIR (a part is
/// a symlink, or not a folder), those of openat2(2) and mkdirat(2).
pub fn plain_folder(path: &Path) -> IoResult<OwnedFd> {
    let mut parts = path.components();
    let is_plain = parts.next() == Some(Component::RootDir) && parts.clone().all(|p| matches!(p, Component::Normal(_)));
    if !is_plain {
        return Err(IoError::new(ErrorKind::InvalidInput, format!("{} is no plain path", path.display())));
    }
    let mut found = fs::openat(CWD, "/", PLACE | OFlags::DIRECTORY, Mode::empty())?;
    for part in parts.map(|part| part.as_os_str()) {
        let open = || open(found.as_fd(), part.as_ref(), OFlags::DIRECTORY, PLAIN);
        let next = match open() {
            Err(Errno::NOENT) => {
                match fs::mkdirat(&found, part, Mode::from_raw_mode(0o777)) {
                    Err(Errno::EXIST) => {}
                    made => made?,
                }
                open()
            }
            next => next,
        };
        found = next?;
    }
    Ok(found)
}

/// The deepest existing part of a path, and the rest.
fn deepest(root: OwnedFd, path: &Path) -> IoResult<(OwnedFd, &Path)> {
    for there in path.ancestors().filter(|there| !there.as_os_str().is_empty()) {
        match open(root.as_fd(), there, OFlags::empty(), BENEATH) {
            Err(Errno::NOENT) => {}
            Err(other) => return Err(other.into()),
            // Invariant: `there` is an ancestor of `path`.
            Ok(found) => return Ok((found, path.strip_prefix(there).unwrap_or(Path::new("")))),
        }
    }
    Ok((root, path))
}

fn open(folder: BorrowedFd<'_>, path: &Path, flags: OFlags, how: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    for _ in 0..ATTEMPTS {
        match fs::openat2(folder, path, PLACE | flags, Mode::empty(), how) {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Creates a folder with exactly this mode. A later chmod(2) might hit another folder: another process may have replaced it by
/// then. So the umask is cleared during creation, in a thread with its own umask.
fn make_folder(parent: BorrowedFd<'_>, name: &OsStr, mode: Mode) -> IoResult<()> {
    let make = || {
        // SAFETY: the thread was started only for this, and holds nothing that the process expects it to share.
        unsafe { unshare_unsafe(UnshareFlags::FS)? };
        umask(Mode::empty());
        fs::mkdirat(parent, name, mode)
    };
    let made =
        std::thread::scope(|scope| Ok::<_, IoError>(std::thread::Builder::new().spawn_scoped(scope, make)?.join()));
    made?.map_err(|_| IoError::other("the thread that makes a folder has panicked"))?.map_err(IoError::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use rustix::fs::RenameFlags;

    use super::*;

    /// A folder `volume` with mode 2777, which no umask allows, and one beside it.
    fn volume() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        for (folder, mode) in [(&volume, 0o2777), (&outside, 0o700)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        (dir, volume, outside)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn inode(held: &OwnedFd) -> u64 {
        fs::fstat(held).unwrap().st_ino
    }

    #[test]
    fn folders_are_made_as_open_as_the_volume() {
        let (_dir, volume, _) = volume();
        let held = open_or_make(&volume, Path::new("./a/./b")).unwrap();
        assert_eq!(inode(&held), std::fs::metadata(volume.join("a/b")).unwrap().ino());
        assert_eq!((mode(&volume.join("a")), mode(&volume.join("a/b"))), (0o2777, 0o2777));
        // The process's umask is unchanged.
        std::fs::create_dir(volume.join("plain")).unwrap();
        assert_ne!(mode(&volume.join("plain")) & 0o777, 0o777);
    }

    #[test]
    fn what_is_there_stays_as_it_is() {
        let (_dir, volume, _) = volume();
        std::fs::create_dir(volume.join("private")).unwrap();
        std::fs::set_permissions(volume.join("private"), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(volume.join("private/file"), "").unwrap();
        symlink("private", volume.join("link")).unwrap();
        open_or_make(&volume, Path::new("link/new")).unwrap();
        assert_eq!(mode(&volume.join("private")), 0o700);
        let held = open_or_make(&volume, Path::new("link/file")).unwrap();
        assert_eq!(inode(&held), std::fs::metadata(volume.join("private/file")).unwrap().ino());
    }

    #[test]
    fn nothing_leads_out() {
        let (_dir, volume, outside) = volume();
        symlink(&outside, volume.join("absolute")).unwrap();
        symlink("../outside", volume.join("relative")).unwrap();
        symlink("../outside/new", volume.join("dangling")).unwrap();
        symlink("/proc/self/root", volume.join("magic")).unwrap();
        for path in
            ["absolute", "absolute/x", "relative/x", "dangling", "dangling/x", "magic/tmp", "../outside", "/tmp"]
        {
            let led = open_or_make(&volume, Path::new(path)).map(|held| inode(&held));
            assert!(led.is_err(), "{path} was opened");
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        // Rejected lexically, before any system call.
        for path in ["../outside", "a/../../outside", "/tmp"] {
            let why = open_or_make(&volume, Path::new(path)).map(drop).map_err(|e| e.kind());
            assert_eq!(why, Err(ErrorKind::InvalidInput), "{path}");
        }
        assert!(!volume.join("a").exists());
    }

    #[test]
    fn a_plain_folder_has_no_link_in_its_path() {
        let (_dir, volume, outside) = volume();
        let held = plain_folder(&volume.join("a/b")).unwrap();
        assert_eq!(inode(&held), std::fs::metadata(volume.join("a/b")).unwrap().ino());
        symlink(&outside, volume.join("out")).unwrap();
        symlink("a", volume.join("in")).unwrap();
        std::fs::write(volume.join("file"), "").unwrap();
        for path in ["out", "out/x", "in/b", "file", "file/x", "a/../a"] {
            assert!(plain_folder(&volume.join(path)).is_err(), "{path}");
        }
        assert!(plain_folder(Path::new("tmp")).is_err(), "a relative path");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn a_race_for_what_is_made_changes_nothing_else() {
        let (_dir, volume, outside) = volume();
        let (private, new) = (volume.join("private"), volume.join("new"));
        std::fs::create_dir(&private).unwrap();
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(private.join("file"), "").unwrap();
        symlink("../outside", volume.join("link")).unwrap();
        let (inside, out) = (std::fs::metadata(&private).unwrap().ino(), std::fs::metadata(&outside).unwrap().ino());
        let look = |path: &Path| std::fs::symlink_metadata(path).ok().filter(|found| found.is_dir());
        let (ended, other_modes, mut led_out) = (AtomicBool::new(false), AtomicU32::new(0), false);
        std::thread::scope(|scope| {
            // As soon as a folder is created, something else replaces it for a moment.
            scope.spawn(|| {
                let others = [&private, &volume.join("link")];
                for other in others.iter().cycle().take_while(|_| !ended.load(Ordering::Relaxed)) {
                    let exchange = || fs::renameat_with(CWD, *other, CWD, &new, RenameFlags::EXCHANGE);
                    if exchange().is_ok() {
                        exchange().unwrap();
                    }
                }
            });
            // A folder whose mode changes was modified by chmod(2), which could have hit another one.
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    if look(&new).is_some_and(|found| found.ino() != inside && found.mode() & 0o7777 != 0o2777) {
                        other_modes.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            for _ in 0..10_000 {
                led_out |= open_or_make(&volume, Path::new("new")).is_ok_and(|held| inode(&held) == out);
                // It is not empty while it is the other.
                std::fs::remove_dir(&new).ok();
            }
            ended.store(true, Ordering::Relaxed);
        });
        assert!(!led_out, "what was opened is outside");
        assert_eq!(other_modes.into_inner(), 0, "folders were made with another mode than they have to have");
        let private = [&private, &new].into_iter().filter_map(|path| look(path)).find(|found| found.ino() == inside);
        assert_eq!(private.map(|found| found.mode() & 0o7777), Some(0o700), "a folder that was there has another mode");
        assert_eq!((mode(&outside), std::fs::read_dir(&outside).unwrap().count()), (0o700, 0));
    }
}
