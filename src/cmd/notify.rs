//! When a process is ready: notifies the service manager (sd_notify(3)), and releases what only the start needed.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

/// Whether the service manager's socket is an abstract one.
pub fn by_abstract_socket() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| path.as_encoded_bytes().starts_with(b"@"))
}

/// How long after it is ready a process has settled.
const AT_REST: Duration = Duration::from_secs(3);

/// Signals the end of the start: to the service manager, and, a little later, to the kernel, which can reclaim start-up code.
pub fn ready() {
    tell_service_manager();
    tokio::spawn(async {
        tokio::time::sleep(AT_REST).await;
        if let Err(error) = podwright_runtime::sys::own::unmap_code() {
            tracing::debug!(%error, "the code of the start stays in memory");
        }
    });
}

/// Sends `READY=1` to the service manager. It is not an error if there is none.
fn tell_service_manager() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = path.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let said = address.and_then(|a| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &a));
    if let Err(error) = said {
        tracing::warn!(%error, "failed to notify the service manager");
    }
}
