//! The ConfigMaps, Secrets, claims and Services that this node's Pods refer to, never older than the Pod.
//!
//! An agent with full permissions has one informer per kind. One with a node identity may only read what its Pods refer to: it gets
//! these objects one by one and polls them, like a kubelet whose `configMapAndSecretChangeDetectionStrategy` is `Cache`.
//!
//! What is read so is nobody else's: a Pod may have a thousand things made of thousands of objects, each a megabyte, all at once. So
//! whoever has more than a little in hand has his namespace's [turn](Held) for it, until what is made of it is made.
//!
//! Claims and their volumes are read once, when a Pod begins; a claim that is not bound yet, again until it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service};
use tokio::{
    sync::{Notify, mpsc},
    task::AbortHandle,
    time::Instant,
};

use super::{
    awaited::{AWAIT, Awaited},
    fair_semaphore::{FairSemaphore, Turn},
    spec::{PodExt, revision},
    translate::env::Sources,
};
use podwright_api::{Status, persistent_volume::claim_phase};
use podwright_client::{Client, Informer, Key, Typed};

/// The interval at which objects read one by one are polled.
const LOOK: Duration = Duration::from_secs(60);
/// How long the absence of an object is cached: a Pod may name a thousand optional ones, and retry constantly.
const ABSENT: Duration = Duration::from_secs(5);
/// Maximum number of cached absences.
const ABSENTEES: usize = 16 << 10;
/// Maximum number of namespaces reading at the same time.
const READING: usize = 16;
/// The longest pause of a namespace after it has read an object.
const REST: Duration = Duration::from_millis(100);
/// So many bytes that were read for one thing are in hand without a turn.
const LITTLE: usize = 256 << 10;
/// So many that are read for one thing may be in hand at all.
const MOST: usize = 64 << 20;
/// So many namespaces have more than a little in hand at the same time, for volumes and containers, and for pulls.
const HOLDING: (usize, usize) = (8, 64);
/// How long a read may take, with the wait for its turn.
const ANSWER: Duration = Duration::from_secs(10);

pub struct Objects {
    client: Client,
    /// None: objects are read by name.
    informers: Option<(Informer<ConfigMap>, Informer<Secret>)>,
    services: Informer<Service>,
    read: Arc<Read>,
    /// Each namespace reads one object at a time, then pauses for as long as that took: a Pod may name thousands.
    turns: FairSemaphore,
    /// Who has much in hand.
    holding: FairSemaphore,
    /// The same for pulls, which may take long.
    pulling: FairSemaphore,
    looking: Vec<AbortHandle>,
}

/// What was read for one thing, and the turn for it where that is much.
pub struct Held<'a> {
    turns: &'a FairSemaphore,
    bytes: usize,
    turn: Option<Turn>,
}

impl Held<'_> {
    /// Nothing is left of what was read but so many bytes that were made of it: who has little has no turn for it.
    pub fn lessen(&mut self, bytes: usize) {
        self.bytes = bytes;
        if bytes <= LITTLE {
            self.turn = None;
        }
    }
}

/// What was read by name: its version then.
#[derive(Default)]
struct Read {
    versions: Mutex<BTreeMap<(bool, Key), String>>,
    /// Objects that did not exist when a Pod needed them, and when that was found.
    absent: Mutex<BTreeMap<Absentee, Instant>>,
    /// Claims that were not bound when a Pod wanted them.
    awaited: Mutex<Awaited>,
    awaiting: Notify,
    changes: Mutex<Vec<mpsc::UnboundedSender<Changed>>>,
}

/// Why an object that a Pod refers to cannot be read from the server.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ObjectError {
    /// A ConfigMap or a Secret. Its absence is not an error.
    #[error(transparent)]
    Source(#[from] Status),
    /// ConfigMaps and Secrets for one thing.
    #[error("the ConfigMaps and Secrets that it refers to have more than {0} bytes together")]
    TooLarge(usize),
    #[error("error processing PVC {namespace}/{name}: failed to fetch PVC from API server: {status}")]
    Claim {
        namespace: String,
        name: String,
        #[source]
        status: Status,
    },
    /// A PersistentVolume, or the Node that it must be on.
    #[error("failed to fetch PV {name} from API server: {status}")]
    Volume {
        name: String,
        #[source]
        status: Status,
    },
}

