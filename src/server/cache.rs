//! The watch cache: the newest state of every kind as encoded bytes with its labels and selectable fields, and a window of recent
//! changes from which watches resume. (Older ones resume from the store's history.)
//!
//! One task reads the store's stream of changes and passes each to its kind's [`ResourceCache`], so all of these are at the same
//! revision. An event is encoded once and shared by all watchers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::iter;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;

use podwright_api::kinds::registry::Registry;
use podwright_api::{Cause, Kind, Object, Status, Watermark, kinds};
use podwright_store::{Change, Entry, Range, Revision, Store};

use super::burdens::Burdens;
use super::encode::Head;
use super::encryption;
use super::external_ips::{Ways, WaysIndex};
use super::extract::Extractor;
use super::store_error;
use super::watch::watchers::{BACKLOG, Watchers};

pub(super) mod item;
mod unopened;
mod views;

use item::namespace_of;
pub(super) use item::{Event, Item};
use unopened::Unopened;

/// The prefix of all objects.
const ROOT: &str = "/registry/";
const DEFINITIONS: &str = "/registry/customresourcedefinitions.apiextensions.k8s.io/";
/// How long a read waits until the cache reaches a revision that a client names, as upstream; or one that the store has
/// acknowledged.
const TIMEOUT: Duration = Duration::from_secs(3);
const TIMEOUT_WITH_OURS: Duration = Duration::from_secs(30);
/// The most events, and bytes of events, in a kind's window: a watcher that was cut off as too slow first reads a whole backlog,
/// and must then find what follows here, even for objects as large as Pods. (Entries older than five minutes are dropped anyway.)
const WINDOW_EVENTS: usize = 2 * BACKLOG;
const WINDOW_BYTES: usize = 32 << 20;

/// The caches of all resources, and their common revision.
pub(super) struct Cache {
    store: Arc<dyn Store>,
    /// All kinds: definitions are read here, where they are known first.
    pub kinds: Registry,
    by_segment: HashMap<String, Arc<ResourceCache>>,
    by_kind: HashMap<usize, Arc<ResourceCache>>,
    /// The same in the order of the table of kinds, not in hash order: who is notified first acts first.
    in_order: Vec<Arc<ResourceCache>>,
    /// The caches of custom resources, by segment. One stays when its definition is deleted: a later definition of that name finds
    /// what remains.
    custom: RwLock<BTreeMap<String, Arc<ResourceCache>>>,
    revision: Watermark,
    /// How many bytes of objects were written since it was opened.
    written: AtomicU64,
}

/// One kind's part of the cache.
pub(super) struct ResourceCache {
    pub kind: &'static Kind,
    pub head: Head,
    extractor: Extractor,
    /// Those whose objects are derived from these.
    views: Vec<Arc<ResourceCache>>,
    state: RwLock<Contents>,
}

#[derive(Default)]
pub(super) struct Contents {
    pub items: BTreeMap<Arc<str>, Arc<Item>>,
    pub unopened: Unopened,
    /// The revision of the kind's last change.
    pub revision: Revision,
    /// The window holds all changes after this revision.
    low: Revision,
    window: VecDeque<Arc<Event>>,
    window_bytes: usize,
    /// Counts the events.
    pub told: u64,
    pub watchers: Watchers,
    /// For Services: which external addresses and ports each has.
    pub ways: WaysIndex,
    /// What namespaces are charged for.
    pub burdens: Burdens,
}

impl ResourceCache {
    fn new(kind: &'static Kind) -> ResourceCache {
        let views = kinds::views_of(kind).map(|view| Arc::new(ResourceCache::new(view))).collect();
        ResourceCache { kind, head: Head::of(kind), extractor: Extractor::of(kind), views, state: RwLock::default() }
    }

