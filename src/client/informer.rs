//! Informers: a local, indexed copy of one kind, kept fresh by a watch, that tells its subscribers what changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, RwLock},
};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::reflector::{LocalCopy, Name, Named, Reflector};
use super::{Client, Typed, blame};
use podwright_api::{Options, Request, Status, Watermark, request::EventKind};

mod followed;

pub use followed::Followed;
use followed::Scope;

/// The name of an object within its kind. Cluster-scoped kinds have an empty namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
    pub fn of<K: Typed>(object: &K) -> Key {
        let meta = object.metadata();
        Key::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
    /// The namespace as requests want it: none for cluster-scoped kinds.
    pub fn namespace(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|ns| !ns.is_empty())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// One change of one object: `old` is what the informer knew, `new` what it knows now.
#[derive(Debug)]
pub struct Delta<K> {
    pub key: Key,
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
    /// The object exists, but this view cannot read it: `new` is how it was last read, if it ever was.
    pub undecodable: Option<Arc<Undecodable>>,
}

impl<K> Clone for Delta<K> {
    fn clone(&self) -> Delta<K> {
        let Delta { key, old, new, undecodable } = self;
        Delta { key: key.clone(), old: old.clone(), new: new.clone(), undecodable: undecodable.clone() }
    }
}

/// An object that a view cannot read.
#[derive(Debug)]
pub struct Undecodable {
    pub key: Key,
    pub uid: String,
    resource_version: String,
    /// The object as the server sent it.
    pub object: Bytes,
    /// The field, and what is wrong with it.
    pub why: String,
}

type IndexFn<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

struct Index<K> {
    keys_of: IndexFn<K>,
    entries: HashMap<String, BTreeSet<Key>>,
}

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    undecodable: BTreeMap<Key, Arc<Undecodable>>,
    indexes: HashMap<&'static str, Index<K>>,
    subscribers: Vec<mpsc::UnboundedSender<Delta<K>>>,
    resource_version: String,
    /// Whether nothing is told any more.
    ended: bool,
}

struct Shared<K> {
    /// Which resource it is of, for messages.
    resource: String,
    scope: Scope,
    most: usize,
    state: RwLock<State<K>>,
    /// 1 when the first complete list has arrived.
    synced: Watermark,
    task: Mutex<Option<tokio::task::AbortHandle>>,
}

impl<K> Drop for Shared<K> {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(|p| p.into_inner()).take() {
            task.abort();
        }
    }
}

/// A shared informer. Clones share one copy and one watch, which end with the last clone.
pub struct Informer<K>(Arc<Shared<K>>);

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Informer<K> {
        Informer(self.0.clone())
    }
}

/// What an informer shall cover, before it starts.
pub struct InformerBuilder<K> {
    client: Client,
    resource: String,
    scope: Scope,
    options: Options,
    indexes: HashMap<&'static str, Index<K>>,
    most: usize,
}

impl<K: Typed> InformerBuilder<K> {
    /// Another resource than `K`'s own; for views like [`super::Partial`] that fit every kind.
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = resource.into();
        self
    }
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.scope.namespace = Some(namespace.to_owned());
        self
    }
    /// Only objects of this name.
    pub fn name(mut self, name: &str) -> Self {
        self.scope.name = Some(name.to_owned());
        self.fields(format!("metadata.name={name}"))
    }
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.options.field_selector = Some(selector.into());
        self
    }
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.options.label_selector = Some(selector.into());
        self
    }
    pub fn at_most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }
    /// Adds an index that `Informer::indexed` looks up; `keys_of` gives the values under which an object is found.
    pub fn index(mut self, name: &'static str, keys_of: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Self {
        self.indexes.insert(name, Index { keys_of: Box::new(keys_of), entries: HashMap::new() });
        self
    }
    /// Starts to list and watch. Must be called inside a tokio runtime.
    pub fn start(self) -> Informer<K> {
        let state = State {
            objects: BTreeMap::new(),
            undecodable: BTreeMap::new(),
            indexes: self.indexes,
            subscribers: Vec::new(),
            resource_version: String::new(),
            ended: false,
        };
        let shared = Arc::new(Shared {
            resource: self.resource.clone(),
            scope: self.scope.clone(),
            most: self.most,
            state: RwLock::new(state),
            synced: Watermark::default(),
            task: Mutex::new(None),
        });
        let copy: Arc<dyn LocalCopy> = shared.clone();
        let reflector = Reflector {
            client: self.client,
            request: Request {
                resource: self.resource,
                namespace: self.scope.namespace,
                options: self.options,
                ..Request::default()
            },
            copy: Arc::downgrade(&copy),
        };
        let task = tokio::spawn(reflector.run()).abort_handle();
        *shared.task.lock().unwrap_or_else(|p| p.into_inner()) = Some(task);
        Informer(shared)
    }
}

