//! Garbage collection: when an image was last used, what pins it, and the collector.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;

use super::digest;
use super::disk::{Inner, aside_of};
use super::folders::{Temp, read_dir, remove_any};
use super::lock::lock;
use super::refs::Ref;
use super::{ImageError, Removed, Result};

impl Inner {
    /// Records, as its manifest file's time, that an image is requested now.
    pub(super) fn note_use(&self, manifest: &str) {
        let noted = File::open(self.blob_path(manifest)).and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = noted {
            tracing::debug!(manifest, %error, "the last use of an image is not noted");
        }
    }

    /// When an image was last requested; the epoch if unknown.
    pub(super) fn last_use(&self, manifest: &str) -> SystemTime {
        let modified = fs::metadata(self.blob_path(manifest)).and_then(|meta| meta.modified());
        modified.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// The manifests of pulled images without layers in `in_use`, least recently used first. Records those in use as used now.
    pub(super) fn unused(&self, in_use: &HashSet<PathBuf>) -> Result<Vec<String>> {
        let refs = self.refs();
        let tops: HashMap<&String, Option<&String>> =
            refs.values().map(|r| (&r.manifest, r.summary.as_ref().and_then(|summary| summary.chain.last()))).collect();
        let mut unused = Vec::new();
        for (manifest, top) in tops {
            // An unusable image is not in use, but its names say where it came from.
            if top.is_some_and(|top| in_use.contains(&self.layer_path(top).join("fs"))) {
                self.note_use(manifest);
            } else if refs.values().any(|r| r.manifest == *manifest && r.name.contains('@')) {
                unused.push(manifest.clone());
            }
        }
        unused.sort_by_cached_key(|manifest| self.last_use(manifest));
        Ok(unused)
    }

    /// Whether work in progress depends on a part of the image.
    pub(super) fn is_pinned(&self, refs: &BTreeMap<String, Ref>, manifest: &str) -> bool {
        let pins = lock(&self.pins);
        refs.values().filter(|r| r.manifest == manifest).any(|r| {
            let own = r.summary.iter().flat_map(|summary| std::iter::once(&summary.id).chain(summary.chain.last()));
            [&r.manifest, &r.target].into_iter().chain(own).any(|part| pins.contains_key(part))
        })
    }

    /// Removes everything unreferenced: blobs at once, layers when [`Inner::delete`] is called, without blocking image lookups.
    pub(super) fn collect(
        &self,
        refs: &BTreeMap<String, Ref>,
        in_use: &HashSet<PathBuf>,
    ) -> Result<(Removed, Vec<Temp>)> {
        let mut blobs: HashSet<String> = HashSet::new();
        let mut layers: HashSet<String> = HashSet::new();
        for record in refs.values() {
            blobs.extend([record.target.clone(), record.manifest.clone()]);
            // A damaged image keeps its remaining parts; pulling it again repairs it.
            let Some(summary) = &record.summary else { continue };
            layers.extend(summary.chain.iter().cloned());
            blobs.insert(summary.id.clone());
        }
        // Held throughout, so that nothing being deleted can be pinned.
        let pins = lock(&self.pins);
        let mut removed = Removed::default();
        // A download belongs only to who pins it, whatever document has the same digest.
        let documents = read_dir(&self.dir.join("blobs/sha256"))?.into_iter().map(|path| (path, true));
        let downloads = read_dir(&self.dir.join("downloads"))?.into_iter().map(|path| (path, false));
        for (path, is_document) in documents.chain(downloads) {
            let digest = digest::of_path(&path);
            if !(is_document && blobs.contains(&digest)) && !pins.contains_key(&digest) {
                remove_any(&path)?;
                removed.deleted.push(digest);
            }
        }
        self.collect_records(|image| blobs.contains(image) || pins.contains_key(image))?;
        let mut doomed = Vec::new();
        for path in read_dir(&self.dir.join("layers"))? {
            let chain_id = digest::of_path(&path);
            if layers.contains(&chain_id) || pins.contains_key(&chain_id) {
                continue;
            }
            // Containers refer to a layer that was moved aside by its old name.
            let aside = aside_of(&path);
            let known_as = aside.as_ref().unwrap_or(&path).join("fs");
            if in_use.contains(&known_as) {
                if aside.is_none() {
                    removed.in_use.push(known_as);
                }
                continue;
            }
            let temp = self.temp("removed");
            fs::rename(&path, temp.path()).map_err(|e| ImageError::io("rename", &path, e))?;
            doomed.push(temp);
            removed.deleted.push(chain_id);
        }
        Ok((removed, doomed))
    }

    /// Deletes what was collected.
    pub(super) fn delete(&self, doomed: &[Temp]) -> Result<()> {
        doomed.iter().try_for_each(|temp| remove_any(temp.path()))
    }
}
