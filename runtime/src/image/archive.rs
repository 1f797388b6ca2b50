//! Images from files: a root filesystem's tar (`import`), OCI layouts and docker-save archives (`load`).

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oci_spec::image::{Arch, Descriptor, ImageIndex, MediaType, Os};
use serde::Deserialize;
use serde_json::json;

use super::config::parse_config;
use super::digest::{self, HashingReader, chain_ids};
use super::disk::{Inner, Temp, lock};
use super::limits::{Allowance, MAX_DOCUMENT, MAX_DOCUMENTS, MAX_IMAGES, MAX_LAYERS, MAX_NAMES};
use super::manifest::{DocumentKind, Manifest};
use super::refs::check_names;
use super::tarball::{Kind, TarReader, lossy};
use super::unpack::decompress;
use super::view::parts;
use super::{Image, ImageError, ImageName, ImageStore, ImportOptions, Result};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";

impl ImageStore {
    /// Makes an image of one layer out of a root filesystem's tar (plain, gzip or zstd). The same tar and options give
    /// the same image id. Blocks: call it where that is allowed (`spawn_blocking`).
    pub fn import(&self, tar: impl Read, name: &str, options: &ImportOptions) -> Result<Image> {
        let name = local_name(name)?;
        let allowance = self.inner.allowance();
        let (unpacked, _layer) = self.inner.unpack_layer(allowance.packed(tar), &[], None, &allowance)?;
        let config = encode(&import_config(options, &unpacked.diff_id))?;
        let layer = layer_descriptor(&unpacked.diff_id, unpacked.bytes);
        let manifest = encode(&manifest(&digest::sha256(&config), config.len() as u64, vec![layer]))?;
        self.inner.publish(&[name.key()], &manifest, &config, &manifest, &[unpacked.diff_id])
    }

    /// Loads every image of an OCI layout's tar or a docker-save archive (plain, gzip or zstd), under the names that it
    /// gives them; `name` is for archives that give none. Blocks, as `import` does.
    pub fn load(&self, archive: impl Read, name: Option<&str>) -> Result<Vec<Image>> {
        let fallback = name.map(local_name).transpose()?;
        // The archive's own bytes count, and nothing that comes out of it: what is packed twice stays as small as it came.
        let allowance = self.inner.allowance();
        let files = Files::read(&self.inner, archive, &allowance)?;
        let found = match (files.get("index.json"), files.get("manifest.json")) {
            (Some(_), _) => oci_images(&files)?,
            (None, Some(_)) => docker_images(&files)?,
            (None, None) => {
                let what = "neither an OCI layout (index.json) nor a docker archive (manifest.json)";
                return Err(ImageError::Invalid(format!("{what}; a root filesystem is for `image import`")));
            }
        };
        if found.is_empty() {
            return Err(ImageError::Unsupported("the archive has no image for this platform".into()));
        }
        found.into_iter().map(|image| self.store(&files, image, fallback.as_ref(), &allowance)).collect()
    }

    fn store(
        &self,
        files: &Files,
        found: FoundImage,
        fallback: Option<&ImageName>,
        allowance: &Arc<Allowance>,
    ) -> Result<Image> {
        let names: Vec<String> = match (found.names.is_empty(), fallback) {
            (false, _) => found.names.iter().map(|n| Ok(ImageName::parse(n)?.key())).collect::<Result<_>>()?,
            (true, Some(name)) => vec![name.key()],
            (true, None) => return Err(ImageError::Invalid("the archive gives its image no name: give one".into())),
        };
        check_count("names of one image", names.len())?;
        check_names(&names, &digest::sha256(&found.target), &digest::sha256(&found.manifest))?;
        let document = parse_config("image config", &found.config)?;
        let diff_ids = document.rootfs().diff_ids();
        check_layers(diff_ids, found.layers.len())?;
        let chain = chain_ids(diff_ids);
        let _pin = self.inner.pin(chain.iter().cloned());
        let unpack = |index: usize, chain_id: &String| -> Result<()> {
            let making = self.inner.making(chain_id);
            let _making = lock(&making);
            if !self.inner.has_layer(chain_id) {
                let layer = files.open(&found.layers[index])?;
                self.inner.unpack_layer(layer, &chain[..index], Some(&diff_ids[index]), allowance)?;
            }
            Ok(())
        };
        if let Err(error) = chain.iter().enumerate().try_for_each(|(index, chain_id)| unpack(index, chain_id)) {
            self.inner.discard(&chain)?;
            return Err(error);
        }
        self.inner.publish(&names, &found.target, &found.config, &found.manifest, &chain)
    }
}

