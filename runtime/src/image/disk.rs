//! The store's state on disk and access to it: blobs, layers, pins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::digest::{self, hex_of, sha256};
use super::folders::{Temp, read_dir, remove_any, sync_dir};
use super::limits::{Allowance, MAX_DOCUMENT, Space};
use super::lock::lock;
use super::pulls::Pulls;
use super::refs::{Ref, read_refs};
use super::top::{Tops, agree};
use super::unpack::{Unpacked, unpack};
use super::{ImageError, Options, Result};
use crate::removals::{Owner, Removals};

/// The open store, shared by its clones and by its operations.
pub(super) struct Inner {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) space: Arc<Space>,
    /// Held (flock) while the store is open.
    _lock: Lock,
    /// Key of a name -> its target. Mirrors the files below `refs/`.
    pub(super) refs: Mutex<BTreeMap<String, Ref>>,
    /// Digests and chainIDs used by work in progress; the collector leaves them alone.
    pub(super) pins: Mutex<HashMap<String, usize>>,
    /// One lock per blob or layer being created, so that each is created once.
    making: Mutex<HashMap<String, Arc<Mutex<()>>>>,
    pub(super) pulls: Pulls,
    pub(super) tops: Tops,
    /// The key of the credential hashes, once loaded.
    pub(super) key: Mutex<Option<[u8; 32]>>,
    temp: AtomicU64,
}

/// One process at a time: `flock` on `<dir>/lock`, released when the process exits.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child between its fork and its exec has the file open as well.
        let _ = self.0.unlock();
    }
}

fn take_lock(dir: &Path) -> Result<Lock> {
    let path = dir.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| ImageError::io("open", &path, e))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ImageError::Locked(dir.display().to_string())),
        Err(e) => Err(ImageError::io("flock", &path, e)),
    }
}

/// Whether a process has the store below `dir` open: then an agent runs there.
pub(super) fn is_in_use(dir: &Path) -> Result<bool> {
    let path = dir.join("lock");
    let file = match File::open(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(|e| ImageError::io("open", &path, e))?,
    };
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            drop(Lock(file));
            Ok(false)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(ImageError::io("flock", &path, e)),
    }
}

/// Everything in `tmp`, and layers that never got their `done`, are remains of a process that died. There may be millions of files:
/// they are put aside, and nobody waits for them.
fn clear_leftovers(dir: &Path, removals: &Removals) -> Result<()> {
    let temp = dir.join("tmp");
    removals.find(dir);
    put_aside(&temp, removals)?;
    for entry in read_dir(&dir.join("layers"))? {
        // Containers may use what was moved aside.
        if !entry.join("done").exists() && aside_of(&entry).is_none() {
            let to = temp.join(entry.file_name().unwrap_or_default());
            fs::rename(&entry, &to).map_err(|e| ImageError::io("rename", &entry, e))?;
        }
    }
    put_aside(&temp, removals)
}

/// Replaces it by an empty folder. If it cannot be moved aside, such as on a full disk, its contents are deleted at once.
fn put_aside(temp: &Path, removals: &Removals) -> Result<()> {
    if read_dir(temp)?.is_empty() {
        return Ok(());
    }
    // The replacement is created first: afterwards there may be no space for it.
    let next = temp.with_extension("next");
    let made = fs::create_dir(&next).or_else(|e| if e.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(e) });
    match made.and_then(|()| removals.put_elsewhere(temp, &Owner::default())) {
        Ok(()) => fs::rename(&next, temp).map_err(|e| ImageError::io("rename", &next, e)),
        Err(_) => read_dir(temp)?.iter().try_for_each(|entry| remove_any(entry)),
    }
}

/// Suffix of a layer that was moved aside, followed by a number.
const DAMAGED: &str = ".damaged-";

/// The original path of a damaged layer that was moved aside.
pub(super) fn aside_of(path: &Path) -> Option<PathBuf> {
    let (name, _) = path.file_name()?.to_str()?.split_once(DAMAGED)?;
    Some(path.with_file_name(name))
}

/// Protects blobs and layers from the collector while it exists.
pub(super) struct Pin {
    inner: Arc<Inner>,
    keys: Vec<String>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = lock(&self.inner.pins);
        for key in &self.keys {
            if let Some(count) = pins.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    pins.remove(key);
                }
            }
        }
    }
}

