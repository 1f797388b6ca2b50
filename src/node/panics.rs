//! Catches panics in work that others depend on, and returns their messages.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// Runs `work`.
///
/// # Errors
///
/// The message of its panic.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => {
            panic.downcast_ref::<&str>().map_or("a panic without words".to_owned(), |words| (*words).to_owned())
        }
    })
}
