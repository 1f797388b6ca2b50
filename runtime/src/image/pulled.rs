//! The credentials by which images were pulled: decides who may use an image without asking its registry.
//!
//! A name is *preloaded* until it is pulled: this is stored in the name's file, in the write that publishes the name, so no crash
//! makes a pulled image look preloaded. In addition there is a record per image content: which credentials a registry has accepted
//! for it, by name without tag and digest. A missing, damaged or mismatched record grants nothing: then the registry decides again.
//! Upstream: KEP-2535, `pkg/kubelet/images/pullmanager` (its ImagePullIntent is our name's file, its ImagePulledRecord our record).
//!
//! ```text
//! <dir>/pulled/<hex of the image id>   {"image":"sha256:..","names":{"registry.example/app":{"secrets":[..]}}}
//! <dir>/pulled/key                     32 bytes that key the hashes of credentials
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::digest::{self, hex_of, sha256};
use super::disk::Inner;
use super::folders::{read_dir, remove_any};
use super::lock::lock;
use super::{Auth, Image, ImageError, ImageName, ImageStore, Result, SecretRef};

/// Maximum Secrets in a record, per name of the image. Others are accepted by the hash of their credential, or by asking the
/// registry: upstream's `writeRecordWhileMatchingLimit`.
pub const MAX_SECRETS: usize = 100;
const KEY_BYTES: usize = 32;

/// A credential that a registry has accepted, or that a Pod presents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullSecret {
    #[serde(flatten)]
    pub secret: SecretRef,
    /// [`ImageStore::hash_of`] the credential; never the credential itself.
    pub credential_hash: String,
}

/// Who may use an image by one of its names. Defaults to no one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// It was pulled anonymously, or by the node's operator.
    pub anyone: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<PullSecret>,
}

/// A reason for access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    Anyone,
    Secret(PullSecret),
}

/// How an image got here, by the name it is requested by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provenance {
    /// Imported or loaded, never pulled; or pulled by a version without records.
    Preloaded,
    Pulled(Access),
}

impl Access {
    /// Adds a grant; returns whether anything changed. Above the limit the oldest Secret is dropped.
    pub fn add(&mut self, grant: &Grant) -> bool {
        let new = match grant {
            _ if self.anyone => return false,
            Grant::Anyone => {
                *self = Access { anyone: true, secrets: Vec::new() };
                return true;
            }
            Grant::Secret(new) => new,
        };
        match self.secrets.iter_mut().find(|known| known.secret == new.secret) {
            Some(known) if known == new => return false,
            Some(known) => *known = new.clone(),
            None => self.secrets.push(new.clone()),
        }
        if self.secrets.len() > MAX_SECRETS {
            self.secrets.remove(0);
        }
        true
    }
}

/// The accepted credentials for one image content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The image id, which is also the file's name.
    image: String,
    /// `registry/repository` -> who may use it by this name.
    names: BTreeMap<String, Access>,
}

impl ImageStore {
    /// The image of a name, a `name@digest` or an image id, as [`ImageStore::resolve`], and how it got here. By id a pulled image
    /// is available to no one: an id does not tell which registry to ask.
    pub fn find(&self, name: &str) -> Result<Option<(Image, Provenance)>> {
        let Some(found) = self.inner.look_up(name)? else { return Ok(None) };
        let Some(image) = self.inner.image(&found.manifest)? else { return Ok(None) };
        let provenance = match (found.pulled, found.family) {
            (false, _) => Provenance::Preloaded,
            (true, None) => Provenance::Pulled(Access::default()),
            (true, Some(family)) => {
                let names = self.inner.read_record(&image.id).names;
                Provenance::Pulled(names.get(&family).cloned().unwrap_or_default())
            }
        };
        Ok(Some((image, provenance)))
    }

    /// Records durably that `grant` allows using the image by `name` (with any tag or digest). Does nothing if the image has been
    /// removed meanwhile. Fails if the record cannot be written.
    pub fn grant(&self, image: &Image, name: &str, grant: &Grant) -> Result<()> {
        let family = ImageName::parse(name)?.family();
        // Held to the end: the collector removes records under it, and two grants share one record.
        let refs = self.inner.refs();
        if !refs.values().any(|known| known.manifest == image.digest) {
            return Ok(());
        }
        let mut record = self.inner.read_record(&image.id);
        if !record.names.entry(family).or_default().add(grant) {
            return Ok(());
        }
        let json = serde_json::to_vec(&record).map_err(|e| ImageError::Local(format!("encode record: {e}")))?;
        self.inner.write_file(&self.inner.record_path(&image.id), &json)
    }

