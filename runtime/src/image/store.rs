//! The store's public interface: images by name, listed, resolved, removed.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::disk::Inner;
use super::refs::{Ref, Summary};
use super::{Image, ImageError, ImageInfo, ImageName, Options, Removed, Result, digest};

/// The image store of a node. Cheap to clone; all clones share one store.
#[derive(Clone)]
pub struct ImageStore {
    pub(super) inner: Arc<Inner>,
}

impl ImageStore {
    /// Opens (or creates) the store below `dir`, takes its lock and clears leftovers. Fails if another process holds the lock, or
    /// the folders are unusable.
    pub fn open(dir: impl AsRef<Path>) -> Result<ImageStore> {
        ImageStore::open_with(dir, Options::default())
    }

    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<ImageStore> {
        let inner = Inner::open(dir.as_ref().to_owned(), options)?;
        inner.complete_refs();
        Ok(ImageStore { inner: Arc::new(inner) })
    }

    /// Whether a process has the store below `dir` open: then an agent runs on it.
    ///
    /// # Errors
    /// Its lock cannot be looked at.
    pub fn is_in_use(dir: &Path) -> Result<bool> {
        super::disk::is_in_use(dir)
    }

    /// The folder that holds all.
    pub fn root(&self) -> &Path {
        &self.inner.dir
    }

    /// The image of a name, a `name@digest`, or an image id (`sha256:<hex>`), if it is complete.
    pub fn resolve(&self, name: &str) -> Result<Option<Image>> {
        match self.inner.look_up(name)? {
            Some(found) => self.inner.image(&found.manifest),
            None => Ok(None),
        }
    }

    /// Every image, sorted by name; images without a tag appear with their digests alone.
    pub fn list(&self) -> Result<Vec<ImageInfo>> {
        // An unusable image can be named, pulled again and removed, and does not affect the others.
        let mut images: BTreeMap<String, (Summary, Vec<String>)> = BTreeMap::new();
        for known in self.inner.refs().values() {
            let Some(summary) = &known.summary else { continue };
            let image = images.entry(known.manifest.clone()).or_insert_with(|| (summary.clone(), Vec::new()));
            image.1.push(known.name.clone());
        }
        let mut infos = Vec::new();
        for (digest, (summary, names)) in images {
            if !self.inner.is_whole(&digest, &summary) {
                continue;
            }
            let Summary { id, size, created, .. } = summary;
            let (repo_digests, names) = names.into_iter().partition(|name| name.contains('@'));
            infos.push(ImageInfo { id, digest, names, repo_digests, size, created });
        }
        infos.sort_by(|a, b| (&a.names, &a.repo_digests).cmp(&(&b.names, &b.repo_digests)));
        Ok(infos)
    }

    /// Removes a name; with an image's last tag its digest names too, with an id all of its names. Then deletes everything
    /// unreferenced, except layers in `in_use` (paths as in [`Image::layers`], those of live containers). Fails if the name is
    /// unknown, or something cannot be deleted.
    pub fn remove(&self, name: &str, in_use: &HashSet<PathBuf>) -> Result<Removed> {
        let mut refs = self.inner.refs();
        let names = names_to_remove(&refs, name)?;
        for name in &names {
            self.inner.delete_ref(name)?;
            refs.remove(name);
        }
        let (removed, doomed) = self.inner.collect(&refs, in_use)?;
        drop(refs);
        self.inner.delete(&doomed)?;
        Ok(Removed { names, ..removed })
    }

    /// Removes unused pulled images, least recently used first, until `enough` returns true. Keeps those with layers in `in_use`,
    /// those pinned by a pull, and those requested less than `age` ago (about to be used): as kubelet's image garbage collection.
    /// Images created on this host are kept, as they could not be restored. Fails if something cannot be deleted.
    pub fn remove_unused(
        &self,
        in_use: &HashSet<PathBuf>,
        age: Duration,
        mut enough: impl FnMut() -> bool,
    ) -> Result<Removed> {
        let before = SystemTime::now() - age;
        let mut removed = Removed::default();
        for manifest in self.inner.unused(in_use)? {
            if enough() {
                break;
            }
            let mut refs = self.inner.refs();
            // Checked again, because removing the previous ones took time.
            if self.inner.last_use(&manifest) >= before || self.inner.is_pinned(&refs, &manifest) {
                continue;
            }
            let names: Vec<String> = refs.values().filter(|r| r.manifest == manifest).map(|r| r.name.clone()).collect();
            for name in &names {
                self.inner.delete_ref(name)?;
                refs.remove(name);
            }
            let (collected, doomed) = self.inner.collect(&refs, in_use)?;
            drop(refs);
            // Only then is it known whether there is enough.
            self.inner.delete(&doomed)?;
            removed.names.extend(names);
            removed.deleted.extend(collected.deleted);
            removed.in_use = collected.in_use;
        }
        Ok(removed)
    }

