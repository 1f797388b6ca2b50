//! The journal file: batches of records are appended; records older than a bound are cut off the front.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Clock;
use crate::batch::{Batch, Event, decode_all};
use crate::record::Record;

/// The newest bytes that are always kept: about 3,500 records. A Pod's start is about 140.
pub const KEPT: u64 = 256 << 10;
/// Kept when old records are cut off: a shim of the first layout has this page mapped, and counts in it.
const PAGE: u64 = 4096;

/// When buffered records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Soon, by a thread of this process.
    Soon,
    /// On request: the process has no threads, and knows when it has time.
    Told,
    /// The same using only write(2): a filter may forbid other calls.
    Bare,
}

/// A journal, with this process's records that are not written yet.
pub struct Journal {
    path: PathBuf,
    pace: Pace,
    /// Called if it cannot be opened.
    failed: fn(&Path, &io::Error),
    waiting: Mutex<Batch>,
    /// Held while writing, to keep the file in recording order.
    output: Mutex<Output>,
}

enum Output {
    /// Not opened yet.
    Closed,
    /// A child's copy shares the description, so that no file is opened twice; old records are cut off up to `cut`.
    Open { file: Arc<File>, cut: u64 },
    /// It could not be opened, or was removed: records are lost.
    Gone,
}

impl Journal {
    /// A journal whose file is opened with the first records.
    pub fn new(path: &Path, pace: Pace, failed: fn(&Path, &io::Error)) -> Journal {
        let (waiting, output) = (Mutex::default(), Mutex::new(Output::Closed));
        Journal { path: path.to_owned(), pace, failed, waiting, output }
    }

    /// A journal whose file is already open.
    pub fn opened(path: &Path, pace: Pace, file: File) -> Journal {
        let output = Mutex::new(Output::Open { file: Arc::new(file), cut: 0 });
        Journal { path: path.to_owned(), pace, failed: |_, _| {}, waiting: Mutex::default(), output }
    }

    /// Opens a journal's file, creating it if necessary.
    pub fn create(path: &Path) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)
    }

    /// The same for a process about to be forked, which writes on request.
    pub fn for_child(&self) -> Journal {
        let output = match &*self.output() {
            Output::Open { file, .. } => Output::Open { file: file.clone(), cut: 0 },
            Output::Closed | Output::Gone => Output::Gone,
        };
        let (path, pace, failed) = (self.path.clone(), Pace::Bare, self.failed);
        Journal { path, pace, failed, waiting: Mutex::default(), output: Mutex::new(output) }
    }

    /// The same for one that writes to `channel` instead.
    pub fn for_child_over(&self, channel: File) -> Journal {
        let output = Mutex::new(Output::Open { file: Arc::new(channel), cut: 0 });
        let (path, failed) = (self.path.clone(), self.failed);
        Journal { path, pace: Pace::Bare, failed, waiting: Mutex::default(), output }
    }

    /// Writes a batch sealed by another process.
    pub fn append_batch(&self, batch: &[u8]) {
        if let Output::Open { file, .. } = &*self.output() {
            let _ = (&**file).write_all(batch);
        }
    }

    /// Removes the file; later records are lost. Does nothing if there is none.
    pub fn remove(&self) -> io::Result<()> {
        *self.locked() = Output::Gone;
        remove(&self.path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a record. Returns whether it is the first of those to be written soon.
    #[must_use]
    pub fn append(&self, event: &Event<'_>) -> bool {
        let mut waiting = self.waiting();
        // Other records may fill the batch again before it is written: an oversized one would be unreadable.
        while waiting.is_full() {
            drop(waiting);
            self.flush();
            waiting = self.waiting();
        }
        let first = waiting.is_empty();
        waiting.push(event);
        let full = waiting.is_full();
        drop(waiting);
        if full {
            self.flush();
        }
        first && !full && self.pace == Pace::Soon
    }

    /// Writes buffered records. On failure they are lost: the journal never fails the recorded operation.
    pub fn flush(&self) {
        let mut output = self.output();
        let mut batch = std::mem::take(&mut *self.waiting());
        let Output::Open { file, cut } = &mut *output else { return };
        if batch.is_empty() {
            return;
        }
        let now = Clock::read();
        let bytes = batch.sealed(now.wall_ns.wrapping_sub(now.monotonic_ns));
        let written = (&**file).write_all(bytes).is_ok();
        match self.pace {
            // It has one thread, and continues soon.
            Pace::Bare => {
                batch.clear();
                *self.waiting() = batch;
            }
            _ if written => *cut = bound(file, *cut),
            _ => {}
        }
    }

    /// The open file.
    fn output(&self) -> MutexGuard<'_, Output> {
        let mut output = self.locked();
        if let Output::Closed = *output {
            *output = match Journal::create(&self.path) {
                Ok(file) => Output::Open { file: Arc::new(file), cut: 0 },
                Err(error) => {
                    (self.failed)(&self.path, &error);
                    Output::Gone
                }
            };
        }
        output
    }

    fn locked(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Batch> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts off old records once the file is twice as large as what is kept. Takes and returns the end of the cut.
fn bound(mut file: &File, cut: u64) -> u64 {
    let end = file.stream_position().unwrap_or(0);
    if end < cut + 2 * KEPT {
        return cut;
    }
    let until = end - KEPT;
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain values, and an open descriptor.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), how, PAGE as i64, (until - PAGE) as i64) };
    if done == 0 {
        return until;
    }
    // A filesystem without holes: all writers append, so they continue from the beginning.
    let _ = file.set_len(0);
    0
}

