//! The thread that writes an agent's records, off the path of what they record. It sleeps while there are none.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::file::Journal;

/// How long a record may wait: about a Pod's start and a half, so that most starts are written in one go.
const LAPSE: Duration = Duration::from_millis(25);

/// Of the thread; what is not touched costs nothing, and the allocator's first use of a thread takes more than 60 KiB unoptimized.
const STACK: usize = 256 << 10;

/// Journals with records that wait: the first brings its journal here. One that has been full since is here once more.
static WAITING: Mutex<Vec<Arc<Journal>>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();
/// Whether there is such a thread.
static RUNNING: OnceLock<bool> = OnceLock::new();

/// Writes now whatever waits in this process: before it ends.
pub fn flush() {
    let journals = std::mem::take(&mut *waiting());
    journals.iter().for_each(|journal| journal.flush());
}

/// Has what waits in a journal written within [`LAPSE`].
pub fn flush_soon(journal: Arc<Journal>) {
    let run = || std::thread::Builder::new().name("journal".to_owned()).stack_size(STACK).spawn(run).is_ok();
    if !*RUNNING.get_or_init(run) {
        return journal.flush();
    }
    waiting().push(journal);
    MORE.notify_one();
}

fn run() {
    loop {
        let none = |journals: &mut Vec<_>| journals.is_empty();
        let mut journals = MORE.wait_while(waiting(), none).unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + LAPSE;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            // Making a file takes longer than all that is recorded of a start: it is there when the shim opens it.
            let known = journals.clone();
            drop(journals);
            known.iter().for_each(|journal| journal.open());
            let more = MORE.wait_timeout(waiting(), left);
            journals = more.map_or_else(|poisoned| poisoned.into_inner().0, |(journals, _)| journals);
        }
        drop(journals);
        flush();
    }
}

fn waiting() -> MutexGuard<'static, Vec<Arc<Journal>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
