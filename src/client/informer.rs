//! Informers: a local, indexed copy of one kind, kept up to date by a watch, that notifies its subscribers of changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, RwLock},
};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Client, Typed};
use podwright_api::Watermark;

mod builder;
mod copy;
mod followed;
mod room;

pub use builder::InformerBuilder;
use copy::{Seen, version};
pub use followed::Followed;
use followed::Scope;
pub use room::{Room, Rooms};

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
    /// The namespace for requests: `None` for cluster-scoped kinds.
    pub fn namespace(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|ns| !ns.is_empty())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// One change of one object: `old` is the previous state in the informer, `new` the current one.
#[derive(Debug)]
pub struct Delta<K> {
    pub key: Key,
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
    /// The object exists, but this view cannot decode it: `new` is its last decoded state, if any.
    pub undecodable: Option<Arc<Undecodable>>,
}

impl<K> Clone for Delta<K> {
    fn clone(&self) -> Delta<K> {
        let Delta { key, old, new, undecodable } = self;
        Delta { key: key.clone(), old: old.clone(), new: new.clone(), undecodable: undecodable.clone() }
    }
}

/// An object that a view cannot decode.
#[derive(Debug)]
pub struct Undecodable {
    pub key: Key,
    pub uid: String,
    resource_version: String,
    /// The object as the server sent it, if [`InformerBuilder::keep_undecodable`] was set; otherwise empty.
    pub object: Bytes,
    /// The field, and the error.
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
    /// Whether notifications have ended.
    ended: bool,
    held: Option<Held>,
    /// Whether there was more, when it was last listed or told of, than may be kept.
    is_full: bool,
}

/// How much of the shared room an informer uses, and for which objects.
struct Held {
    room: Room,
    sizes: HashMap<Key, usize>,
    all: usize,
}

struct Shared<K> {
    /// The resource's name, for messages.
    resource: String,
    scope: Scope,
    most: usize,
    keep_undecodable: bool,
    /// When it was last logged that an object cannot be decoded.
    told: Mutex<Option<Instant>>,
    state: RwLock<State<K>>,
    /// 1 once the first complete list has arrived.
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

impl<K: Typed> Informer<K> {
    pub fn builder(client: Client) -> InformerBuilder<K> {
        InformerBuilder::new(client)
    }

    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read(|s| s.objects.get(key).cloned())
    }

    /// Existing objects that this view cannot decode. The copy has their last decoded states, if any.
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

    /// The objects with `value` in the index `name`, in key order.
    pub fn indexed(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        self.read(|s| {
            let keys = s.indexes.get(name).and_then(|index| index.entries.get(value));
            keys.into_iter().flatten().filter_map(|key| s.objects.get(key).cloned()).collect()
        })
    }

    /// Their number.
    pub fn count(&self, name: &str, value: &str) -> usize {
        self.read(|s| s.indexes.get(name).and_then(|index| index.entries.get(value)).map_or(0, BTreeSet::len))
    }

    pub fn len(&self) -> usize {
        self.read(|s| s.objects.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of its resource: `deployments.apps`.
    pub fn resource(&self) -> &str {
        &self.0.resource
    }

    /// The same informer, independent of its kind.
    pub fn followed(&self) -> Arc<dyn Followed> {
        self.0.clone()
    }

    /// Whether there is more than may be kept: the copy stays as it is, or empty, until there is less.
    pub fn is_full(&self) -> bool {
        self.read(|s| s.is_full)
    }

    /// Whether the first complete list has arrived.
    pub fn is_synced(&self) -> bool {
        self.0.synced.now() >= 1
    }

    /// The revision that the copy shows.
    pub fn resource_version(&self) -> String {
        self.read(|s| s.resource_version.clone())
    }

    /// All changes from now on, preceded by an addition for each existing object.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Delta<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.state.write().unwrap_or_else(|p| p.into_inner());
        let known = state.objects.keys().chain(state.undecodable.keys()).collect::<BTreeSet<_>>();
        for key in known {
            let (new, undecodable) = (state.objects.get(key).cloned(), state.undecodable.get(key).cloned());
            // The receiver is owned by this function, so sending succeeds.
            sender.send(Delta { key: key.clone(), old: None, new, undecodable }).ok();
        }
        state.subscribers.push(sender);
        receiver
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        self.0.synced.reached(1).await;
    }

    /// For a kind that was removed: reports all its objects as deleted, and nothing after that.
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

impl Held {
    /// Reserves room for an object, or reduces it.
    fn set(&mut self, key: &Key, size: usize) -> bool {
        let all = self.all - self.sizes.get(key).copied().unwrap_or(0) + size;
        let fits = self.room.resize(all);
        if fits {
            self.all = all;
            match size {
                0 => self.sizes.remove(key),
                size => self.sizes.insert(key.clone(), size),
            };
        }
        fits
    }

    /// Reserves room for exactly these objects.
    fn replace(&mut self, sizes: HashMap<Key, usize>) -> bool {
        let all = sizes.values().sum();
        let fits = self.room.resize(all);
        if fits {
            (self.sizes, self.all) = (sizes, all);
        }
        fits
    }
}

impl<K: Typed> State<K> {
    /// The number of objects, and whether that one is among them.
    fn knows(&self, key: &Key) -> (usize, bool) {
        let known = self.objects.contains_key(key) || self.undecodable.contains_key(key);
        // Objects in both maps count twice, as they use twice the memory.
        (self.objects.len() + self.undecodable.len(), known)
    }

    fn set(&mut self, seen: Seen<K>) {
        match seen {
            Seen::Readable(key, object) => {
                self.undecodable.remove(&key);
                self.put(key, Some(Arc::new(object)), None);
            }
            Seen::Unreadable(object) => {
                let object = Arc::new(object);
                self.undecodable.insert(object.key.clone(), object.clone());
                // An outdated copy is better than none, as the object does exist. It is dropped if room is short.
                let last = self.objects.get(&object.key).filter(|last| version(&***last).0 == object.uid).cloned();
                let last = last.filter(|_| self.held.is_none());
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

    /// Replaces everything, notifying subscribers only of differences.
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