impl<K: Typed> Informer<K> {
    pub fn builder(client: Client) -> InformerBuilder<K> {
        InformerBuilder {
            client,
            resource: K::resource(),
            scope: Scope::default(),
            options: Options::default(),
            indexes: HashMap::new(),
            most: usize::MAX,
        }
    }

    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read(|s| s.objects.get(key).cloned())
    }

    /// The objects that exist, but that this view cannot read. The copy holds them as they were last read, if ever.
    pub fn undecodable(&self) -> Vec<Arc<Undecodable>> {
        self.read(|s| s.undecodable.values().cloned().collect())
    }

    /// All objects, in order of their keys.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read(|s| s.objects.values().cloned().collect())
    }

    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let from = Key::new(namespace, "");
        let within = |(key, _): &(&Key, &Arc<K>)| key.namespace == namespace;
        self.read(|s| s.objects.range(from..).take_while(within).map(|(_, o)| o.clone()).collect())
    }

    /// The objects that the index `name` holds under `value`, in order of their keys.
    pub fn indexed(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        self.read(|s| {
            let keys = s.indexes.get(name).and_then(|index| index.entries.get(value));
            keys.into_iter().flatten().filter_map(|key| s.objects.get(key).cloned()).collect()
        })
    }

    /// How many that are.
    pub fn count(&self, name: &str, value: &str) -> usize {
        self.read(|s| s.indexes.get(name).and_then(|index| index.entries.get(value)).map_or(0, BTreeSet::len))
    }

    pub fn len(&self) -> usize {
        self.read(|s| s.objects.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of what it follows: `deployments.apps`.
    pub fn resource(&self) -> &str {
        &self.0.resource
    }

    /// The same informer, for who does not care of which kind it is.
    pub fn followed(&self) -> Arc<dyn Followed> {
        self.0.clone()
    }

    /// The revision that the copy shows.
    pub fn resource_version(&self) -> String {
        self.read(|s| s.resource_version.clone())
    }

    /// All changes from now on, preceded by one addition for each object that is known already.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Delta<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.state.write().unwrap_or_else(|p| p.into_inner());
        let known = state.objects.keys().chain(state.undecodable.keys()).collect::<BTreeSet<_>>();
        for key in known {
            let (new, undecodable) = (state.objects.get(key).cloned(), state.undecodable.get(key).cloned());
            // The receiver is in this function's hands: it cannot be gone.
            sender.send(Delta { key: key.clone(), old: None, new, undecodable }).ok();
        }
        state.subscribers.push(sender);
        receiver
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        self.0.synced.reached(1).await;
    }

    /// For a kind that is no more: tells subscribers that all its objects are gone, and nothing after that.
    pub fn end(&self) {
        let mut state = self.0.state.write().unwrap_or_else(|p| p.into_inner());
        state.replace(Vec::new());
        state.ended = true;
        state.subscribers.clear();
        drop(state);
        if let Some(task) = self.0.task.lock().unwrap_or_else(|p| p.into_inner()).take() {
            task.abort();
        }
    }

    fn read<T>(&self, f: impl FnOnce(&State<K>) -> T) -> T {
        f(&self.0.state.read().unwrap_or_else(|p| p.into_inner()))
    }
}

/// An object as the server has it.
enum Seen<K> {
    Readable(Key, K),
    Unreadable(Undecodable),
}

impl<K: Typed> Seen<K> {
    fn key(&self) -> &Key {
        match self {
            Seen::Readable(key, _) => key,
            Seen::Unreadable(object) => &object.key,
        }
    }

    /// Its uid and resourceVersion.
    fn version(&self) -> (&str, &str) {
        match self {
            Seen::Readable(_, object) => version(object),
            Seen::Unreadable(object) => (&object.uid, &object.resource_version),
        }
    }
}

fn version<K: Typed>(object: &K) -> (&str, &str) {
    let meta = object.metadata();
    (meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref().unwrap_or_default())
}

impl<K: Typed> State<K> {
    fn set(&mut self, seen: Seen<K>) {
        match seen {
            Seen::Readable(key, object) => {
                self.undecodable.remove(&key);
                self.put(key, Some(Arc::new(object)), None);
            }
            Seen::Unreadable(object) => {
                let object = Arc::new(object);
                self.undecodable.insert(object.key.clone(), object.clone());
                // An old copy of it is nearer to the truth than none: it does exist.
                let last = self.objects.get(&object.key).filter(|last| version(&***last).0 == object.uid).cloned();
                self.put(object.key.clone(), last, Some(object));
            }
        }
    }

