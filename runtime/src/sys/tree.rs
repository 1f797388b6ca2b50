//! Folders with all in them, whatever a container has made there.

use std::ffi::{CStr, CString, OsStr};
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, ftruncate, openat, openat2, renameat, unlinkat};
use rustix::io::Errno;

use podwright_journal::Scribe;

use super::Kernel;
use super::quota::{self, Project};

const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What is mounted in a folder is not of it, not even where it is of the same file system.
const OWN: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS);
/// So often a folder is looked at again that somebody else still fills.
const ROUNDS: usize = 100;
/// So many names of a folder are read at a time: a container makes millions in one.
const PIECE: usize = 4096;

/// Removes a folder with all in it; a missing one is fine. Links are removed, not followed, and nothing is removed of what is
/// mounted in it: error EXDEV or EBUSY.
///
/// A container may nest folders as deep as its disk holds. So none is gone into: a folder within a folder is first brought up
/// below `path` itself, and two descriptors and one frame of the stack are enough. (`std::fs::remove_dir_all` takes one of each
/// for every level.)
pub fn remove_all(path: &Path) -> IoResult<()> {
    remove_below(path, |_| match std::fs::remove_dir(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        done => done.map(|()| true),
    })
}

/// Removes all that is in a folder, as [`remove_all`] does, but not the folder; a missing one is fine.
pub fn remove_content(path: &Path) -> IoResult<()> {
    remove_below(path, |root| Ok(piece(root, 1)?.is_empty()))
}

