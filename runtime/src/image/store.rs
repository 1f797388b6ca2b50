//! The store as others see it: images by name, listed, resolved, removed.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oci_spec::image::{ImageConfiguration, ImageManifest};
use serde::{Deserialize, Serialize};

use super::disk::{Inner, Ref};
use super::view::LayerView;
use super::{ImageError, ImageName, Result, UserIds, digest, resolve_user};

/// Bounds for what comes from outside.
#[derive(Debug, Clone)]
pub struct Options {
    /// Uncompressed bytes that one layer may have.
    pub max_layer_bytes: u64,
    /// Entries that one layer may have.
    pub max_layer_entries: u64,
    /// Layer downloads at once, per pull.
    pub parallel_downloads: usize,
    /// Where a registry's answers stop being waited for, in seconds without a byte.
    pub read_timeout_seconds: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_layer_bytes: 64 << 30,
            max_layer_entries: 4_000_000,
            parallel_downloads: 4,
            read_timeout_seconds: 60,
        }
    }
}

/// The image store of a node. Cheap to clone; every clone is the same store.
#[derive(Clone)]
pub struct ImageStore {
    pub(super) inner: Arc<Inner>,
}

/// An image, ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Digest of the config, `sha256:<hex>`: CRI's image id.
    pub id: String,
    /// Digest of the manifest for this host.
    pub digest: String,
    /// Tags, normalised: `docker.io/library/nginx:1.25`.
    pub names: Vec<String>,
    /// Names by digest: `docker.io/library/nginx@sha256:..`; empty for images that came from no registry.
    pub repo_digests: Vec<String>,
    /// Bytes as transferred: config and layers.
    pub size: u64,
    pub config: ImageConfiguration,
    /// Unpacked layers, **uppermost first**: the order of overlayfs' `lowerdir`.
    pub layers: Vec<PathBuf>,
}

/// A line of `image list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    pub id: String,
    pub digest: String,
    pub names: Vec<String>,
    pub repo_digests: Vec<String>,
    /// Bytes as transferred: config and layers.
    pub size: u64,
    /// RFC 3339, as the image says; none for most imports.
    pub created: Option<String>,
}

/// What an imported rootfs is to run; the fields of an OCI image config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ImportOptions {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=value`; without a `PATH` the usual one is added.
    pub env: Vec<String>,
    pub user: String,
    pub working_dir: String,
    pub stop_signal: String,
    pub volumes: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// What `remove` and `collect` did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Names that stand for nothing any more.
    pub names: Vec<String>,
    /// Digests of deleted blobs, chainIDs of deleted layers.
    pub deleted: Vec<String>,
    /// Unreferenced layers left in place because they are in use; a later `collect` deletes them.
    pub in_use: Vec<PathBuf>,
}

/// How a pull gets on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    /// The manifest is known: `layers` are to be fetched, `bytes` in all.
    Resolved { digest: String, layers: usize, bytes: u64 },
    /// `done` of `total` bytes of a layer have arrived.
    Downloading { digest: String, done: u64, total: u64 },
    /// A layer is unpacked.
    Unpacked { digest: String },
}

/// Receives a pull's events; called from worker threads, so it must not block.
pub type Progress = Arc<dyn Fn(PullEvent) + Send + Sync>;

impl ImageStore {
    /// Opens (and makes, where missing) the store below `dir`, takes its lock and clears leftovers.
    pub fn open(dir: impl AsRef<Path>) -> Result<ImageStore> {
        ImageStore::open_with(dir, Options::default())
    }

    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<ImageStore> {
        Ok(ImageStore { inner: Arc::new(Inner::open(dir.as_ref().to_owned(), options)?) })
    }

    /// The image that a name, a `name@digest`, or an image id (`sha256:<hex>`) stands for, if it is all there.
    pub fn resolve(&self, name: &str) -> Result<Option<Image>> {
        let refs = self.inner.refs();
        let manifest = if digest::is_digest(name) {
            refs.values().map(|r| r.manifest.clone()).find(|m| {
                m == name || self.inner.manifest(m).is_ok_and(|manifest| manifest.config().digest().to_string() == name)
            })
        } else {
            refs.get(&ImageName::parse(name)?.key()).map(|r| r.manifest.clone())
        };
        match manifest {
            Some(manifest) => self.inner.image(&refs, &manifest),
            None => Ok(None),
        }
    }

