//! The thread that writes an agent's records, off the path of the recorded operations. It sleeps while there are none.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::file::Journal;

/// How long a record may be buffered: about one and a half Pod starts, so that most starts are written at once.
const LAPSE: Duration = Duration::from_millis(25);

/// The thread's stack; untouched pages cost nothing, and a thread's first allocation uses more than 60 KiB in unoptimized builds.
const STACK: usize = 256 << 10;

/// Journals with buffered records: added with the first record, and once more after being full.
static WAITING: Mutex<Vec<Arc<Journal>>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();
/// Whether the thread is running.
static RUNNING: OnceLock<bool> = OnceLock::new();

/// Writes everything buffered in this process now: before it exits.
pub fn flush() {
    let journals = std::mem::take(&mut *waiting());
    journals.iter().for_each(|journal| journal.flush());
}

/// Schedules a journal to be written within [`LAPSE`].
pub fn flush_soon(journal: Arc<Journal>) {
    let run = || std::thread::Builder::new().name("journal".to_owned()).stack_size(STACK).spawn(run).is_ok();
    if !*RUNNING.get_or_init(run) {
        return journal.flush();
    }
    let mut journals = waiting();
    journals.push(journal);
    let first = journals.len() == 1;
    drop(journals);
    // Waking a thread takes longer than recording a dozen operations; after the first record it is already awake.
    if first {
        MORE.notify_one();
    }
}

fn run() {
    loop {
        let none = |journals: &mut Vec<_>| journals.is_empty();
        drop(MORE.wait_while(waiting(), none));
        std::thread::sleep(LAPSE);
        flush();
    }
}

fn waiting() -> MutexGuard<'static, Vec<Arc<Journal>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
