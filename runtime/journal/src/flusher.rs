//! The thread that writes an agent's records, off the path of what they record. It sleeps while there are none.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::file::Journal;

/// How long a record may wait: about a Pod's start and a half, so that most starts are written in one go.
const LAPSE: Duration = Duration::from_millis(25);

/// Of the thread; what is not touched costs nothing, and the allocator's first use of a thread takes more than 60 KiB
/// unoptimized.
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
    let mut journals = waiting();
    journals.push(journal);
    let first = journals.len() == 1;
    drop(journals);
    // Waking a thread takes longer than recording a dozen operations; with the first it is awake already.
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
