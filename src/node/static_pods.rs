//! Static Pods: manifests in a folder of the node, and the mirror Pods that represent them on the server.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    string::FromUtf8Error,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use podwright_runtime::sys::{shared, trusted};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::{
    disk,
    spec::{HASH, MIRROR, PodExt, SOURCE},
};
use podwright_api::{FieldValidation, Options, Status, kinds, pod_references, strategy, yaml};
use podwright_client::Client;

/// The polling interval without inotify.
const POLL: Duration = Duration::from_secs(20);
/// Maximum size of a manifest: kubelet's `maxConfigLength`.
const LARGEST: usize = 10 << 20;

/// Sends the Pods of the manifest folder: the complete list now, and again whenever it changes.
pub fn watch(folder: &Path, node: &str) -> mpsc::UnboundedReceiver<Vec<Arc<Pod>>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (folder, node) = (folder.to_owned(), node.to_owned());
    if let Err(error) = std::fs::create_dir_all(&folder) {
        tracing::warn!(%error, folder = %folder.display(), "failed to create the manifest directory");
    }
    tokio::spawn(async move {
        let mut changes = changes(&folder);
        loop {
            let (from, of) = (folder.clone(), node.clone());
            let pods = match disk::work(move || read_folder(&from, &of)).await {
                Ok(pods) => pods,
                Err(why) => {
                    // Running Pods go on.
                    tracing::error!(why, folder = %folder.display(), "failed to read the manifest directory");
                    tokio::time::sleep(POLL).await;
                    continue;
                }
            };
            if sender.send(pods).is_err() {
                return;
            }
            match &mut changes {
                Some(changes) => {
                    changes.next().await;
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
    });
    receiver
}

type Changes = std::pin::Pin<Box<dyn futures::Stream<Item = ()> + Send>>;

fn changes(folder: &Path) -> Option<Changes> {
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM | WatchMask::DELETE;
    let watch = || -> io::Result<Changes> {
        let inotify = Inotify::init()?;
        inotify.watches().add(folder, mask)?;
        // One file's change causes several events: they are handled together.
        Ok(Box::pin(inotify.into_event_stream(vec![0; 4096])?.ready_chunks(64).map(drop)))
    };
    match watch() {
        Ok(changes) => Some(changes),
        Err(error) => {
            tracing::warn!(%error, folder = %folder.display(), "failed to watch the manifest directory: polling it instead");
            None
        }
    }
}

/// All Pods of the folder's `.yaml`, `.yml` and `.json` files. A file that does not contain Pods, or that others may write, is
/// reported and skipped.
pub fn read_folder(folder: &Path, node: &str) -> Vec<Arc<Pod>> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    let is_manifest = |p: &&PathBuf| {
        let hidden = p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        !hidden && p.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|x| e == *x))
    };
    let (mut pods, deciders) = (Vec::new(), trusted::deciders());
    for file in files.iter().filter(is_manifest) {
        // Anyone who can write it can become root here.
        if let Err(why) = trusted::check(file, &deciders) {
            tracing::warn!(file = %file.display(), why, "ignoring a static Pod manifest");
            continue;
        }
        match read_file(file).and_then(|text| read(&text, file, node)) {
            Ok(read) => pods.extend(read.into_iter().map(Arc::new)),
            Err(why) => tracing::warn!(file = %file.display(), %why, "ignoring a static Pod manifest"),
        }
    }
    pods
}