    fn remove(&mut self, key: Key) {
        if self.undecodable.remove(&key).is_some() || self.objects.contains_key(&key) {
            self.put(key, None, None);
        }
    }

    fn put(&mut self, key: Key, new: Option<Arc<K>>, undecodable: Option<Arc<Undecodable>>) {
        let old = match &new {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(&key),
        };
        for index in self.indexes.values_mut() {
            for value in old.iter().flat_map(|o| (index.keys_of)(o)) {
                if let Some(keys) = index.entries.get_mut(&value) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        index.entries.remove(&value);
                    }
                }
            }
            for value in new.iter().flat_map(|o| (index.keys_of)(o)) {
                index.entries.entry(value).or_default().insert(key.clone());
            }
        }
        let delta = Delta { key, old, new, undecodable };
        self.subscribers.retain(|s| s.send(delta.clone()).is_ok());
    }

    /// Replaces everything, telling subscribers only of what differs.
    fn replace(&mut self, objects: Vec<Seen<K>>) {
        let new: BTreeMap<Key, Seen<K>> = objects.into_iter().map(|o| (o.key().clone(), o)).collect();
        let known = self.objects.keys().chain(self.undecodable.keys());
        let gone: BTreeSet<Key> = known.filter(|k| !new.contains_key(*k)).cloned().collect();
        for key in gone {
            self.remove(key);
        }
        for (key, object) in new {
            let known = match self.undecodable.get(&key) {
                Some(old) => Some((old.uid.as_str(), old.resource_version.as_str())),
                None => self.objects.get(&key).map(|old| version(&**old)),
            };
            if known != Some(object.version()) {
                self.set(object);
            }
        }
    }
}

impl<K: Typed> LocalCopy for Shared<K> {
    fn revision(&self) -> Option<String> {
        self.change(|state| state.resource_version.clone())
    }

    fn replace(&self, objects: &[Box<RawValue>], revision: String) -> Result<(), Status> {
        if objects.len() > self.most {
            return Err(self.full());
        }
        let objects = objects.iter().map(|object| decode(&self.resource, object.get().as_bytes()));
        let objects = objects.collect::<Result<_, _>>()?;
        self.change(|state| {
            state.replace(objects);
            state.resource_version = revision;
        });
        self.synced.set(1);
        Ok(())
    }

    fn reached(&self, revision: String) {
        self.change(|state| state.resource_version = revision);
    }

    fn changed(&self, kind: EventKind, object: &[u8]) -> Result<(), Status> {
        let seen = decode(&self.resource, object)?;
        let known = |state: &mut State<K>| state.objects.len() < self.most || state.objects.contains_key(seen.key());
        if kind != EventKind::Deleted && self.change(known) == Some(false) {
            return Err(self.full());
        }
        self.change(|state| {
            state.resource_version = seen.version().1.to_owned();
            match kind {
                EventKind::Deleted => state.remove(seen.key().clone()),
                _ => state.set(seen),
            }
        });
        Ok(())
    }
}

impl<K: Typed> Shared<K> {
    /// There is more than is kept: it is listed anew, later.
    fn full(&self) -> Status {
        Status::expired(format!("there are more than {} {}", self.most, self.resource))
    }
    /// Runs `f` on the state, unless the informer has ended.
    fn change<T>(&self, f: impl FnOnce(&mut State<K>) -> T) -> Option<T> {
        let mut state = self.state.write().unwrap_or_else(|p| p.into_inner());
        (!state.ended).then(|| f(&mut state))
    }
}

/// An object; one that this view cannot read is told as such: going on without it beats seeing nothing new of its kind ever
/// again.
fn decode<K: Typed>(resource: &str, bytes: &[u8]) -> Result<Seen<K>, Status> {
    match serde_json::from_slice::<K>(bytes) {
        Ok(mut object) => {
            // Who manages what concerns nobody here, and is often half of an object.
            object.metadata_mut().managed_fields = None;
            Ok(Seen::Readable(Key::of(&object), object))
        }
        Err(why) => undecodable(resource, bytes, &why).map(Seen::Unreadable),
    }
}

fn undecodable(resource: &str, bytes: &[u8], why: &serde_json::Error) -> Result<Undecodable, Status> {
    let why = format!("{}: {why}", blame::field(bytes, why));
    let Name { namespace, name, uid, resource_version } = Named::read(bytes)?;
    let key = Key::new(namespace, name);
    tracing::error!(resource, %key, "failed to decode an object: {why}");
    Ok(Undecodable { key, uid, resource_version, object: Bytes::copy_from_slice(bytes), why })
}
