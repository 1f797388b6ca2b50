//! What a process does once it is ready: it tells the service manager (sd_notify(3)), and gives back what only the start needed.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

/// Whether the service manager listens on an abstract socket.
pub fn by_abstract_socket() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| path.as_encoded_bytes().starts_with(b"@"))
}

/// How long after it is ready a process is at rest.
const AT_REST: Duration = Duration::from_secs(3);

/// Says that the start is over: to the service manager that listens, and, a little later, to the kernel, which gets the code back
/// that only a start runs.
pub fn ready() {
    tell_service_manager();
    tokio::spawn(async {
        tokio::time::sleep(AT_REST).await;
        if let Err(error) = podwright_runtime::sys::own::unmap_code() {
            tracing::debug!(%error, "the code of the start stays in memory");
        }
    });
}

/// Says `READY=1` where a service manager listens. Nobody listening is no error.
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
