//! Pulls from OCI registries: manifest, config, then layers downloaded side by side and unpacked in order.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use futures::stream::{self, StreamExt};
use oci_client::Client;
use oci_client::client::{BlobResponse, ClientConfig, ClientProtocol, SizedStream};
use oci_client::manifest::OciDescriptor;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use tokio::sync::mpsc;

use super::archive::{MAX_DOCUMENT, check_layers, fits_host, parse};
use super::digest::{self, Hasher, chain_ids, sha256};
use super::disk::{Inner, Pin, Temp, lock};
use super::registry::{connect, describe};
use super::{Auth, Image, ImageError, ImageName, ImageStore, Progress, PullEvent, Result};

/// Tries to download one blob; each goes on where the last one broke off.
const DOWNLOAD_TRIES: u32 = 4;
const RETRY_AFTER: Duration = Duration::from_millis(500);

const MANIFEST_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

type Outcome = BoxFuture<'static, Result<Image>>;

/// Pulls under way, by name and credentials, and the blobs that they download.
#[derive(Default)]
pub(super) struct Pulls {
    flights: Mutex<HashMap<(String, Auth), WeakShared<Outcome>>>,
    downloads: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Pulls {
    fn download_lock(&self, digest: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut downloads = lock(&self.downloads);
        downloads.retain(|_, held| Arc::strong_count(held) > 1);
        downloads.entry(digest.to_owned()).or_default().clone()
    }
}

impl ImageStore {
    /// Fetches `name` from its registry, whether it is here already or not (then only the manifest travels), and gives
    /// the image. Callers who want the same name with the same credentials at once share one pull, whose events go to
    /// the first of them; it ends when all of them have dropped it, and the next one goes on where it stopped.
    pub async fn pull(&self, name: &str, auth: &Auth, progress: Option<Progress>) -> Result<Image> {
        let name = ImageName::parse(name)?;
        if name.is_local_only() {
            let why = "the registry \"localhost\" (without a port) stands for images made on this host";
            return Err(ImageError::NotFound(format!("image \"{name}\" is not here and is never pulled: {why}")));
        }
        let flight = self.join_flight(name, auth, progress);
        flight.await
    }

    fn join_flight(&self, name: ImageName, auth: &Auth, progress: Option<Progress>) -> Shared<Outcome> {
        let mut flights = lock(&self.inner.pulls.flights);
        flights.retain(|_, flight| flight.upgrade().is_some_and(|f| f.peek().is_none()));
        let key = (name.to_string(), auth.clone());
        if let Some(flight) = flights.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let job = Job { inner: self.inner.clone(), name, auth: auth.clone(), progress };
        let flight = async move { job.run().await }.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(key, weak);
        }
        flight
    }
}

/// One pull.
struct Job {
    inner: Arc<Inner>,
    name: ImageName,
    auth: Auth,
    progress: Option<Progress>,
}

/// What the registry says that the name is.
struct Resolved {
    /// Digest of what the name itself is: an index, or the manifest.
    target: String,
    /// The index's bytes, when it is one.
    index: Option<Bytes>,
    manifest: Bytes,
}

impl Job {
    /// 1. Credentials. 2. The manifest for this host. 3. The config. 4. Layers that are missing. 5. Names.
    async fn run(self) -> Result<Image> {
        let unpacking = format!("failed to pull and unpack image \"{}\"", self.name);
        let resolving = format!("{unpacking}: failed to resolve reference \"{}\"", self.name);
        let client = self.connect().await.map_err(|e| e.context(&resolving))?;
        let resolved = self.resolve(&client).await.map_err(|e| e.context(&resolving))?;
        self.fetch(&client, resolved).await.map_err(|e| e.context(&unpacking))
    }

