//! The embedded store: a log of versions in one SQLite file, an index of the keys in memory.
//!
//! ```text
//!   commit --job--> writer thread --one transaction, one fsync--> file (WAL)
//!                        | then                                     ^
//!                        v                                          | rows by place
//!                  Index (memory) --places, newest changes--> get, list, watch
//! ```
//!
//! Readers take positions from the index and read only those rows, so a revision is invisible until the writer publishes it. Every
//! row read is verified; a mismatch is `Damaged`. One limitation: bytes that are corrupted in the write-ahead log before they reach
//! the main file look like the torn end of a crash, and are cut off at the next start.

mod backup;
mod index;
mod layout;
mod lock;
mod log;
mod readers;
mod writer;

use std::{
    fs::File,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc},
    thread::JoinHandle,
};

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use self::{
    index::{Index, Selection},
    lock::Lock,
    log::{Position, StoreState, revision_of},
    readers::Readers,
    writer::{Job, Writer},
};
use super::{
    Asked, Batch, Change, Entry, Error, Outcome, PAGE_BYTES, Page, Range, Revision, Store, Txn, Watch, closed,
    health::{self, Health},
    hub::Watcher,
    known,
};

pub use backup::restore;

/// KiB of page cache per reading connection.
const READER_CACHE_KIB: u32 = 256;
/// A watch's catch-up reads history in pieces of about this size.
const CATCH_UP_CHANGES: usize = 512;
const CATCH_UP_BYTES: usize = 1 << 20;

/// See the module. Share it with `Arc`.
pub struct Sqlite {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Shared by the writer and the readers.
struct Shared {
    path: PathBuf,
    index: RwLock<Index>,
    readers: Readers,
    /// Whether it is writable.
    health: watch::Sender<Health>,
    /// Held during a backup: two at a time would burden the disk.
    backing_up: Mutex<()>,
}

impl Sqlite {
    /// Opens the store in the file `path` (its directory must exist), or creates a new one. Blocks while it reads and verifies the
    /// whole file. Opening a backup file restores it, but see [`restore`].
    pub fn open(path: &Path) -> Result<Sqlite, Error> {
        let lock = Lock::take(path)?;
        let db = log::keep_log(log::connect(path, true, writer::CACHE_KIB)?)?;
        layout::prepare(&db)?;
        sync_folder(path)?;
        let mut state = StoreState::load(&db)?;
        let mut index = Index::load(&db, &state)?;
        if state.ceiling > state.revision + 1 {
            // An unclean shutdown: somebody may know revisions up to the ceiling.
            let transaction = db.unchecked_transaction().map_err(log::sql)?;
            let last = state.ceiling;
            index.holes.push(log::skip_to(&db, &mut state, last)?);
            transaction.commit().map_err(log::sql)?;
            (index.revision, index.tail_from) = (state.revision, state.revision);
        }
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            index: RwLock::new(index),
            readers: Readers::default(),
            health: watch::Sender::default(),
            backing_up: Mutex::default(),
        });
        let (jobs, queue) = mpsc::channel();
        let writer = Writer::new(db, lock, shared.clone(), queue, jobs.clone(), state);
        let writer = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|e| Error::Io(format!("spawn the writer: {e}")))?;
        Ok(Sqlite { shared, jobs, writer: Mutex::new(Some(writer)) })
    }

    /// Sends a job to the writer, and waits for its result.
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Job) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(job(answer)).map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Reads with a connection, on a blocking thread.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared, &Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        read_on(self.shared.clone(), read).await
    }
}

async fn read_on<T: Send + 'static>(
    shared: Arc<Shared>,
    read: impl FnOnce(&Shared, &Connection) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let task = move || {
        let db = shared.reader()?;
        read(&shared, &db)
    };
    tokio::task::spawn_blocking(task).await.map_err(|e| Error::Io(format!("a read failed: {e}")))?
}

