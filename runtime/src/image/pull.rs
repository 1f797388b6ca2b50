//! Pulls from OCI registries: manifest, config, then layers downloaded in parallel and unpacked in order.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{FutureExt, Shared, WeakShared};
use futures::stream::{self, StreamExt};
use oci_spec::image::ImageIndex;
use tokio::sync::mpsc;

use super::config::parse_config;
use super::digest::{self, chain_ids, sha256};
use super::disk::{Inner, Pin};
use super::download::Blob;
use super::job::{Job, blocking};
use super::limits::{Allowance, MAX_DOCUMENT};
use super::lock::lock;
use super::manifest::{Descriptor, DocumentKind, Manifest, check_layers, fits_host, parse};
use super::pulls::Outcome;
use super::registry::Registry;
use super::{Auth, Image, ImageError, ImageName, ImageStore, Progress, PullEvent, Result};

/// The source of blobs: a hash of the registry and the credentials. Blobs are not shared between sources, and no source waits for
/// another's download, which may take arbitrarily long.
struct Source(String);

impl Source {
    /// A layer's name until it is unpacked: by digest alone, everyone who knows the digest would have access.
    fn download(&self, digest: &str) -> String {
        format!("{digest}.{}", digest::hex_of(&self.0))
    }
}

impl ImageStore {
    /// [`Self::pull_for`] without a Pod: for the operator.
    pub async fn pull(&self, name: &str, auth: &Auth, progress: Option<Progress>) -> Result<Image> {
        self.pull_for("", name, auth, progress).await
    }

    /// Fetches `name` from its registry even if it is present (then only the manifest is transferred), and returns the image.
    /// Concurrent callers of one tenant (a Pod's namespace) with the same name and credentials share one pull, whose events go to
    /// the first of them; it stops when all of them have dropped it, and the next one resumes it. Different tenants never share or
    /// wait for each other's pulls. The image may not be used by others until it is [granted](ImageStore::grant) to the
    /// credentials' owner. Fails as [`ImageError`] describes.
    pub async fn pull_for(&self, tenant: &str, name: &str, auth: &Auth, progress: Option<Progress>) -> Result<Image> {
        let name = ImageName::parse(name)?;
        if name.is_local_only() {
            let why = "the registry \"localhost\" (without a port) stands for images made on this host";
            return Err(ImageError::NotFound(format!("image \"{name}\" is not here and is never pulled: {why}")));
        }
        let flight = self.join_flight(tenant, name, auth, progress);
        flight.await
    }

    fn join_flight(&self, tenant: &str, name: ImageName, auth: &Auth, progress: Option<Progress>) -> Shared<Outcome> {
        let mut flights = lock(&self.inner.pulls.flights);
        flights.retain(|_, flight| flight.upgrade().is_some_and(|f| f.peek().is_none()));
        let key = (tenant.to_owned(), name.to_string(), auth.clone());
        if let Some(flight) = flights.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let job = Job { inner: self.inner.clone(), tenant: tenant.to_owned(), name, auth: auth.clone(), progress };
        let flight = async move {
            let _turn = job.inner.pulls.tenants.take(&job.tenant).await;
            job.run().await
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(key, weak);
        }
        flight
    }
}

/// What the registry returned for the name.
struct Resolved {
    /// Digest of the name's direct target: an index, or the manifest.
    target: String,
    /// The index's bytes, if it is one.
    index: Option<Bytes>,
    manifest: Bytes,
}

impl Job {
    /// 1. Credentials. 2. The manifest for this host. 3. The config. 4. Missing layers. 5. Names.
    async fn run(&self) -> Result<Image> {
        let unpacking = format!("failed to pull and unpack image \"{}\"", self.name);
        let resolving = format!("{unpacking}: failed to resolve reference \"{}\"", self.name);
        let registry = Registry::connect(&self.name, &self.auth, &self.inner.options).await;
        let registry = registry.map_err(|e| e.context(&resolving))?;
        let resolved = self.resolve(&registry).await.map_err(|e| e.context(&resolving))?;
        self.fetch(&registry, resolved).await.map_err(|e| e.context(&unpacking))
    }

