//! How much of a disk a folder holds, counted file by file, whatever a container has made there.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io::{Error as IoError, Result as IoResult};
use std::mem::MaybeUninit;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat, fstat, openat, openat2, seek, statat,
};
use rustix::io::Errno;

use super::own::thread_time;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A folder of the same mount, never what is mounted on it.
const HERE: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// So many folders, one within the other, are held open. No honest tree is deeper; below that the way back is `..`.
const HELD: usize = 256;
/// Bytes of names that are read at once.
const BATCH: usize = 32 << 10;
/// Files between two looks at the clock.
const STRIDE: u32 = 256;
/// Work that is done at full speed; after that a walk rests three times as long as it works.
const SPRINT: Duration = Duration::from_millis(200);

/// What a folder holds, with the folder itself.
///
/// Counted are blocks, so holes of files cost nothing, and each inode once, however many names it has here. Files that are
/// deleted and still open are not seen (see [`unlinked`](super::unlinked)). While the folder changes, what moves may be missed,
/// but is not counted twice unless it is a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    pub bytes: u64,
    pub inodes: u64,
    /// Not all was seen: the tree grows faster than it is counted, or moves, deeper than any honest one, while it is.
    pub evades: bool,
    /// CPU time that the walk has cost.
    pub cost: Duration,
}

impl AddAssign for Measure {
    fn add_assign(&mut self, other: Measure) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
        self.evades |= other.evades;
        self.cost += other.cost;
    }
}

