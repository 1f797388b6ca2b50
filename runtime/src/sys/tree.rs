//! Removes folders with their contents, whatever a container has created there.

use std::ffi::{CStr, CString};
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags, ftruncate, openat, openat2, renameat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;

use podwright_journal::JournalWriter;

use super::Kernel;
use super::quota::{self, Project};

const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Mounts in a folder are excluded, even of the same file system.
const OWN: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS);
/// How often a folder is read again while another process keeps adding a few names.
const ROUNDS: usize = 100;
/// Longer than any legitimate removal. A folder that keeps being filled by the thousand is given up by then.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// Names read at a time: a container may create millions in one folder.
const PIECE: usize = 4096;

/// Removes a folder with its contents; succeeds if it does not exist. Symlinks are removed, not followed, and nothing is removed
/// from mounts in it: error EXDEV or EBUSY.
///
/// A container may nest folders arbitrarily deep. So it does not recurse: nested folders are first moved up directly below `path`,
/// so that two descriptors and one stack frame suffice. (`std::fs::remove_dir_all` needs one of each per level.)
pub fn remove_all(path: &Path) -> IoResult<()> {
    remove_below(path, LONGEST, |_| is_gone(path))
}

/// Removes an empty folder; returns whether it is gone.
fn is_gone(path: &Path) -> IoResult<bool> {
    match std::fs::remove_dir(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        done => done.map(|()| true),
    }
}

/// Removes a folder as [`remove_all`] does, for about `within`; returns whether it is gone. The rest is found again.
pub fn remove_for(path: &Path, within: Duration) -> IoResult<bool> {
    let end = Instant::now() + within;
    unless_late(remove_below(path, within, |_| is_gone(path)), end)
}