    async fn resolve(&self, registry: &Registry) -> Result<Resolved> {
        let (bytes, target) = self.fetch_manifest(registry, self.name.digest()).await?;
        let Some(chosen) = read(&bytes, chosen_of).await? else {
            return Ok(Resolved { target, index: None, manifest: bytes });
        };
        let (manifest, _) = self.fetch_manifest(registry, Some(&chosen)).await?;
        if read(&manifest, |json| parse::<DocumentKind>("manifest", json)?.is_index()).await? {
            return Err(ImageError::Unsupported("an index in an index".into()));
        }
        Ok(Resolved { target, index: Some(bytes), manifest })
    }

    /// The manifest of the name, or of the digest if given; with its digest, verified.
    async fn fetch_manifest(&self, registry: &Registry, digest: Option<&str>) -> Result<(Bytes, String)> {
        if let Some(digest) = digest {
            digest::check(digest)?;
        }
        let bytes = registry.manifest(digest.or(self.name.tag()).unwrap_or("latest")).await?;
        let actual = read(&bytes, |bytes| Ok(sha256(bytes))).await?;
        digest::verify("manifest", digest.unwrap_or(&actual), &actual)?;
        Ok((bytes, actual))
    }

    async fn fetch(&self, registry: &Registry, resolved: Resolved) -> Result<Image> {
        let both = |json: &[u8]| Ok((Manifest::parse("manifest", json)?, sha256(json)));
        let (manifest, digest) = read(&resolved.manifest, both).await?;
        let documents = self.inner.pin([resolved.target.clone(), digest.clone(), manifest.config.digest.clone()]);

        let config = self.fetch_config(registry, &manifest.config, &resolved.target).await?;
        let what = format!("image config {}", manifest.config.digest);
        let diff_ids = read(&config, move |json| Ok(parse_config(&what, json)?.rootfs().diff_ids().clone())).await?;
        check_layers(&diff_ids, manifest.layers.len())?;
        let chain = Arc::new(chain_ids(&diff_ids));
        let source = self.source().await?;
        let downloads: Vec<String> = manifest.layers.iter().map(|layer| source.download(&layer.digest)).collect();
        let pin = Arc::new(self.inner.pin(chain.iter().chain(&downloads).cloned()));

        let layers = self.missing_layers(&manifest, &diff_ids, &downloads, &chain).await?;
        self.tell(PullEvent::Resolved {
            digest: digest.clone(),
            layers: layers.len(),
            bytes: layers.iter().fold(0, |sum, l| sum.saturating_add(l.size)),
        });
        let fetched = self.fetch_layers(registry, layers, &chain, &pin).await;
        // A broken download is resumed later; unusable data is removed.
        if let Err(ImageError::Invalid(_) | ImageError::DiskFull(_) | ImageError::DigestMismatch { .. }) = &fetched {
            self.discard(downloads, &chain).await?;
        }
        fetched?;

        let mut names = vec![self.name.with_digest(&resolved.target)];
        names.extend(self.name.digest().is_none().then(|| self.name.key()));
        let inner = self.inner.clone();
        blocking(move || {
            let _pins = (documents, pin);
            for document in [&config, &resolved.manifest].into_iter().chain(&resolved.index) {
                inner.write_blob(document)?;
            }
            inner.commit(&names, &resolved.target, &digest, &chain, true)?;
            let image = inner.image(&digest)?;
            image.ok_or_else(|| ImageError::NotFound(format!("image {digest} was removed while it was pulled")))
        })
        .await
    }