/// A name that may be given to something made here: without a digest, which only content can have.
fn local_name(name: &str) -> Result<ImageName> {
    let parsed = ImageName::parse(name)?;
    match parsed.digest() {
        Some(_) => Err(ImageError::InvalidName { name: name.into(), reason: "a digest cannot be chosen".into() }),
        None => Ok(parsed),
    }
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(what: &str, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|e| ImageError::Invalid(format!("{what}: {e}")))
}

fn encode(value: &serde_json::Value) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| ImageError::Local(format!("encode JSON: {e}")))
}

/// An archive's own counts: each image is unpacked and stored, each name is a file.
fn check_count(what: &str, count: usize) -> Result<()> {
    let refused = || ImageError::Invalid(format!("{count} {what} in the archive, more than {MAX_IMAGES}"));
    if count > MAX_IMAGES { Err(refused()) } else { Ok(()) }
}

/// As many layers as diffIDs, each of them a digest that may become a path.
pub(super) fn check_layers(diff_ids: &[String], layers: usize) -> Result<()> {
    if diff_ids.len() != layers {
        let count = diff_ids.len();
        return Err(ImageError::Invalid(format!("mismatched image rootfs and manifest layers: {count} and {layers}")));
    }
    if layers > MAX_LAYERS {
        return Err(ImageError::Invalid(format!("{layers} layers, more than {MAX_LAYERS}")));
    }
    diff_ids.iter().try_for_each(|id| digest::check(id))
}

/// Whether an index's entry is for this host.
pub(super) fn fits_host(descriptor: &Descriptor) -> bool {
    descriptor.platform().as_ref().is_some_and(|p| *p.os() == Os::Linux && *p.architecture() == Arch::default())
}

fn layer_descriptor(digest: &str, size: u64) -> serde_json::Value {
    json!({"mediaType": LAYER_TAR, "digest": digest, "size": size})
}

fn manifest(config: &str, config_size: u64, layers: Vec<serde_json::Value>) -> serde_json::Value {
    json!({
        "schemaVersion": 2,
        "mediaType": MediaType::ImageManifest.to_string(),
        "config": {"mediaType": MediaType::ImageConfig.to_string(), "digest": config, "size": config_size},
        "layers": layers,
    })
}

fn import_config(options: &ImportOptions, diff_id: &str) -> serde_json::Value {
    let mut env = options.env.clone();
    if !env.iter().any(|e| e.starts_with("PATH=")) {
        env.insert(0, DEFAULT_PATH.into());
    }
    let volumes: BTreeMap<&String, serde_json::Value> = options.volumes.iter().map(|v| (v, json!({}))).collect();
    let fields = [
        ("User", json!(options.user), options.user.is_empty()),
        ("Env", json!(env), false),
        ("Entrypoint", json!(options.entrypoint), options.entrypoint.is_empty()),
        ("Cmd", json!(options.cmd), options.cmd.is_empty()),
        ("Volumes", json!(volumes), volumes.is_empty()),
        ("WorkingDir", json!(options.working_dir), options.working_dir.is_empty()),
        ("Labels", json!(options.labels), options.labels.is_empty()),
        ("StopSignal", json!(options.stop_signal), options.stop_signal.is_empty()),
    ];
    let config: serde_json::Map<String, serde_json::Value> =
        fields.into_iter().filter(|(_, _, empty)| !empty).map(|(name, value, _)| (name.to_owned(), value)).collect();
    json!({
        "architecture": Arch::default().to_string(),
        "os": Os::Linux.to_string(),
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    })
}