    async fn connect(&self) -> Result<Client> {
        super::install_crypto();
        let (plain, registry) = (self.name.is_loopback(), self.name.registry().to_owned());
        let no_proxy = "localhost,127.0.0.0/8,::1".to_owned();
        let client = Client::try_from(ClientConfig {
            protocol: if plain { ClientProtocol::HttpsExcept(vec![registry]) } else { ClientProtocol::Https },
            // Loopback is never reached through a proxy; naming one here turns those of the environment off.
            http_proxy: plain.then(|| "http://127.0.0.1:9".to_owned()),
            no_proxy: plain.then_some(no_proxy),
            connect_timeout: Some(Duration::from_secs(30)),
            read_timeout: Some(Duration::from_secs(self.inner.options.read_timeout_seconds)),
            user_agent: concat!("podwright/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        });
        let client = client.map_err(|e| describe(e, &self.name))?;
        connect(&client, &self.name, &self.auth).await?;
        Ok(client)
    }

    async fn resolve(&self, client: &Client) -> Result<Resolved> {
        let (bytes, target) = self.fetch_manifest(client, self.name.digest()).await?;
        let document: serde_json::Value = parse("manifest", &bytes)?;
        if document.get("schemaVersion") != Some(&serde_json::json!(2)) {
            return Err(ImageError::Unsupported("unsupported manifest schema version".into()));
        }
        if document.get("manifests").is_none() {
            return Ok(Resolved { target, index: None, manifest: bytes });
        }
        let index: ImageIndex = parse("index", &bytes)?;
        let entry = index.manifests().iter().find(|m| fits_host(m)).ok_or_else(|| {
            let host = oci_spec::image::Arch::default();
            ImageError::Unsupported(format!("no match for platform linux/{host} in manifest: not found"))
        })?;
        let chosen = entry.digest().to_string();
        let (manifest, _) = self.fetch_manifest(client, Some(&chosen)).await?;
        Ok(Resolved { target, index: Some(bytes), manifest })
    }

    /// The manifest that the name, or the digest where one is given, stands for; and its digest, checked.
    async fn fetch_manifest(&self, client: &Client, digest: Option<&str>) -> Result<(Bytes, String)> {
        let reference = match digest {
            Some(digest) => {
                digest::check(digest)?;
                self.name.reference().clone_with_digest(digest.to_owned())
            }
            None => self.name.reference().clone(),
        };
        let auth = oci_client::secrets::RegistryAuth::Anonymous; // `connect` has stored the real one.
        let (bytes, _) =
            client.pull_manifest_raw(&reference, &auth, &MANIFEST_TYPES).await.map_err(|e| describe(e, &self.name))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(ImageError::Invalid(format!("manifest has {} bytes", bytes.len())));
        }
        let actual = sha256(&bytes);
        digest::verify("manifest", digest.unwrap_or(&actual), &actual)?;
        Ok((bytes, actual))
    }

    async fn fetch(&self, client: &Client, resolved: Resolved) -> Result<Image> {
        let manifest: ImageManifest = parse("manifest", &resolved.manifest)?;
        let digest = sha256(&resolved.manifest);
        let config_digest = manifest.config().digest().to_string();
        let documents = self.inner.pin([resolved.target.clone(), digest.clone(), config_digest]);

        let config = self.fetch_config(client, manifest.config()).await?;
        let document: ImageConfiguration = parse("image config", &config)?;
        let diff_ids = document.rootfs().diff_ids().clone();
        check_layers(&diff_ids, manifest.layers().len())?;
        let chain = Arc::new(chain_ids(&diff_ids));
        let digests = manifest.layers().iter().map(|l| l.digest().to_string());
        let pin = Arc::new(self.inner.pin(chain.iter().cloned().chain(digests)));

        let layers = self.missing_layers(&manifest, &diff_ids, &chain)?;
        self.tell(PullEvent::Resolved {
            digest: digest.clone(),
            layers: layers.len(),
            bytes: layers.iter().map(|l| l.size).sum(),
        });
        self.fetch_layers(client, layers, &chain, &pin).await?;

        let mut names = vec![self.name.with_digest(&resolved.target)];
        names.extend(self.name.digest().is_none().then(|| self.name.key()));
        let inner = self.inner.clone();
        blocking(move || {
            let _pins = (documents, pin);
            for document in [&config, &resolved.manifest].into_iter().chain(&resolved.index) {
                inner.write_blob(document)?;
            }
            inner.commit(&names, &resolved.target, &digest, &chain)?;
            let image = inner.image(&inner.refs(), &digest)?;
            image.ok_or_else(|| ImageError::NotFound(format!("image {digest} was removed while it was pulled")))
        })
        .await
    }

    async fn fetch_config(&self, client: &Client, descriptor: &Descriptor) -> Result<Bytes> {
        let digest = descriptor.digest().to_string();
        digest::check(&digest)?;
        if let Ok(bytes) = self.inner.read_blob(&digest) {
            return Ok(bytes.into());
        }
        let blob = Blob { digest, size: descriptor.size(), told: false };
        if blob.size > MAX_DOCUMENT {
            return Err(ImageError::Invalid(format!("image config has {} bytes", blob.size)));
        }
        let temp = self.download(client, &blob).await?;
        let bytes = std::fs::read(temp.path()).map_err(|e| ImageError::io("read", temp.path(), e))?;
        Ok(bytes.into())
    }

    /// The layers that are not here yet.
    fn missing_layers(&self, manifest: &ImageManifest, diff_ids: &[String], chain: &[String]) -> Result<Vec<Layer>> {
        let mut missing = Vec::new();
        for (index, descriptor) in manifest.layers().iter().enumerate() {
            let media_type = descriptor.media_type().to_string();
            if !media_type.contains("tar") || media_type.contains("encrypted") {
                return Err(ImageError::Unsupported(format!("unsupported layer media type {media_type:?}")));
            }
            let digest = descriptor.digest().to_string();
            digest::check(&digest)?;
            if !self.inner.has_layer(&chain[index]) {
                missing.push(Layer { index, digest, size: descriptor.size(), diff_id: diff_ids[index].clone() });
            }
        }
        Ok(missing)
    }

    /// Downloads side by side; unpacks each layer once those below it are there, while the next ones still arrive.
    async fn fetch_layers(
        &self,
        client: &Client,
        layers: Vec<Layer>,
        chain: &Arc<Vec<String>>,
        pin: &Arc<Pin>,
    ) -> Result<()> {
        let (arrived, mut next) = mpsc::channel::<Layer>(layers.len().max(1));
        let download = async move {
            let mut downloads = stream::iter(layers)
                .map(|layer| async move { self.fetch_layer(client, &layer).await.map(|()| layer) })
                .buffered(self.inner.options.parallel_downloads.max(1));
            while let Some(layer) = downloads.next().await {
                // The receiver goes away only together with this future.
                let _ = arrived.send(layer?).await;
            }
            Ok(())
        };
        let unpack = async {
            while let Some(layer) = next.recv().await {
                let (inner, chain, digest) = (self.inner.clone(), chain.clone(), layer.digest.clone());
                // An unpacking thread outlives a dropped pull, and looks at the layers below until it is done.
                let pin = pin.clone();
                let work = move || {
                    let _pin = pin;
                    unpack_blob(&inner, &layer, &chain)
                };
                blocking(work).await?;
                self.tell(PullEvent::Unpacked { digest });
            }
            Ok(())
        };
        tokio::try_join!(download, unpack).map(|_| ())
    }

    /// Makes sure of a layer's blob.
    async fn fetch_layer(&self, client: &Client, layer: &Layer) -> Result<()> {
        let downloading = self.inner.pulls.download_lock(&layer.digest);
        let _downloading = downloading.lock().await;
        let path = self.inner.blob_path(&layer.digest);
        if !path.exists() {
            let blob = Blob { digest: layer.digest.clone(), size: layer.size, told: true };
            self.download(client, &blob).await?.move_to(&path)?;
        }
        Ok(())
    }

    /// Downloads a blob into a temporary file and checks it. A connection that breaks is taken up again.
    async fn download(&self, client: &Client, blob: &Blob) -> Result<Temp> {
        let temp = self.inner.temp("blob");
        let mut sink = Sink::start(temp.create()?);
        let mut try_again = DOWNLOAD_TRIES;
        loop {
            try_again -= 1;
            match self.download_rest(client, blob, &mut sink).await {
                Ok(()) => break,
                Err(ImageError::Network(_)) if try_again > 0 => {
                    tokio::time::sleep(RETRY_AFTER * 2u32.pow(DOWNLOAD_TRIES - try_again - 1)).await;
                }
                Err(error) => return Err(error),
            }
        }
        let actual = sink.finish().await?;
        digest::verify(&format!("blob of {}", self.name.family()), &blob.digest, &actual)?;
        Ok(temp)
    }

    async fn download_rest(&self, client: &Client, blob: &Blob, sink: &mut Sink) -> Result<()> {
        let fail = |e| describe(e, &self.name);
        let (reference, descriptor) = (self.name.reference(), blob.descriptor());
        let mut body: SizedStream = if sink.sent == 0 {
            client.pull_blob_stream(reference, &descriptor).await.map_err(fail)?
        } else {
            let rest = client.pull_blob_stream_partial(reference, &descriptor, sink.sent, None).await;
            match rest.map_err(fail)? {
                BlobResponse::Partial(rest) => rest,
                BlobResponse::Full(whole) => {
                    skip(whole, sink.sent).await.map_err(|e| describe(e.into(), &self.name))?
                }
            }
        };
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(|e| describe(e.into(), &self.name))?;
            sink.send(bytes).await?;
            if sink.sent > blob.size {
                let (what, actual) = (format!("blob {}", blob.digest), sink.sent);
                return Err(ImageError::Invalid(format!(
                    "{what} is longer ({actual}) than the {} announced",
                    blob.size
                )));
            }
            if blob.told {
                self.tell(PullEvent::Downloading { digest: blob.digest.clone(), done: sink.sent, total: blob.size });
            }
        }
        match sink.sent == blob.size {
            true => Ok(()),
            false => Err(ImageError::Network(format!("blob {} ended after {} bytes", blob.digest, sink.sent))),
        }
    }

    fn tell(&self, event: PullEvent) {
        if let Some(progress) = &self.progress {
            progress(event);
        }
    }
}

/// A layer to fetch: its place in the image, its blob, and what must come out of it.
struct Layer {
    index: usize,
    digest: String,
    size: u64,
    diff_id: String,
}

struct Blob {
    digest: String,
    size: u64,
    /// Whether whoever watches the pull hears of it: layers, not documents.
    told: bool,
}

impl Blob {
    fn descriptor(&self) -> OciDescriptor {
        OciDescriptor { digest: self.digest.clone(), size: self.size as i64, ..OciDescriptor::default() }
    }
}

/// A registry that ignores ranges sends everything again.
async fn skip(mut whole: SizedStream, mut count: u64) -> std::io::Result<SizedStream> {
    while count > 0 {
        let Some(bytes) = whole.stream.next().await else { break };
        let mut bytes = bytes?;
        let known = (bytes.len() as u64).min(count);
        count -= known;
        let rest = bytes.split_off(known as usize);
        if !rest.is_empty() {
            let first = stream::iter([Ok(rest)]);
            whole.stream = first.chain(whole.stream).boxed();
            break;
        }
    }
    Ok(whole)
}

/// Writes and hashes in a thread where that may block.
struct Sink {
    sender: Option<mpsc::Sender<Bytes>>,
    writer: tokio::task::JoinHandle<std::io::Result<String>>,
    sent: u64,
}

impl Sink {
    fn start(mut file: File) -> Sink {
        let (sender, mut receiver) = mpsc::channel::<Bytes>(64);
        let writer = tokio::task::spawn_blocking(move || {
            let mut hasher = Hasher::default();
            while let Some(bytes) = receiver.blocking_recv() {
                hasher.update(&bytes);
                file.write_all(&bytes)?;
            }
            Ok(hasher.finish())
        });
        Sink { sender: Some(sender), writer, sent: 0 }
    }