    /// Deletes the remains of a failed pull.
    async fn discard(&self, downloads: Vec<String>, chain: &Arc<Vec<String>>) -> Result<()> {
        let (inner, chain) = (self.inner.clone(), chain.clone());
        blocking(move || {
            downloads.iter().try_for_each(|download| inner.drop_download(download))?;
            inner.discard(&chain)
        })
        .await
    }

    /// The config, which identifies local layers: it must be fetched from the caller's registry. Its presence here proves nothing,
    /// as it may be another's; but what the same repository has delivered once is not fetched again.
    async fn fetch_config(&self, registry: &Registry, config: &Descriptor, target: &str) -> Result<Bytes> {
        digest::check(&config.digest)?;
        let blob = Blob { digest: config.digest.clone(), size: config.size, told: false };
        if blob.size > MAX_DOCUMENT {
            return Err(ImageError::Invalid(format!("image config has {} bytes", blob.size)));
        }
        let (inner, known) = (self.inner.clone(), blob.digest.clone());
        let own = self.name.with_digest(target);
        if let Some(bytes) = blocking(move || Ok(inner.brought(&own, &known))).await? {
            return Ok(bytes.into());
        }
        let temp = self.download(registry, &blob).await?;
        let read = move || std::fs::read(temp.path()).map_err(|e| ImageError::io("read", temp.path(), e));
        Ok(blocking(read).await?.into())
    }

    async fn source(&self) -> Result<Source> {
        let (inner, registry, auth) = (self.inner.clone(), self.name.registry().to_owned(), self.auth.clone());
        let whose = move || match auth {
            Auth::Anonymous => Ok("anybody".to_owned()),
            // The first call reads or creates the hash key.
            auth => inner.hash_of(&auth),
        };
        Ok(Source(sha256(format!("{registry} {}", blocking(whose).await?).as_bytes())))
    }

    /// The layers that are not present.
    async fn missing_layers(
        &self,
        manifest: &Manifest,
        diff_ids: &[String],
        downloads: &[String],
        chain: &Arc<Vec<String>>,
    ) -> Result<Vec<Layer>> {
        let (inner, looked) = (self.inner.clone(), chain.clone());
        let here = blocking(move || Ok(looked.iter().map(|chain_id| inner.has_layer(chain_id)).collect::<Vec<_>>()));
        let here = here.await?;
        let mut missing = Vec::new();
        for (index, Descriptor { media_type, digest, size }) in manifest.layers.iter().enumerate() {
            if !media_type.contains("tar") || media_type.contains("encrypted") {
                return Err(ImageError::Unsupported(format!("unsupported layer media type {media_type:?}")));
            }
            digest::check(digest)?;
            if !here[index] {
                let again = manifest.layers[index + 1..].iter().any(|later| later.digest == *digest);
                let first = missing.iter().all(|below: &Layer| below.digest != *digest);
                let (digest, diff_id, download) = (digest.clone(), diff_ids[index].clone(), downloads[index].clone());
                missing.push(Layer { index, digest, download, size: *size, diff_id, first, again });
            }
        }
        Ok(missing)
    }

    /// Downloads in parallel; unpacks each layer once those below it are present, while the next ones still download.
    async fn fetch_layers(
        &self,
        registry: &Registry,
        layers: Vec<Layer>,
        chain: &Arc<Vec<String>>,
        pin: &Arc<Pin>,
    ) -> Result<()> {
        let (arrived, mut next) = mpsc::channel::<Layer>(layers.len().max(1));
        let download = async move {
            let mut downloads = stream::iter(layers)
                .map(|layer| async move { self.fetch_layer(registry, &layer).await.map(|()| layer) })
                .buffered(self.inner.options.parallel_downloads.max(1));
            while let Some(layer) = downloads.next().await {
                // The receiver is only dropped together with this future.
                let _ = arrived.send(layer?).await;
            }
            Ok(())
        };
        let allowance = self.inner.allowance();
        let unpack = async {
            while let Some(layer) = next.recv().await {
                let (inner, chain, digest) = (self.inner.clone(), chain.clone(), layer.digest.clone());
                // An unpacking thread outlives a dropped pull, and reads the layers below until it is done.
                let (pin, allowance) = (pin.clone(), allowance.clone());
                // It is never closed.
                let own = self.inner.pulls.unpackers.take(&self.tenant).await;
                let turn = self.inner.pulls.unpacking.clone().acquire_owned().await;
                let work = move || {
                    let _held = (pin, own, turn);
                    unpack_blob(&inner, &layer, &chain, &allowance)
                };
                blocking(work).await?;
                self.tell(PullEvent::Unpacked { digest });
            }
            Ok(())
        };
        tokio::try_join!(download, unpack).map(|_| ())
    }