/// The Pod that wants it (an object may exist by the time of the next Pod), whether it is a Secret, its name.
type Absentee = (String, bool, String);

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    ConfigMap,
    Secret,
    /// The claim is bound now.
    Claim,
}

/// A changed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub what: What,
    pub key: Key,
}

impl Read {
    fn is_absent(&self, at: &Absentee) -> bool {
        lock(&self.absent).get(at).is_some_and(|since| since.elapsed() < ABSENT)
    }

    fn note_absent(&self, at: Absentee) {
        let mut absent = lock(&self.absent);
        if absent.len() >= ABSENTEES {
            absent.retain(|_, since| since.elapsed() < ABSENT);
        }
        if absent.len() < ABSENTEES {
            absent.insert(at, Instant::now());
        }
    }

    fn tell(&self, changed: &Changed) {
        lock(&self.changes).retain(|listener| listener.send(changed.clone()).is_ok());
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.looking.iter().for_each(AbortHandle::abort);
    }
}

impl Objects {
    /// Must be called inside a tokio runtime. `by_name`: this agent may not list objects.
    pub fn new(client: Client, services: Informer<Service>, by_name: bool) -> Objects {
        let read = Arc::<Read>::default();
        let mut looking = vec![tokio::spawn(look_at_claims(client.clone(), read.clone())).abort_handle()];
        looking.extend(by_name.then(|| tokio::spawn(look(client.clone(), read.clone())).abort_handle()));
        let informers =
            (!by_name).then(|| (Informer::builder(client.clone()).start(), Informer::builder(client.clone()).start()));
        let [turns, holding, pulling] = [READING, HOLDING.0, HOLDING.1].map(FairSemaphore::new);
        Objects { informers, services, client, read, turns, holding, pulling, looking }
    }