impl Shared {
    /// The index is changed in steps that cannot panic halfway, so a poisoned lock is still good.
    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_index(&self) -> Result<RwLockReadGuard<'_, Index>, Error> {
        let index = self.index();
        if index.closed { Err(closed()) } else { Ok(index) }
    }

    /// A connection for reading.
    fn reader(&self) -> Result<readers::Reading<'_>, Error> {
        self.readers.take(|| log::connect(&self.path, false, READER_CACHE_KIB).and_then(log::keep_log))
    }

    fn get(&self, db: &Connection, key: &str) -> Result<Option<Entry>, Error> {
        let mut tried = None;
        loop {
            let Some(place) = self.open_index()?.place(key) else { return Ok(None) };
            match log::resolve(db, place, key) {
                Ok(row) => return Ok(row.entry()),
                // Unless it was overwritten and compacted since the index lookup, which moves its position.
                Err(error) if tried == Some(place) => return Err(error),
                Err(_) => tried = Some(place),
            }
        }
    }

    fn list(&self, db: &Connection, range: &Range) -> Result<Page, Error> {
        loop {
            let selection = self.open_index()?.select(range)?;
            let at = selection.at;
            let page = read_page(db, selection, range.limit);
            // Rows may have been compacted meanwhile, in which case the result is discarded.
            let gone = self.open_index()?.readable(at);
            match (page, gone) {
                (page, Ok(())) => return page,
                (_, Err(gone)) if range.at.is_some() => return Err(gone),
                (Ok(page), Err(_)) => return Ok(page),
                (Err(_), Err(_)) => continue,
            }
        }
    }

    /// A piece of the changes after `after` below the watcher's prefix.
    fn history(&self, db: &Connection, prefix: &str, after: Revision) -> Result<Batch, Error> {
        let (until, holes) = {
            let index = self.open_index()?;
            index.watchable(after)?;
            (index.revision, index.holes.clone())
        };
        let transaction = db.unchecked_transaction().map_err(log::sql)?;
        let piece = read_history(&transaction, prefix, after, until, &holes);
        match self.open_index()?.watchable(after) {
            Ok(()) => piece,
            Err(gone) => Err(gone),
        }
    }
}

fn read_page(db: &Connection, selection: Selection, limit: usize) -> Result<Page, Error> {
    let transaction = db.unchecked_transaction().map_err(log::sql)?;
    let at = selection.at;
    let mut page = Page { revision: at, remaining: selection.following, ..Page::default() };
    let (limit, most) = if limit == 0 { (usize::MAX, usize::MAX) } else { (limit, PAGE_BYTES) };
    let mut bytes = 0;
    for (key, place) in selection.page {
        if page.entries.len() < limit && bytes < most {
            let entry = entry_at(&transaction, &key, place, at)?;
            bytes += entry.as_ref().map_or(0, |entry| entry.value.len());
            page.entries.extend(entry);
        } else {
            page.remaining += u64::from(place_at(&transaction, &key, place, at)?.is_some());
        }
    }
    for (key, place) in selection.unsure {
        page.remaining += u64::from(place_at(&transaction, &key, place, at)?.is_some());
    }
    Ok(page)
}

/// The position of a key's version in effect at a revision, given a newer one; `None`: the key was absent.
fn place_at(db: &Connection, key: &str, mut place: Position, at: Revision) -> Result<Option<Position>, Error> {
    while revision_of(place) > at {
        place = log::resolve(db, place, key)?.prior;
    }
    Ok((place > 0).then_some(place))
}

fn entry_at(db: &Connection, key: &str, place: Position, at: Revision) -> Result<Option<Entry>, Error> {
    match place_at(db, key, place, at)? {
        Some(place) => Ok(log::resolve(db, place, key)?.entry()),
        None => Ok(None),
    }
}