    /// Every image, sorted by name; images without a tag come with their digests alone.
    pub fn list(&self) -> Result<Vec<ImageInfo>> {
        let refs = self.inner.refs();
        let manifests: HashSet<&String> = refs.values().map(|r| &r.manifest).collect();
        let mut infos = Vec::new();
        for manifest in manifests {
            let Some(image) = self.inner.image(&refs, manifest)? else { continue };
            infos.push(ImageInfo {
                created: image.config.created().clone(),
                id: image.id,
                digest: image.digest,
                names: image.names,
                repo_digests: image.repo_digests,
                size: image.size,
            });
        }
        infos.sort_by(|a, b| (&a.names, &a.repo_digests).cmp(&(&b.names, &b.repo_digests)));
        Ok(infos)
    }

    /// Removes a name; with an image's last tag its digest names go too, with an id all of its names. Then deletes
    /// what nothing refers to, except layers in `in_use` (paths as in [`Image::layers`], those of live containers).
    pub fn remove(&self, name: &str, in_use: &HashSet<PathBuf>) -> Result<Removed> {
        let mut refs = self.inner.refs();
        let names = names_to_remove(&refs, name, |m| self.inner.manifest(m).ok())?;
        for name in &names {
            self.inner.delete_ref(name)?;
            refs.remove(name);
        }
        let removed = self.inner.collect(&refs, in_use)?;
        Ok(Removed { names, ..removed })
    }

    /// Deletes what nothing refers to: remains of interrupted pulls, and layers that were in use when their image
    /// was removed.
    pub fn collect(&self, in_use: &HashSet<PathBuf>) -> Result<Removed> {
        let refs = self.inner.refs();
        self.inner.collect(&refs, in_use)
    }
}

impl Image {
    /// The name for a Pod's `imageID`: by digest where the image came from a registry, else the id.
    pub fn reference(&self) -> &str {
        self.repo_digests.first().unwrap_or(&self.id)
    }

    fn field<T: Clone + Default>(&self, get: impl Fn(&oci_spec::image::Config) -> &Option<T>) -> T {
        self.config.config().as_ref().and_then(|c| get(c).clone()).unwrap_or_default()
    }

    pub fn entrypoint(&self) -> Vec<String> {
        self.field(|c| c.entrypoint())
    }

    pub fn cmd(&self) -> Vec<String> {
        self.field(|c| c.cmd())
    }

    /// `NAME=value` pairs.
    pub fn env(&self) -> Vec<String> {
        self.field(|c| c.env())
    }

    /// `USER` as written; empty means root. See [`Image::resolve_user`].
    pub fn user(&self) -> String {
        self.field(|c| c.user())
    }

    /// Empty means `/`.
    pub fn working_dir(&self) -> String {
        self.field(|c| c.working_dir())
    }

    /// `SIGQUIT`, `3`, ..; empty means SIGTERM.
    pub fn stop_signal(&self) -> String {
        self.field(|c| c.stop_signal())
    }

    /// Paths that the image declares as volumes, sorted.
    pub fn volumes(&self) -> Vec<String> {
        self.field(|c| c.volumes())
    }

    /// A regular file of the image as the overlay would show it, symlinks followed inside the image; at most 1 MiB.
    pub fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>> {
        LayerView::open(&self.layers)?.read_file(path, 1 << 20)
    }

    /// Resolves a `USER` (the image's own when `spec` is empty) against the image's `/etc/passwd` and `/etc/group`.
    pub fn resolve_user(&self, spec: &str) -> Result<UserIds> {
        let text = |path| Ok(String::from_utf8_lossy(&self.read_file(path)?.unwrap_or_default()).into_owned());
        let own = self.user();
        resolve_user(&text("/etc/passwd")?, &text("/etc/group")?, if spec.is_empty() { &own } else { spec })
    }
}

/// The keys that go when `name` goes.
fn names_to_remove(
    refs: &BTreeMap<String, Ref>,
    name: &str,
    manifest: impl Fn(&str) -> Option<ImageManifest>,
) -> Result<Vec<String>> {
    let missing = || ImageError::NotFound(format!("image {name:?} not found"));
    if digest::is_digest(name) {
        let is_it = |r: &&Ref| {
            r.manifest == name || manifest(&r.manifest).is_some_and(|m| m.config().digest().to_string() == name)
        };
        let names: Vec<String> = refs.values().filter(is_it).map(|r| r.name.clone()).collect();
        return if names.is_empty() { Err(missing()) } else { Ok(names) };
    }
    let key = ImageName::parse(name)?.key();
    let gone = refs.get(&key).ok_or_else(missing)?;
    let siblings: Vec<&Ref> = refs.values().filter(|r| r.manifest == gone.manifest && r.name != key).collect();
    let mut names = vec![key];
    if siblings.iter().all(|r| r.name.contains('@')) {
        names.extend(siblings.iter().map(|r| r.name.clone()));
    }
    Ok(names)
}