/// Why a file contains no valid static Pods.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("it has more than {LARGEST} bytes")]
    TooLarge,
    #[error(transparent)]
    NotUtf8(#[from] FromUtf8Error),
    /// Neither YAML nor JSON.
    #[error(transparent)]
    Syntax(#[from] yaml::YamlError),
    /// It has this kind.
    #[error("expected a Pod, found {0}")]
    NotAPod(Value),
    /// The server would reject it.
    #[error(transparent)]
    Refused(#[from] Status),
    #[error("the Pod has no name")]
    NoName,
    /// It refers to objects of this resource, which static Pods must not.
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
}

/// Reads a manifest. (A Pod may have the folder as a volume: a FIFO or a file lease in it must not block.)
fn read_file(file: &Path) -> Result<String, ManifestError> {
    let bytes = shared::read_linked(file, LARGEST + 1)?;
    if bytes.len() > LARGEST {
        return Err(ManifestError::TooLarge);
    }
    Ok(String::from_utf8(bytes)?)
}

/// The Pods of one manifest, as kubelet builds them from files: with the node's name as suffix, and a uid derived from their
/// content.
///
/// # Errors
///
/// It is not valid YAML, or a document is not a Pod, or one that the server would reject or could not mirror.
pub fn read(text: &str, file: &Path, node: &str) -> Result<Vec<Pod>, ManifestError> {
    let documents = yaml::documents(text)?;
    documents.into_iter().map(|document| static_pod(document, file, node)).collect()
}

fn static_pod(document: Value, file: &Path, node: &str) -> Result<Pod, ManifestError> {
    if document["kind"] != "Pod" {
        return Err(ManifestError::NotAPod(document["kind"].clone()));
    }
    // 1. Decoded, defaulted and validated as by the server, so that nothing runs that it would reject. Invariant: the table of
    //    kinds includes Pods.
    let kind = kinds::lookup("pods").expect("the kind Pod");
    let (mut object, _) = kind.decode(document, FieldValidation::Strict)?;
    strategy::prepare_create(kind, &mut object);
    if object.namespace().unwrap_or_default().is_empty() {
        object.set_meta("namespace", Value::from("default"));
    }
    if object.name().is_empty() {
        return Err(ManifestError::NoName);
    }
    let digest = Sha256::digest(format!("{node}\n{}\n{}", file.display(), object.0));
    object.set_meta("name", Value::from(format!("{}-{node}", object.name())));
    strategy::validate_create(kind, &object)?;
    // Its mirror could not represent it, and its node may not read what it refers to (upstream's PreventStaticPodAPIReferences).
    if let Some(&(resource, _)) = pod_references::all(&object).first() {
        return Err(ManifestError::Reference(resource));
    }
    // 2. Assigned to this node.
    let uid: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let mut pod: Pod = serde_json::from_slice(&object.to_vec())?;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE.to_owned(), "file".to_owned());
    annotations.insert(HASH.to_owned(), uid.clone());
    annotations.remove(MIRROR);
    pod.metadata.uid = Some(uid);
    pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
    pod.status = None;
    Ok(pod)
}

fn owned_by(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// The mirror Pods: created where missing, removed without a static Pod.
pub struct Mirrors {
    client: Client,
    /// Static Pods by `namespace/name`.
    statics: HashMap<String, Arc<Pod>>,
    /// The server's objects, by the same key.
    shown: HashMap<String, Arc<Pod>>,
    /// Objects that only look like mirrors, by the same key.
    false_ones: HashMap<String, Arc<Pod>>,
}

fn key(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

impl Mirrors {
    pub fn new(client: Client) -> Mirrors {
        Mirrors { client, statics: HashMap::new(), shown: HashMap::new(), false_ones: HashMap::new() }
    }

    /// Sets the folder's current Pods; returns the uids of removed ones.
    pub fn replace(&mut self, pods: &[Arc<Pod>]) -> Vec<String> {
        let new: HashMap<String, Arc<Pod>> = pods.iter().map(|p| (key(p), p.clone())).collect();
        let old = std::mem::replace(&mut self.statics, new);
        let still = |uid: &str| pods.iter().any(|p| p.uid() == uid);
        let gone = old.values().map(|p| p.uid().to_owned()).filter(|uid| !still(uid)).collect();
        self.retry();
        gone
    }

    /// The mirror that shows a static Pod.
    pub fn of(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.shown.get(&key(pod)).filter(|mirror| mirror.annotation(MIRROR) == pod.annotation(HASH)).cloned()
    }

    /// Records a mirror Pod left by an earlier agent. It is checked once the folder has been read.
    pub fn found(&mut self, mirror: &Arc<Pod>) {
        self.shown.insert(key(mirror), mirror.clone());
    }

    /// Records a mirror Pod; returns the uid of its static Pod. A mirror without one is deleted.
    pub fn seen(&mut self, mirror: &Arc<Pod>) -> Option<String> {
        self.shown.insert(key(mirror), mirror.clone());
        let current = self.statics.get(&key(mirror)).filter(|p| p.annotation(HASH) == mirror.annotation(MIRROR));
        match current {
            Some(pod) if mirror.metadata.deletion_timestamp.is_none() => Some(pod.uid().to_owned()),
            _ => {
                self.delete(mirror);
                None
            }
        }
    }

    /// Records a Pod that has a mirror's annotation without being one, as older agents created them. Returns whether it has the
    /// name of a static Pod's mirror: then it is deleted and replaced.
    pub fn stands_in_the_way(&mut self, pod: &Arc<Pod>) -> bool {
        self.false_ones.insert(key(pod), pod.clone());
        let takes = self.statics.contains_key(&key(pod));
        if takes {
            self.delete(pod);
        }
        takes
    }

    /// A mirror Pod, or a false one, was deleted: that stops nothing, it is created again.
    pub fn gone(&mut self, mirror: &Pod) {
        self.shown.remove(&key(mirror));
        self.false_ones.remove(&key(mirror));
        self.retry();
    }

    /// Creates missing mirrors, and deletes outdated or orphaned ones.
    pub fn retry(&self) {
        for (key, mirror) in &self.shown {
            let current = self.statics.get(key);
            if current.is_none_or(|p| p.annotation(HASH) != mirror.annotation(MIRROR)) {
                self.delete(mirror);
            }
        }
        for (key, pod) in &self.statics {
            match (self.false_ones.get(key), self.shown.contains_key(key)) {
                (Some(in_the_way), _) => self.delete(in_the_way),
                (None, false) => self.create(pod),
                (None, true) => {}
            }
        }
    }

    fn create(&self, pod: &Arc<Pod>) {
        let mut mirror = (**pod).clone();
        let hash = pod.annotation(HASH).unwrap_or_default().to_owned();
        mirror.metadata.uid = None;
        mirror.metadata.annotations.get_or_insert_default().insert(MIRROR.to_owned(), hash);
        mirror.status = None;
        let client = self.client.clone();
        tokio::spawn(async move {
            let node = mirror.spec().node_name.clone().unwrap_or_default();
            // The owner reference to the Node lets the server, and the next agent, recognize it.
            let owner = client.get::<Node>(None, &node).await.map(|node| owned_by(&node));
            mirror.metadata.owner_references = owner.as_ref().ok().map(|owner| vec![owner.clone()]);
            let made = match owner {
                Ok(_) => client.create(&mirror).await,
                Err(status) => Err(status),
            };
            match made {
                Err(status) if !status.is_already_exists() => {
                    tracing::warn!(%status, pod = %mirror.full_name(), "failed to create a mirror Pod");
                }
                _ => {}
            }
        });
    }

    fn delete(&self, mirror: &Arc<Pod>) {
        let (client, mirror) = (self.client.clone(), mirror.clone());
        tokio::spawn(async move {
            let options = Options { grace_period_seconds: Some(0), ..Options::default() };
            let uid = mirror.metadata.uid.as_deref();
            let result = client.delete::<Pod>(Some(mirror.namespace()), mirror.name(), uid, options).await;
            if let Err(status) = result
                && !status.is_not_found()
            {
                tracing::warn!(%status, pod = %mirror.full_name(), "failed to delete a mirror Pod");
            }
        });
    }
}
