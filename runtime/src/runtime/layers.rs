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
    /// The folder of all sandboxes' folders.
    pub fn root(&self) -> &Path {
        &self.0.folders.state
    }

    /// What is put aside and being removed; callers may have it remove what they have for sandboxes.
    pub fn removals(&self) -> &Removals {
        &self.0.folders.removals
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
    /// Leaves that of one that has not. It is put aside; where it is in a project, empty folders that are stay in its place: they say
    /// which it is. What is aside says whose ids it has: a sandbox that has ended keeps them no longer than it.
    pub async fn clear_layer(&self, id: &ContainerId) -> Result<()> {
        let sandbox = self.get(&id.sandbox)?;
        if !sandbox.with_container(id, |c| c.exit.borrow().is_some())? {
            return Ok(());
        }
        let (folders, turn, owner) = (self.layer(id), sandbox.turn_of(id)?, sandbox.state().record.spec.owner());
        let (inner, id, name) = (self.0.clone(), id.clone(), owner.name().to_owned());
        let clear = move || {
            // Two would put each other's empty folders aside. Whoever has removed it meanwhile had the turn.
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

/// A sandbox whose processes may have to hold still, while somebody looks at what they move.
pub struct Restless(Arc<Inner>, Arc<Sandbox>);

/// They do until this is dropped.
pub struct Quiet<'a> {
    _still: Still,
    /// Whoever puts limits back would let them go on.
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Runtime {
    /// `None`: there is no such sandbox.
    pub fn restless(&self, sandbox: &str) -> Option<Restless> {
        Some(Restless(self.0.clone(), self.find(sandbox)?))
    }
}

impl Restless {
    /// Blocks its thread: first until nobody changes the sandbox, then for a moment.
    pub fn keep_still(&self) -> Result<Quiet<'_>> {
        let _turn = self.1.turn.blocking_lock();
        let cgroup = self.0.tree.path(&self.1.state().record.spec.cgroup);
        let _still = Kernel::new(&JournalWriter::none()).keep_still(&cgroup)?;
        Ok(Quiet { _still, _turn })
    }
}

/// Puts a layer aside that there is, but for empty folders of a project.
fn clear(inner: &Inner, folders: &[PathBuf; 2], owner: &Owner) -> Result<()> {
    let project = folders.iter().find_map(|folder| projects::of(folder));
    let is_empty = |folder: &PathBuf| std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if project.is_some() && folders.iter().all(is_empty) {
        return Ok(());
    }
    if project.is_none() {
        return folders.iter().try_for_each(|folder| inner.folders.put_aside(folder, owner));
    }
    // First: once they are aside, nothing else says which project it is.
    let kernel = Kernel::new(&JournalWriter::none());
    let new = folders.each_ref().map(|folder| folder.with_extension("new"));
    for new in &new {
        remove_folder(new)?;
        if let Err(error) = kernel.mkdir(new) {
            if is_full(&error.source) {
                // There is room again when these are empty.
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
