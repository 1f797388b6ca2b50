//! A record of what a node has added to `lo`: addresses and routes have no labels, and the node may be removed without knowing its
//! flags.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ipnet::IpNet;
use podwright_journal::kept;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The record, written before the changes it lists. It includes those of earlier processes on the same folder.
pub(super) struct Made {
    path: PathBuf,
    state: State,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    addresses: BTreeSet<IpAddr>,
    routes: BTreeSet<IpNet>,
    /// The node's addresses on links, with their prefixes: who is on the same link, also while the links have lost them.
    #[serde(default)]
    networks: BTreeSet<IpNet>,
}

impl Made {
    /// Reads the record in a node's folder; empty if there is none, or it is unreadable.
    pub fn open(folder: &Path) -> Made {
        let path = folder.join("loopback.json");
        let read = fs::read(&path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other));
        let state = read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, path = %path.display(), "the record of addresses on lo is damaged: starting a new one");
            }
            State::default()
        });
        Made { path, state }
    }

    /// Records what is about to be added to `lo`. On failure it is not recorded, and written with the next call.
    pub fn note<'a>(
        &mut self,
        addresses: impl IntoIterator<Item = &'a IpAddr>,
        routes: impl IntoIterator<Item = &'a IpNet>,
    ) -> Result<()> {
        let mut state = self.state.clone();
        state.addresses.extend(addresses);
        state.routes.extend(routes.into_iter().map(IpNet::trunc));
        self.write(state)
    }

    /// Records that addresses are no longer on `lo`: from now on they are somebody else's there.
    pub fn forget(&mut self, addresses: &[IpAddr]) -> Result<()> {
        let mut state = self.state.clone();
        state.addresses.retain(|address| !addresses.contains(address));
        self.write(state)
    }

    /// Records the node's addresses on links, in place of those recorded.
    pub fn remember(&mut self, networks: BTreeSet<IpNet>) -> Result<()> {
        let state = State { networks, ..self.state.clone() };
        self.write(state)
    }

    fn write(&mut self, state: State) -> Result<()> {
        if state == self.state {
            return Ok(());
        }
        let failed = |e| Error::call(format!("write {}", self.path.display()), e);
        let bytes = serde_json::to_vec(&state).map_err(|e| failed(io::Error::other(e)))?;
        kept::replace(&self.path, &bytes).map_err(failed)?;
        self.state = state;
        Ok(())
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.state.addresses.iter().copied()
    }
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.state.networks.iter().copied()
    }
    pub fn routes(&self) -> impl Iterator<Item = IpNet> {
        self.state.routes.iter().copied()
    }

    /// Removes the record: nothing is left.
    pub fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::call(format!("unlink {}", self.path.display()), e))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_by_earlier_processes_is_known_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let ips: [IpAddr; 2] = ["10.50.0.10", "fd00:60::a"].map(|ip| ip.parse().unwrap());
        let nets: [IpNet; 2] = ["10.50.7.0/16", "fd00:60::/112"].map(|net| net.parse().unwrap());
        for (ip, net) in ips.iter().zip(&nets) {
            Made::open(folder.path()).note([ip], [net]).unwrap();
        }
        let made = Made::open(folder.path());
        assert_eq!(made.addresses().collect::<Vec<_>>(), ips);
        assert_eq!(made.routes().collect::<Vec<_>>(), nets.map(|net| net.trunc()));
        made.remove().unwrap();
        made.remove().unwrap();
        assert_eq!(Made::open(folder.path()).addresses().count(), 0);
        // An unreadable one counts as missing.
        fs::write(folder.path().join("loopback.json"), "{").unwrap();
        Made::open(folder.path()).note(&ips, []).unwrap();
        assert_eq!(Made::open(folder.path()).addresses().count(), 2);
    }

    #[test]
    fn what_could_not_be_written_is_not_noted() {
        let (folder, ip) = (tempfile::tempdir().unwrap(), "10.50.0.10".parse().unwrap());
        let in_the_way = folder.path().join("loopback.json.tmp");
        fs::create_dir(&in_the_way).unwrap();
        let mut made = Made::open(folder.path());
        made.note([&ip], []).unwrap_err();
        assert_eq!(made.addresses().count(), 0);
        fs::remove_dir(&in_the_way).unwrap();
        made.note([&ip], []).unwrap();
        assert_eq!(Made::open(folder.path()).addresses().collect::<Vec<_>>(), [ip]);
    }
}
