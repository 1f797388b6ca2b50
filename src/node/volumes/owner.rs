//! A note in a Pod's folder about its owner, for a later agent that finds the folder and nothing else of the Pod.
//!
//! It is written, and synced, before the ids that it names are used, since their files survive a power loss. Without ids it is not
//! synced: after a power loss no process has files of the Pod open.
//!
//! ```text
//!   <first id>+<number>.<namespace>     the Pod's; `-` as ids without a user namespace
//!   <first id>+<number>.                other ids found in its files while their owner was unknown
//! ```

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

use super::{
    Volumes,
    error::{Result, file},
};
use crate::{
    id_pool::{IDS_PER_POD, hull},
    spec::PodExt,
    translate::split_sandbox_id,
};

/// Maximum size of a note.
const LARGEST: usize = 256;

impl Volumes {
    /// Writes the Pod's namespace and its users' ids to its folder, and other ids found in its files. Blocks; if it names ids,
    /// until it is on disk.
    ///
    /// # Errors
    ///
    /// The note cannot be written: the old one remains.
    pub fn note_owner(&self, pod: &Pod, users: Option<IdRange>, found: Option<IdRange>) -> Result<()> {
        let folder = self.folder(pod);
        let path = folder.join(OWNER);
        let note = Note { owner: Owner::new(pod.namespace(), users), found };
        let written = match (users, found) {
            (None, None) => kept::replace_unsynced(&path, note.text().as_bytes()),
            // The folder may have been created just now.
            _ => kept::replace_durably(&path, note.text().as_bytes()).and_then(|()| kept::sync_folder(&folder)),
        };
        written.map_err(file(&path))
    }

    /// The same for a Pod started by an earlier agent that did not write it. Blocks.
    ///
    /// # Errors
    ///
    /// Those of [`Volumes::note_owner`].
    pub fn adopt_owner(&self, pod: &Pod, users: Option<IdRange>, found: Option<IdRange>) -> Result<()> {
        let is_noted = noted(&self.folder(pod)) == Some(Note { owner: Owner::new(pod.namespace(), users), found });
        if is_noted { Ok(()) } else { self.note_owner(pod, users, found) }
    }

    /// The owner of the Pod's folder. For a removed Pod of which nothing else is known, it has no namespace. `users`: ids that its
    /// files may have, if more is known than the note says.
    pub(super) fn owner(&self, pod: &Pod, users: Option<IdRange>) -> Owner {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let noted = noted(&self.folder(pod)).map_or_else(|| Owner::new(namespace, None), Note::of_files);
        // What is aside in it goes with it, and may have ids that the Pod no longer has.
        let aside = self.removals.users_below(&self.folder(pod));
        let all = users.or(noted.users()).into_iter().chain(aside);
        Owner::new(noted.name(), all.reduce(hull))
    }

    /// The Pods' folders that were not moved aside.
    pub(super) fn folders(&self) -> impl Iterator<Item = fs::DirEntry> + use<> {
        folders(&self.pods)
    }
}

pub(super) fn folders(pods: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    let all = fs::read_dir(pods).into_iter().flatten().flatten();
    all.filter(|entry| entry.file_name().to_str().is_some_and(|name| !is_aside(name)))
}

/// The content of a Pod's note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub owner: Owner,
    /// Ids of its files besides the Pod's.
    pub found: Option<IdRange>,
}

impl Note {
    fn text(&self) -> String {
        match self.found {
            Some(found) => format!("{}\n{}", self.owner, Owner::new("", Some(found))),
            None => self.owner.to_string(),
        }
    }

    /// Parses a complete note. A note with another number of ids than a Pod has is damaged.
    fn of(text: &str) -> Option<Note> {
        let (owner, found) = text.split_once('\n').map_or((text, None), |(owner, found)| (owner, Some(found)));
        let owner: Owner = owner.parse().ok()?;
        let found = match found {
            Some(found) => Some(found.parse::<Owner>().ok()?.users()?),
            None => None,
        };
        owner.users().is_none_or(|users| users.size == IDS_PER_POD).then_some(Note { owner, found })
    }

    /// The owner of the files: with all ids that they may have.
    pub fn of_files(self) -> Owner {
        let users = self.owner.users().into_iter().chain(self.found).reduce(hull);
        Owner::new(self.owner.name(), users)
    }
}

/// The uids of all Pods with a folder in this one, with their notes, if any. Blocks.
pub fn owners_of(pods: &Path) -> BTreeMap<String, Option<Note>> {
    let of = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, noted(&entry.path())));
    folders(pods).filter_map(of).collect()
}

/// The owners of sandboxes, from the notes in the Pods' folders.
pub fn owners_in(pods: PathBuf) -> Owners {
    Owners::new(move |sandbox| noted(&pods.join(split_sandbox_id(sandbox).0)).map(Note::of_files))
}

fn noted(folder: &Path) -> Option<Note> {
    Note::of(&String::from_utf8(shared::read(&folder.join(OWNER), LARGEST).ok()?).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_all_or_nothing() {
        let range = |host, size| Some(IdRange { host, size });
        for (users, found) in [
            (None, None),
            (range(131072, IDS_PER_POD), None),
            (range(131072, IDS_PER_POD), range(65543, 1)),
            (None, range(65543, 1)),
        ] {
            let note = Note { owner: Owner::new("team", users), found };
            assert_eq!(Note::of(&note.text()).unwrap(), note);
            assert!(note.text().len() < LARGEST);
        }
        let both = Note { owner: Owner::new("team", range(131072, IDS_PER_POD)), found: range(65543, 1) };
        assert_eq!(both.of_files(), Owner::new("team", range(65543, 131072 + IDS_PER_POD - 65543)));
        for damaged in ["", "131072+65536.team\n", "131072+65536.team\n-.", "131072+1.team\n65543+1.", "\n65543+1."] {
            assert_eq!(Note::of(damaged), None, "{damaged}");
        }
    }
}