    async fn send(&mut self, bytes: Bytes) -> Result<()> {
        self.sent += bytes.len() as u64;
        let sent = match &self.sender {
            Some(sender) => sender.send(bytes).await.is_ok(),
            None => false,
        };
        // The writer stops early only when it failed; `finish` says why.
        if sent { Ok(()) } else { self.finish().await.map(|_| ()) }
    }

    /// The digest of all that was sent.
    async fn finish(&mut self) -> Result<String> {
        self.sender = None;
        let written = (&mut self.writer).await.map_err(|e| ImageError::Local(format!("download writer: {e}")))?;
        written.map_err(|e| ImageError::io("write", "downloaded blob".as_ref(), e))
    }
}

/// Unpacks a downloaded layer, unless somebody else has done it meanwhile, and drops the blob.
fn unpack_blob(inner: &Arc<Inner>, layer: &Layer, chain: &[String]) -> Result<()> {
    let making = inner.making(&chain[layer.index]);
    let _making = lock(&making);
    let path = inner.blob_path(&layer.digest);
    if !inner.has_layer(&chain[layer.index]) {
        let blob = File::open(&path).map_err(|e| ImageError::io("open", &path, e))?;
        let unpacked = inner.unpack_layer(blob, &chain[..layer.index], Some(&layer.diff_id));
        if let Err(error) = unpacked {
            // A blob that a power loss has damaged must not stand in the way of the next try.
            inner.drop_blob(&layer.digest)?;
            return Err(error.context(format!("failed to extract layer {}", layer.diff_id)));
        }
    }
    inner.drop_blob(&layer.digest)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|e| ImageError::Local(format!("image worker: {e}")))?
}
