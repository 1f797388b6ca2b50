//! The log file: a thread that writes events, one per line, and rotates full files.
//!
//! Callers never wait: what does not fit into its buffer is dropped and counted.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::event::Event;
use crate::metrics::METRICS;

/// The most events, or bytes of events, that may be queued.
const EVENTS: usize = 10_000;
const BYTES: usize = 64 << 20;
const MEGABYTE: u64 = 1 << 20;

/// Where the log goes, and how much is kept.
#[derive(Clone, Debug, Default)]
pub struct LogTarget {
    /// `None`: standard output.
    pub path: Option<PathBuf>,
    /// Megabytes per file; 0: unlimited.
    pub max_size: u64,
    /// Rotated files to keep; 0: all.
    pub max_backups: usize,
    /// Days to keep them; 0: forever.
    pub max_age: i64,
}

/// The sender to the thread; dropping it flushes the queue.
pub struct Writer {
    sender: Option<SyncSender<Event>>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(place: LogTarget) -> io::Result<Writer> {
        let mut log = Log::open(place)?;
        let (sender, inbox) = sync_channel(EVENTS);
        let (waiting, lost) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let (in_thread, lost_before) = (waiting.clone(), lost.clone());
        let run = move || log.run(&inbox, &in_thread, &lost_before);
        let thread = std::thread::Builder::new().name("audit".into()).spawn(run)?;
        Ok(Writer { sender: Some(sender), waiting, lost, thread: Some(thread) })
    }

    /// Never blocks.
    pub fn write(&self, event: Event) {
        let size = event.size();
        let fits = self.waiting.fetch_add(size, Ordering::Relaxed) + size <= BYTES;
        let sent = match &self.sender {
            Some(sender) if fits => sender.try_send(event),
            _ => Err(TrySendError::Full(event)),
        };
        METRICS.audited(sent.is_ok());
        if sent.is_err() {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

struct Log {
    place: LogTarget,
    out: BufWriter<Box<dyn Write + Send>>,
    size: u64,
}

impl Log {
    fn open(place: LogTarget) -> io::Result<Log> {
        let (out, size): (Box<dyn Write + Send>, u64) = match &place.path {
            None => (Box::new(io::stdout()), 0),
            Some(path) => {
                let file = append(path)?;
                let size = file.metadata()?.len();
                (Box::new(file), size)
            }
        };
        Ok(Log { place, out: BufWriter::with_capacity(64 << 10, out), size })
    }

    /// Writes until the sender is dropped. Flushes to the kernel whenever the queue is empty.
    fn run(&mut self, inbox: &Receiver<Event>, waiting: &AtomicUsize, lost: &AtomicU64) {
        loop {
            let event = match inbox.try_recv() {
                Ok(event) => event,
                Err(_) => {
                    tell(self.out.flush());
                    let missed = lost.swap(0, Ordering::Relaxed);
                    if missed > 0 {
                        tracing::error!("dropped {missed} audit events: the disk is too slow");
                    }
                    match inbox.recv_timeout(Duration::from_secs(60)) {
                        Ok(event) => event,
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            };
            waiting.fetch_sub(event.size(), Ordering::Relaxed);
            let mut line = event.line();
            line.push('\n');
            tell(self.line(line.as_bytes()));
        }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let limit = self.place.max_size * MEGABYTE;
        if limit > 0 && self.size > 0 && self.size + line.len() as u64 > limit {
            self.rotate()?;
        }
        self.size += line.len() as u64;
        self.out.write_all(line)
    }

    /// Renames the file with the time, opens a new one, and removes backups that are too many or too old.
    fn rotate(&mut self) -> io::Result<()> {
        let Some(path) = self.place.path.clone() else { return Ok(()) };
        self.out.flush()?;
        let now = Timestamp::now();
        fs::rename(&path, self.backup_name(&path, now))?;
        self.out = BufWriter::with_capacity(64 << 10, Box::new(append(&path)?));
        self.size = 0;
        self.sweep(&path, now)
    }

    /// `audit.log` becomes `audit-2026-01-31T12-00-00.000.log`, as upstream's.
    fn backup_name(&self, path: &Path, now: Timestamp) -> PathBuf {
        let (head, tail) = parts(path);
        let mut name = format!("{head}{}{tail}", now.strftime("%Y-%m-%dT%H-%M-%S%.3f"));
        // Two rotations within a millisecond.
        while path.with_file_name(&name).exists() {
            name = format!("{head}{}{tail}", Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S%.6f"));
        }
        path.with_file_name(name)
    }

    fn sweep(&self, path: &Path, now: Timestamp) -> io::Result<()> {
        let (head, tail) = parts(path);
        let mut backups = Vec::new();
        for entry in fs::read_dir(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_backup = |time: &str| time.starts_with(|c: char| c.is_ascii_digit()) && time.contains('T');
            if name.strip_prefix(&head).and_then(|rest| rest.strip_suffix(&tail)).is_some_and(is_backup) {
                backups.push((name, entry));
            }
        }
        // The newest first: their names contain the time.
        backups.sort_by(|a, b| b.0.cmp(&a.0));
        for (i, (_, entry)) in backups.iter().enumerate() {
            let too_many = self.place.max_backups > 0 && i >= self.place.max_backups;
            let age = || {
                let changed = Timestamp::try_from(entry.metadata().ok()?.modified().ok()?).ok()?;
                Some(now.duration_since(changed))
            };
            let days = SignedDuration::from_hours(24 * self.place.max_age);
            let too_old = self.place.max_age > 0 && age().is_some_and(|age| age > days);
            if too_many || too_old {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// What precedes and follows the time in a backup's name.
fn parts(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let tail = path.extension().map(|ext| format!(".{}", ext.to_string_lossy())).unwrap_or_default();
    (format!("{stem}-"), tail)
}

fn tell(written: io::Result<()>) {
    if let Err(why) = written {
        tracing::error!("failed to write the audit log: {why}");
    }
}