    /// Ensures that a layer's blob is present.
    async fn fetch_layer(&self, registry: &Registry, layer: &Layer) -> Result<()> {
        let downloading = self.inner.pulls.download_lock(&layer.download);
        let _downloading = downloading.lock().await;
        let path = self.inner.download_path(&layer.download);
        if !path.exists() {
            let blob = Blob { digest: layer.digest.clone(), size: layer.size, told: true };
            self.download(registry, &blob).await?.move_to(&path)?;
        }
        Ok(())
    }
}

/// A layer to fetch: its index in the image, its blob, and the expected content.
struct Layer {
    index: usize,
    digest: String,
    /// Its name until it is unpacked.
    download: String,
    size: u64,
    diff_id: String,
    /// No layer below it has the same blob: it is downloaded once, however often it is unpacked.
    first: bool,
    /// A layer above it has the same blob.
    again: bool,
}

/// Unpacks a downloaded layer, unless another task has done so, and drops the blob.
fn unpack_blob(inner: &Arc<Inner>, layer: &Layer, chain: &[String], allowance: &Arc<Allowance>) -> Result<()> {
    // The lock is per blob: the content of another blob is only verified by unpacking it, which may take its time.
    let making = inner.making(&format!("{} of {}", chain[layer.index], layer.digest));
    let _making = lock(&making);
    let path = inner.download_path(&layer.download);
    if !inner.has_layer(&chain[layer.index]) {
        let blob = File::open(&path).map_err(|e| ImageError::io("open", &path, e))?;
        let (below, diff_id) = (&chain[..layer.index], Some(layer.diff_id.as_str()));
        let unpacked = match layer.first {
            true => inner.unpack_layer(allowance.packed(blob), below, diff_id, allowance),
            false => inner.unpack_layer(blob, below, diff_id, allowance),
        };
        if let Err(error) = unpacked {
            // A blob damaged by a power loss must not break the next attempt.
            inner.drop_download(&layer.download)?;
            return Err(error.context(format!("failed to extract layer {}", layer.diff_id)));
        }
    }
    if layer.again { Ok(()) } else { inner.drop_download(&layer.download) }
}

/// The digest of the manifest for this host, if a document is an index.
fn chosen_of(json: &[u8]) -> Result<Option<String>> {
    let kind: DocumentKind = parse("manifest", json)?;
    if kind.schema_version != Some(2) {
        return Err(ImageError::Unsupported("unsupported manifest schema version".into()));
    }
    if !kind.is_index()? {
        return Ok(None);
    }
    let index: ImageIndex = parse("index", json)?;
    let entry = index.manifests().iter().find(|m| fits_host(m)).ok_or_else(|| {
        let host = oci_spec::image::Arch::default();
        ImageError::Unsupported(format!("no match for platform linux/{host} in manifest: not found"))
    })?;
    Ok(Some(entry.digest().to_string()))
}

/// Parses a document on a blocking thread: it may have the maximum size.
async fn read<T: Send + 'static>(
    document: &Bytes,
    look: impl FnOnce(&[u8]) -> Result<T> + Send + 'static,
) -> Result<T> {
    let document = document.clone();
    blocking(move || look(&document)).await
}
