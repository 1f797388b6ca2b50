//! Runs file work off the threads that all Pods share: disks may be slow, and files may be under someone else's control.

/// Runs something that may block on a disk.
///
/// # Errors
///
/// It panicked: the panic message.
pub async fn work<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(act).await.map_err(|e| e.to_string())
}
