//! The writer of small files that are kept: replaced whole, and on the disk at once or soon.
//!
//! A record of what lives is read again when an agent is killed: it must have its name before what it speaks of is made. After a
//! power loss nothing lives that it could speak of, so nobody waits for the disk, which takes from a quarter of a millisecond to
//! many, twice a file ([`replace`]). What outlives a boot is awaited ([`replace_durably`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// How many files may wait for the disk: each is open.
const MOST: usize = 64;
const STACK: usize = 256 << 10;

/// Files that have their names and are perhaps not on the disk.
static WAITING: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());
static MORE: Condvar = Condvar::new();
/// Whether there is a thread that syncs them.
static RUNNING: OnceLock<bool> = OnceLock::new();

/// Replaces `path` by `bytes`, for root's eyes, so that a crash of this process leaves the old or the new; its folder is made. The
/// file is synced within moments, by another thread: a power loss before that may leave it empty. What the file is like that was
/// written, whatever is at `path` by now.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<Metadata> {
    let file = rename_into_place(path, bytes, |_| Ok(()))?;
    let written = file.metadata()?;
    let run = || std::thread::Builder::new().name("kept".to_owned()).stack_size(STACK).spawn(run).is_ok();
    let mut waiting = waiting();
    if !*RUNNING.get_or_init(run) || (waiting.len() >= MOST && !waiting.contains_key(path)) {
        drop(waiting);
        file.sync_data()?;
        sync_folder(path)?;
        return Ok(written);
    }
    // One that was replaced meanwhile has no name any more: its successor is synced alone.
    waiting.insert(path.to_owned(), file);
    drop(waiting);
    MORE.notify_one();
    Ok(written)
}

/// Replaces `path` by `bytes`, for root's eyes, so that a crash of this process leaves the old or the new; its folder is made. It is
/// never synced: for what is not asked for after a power loss.
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> Result<()> {
    rename_into_place(path, bytes, |_| Ok(())).map(drop)
}

/// Replaces `path` by `bytes`, for root's eyes, so that a crash and a power loss leave the old or the new, and returns when the new
/// is on the disk; its folder is made.
pub fn replace_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    rename_into_place(path, bytes, File::sync_data)?;
    sync_folder(path)
}

fn rename_into_place(path: &Path, bytes: &[u8], written: impl FnOnce(&File) -> Result<()>) -> Result<File> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = match (options.open(&temporary), path.parent()) {
        (Err(error), Some(folder)) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(folder)?;
            options.open(&temporary)?
        }
        (opened, _) => opened?,
    };
    file.write_all(bytes)?;
    written(&file)?;
    fs::rename(&temporary, path)?;
    Ok(file)
}

/// Returns when the folder that a path is in is on the disk, with the name there.
pub fn sync_folder(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_data())
}

fn run() {
    loop {
        let files = {
            let none = |waiting: &mut BTreeMap<_, _>| waiting.is_empty();
            let mut waiting = MORE.wait_while(waiting(), none).unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting)
        };
        let mut folders = BTreeSet::new();
        for (path, file) in files {
            folders.extend(path.parent().map(Path::to_owned));
            told(&path, file.sync_data());
        }
        for folder in folders {
            told(&folder, File::open(&folder).and_then(|opened| opened.sync_data()));
        }
    }
}

/// What goes meanwhile, with the Pod that it is of, needs no disk.
fn told(path: &Path, synced: Result<()>) {
    match synced {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "fsync failed: after a power loss this record may be missing");
        }
        _ => {}
    }
}

fn waiting() -> MutexGuard<'static, BTreeMap<PathBuf, File>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    #[test]
    fn a_file_is_replaced_whole_and_its_folder_made() {
        for replace in [|path: &Path, bytes: &[u8]| replace(path, bytes).map(drop), replace_durably] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a/b/record");
            replace(&path, b"a long record").unwrap();
            replace(&path, b"short").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"short");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let names = fs::read_dir(path.parent().unwrap()).unwrap();
            assert_eq!(names.count(), 1, "nothing else is left");
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        replace(&path, b"old").unwrap();
        fs::create_dir(folder.path().join("record.tmp")).unwrap();
        replace(&path, b"new").unwrap_err();
        replace_durably(&path, b"new").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn all_that_waits_reaches_the_disk_and_few_are_open() {
        let folder = tempfile::tempdir().unwrap();
        let own = |path: &PathBuf| path.starts_with(folder.path());
        for n in 0..500 {
            replace(&folder.path().join(format!("{n}")), b"record").unwrap();
            assert!(waiting().len() <= MOST);
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while waiting().keys().any(own) {
            assert!(Instant::now() < deadline, "files still wait");
            std::thread::yield_now();
        }
    }
}