    /// A keyed hash of a credential, by which a record recognizes it. The key belongs to this store, so the hash reveals nothing to
    /// a reader of the record alone.
    pub fn hash_of(&self, auth: &Auth) -> Result<String> {
        self.inner.hash_of(auth)
    }
}

impl Inner {
    pub(super) fn hash_of(&self, auth: &Auth) -> Result<String> {
        let parts: &[&str] = match auth {
            Auth::Anonymous => &["anonymous"],
            Auth::Basic { username, password } => &["basic", username, password],
            Auth::IdentityToken(token) => &["identity", token],
            Auth::RegistryToken(token) => &["registry", token],
        };
        let json = serde_json::to_vec(parts).map_err(|e| ImageError::Local(format!("encode credential: {e}")))?;
        // Both parts have a fixed length, so nothing can be appended or shifted between them.
        Ok(sha256(&[&self.key()?[..], sha256(&json).as_bytes()].concat()))
    }
}

/// The result of looking up a name.
pub(super) struct Located {
    pub manifest: String,
    pub pulled: bool,
    /// `registry/repository`; none for an image id.
    pub family: Option<String>,
}

impl Inner {
    /// Looks up a name, a `name@digest` or an image id; records the use.
    pub(super) fn look_up(&self, name: &str) -> Result<Option<Located>> {
        let parsed = if ImageName::is_id(name) { None } else { Some(ImageName::parse(name)?) };
        // Held until the use is recorded: the garbage collector checks it under this lock.
        let refs = self.refs();
        let known = match &parsed {
            Some(parsed) => refs.get(&parsed.key()),
            // One preloaded name is enough: its content is the same and available to all.
            None => refs.values().filter(|known| known.is(name)).min_by_key(|known| known.pulled),
        };
        let Some(known) = known else { return Ok(None) };
        self.note_use(&known.manifest);
        let family = parsed.map(|parsed| parsed.family());
        Ok(Some(Located { manifest: known.manifest.clone(), pulled: known.pulled, family }))
    }

    fn records(&self) -> PathBuf {
        self.dir.join("pulled")
    }

    fn record_path(&self, image: &str) -> PathBuf {
        self.records().join(hex_of(image))
    }

    /// The record of an image; empty if there is no reliable one.
    fn read_record(&self, image: &str) -> Record {
        let path = self.record_path(image);
        let none = || Record { image: image.to_owned(), names: BTreeMap::new() };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return none(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "ignoring an unreadable record of pulls");
                return none();
            }
        };
        match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) if record.image == image => record,
            Ok(record) => {
                tracing::warn!(path = %path.display(), of = record.image, "ignoring a record of pulls that belongs to another image");
                none()
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "ignoring a damaged record of pulls");
                none()
            }
        }
    }

    /// Deletes the records of images that are not among `blobs` and not pinned.
    pub(super) fn collect_records(&self, keep: impl Fn(&str) -> bool) -> Result<()> {
        for path in read_dir(&self.records())? {
            let image = digest::of_path(&path);
            if digest::is_digest(&image) && !keep(&image) {
                remove_any(&path)?;
            }
        }
        Ok(())
    }

    /// The key of this store's hashes, created on first use. If it is lost, recorded hashes no longer match, and Secrets are
    /// recognized only by uid.
    fn key(&self) -> Result<[u8; KEY_BYTES]> {
        let mut known = lock(&self.key);
        if let Some(key) = *known {
            return Ok(key);
        }
        let path = self.records().join("key");
        let stored = fs::read(&path).ok().and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
        let key = match stored {
            Some(key) => key,
            None => {
                let (mut key, source) = ([0; KEY_BYTES], "/dev/urandom");
                let read = File::open(source).and_then(|mut random| random.read_exact(&mut key));
                read.map_err(|e| ImageError::io("read", source.as_ref(), e))?;
                self.write_file(&path, &key)?;
                key
            }
        };
        *known = Some(key);
        Ok(key)
    }
}

#[cfg(test)]
#[path = "pulled_tests.rs"]
mod tests;
