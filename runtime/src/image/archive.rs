//! Images from files: a root filesystem's tar (`import`), OCI layouts and docker-save archives (`load`).

mod files;

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use oci_spec::image::{Arch, Descriptor, ImageIndex, MediaType, Os};
use serde::Deserialize;
use serde_json::json;

use super::config::parse_config;
use super::digest::{self, chain_ids};
use super::limits::{Allowance, MAX_IMAGES};
use super::lock::lock;
use super::manifest::{DocumentKind, Manifest, check_layers, fits_host, parse};
use super::refs::check_names;
use super::{Image, ImageError, ImageName, ImageStore, ImportOptions, Result};
use files::{Files, blob_name};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";

impl ImageStore {
    /// Creates an image of one layer from a root filesystem's tar (plain, gzip or zstd). The same tar and options give the same
    /// image id. Blocks: call it in `spawn_blocking`. Fails if the tar or name is invalid, or it cannot be stored.
    pub fn import(&self, tar: impl Read, name: &str, options: &ImportOptions) -> Result<Image> {
        let name = local_name(name)?;
        let allowance = self.inner.allowance();
        let (unpacked, _layer) = self.inner.unpack_layer(allowance.packed(tar), &[], None, &allowance)?;
        let config = encode(&import_config(options, &unpacked.diff_id))?;
        let layer = layer_descriptor(&unpacked.diff_id, unpacked.bytes);
        let manifest = encode(&manifest(&digest::sha256(&config), config.len() as u64, vec![layer]))?;
        self.inner.publish(&[name.key()], &manifest, &config, &manifest, &[unpacked.diff_id])
    }

    /// Loads every image of an OCI layout's tar or a docker-save archive (plain, gzip or zstd), under the names it contains; `name`
    /// is for archives without names. Blocks, like `import`.
    ///
    /// 1. The archive's files. 2. A plan of each image. 3. Missing layers. 4. Names, once everything is there.
    pub fn load(&self, archive: impl Read, name: Option<&str>) -> Result<Vec<Image>> {
        let fallback = name.map(local_name).transpose()?;
        // Only the archive's own bytes count as input, not what is unpacked from it: double compression gains nothing.
        let allowance = self.inner.allowance();
        let files = Files::read(&self.inner, archive, &allowance)?;
        let found = match (files.has("index.json"), files.has("manifest.json")) {
            (true, _) => oci_images(&files)?,
            (false, true) => docker_images(&files)?,
            (false, false) => {
                let what = "neither an OCI layout (index.json) nor a docker archive (manifest.json)";
                return Err(ImageError::Invalid(format!("{what}; a root filesystem is for `image import`")));
            }
        };
        if found.is_empty() {
            return Err(ImageError::Unsupported("the archive has no image for this platform".into()));
        }
        let planned: Vec<Planned> =
            found.into_iter().map(|image| planned(image, fallback.as_ref())).collect::<Result<_>>()?;
        let chains: Vec<String> = planned.iter().flat_map(|image| image.chain.iter().cloned()).collect();
        let _pin = self.inner.pin(chains.iter().cloned());
        let stored = planned.iter().try_for_each(|image| self.unpack(&files, image, &allowance)).and_then(|()| {
            let publish = |Planned { names, found, chain, .. }: &Planned| {
                self.inner.publish(names, &found.target, &found.config, &found.manifest, chain)
            };
            planned.iter().map(publish).collect()
        });
        if stored.is_err() {
            self.inner.discard(&chains)?;
        }
        stored
    }

    /// Unpacks the missing layers.
    fn unpack(&self, files: &Files, image: &Planned, allowance: &Arc<Allowance>) -> Result<()> {
        let Planned { found, diff_ids, chain, .. } = image;
        for (index, chain_id) in chain.iter().enumerate() {
            let making = self.inner.making(chain_id);
            let _making = lock(&making);
            if !self.inner.has_layer(chain_id) {
                let layer = files.open(&found.layers[index])?;
                self.inner.unpack_layer(layer, &chain[..index], Some(&diff_ids[index]), allowance)?;
            }
        }
        Ok(())
    }
}

/// Plans an image of an archive: its names and layers.
fn planned(found: FoundImage, fallback: Option<&ImageName>) -> Result<Planned> {
    let names: Vec<String> = match (found.names.is_empty(), fallback) {
        (false, _) => found.names.iter().map(|n| Ok(ImageName::parse(n)?.key())).collect::<Result<_>>()?,
        (true, Some(name)) => vec![name.key()],
        (true, None) => return Err(ImageError::Invalid("the archive gives its image no name: give one".into())),
    };
    check_count("names of one image", names.len())?;
    check_names(&names, &digest::sha256(&found.target), &digest::sha256(&found.manifest))?;
    let diff_ids = parse_config("image config", &found.config)?.rootfs().diff_ids().clone();
    check_layers(&diff_ids, found.layers.len())?;
    let chain = chain_ids(&diff_ids);
    Ok(Planned { found, names, diff_ids, chain })
}

/// A name for something created here: without a digest, which only follows from content.
fn local_name(name: &str) -> Result<ImageName> {
    let parsed = ImageName::parse(name)?;
    match parsed.digest() {
        Some(_) => Err(ImageError::InvalidName { name: name.into(), reason: "a digest cannot be chosen".into() }),
        None => Ok(parsed),
    }
}

fn encode(value: &serde_json::Value) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| ImageError::Local(format!("encode JSON: {e}")))
}

/// Limits counts chosen by the archive: each image is unpacked and stored, each name is a file.
fn check_count(what: &str, count: usize) -> Result<()> {
    let refused = || ImageError::Invalid(format!("{count} {what} in the archive, more than {MAX_IMAGES}"));
    if count > MAX_IMAGES { Err(refused()) } else { Ok(()) }
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

/// An image of an archive: its documents, its layers' file names, its names.
struct FoundImage {
    /// The target of its names: the manifest, or an index containing it.
    target: Vec<u8>,
    manifest: Vec<u8>,
    config: Vec<u8>,
    layers: Vec<String>,
    names: Vec<String>,
}

/// The same, checked.
struct Planned {
    found: FoundImage,
    names: Vec<String>,
    diff_ids: Vec<String>,
    /// ChainIDs, lowest first.
    chain: Vec<String>,
}

/// The images of an OCI layout, grouping entries of one manifest.
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

/// The digest of the manifest for this host that an entry of index.json refers to, possibly through a nested index; and the
/// document of the entry itself.
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

/// containerd and docker write the full name; others the reference, which may be a bare tag and not a name.
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

/// The images of a docker-save archive. It has no manifests, so they are generated.
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
    use super::super::limits::{MAX_DOCUMENT, MAX_DOCUMENTS, MAX_LAYERS, MAX_NAMES};
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
        // An index that refers to one large document any number of times.
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