/// An archive's files, spread out below `tmp/` under names of ours.
struct Files {
    files: HashMap<String, Stored>,
    /// Older docker archives link equal layers to each other.
    links: HashMap<String, String>,
    /// Bytes of the documents that were read.
    documents: Cell<u64>,
    _dir: Temp,
}

struct Stored {
    path: PathBuf,
    digest: String,
    size: u64,
}

/// An image of an archive: its documents, the names of its layers' files, its names.
struct FoundImage {
    /// What its names stand for: the manifest, or an index that has it.
    target: Vec<u8>,
    manifest: Vec<u8>,
    config: Vec<u8>,
    layers: Vec<String>,
    names: Vec<String>,
}

impl Files {
    fn read(inner: &Arc<Inner>, archive: impl Read, allowance: &Arc<Allowance>) -> Result<Files> {
        let dir = inner.temp("archive");
        fs::create_dir(dir.path()).map_err(|e| ImageError::io("mkdir", dir.path(), e))?;
        let (files, links, documents) = Default::default();
        let mut files = Files { files, links, documents, _dir: dir };
        files.fill(archive, &inner.options, allowance).map_err(|e| ImageError::io("read", Path::new("archive"), e))?;
        files.check_blobs()?;
        Ok(files)
    }

    fn fill(&mut self, archive: impl Read, options: &super::Options, allowance: &Arc<Allowance>) -> io::Result<()> {
        // An archive holds layers, so several times a layer's bound is plenty.
        let limit = options.max_layer_bytes.saturating_mul(4);
        let reader = HashingReader::new(decompress(allowance.packed(archive))?, limit);
        let mut tar = TarReader::new(BufReader::new(allowance.unpacked(reader)));
        let (mut count, mut held) = (0, 0);
        while let Some(entry) = tar.next_entry()? {
            count += 1;
            allowance.entry(entry.headers)?;
            if entry.size > limit {
                return Err(ImageError::Invalid(format!("{} has {} bytes", lossy(&entry.path), entry.size)).into());
            }
            let name = file_name(&entry.path);
            held += name.len() + entry.link.len() + size_of::<Stored>();
            if held > MAX_NAMES {
                return Err(
                    ImageError::Invalid(format!("the names of its files take more than {MAX_NAMES} bytes")).into()
                );
            }
            match entry.kind {
                Kind::File => {
                    // It is hashed as a whole, holes and all.
                    allowance.spend(if entry.is_sparse() { entry.size } else { 0 })?;
                    let path = self._dir.path().join(count.to_string());
                    tar.copy_data(&entry, &mut File::create_new(&path)?)?;
                    let (digest, size) = HashingReader::new(File::open(&path)?, u64::MAX).finish()?;
                    self.files.insert(name, Stored { path, digest, size });
                }
                Kind::Symlink => {
                    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                    self.links.insert(name.clone(), join_relative(folder, &lossy(&entry.link)));
                }
                Kind::Hardlink => drop(self.links.insert(name, file_name(&entry.link))),
                _ => {}
            }
        }
        Ok(())
    }