    /// Changes of ConfigMaps, Secrets and claims from now on.
    pub fn changes(&self) -> mpsc::UnboundedReceiver<Changed> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.read.changes).push(sender.clone());
        let Some((maps, secrets)) = &self.informers else { return receiver };
        let (mut maps, mut secrets) = (maps.subscribe(), secrets.subscribe());
        tokio::spawn(async move {
            loop {
                let changed = tokio::select! {
                    Some(delta) = maps.recv() => Changed { what: What::ConfigMap, key: delta.key },
                    Some(delta) = secrets.recv() => Changed { what: What::Secret, key: delta.key },
                    else => return,
                };
                if sender.send(changed).is_err() {
                    return;
                }
            }
        });
        receiver
    }

    /// For what a volume or a container is made of. It is dropped when that is made.
    pub fn hold(&self) -> Held<'_> {
        Held { turns: &self.holding, bytes: 0, turn: None }
    }

    /// For what an image is pulled with. It is dropped when that is done.
    pub fn hold_for_pull(&self) -> Held<'_> {
        Held { turns: &self.pulling, bytes: 0, turn: None }
    }

    /// The named objects of the Pod's namespace; those that do not exist are left out.
    ///
    /// # Errors
    ///
    /// The server does not give one of them, for any other reason than that it does not exist; or they have too much in them.
    pub async fn sources(
        &self,
        held: &mut Held<'_>,
        pod: &Pod,
        config_maps: &BTreeSet<String>,
        secrets: &BTreeSet<String>,
    ) -> Result<Sources, ObjectError> {
        let (mut sources, mut bytes) = (Sources::default(), 0);
        for name in config_maps {
            let informer = self.informers.as_ref().map(|(maps, _)| maps);
            if let Some(object) = self.take(held, &mut bytes, informer, false, pod, name).await? {
                sources.config_maps.insert(name.clone(), object);
            }
        }
        for name in secrets {
            let informer = self.informers.as_ref().map(|(_, secrets)| secrets);
            if let Some(object) = self.take(held, &mut bytes, informer, true, pod, name).await? {
                sources.secrets.insert(name.clone(), object);
            }
        }
        Ok(sources)
    }

    /// One object, within bounds and with a turn where it is one too many to be had without.
    async fn take<K: Source>(
        &self,
        held: &mut Held<'_>,
        bytes: &mut usize,
        informer: Option<&Informer<K>>,
        secret: bool,
        pod: &Pod,
        name: &str,
    ) -> Result<Option<Arc<K>>, ObjectError> {
        loop {
            let Some(object) = self.get(informer, secret, pod, name).await? else { return Ok(None) };
            let size = object.size();
            if *bytes + size > MOST {
                return Err(ObjectError::TooLarge(MOST));
            }
            // What informers have is everybody's, but not what is made of it.
            if held.turn.is_none() && held.bytes + size > LITTLE {
                // Not kept meanwhile: many may wait.
                drop(object);
                held.turn = Some(held.turns.take(pod.namespace()).await);
                continue;
            }
            held.bytes += size;
            *bytes += size;
            return Ok(Some(object));
        }
    }

    /// One object, at least as new as the Pod: a watch may lag behind the watch that brought the Pod.
    async fn get<K: Typed>(
        &self,
        informer: Option<&Informer<K>>,
        secret: bool,
        pod: &Pod,
        name: &str,
    ) -> Result<Option<Arc<K>>, Status> {
        let key = Key::new(pod.namespace(), name);
        let known: u64 = informer.and_then(|informer| informer.resource_version().parse().ok()).unwrap_or(0);
        let cached = informer.and_then(|informer| informer.get(&key));
        if cached.is_some() && known >= revision(pod) {
            return Ok(cached);
        }
        let absentee = (pod.uid().to_owned(), secret, name.to_owned());
        if cached.is_none() && self.read.is_absent(&absentee) {
            return Ok(None);
        }
        match self.ask::<K>(pod, Some(pod.namespace()), name).await {
            Ok(object) => {
                if informer.is_none() {
                    lock(&self.read.versions).insert((secret, key), version(&object));
                }
                Ok(Some(Arc::new(object)))
            }
            Err(status) if status.is_not_found() => {
                self.read.note_absent(absentee);
                Ok(None)
            }
            Err(status) if cached.is_some() && status.is_retriable() => Ok(cached),
            Err(status) => Err(status),
        }
    }

    /// Reads one object from the server, in a turn of the Pod's namespace. A Pod that ends waits for it: at most [`ANSWER`].
    async fn ask<K: Typed>(&self, pod: &Pod, namespace: Option<&str>, name: &str) -> Result<K, Status> {
        let asking = async {
            let turn = self.turns.take(pod.namespace()).await;
            let begin = Instant::now();
            let found = self.client.get::<K>(namespace, name).await;
            // A clock with a resolution of milliseconds would add a pause to instant reads.
            match begin.elapsed() {
                short if short < Duration::from_millis(1) => drop(turn),
                long => FairSemaphore::rest(turn, long.min(REST)),
            }
            found
        };
        let late = |_| Err(Status::timeout("the server did not answer in time"));
        tokio::time::timeout(ANSWER, asking).await.unwrap_or_else(late)
    }

    /// A claim of the Pod's namespace, as it is now. If it is not bound, `changes` reports when it is.
    ///
    /// # Errors
    ///
    /// The server does not return it: [`ObjectError::Claim`].
    pub async fn claim(&self, pod: &Pod, name: &str) -> Result<PersistentVolumeClaim, ObjectError> {
        let key = Key::new(pod.namespace(), name);
        let found = self.ask::<PersistentVolumeClaim>(pod, key.namespace(), name).await;
        if found.as_ref().is_ok_and(|claim| claim_phase(claim) == "Bound") {
            // Others may wait for it too, and it is no longer polled.
            if lock(&self.read.awaited).remove(&key) {
                self.read.tell(&Changed { what: What::Claim, key });
            }
        } else {
            lock(&self.read.awaited).want(key, Instant::now());
            self.read.awaiting.notify_one();
        }
        found.map_err(|status| ObjectError::Claim {
            namespace: pod.namespace().to_owned(),
            name: name.to_owned(),
            status,
        })
    }

    /// A volume as it is now and, if it depends on it, the Node of this name.
    ///
    /// # Errors
    ///
    /// The server does not return one of them: [`ObjectError::Volume`].
    pub async fn volume(
        &self,
        pod: &Pod,
        name: &str,
        node: Option<&str>,
    ) -> Result<(PersistentVolume, Option<Node>), ObjectError> {
        let failed = |status| ObjectError::Volume { name: name.to_owned(), status };
        let volume = self.ask::<PersistentVolume>(pod, None, name).await.map_err(failed)?;
        let bounded = volume.spec.as_ref().is_some_and(|spec| spec.node_affinity.is_some());
        let node = match node.filter(|_| bounded) {
            Some(node) => Some(self.ask::<Node>(pod, None, node).await.map_err(failed)?),
            None => None,
        };
        Ok((volume, node))
    }

    /// The Services that a Pod gets as environment variables.
    pub fn services_for(&self, pod: &Pod) -> Vec<Arc<Service>> {
        let mut services = self.services.list_namespace(pod.namespace());
        if pod.namespace() != "default" {
            services.extend(self.services.get(&Key::new("default", "kubernetes")));
        }
        services
    }

    /// Waits until the Services are synced.
    pub async fn synced(&self) {
        self.services.synced().await;
    }
}

