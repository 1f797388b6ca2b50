//! The directories of a node.

use std::path::PathBuf;

/// The default state directory of a server.
pub const STATE: &str = "/var/lib/podwright";
/// The administrator's kubeconfig, in the state directory.
pub const KUBECONFIG: &str = "admin.kubeconfig";

/// The directories of one node. Two nodes on one machine share none.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Durable.
    pub state: PathBuf,
    /// Until reboot.
    pub run: PathBuf,
    pub logs: PathBuf,
    pub manifests: PathBuf,
    /// The node's subtree below the cgroup v2 mount.
    pub cgroup_root: PathBuf,
}

impl Paths {
    pub fn socket(&self) -> PathBuf {
        self.run.join("api.sock")
    }
    pub fn store(&self) -> PathBuf {
        self.state.join("store.db")
    }
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join(KUBECONFIG)
    }
    /// The cluster's certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.state.join("pki")
    }
    /// The encryption configuration of the store, with its keys.
    pub fn encryption(&self) -> PathBuf {
        self.state.join("encryption-config.yaml")
    }
    /// A node's own certificate, if it joined a cluster over TLS.
    pub fn membership(&self) -> PathBuf {
        self.state.join("agent")
    }
    pub fn images(&self) -> PathBuf {
        self.state.join("images")
    }
    /// The runtime's durable directory.
    pub fn runtime(&self) -> PathBuf {
        self.state.join("runtime")
    }
    /// The runtime's directory of sockets.
    pub fn shims(&self) -> PathBuf {
        self.run.join("shims")
    }
    pub fn network(&self) -> PathBuf {
        self.state.join("network")
    }
}