fn read_history(
    db: &Connection,
    prefix: &str,
    after: Revision,
    until: Revision,
    holes: &[log::Hole],
) -> Result<Batch, Error> {
    let (mut changes, mut bytes, mut reached, mut enough) = (Vec::new(), 0, after, false);
    let mut next = log::position(following(after, holes), 0);
    log::scan(db, log::position(after + 1, 0) - 1, |row| {
        if row.revision() > until {
            return Ok(ControlFlow::Break(()));
        }
        if row.place != next {
            return Err(Error::Damaged(format!("row {next} is missing (row {} follows)", row.place)));
        }
        let (place, last, revision) = (row.place, row.last, row.revision());
        next = if last { log::position(following(revision, holes), 0) } else { place + 1 };
        bytes += row.value.as_ref().map_or(0, |v| v.len());
        if row.key.starts_with(prefix) {
            let before = if row.prior > 0 { log::resolve(db, row.prior, &row.key)?.entry() } else { None };
            bytes += before.as_ref().map_or(0, |e| e.value.len());
            changes.push(Change { key: row.key.clone(), revision, now: row.entry(), before });
        }
        if last {
            reached = revision;
        }
        enough = last && (changes.len() >= CATCH_UP_CHANGES || bytes >= CATCH_UP_BYTES);
        Ok(if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if !enough {
        // All was read. Nothing is missing at the end if the next revision is after `until`.
        if revision_of(next) <= until {
            return Err(Error::Damaged(format!("row {next} is missing (no row follows)")));
        }
        reached = until;
    }
    Ok(Batch { changes, reached })
}

/// The revision after this one.
fn following(revision: Revision, holes: &[log::Hole]) -> Revision {
    let mut next = revision + 1;
    for &(first, last) in holes {
        if (first..=last).contains(&next) {
            next = last + 1;
        }
    }
    next
}

/// Brings a watcher up to date from the file, then makes it a live one.
async fn catch_up(shared: Arc<Shared>, watcher: Watcher, mut after: Revision) {
    let mut waiting = Some(watcher);
    while let Some(watcher) = waiting.take() {
        if let Err(watcher) = join_live(&shared, watcher, after) {
            let prefix = watcher.prefix().to_owned();
            match read_on(shared.clone(), move |shared, db| shared.history(db, &prefix, after)).await {
                Ok(batch) => {
                    after = batch.reached;
                    if batch.changes.is_empty() || watcher.send(batch).await {
                        waiting = Some(watcher);
                    }
                }
                Err(error) => watcher.end(error),
            }
        }
    }
}

/// Makes a watcher a live one, if the changes that it missed are still in memory; otherwise returns it.
fn join_live(shared: &Shared, watcher: Watcher, after: Revision) -> Result<(), Watcher> {
    let mut index = shared.index_mut();
    if after < index.tail_from {
        return Err(watcher);
    }
    let missed: Vec<Change> = index.tail(after).filter(|change| watcher.wants(change)).cloned().collect();
    if !index.closed
        && let Some(watcher) = watcher.offer(&missed, index.revision)
    {
        index.hub.add(watcher);
    }
    Ok(())
}

#[async_trait]
impl Store for Sqlite {
    fn revision(&self) -> Asked<'_, Revision> {
        known(self.shared.index().revision)
    }

    async fn oldest(&self) -> Result<Revision, Error> {
        Ok(self.shared.index().oldest)
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        if self.shared.open_index()?.place(key).is_none() {
            return Ok(None);
        }
        let key = key.to_owned();
        self.read(move |shared, db| shared.get(db, &key)).await
    }

    async fn list(&self, range: Range) -> Result<Page, Error> {
        self.read(move |shared, db| shared.list(db, &range)).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        self.ask(|answer| Job::Commit(txn, answer)).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error> {
        self.shared.open_index()?.known(after)?;
        let (watcher, watch) = Watcher::new(prefix, after);
        if let Err(watcher) = join_live(&self.shared, watcher, after) {
            tokio::spawn(catch_up(self.shared.clone(), watcher, after));
        }
        Ok(watch)
    }

    async fn history(&self, prefix: &str, after: Revision) -> Result<Batch, Error> {
        self.shared.open_index()?.known(after)?;
        let prefix = prefix.to_owned();
        self.read(move |shared, db| shared.history(db, &prefix, after)).await
    }

    async fn compact(&self, keep_from: Revision) -> Result<(), Error> {
        self.ask(|answer| Job::Compact(keep_from, answer)).await
    }

    async fn backup(&self) -> Result<File, Error> {
        self.read(backup::make).await
    }

    /// The file and its write-ahead log.
    async fn size(&self) -> Option<u64> {
        let mut log = self.shared.path.as_os_str().to_owned();
        log.push("-wal");
        let length = |path: &Path| std::fs::metadata(path).map(|file| file.len()).ok();
        Some(length(&self.shared.path)? + length(Path::new(&log)).unwrap_or(0))
    }

    fn trouble(&self) -> Option<Error> {
        self.shared.health.borrow().trouble()
    }

    async fn prove(&self) -> Result<(), Error> {
        self.ask(Job::Prove).await
    }

    async fn failed(&self) -> Error {
        health::lost(&self.shared.health).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.ask(Job::Close).await?;
        self.join();
        Ok(())
    }
}

impl Sqlite {
    /// Waits for the writer to end. After that the file is closed and unlocked.
    fn join(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // A panic of the writer was reported on stderr.
            let _ = writer.join();
        }
    }
}

impl Drop for Sqlite {
    /// Equivalent to `close`, but blocks.
    fn drop(&mut self) {
        let (answer, _) = oneshot::channel();
        let _ = self.jobs.send(Job::Close(answer));
        self.join();
    }
}

/// Makes a file's name durable.
fn sync_folder(path: &Path) -> Result<(), Error> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| Error::Io(format!("fsync {}: {e}", folder.display())))
}