/// Counts what `path` (a folder, or one file) holds; a missing one holds nothing. Follows no symlink and enters no mount.
/// Gives up after `most` CPU time: somebody makes files faster than they are counted.
///
/// Blocks its thread, for seconds where there are a million files. Needs at most [`HELD`] descriptors, and memory for the
/// folders and the hard links that it has seen.
///
/// # Errors
///
/// The first of openat2(2), getdents64(2), lseek(2), fstat(2), but for what has just gone.
pub fn measure(path: &Path, most: Duration) -> IoResult<Measure> {
    let mut walk = Walk::new(most);
    match openat(CWD, path, FOLDER, Mode::empty()) {
        Ok(root) => walk.tree(root)?,
        Err(Errno::NOTDIR | Errno::LOOP) => walk.file(CWD, &CString::new(path.as_os_str().as_encoded_bytes())?)?,
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(Measure { cost: walk.pace.cost(), ..walk.sum })
}

struct Walk {
    sum: Measure,
    /// Folders, and files with several names, by device and inode.
    seen: HashSet<(u64, u64)>,
    pace: Pace,
    most: Duration,
    buffer: Vec<MaybeUninit<u8>>,
}

/// A folder that is being counted.
struct Level {
    /// `None`: too deep to be held open.
    folder: Option<OwnedFd>,
    id: (u64, u64),
    /// Where in the folder to read on, and whether there is more.
    cookie: u64,
    more: bool,
    /// Folders in it that are still to be counted.
    folders: Vec<CString>,
}

impl Walk {
    fn new(most: Duration) -> Walk {
        let buffer = vec![MaybeUninit::uninit(); BATCH];
        Walk { sum: Measure::default(), seen: HashSet::new(), pace: Pace::new(), most, buffer }
    }

    fn tree(&mut self, root: OwnedFd) -> IoResult<()> {
        let mut levels: Vec<Level> = self.enter(root)?.into_iter().collect();
        while let Some(level) = levels.last_mut() {
            if self.pace.cost() > self.most {
                self.sum.evades = true;
                return Ok(());
            }
            // The invariant: the last level is open; `leave` opens the one that becomes the last.
            let Some(folder) = level.folder.as_ref() else { break };
            if let Some(name) = level.folders.pop() {
                let inner = match openat2(folder, &*name, FOLDER, Mode::empty(), HERE) {
                    Ok(inner) => self.enter(inner)?,
                    // It went, was replaced, or is a mount.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::AGAIN) => None,
                    Err(errno) => return Err(errno.into()),
                };
                if let Some(inner) = inner {
                    if levels.len() > HELD
                        && let Some(outer) = levels.last_mut()
                    {
                        outer.folder = None;
                    }
                    levels.push(inner);
                }
            } else if level.more {
                self.read(level)?;
            } else {
                self.leave(&mut levels)?;
            }
        }
        Ok(())
    }

    /// A folder that was opened, unless it has been counted before.
    fn enter(&mut self, folder: OwnedFd) -> IoResult<Option<Level>> {
        let stat = fstat(&folder)?;
        let id = id(&stat);
        if !self.seen.insert(id) {
            return Ok(None);
        }
        self.add(&stat);
        Ok(Some(Level { folder: Some(folder), id, cookie: 0, more: true, folders: Vec::new() }))
    }

    /// Goes back to the folder above. One that was not held is reached by `..`, if it is still there.
    fn leave(&mut self, levels: &mut Vec<Level>) -> IoResult<()> {
        let Some(left) = levels.pop() else { return Ok(()) };
        let Some(outer) = levels.last_mut().filter(|outer| outer.folder.is_none()) else { return Ok(()) };
        if let Some(inner) = left.folder {
            let above = openat2(&inner, c"..", FOLDER, Mode::empty(), HERE);
            if let Ok(above) = above
                && fstat(&above).is_ok_and(|stat| id(&stat) == outer.id)
            {
                seek(&above, SeekFrom::Start(outer.cookie))?;
                outer.folder = Some(above);
                return Ok(());
            }
        }
        self.sum.evades = true;
        let held = levels.iter().rposition(|level| level.folder.is_some());
        levels.truncate(held.map_or(0, |at| at + 1));
        Ok(())
    }

    /// Reads the next names of a folder: files are counted at once, folders later.
    fn read(&mut self, level: &mut Level) -> IoResult<()> {
        let Some(folder) = level.folder.as_ref() else { return Ok(()) };
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut entries = RawDir::new(folder, &mut buffer);
        let mut result = Ok(());
        level.more = false;
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // The folder itself was deleted.
                Err(Errno::NOENT) => break,
                Err(errno) => {
                    result = Err(errno.into());
                    break;
                }
            };
            level.cookie = entry.next_entry_cookie();
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                match entry.file_type() {
                    FileType::Directory => level.folders.push(name.to_owned()),
                    FileType::Unknown if is_folder(folder.as_fd(), name) => level.folders.push(name.to_owned()),
                    _ => result = self.file(folder, name),
                }
            }
            if result.is_err() || entries.is_buffer_empty() {
                level.more = true;
                break;
            }
        }
        self.buffer = buffer;
        result
    }

    fn file(&mut self, folder: impl AsFd, name: &CStr) -> IoResult<()> {
        self.pace.step();
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(stat) => {
                if stat.st_nlink < 2 || self.seen.insert(id(&stat)) {
                    self.add(&stat);
                }
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(IoError::from(errno)),
        }
    }

    fn add(&mut self, stat: &Stat) {
        /// The unit of `st_blocks`, whatever the file system's own.
        const BLOCK: u64 = 512;
        self.pace.step();
        self.sum.bytes = self.sum.bytes.saturating_add((stat.st_blocks as u64).saturating_mul(BLOCK));
        self.sum.inodes += 1;
    }
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> bool {
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Keeps a long walk from taking a CPU for itself.
pub(super) struct Pace {
    steps: u32,
    /// This thread's CPU time at the beginning, and after the last rest.
    begin: Duration,
    rested: Duration,
}

impl Pace {
    pub(super) fn new() -> Pace {
        let now = thread_time();
        Pace { steps: 0, begin: now, rested: now }
    }

    pub(super) fn cost(&self) -> Duration {
        thread_time() - self.begin
    }

    pub(super) fn step(&mut self) {
        self.steps += 1;
        if self.steps % STRIDE != 0 || self.cost() < SPRINT {
            return;
        }
        let now = thread_time();
        std::thread::sleep((now - self.rested) * 3);
        self.rested = now;
    }
}