/// Whether everything is gone; `false` on timeout.
fn unless_late(removed: IoResult<()>, end: Instant) -> IoResult<bool> {
    match removed {
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty && Instant::now() >= end => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// Opens a folder, independent of later renames.
pub fn hold(path: &Path) -> IoResult<OwnedFd> {
    Ok(openat(CWD, path, LIST, Mode::empty())?)
}

/// Removes the contents of a folder as [`remove_all`] does, but not the folder, for about `within`; returns whether it is empty.
/// The entries `last` are kept until nothing else is left.
pub fn empty_for(folder: &OwnedFd, last: &[&str], within: Duration) -> IoResult<bool> {
    let end = Instant::now() + within;
    let others_are_gone = |folder: &OwnedFd| {
        let left = piece(&mut Dir::read_from(folder)?, last.len() + 1)?;
        Ok(left.iter().all(|name| is_one(last, name)))
    };
    let emptied = remove_in(folder.try_clone()?, last, within, others_are_gone);
    let emptied = emptied.and_then(|()| remove_in(folder.try_clone()?, &[], within, is_empty));
    unless_late(emptied, end)
}

fn is_one(of: &[&str], name: &CStr) -> bool {
    of.iter().any(|one| one.as_bytes() == name.to_bytes())
}

fn is_empty(folder: &OwnedFd) -> IoResult<bool> {
    Ok(piece(&mut Dir::read_from(folder)?, 1)?.is_empty())
}

/// Renames a folder to an unused one of these names beside it, atomically; returns its new path. `None`: it does not exist.
///
/// It stays in its parent, so holders of a lock on the folder itself do not block this, as they would a move to another parent.
pub fn put_aside(folder: &Path, names: impl IntoIterator<Item = String>) -> IoResult<Option<PathBuf>> {
    for name in names {
        let aside = folder.with_file_name(name);
        match renameat_with(CWD, folder, CWD, &aside, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(None),
            moved => return Ok(moved.map(|()| Some(aside))?),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Renames a folder to a name that was freed by moving aside, unless it exists again.
pub fn take_place(new: &Path, folder: &Path) -> IoResult<()> {
    Ok(renameat_with(CWD, new, CWD, folder, RenameFlags::NOREPLACE)?)
}

/// Removes all that is in a folder as [`remove_all`] does, but not the folder, and has each file hold nothing before its name goes, whoever has it open.
/// What cannot be opened for writing at once keeps what it holds: a program that runs, a file under a lease. It takes no longer than
/// `within`: error ENOTEMPTY.
pub fn wipe(path: &Path, within: Duration) -> IoResult<()> {
    let root = openat(CWD, path, LIST, Mode::empty())?;
    Removal { wipes: true, ..Removal::of(root, Instant::now() + within) }.run(&[], is_empty)
}

/// The removal of a folder's contents, and its deadline.
struct Removal {
    root: OwnedFd,
    end: Instant,
    /// Number of folders moved up: gives each a unique name.
    brought_up: u64,
    /// The next ones to remove.
    next: Vec<CString>,
    /// Whether there are more than in `next`.
    has_more: bool,
    /// Whether anything was removed.
    goes_on: bool,
    /// Whether files are truncated first.
    wipes: bool,
    /// The first error.
    error: Option<IoError>,
}

/// Removes the contents of a folder until `is_done` returns true.
fn remove_below(path: &Path, within: Duration, is_done: impl Fn(&OwnedFd) -> IoResult<bool>) -> IoResult<()> {
    let root = match openat(CWD, path, LIST, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    remove_in(root, &[], within, is_done)
}

/// The same for an open folder, except its entries `kept`. One that cannot be removed does not keep the others.
fn remove_in(
    root: OwnedFd,
    kept: &[&str],
    within: Duration,
    is_done: impl Fn(&OwnedFd) -> IoResult<bool>,
) -> IoResult<()> {
    Removal::of(root, Instant::now() + within).run(kept, is_done)
}

impl Removal {
    fn of(root: OwnedFd, end: Instant) -> Removal {
        // Avoids names left by an earlier attempt, which would have to be tried one by one.
        let brought_up = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        Removal { root, end, brought_up, next: Vec::new(), has_more: false, goes_on: false, wipes: false, error: None }
    }

    fn run(mut self, kept: &[&str], is_done: impl Fn(&OwnedFd) -> IoResult<bool>) -> IoResult<()> {
        let mut rounds = 0;
        while rounds < ROUNDS {
            self.has_more = false;
            let mut entries = Dir::read_from(&self.root)?;
            loop {
                let names = piece(&mut entries, PIECE)?;
                if names.is_empty() {
                    break;
                }
                self.in_time()?;
                for name in names.iter().filter(|name| !is_one(kept, name)) {
                    self.attempt(name)?;
                    while let Some(name) = self.next.pop() {
                        self.attempt(&name)?;
                    }
                }
            }
            match (self.error.take(), is_done(&self.root)) {
                (_, Ok(true)) => return Ok(()),
                (Some(error), _) | (None, Err(error)) if !self.has_more => return Err(error),
                _ => {}
            }
            // If what is left was moved up by this removal, the folder is not being refilled.
            rounds += usize::from(!self.has_more);
        }
        Err(IoError::from(ErrorKind::DirectoryNotEmpty))
    }

    fn in_time(&mut self) -> IoResult<()> {
        match Instant::now() > self.end {
            true if self.goes_on => Err(IoError::from(ErrorKind::DirectoryNotEmpty)),
            // More time would not help.
            true => Err(self.error.take().unwrap_or_else(|| IoError::from(ErrorKind::DirectoryNotEmpty))),
            false => Ok(()),
        }
    }

    /// Removes an entry of `root`, or records the error. Fails on timeout.
    fn attempt(&mut self, name: &CStr) -> IoResult<()> {
        let removed = self.remove(name);
        self.note(removed);
        self.in_time()
    }

    fn note(&mut self, removed: IoResult<bool>) {
        match removed {
            Ok(gone) => self.goes_on |= gone,
            Err(error) => drop(self.error.get_or_insert(error)),
        }
    }

    /// Removes an entry of `root`. Folders in it become entries of `root`; those beyond `next` are found when it is read again.
    /// Returns whether it is gone.
    fn remove(&mut self, name: &CStr) -> IoResult<bool> {
        self.wipe(&self.root, name)?;
        if is_removed(&self.root, name)? {
            return Ok(true);
        }
        let folder = match openat2(&self.root, name, LIST, Mode::empty(), OWN) {
            Err(Errno::NOENT) => return Ok(true),
            other => other?,
        };
        let mut entries = Dir::read_from(&folder)?;
        loop {
            self.in_time()?;
            let names = piece(&mut entries, PIECE)?;
            if names.is_empty() {
                break;
            }
            for inner in &names {
                let removed = self.remove_inner(&folder, inner);
                self.note(removed);
            }
        }
        // One that was filled meanwhile is handled in the next round.
        is_removed(&self.root, name)
    }

    /// Truncates a file, if requested.
    fn wipe(&self, folder: &OwnedFd, name: &CStr) -> IoResult<()> {
        let write = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !self.wipes {
            return Ok(());
        }
        match openat2(folder, name, write, Mode::empty(), OWN | ResolveFlags::BENEATH) {
            // Files without a length need no truncation.
            Ok(file) => Ok(ftruncate(&file, 0).or_else(|e| if e == Errno::INVAL { Ok(()) } else { Err(e) })?),
            // A folder, a symlink, in use, or gone.
            Err(_) => Ok(()),
        }
    }

    /// Removes an entry of a nested folder, or makes it an entry of `root`.
    fn remove_inner(&mut self, folder: &OwnedFd, name: &CStr) -> IoResult<bool> {
        self.wipe(folder, name)?;
        if is_removed(folder, name)? {
            return Ok(true);
        }
        match bring_up(folder, name, &self.root, &mut self.brought_up)? {
            Some(above) if self.next.len() < PIECE => self.next.push(above),
            brought => self.has_more |= brought.is_some(),
        }
        Ok(true)
    }
}

/// Moves a folder in `folder` up to `root`; returns its new name. `None`: it is gone.
fn bring_up(folder: &OwnedFd, name: &CStr, root: &OwnedFd, brought_up: &mut u64) -> IoResult<Option<CString>> {
    loop {
        *brought_up += 1;
        let above = CString::new(format!(".removed-{brought_up}"))?;
        // Replaces no earlier entry: a folder cannot replace a file, nor a non-empty folder.
        match renameat(folder, name, root, &above) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => continue,
            Err(Errno::NOENT) => return Ok(None),
            // `root` rejects another project; the folder's was changed externally. A folder without a project accepts it.
            Err(Errno::XDEV) if quota::project(root.as_fd()).is_ok_and(|project| project.inherited) => {
                Kernel::new(&JournalWriter::none())
                    .set_project(root.as_fd(), Path::new("."), Project::default())
                    .map_err(|e| e.source)?;
            }
            moved => return Ok(moved.map(|()| Some(above))?),
        }
    }
}

/// Removes a file, or an empty folder; returns whether it is gone.
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

/// At most `most` further names of a folder; none at the end.
fn piece(entries: &mut Dir, most: usize) -> IoResult<Vec<CString>> {
    let mut names = Vec::new();
    for entry in entries {
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
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use rustix::fs::inotify;

    use super::*;

    #[test]
    fn files_are_wiped_and_what_links_lead_to_is_not() {
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
        wipe(root.path(), LONGEST).unwrap();
        assert_eq!((open.metadata().unwrap().len(), std::fs::read_dir(root.path()).unwrap().count()), (0, 0));
        assert_eq!(std::fs::read(&outside).unwrap(), b"text");
    }

    /// Deeper than PATH_MAX.
    #[test]
    fn files_are_wiped_however_deep_they_lie() {
        let root = tempfile::tempdir().unwrap();
        let (mut at, name) = (hold(root.path()).unwrap(), "d".repeat(250));
        for _ in 0..40 {
            rustix::fs::mkdirat(&at, &*name, Mode::RWXU).unwrap();
            at = openat(&at, &*name, LIST, Mode::empty()).unwrap();
        }
        let file = openat(&at, "file", OFlags::CREATE | OFlags::RDWR, Mode::RUSR).unwrap();
        rustix::io::write(&file, b"text").unwrap();
        wipe(root.path(), LONGEST).unwrap();
        let left = std::fs::read_dir(root.path()).unwrap().count();
        assert_eq!((rustix::fs::fstat(&file).unwrap().st_size, left), (0, 0));
    }

    #[test]
    fn a_folder_stays_where_its_content_goes() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        std::fs::write(root.path().join("a/b/file"), "text").unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("link")).unwrap();
        wipe(root.path(), LONGEST).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
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
            // Its own removal would recurse too deep.
            std::mem::forget(root);
            panic!("{removed:?}");
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "and nothing but that");
        remove_all(&root.path().join("missing")).unwrap();
    }

    /// Another process has the folder open and creates files faster than they are removed.
    #[test]
    fn a_folder_that_somebody_goes_on_filling_is_given_up() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        let why = wipe(root.path(), Duration::ZERO).unwrap_err();
        assert_eq!(why.kind(), ErrorKind::DirectoryNotEmpty);
        wipe(root.path(), LONGEST).unwrap();
    }

    /// What was removed from a folder since `watch` was created, in order.
    fn gone(watch: &OwnedFd) -> Vec<String> {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut buffer);
        let names = std::iter::from_fn(|| match events.next() {
            Ok(event) => Some(event.file_name().unwrap().to_str().unwrap().to_owned()),
            Err(Errno::AGAIN) => None,
            Err(error) => panic!("{error}"),
        });
        names.collect()
    }

    /// If killed between two of these steps, what must go last is still there.
    #[test]
    fn what_is_to_go_last_goes_after_all_else_and_a_folder_with_all_in_it() {
        for (name, is_folder) in [("owner", false), ("a-folder-of-that-name", true)] {
            let root = tempfile::tempdir().unwrap();
            let (folder, last) = (root.path(), root.path().join(name));
            match is_folder {
                true => std::fs::create_dir_all(last.join("in/it")).unwrap(),
                false => std::fs::write(&last, "").unwrap(),
            }
            for n in 0..50 {
                std::fs::create_dir_all(folder.join(format!("d{n}/a/b"))).unwrap();
                std::fs::write(folder.join(format!("d{n}/a/file")), "").unwrap();
                std::fs::write(folder.join(format!("f{n}")), "").unwrap();
            }
            let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
            inotify::add_watch(&watch, folder, inotify::WatchFlags::DELETE).unwrap();
            assert!(empty_for(&hold(folder).unwrap(), &[name], Duration::from_secs(60)).unwrap());
            let gone = gone(&watch);
            let at = gone.iter().position(|gone| gone == name).unwrap();
            // What was in the others is moved up beside them, and also goes before it.
            assert_eq!(gone[..at].len(), 50 * 3, "{gone:?}");
            assert_eq!(gone[at + 1..].len(), usize::from(is_folder), "{gone:?}");
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_large_folder_goes_a_while_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let large = root.path().join("large");
        for n in 0..2 * PIECE {
            std::fs::create_dir_all(large.join(format!("wide/d{n}/in"))).unwrap();
        }
        let mut turns = 0;
        while !remove_for(&large, Duration::from_millis(20)).unwrap() {
            turns += 1;
        }
        assert!(turns > 0 && !large.exists());
        assert!(remove_for(&large, Duration::ZERO).unwrap());
    }

    #[test]
    fn what_is_put_aside_takes_a_name_that_is_free() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        let names = || (0..).map(|n| format!(".aside-{n}"));
        assert_eq!(put_aside(&folder, names()).unwrap(), None);
        for n in 0..3 {
            std::fs::create_dir_all(folder.join("in")).unwrap();
            assert_eq!(put_aside(&folder, names()).unwrap(), Some(root.path().join(format!(".aside-{n}"))));
            assert!(!folder.exists() && root.path().join(format!(".aside-{n}/in")).exists());
        }
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
        let mut entries = Dir::read_from(&opened).unwrap();
        assert_eq!((piece(&mut entries, PIECE).unwrap().len(), piece(&mut entries, 1).unwrap().len()), (PIECE, 1));
        let mut removal = Removal::of(opened, Instant::now() + LONGEST);
        removal.remove(c"wide").unwrap();
        assert_eq!((removal.next.len(), removal.has_more), (PIECE, true), "no more are held, whatever a folder has");
        assert!(!at("wide".to_owned()).exists());
        wipe(root.path(), LONGEST).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
