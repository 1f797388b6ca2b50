//! Stores an image and names it; finds the image of a name.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

use super::config::parse_config;
use super::digest::{chain_ids, hex_of, sha256, verify};
use super::disk::Inner;
use super::folders::{remove_any, sync_dir};
use super::lock::lock;
use super::manifest::Manifest;
use super::refs::{Ref, Summary, check_names};
use super::{Image, ImageError, Result};

/// Maximum length of an RFC 3339 time. Other creation times are dropped.
const MAX_TIME: usize = 64;

impl Inner {
    pub(super) fn refs(&self) -> MutexGuard<'_, BTreeMap<String, Ref>> {
        lock(&self.refs)
    }

    /// Completes names written by an earlier version with their images' summaries.
    pub(super) fn complete_refs(&self) {
        for record in self.refs().values_mut().filter(|record| record.summary.is_none()) {
            record.summary = self.summary(&record.manifest);
            if record.summary.is_some()
                && let Err(error) = self.write_ref(record)
            {
                tracing::warn!(name = record.name, %error, "failed to record an image: it is read again at the next start");
            }
        }
    }

    /// Reads both of an image's documents; none if it is unusable.
    fn summary(&self, manifest: &str) -> Option<Summary> {
        let read = self.read_summary(manifest);
        read.inspect_err(|error| tracing::warn!(manifest, %error, "an image cannot be used")).ok()
    }

    fn read_summary(&self, manifest: &str) -> Result<Summary> {
        let manifest = self.manifest(manifest)?;
        let id = manifest.config.digest.clone();
        let config = parse_config(&format!("image config {id}"), &self.read_blob(&id)?)?;
        let created = config.created().clone().filter(|time| time.len() <= MAX_TIME);
        Ok(Summary { size: manifest.size(), id, created, chain: chain_ids(config.rootfs().diff_ids()) })
    }

    pub(super) fn manifest(&self, digest: &str) -> Result<Manifest> {
        Manifest::parse(&format!("manifest {digest}"), &self.read_blob(digest)?)
    }

    /// Stores the documents of an image whose layers exist (and are pinned), and names it. `target` is the target of the names: the
    /// manifest, or an index containing it. Fails if it cannot be stored.
    pub(super) fn publish(
        self: &Arc<Inner>,
        names: &[String],
        target: &[u8],
        config: &[u8],
        manifest: &[u8],
        chain: &[String],
    ) -> Result<Image> {
        let known = Manifest::parse("manifest", manifest)?;
        verify("image config", &known.config.digest, &sha256(config))?;
        let _pin = self.pin([target, config, manifest].map(sha256));
        self.write_blob(config)?;
        let (target, digest) = (self.write_blob(target)?, self.write_blob(manifest)?);
        self.commit(names, &target, &digest, chain, false)?;
        let image = self.image(&digest)?;
        image.ok_or_else(|| ImageError::NotFound(format!("image {digest} was removed while it was stored")))
    }

    /// Syncs the layers' files, marks them done and publishes the names, in this order. A name that was once `pulled` stays so when
    /// the same image is imported. An image must come with its layers: a bare manifest, of a present or future image, gets no name.
    pub(super) fn commit(
        &self,
        names: &[String],
        target: &str,
        manifest: &str,
        chain: &[String],
        pulled: bool,
    ) -> Result<()> {
        check_names(names, target, manifest)?;
        let summary = self.read_summary(manifest)?;
        if summary.chain != chain {
            let why = format!("the layers that came are not those of image {}", summary.id);
            return Err(ImageError::Invalid(why));
        }
        let new: Vec<PathBuf> =
            chain.iter().map(|c| self.layer_path(c).join("done")).filter(|done| !done.exists()).collect();
        if !new.is_empty() {
            let dir = File::open(&self.dir).map_err(|e| ImageError::io("open", &self.dir, e))?;
            rustix::fs::syncfs(&dir).map_err(|e| ImageError::io("syncfs", &self.dir, e))?;
            for done in new {
                let root = done.with_file_name("fs");
                let top = self.tops.of(&root).map_err(|e| ImageError::io("read", &root, e))?;
                self.write_file(&done, top.as_bytes())?;
            }
        }
        let mut refs = self.refs();
        self.note_use(manifest);
        for name in names {
            let known = refs.get(name);
            let record = Ref {
                name: name.clone(),
                target: target.to_owned(),
                manifest: manifest.to_owned(),
                pulled: pulled || known.is_some_and(|known| known.pulled && known.manifest == manifest),
                summary: Some(summary.clone()),
            };
            if known == Some(&record) {
                continue;
            }
            self.write_ref(&record)?;
            refs.insert(name.clone(), record);
        }
        Ok(())
    }

    fn write_ref(&self, record: &Ref) -> Result<()> {
        let json = serde_json::to_vec(record).map_err(|e| ImageError::Local(format!("encode reference: {e}")))?;
        self.write_file(&self.ref_path(&record.name), &json)
    }

    fn ref_path(&self, name: &str) -> PathBuf {
        self.dir.join("refs").join(hex_of(&sha256(name.as_bytes())))
    }

    pub(super) fn delete_ref(&self, name: &str) -> Result<()> {
        remove_any(&self.ref_path(name))?;
        sync_dir(&self.dir.join("refs"))
    }

    /// The config of an image that was pulled by this name before, unless it is damaged.
    pub(super) fn brought(&self, name: &str, id: &str) -> Option<Vec<u8>> {
        let is_it = |known: &Ref| known.pulled && known.summary.as_ref().is_some_and(|summary| summary.id == id);
        if self.refs().get(name).is_some_and(is_it) { self.sound_blob(id) } else { None }
    }

    /// A manifest's tags and names by digest.
    fn names_of(&self, manifest: &str) -> (Vec<String>, Vec<String>) {
        let refs = self.refs();
        let names = refs.values().filter(|known| known.manifest == manifest).map(|known| known.name.clone());
        names.partition(|name| !name.contains('@'))
    }

    /// Whether an image is complete, as far as can be told without reading its documents.
    pub(super) fn is_whole(&self, manifest: &str, summary: &Summary) -> bool {
        [manifest, &summary.id].iter().all(|document| self.blob_path(document).exists())
            && summary.chain.iter().all(|chain_id| self.has_layer(chain_id))
    }

    /// Assembles the image of a manifest; none if a part is missing or damaged, or its last name is gone. Reads and parses
    /// documents without holding a lock.
    pub(super) fn image(&self, manifest_digest: &str) -> Result<Option<Image>> {
        let Some(bytes) = self.sound_blob(manifest_digest) else { return Ok(None) };
        let manifest = Manifest::parse(&format!("manifest {manifest_digest}"), &bytes)?;
        let (size, id) = (manifest.size(), manifest.config.digest);
        let Some(bytes) = self.sound_blob(&id) else { return Ok(None) };
        let config = parse_config(&format!("image config {id}"), &bytes)?;
        let chain = chain_ids(config.rootfs().diff_ids());
        if !chain.iter().all(|chain_id| self.has_layer(chain_id)) {
            return Ok(None);
        }
        let layers: Vec<PathBuf> = chain.iter().rev().map(|c| self.layer_path(c).join("fs")).collect();
        let (names, repo_digests) = self.names_of(manifest_digest);
        if names.is_empty() && repo_digests.is_empty() {
            return Ok(None);
        }
        Ok(Some(Image { id, digest: manifest_digest.to_owned(), names, repo_digests, size, config, layers }))
    }
}