impl Drop for Journal {
    fn drop(&mut self) {
        if !self.waiting().is_empty() {
            self.flush();
        }
    }
}

/// Removes a journal that this process does not write to, if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The records of a journal, ordered by start time; empty if the file does not exist.
///
/// Leaves out torn records and those still buffered in a process. Fails if the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let from = file.metadata()?.len().saturating_sub(2 * KEPT);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut records = decode_all(&bytes, from);
    records.sort_by_key(|r| (r.monotonic_ns, r.sequence));
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JournalWriter, Role};
    use proptest::prelude::*;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::time::{Duration, Instant};

    fn write(journal: &JournalWriter, n: u64) {
        for i in 0..n {
            journal.call("op", |a| a.number(i), || Ok::<(), io::Error>(())).unwrap();
        }
    }

    /// Each record's arguments.
    fn args(path: &Path) -> Vec<String> {
        read(path).unwrap().into_iter().map(|r| r.args).collect()
    }

    #[test]
    fn keeps_the_newest_records_in_order_with_their_cause() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let journal = JournalWriter::open(&path, Role::Agent).unwrap().about("uid", 7).at("spec.hostname");
        const COUNT: u64 = 20_000;
        write(&journal, COUNT);
        let failed: io::Result<()> =
            journal.call("open", |a| a.text("x"), || Err(io::Error::from_raw_os_error(libc::ENOENT)));
        assert!(failed.is_err());
        journal.flush();
        let records = read(&path).unwrap();
        let (last, others) = records.split_last().unwrap();
        assert_eq!((last.call.as_str(), last.revision, last.field.as_str()), ("open", 7, "spec.hostname"));
        assert!(last.error.as_deref().unwrap().contains("No such file"));
        assert!(last.pid == std::process::id() && last.role == Role::Agent);
        assert!(others.len() > 1000, "{}", others.len());
        let told: Vec<u64> = others.iter().map(|r| r.args.parse().unwrap()).collect();
        assert_eq!(told, (COUNT - told.len() as u64..COUNT).collect::<Vec<_>>());
        assert!(records.is_sorted_by_key(|r| r.sequence));
        let occupied = path.metadata().unwrap().blocks() * 512;
        assert!(occupied <= 2 * KEPT + 64 * 1024, "{occupied} bytes on the disk");
    }

    #[test]
    fn several_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        std::thread::scope(|s| {
            for n in 0..4 {
                let open = if n % 2 == 0 { JournalWriter::open } else { JournalWriter::open_until_told };
                s.spawn({
                    let path = &path;
                    move || write(&open(path, Role::Agent).unwrap().about(&n.to_string(), 1), 200)
                });
            }
        });
        crate::flush();
        let mut seen: Vec<(String, u64)> =
            read(&path).unwrap().into_iter().map(|r| (r.subject, r.args.parse().unwrap())).collect();
        seen.sort();
        let wanted: Vec<_> = (0..4).flat_map(|n: u64| (0..200).map(move |i| (n.to_string(), i))).collect();
        assert_eq!(seen, wanted);
    }

    #[test]
    fn an_agents_records_are_soon_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let journal = JournalWriter::open(&path, Role::Agent).unwrap();
        for turn in 1..=2 {
            write(&journal, 1);
            let asked = Instant::now();
            while args(&path).len() < turn {
                assert!(asked.elapsed() < Duration::from_secs(10), "nothing was written");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_journal_is_opened_off_its_path_and_removed_with_what_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let journal = JournalWriter::open_soon(&path, Role::Agent, |path, error| panic!("{}: {error}", path.display()));
        assert!(!path.exists(), "opened in the way of its caller");
        write(&journal, 1);
        let asked = Instant::now();
        while !path.exists() {
            assert!(asked.elapsed() < Duration::from_secs(10), "never opened");
            std::thread::yield_now();
        }
        journal.remove().unwrap();
        write(&journal, 1);
        crate::flush();
        drop(journal);
        assert!(!path.exists(), "it came back");
        static WHY: Mutex<String> = Mutex::new(String::new());
        let nowhere = dir.path().join("no/j");
        let journal = JournalWriter::open_soon(&nowhere, Role::Agent, |_, why| *WHY.lock().unwrap() = why.to_string());
        write(&journal, 2);
        journal.flush();
        assert!(WHY.lock().unwrap().contains("No such file"), "{WHY:?}");
    }

    #[test]
    fn what_had_nothing_to_do_is_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let journal = JournalWriter::open_until_told(&path, Role::Agent).unwrap();
        let done = [Ok(None), Ok(Some(1)), Err(io::Error::from_raw_os_error(libc::EPERM))];
        for (i, done) in done.into_iter().enumerate() {
            let _ = journal.call_if("op", |a| a.number(i as u64), || done);
        }
        journal.flush();
        assert_eq!(args(&path), ["1", "2"]);
    }

    #[test]
    fn a_child_takes_no_records_of_its_parent_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let parent = JournalWriter::open_until_told(&path, Role::Shim).unwrap();
        parent.note("parent", |a| a.text("1"));
        let child = parent.for_child(Role::Init);
        child.note("child", |a| a.text("2"));
        assert_eq!(args(&path), Vec::<String>::new());
        child.flush();
        assert_eq!(args(&path), ["2"]);
        parent.flush();
        child.flush();
        assert_eq!(args(&path), ["1", "2"]);
        assert_eq!(read(&path).unwrap().iter().map(|r| r.role).collect::<Vec<_>>(), [Role::Shim, Role::Init]);
    }

    #[test]
    fn a_child_without_the_file_records_through_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let parent = JournalWriter::open_until_told(&path, Role::Shim).unwrap().about("mine", 1);
        let sent = |journal: &JournalWriter, role| {
            let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let child = journal.for_child_over(role, theirs.into());
            child.note("child", |a| a.text("2"));
            child.flush();
            drop(child);
            let mut bytes = Vec::new();
            ours.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let batch = sent(&parent, Role::Init);
        assert!(parent.forward(&batch, Role::Init));
        assert_eq!(args(&path), ["2"]);
        assert!(!parent.forward(&sent(&parent, Role::Agent), Role::Init), "another's role");
        assert!(!parent.forward(&sent(&parent.about("other", 1), Role::Init), Role::Init), "another's subject");
        assert!(
            !parent.forward(&[&batch[..], &batch[..]].concat(), Role::Init) && !parent.forward(b"pwj3", Role::Init)
        );
        assert_eq!(args(&path), ["2"]);
    }

    #[test]
    fn a_journal_of_the_first_layout_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let ring = File::create(&path).unwrap();
        ring.set_len(4096 + 1024 * 384).unwrap();
        ring.write_all_at(b"podjrnl1", 0).unwrap();
        ring.write_all_at(&[7; 384], 4096).unwrap();
        write(&JournalWriter::open_until_told(&path, Role::Agent).unwrap(), 3);
        // An old shim's next record.
        ring.write_all_at(&[8; 384], 4096 + 384).unwrap();
        assert_eq!(args(&path), ["0", "1", "2"]);
        write(&JournalWriter::open_until_told(&path, Role::Agent).unwrap(), 20_000);
        let mut magic = [0; 8];
        File::open(&path).unwrap().read_exact_at(&mut magic, 0).unwrap();
        assert_eq!(magic, *b"podjrnl1", "the page that an old shim has mapped stays");
    }

    #[test]
    fn none_records_nothing_and_a_missing_file_is_empty() {
        write(&JournalWriter::none(), 3);
        assert_eq!(read(Path::new("/nonexistent/journal")).unwrap(), vec![]);
        assert!(JournalWriter::open(Path::new("/nonexistent/journal"), Role::Agent).is_err());
    }

    proptest! {
        #[test]
        fn damage_costs_only_the_damaged_batches(batches in prop::collection::vec(1u64..6, 1..20), at in 0usize..2000, bytes in prop::collection::vec(any::<u8>(), 1..600)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("j");
            let journal = JournalWriter::open_until_told(&path, Role::Agent).unwrap();
            let mut ends = Vec::new();
            for count in batches {
                write(&journal, count);
                journal.flush();
                ends.push(path.metadata().unwrap().len());
            }
            let before = read(&path).unwrap();
            File::options().write(true).open(&path).unwrap().write_all_at(&bytes, at as u64).unwrap();
            let after = read(&path).unwrap();
            for record in &before {
                let behind = ends.partition_point(|end| *end <= record.sequence);
                let begin = behind.checked_sub(1).map_or(0, |before| ends[before]);
                let hit = (at as u64) < ends[behind] && begin < (at + bytes.len()) as u64;
                prop_assert!(hit || after.contains(record));
            }
            prop_assert!(after.iter().all(|r| before.contains(r)));
        }
    }
}
