//! Tells the service manager that the process is ready (sd_notify(3)).

use std::os::{
    linux::net::SocketAddrExt,
    unix::net::{SocketAddr, UnixDatagram},
};

/// Whether the service manager listens on an abstract socket.
pub fn by_abstract_socket() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| path.as_encoded_bytes().starts_with(b"@"))
}

/// Says `READY=1` where a service manager listens. Nobody listening is no error.
pub fn ready() {
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
