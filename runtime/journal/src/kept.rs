//! Writes small persistent files: replaced atomically, synced at once or soon.
//!
//! After an agent is killed, the records of live objects are read again: they must be in place before their objects are created.
//! After a power loss those objects no longer exist, so writing does not wait for the disk, which takes from a quarter of a
//! millisecond to many, twice per file ([`replace`]). What must survive a reboot is awaited ([`replace_durably`]).

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a sync is delayed: a newer version may replace the file meanwhile, and a Pod's start finish first.
const DELAY: Duration = Duration::from_millis(500);
/// Maximum number of files waiting to be synced.
const MAX_WAITING: usize = 4096;
const STACK: usize = 256 << 10;

/// Files in place that may not be on disk yet.
static WAITING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static MORE: Condvar = Condvar::new();
/// Whether the syncing thread is running.
static RUNNING: OnceLock<bool> = OnceLock::new();

/// Replaces `path` by `bytes`, readable by root only, so that a crash of this process leaves the old or the new version; creates
/// its folder. Another thread syncs the file within a second or so: a power loss before that may leave it empty. Returns the
/// metadata of the written file, whatever is at `path` by now.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<Metadata> {
    let file = rename_into_place(path, bytes, |_| Ok(()))?;
    let run = || thread::Builder::new().name("kept".to_owned()).stack_size(STACK).spawn(run).is_ok();
    if !*RUNNING.get_or_init(run) || !wait_for_the_disk(path) {
        file.sync_data()?;
        sync_folder(path)?;
    }
    file.metadata()
}

/// Queues `path` for syncing, unless too many files wait.
fn wait_for_the_disk(path: &Path) -> bool {
    let mut waiting = waiting();
    if waiting.len() >= MAX_WAITING && !waiting.contains(path) {
        return false;
    }
    waiting.insert(path.to_owned());
    drop(waiting);
    MORE.notify_one();
    true
}

/// Replaces `path` by `bytes`, readable by root only, so that a crash of this process leaves the old or the new version; creates
/// its folder. Never synced: for data that is not needed after a power loss.
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> Result<()> {
    rename_into_place(path, bytes, |_| Ok(())).map(drop)
}

/// Replaces `path` by `bytes`, readable by root only, so that a crash or a power loss leaves the old or the new version; returns
/// when the new one is on disk; creates its folder.
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
        (Err(error), Some(folder)) if error.kind() == ErrorKind::NotFound => {
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

/// Syncs the folder of a path, so that its name there is on disk.
pub fn sync_folder(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_data())
}

fn run() {
    loop {
        drop(MORE.wait_while(waiting(), |waiting| waiting.is_empty()).unwrap_or_else(PoisonError::into_inner));
        thread::sleep(DELAY);
        let paths = std::mem::take(&mut *waiting());
        let mut folders = BTreeSet::new();
        for path in &paths {
            folders.extend(path.parent());
            warn(path, File::open(path).and_then(|file| file.sync_data()));
        }
        for folder in folders {
            warn(folder, File::open(folder).and_then(|opened| opened.sync_data()));
        }
    }
}

/// A file removed meanwhile, together with its Pod, needs no sync.
fn warn(path: &Path, synced: Result<()>) {
    match synced {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "fsync failed: after a power loss this record may be missing");
        }
        _ => {}
    }
}

fn waiting() -> MutexGuard<'static, BTreeSet<PathBuf>> {
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
    fn all_that_waits_reaches_the_disk_and_few_wait() {
        let folder = tempfile::tempdir().unwrap();
        let own = |path: &PathBuf| path.starts_with(folder.path());
        for n in 0..MAX_WAITING + 100 {
            replace(&folder.path().join(format!("{n}")), b"record").unwrap();
            assert!(waiting().len() <= MAX_WAITING);
        }
        // A replaced file is synced once, and a removed one is ignored.
        replace(&folder.path().join("0"), b"another").unwrap();
        fs::remove_file(folder.path().join("1")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while waiting().iter().any(own) {
            assert!(Instant::now() < deadline, "files still wait");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
