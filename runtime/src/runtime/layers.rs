//! Writable layers: what containers have written to their roots.

use std::path::{Path, PathBuf};

use super::Runtime;
use crate::records::{at, remove_folder};
use crate::spec::ContainerId;
use crate::sys::tree::remove_content;
use crate::{Result, cgroup, projects};

impl Runtime {
    /// The folder of all sandboxes' folders.
    pub fn root(&self) -> &Path {
        &self.0.folders.state
    }

    /// The folders that hold what a container has written to its root; they need not exist.
    pub fn layer(&self, id: &ContainerId) -> [PathBuf; 2] {
        let folder = self.0.folders.container(id);
        ["upper", "work"].map(|name| folder.join(name))
    }

    /// The processes of a container as its cgroup lists them.
    pub fn pids(&self, id: &ContainerId) -> Result<Vec<u32>> {
        Ok(cgroup::procs(&self.container_cgroup(id)?))
    }

    /// The project of a container's writable layers, that of the attempts before this one included: what those have left
    /// behind, deleted and open elsewhere, is counted with what this one writes.
    pub(super) fn project(&self, id: &ContainerId) -> Option<u32> {
        let sandbox = self.get(&id.sandbox).ok()?;
        let state = sandbox.state();
        let earlier =
            state.containers.values().map(|container| &container.record.id).filter(|other| other.name == id.name);
        earlier.flat_map(|other| self.layer(other)).find_map(|folder| projects::of(&folder))
    }

    /// Removes the writable layer of a container that has ended, for nobody can read it any more; its record and its log stay.
    /// Leaves that of one that has not. Folders that are in a project are emptied: they say which it is.
    pub async fn clear_layer(&self, id: &ContainerId) -> Result<()> {
        let ended = self.get(&id.sandbox)?.with_container(id, |c| c.exit.borrow().is_some())?;
        if !ended {
            return Ok(());
        }
        let folders = self.layer(id);
        self.blocking(move |_| folders.iter().try_for_each(|folder| clear(folder))).await
    }
}

fn clear(folder: &Path) -> Result<()> {
    match projects::of(folder) {
        Some(_) => remove_content(folder).map_err(at(folder)),
        None => remove_folder(folder),
    }
}
