//! The listening socket of a shim.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The socket's path may exceed a socket address: so it is named through its folder's descriptor.
pub fn short_path(folder: &File) -> std::path::PathBuf {
    io_path(folder.as_raw_fd())
}

fn io_path(fd: i32) -> std::path::PathBuf {
    format!("/proc/self/fd/{fd}/s").into()
}

/// Listens at `<folder>/s`, replacing an old socket. Fails if it cannot be created.
pub fn listen(folder: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(folder.join("s")) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    UnixListener::bind(short_path(&File::open(folder)?))
}