    /// The same objects for a kind whose served form has changed; watchers of the old resource cache get no more events.
    fn again(kind: &'static Kind, old: &ResourceCache) -> ResourceCache {
        let resource = ResourceCache::new(kind);
        let mut state = old.write();
        let (items, revision) = (std::mem::take(&mut state.items), state.revision);
        let unopened = std::mem::take(&mut state.unopened);
        *state = Contents { told: state.unknown(), ..Contents::default() };
        drop(state);
        let item = |(key, item): (Arc<str>, Arc<Item>)| {
            (key.clone(), Arc::new(resource.item(key, item.bytes.clone(), item.revision)))
        };
        let items = items.into_iter().map(item).collect();
        resource.refill(items, unopened, revision);
        resource
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Contents> {
        self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    pub fn write(&self) -> RwLockWriteGuard<'_, Contents> {
        self.state.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    pub fn get(&self, key: &str) -> Option<Arc<Item>> {
        self.read().items.get(key).cloned()
    }

    fn item(&self, key: Arc<str>, bytes: Bytes, revision: Revision) -> Item {
        Item::of(self.kind, &self.extractor, key, bytes, revision)
    }

    /// An entry of the store in its served form. `None`: nothing of it is served.
    fn numbered(&self, key: Arc<str>, stored: Bytes, revision: Revision) -> Option<Item> {
        let shown = views::shown(self.kind, &self.head, stored)?;
        Some(self.item(key, self.head.deliver(&shown, revision), revision))
    }

    /// An entry of the store as stored: labels and fields are extracted, nothing is copied. `None`: nothing of it is served.
    pub fn unnumbered(&self, key: Arc<str>, stored: Bytes, revision: Revision) -> Option<Item> {
        let shown = views::shown(self.kind, &self.head, stored)?;
        Some(Item::without_rights(&self.extractor, key, shown, revision))
    }

    /// A historical change, as [`ResourceCache::apply`] would have sent it, if it would.
    pub fn event(&self, change: &Change) -> Option<Event> {
        let item = |e: &Entry| {
            let opens = encryption::unopened(&e.value).is_none();
            let item = opens.then(|| self.numbered(change.key.clone(), e.value.clone(), e.mod_revision));
            item.flatten().map(Arc::new)
        };
        let (old, new) = (change.before.as_ref().and_then(item), change.now.as_ref().and_then(item));
        let is_none = views::look_alike(self.kind, &self.head, old.as_ref(), new.as_ref());
        (!is_none).then(|| Event::of(change.revision, old, new))
    }

    /// Applies one change, also to what is derived from it.
    fn apply_everywhere(&self, change: &Change) {
        self.apply(change);
        self.views.iter().for_each(|view| view.apply(change));
    }

    /// Applies one change and notifies the watchers.
    fn apply(&self, change: &Change) {
        let now = change.now.as_ref();
        if let Some(why) = now.and_then(|entry| encryption::unopened(&entry.value)) {
            return self.set_apart(change.key.clone(), change.revision, why);
        }
        let new = now.and_then(|e| self.numbered(change.key.clone(), e.value.clone(), change.revision)).map(Arc::new);
        let mut state = self.write();
        state.unopened.remove(&change.key);
        if views::look_alike(self.kind, &self.head, state.items.get(&change.key), new.as_ref()) {
            return;
        }
        let old = match &new {
            Some(item) => state.items.insert(item.key.clone(), item.clone()),
            None => state.items.remove(&change.key),
        };
        state.ways.change(namespace_of(&change.key), ways_of(old.as_ref()), ways_of(new.as_ref()));
        state.burdens.change(namespace_of(&change.key), burden_of(old.as_ref()), burden_of(new.as_ref()));
        state.revision = change.revision;
        if old.is_none() && new.is_none() {
            return;
        }
        let event = Arc::new(Event::of(change.revision, old, new));
        state.watchers.tell(self.kind, &self.head, &event);
        state.remember(event);
    }

    /// Starts over from a complete list; watches end, as the changes in between are unknown.
    fn refill(&self, items: BTreeMap<Arc<str>, Arc<Item>>, unopened: Unopened, revision: Revision) {
        let mut ways = WaysIndex::default();
        items.values().for_each(|item| ways.change(namespace_of(&item.key), None, item.ways.as_deref()));
        let mut burdens = Burdens::default();
        items.values().for_each(|item| burdens.change(namespace_of(&item.key), 0, item.burden));
        let mut state = self.write();
        let told = state.unknown();
        *state = Contents { items, unopened, revision, low: revision, told, ways, burdens, ..Contents::default() };
    }

    /// Hides an object that can no longer be decrypted. Watchers are not sent a deletion: they reconnect, and get the error.
    fn set_apart(&self, key: Arc<str>, revision: Revision, why: String) {
        let mut state = self.write();
        let told = state.unknown();
        let Contents { mut items, mut unopened, mut ways, mut burdens, .. } = std::mem::take(&mut *state);
        let old = items.remove(&key);
        ways.change(namespace_of(&key), ways_of(old.as_ref()), None);
        burdens.change(namespace_of(&key), burden_of(old.as_ref()), 0);
        unopened.insert(key, revision, why);
        *state = Contents { items, unopened, revision, low: revision, told, ways, burdens, ..Contents::default() };
    }
}

impl Contents {
    /// A count of events that no window reaches back to.
    fn unknown(&self) -> u64 {
        self.told + WINDOW_EVENTS as u64 + 1
    }

    /// The events after the first `told`, oldest first; `None` if the window does not hold all of them.
    pub fn after(&self, told: u64) -> Option<impl Iterator<Item = &Arc<Event>>> {
        let missing = usize::try_from(self.told - told).ok()?;
        Some(self.window.range(self.window.len().checked_sub(missing)?..))
    }

    fn remember(&mut self, event: Arc<Event>) {
        self.told += 1;
        self.window_bytes += event.size();
        self.window.push_back(event);
        while self.window.len() > WINDOW_EVENTS || self.window_bytes > WINDOW_BYTES {
            let Some(oldest) = self.window.pop_front() else { break };
            self.window_bytes -= oldest.size();
            self.low = oldest.revision;
        }
    }

    /// Drops the changes up to a revision.
    fn forget(&mut self, upto: Revision) {
        while self.window.front().is_some_and(|event| event.revision <= upto) {
            let Some(oldest) = self.window.pop_front() else { break };
            self.window_bytes -= oldest.size();
            self.low = oldest.revision;
        }
    }

    /// Whether the window holds all changes after a revision.
    pub fn remembers(&self, revision: Revision) -> bool {
        revision >= self.low
    }

    /// The changes after a revision, oldest first; `Err` with the oldest revision that watches can resume from.
    pub fn since(&self, revision: Revision) -> Result<impl Iterator<Item = &Arc<Event>>, Revision> {
        if !self.remembers(revision) {
            return Err(self.low);
        }
        let from = self.window.partition_point(|event| event.revision <= revision);
        Ok(self.window.range(from..))
    }

    /// The items below a prefix and after a key, in key order.
    pub fn range<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> impl Iterator<Item = &'a Arc<Item>> + 'a {
        let from = match after {
            Some(key) => Bound::Excluded(key),
            None => Bound::Included(prefix),
        };
        let below = self.items.range::<str, _>((from, Bound::Unbounded));
        below.map(|(_, item)| item).take_while(move |item| item.key.starts_with(prefix))
    }
}

impl Cache {
    /// Lists everything; the returned future keeps the cache up to date and runs until it is dropped.
    pub async fn open(store: Arc<dyn Store>) -> Result<(Arc<Cache>, impl Future<Output = ()> + Send), Status> {
        let in_order: Vec<_> = kinds::stored().map(|kind| Arc::new(ResourceCache::new(kind))).collect();
        let by_kind = in_order.iter().flat_map(with_views).map(|it| (row(it.kind), it.clone())).collect();
        let by_segment = in_order.iter().map(|resource| (segment_of(resource.kind), resource.clone())).collect();
        let (kinds, custom, revision, written) = Default::default();
        let cache = Arc::new(Cache { store, kinds, by_segment, by_kind, in_order, custom, revision, written });
        let from = cache.refill().await?;
        // Fail early if the encryption keys are wrong from the beginning.
        cache.in_order.iter().try_for_each(|resource| resource.read().unopened.none_below(ROOT))?;
        let fed = cache.clone();
        Ok((cache, async move { fed.feed(from).await }))
    }

    /// The resource cache of a stored kind.
    pub fn resource(&self, kind: &'static Kind) -> Arc<ResourceCache> {
        match self.by_kind.get(&row(kind)) {
            // `open` created one for every row of the table.
            Some(resource) => resource.clone(),
            None => self.custom_resource(kind),
        }
    }
    /// The caches of built-in resources.
    pub fn built_in(&self) -> impl Iterator<Item = &Arc<ResourceCache>> {
        self.in_order.iter()
    }
    pub fn resources(&self) -> Vec<Arc<ResourceCache>> {
        let custom = self.custom.read().unwrap_or_else(PoisonError::into_inner);
        self.in_order.iter().flat_map(with_views).chain(custom.values()).cloned().collect()
    }

    /// The number of objects of each stored kind.
    pub fn counts(&self) -> Vec<(&'static Kind, usize)> {
        let stored = self.resources().into_iter().filter(|resource| resource.kind.is_stored());
        stored.map(|resource| (resource.kind, resource.read().items.len())).collect()
    }

    /// Drops the changes up to a revision, which nobody resumes from any more.
    pub fn forget(&self, upto: Revision) {
        self.resources().iter().for_each(|resource| resource.write().forget(upto));
    }

    fn custom_resource(&self, kind: &'static Kind) -> Arc<ResourceCache> {
        let segment = segment_of(kind);
        let mut custom = self.custom.write().unwrap_or_else(PoisonError::into_inner);
        custom.entry(segment).or_insert_with(|| Arc::new(ResourceCache::new(kind))).clone()
    }

    /// Applies a definition, and gives its objects the resource cache that they need. Called before watchers see the change.
    fn define(&self, definition: &Object) {
        let changed = self.kinds.put(definition);
        let kinds = self.kinds.now();
        let Some(stored) = kinds.defined(definition.name()).map(|defined| defined.stored.0).filter(|_| changed) else {
            return;
        };
        let segment = segment_of(stored);
        let mut custom = self.custom.write().unwrap_or_else(PoisonError::into_inner);
        match custom.get(&segment) {
            Some(old) if std::ptr::eq(old.kind, stored) => {}
            Some(old) => {
                // The served form may have changed: watchers reconnect.
                let resource = Arc::new(ResourceCache::again(stored, old));
                custom.insert(segment, resource);
            }
            None => drop(custom.insert(segment, Arc::new(ResourceCache::new(stored)))),
        }
    }
    /// The revision of all resource caches.
    pub fn revision(&self) -> Revision {
        self.revision.now()
    }

    /// How many bytes of objects were written since it was opened.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Waits until the cache shows everything that the store has acknowledged to any client. It always gets there, however busy the
    /// machine is: a client that named no revision never gets "too large resource version".
    pub async fn fresh(&self) -> Result<(), Status> {
        let revision = self.store.revision().await.map_err(store_error)?;
        let late = |now: Revision| {
            Status::timeout(format!(
                "Timeout: the server shows revision {now}, and not yet {revision}, which it has written"
            ))
        };
        self.reach_within(revision, TIMEOUT_WITH_OURS, late).await
    }

    /// Waits until the cache shows a revision that a client named; the error is upstream's.
    pub async fn reach(&self, revision: Revision) -> Result<(), Status> {
        let too_large = |now: Revision| {
            let why = format!("Timeout: Too large resource version: {revision}, current: {now}");
            let mut status = Status::timeout(why);
            // Clients recognize this timeout by it.
            let cause = Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                ..Cause::default()
            };
            status.details.get_or_insert_default().causes.push(cause);
            status
        };
        self.reach_within(revision, TIMEOUT, too_large).await
    }

    async fn reach_within(
        &self,
        revision: Revision,
        patience: Duration,
        late: impl FnOnce(Revision) -> Status,
    ) -> Result<(), Status> {
        if self.revision() >= revision {
            return Ok(());
        }
        match tokio::time::timeout(patience, self.revision.reached(revision)).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let mut status = late(self.revision());
                status.details.get_or_insert_default().retry_after_seconds = Some(1);
                Err(status)
            }
        }
    }

    async fn refill(&self) -> Result<Revision, Status> {
        let page = self.store.list(Range { prefix: ROOT.into(), ..Range::default() }).await.map_err(store_error)?;
        let definitions = page.entries.iter().filter(|entry| entry.key.starts_with(DEFINITIONS));
        for entry in definitions {
            if let Ok(definition) = Object::from_slice(&entry.value) {
                self.define(&definition);
            }
        }
        let mut filled: HashMap<*const ResourceCache, (BTreeMap<Arc<str>, Arc<Item>>, Unopened)> = HashMap::new();
        for entry in page.entries {
            for resource in self.resource_of(&entry.key).iter().flat_map(with_views) {
                let (items, apart) = filled.entry(Arc::as_ptr(resource)).or_default();
                if let Some(why) = encryption::unopened(&entry.value) {
                    apart.insert(entry.key.clone(), entry.mod_revision, why);
                } else if let Some(item) = resource.numbered(entry.key.clone(), entry.value.clone(), entry.mod_revision)
                {
                    items.insert(entry.key.clone(), Arc::new(item));
                }
            }
        }
        for resource in self.resources() {
            let (items, apart) = filled.remove(&Arc::as_ptr(&resource)).unwrap_or_default();
            resource.refill(items, apart, page.revision);
        }
        self.revision.set(page.revision);
        Ok(page.revision)
    }

    async fn feed(&self, mut from: Revision) {
        loop {
            match self.follow(from).await {
                // Too slow for a moment. The store's history has the missed changes: starting over would end all watches, and all
                // watchers would read that history, or list, at the busiest moment.
                Err(podwright_store::Error::Lagged) => {
                    from = self.revision();
                    continue;
                }
                Err(why) => tracing::warn!("restarting the watch cache, which missed changes of the store: {why}"),
                Ok(()) => {}
            }
            from = loop {
                match self.refill().await {
                    Ok(revision) => break revision,
                    Err(why) => tracing::error!("the watch cache failed to read the store: {why}"),
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            };
        }
    }

    async fn follow(&self, from: Revision) -> Result<(), podwright_store::Error> {
        let mut changes = self.store.watch(ROOT, from).await?;
        while let Some(batch) = changes.recv().await {
            let batch = batch?;
            let written =
                batch.changes.iter().filter_map(|change| change.now.as_ref()).map(|entry| entry.value.len() as u64);
            self.written.fetch_add(written.sum(), Ordering::Relaxed);
            for change in &batch.changes {
                if change.key.starts_with(DEFINITIONS) {
                    self.redefine(change);
                }
                if let Some(resource) = self.resource_of(&change.key) {
                    resource.apply_everywhere(change);
                }
            }
            self.revision.set(batch.reached);
        }
        Err(podwright_store::Error::Io("the store ended the watch".into()))
    }

    fn redefine(&self, change: &Change) {
        match change.now.as_ref().map(|entry| Object::from_slice(&entry.value)) {
            Some(Ok(definition)) => self.define(&definition),
            Some(Err(why)) => tracing::error!("failed to read a stored CustomResourceDefinition: {why}"),
            None => {
                let name = change.key.trim_start_matches(DEFINITIONS);
                let defined = self.kinds.now().defined(name).cloned();
                self.kinds.remove(name);
                // Its watches end: there is nothing more to send.
                if let Some(defined) = defined {
                    self.custom_resource(defined.stored.0).write().watchers = Watchers::default();
                }
            }
        }
    }

    fn resource_of(&self, key: &str) -> Option<Arc<ResourceCache>> {
        let (segment, _) = key.strip_prefix(ROOT)?.split_once('/')?;
        let custom = || self.custom.read().unwrap_or_else(PoisonError::into_inner).get(segment).cloned();
        self.by_segment.get(segment).cloned().or_else(custom)
    }
}

/// A resource, and those whose objects are derived from its own.
fn with_views(resource: &Arc<ResourceCache>) -> impl Iterator<Item = &Arc<ResourceCache>> {
    iter::once(resource).chain(&resource.views)
}

fn ways_of(item: Option<&Arc<Item>>) -> Option<&Ways> {
    item.and_then(|item| item.ways.as_deref())
}

fn burden_of(item: Option<&Arc<Item>>) -> usize {
    item.map_or(0, |item| item.burden)
}

/// A kind's segment of its keys: `pods`, `deployments.apps`.
fn segment_of(kind: &Kind) -> String {
    kind.prefix().trim_start_matches(ROOT).trim_end_matches('/').to_owned()
}

/// A row of the table by its address; rows are static.
pub(super) fn row(kind: &'static Kind) -> usize {
    std::ptr::from_ref(kind) as usize
}
