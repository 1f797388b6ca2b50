//! The name of the shim's socket: if it is removed or replaced, no agent can find the shim any more. So it listens again under its
//! name.

use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Shim;
use crate::socket;
use podwright_sys::io;

/// The check interval while no agent is connected: a connected agent does not need the name, and requests checks.
const LOOK_MS: u64 = 1000;

/// The socket's path and identity.
#[derive(Default)]
pub struct Name {
    folder: Option<PathBuf>,
    socket: Option<(u64, u64)>,
    looked_ms: u64,
}

impl Name {
    /// Records the socket that the agent created in this folder.
    pub fn begin(&mut self, folder: Option<&Path>) {
        self.folder = folder.map(Path::to_owned);
        self.socket = folder.and_then(print);
    }
}

/// The device and inode of a folder's socket.
fn print(folder: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(folder.join("s")).ok()?;
    Some((found.dev(), found.ino()))
}

impl Shim {
    /// When the name must be checked next, if at all.
    pub(super) fn next_look(&self) -> Option<u64> {
        let is_alone = self.name.folder.is_some() && !self.stopping && !self.peers.values().any(|p| p.is_proven());
        is_alone.then_some(self.name.looked_ms.saturating_add(LOOK_MS))
    }

    pub(super) fn look_for_name(&mut self, now_ms: u64) {
        if self.next_look().is_some_and(|at| at <= now_ms) {
            self.name.looked_ms = now_ms;
            self.keep_name();
        }
    }

    /// Listens again if the name no longer refers to our socket.
    pub(super) fn keep_name(&mut self) {
        let Some(folder) = &self.name.folder else { return };
        if self.stopping || self.name.socket.is_some() && print(folder) == self.name.socket {
            return;
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let listener = made.and_then(|()| socket::listen(folder)).and_then(|listener| {
            io::set_nonblocking(listener.as_fd())?;
            Ok(listener)
        });
        if let Ok(listener) = listener {
            self.name.socket = print(folder);
            self.listener = listener.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_one_socket() {
        let dir = tempfile::tempdir().unwrap();
        let mut name = Name::default();
        name.begin(Some(dir.path()));
        assert_eq!(name.socket, None, "there is none");
        let first = socket::listen(dir.path()).unwrap();
        name.begin(Some(dir.path()));
        assert!(name.socket.is_some() && print(dir.path()) == name.socket);
        // The first is still open, so its inode is not reused.
        let _second = socket::listen(dir.path()).unwrap();
        assert_ne!(print(dir.path()), name.socket);
        drop(first);
    }
}