impl Inner {
    /// Creates what is missing, takes the lock, clears leftovers, reads the names.
    pub(super) fn open(dir: PathBuf, options: Options) -> Result<Inner> {
        for part in ["blobs/sha256", "downloads", "layers", "pulled", "refs", "tmp"] {
            let path = dir.join(part);
            fs::create_dir_all(&path).map_err(|e| ImageError::io("mkdir", &path, e))?;
        }
        let lock = take_lock(&dir)?;
        let removals = Removals::default();
        clear_leftovers(&dir, &removals)?;
        let refs = Mutex::new(read_refs(&dir.join("refs"))?);
        Ok(Inner {
            space: Arc::new(Space::new(dir.clone(), &options)),
            dir,
            options,
            _lock: lock,
            refs,
            pins: Mutex::default(),
            making: Mutex::default(),
            pulls: Pulls::default(),
            tops: Tops::default(),
            key: Mutex::default(),
            temp: AtomicU64::new(0),
        })
    }

    /// Protects `keys` (digests, chainIDs) from the collector until the pin is dropped. Pin first, then look.
    pub(super) fn pin(self: &Arc<Inner>, keys: impl IntoIterator<Item = String>) -> Pin {
        // Each once, even if an image repeats it: `drop_download` and `discard` check for other pins.
        let keys: Vec<String> = keys.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let mut pins = lock(&self.pins);
        for key in &keys {
            *pins.entry(key.clone()).or_default() += 1;
        }
        Pin { inner: self.clone(), keys }
    }

    /// Deletes a downloaded layer unless it has other pins than the caller's.
    pub(super) fn drop_download(&self, download: &str) -> Result<()> {
        let pins = lock(&self.pins);
        if pins.get(download).is_some_and(|count| *count > 1) {
            Ok(())
        } else {
            remove_any(&self.download_path(download))
        }
    }

    /// The lock for creating `key`; after acquiring it, check again whether it exists.
    pub(super) fn making(&self, key: &str) -> Arc<Mutex<()>> {
        let mut making = lock(&self.making);
        making.retain(|_, made| Arc::strong_count(made) > 1);
        making.entry(key.to_owned()).or_default().clone()
    }

    /// A new path below `tmp/` that does not exist yet.
    pub(super) fn temp(&self, what: &str) -> Temp {
        Temp::at(self.dir.join("tmp").join(format!("{what}-{}", self.temp.fetch_add(1, Ordering::Relaxed))))
    }

    pub(super) fn blob_path(&self, digest: &str) -> PathBuf {
        self.dir.join("blobs/sha256").join(hex_of(digest))
    }

    /// The path of a downloaded layer that is not unpacked yet; by the name that [`super::pull`] uses.
    pub(super) fn download_path(&self, download: &str) -> PathBuf {
        self.dir.join("downloads").join(hex_of(download))
    }

    pub(super) fn layer_path(&self, chain_id: &str) -> PathBuf {
        self.dir.join("layers").join(hex_of(chain_id))
    }

    /// Whether a layer exists, undamaged as far as its top tells.
    pub(super) fn has_layer(&self, chain_id: &str) -> bool {
        let layer = self.layer_path(chain_id);
        let Ok(top) = self.tops.of(&layer.join("fs")) else { return false };
        fs::read_to_string(layer.join("done")).map_or(true, |noted| agree(&noted, &top))
    }

    /// Moves a damaged layer aside for its replacement. Containers may use it: the collector deletes it.
    fn put_aside(&self, chain_id: &str) -> Result<()> {
        let path = self.layer_path(chain_id);
        if !path.exists() || self.has_layer(chain_id) {
            return Ok(());
        }
        tracing::warn!(path = %path.display(), "unpacking a damaged layer again");
        let names = (0..).map(|n| path.with_file_name(format!("{}{DAMAGED}{n}", hex_of(chain_id))));
        let Some(aside) = names.into_iter().find(|aside| !aside.exists()) else { return Ok(()) };
        fs::rename(&path, &aside).map_err(|e| ImageError::io("rename", &path, e))
    }

