//! Measures the disk usage of a folder file by file, whatever a container has created there.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::io::{Error as IoError, Result as IoResult};
use std::mem::MaybeUninit;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat, fstat, openat, openat2, seek, statat,
};
use rustix::io::Errno;

use super::own::thread_time;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A folder on the same mount, never a mount on it.
const HERE: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Maximum nested folders held open. No legitimate tree is deeper; below that, `..` leads back.
const HELD: usize = 256;
/// Bytes of names read at once.
const BATCH: usize = 32 << 10;
/// Files between two checks of the clock.
const STRIDE: u32 = 256;
/// Number of passes over a changing tree, and of further ones while its processes are frozen.
const ROUNDS: u32 = 4;
/// Later changes have another timestamp: the slowest kernel ticks a hundred times per second.
const TICK: Duration = Duration::from_millis(20);
/// CPU time during which processes may be frozen.
const STILL: Duration = Duration::from_secs(5);
/// Work done at full speed; afterwards a walk rests three times as long as it works.
const SPRINT: Duration = Duration::from_millis(200);

/// The usage of a folder, including itself.
///
/// Blocks are counted, so holes are free, and each inode once, however many links it has here. Unlinked open files are not seen
/// (see [`unlinked`](super::unlinked)). While the folder changes, moved items may be missed (except with [`settled`]), but only
/// files are ever counted twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    pub bytes: u64,
    pub inodes: u64,
    /// Not everything was seen: the tree grows faster than it is counted, or moves while being counted, deeper than any legitimate
    /// one.
    pub evades: bool,
    /// CPU time used by the walk.
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

/// Measures `path` (a folder, or a file); a missing one is empty. Follows no symlink and enters no mount. Gives up after `most` CPU
/// time: files may be created faster than they are counted.
///
/// Blocks its thread, for seconds with a million files. Needs at most [`HELD`] descriptors, and memory for the folders and hard
/// links seen.
///
/// # Errors
///
/// The first of openat2(2), getdents64(2), lseek(2), fstat(2), except for what has just been removed.
pub fn measure(path: &Path, most: Duration) -> IoResult<Measure> {
    let mut walk = Walk::new(most);
    walk.pass(path)?;
    Ok(walk.measure())
}

/// [`measure`] for a tree whose owner may move files behind the walk (observing it with inotify(7)): repeated until no folder has changed since it was read, so that the result was true at one point in time. Files are read again only in changed folders. After [`ROUNDS`] everything is frozen through `still` until it is done; what changes even then is evading.
///
/// # Errors
///
/// Those of [`measure`].
pub fn settled<S>(path: &Path, most: Duration, still: impl FnOnce() -> S) -> IoResult<Measure> {
    let mut walk = Walk::new(most);
    walk.pass(path)?;
    for _ in 0..ROUNDS {
        if walk.again(path)? {
            return Ok(walk.measure());
        }
    }
    let _still = still();
    walk.hurry();
    std::thread::sleep(TICK);
    for _ in 0..ROUNDS {
        if walk.again(path)? {
            return Ok(walk.measure());
        }
    }
    walk.sum.evades = true;
    Ok(walk.measure())
}

/// Device and inode.
type Id = (u64, u64);

struct Walk {
    sum: Measure,
    /// The number of this pass, and whether everything so far is unchanged since the previous one.
    pass: u32,
    same: bool,
    /// Some folders changed so recently that a later change may not be detectable.
    racy: bool,
    folders: HashMap<Id, Counted>,
    /// Files with several links, counted outside the folders' sums: the next pass may find them in another folder.
    linked: HashSet<Id>,
    links: Measure,
    pace: Pace,
    most: Duration,
    buffer: Vec<MaybeUninit<u8>>,
}

/// A counted folder, with its files that have one link.
struct Counted {
    /// The last pass that saw it.
    pass: u32,
    /// Its last change; see [`changed`].
    changed: Option<i64>,
    bytes: u64,
    inodes: u64,
}

/// A folder being counted.
struct Level {
    /// `None`: too deep to be held open.
    folder: Option<OwnedFd>,
    id: Id,
    /// The position in the folder, and whether there is more.
    cookie: u64,
    more: bool,
    /// Subfolders still to be counted.
    folders: Vec<CString>,
    /// Its files are unchanged since they were counted.
    known: bool,
}

impl Walk {
    fn new(most: Duration) -> Walk {
        Walk {
            sum: Measure::default(),
            pass: 0,
            same: true,
            racy: false,
            folders: HashMap::new(),
            linked: HashSet::new(),
            links: Measure::default(),
            pace: Pace::new(),
            most,
            buffer: vec![MaybeUninit::uninit(); BATCH],
        }
    }

    fn measure(&self) -> Measure {
        let mut sum = self.sum;
        sum += self.links;
        Measure { cost: self.pace.cost(), ..sum }
    }

