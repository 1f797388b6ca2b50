//! Panics of work that others depend on: caught, and told in their words.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// What `work` gives.
///
/// # Errors
///
/// The words of its panic.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => {
            panic.downcast_ref::<&str>().map_or("a panic without words".to_owned(), |words| (*words).to_owned())
        }
    })
}
