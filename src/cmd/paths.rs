//! Where a node keeps things.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::private::{self, Owner};

/// Where a server keeps things if it is not told.
pub const STATE: &str = "/var/lib/podwright";
/// The administrator's kubeconfig, in the state folder.
pub const KUBECONFIG: &str = "admin.kubeconfig";

/// The folders of one node. Two nodes on one machine share none.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Durable.
    pub state: PathBuf,
    /// Lives until reboot.
    pub run: PathBuf,
    pub logs: PathBuf,
    pub manifests: PathBuf,
    /// The node's subtree below the cgroup v2 mount.
    pub cgroup_root: PathBuf,
}

#[derive(Clone, Debug, clap::Args)]
pub struct StateArgs {
    /// Keep everything below this folder [default: /var/lib/podwright, /run/podwright, /var/log/pods]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl StateArgs {
    /// The folders, made where missing, readable by their owner alone: this process's user, or `owner`, whom it will become.
    pub fn paths(&self, owner: Owner) -> anyhow::Result<Paths> {
        let paths = match &self.state_dir {
            None => Paths {
                state: STATE.into(),
                run: "/run/podwright".into(),
                logs: "/var/log/pods".into(),
                manifests: "/etc/podwright/manifests".into(),
                cgroup_root: "/podwright".into(),
            },
            Some(dir) => {
                anyhow::ensure!(
                    !dir.is_symlink(),
                    "--state-dir {} is a symbolic link: name the folder itself",
                    dir.display()
                );
                make(dir)?;
                let dir = dir.canonicalize().with_context(|| format!("--state-dir {}", dir.display()))?;
                Paths {
                    run: dir.clone(),
                    logs: dir.join("log"),
                    manifests: dir.join("manifests"),
                    cgroup_root: format!("/podwright-{}", fingerprint(&dir)).into(),
                    state: dir,
                }
            }
        };
        for folder in [&paths.state, &paths.run] {
            make(folder)?;
            private::folder(folder, owner)?;
        }
        Ok(paths)
    }
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
    /// What is encrypted in the store, with its keys.
    pub fn encryption(&self) -> PathBuf {
        self.state.join("encryption-config.yaml")
    }
    /// A node's own certificate, where it joined a cluster by TLS.
    pub fn membership(&self) -> PathBuf {
        self.state.join("agent")
    }
    pub fn images(&self) -> PathBuf {
        self.state.join("images")
    }
    /// The runtime's durable folder.
    pub fn runtime(&self) -> PathBuf {
        self.state.join("runtime")
    }
    /// The runtime's folder of sockets.
    pub fn shims(&self) -> PathBuf {
        self.run.join("shims")
    }
    pub fn network(&self) -> PathBuf {
        self.state.join("network")
    }
}

/// Eight digits that tell one node's folder from another's.
fn fingerprint(dir: &Path) -> String {
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

fn make(dir: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("making the folder {}", dir.display()))
}
