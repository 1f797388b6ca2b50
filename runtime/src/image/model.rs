//! The store's public data: an image ready to run, list entries, imports, pull progress.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

use super::view::LayerView;
use super::{Result, UserIds, resolve_user};

/// An image, ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Digest of the config, `sha256:<hex>`: CRI's image id.
    pub id: String,
    /// Digest of the manifest for this host.
    pub digest: String,
    /// Tags, normalised: `docker.io/library/nginx:1.25`.
    pub names: Vec<String>,
    /// Names by digest: `docker.io/library/nginx@sha256:..`; empty for images that were not pulled.
    pub repo_digests: Vec<String>,
    /// Transferred bytes: config and layers.
    pub size: u64,
    pub config: ImageConfiguration,
    /// Unpacked layers, **uppermost first**: the order of overlayfs' `lowerdir`.
    pub layers: Vec<PathBuf>,
}

impl Image {
    /// The name for a Pod's `imageID`: by digest if the image was pulled, else the id.
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

    /// A regular file of the image as the overlay shows it, following symlinks inside the image; none if there is no file, or a
    /// FIFO or device. Fails above 1 MiB.
    pub fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>> {
        LayerView::open(&self.layers)?.read_file(path, 1 << 20)
    }

    /// Resolves a `USER` (the image's own if `spec` is empty) with the image's `/etc/passwd` and `/etc/group`. Fails for an unknown
    /// user.
    pub fn resolve_user(&self, spec: &str) -> Result<UserIds> {
        let text = |path| Ok(String::from_utf8_lossy(&self.read_file(path)?.unwrap_or_default()).into_owned());
        let own = self.user();
        resolve_user(&text("/etc/passwd")?, &text("/etc/group")?, if spec.is_empty() { &own } else { spec })
    }
}

/// A line of `image list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    pub id: String,
    pub digest: String,
    pub names: Vec<String>,
    pub repo_digests: Vec<String>,
    /// Transferred bytes: config and layers.
    pub size: u64,
    /// RFC 3339, from the image; none for most imports.
    pub created: Option<String>,
}

/// How to run an imported rootfs; the fields of an OCI image config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ImportOptions {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=value`; a missing `PATH` gets the usual value.
    pub env: Vec<String>,
    pub user: String,
    pub working_dir: String,
    pub stop_signal: String,
    pub volumes: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// The result of `remove` and `collect`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Names that were removed.
    pub names: Vec<String>,
    /// Digests of deleted blobs, chainIDs of deleted layers.
    pub deleted: Vec<String>,
    /// Unreferenced layers left in place because they are in use; a later `collect` deletes them.
    pub in_use: Vec<PathBuf>,
}

/// The progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    /// The manifest is known: `layers` must be fetched, `bytes` in total.
    Resolved { digest: String, layers: usize, bytes: u64 },
    /// `done` of `total` bytes of a layer have arrived.
    Downloading { digest: String, done: u64, total: u64 },
    /// A layer is unpacked.
    Unpacked { digest: String },
}

/// Receives a pull's events; called from worker threads, so it must not block.
pub type Progress = Arc<dyn Fn(PullEvent) + Send + Sync>;
