//! Whose a Pod's folder is, said in the folder itself: for a later agent that finds it, and nothing of the Pod beside it.
//!
//! It is there before anything is the ids' that it names. It is not synced: after a power loss nobody has files of the Pod open.

use std::{
    collections::BTreeMap,
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
use crate::{machine::split_sandbox, spec::PodExt, users::IDS_PER_POD};

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

    /// Whose the Pod's folder is. Of a Pod that is gone, and of which nothing else is known, it has no namespace. `users`: the ids that
    /// its files may have, where more is known than what it says.
    pub(super) fn owner(&self, pod: &Pod, users: Option<IdRange>) -> Owner {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let noted = noted(&self.folder(pod)).unwrap_or_else(|| Owner::new(namespace, None));
        Owner::new(noted.name(), users.or(noted.users()))
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

/// The uids of all Pods that have a folder in this one, with what is noted there, if anything is. It blocks.
pub fn owners_of(pods: &Path) -> BTreeMap<String, Option<Owner>> {
    let of = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, noted(&entry.path())));
    folders(pods).filter_map(of).collect()
}

/// Whose sandboxes are, as it is noted in the folder of all Pods' folders.
pub fn owners_in(pods: PathBuf) -> Owners {
    Owners::new(move |sandbox| noted(&pods.join(split_sandbox(sandbox).0)))
}

/// What a folder says. Nobody notes another number of ids than a Pod has: such a note is damaged.
fn noted(folder: &Path) -> Option<Owner> {
    let owner: Owner = String::from_utf8(shared::read(&folder.join(OWNER), LARGEST).ok()?).ok()?.parse().ok()?;
    owner.users().is_none_or(|users| users.size == IDS_PER_POD).then_some(owner)
}
