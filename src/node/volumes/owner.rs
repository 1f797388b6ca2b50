//! Whose a Pod's folder is, said in the folder itself: for a later agent that finds it, and nothing of the Pod beside it.
//!
//! It is there before anything is the ids' that it names. It is not synced: after a power loss nobody has files of the Pod open.

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::Pod;
use podwright_journal::kept;
use podwright_runtime::{
    IdRange,
    removals::{Owner, is_aside},
    sys::shared,
};

use super::Volumes;
use crate::node::spec::PodExt;

const FILE: &str = "owner";
/// No owner takes so many bytes.
const LARGEST: usize = 256;

impl Volumes {
    /// Notes the Pod's namespace and its users' ids with its folder. It blocks.
    pub fn note_owner(&self, pod: &Pod, users: Option<IdRange>) -> Result<(), String> {
        let path = self.folder(pod).join(FILE);
        let owner = Owner::new(pod.namespace(), users).to_string();
        kept::replace_unsynced(&path, owner.as_bytes()).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The same of a Pod that an earlier agent has started, unless that did. It blocks.
    pub fn adopt_owner(&self, pod: &Pod, users: Option<IdRange>) -> Result<(), String> {
        let is_noted = noted(&self.folder(pod)) == Some(Owner::new(pod.namespace(), users));
        if is_noted { Ok(()) } else { self.note_owner(pod, users) }
    }

    /// Whose the Pod's folder is. Of a Pod that is gone, and of which nothing else is known, it has no namespace.
    pub(super) fn owner(&self, pod: &Pod) -> Owner {
        let known = || pod.metadata.namespace.as_ref().map(|namespace| Owner::new(namespace, None));
        noted(&self.folder(pod)).or_else(known).unwrap_or_default()
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

/// The uids of all Pods that have a folder in this one and ids of their own, with these.
pub fn users_in(pods: &Path) -> Vec<(String, IdRange)> {
    let of = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, noted(&entry.path())?.users()?));
    folders(pods).filter_map(of).collect()
}

fn noted(folder: &Path) -> Option<Owner> {
    String::from_utf8(shared::read(&folder.join(FILE), LARGEST).ok()?).ok()?.parse().ok()
}
