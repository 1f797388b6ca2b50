//! The Unix socket: who may connect, and its path in the file system.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior};

/// How often the path of the Unix socket is checked.
const GLANCE: Duration = Duration::from_secs(2);

/// The Unix socket, which is bound again if somebody removed its path.
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
    /// Connections to a former listener that were not accepted yet.
    waiting: Vec<UnixStream>,
    /// The device and inode of the path.
    name: (u64, u64),
    glance: Interval,
}

/// Binds the socket, accessible to its owner only. One left behind by a dead server is replaced. Must be called inside a tokio
/// runtime.
pub fn bind(path: &Path) -> io::Result<Socket> {
    let listener = listen(path)?;
    let mut glance = tokio::time::interval(GLANCE);
    glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Ok(Socket { path: path.to_owned(), listener, waiting: Vec::new(), name: name_of(path)?, glance })
}

impl Socket {
    pub(super) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            if let Some(stream) = self.waiting.pop() {
                return Ok(stream);
            }
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                _ = self.glance.tick() => {}
            }
            if name_of(&self.path).is_ok_and(|name| name == self.name) {
                continue;
            }
            match listen(&self.path).and_then(|listener| Ok((listener, name_of(&self.path)?))) {
                Ok(another) => {
                    tracing::warn!("{} was removed: creating it again", self.path.display());
                    let former = std::mem::replace(&mut self.listener, another.0);
                    (self.waiting, self.name) = (pending(former)?, another.1);
                }
                Err(why) => tracing::warn!("failed to create the removed {} again: {why}", self.path.display()),
            }
        }
    }
}

/// The pending connections of a listener that is replaced.
fn pending(listener: UnixListener) -> io::Result<Vec<UnixStream>> {
    let listener = listener.into_std()?;
    std::iter::from_fn(|| listener.accept().ok())
        .map(|(stream, _)| {
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        })
        .collect()
}

fn name_of(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|name| (name.dev(), name.ino()))
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let why = format!("another server listens on {}", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // A confined server cannot change modes, but creates files for its owner only.
    if std::fs::metadata(path)?.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(listener)
}