    /// One walk from the beginning.
    fn pass(&mut self, path: &Path) -> IoResult<()> {
        (self.sum, self.pass) = (Measure::default(), self.pass + 1);
        (self.same, self.racy) = (true, false);
        match openat(CWD, path, FOLDER, Mode::empty()) {
            Ok(root) => self.tree(root),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let file = self.file(CWD, &CString::new(path.as_os_str().as_encoded_bytes())?)?;
                self.sum += file;
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Another pass; returns whether it is the last: nothing has changed, or it takes too long.
    fn again(&mut self, path: &Path) -> IoResult<bool> {
        if self.racy {
            std::thread::sleep(TICK);
        }
        self.pass(path)?;
        let is_over = self.pace.cost() > self.most;
        self.sum.evades |= is_over && !self.same;
        Ok(is_over || (self.same && !self.sum.evades))
    }

    /// Stops resting: processes are frozen.
    fn hurry(&mut self) {
        self.pace.rests = false;
        self.most = self.most.min(self.pace.cost() + STILL);
    }

    fn tree(&mut self, root: OwnedFd) -> IoResult<()> {
        let mut levels: Vec<Level> = self.enter(root)?.into_iter().collect();
        while let Some(level) = levels.last_mut() {
            if self.pace.cost() > self.most {
                self.sum.evades = true;
                return Ok(());
            }
            // Invariant: the last level is open; `leave` opens the one that becomes the last.
            let Some(folder) = level.folder.as_ref() else { break };
            if let Some(name) = level.folders.pop() {
                let inner = match openat2(folder, &*name, FOLDER, Mode::empty(), HERE) {
                    Ok(inner) => self.enter(inner)?,
                    // Removed, replaced, or a mount.
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

    /// An opened folder, unless it has been seen in this pass.
    fn enter(&mut self, folder: OwnedFd) -> IoResult<Option<Level>> {
        let stat = fstat(&folder)?;
        let id = id(&stat);
        let before = self.folders.get(&id);
        if before.is_some_and(|before| before.pass == self.pass) {
            return Ok(None);
        }
        self.pace.step();
        let changed = changed(&stat);
        let known = changed.is_some() && before.is_some_and(|before| before.changed == changed);
        let own = match before {
            Some(Counted { bytes, inodes, .. }) if known => {
                Measure { bytes: *bytes, inodes: *inodes, ..Measure::default() }
            }
            _ => counted(&stat),
        };
        self.same &= known;
        self.racy |= changed.is_none();
        self.sum += own;
        self.folders.insert(id, Counted { pass: self.pass, changed, bytes: own.bytes, inodes: own.inodes });
        Ok(Some(Level { folder: Some(folder), id, cookie: 0, more: true, folders: Vec::new(), known }))
    }

    /// Returns to the parent folder. One that was not held open is reached by `..`, if it still exists.
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
        for lost in levels.drain(held.map_or(0, |at| at + 1)..) {
            // It was not read completely.
            self.folders.remove(&lost.id);
        }
        Ok(())
    }

    /// Reads the next names of a folder: files are counted at once, folders later.
    fn read(&mut self, level: &mut Level) -> IoResult<()> {
        let Some(folder) = level.folder.as_ref() else { return Ok(()) };
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut entries = RawDir::new(folder, &mut buffer);
        let (mut result, mut own) = (Ok(()), Measure::default());
        level.more = false;
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // The folder itself was removed.
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
                    _ if level.known => self.pace.step(),
                    _ => result = self.file(folder, name).map(|file| own += file),
                }
            }
            if result.is_err() || entries.is_buffer_empty() {
                level.more = true;
                break;
            }
        }
        self.buffer = buffer;
        self.sum += own;
        if let Some(counted) = self.folders.get_mut(&level.id) {
            counted.bytes = counted.bytes.saturating_add(own.bytes);
            counted.inodes += own.inodes;
        }
        result
    }

    /// A file with one link; others are counted separately.
    fn file(&mut self, folder: impl AsFd, name: &CStr) -> IoResult<Measure> {
        self.pace.step();
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(stat) if stat.st_nlink < 2 => Ok(counted(&stat)),
            Ok(stat) => {
                if self.linked.insert(id(&stat)) {
                    self.links += counted(&stat);
                }
                Ok(Measure::default())
            }
            Err(Errno::NOENT) => Ok(Measure::default()),
            Err(errno) => Err(IoError::from(errno)),
        }
    }
}

fn counted(stat: &Stat) -> Measure {
    /// The unit of `st_blocks`, independent of the file system.
    const BLOCK: u64 = 512;
    Measure { bytes: (stat.st_blocks as u64).saturating_mul(BLOCK), inodes: 1, ..Measure::default() }
}

fn id(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}

/// When a folder was last changed (its `st_ctime`, which cannot be set). `None`: just now, so that a later change may have the same
/// time.
fn changed(stat: &Stat) -> Option<i64> {
    // Nanoseconds: enough for three centuries.
    let at = (stat.st_ctime as i64).saturating_mul(1_000_000_000).saturating_add(stat.st_ctime_nsec as i64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
    (u128::from(now.abs_diff(at)) >= TICK.as_nanos()).then_some(at)
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> bool {
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Keeps a long walk from occupying a CPU.
pub(super) struct Pace {
    steps: u32,
    rests: bool,
    /// This thread's CPU time at the start, and after the last rest.
    begin: Duration,
    rested: Duration,
}

impl Pace {
    pub(super) fn new() -> Pace {
        let now = thread_time();
        Pace { steps: 0, rests: true, begin: now, rested: now }
    }

    pub(super) fn cost(&self) -> Duration {
        thread_time() - self.begin
    }

    pub(super) fn step(&mut self) {
        self.steps += 1;
        if !self.rests || !self.steps.is_multiple_of(STRIDE) || self.cost() < SPRINT {
            return;
        }
        let now = thread_time();
        std::thread::sleep((now - self.rested) * 3);
        self.rested = now;
    }
}