/// What files, variables and credentials are made of.
trait Source: Typed {
    /// Bytes of what it has in it.
    fn size(&self) -> usize;
}

impl Source for ConfigMap {
    fn size(&self) -> usize {
        let text = self.data.iter().flatten().map(|(key, value)| key.len() + value.len());
        text.chain(self.binary_data.iter().flatten().map(|(key, value)| key.len() + value.0.len())).sum()
    }
}

impl Source for Secret {
    fn size(&self) -> usize {
        self.data.iter().flatten().map(|(key, value)| key.len() + value.0.len()).sum()
    }
}

fn version<K: Typed>(object: &K) -> String {
    object.metadata().resource_version.clone().unwrap_or_default()
}

/// Polls the objects read so far and reports changes. Forgets those that are gone or no longer referenced by a Pod of this node.
async fn look(client: Client, read: Arc<Read>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let all: Vec<_> = lock(&read.versions).iter().map(|(at, version)| (at.clone(), version.clone())).collect();
        for ((secret, key), before) in all {
            let now = match secret {
                true => client.get::<Secret>(key.namespace(), &key.name).await.map(|object| version(&object)),
                false => client.get::<ConfigMap>(key.namespace(), &key.name).await.map(|object| version(&object)),
            };
            match now {
                Ok(now) if now == before => continue,
                Ok(now) => drop(lock(&read.versions).insert((secret, key.clone()), now)),
                Err(status) if status.is_not_found() || status.code == 403 => {
                    drop(lock(&read.versions).remove(&(secret, key.clone())));
                }
                Err(_) => continue,
            }
            let what = if secret { What::Secret } else { What::ConfigMap };
            read.tell(&Changed { what, key });
        }
    }
}

/// Polls the claims that Pods wait for and reports bound ones: all namespaces concurrently, some claims of each, one by one, since
/// a node identity may not list them.
async fn look_at_claims(client: Client, read: Arc<Read>) {
    loop {
        if lock(&read.awaited).is_empty() {
            read.awaiting.notified().await;
        }
        tokio::time::sleep(AWAIT).await;
        let turns = lock(&read.awaited).turns(Instant::now());
        let (client, read) = (&client, &read);
        let turn = async |claims: Vec<Key>| {
            for key in claims {
                let now = client.get::<PersistentVolumeClaim>(key.namespace(), &key.name).await;
                if now.is_ok_and(|claim| claim_phase(&claim) == "Bound") {
                    lock(&read.awaited).remove(&key);
                    read.tell(&Changed { what: What::Claim, key });
                }
            }
        };
        // Bounds how long a slow one delays the others' next turns.
        join_all(turns.into_iter().map(|claims| tokio::time::timeout(5 * AWAIT, turn(claims)))).await;
    }
}

/// The state is consistent even after a panic: each change is a single insertion or removal.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
