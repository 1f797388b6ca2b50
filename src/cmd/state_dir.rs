//! `--state-dir`: determines, creates and marks a process' directories.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::{
    folder,
    paths::{Paths, STATE},
    private::{self, Owner},
};

#[derive(Clone, Debug, clap::Args)]
pub struct StateArgs {
    /// Keep everything below this directory [default: /var/lib/podwright, /run/podwright, /var/log/pods]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl StateArgs {
    /// The directories, created if missing, readable only by their owner: this process' user, or `owner`, whom it will switch to.
    /// They are marked as podwright's: [`folder::take`].
    pub fn paths(&self, owner: Owner) -> anyhow::Result<Paths> {
        if let Some(dir) = &self.state_dir {
            not_a_link(dir)?;
            make(dir)?;
        }
        let paths = self.found()?;
        for folder in [&paths.state, &paths.run] {
            make(folder)?;
            private::folder(folder, owner)?;
        }
        folder::take(&paths.state)?;
        Ok(paths)
    }

    /// The existing directories: nothing is created or changed.
    pub fn found(&self) -> anyhow::Result<Paths> {
        let Some(dir) = &self.state_dir else {
            return Ok(Paths {
                state: STATE.into(),
                run: "/run/podwright".into(),
                logs: "/var/log/pods".into(),
                manifests: "/etc/podwright/manifests".into(),
                cgroup_root: "/podwright".into(),
            });
        };
        not_a_link(dir)?;
        let dir = dir.canonicalize().with_context(|| format!("--state-dir {}", dir.display()))?;
        Ok(Paths {
            run: dir.clone(),
            logs: dir.join("log"),
            manifests: dir.join("manifests"),
            cgroup_root: format!("/podwright-{}", fingerprint(&dir)).into(),
            state: dir,
        })
    }
}

fn not_a_link(dir: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(!dir.is_symlink(), "--state-dir {} is a symbolic link: name the folder itself", dir.display());
    Ok(())
}

/// Eight digits that distinguish the directories of nodes.
fn fingerprint(dir: &Path) -> String {
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

fn make(dir: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("making the folder {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link would let its author choose where root stores its keys.
    #[test]
    fn a_state_folder_is_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, link) = (dir.path().join("folder"), dir.path().join("link"));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        let paths = |dir: &Path| StateArgs { state_dir: Some(dir.to_owned()) }.paths(Owner::here());
        let why = paths(&link).unwrap_err().to_string();
        assert!(why.contains("is a symbolic link"), "{why}");
        assert_eq!(paths(&folder).unwrap().state, folder.canonicalize().unwrap());
    }
}
