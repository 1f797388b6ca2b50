//! Whose a Pod's folder is, said in the folder itself: for a later agent that finds it, and nothing of the Pod beside it.
//!
//! It is there before anything is the ids' that it names, and on the disk, for files of theirs outlast a power loss. Where it names none
//! it is not synced: after a power loss nobody has files of the Pod open.
//!
//! ```text
//!   <first id>+<number>.<namespace>     the Pod's; `-` for ids if its users are the host's
//!   <first id>+<number>.                others that its files have, if some were found while nothing said whose they are
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

/// No owner takes so many bytes.
const LARGEST: usize = 256;

impl Volumes {
    /// Notes the Pod's namespace and its users' ids with its folder, and others that its files were found to have. It blocks; where it
    /// names ids, until it is on the disk.
    ///
    /// # Errors
    ///
    /// The note cannot be written: it is as it was.
    pub fn note_owner(&self, pod: &Pod, users: Option<IdRange>, found: Option<IdRange>) -> Result<()> {
        let folder = self.folder(pod);
        let path = folder.join(OWNER);
        let note = Note { owner: Owner::new(pod.namespace(), users), found };
        let written = match (users, found) {
            (None, None) => kept::replace_unsynced(&path, note.text().as_bytes()),
            // The folder may have been made just now.
            _ => kept::replace_durably(&path, note.text().as_bytes()).and_then(|()| kept::sync_folder(&folder)),
        };
        written.map_err(file(&path))
    }

    /// The same of a Pod that an earlier agent has started, unless that did. It blocks.
    ///
    /// # Errors
    ///
    /// Those of [`Volumes::note_owner`].
    pub fn adopt_owner(&self, pod: &Pod, users: Option<IdRange>, found: Option<IdRange>) -> Result<()> {
        let is_noted = noted(&self.folder(pod)) == Some(Note { owner: Owner::new(pod.namespace(), users), found });
        if is_noted { Ok(()) } else { self.note_owner(pod, users, found) }
    }

    /// Whose the Pod's folder is. Of a Pod that is gone, and of which nothing else is known, it has no namespace. `users`: the ids that
    /// its files may have, where more is known than what it says.
    pub(super) fn owner(&self, pod: &Pod, users: Option<IdRange>) -> Owner {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let noted = noted(&self.folder(pod)).map_or_else(|| Owner::new(namespace, None), Note::of_files);
        // What is aside in it goes with it, and may have ids that are the Pod's no more.
        let aside = self.removals.users_below(&self.folder(pod));
        let all = users.or(noted.users()).into_iter().chain(aside);
        Owner::new(noted.name(), all.reduce(hull))
    }

    /// The folders of Pods that nobody has put aside.
    pub(super) fn folders(&self) -> impl Iterator<Item = fs::DirEntry> + use<> {
        folders(&self.pods)
    }
}

pub(super) fn folders(pods: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    let all = fs::read_dir(pods).into_iter().flatten().flatten();
    all.filter(|entry| entry.file_name().to_str().is_some_and(|name| !is_aside(name)))
}

/// What a Pod's folder says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub owner: Owner,
    /// What its files have beside what is the Pod's.
    pub found: Option<IdRange>,
}

impl Note {
    fn text(&self) -> String {
        match self.found {
            Some(found) => format!("{}\n{}", self.owner, Owner::new("", Some(found))),
            None => self.owner.to_string(),
        }
    }

    /// What says it all. Nobody notes another number of ids as a Pod's than a Pod has: such a note is damaged.
    fn of(text: &str) -> Option<Note> {
        let (owner, found) = text.split_once('\n').map_or((text, None), |(owner, found)| (owner, Some(found)));
        let owner: Owner = owner.parse().ok()?;
        let found = match found {
            Some(found) => Some(found.parse::<Owner>().ok()?.users()?),
            None => None,
        };
        owner.users().is_none_or(|users| users.size == IDS_PER_POD).then_some(Note { owner, found })
    }

    /// The same as whose the files are: theirs are all ids that they may have.
    pub fn of_files(self) -> Owner {
        let users = self.owner.users().into_iter().chain(self.found).reduce(hull);
        Owner::new(self.owner.name(), users)
    }
}

/// The uids of all Pods that have a folder in this one, with what is noted there, if anything is. It blocks.
pub fn owners_of(pods: &Path) -> BTreeMap<String, Option<Note>> {
    let of = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, noted(&entry.path())));
    folders(pods).filter_map(of).collect()
}

/// Whose sandboxes are, as it is noted in the folder of all Pods' folders.
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
