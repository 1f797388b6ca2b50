//! Writable layers: what containers have written to their roots.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::{Inner, Runtime, Sandbox};
use crate::records::{at, remove_folder};
use crate::removals::{Owner, Removals, is_full};
use crate::spec::ContainerId;
use crate::{Error, JournalWriter, Result, cgroup, projects};
use podwright_sys::Kernel;
use podwright_sys::still::Still;
use podwright_sys::tree;

impl Runtime {
    /// The root folder of the sandboxes' folders.
    pub fn root(&self) -> &Path {
        &self.0.folders.state
    }

    /// Data moved aside for deletion; callers may add their own data of sandboxes.
    pub fn removals(&self) -> &Removals {
        &self.0.folders.removals
    }

    /// The folders with a container's writable layer; they need not exist.
    pub fn layer(&self, id: &ContainerId) -> [PathBuf; 2] {
        let folder = self.0.folders.container(id);
        ["upper", "work"].map(|name| folder.join(name))
    }

    /// The processes of a container, from its cgroup.
    pub fn pids(&self, id: &ContainerId) -> Result<Vec<u32>> {
        Ok(cgroup::procs(&self.container_cgroup(id)?))
    }

    /// The project of a container's writable layers, including previous attempts: what those have left, deleted but open elsewhere,
    /// counts together with what this one writes.
    pub(super) fn project(&self, id: &ContainerId) -> Option<u32> {
        let sandbox = self.get(&id.sandbox).ok()?;
        let state = sandbox.state();
        let earlier =
            state.containers.values().map(|container| &container.record.id).filter(|other| other.name == id.name);
        earlier.flat_map(|other| self.layer(other)).find_map(|folder| projects::of(&folder))
    }

    /// Removes the writable layer of a container that has exited, as it is no longer readable; its record and log stay. Does
    /// nothing if it has not exited. The layer is moved aside; if it is in a project, empty folders remain in its place to keep the
    /// project. What is aside records its ids, so a stopped sandbox need not keep them.
    pub async fn clear_layer(&self, id: &ContainerId) -> Result<()> {
        let sandbox = self.get(&id.sandbox)?;
        if !sandbox.with_container(id, |c| c.exit.borrow().is_some())? {
            return Ok(());
        }
        let (folders, turn, owner) = (self.layer(id), sandbox.turn_of(id)?, sandbox.state().record.spec.owner());
        let (inner, id, name) = (self.0.clone(), id.clone(), owner.name().to_owned());
        let clear = move || {
            // Two would move each other's empty folders aside. Another caller may have removed it meanwhile.
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            if sandbox.with_container(&id, |_| ()).is_err() {
                return Ok(());
            }
            clear(&inner, &folders, &owner)
        };
        let cleared = self.removals().in_turn(&name, clear).await;
        cleared.unwrap_or_else(|| Err(Error::Kernel("clearing a layer has panicked".to_owned())))
    }
}

/// A sandbox whose processes may have to be frozen while their files are measured.
pub struct Restless(Arc<Inner>, Arc<Sandbox>);

/// They are frozen until this is dropped.
pub struct Quiet<'a> {
    _still: Still,
    /// Restoring limits would unfreeze them.
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Runtime {
    /// `None`: there is no such sandbox.
    pub fn restless(&self, sandbox: &str) -> Option<Restless> {
        Some(Restless(self.0.clone(), self.find(sandbox)?))
    }
}

impl Restless {
    /// Blocks its thread: until no operation on the sandbox runs, then briefly.
    pub fn keep_still(&self) -> Result<Quiet<'_>> {
        let _turn = self.1.turn.blocking_lock();
        let cgroup = self.0.tree.path(&self.1.state().record.spec.cgroup);
        let _still = Kernel::new(&JournalWriter::none()).keep_still(&cgroup)?;
        Ok(Quiet { _still, _turn })
    }
}

/// Moves an existing layer aside, except the empty folders of a project.
fn clear(inner: &Inner, folders: &[PathBuf; 2], owner: &Owner) -> Result<()> {
    let project = folders.iter().find_map(|folder| projects::of(folder));
    let is_empty = |folder: &PathBuf| std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if project.is_some() && folders.iter().all(is_empty) {
        return Ok(());
    }
    if project.is_none() {
        return folders.iter().try_for_each(|folder| inner.folders.put_aside(folder, owner));
    }
    // First: once they are aside, the project is no longer recorded elsewhere.
    let kernel = Kernel::new(&JournalWriter::none());
    let new = folders.each_ref().map(|folder| folder.with_extension("new"));
    for new in &new {
        remove_folder(new)?;
        if let Err(error) = kernel.mkdir(new) {
            if is_full(&error.source) {
                // There is space again once these are empty.
                folders.iter().for_each(|folder| drop(inner.folders.removals.empty(folder, owner)));
            }
            return Err(error.into());
        }
    }
    projects::give(&kernel, &[&new[0], &new[1]], project)?;
    for (folder, new) in folders.iter().zip(&new) {
        inner.folders.put_aside(folder, owner)?;
        tree::take_place(new, folder).map_err(at(folder))?;
    }
    Ok(())
}
