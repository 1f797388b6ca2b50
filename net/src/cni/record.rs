//! What is attached, on disk: a plugin takes back with the configuration that it gave by, whatever is configured by then.
//! <https://www.cni.dev/docs/spec/#cache-and-lifecycle> says what a runtime keeps.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use podwright_journal::kept;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    CniError,
    config::{CapabilityArguments, NetworkList},
};

/// A Pod's attachment to a network, from before the first plugin is asked until after the last one has taken back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    pub interface: String,
    /// Of the network namespace: another one needs another attachment.
    pub inode: u64,
    pub list: NetworkList,
    /// `CNI_ARGS`
    pub arguments: Vec<(String, String)>,
    pub asked: CapabilityArguments,
    /// The last plugin's; null until all have succeeded.
    pub result: Value,
}

/// The attachments of a node: one file for each, by its owner.
pub struct Records {
    folder: PathBuf,
}

const SUFFIX: &str = ".json";

impl Records {
    /// Those in `folder`, which is made if it is missing.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn open(folder: &Path) -> io::Result<Records> {
        fs::create_dir_all(folder)?;
        Ok(Records { folder: folder.to_owned() })
    }

    fn path(&self, owner: &str) -> PathBuf {
        self.folder.join(format!("{owner}{SUFFIX}"))
    }

    /// The attachment of `owner`, if any. What is damaged cannot be taken back in its own words, and is an error.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn get(&self, owner: &str) -> Result<Option<Attachment>, CniError> {
        let path = self.path(owner);
        let unreadable = |error| CniError::Unreadable(path.display().to_string(), error);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| unreadable(io::Error::other(error))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// Keeps an attachment, durably: after a crash it is found, and taken back.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn put(&self, owner: &str, attachment: &Attachment) -> Result<(), CniError> {
        let path = self.path(owner);
        let bytes = serde_json::to_vec(attachment).map_err(io::Error::other);
        let kept = bytes.and_then(|bytes| kept::replace_durably(&path, &bytes).map_err(io::Error::other));
        kept.map_err(|error| CniError::Unwritable(path.display().to_string(), error))
    }

    /// Forgets an attachment; an unknown one is not an error.
    ///
    /// # Errors
    ///
    /// Its file cannot be removed.
    pub fn remove(&self, owner: &str) -> Result<(), CniError> {
        let path = self.path(owner);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CniError::Unwritable(path.display().to_string(), error))
            }
            _ => Ok(()),
        }
    }

    /// All attachments by owner; `Err`: one that cannot be read.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn all(&self) -> Result<BTreeMap<String, Result<Attachment, CniError>>, CniError> {
        let unreadable = |error| CniError::Unreadable(self.folder.display().to_string(), error);
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let Some(owner) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else { continue };
            if let Some(found) = self.get(owner).transpose() {
                all.insert(owner.to_owned(), found);
            }
        }
        Ok(all)
    }
}