/// Has every file in a folder hold nothing, whoever has it open. Links are not followed, and what is mounted in it stays as it is.
/// What cannot be opened for writing at once stays, too: a program that runs, a file under a lease.
pub fn truncate_files(path: &Path) -> IoResult<()> {
    // Each descriptor is of a place below `path`, whatever is moved meanwhile.
    let root = openat(CWD, path, LIST, Mode::empty())?;
    let write = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut left = vec![PathBuf::from(".")];
    while let Some(folder) = left.pop() {
        let Ok(opened) = openat2(&root, &folder, LIST, Mode::empty(), OWN | ResolveFlags::BENEATH) else { continue };
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let below = folder.join(OsStr::from_bytes(name.to_bytes()));
            match openat2(&opened, name, write, Mode::empty(), OWN | ResolveFlags::BENEATH) {
                Ok(file) => ftruncate(&file, 0).or_else(|e| if e == Errno::INVAL { Ok(()) } else { Err(e) })?,
                Err(Errno::ISDIR) => left.push(below),
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Removes what is in a folder until `is_done` says so.
fn remove_below(path: &Path, is_done: impl Fn(&OwnedFd) -> IoResult<bool>) -> IoResult<()> {
    let root = match openat(CWD, path, LIST, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let (mut brought_up, mut rounds) = (0, 0);
    while rounds < ROUNDS {
        let mut left = piece(&root, PIECE)?;
        // Nobody has filled it again where there is more of it: so much of it goes now.
        rounds += usize::from(left.len() < PIECE);
        while let Some(name) = left.pop() {
            remove(&root, &name, &mut left, &mut brought_up)?;
        }
        if is_done(&root)? {
            return Ok(());
        }
    }
    Err(IoError::from(ErrorKind::DirectoryNotEmpty))
}

/// Removes an entry of `root`. The folders in it become entries of `root`; those that are not `left`, because there are many, stay
/// for the next look at it.
fn remove(root: &OwnedFd, name: &CStr, left: &mut Vec<CString>, brought_up: &mut u64) -> IoResult<()> {
    if is_removed(root, name)? {
        return Ok(());
    }
    let folder = match openat2(root, name, LIST, Mode::empty(), OWN) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    loop {
        let names = piece(&folder, PIECE)?;
        for inner in &names {
            if !is_removed(&folder, inner)?
                && let Some(above) = bring_up(&folder, inner, root, brought_up)?
                && left.len() < PIECE
            {
                left.push(above);
            }
        }
        if names.len() < PIECE {
            break;
        }
    }
    // One that somebody has filled meanwhile is seen in the next round.
    is_removed(root, name).map(drop)
}

/// Makes a folder in `folder` an entry of `root`: its name there. `None`: it is gone.
fn bring_up(folder: &OwnedFd, name: &CStr, root: &OwnedFd, brought_up: &mut u64) -> IoResult<Option<CString>> {
    loop {
        *brought_up += 1;
        let above = CString::new(format!(".removed-{brought_up}"))?;
        // No entry that was here before: a folder cannot take the place of a file, nor of a folder that is not empty.
        match renameat(folder, name, root, &above) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => continue,
            Err(Errno::NOENT) => return Ok(None),
            // `root` takes nothing of another project; somebody has changed that of the folder. One without a project does.
            Err(Errno::XDEV) if quota::project(root.as_fd()).is_ok_and(|project| project.inherited) => {
                Kernel::new(&Scribe::none())
                    .set_project(root.as_fd(), Path::new("."), Project::default())
                    .map_err(|e| e.source)?;
            }
            moved => return Ok(moved.map(|()| Some(above))?),
        }
    }
}

/// Removes a file, or an empty folder; says whether it is gone.
fn is_removed(of: &OwnedFd, name: &CStr) -> IoResult<bool> {
    let removed = match unlinkat(of, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => unlinkat(of, name, AtFlags::REMOVEDIR),
        other => other,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The first names of a folder, so many at most.
fn piece(folder: &OwnedFd, most: usize) -> IoResult<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
        if names.len() == most {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_truncated_and_what_links_lead_to_is_not() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (deep, outside) = (root.path().join("a/b/file"), other.path().join("file"));
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        for path in [&deep, &root.path().join("file"), &outside] {
            std::fs::write(path, "text").unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.path().join("link")).unwrap();
        std::os::unix::fs::symlink(other.path(), root.path().join("a/folder")).unwrap();
        let fifo = CString::new(root.path().join("fifo").as_os_str().as_bytes()).unwrap();
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let open = std::fs::File::open(&deep).unwrap();
        truncate_files(root.path()).unwrap();
        assert_eq!((open.metadata().unwrap().len(), std::fs::read(root.path().join("file")).unwrap()), (0, vec![]));
        assert_eq!(std::fs::read(&outside).unwrap(), b"text");
    }

    #[test]
    fn a_folder_stays_where_its_content_goes() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        std::fs::write(root.path().join("a/b/file"), "text").unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("link")).unwrap();
        remove_content(root.path()).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        remove_content(&root.path().join("missing")).unwrap();
    }

    #[test]
    fn no_folder_is_too_deep() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("top");
        std::fs::create_dir(&top).unwrap();
        std::fs::write(top.join(".removed-1"), "a name that is taken").unwrap();
        std::os::unix::fs::symlink(root.path(), top.join("elsewhere")).unwrap();
        let mut at = openat(CWD, &top, LIST, Mode::empty()).unwrap();
        for level in 0..20_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            if level % 1000 == 0 {
                rustix::fs::mkdirat(&at, OsStr::from_bytes(b"\xff"), Mode::RWXU).unwrap();
                rustix::fs::symlinkat("/", &at, "link").unwrap();
            }
            at = openat(&at, "d", LIST, Mode::empty()).unwrap();
        }
        let small = std::thread::Builder::new().stack_size(128 << 10);
        let removed = small.spawn(move || remove_all(&top)).unwrap().join().unwrap();
        if removed.is_err() {
            // Its own removal would go too deep.
            std::mem::forget(root);
            panic!("{removed:?}");
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "and nothing but that");
        remove_all(&root.path().join("missing")).unwrap();
    }

    #[test]
    fn a_folder_of_many_names_goes_in_pieces() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: String| root.path().join(path);
        for n in 0..2 * PIECE + 100 {
            std::fs::write(at(format!("file{n}")), "").unwrap();
        }
        for n in 0..PIECE + 100 {
            std::fs::create_dir_all(at(format!("wide/d{n}/in"))).unwrap();
            std::fs::write(at(format!("wide/f{n}")), "").unwrap();
        }
        let opened = openat(CWD, root.path(), LIST, Mode::empty()).unwrap();
        assert_eq!((piece(&opened, PIECE).unwrap().len(), piece(&opened, 1).unwrap().len()), (PIECE, 1));
        let mut left = Vec::new();
        remove(&opened, c"wide", &mut left, &mut 0).unwrap();
        assert_eq!(left.len(), PIECE, "no more are held, whatever a folder has");
        assert!(!at("wide".to_owned()).exists());
        remove_content(root.path()).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