    /// Deletes everything unreferenced: remains of interrupted pulls, and layers that were in use when their image was removed.
    pub fn collect(&self, in_use: &HashSet<PathBuf>) -> Result<Removed> {
        let (removed, doomed) = self.inner.collect(&self.inner.refs(), in_use)?;
        self.inner.delete(&doomed)?;
        Ok(removed)
    }
}

/// The keys to remove together with `name`.
fn names_to_remove(refs: &BTreeMap<String, Ref>, name: &str) -> Result<Vec<String>> {
    let missing = || ImageError::NotFound(format!("image {name:?} not found"));
    if digest::is_digest(name) {
        let names: Vec<String> = refs.values().filter(|r| r.is(name)).map(|r| r.name.clone()).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImportOptions;

    const NOW: Duration = Duration::ZERO;

    /// Images with a layer each; all but the last were pulled.
    fn store() -> (tempfile::TempDir, ImageStore, Vec<Image>) {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(dir.path()).unwrap();
        let names = ["a", "b", "c", "d"];
        let images = names.map(|name| {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            tar.append_data(&mut header, name, name.as_bytes()).unwrap();
            let tar = tar.into_inner().unwrap();
            let image =
                store.import(&tar[..], &format!("registry.example/{name}:1"), &ImportOptions::default()).unwrap();
            if name != "d" {
                let by_digest = format!("registry.example/{name}@{}", image.digest);
                let chain = digest::chain_ids(image.config.rootfs().diff_ids());
                store.inner.commit(&[by_digest], &image.digest, &image.digest, &chain, true).unwrap();
            }
            image
        });
        (dir, store, images.into())
    }

    fn gone(store: &ImageStore, images: &[Image]) -> Vec<bool> {
        images
            .iter()
            .map(|image| !image.layers[0].exists() && store.resolve(&image.names[0]).unwrap().is_none())
            .collect()
    }

    #[test]
    fn unused_images_go_least_recently_used_first_until_there_is_enough() {
        let (_dir, store, images) = store();
        store.resolve(&images[0].names[0]).unwrap();
        let mut asked = 0;
        let enough = || {
            asked += 1;
            asked > 1
        };
        store.remove_unused(&HashSet::new(), NOW, enough).unwrap();
        assert_eq!(gone(&store, &images), [false, true, false, false]);
    }

    #[test]
    fn images_that_somebody_counts_on_stay() {
        let (_dir, store, images) = store();
        assert!(store.remove_unused(&HashSet::new(), Duration::from_secs(60), || false).unwrap().names.is_empty());
        let in_use = HashSet::from([images[0].layers[0].clone()]);
        let pulled = store.inner.pin([images[1].digest.clone()]);
        store.remove_unused(&in_use, NOW, || false).unwrap();
        assert_eq!(gone(&store, &images), [false, false, true, false]);
        drop(pulled);
        std::thread::sleep(Duration::from_millis(5));
        store.remove_unused(&in_use, NOW, || false).unwrap();
        assert_eq!(gone(&store, &images), [false, true, true, false]);
    }

    /// As in a store of an earlier version.
    #[test]
    fn an_image_whose_config_is_too_large_spoils_no_list_and_says_why_it_is_not_used() {
        let (_dir, store, images) = store();
        let variables = vec![format!("A={}", "v".repeat(1000)); 2000];
        let config = serde_json::json!({ "architecture": "amd64", "os": "linux", "config": { "Env": variables },
            "rootfs": { "type": "layers", "diff_ids": [] } });
        let config = store.inner.write_blob(&serde_json::to_vec(&config).unwrap()).unwrap();
        let manifest = serde_json::json!({ "schemaVersion": 2, "layers": [],
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 1 } });
        let manifest = store.inner.write_blob(&serde_json::to_vec(&manifest).unwrap()).unwrap();
        let name = "registry.example/large:1".to_owned();
        let large = Ref { name: name.clone(), target: manifest.clone(), manifest, pulled: false, summary: None };
        store.inner.refs().insert(name, large);
        assert_eq!(store.list().unwrap().len(), images.len());
        let error = store.resolve("registry.example/large:1").unwrap_err().to_string();
        assert!(error.starts_with(&format!("image config {config}: config.Env has 2")), "{error}");
    }

    #[test]
    fn a_blob_that_an_image_names_twice_is_pinned_once() {
        let (_dir, store, _) = store();
        let digest = digest::sha256(b"layer");
        let path = store.inner.download_path(&digest);
        std::fs::write(&path, "layer").unwrap();
        let pin = store.inner.pin([digest.clone(), digest.clone()]);
        store.collect(&HashSet::new()).unwrap();
        assert!(path.exists(), "a pull counts on it");
        store.inner.drop_download(&digest).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "layer").unwrap();
        drop(pin);
        store.collect(&HashSet::new()).unwrap();
        assert!(!path.exists(), "remains of an interrupted pull");
    }

    /// A FIFO in place of a config: reading it blocks forever.
    #[test]
    fn who_reads_a_document_keeps_nobody_else_from_images() {
        let (_dir, store, images) = store();
        let slow = store.inner.blob_path(&images[0].id);
        std::fs::remove_file(&slow).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &slow, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let (reader, name) = (store.clone(), images[0].names[0].clone());
        let reading = std::thread::spawn(move || reader.resolve(&name));
        let mut writer = std::fs::File::options().write(true).open(&slow).unwrap();
        let (done, end) = std::sync::mpsc::channel();
        let (others, known) = (store.clone(), images.clone());
        std::thread::spawn(move || {
            for name in [&known[1].names[0], &known[1].id, &known[1].digest] {
                assert_eq!(others.resolve(name).unwrap().unwrap().layers, known[1].layers);
                assert_eq!(others.find(name).unwrap().unwrap().0.id, known[1].id);
            }
            assert_eq!(others.resolve(&digest::sha256(b"no image")).unwrap(), None);
            assert_eq!(others.list().unwrap().len(), known.len());
            assert_eq!(others.remove(&known[2].id, &HashSet::new()).unwrap().names.len(), 2);
            others.remove_unused(&HashSet::new(), Duration::from_secs(60), || false).unwrap();
            done.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(20)).expect("they wait for the one who reads");
        std::io::Write::write_all(&mut writer, b"{}").unwrap();
        drop(writer);
        assert_eq!(reading.join().unwrap().unwrap(), None, "damaged");
    }

    #[test]
    fn names_of_earlier_versions_are_completed() {
        let (dir, store, images) = store();
        drop(store);
        let read = || -> Vec<serde_json::Value> {
            let files = super::super::folders::read_dir(&dir.path().join("refs")).unwrap();
            files.iter().map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
        };
        let whole = read();
        for path in super::super::folders::read_dir(&dir.path().join("refs")).unwrap() {
            let mut known: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert!(known.as_object_mut().unwrap().remove("summary").unwrap().is_object());
            std::fs::write(&path, known.to_string()).unwrap();
        }
        let store = ImageStore::open(dir.path()).unwrap();
        assert_eq!(read(), whole);
        assert_eq!(store.resolve(&images[0].id).unwrap().unwrap().digest, images[0].digest);
        store.collect(&HashSet::new()).unwrap();
        assert_eq!(store.list().unwrap().len(), images.len());
    }

    /// A manifest may give a layer the digest of another image's document.
    #[test]
    fn a_layer_by_the_name_of_a_document_takes_nothing_away() {
        let (_dir, store, images) = store();
        for digest in [&images[0].id, &images[0].digest] {
            let _pin = store.inner.pin([digest.clone()]);
            std::fs::write(store.inner.download_path(digest), "layer").unwrap();
            store.inner.drop_download(digest).unwrap();
        }
        assert_eq!(store.resolve(&images[0].names[0]).unwrap().unwrap().layers, images[0].layers);
    }
}
