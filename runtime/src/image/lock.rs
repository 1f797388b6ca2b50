//! Takes a lock even if it is poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No invariant of ours spans a panic, so a poisoned lock is as good as any.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
