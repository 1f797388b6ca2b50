//! The journal: a bounded record of the kernel operations done for a Pod, written by the doors as they act.
//!
//! A [`JournalWriter`] is passed down to the code that makes system calls. It carries the *cause* (which object, at which revision,
//! which field of its manifest), so that every record says not only what was done but why:
//!
//! ```
//! # use podwright_journal::{Role, JournalWriter};
//! # let dir = tempfile::tempdir()?;
//! let journal = JournalWriter::open(&dir.path().join("journal"), Role::Agent)?.about("6f1c", 42);
//! let image = journal.at("spec.containers[0].image");
//! let folder = dir.path().join("a");
//! image.call("mkdir", |a| a.path(&folder), || std::fs::create_dir(&folder))?;
//! image.flush();
//! assert_eq!(podwright_journal::read(&dir.path().join("journal"))?[0].revision, 42);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Several processes (the agent, the shim, the shim's children until they exec) append to one file without a lock. A record is
//! first buffered raw in its process, which costs a tenth of a microsecond, and many are written by one system call as one batch:
//! the agent's by a thread within 25 ms, the shim's before it goes idle, a child's after reporting to the shim and before it
//! executes. **A killed process loses its buffered records**, as does one that hangs in a system call. Nothing is ever synced to
//! disk; a batch that was torn fails its checksum and is skipped by [`read`].

mod args;
mod batch;
mod file;
mod flusher;
pub mod kept;
mod record;

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use batch::Event;
use file::{Journal, Pace};

pub use args::{Args, Telling};
pub use batch::decode_all;
pub use file::{KEPT, read, remove};
pub use flusher::flush;
pub use record::{Record, Role};

/// Why something is done: the object, its revision, and the field of its manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cause {
    /// The uid of the object, or empty.
    pub subject: String,
    /// The object's revision (`metadata.resourceVersion`) that was acted on, or 0.
    pub revision: u64,
    /// The field of the manifest, such as `spec.containers[0].image`, or empty.
    pub field: String,
}

/// Writes records on behalf of one cause. Cheap to clone and to narrow; a [`JournalWriter::none`] costs nothing.
#[derive(Clone)]
pub struct JournalWriter {
    journal: Option<Arc<Journal>>,
    role: Role,
    cause: Arc<Cause>,
}

impl JournalWriter {
    /// Records nothing.
    pub fn none() -> JournalWriter {
        JournalWriter { journal: None, role: Role::Agent, cause: Arc::default() }
    }

    /// Appends to the journal at `path`, which is created if it does not exist (its folder must). Fails if it cannot be opened.
    pub fn open(path: &Path, role: Role) -> io::Result<JournalWriter> {
        JournalWriter::paced(path, role, Pace::Soon)
    }

    /// [`JournalWriter::open`] for a single-threaded process: records are buffered until [`JournalWriter::flush`].
    pub fn open_until_told(path: &Path, role: Role) -> io::Result<JournalWriter> {
        JournalWriter::paced(path, role, Pace::Told)
    }

    fn paced(path: &Path, role: Role, pace: Pace) -> io::Result<JournalWriter> {
        let file = Journal::create(path)?;
        let journal = Journal::opened(path, pace, file);
        Ok(JournalWriter { journal: Some(Arc::new(journal)), role, cause: Arc::default() })
    }

    /// [`JournalWriter::open`] without blocking: a thread opens the file with the first record. If that fails, `failed` is called, and nothing is recorded.
    pub fn open_soon(path: &Path, role: Role, failed: fn(&Path, &io::Error)) -> JournalWriter {
        JournalWriter { journal: Some(Arc::new(Journal::new(path, Pace::Soon, failed))), role, cause: Arc::default() }
    }

    /// Removes the journal; later records are lost.
    pub fn remove(&self) -> io::Result<()> {
        self.journal.as_ref().map_or(Ok(()), |journal| journal.remove())
    }

    /// Writes this process's buffered records.
    pub fn flush(&self) {
        if let Some(journal) = &self.journal {
            journal.flush();
        }
    }

    /// The journal's file, if it records.
    pub fn path(&self) -> Option<PathBuf> {
        self.journal.as_ref().map(|journal| journal.path().to_owned())
    }

    /// The same journal for this object at this revision.
    pub fn about(&self, subject: &str, revision: u64) -> JournalWriter {
        self.because(Cause { subject: subject.to_owned(), revision, field: String::new() })
    }

    /// The same journal with another cause (received over a wire).
    pub fn because(&self, cause: Cause) -> JournalWriter {
        JournalWriter { journal: self.journal.clone(), role: self.role, cause: Arc::new(cause) }
    }

