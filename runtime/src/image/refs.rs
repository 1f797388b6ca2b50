//! Names: what each stands for, and as much of its image as it takes to find it and to know what is its own.
//!
//! Images are everybody's, and so is the lock of their names: no document is read or parsed under it, however many images there
//! are and whatever their authors have written into them. What is needed of them all is read once and kept with the name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::folders::read_dir;
use super::{ImageError, Result};

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ref {
    pub name: String,
    /// What the registry calls the name: digest of an index or of the manifest.
    pub target: String,
    /// The manifest chosen for this host.
    pub manifest: String,
    /// A pull brought the name: what it stands for is not for everybody. Of names of earlier versions nobody knows.
    #[serde(default)]
    pub pulled: bool,
    /// None: the image cannot be used, or an earlier version has written the name.
    #[serde(default)]
    pub summary: Option<Summary>,
}

/// What an image's documents say, in few bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The image id: the config's digest.
    pub id: String,
    /// Bytes as transferred: config and layers.
    pub size: u64,
    /// RFC 3339, as the image says.
    pub created: Option<String>,
    /// ChainIDs, lowest first.
    pub chain: Vec<String>,
}

impl Ref {
    /// Whether an image id, or a manifest's digest, means this.
    pub(super) fn is(&self, id: &str) -> bool {
        self.manifest == id || self.summary.as_ref().is_some_and(|summary| summary.id == id)
    }
}

/// Whether a name by digest is one of the content's own; others may be anybody's.
fn names_itself(name: &str, target: &str, manifest: &str) -> bool {
    name.split_once('@').is_none_or(|(_, digest)| digest == target || digest == manifest)
}

/// A digest is the content's: no name by another one's is given to it.
pub(super) fn check_names(names: &[String], target: &str, manifest: &str) -> Result<()> {
    let Some(name) = names.iter().find(|name| !names_itself(name, target, manifest)) else { return Ok(()) };
    let reason = format!("its digest is neither that of the image ({manifest}) nor of its index");
    Err(ImageError::InvalidName { name: name.clone(), reason })
}

pub(super) fn read_refs(dir: &Path) -> Result<BTreeMap<String, Ref>> {
    let mut refs = BTreeMap::new();
    for path in read_dir(dir)? {
        let bytes = fs::read(&path).map_err(|e| ImageError::io("read", &path, e))?;
        match serde_json::from_slice::<Ref>(&bytes) {
            Ok(record) if names_itself(&record.name, &record.target, &record.manifest) => {
                refs.insert(record.name.clone(), record);
            }
            // An earlier version took such names from archives.
            Ok(record) => {
                tracing::warn!(name = record.name, "dropping an image name that contains another image's digest")
            }
            // Written whole and synced before its rename, so this is damage; the image can be pulled again.
            Err(e) => tracing::warn!(path = %path.display(), error = %e, "ignoring an unreadable image reference"),
        }
    }
    Ok(refs)
}
