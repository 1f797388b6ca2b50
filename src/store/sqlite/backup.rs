//! Backup of a running store, and restore.

use std::{
    fs::{self, File},
    io::{Read, Write},
    ops::ControlFlow,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::PoisonError,
};

use rusqlite::Connection;

use super::{
    Shared,
    index::Index,
    layout,
    log::{self, StoreState},
    sync_folder,
};
use crate::Error;

/// How far a restored store's revisions jump ahead of the backup's. The lost store had continued since; its watchers resume from a
/// revision within the jump, and are told to list again.
const RESTORE_JUMP: u64 = 1_000_000_000;

/// A new private file beside `path`, removed unless it is moved into place. The remains of an interrupted one are replaced.
struct Draft(PathBuf);

impl Draft {
    fn beside(path: &Path, what: &str) -> Result<Draft, Error> {
        let mut name = path.as_os_str().to_owned();
        name.push(what);
        let draft = Draft(name.into());
        match fs::remove_file(&draft.0) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(&draft.0)(e)),
            _ => {}
        }
        File::options().write(true).create_new(true).mode(0o600).open(&draft.0).map_err(failed(&draft.0))?;
        Ok(draft)
    }

    /// Makes the content durable.
    fn sync(&self) -> Result<(), Error> {
        File::open(&self.0).and_then(|file| file.sync_all()).map_err(failed(&self.0))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |e| Error::Io(format!("{path}: {e}"))
}

/// Whether the file has a write-ahead log beside it.
fn has_wal(path: &Path) -> bool {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    Path::new(&wal).exists()
}

/// Copies the visible state into a draft, which is read back, verified, and unlinked.
pub(super) fn make(shared: &Shared, db: &Connection) -> Result<File, Error> {
    let _turn = shared.backing_up.lock().unwrap_or_else(PoisonError::into_inner);
    let draft = Draft::beside(&shared.path, ".backup")?;
    let name = draft.0.to_str().ok_or_else(|| Error::Io(format!("{}: not UTF-8", draft.0.display())))?;
    db.execute("VACUUM INTO ?", [name]).map_err(log::sql)?;
    {
        let copy = log::connect(&draft.0, false, super::READER_CACHE_KIB)?;
        Index::load(&copy, &StoreState::load(&copy)?)?;
    }
    File::open(&draft.0).map_err(failed(&draft.0))
}

fn copy(mut from: File, mut to: File, mut copied: impl FnMut(u64, u64)) -> std::io::Result<()> {
    let (whole, mut done, mut piece) = (from.metadata()?.len(), 0, vec![0; 1 << 18]);
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            read => {
                to.write_all(&piece[..read])?;
                done += read as u64;
                copied(done, whole);
            }
        }
    }
}

/// Creates a store at `to` from the backup `from`. Refuses if there is a store already. Blocks.
///
/// The restored store's revision is far ahead of the backup's: no revision that the lost store may have handed out is reused, and a
/// watch from one gets `Compacted`. It contains what was visible at the backup, nothing newer. The backup may come from anybody: a
/// schema that is not exactly ours, and a file that fails SQLite's checks, are `Damaged` with the reason. So is a value that
/// `check` rejects, with its key. `copied` is called with the progress in bytes; after that they are verified.
pub fn restore(
    from: &Path,
    to: &Path,
    check: impl Fn(&str, &[u8]) -> Result<(), String>,
    copied: impl FnMut(u64, u64),
) -> Result<(), Error> {
    // Another store's log would be applied to this one.
    if to.exists() || has_wal(to) {
        return Err(Error::Io(format!("{} exists already: a restore does not overwrite a store", to.display())));
    }
    if has_wal(from) {
        return Err(Error::Io(format!("{} is a store in use, or was not closed: not a backup", from.display())));
    }
    let draft = Draft::beside(to, ".draft")?;
    // Only the content: the draft keeps its own mode.
    let source = File::open(from).map_err(failed(from))?;
    File::options().write(true).open(&draft.0).and_then(|to| copy(source, to, copied)).map_err(failed(from))?;
    {
        let db = log::connect(&draft.0, false, super::READER_CACHE_KIB)?;
        if db.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0)).map_err(log::sql)? == 0 {
            return Err(Error::Damaged(format!("{} is empty", from.display())));
        }
        layout::prepare(&db)?;
        log::check_integrity(&db)?;
        let mut state = StoreState::load(&db)?;
        Index::load(&db, &state)?;
        log::scan(&db, 0, |row| {
            let sound = row.value.as_deref().map_or(Ok(()), |value| check(&row.key, value));
            sound.map_err(|why| Error::Damaged(format!("the value of {}: {why}", row.key)))?;
            Ok(ControlFlow::Continue(()))
        })?;
        let transaction = db.unchecked_transaction().map_err(log::sql)?;
        let last = state.revision.max(state.ceiling) + RESTORE_JUMP;
        log::skip_to(&db, &mut state, last)?;
        transaction.commit().map_err(log::sql)?;
        // Closing checkpoints the write-ahead log.
    }
    draft.sync()?;
    // Unlike a rename, a link never overwrites.
    fs::hard_link(&draft.0, to).map_err(failed(to))?;
    sync_folder(to)
}
