//! The socket that a shim listens at.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The socket's path can be longer than a socket address: so it is named through its folder's descriptor.
pub fn short_path(folder: &File) -> std::path::PathBuf {
    io_path(folder.as_raw_fd())
}

fn io_path(fd: i32) -> std::path::PathBuf {
    format!("/proc/self/fd/{fd}/s").into()
}

/// Listens at `<folder>/s`; an old socket there is replaced.
pub fn listen(folder: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(folder.join("s")) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    UnixListener::bind(short_path(&File::open(folder)?))
}
