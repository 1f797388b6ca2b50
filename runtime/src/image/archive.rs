//! Images from files: a root filesystem's tar (`import`), OCI layouts and docker-save archives (`load`).

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use serde::Deserialize;
use serde_json::json;

use super::digest::{self, HashingReader, chain_ids};
use super::disk::{Inner, Temp, lock};
use super::tarball::{Kind, TarReader, lossy};
use super::unpack::decompress;
use super::view::parts;
use super::{Image, ImageError, ImageName, ImageStore, ImportOptions, Result};

/// Manifests, indexes and configs may have this many bytes (registries refuse more than 4 MiB).
pub(super) const MAX_DOCUMENT: u64 = 8 << 20;
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";

impl ImageStore {
    /// Makes an image of one layer out of a root filesystem's tar (plain, gzip or zstd). The same tar and options give
    /// the same image id. Blocks: call it where that is allowed (`spawn_blocking`).
    pub fn import(&self, tar: impl Read, name: &str, options: &ImportOptions) -> Result<Image> {
        let name = local_name(name)?;
        let (unpacked, _layer) = self.inner.unpack_layer(tar, &[], None)?;
        let config = encode(&import_config(options, &unpacked.diff_id))?;
        let layer = layer_descriptor(&unpacked.diff_id, unpacked.bytes);
        let manifest = encode(&manifest(&digest::sha256(&config), config.len() as u64, vec![layer]))?;
        self.inner.publish(&[name.key()], &config, &manifest, &[unpacked.diff_id])
    }

    /// Loads every image of an OCI layout's tar or a docker-save archive (plain, gzip or zstd), under the names that it
    /// gives them; `name` is for archives that give none. Blocks, as `import` does.
    pub fn load(&self, archive: impl Read, name: Option<&str>) -> Result<Vec<Image>> {
        let fallback = name.map(local_name).transpose()?;
        let files = Files::read(&self.inner, archive)?;
        let found = match (files.get("index.json"), files.get("manifest.json")) {
            (Some(index), _) => oci_images(&files, index)?,
            (None, Some(list)) => docker_images(&files, list)?,
            (None, None) => {
                let what = "neither an OCI layout (index.json) nor a docker archive (manifest.json)";
                return Err(ImageError::Invalid(format!("{what}; a root filesystem is for `image import`")));
            }
        };
        if found.is_empty() {
            return Err(ImageError::Unsupported("the archive has no image for this platform".into()));
        }
        found.into_iter().map(|image| self.store(&files, image, fallback.as_ref())).collect()
    }