    /// The same journal and object, narrowed to one manifest field.
    pub fn at(&self, field: &str) -> JournalWriter {
        if self.journal.is_none() && self.cause.subject.is_empty() {
            return self.clone();
        }
        self.because(Cause { field: field.to_owned(), ..(*self.cause).clone() })
    }

    /// The same journal and cause for a process about to be forked. Only that process may use it, and must flush it.
    pub fn for_child(&self, role: Role) -> JournalWriter {
        let journal = self.journal.as_ref().map(|journal| Arc::new(journal.for_child()));
        JournalWriter { journal, role, cause: self.cause.clone() }
    }

    /// [`JournalWriter::for_child`] for a process that must not have the file open: it writes each batch to `channel`, whose reader appends it with [`JournalWriter::forward`].
    pub fn for_child_over(&self, role: Role, channel: OwnedFd) -> JournalWriter {
        let journal = self.journal.as_ref().map(|journal| Arc::new(journal.for_child_over(channel.into())));
        JournalWriter { journal, role, cause: self.cause.clone() }
    }

    /// Appends a batch received from a child. A torn one, or one with other roles or subjects, is not a child's and is dropped:
    /// `false`.
    pub fn forward(&self, batch: &[u8], role: Role) -> bool {
        let Some(journal) = &self.journal else { return true };
        let whole = batch::decode_whole(batch);
        let ours = |r: &Record| r.role == role && r.subject == self.cause.subject;
        let fine = whole.is_some_and(|records| records.iter().all(ours));
        if fine {
            journal.append_batch(batch);
        }
        fine
    }

    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Runs `act` and records its name, arguments (rendered only when recording), duration and result.
    pub fn call<T, E: Display>(
        &self,
        name: &str,
        args: impl for<'a> Fn(Args<'a>) -> Args<'a>,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(journal) = &self.journal else { return act() };
        let began = Clock::monotonic();
        let result = act();
        self.write(journal, began, name, &args, result.as_ref().err().map(|e| e as &dyn Display));
        result
    }

    /// [`JournalWriter::call`] for an operation that may have nothing to do: `None` is not recorded.
    pub fn call_if<T, E: Display>(
        &self,
        name: &str,
        args: impl for<'a> Fn(Args<'a>) -> Args<'a>,
        act: impl FnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let Some(journal) = &self.journal else { return act() };
        let began = Clock::monotonic();
        let result = act();
        if !matches!(result, Ok(None)) {
            self.write(journal, began, name, &args, result.as_ref().err().map(|e| e as &dyn Display));
        }
        result
    }

    /// Records an event without duration: a state reached, a decision taken.
    pub fn note(&self, name: &str, args: impl for<'a> Fn(Args<'a>) -> Args<'a>) {
        if let Some(journal) = &self.journal {
            self.write(journal, Clock::monotonic(), name, &args, None);
        }
    }

    /// Records an operation that was timed elsewhere: it began at `started` and has just ended.
    pub fn record(&self, started: Clock, name: &str, args: &str, error: Option<String>) {
        if let Some(journal) = &self.journal {
            let error = error.as_ref().map(|e| e as &dyn Display);
            self.write(journal, started.monotonic_ns, name, &|a| a.text(args), error);
        }
    }

    /// All the overhead of recording an operation.
    fn write(&self, journal: &Arc<Journal>, began: u64, call: &str, args: Telling<'_>, error: Option<&dyn Display>) {
        let ended = Clock::monotonic();
        let error = error.map(|e| e.to_string());
        let waits = journal.append(&Event {
            role: self.role,
            began,
            ended,
            call,
            args,
            error: error.as_deref(),
            cause: &self.cause,
        });
        if waits {
            flusher::flush_soon(journal.clone());
        }
    }
}

impl std::fmt::Debug for JournalWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalWriter").field("path", &self.path()).field("cause", &self.cause).finish()
    }
}

/// A point in time by both of the machine's clocks: records are ordered by the monotonic one and shown by the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Nanoseconds since 1970.
    pub wall_ns: u64,
    /// Nanoseconds since boot (`CLOCK_MONOTONIC`, the same for all processes).
    pub monotonic_ns: u64,
}

impl Clock {
    pub fn read() -> Clock {
        Clock { wall_ns: clock(libc::CLOCK_REALTIME), monotonic_ns: Clock::monotonic() }
    }

    fn monotonic() -> u64 {
        clock(libc::CLOCK_MONOTONIC)
    }
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to.
    unsafe { libc::clock_gettime(which, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
