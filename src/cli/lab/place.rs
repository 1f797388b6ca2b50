//! Where a started lab is kept: its files, its nodes, and how far its learner is.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::course::Lab;
use super::library::Files;
use super::nodes::{Nodes, Process};
use super::shell::Shell;

pub const DEFAULT_ROOT: &str = "/var/lib/podwright-labs";
const RECORD: &str = "lab.json";

/// What is known of a started lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The current step from 1 on; 0: none yet; one more than there are: done.
    pub step: usize,
    nodes: usize,
    processes: Vec<Process>,
}

pub struct Place {
    pub name: String,
    pub record: Record,
    folder: PathBuf,
}

impl Place {
    /// Makes a folder for a lab and starts its nodes. If that fails nothing remains.
    pub async fn start(root: &Path, name: &str, lab: &Lab, files: &Files) -> anyhow::Result<Place> {
        prepare(root)?;
        let folder = root.join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        if made.as_ref().is_err_and(|why| why.kind() == std::io::ErrorKind::AlreadyExists) {
            anyhow::bail!("{name} is started already; `podwright lab reset {name}` ends it");
        }
        made.with_context(|| folder.display().to_string())?;
        let record = Record { step: 0, nodes: lab.nodes, processes: Vec::new() };
        let mut place = Place { name: name.to_owned(), record, folder };
        place.save()?;
        if let Err(why) = place.fill(files).await {
            place.reset().await?;
            return Err(why);
        }
        Ok(place)
    }

    async fn fill(&mut self, files: &Files) -> anyhow::Result<()> {
        for name in ["bin", "files"] {
            std::fs::create_dir(self.folder.join(name))?;
        }
        // The commands of the lab find this very program.
        std::os::unix::fs::symlink(std::env::current_exe()?, self.folder.join("bin/podwright"))?;
        for (name, content) in files {
            std::fs::write(self.folder.join("files").join(name), content)?;
        }
        let nodes = self.nodes();
        nodes
            .start(|process| {
                self.record.processes.push(process);
                self.save()
            })
            .await
    }

    /// A started lab.
    pub fn open(root: &Path, name: &str) -> anyhow::Result<Place> {
        let folder = root.join(name);
        let text = std::fs::read(folder.join(RECORD))
            .with_context(|| format!("{name} is not started; `podwright lab start {name}` does that"))?;
        let record = serde_json::from_slice(&text).with_context(|| folder.join(RECORD).display().to_string())?;
        Ok(Place { name: name.to_owned(), record, folder })
    }

    /// The lab as it was when it was started.
    pub fn lab(&self) -> anyhow::Result<Lab> {
        let file = self.folder.join("files/lab.yaml");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Lab::parse(&text).with_context(|| file.display().to_string())
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn nodes(&self) -> Nodes {
        Nodes { name: self.name.clone(), folder: self.folder.clone(), count: self.record.nodes }
    }

    pub fn shell(&self) -> Shell {
        self.nodes().shell()
    }

    /// Whether all of its nodes run.
    pub fn runs(&self) -> bool {
        self.record.processes.len() == self.record.nodes && self.record.processes.iter().all(Process::is_alive)
    }

    /// Replaces the record at once: a reader finds the former or the next one.
    pub fn save(&self) -> anyhow::Result<()> {
        let file = tempfile::NamedTempFile::new_in(&self.folder)?;
        serde_json::to_writer(&file, &self.record)?;
        file.persist(self.folder.join(RECORD))?;
        Ok(())
    }

    /// Ends the first node's process at once.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        let first = self.record.processes.first().context("it has no node")?;
        first.kill().await
    }

    /// Starts the first node again.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let first = self.record.processes.first().context("it has no node")?;
        anyhow::ensure!(!first.is_alive(), "its node runs");
        let nodes = self.nodes();
        nodes
            .restart(|process| {
                self.record.processes[0] = process;
                self.save()
            })
            .await
    }

    /// Ends the nodes and removes the folder. A command of the lab may have started a node again.
    pub async fn reset(&self) -> anyhow::Result<()> {
        let root = self.folder.parent().context("it is in the folder of all labs")?;
        let now = Place::open(root, &self.name)?;
        self.nodes().end(&now.record.processes).await?;
        std::fs::remove_dir_all(&self.folder).with_context(|| self.folder.display().to_string())
    }
}

/// The names of the labs that are started.
pub fn started(root: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => return Err(why).with_context(|| root.display().to_string()),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.path().join(RECORD).is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

/// Makes the folder of all labs, and refuses one that others may write: they could name processes to end, and commands to run.
fn prepare(root: &Path) -> anyhow::Result<()> {
    let shown = || root.display().to_string();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).with_context(shown)?;
    let found = std::fs::symlink_metadata(root).with_context(shown)?;
    let own = rustix::process::geteuid().as_raw();
    anyhow::ensure!(found.is_dir(), "{} is not a directory", shown());
    anyhow::ensure!(found.uid() == own && found.mode() & 0o022 == 0, "{} can be written by other users", shown());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("labs");
        prepare(&root).unwrap();
        assert_eq!(std::fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&root, PermissionsExt::from_mode(0o770)).unwrap();
        assert!(prepare(&root).unwrap_err().to_string().ends_with("can be written by other users"));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(prepare(&link).unwrap_err().to_string().ends_with("is not a directory"));
    }

    #[test]
    fn only_folders_with_a_record_are_labs() {
        let root = tempfile::tempdir().unwrap();
        assert!(started(&root.path().join("none")).unwrap().is_empty());
        for name in ["02-b", "01-a", "other"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        for name in ["02-b", "01-a"] {
            std::fs::write(root.path().join(name).join(RECORD), "{}").unwrap();
        }
        assert_eq!(started(root.path()).unwrap(), ["01-a", "02-b"]);
    }
}
