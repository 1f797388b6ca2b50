//! Whose a Pod's folder is, said in the folder itself: for a later agent that finds it, and nothing of the Pod beside it.
//!
//! It is there before anything is the ids' that it names. It is not synced: after a power loss nobody has files of the Pod open.

use std::{
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;
use podwright_journal::kept;
use podwright_runtime::{
    IdRange,
    removals::{OWNER, Owner, Owners, is_aside},
    sys::shared,
};

use super::Volumes;
use crate::node::{machine::split_sandbox, spec::PodExt};

/// No owner takes so many bytes.
const LARGEST: usize = 256;

impl Volumes {
    /// Notes the Pod's namespace and its users' ids with its folder. It blocks.
    pub fn note_owner(&self, pod: &Pod, users: Option<IdRange>) -> Result<(), String> {
        let path = self.folder(pod).join(OWNER);
        let owner = Owner::new(pod.namespace(), users).to_string();
        kept::replace_unsynced(&path, owner.as_bytes()).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The same of a Pod that an earlier agent has started, unless that did. It blocks.
    pub fn adopt_owner(&self, pod: &Pod, users: Option<IdRange>) -> Result<(), String> {
        let is_noted = noted(&self.folder(pod)) == Some(Owner::new(pod.namespace(), users));
        if is_noted { Ok(()) } else { self.note_owner(pod, users) }
    }

    /// Whose the Pod's folder is. Of a Pod that is gone, and of which nothing else is known, it has no namespace. It blocks.
    pub(super) fn owner(&self, pod: &Pod) -> Owner {
        let (folder, namespace) = (self.folder(pod), pod.metadata.namespace.as_deref().unwrap_or_default());
        noted(&folder).unwrap_or_else(|| Owner::found_in(namespace, &folder))
    }

    /// The folders of Pods that nobody has put aside.
    pub(super) fn folders(&self) -> impl Iterator<Item = fs::DirEntry> + use<> {
        folders(&self.pods)
    }
}

fn folders(pods: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    let all = fs::read_dir(pods).into_iter().flatten().flatten();
    all.filter(|entry| entry.file_name().to_str().is_some_and(|name| !is_aside(name)))
}

/// The uids of all Pods that have a folder in this one and ids of their own, with these: as it is noted there, or, of those that are
/// not `known` otherwise, as their files say. It blocks.
pub fn users_in(pods: &Path, known: impl Fn(&str) -> bool) -> Vec<(String, IdRange)> {
    let of = |entry: fs::DirEntry| {
        let (uid, folder) = (entry.file_name().into_string().ok()?, entry.path());
        let found = || (!known(&uid)).then(|| Owner::found_in("", &folder));
        let users = noted(&folder).or_else(found)?.users()?;
        Some((uid, users))
    };
    folders(pods).filter_map(of).collect()
}

/// Whose sandboxes are, as it is noted in the folder of all Pods' folders.
pub fn owners_in(pods: PathBuf) -> Owners {
    Owners::new(move |sandbox| noted(&pods.join(split_sandbox(sandbox).0)))
}

fn noted(folder: &Path) -> Option<Owner> {
    String::from_utf8(shared::read(&folder.join(OWNER), LARGEST).ok()?).ok()?.parse().ok()
}