    /// A file of an OCI layout is what its name says.
    fn check_blobs(&self) -> Result<()> {
        for (name, stored) in &self.files {
            if let Some(hex) = name.strip_prefix("blobs/sha256/") {
                digest::verify(name, &format!("sha256:{hex}"), &stored.digest)?;
            }
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<&Stored> {
        let mut name = name;
        for _ in 0..8 {
            match self.links.get(name) {
                Some(target) => name = target,
                None => return self.files.get(name),
            }
        }
        None
    }

    fn need(&self, name: &str) -> Result<&Stored> {
        self.get(name).ok_or_else(|| ImageError::Invalid(format!("the archive lacks {name}")))
    }

    fn open(&self, name: &str) -> Result<File> {
        let stored = self.need(name)?;
        File::open(&stored.path).map_err(|e| ImageError::io("open", &stored.path, e))
    }

    /// Reads a small file. An index may name one again and again, so what is read is bounded, not only what is there.
    fn document(&self, name: &str) -> Result<Vec<u8>> {
        let stored = self.need(name)?;
        if stored.size > MAX_DOCUMENT {
            return Err(ImageError::Invalid(format!("{name} has {} bytes", stored.size)));
        }
        self.documents.set(self.documents.get() + stored.size);
        if self.documents.get() > MAX_DOCUMENTS {
            return Err(ImageError::Invalid(format!("more than {MAX_DOCUMENTS} bytes of manifests and configs")));
        }
        fs::read(&stored.path).map_err(|e| ImageError::io("read", &stored.path, e))
    }
}

/// `./a//b` -> `a/b`
fn file_name(path: &[u8]) -> String {
    parts(path).map(|part| lossy(&part)).collect::<Vec<_>>().join("/")
}

fn join_relative(folder: &str, target: &str) -> String {
    let mut done: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in target.split('/').filter(|p| !p.is_empty() && *p != ".") {
        match part {
            ".." => drop(done.pop()),
            _ => done.push(part),
        }
    }
    done.join("/")
}

fn blob_name(digest: &str) -> Result<String> {
    digest::check(digest)?;
    Ok(format!("blobs/sha256/{}", digest::hex_of(digest)))
}

/// The images of an OCI layout, entries of one manifest together.
fn oci_images(files: &Files) -> Result<Vec<FoundImage>> {
    let index: ImageIndex = parse("index.json", &files.document("index.json")?)?;
    check_count("images", index.manifests().len())?;
    let mut found: Vec<(String, FoundImage)> = Vec::new();
    for entry in index.manifests() {
        let Some((digest, target)) = host_manifest(files, entry)? else { continue };
        let names: Vec<String> = oci_name(entry).into_iter().collect();
        if let Some((_, known)) = found.iter_mut().find(|(known, image)| *known == digest && image.target == target) {
            known.names.extend(names);
            continue;
        }
        let bytes = files.document(&blob_name(&digest)?)?;
        let manifest = Manifest::parse("manifest", &bytes)?;
        let layers = manifest.layers.iter().map(|layer| blob_name(&layer.digest)).collect::<Result<_>>()?;
        let config = files.document(&blob_name(&manifest.config.digest)?)?;
        found.push((digest, FoundImage { target, manifest: bytes, config, layers, names }));
    }
    Ok(found.into_iter().map(|(_, image)| image).collect())
}

/// The digest of the manifest that an entry of index.json means on this host, through a nested index if need be; and the document
/// that the entry itself names.
fn host_manifest(files: &Files, entry: &Descriptor) -> Result<Option<(String, Vec<u8>)>> {
    if entry.platform().is_some() && !fits_host(entry) {
        return Ok(None);
    }
    let digest = entry.digest().to_string();
    let document = files.document(&blob_name(&digest)?)?;
    if !parse::<DocumentKind>("manifest", &document)?.is_index()? {
        return Ok(Some((digest, document)));
    }
    let nested: ImageIndex = parse("index", &document)?;
    Ok(nested.manifests().iter().find(|m| fits_host(m)).map(|m| (m.digest().to_string(), document)))
}

/// containerd and docker write the whole name; others the reference, which may be a mere tag and no name at all.
fn oci_name(entry: &Descriptor) -> Option<String> {
    let annotations = entry.annotations().as_ref()?;
    let whole = annotations.get("io.containerd.image.name");
    let reference = annotations.get("org.opencontainers.image.ref.name").filter(|r| r.contains(['/', ':']));
    whole.or(reference).cloned()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The images of a docker-save archive. It has no manifests, so they are made here.
fn docker_images(files: &Files) -> Result<Vec<FoundImage>> {
    let list: Vec<DockerImage> = parse("manifest.json", &files.document("manifest.json")?)?;
    check_count("images", list.len())?;
    list.into_iter().map(|image| docker_image(files, image)).collect()
}

fn docker_image(files: &Files, image: DockerImage) -> Result<FoundImage> {
    let config_file = files.need(&image.config)?;
    let descriptor = |name: &String| files.need(name).map(|file| layer_descriptor(&file.digest, file.size));
    let layers = image.layers.iter().map(descriptor).collect::<Result<Vec<_>>>()?;
    let manifest = encode(&manifest(&config_file.digest, config_file.size, layers))?;
    Ok(FoundImage {
        target: manifest.clone(),
        manifest,
        config: files.document(&image.config)?,
        layers: image.layers,
        names: image.repo_tags.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads an archive of these files.
    fn load(files: &[(&str, &[u8])], link: Option<(usize, usize)>) -> String {
        let mut tar = tar::Builder::new(Vec::new());
        let header = |size: usize| {
            let mut header = tar::Header::new_gnu();
            header.set_size(size as u64);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header
        };
        for (name, content) in files {
            tar.append_data(&mut header(content.len()), name, *content).unwrap();
        }
        for number in 0..link.map_or(0, |(count, _)| count) {
            let mut header = header(0);
            header.set_entry_type(tar::EntryType::Symlink);
            let target = "t".repeat(link.map_or(0, |(_, length)| length));
            tar.append_link(&mut header, format!("l{number}"), target).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(dir.path()).unwrap();
        store.load(&tar.into_inner().unwrap()[..], Some("localhost/a:1")).unwrap_err().to_string()
    }

    #[test]
    fn an_archive_has_so_many_images_and_documents_and_no_more() {
        let many = format!("[{}]", [r#"{"Config":"c","Layers":[]}"#; MAX_IMAGES + 1].join(","));
        assert_eq!(load(&[("manifest.json", many.as_bytes())], None), "1001 images in the archive, more than 1000");
        let large = " ".repeat(MAX_DOCUMENT as usize + 1);
        assert_eq!(load(&[("manifest.json", large.as_bytes())], None), "manifest.json has 4194305 bytes");
        let layers = |count: usize| check_layers(&vec![digest::sha256(b"layer"); count], count);
        layers(MAX_LAYERS).unwrap();
        assert_eq!(layers(MAX_LAYERS + 1).unwrap_err().to_string(), "129 layers, more than 128");
        // An index that names one large document as often as it likes.
        let manifest = serde_json::to_string(&manifest(&digest::sha256(b"{}"), 2, Vec::new())).unwrap();
        let document = format!("{manifest}{}", " ".repeat(MAX_DOCUMENT as usize - manifest.len()));
        let digest = digest::sha256(document.as_bytes());
        let media = MediaType::ImageManifest.to_string();
        let entry = json!({ "mediaType": media, "digest": digest, "size": document.len() });
        let entries = vec![entry; (MAX_DOCUMENTS / MAX_DOCUMENT) as usize];
        let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": entries })).unwrap();
        let config = blob_name(&digest::sha256(b"{}")).unwrap();
        let files: [(&str, &[u8]); 3] =
            [("index.json", &index), (&blob_name(&digest).unwrap(), document.as_bytes()), (&config, b"{}")];
        assert_eq!(load(&files, None), "more than 67108864 bytes of manifests and configs");
        let links = MAX_NAMES / 4000 + 1;
        assert_eq!(load(&[], Some((links, 4000))), "the names of its files take more than 16777216 bytes");
    }
}
