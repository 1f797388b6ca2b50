//! Work with files, off the threads that all Pods share: a disk may be slow, and files may be under another's control.

/// Does something that may wait for a disk.
///
/// # Errors
///
/// It has panicked: the words of that.
pub async fn work<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(act).await.map_err(|e| e.to_string())
}
