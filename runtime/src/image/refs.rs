//! Names: the target of each, and a summary of its image for lookups and garbage collection.
//!
//! Images are shared by all tenants, as is the lock of their names: no document is read or parsed under it, whatever the number of
//! images and their contents. What lookups need is read once and stored with the name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::folders::read_dir;
use super::{ImageError, Result};

/// The target of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ref {
    pub name: String,
    /// The registry's target of the name: digest of an index or of the manifest.
    pub target: String,
    /// The manifest chosen for this host.
    pub manifest: String,
    /// A pull brought the name: its target is not available to everyone. Unknown for names of earlier versions.
    #[serde(default)]
    pub pulled: bool,
    /// None: the image is unusable, or an earlier version wrote the name.
    #[serde(default)]
    pub summary: Option<Summary>,
}

/// A short summary of an image's documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The image id: the config's digest.
    pub id: String,
    /// Transferred bytes: config and layers.
    pub size: u64,
    /// RFC 3339, from the image.
    pub created: Option<String>,
    /// ChainIDs, lowest first.
    pub chain: Vec<String>,
}

impl Ref {
    /// Whether an image id, or a manifest's digest, refers to this.
    pub(super) fn is(&self, id: &str) -> bool {
        self.manifest == id || self.summary.as_ref().is_some_and(|summary| summary.id == id)
    }
}

/// Whether a name by digest matches the content; names by tag are free.
fn names_itself(name: &str, target: &str, manifest: &str) -> bool {
    name.split_once('@').is_none_or(|(_, digest)| digest == target || digest == manifest)
}

/// Rejects names by another content's digest.
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
            // An earlier version accepted such names from archives.
            Ok(record) => {
                tracing::warn!(name = record.name, "dropping an image name that contains another image's digest")
            }
            // Written atomically and synced before its rename, so this is damage; the image can be pulled again.
            Err(e) => tracing::warn!(path = %path.display(), error = %e, "ignoring an unreadable image reference"),
        }
    }
    Ok(refs)
}