    fn store(&self, files: &Files, found: FoundImage, fallback: Option<&ImageName>) -> Result<Image> {
        let names: Vec<String> = match (found.names.is_empty(), fallback) {
            (false, _) => found.names.iter().map(|n| Ok(ImageName::parse(n)?.key())).collect::<Result<_>>()?,
            (true, Some(name)) => vec![name.key()],
            (true, None) => return Err(ImageError::Invalid("the archive gives its image no name: give one".into())),
        };
        let document: ImageConfiguration = parse("image config", &found.config)?;
        let diff_ids = document.rootfs().diff_ids();
        check_layers(diff_ids, found.layers.len())?;
        let chain = chain_ids(diff_ids);
        let _pin = self.inner.pin(chain.iter().cloned());
        for (index, chain_id) in chain.iter().enumerate() {
            let making = self.inner.making(chain_id);
            let _making = lock(&making);
            if !self.inner.has_layer(chain_id) {
                let layer = files.open(&found.layers[index])?;
                self.inner.unpack_layer(layer, &chain[..index], Some(&diff_ids[index]))?;
            }
        }
        self.inner.publish(&names, &found.config, &found.manifest, &chain)
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

/// As many layers as diffIDs, each of them a digest that may become a path.
pub(super) fn check_layers(diff_ids: &[String], layers: usize) -> Result<()> {
    if diff_ids.len() != layers {
        let count = diff_ids.len();
        return Err(ImageError::Invalid(format!("mismatched image rootfs and manifest layers: {count} and {layers}")));
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
    _dir: Temp,
}

struct Stored {
    path: PathBuf,
    digest: String,
    size: u64,
}

/// An image of an archive: its documents, the names of its layers' files, its names.
struct FoundImage {
    manifest: Vec<u8>,
    config: Vec<u8>,
    layers: Vec<String>,
    names: Vec<String>,
}

impl Files {
    fn read(inner: &Arc<Inner>, archive: impl Read) -> Result<Files> {
        let dir = inner.temp("archive");
        fs::create_dir(dir.path()).map_err(|e| ImageError::io("mkdir", dir.path(), e))?;
        let mut files = Files { files: HashMap::new(), links: HashMap::new(), _dir: dir };
        files.fill(archive, &inner.options).map_err(|e| ImageError::io("read", Path::new("archive"), e))?;
        files.check_blobs()?;
        Ok(files)
    }

    fn fill(&mut self, archive: impl Read, options: &super::Options) -> io::Result<()> {
        // An archive holds layers, so several times a layer's bound is plenty.
        let limit = options.max_layer_bytes.saturating_mul(4);
        let mut tar = TarReader::new(BufReader::new(HashingReader::new(decompress(archive)?, limit)));
        let mut count = 0;
        while let Some(entry) = tar.next_entry()? {
            count += 1;
            if count > options.max_layer_entries {
                return Err(ImageError::Invalid("too many entries".into()).into());
            }
            let name = file_name(&entry.path);
            match entry.kind {
                Kind::File => {
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

    fn document(&self, name: &str) -> Result<Vec<u8>> {
        self.need(name)?.document(name)
    }
}

impl Stored {
    fn document(&self, name: &str) -> Result<Vec<u8>> {
        if self.size > MAX_DOCUMENT {
            return Err(ImageError::Invalid(format!("{name} has {} bytes", self.size)));
        }
        fs::read(&self.path).map_err(|e| ImageError::io("read", &self.path, e))
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
fn oci_images(files: &Files, index: &Stored) -> Result<Vec<FoundImage>> {
    let index: ImageIndex = parse("index.json", &index.document("index.json")?)?;
    let mut found: Vec<(String, FoundImage)> = Vec::new();
    for entry in index.manifests() {
        let Some(digest) = host_manifest(files, entry)? else { continue };
        let names: Vec<String> = oci_name(entry).into_iter().collect();
        if let Some((_, known)) = found.iter_mut().find(|(known, _)| *known == digest) {
            known.names.extend(names);
            continue;
        }
        let bytes = files.document(&blob_name(&digest)?)?;
        let manifest: ImageManifest = parse("manifest", &bytes)?;
        let layers = manifest.layers().iter().map(|l| blob_name(l.digest().as_ref())).collect::<Result<_>>()?;
        let config = files.document(&blob_name(manifest.config().digest().as_ref())?)?;
        found.push((digest, FoundImage { manifest: bytes, config, layers, names }));
    }
    Ok(found.into_iter().map(|(_, image)| image).collect())
}

/// The digest of the manifest that an entry of index.json means on this host, through a nested index if need be.
fn host_manifest(files: &Files, entry: &Descriptor) -> Result<Option<String>> {
    if entry.platform().is_some() && !fits_host(entry) {
        return Ok(None);
    }
    let digest = entry.digest().to_string();
    let document: serde_json::Value = parse("manifest", &files.document(&blob_name(&digest)?)?)?;
    if document.get("manifests").is_none() {
        return Ok(Some(digest));
    }
    let nested: ImageIndex =
        serde_json::from_value(document).map_err(|e| ImageError::Invalid(format!("index: {e}")))?;
    Ok(nested.manifests().iter().find(|m| fits_host(m)).map(|m| m.digest().to_string()))
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
fn docker_images(files: &Files, list: &Stored) -> Result<Vec<FoundImage>> {
    let list: Vec<DockerImage> = parse("manifest.json", &list.document("manifest.json")?)?;
    list.into_iter().map(|image| docker_image(files, image)).collect()
}

fn docker_image(files: &Files, image: DockerImage) -> Result<FoundImage> {
    let config_file = files.need(&image.config)?;
    let descriptor = |name: &String| files.need(name).map(|file| layer_descriptor(&file.digest, file.size));
    let layers = image.layers.iter().map(descriptor).collect::<Result<Vec<_>>>()?;
    Ok(FoundImage {
        manifest: encode(&manifest(&config_file.digest, config_file.size, layers))?,
        config: files.document(&image.config)?,
        layers: image.layers,
        names: image.repo_tags.unwrap_or_default(),
    })
}