    /// Unpacks a layer (its tar, plain or compressed) on top of those below (chainIDs, lowest first) and moves it into place,
    /// pinned. With a `diff_id` only that content is accepted. The output counts against the image's allowance.
    pub(super) fn unpack_layer(
        self: &Arc<Inner>,
        tar: impl Read,
        below: &[String],
        diff_id: Option<&str>,
        allowance: &Arc<Allowance>,
    ) -> Result<(Unpacked, Pin)> {
        let temp = self.temp("layer");
        let root = temp.path().join("fs");
        fs::create_dir_all(&root).map_err(|e| ImageError::io("mkdir", &root, e))?;
        let stack: Vec<PathBuf> = below.iter().rev().map(|c| self.layer_path(c).join("fs")).collect();
        let unpacked = unpack(tar, &root, &stack, &self.options, allowance)?;
        if let Some(diff_id) = diff_id {
            digest::verify("uncompressed layer", diff_id, &unpacked.diff_id)?;
        }
        let chain_id = digest::chain_id(below.last().map(String::as_str), &unpacked.diff_id);
        let pin = self.pin([chain_id.clone()]);
        self.put_aside(&chain_id)?;
        match temp.move_to(&self.layer_path(&chain_id)) {
            // Another task has created the same layer meanwhile.
            Err(_) if self.has_layer(&chain_id) => {}
            moved => moved?,
        }
        Ok((unpacked, pin))
    }

    /// The cost limits of an image about to be unpacked.
    pub(super) fn allowance(&self) -> Arc<Allowance> {
        Allowance::new(&self.space, &self.options)
    }

    /// Deletes the layers of a failed image that no complete image has: they are unusable. Other pulls keep theirs; the caller has
    /// pinned each once.
    pub(super) fn discard(&self, chain: &[String]) -> Result<()> {
        let mut doomed = Vec::new();
        {
            let pins = lock(&self.pins);
            for chain_id in chain {
                let path = self.layer_path(chain_id);
                let wanted = pins.get(chain_id).is_some_and(|count| *count > 1);
                if wanted || path.join("done").exists() || !path.exists() {
                    continue;
                }
                let temp = self.temp("removed");
                fs::rename(&path, temp.path()).map_err(|e| ImageError::io("rename", &path, e))?;
                doomed.push(temp);
            }
        }
        drop(doomed);
        Ok(())
    }

    /// Reads a document (manifest, index, config) and checks its digest. An oversized one, such as a layer left there by an earlier
    /// version, is not read.
    pub(super) fn read_blob(&self, digest: &str) -> Result<Vec<u8>> {
        let path = self.blob_path(digest);
        let fail = |e| ImageError::io("read", &path, e);
        let mut bytes = Vec::new();
        File::open(&path).map_err(fail)?.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(ImageError::Invalid(format!(
                "blob {digest} has more than {MAX_DOCUMENT} bytes: it is no document"
            )));
        }
        digest::verify(&format!("blob {}", path.display()), digest, &sha256(&bytes))?;
        Ok(bytes)
    }

    /// The same; nothing if it is missing or does not match its digest: then it must be fetched again.
    pub(super) fn sound_blob(&self, digest: &str) -> Option<Vec<u8>> {
        let path = self.blob_path(digest);
        match self.read_blob(digest) {
            Ok(bytes) => Some(bytes),
            Err(_) if fs::symlink_metadata(&path).is_err() => None,
            Err(error) => {
                tracing::warn!(%error, "ignoring a damaged part of an image");
                None
            }
        }
    }

    /// Stores a small blob durably under its digest, replacing a damaged one.
    pub(super) fn write_blob(&self, bytes: &[u8]) -> Result<String> {
        let digest = sha256(bytes);
        if self.read_blob(&digest).is_err() {
            self.write_file(&self.blob_path(&digest), bytes)?;
        }
        Ok(digest)
    }

    /// Atomic, also across a power loss.
    pub(super) fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let temp = self.temp("file");
        let mut file = temp.create()?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| ImageError::io("write", path, e))?;
        temp.move_to(path)?;
        sync_dir(path.parent().unwrap_or(&self.dir))
    }
}
