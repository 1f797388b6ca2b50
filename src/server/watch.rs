//! The watch verb: selections, watchers found by what they select, and where a watch starts.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;

use podwright_api::request::EventKind;
use podwright_api::selector::{FieldSelector, LabelSelector};
use podwright_api::{Kind, Status, User, WatchEvent};
use podwright_store::{Batch, Error, PAGE_BYTES, Revision};

use super::answers::{self, Answers as Rooms};
use super::authorize::MASTERS;
use super::cache::{Event, Item, ResourceCache};
use super::large::of_lookups;
use super::resolved_request::ResolvedRequest;
use super::{Server, Watch};

mod first;

use first::{First, Older};

/// How many events a watcher may be behind before it is cut off.
pub(super) const BACKLOG: usize = 8 * 1024;
/// The same in bytes; a single event may have more. The window of recent changes, from which it resumes, holds twice as many.
const BACKLOG_BYTES: usize = 16 << 20;

/// Who would have to be told so many older changes fares better with a new list.
const MOST_OLDER: usize = 16 * 1024;
const MOST_OLDER_BYTES: usize = 64 << 20;

/// So many bytes a watcher may be behind, and be told to begin with, on nobody's account: what others have too, most of the time.
const FREE: usize = 256 << 10;

/// From so many look-ups on the answer of a selection that several watchers share is kept for the next of them.
const SHARED: usize = 8;

/// What a list or a watch is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Selection {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    pub fn of(call: &ResolvedRequest) -> Result<Selection, Status> {
        let labels = call.options.label_selector.as_deref().map(LabelSelector::parse).transpose()?.unwrap_or_default();
        let fields = call.options.field_selector.as_deref().map(FieldSelector::parse).transpose()?.unwrap_or_default();
        let fields = call.stored_fields(fields)?;
        Ok(Selection { namespace: call.namespace.clone(), name: call.name.clone(), labels, fields })
    }

    pub fn matches(&self, kind: &Kind, item: &Item) -> bool {
        self.namespace.as_ref().is_none_or(|ns| ns == item.namespace(kind))
            && self.name.as_ref().is_none_or(|name| name == item.name())
            && self.labels.matches(|label| item.label(label))
            && self.fields.matches(|path| item.field(kind, path))
    }

    /// Whether it leaves out anything but by namespace.
    pub fn is_filtered(&self) -> bool {
        self.name.is_some() || !self.labels.0.is_empty() || !self.fields.0.is_empty()
    }

    /// How many look-ups it takes at most to match one object.
    pub fn lookups(&self) -> usize {
        self.labels.lookups() + self.fields.0.len()
    }

    /// The narrowest bucket that gets all its events.
    fn bucket(&self) -> Bucket {
        if let Some(name) = &self.name {
            return Bucket::Field("metadata.name".into(), name.as_str().into());
        }
        let mut equals = self.fields.0.iter().filter(|(_, equal, _)| *equal);
        if let Some((path, _, value)) = equals.next() {
            return Bucket::Field(path.as_str().into(), value.as_str().into());
        }
        match &self.namespace {
            Some(namespace) => Bucket::Field("metadata.namespace".into(), namespace.as_str().into()),
            None => Bucket::All,
        }
    }
}

/// Which events can concern a watcher: those of objects with this value in this field, before or after.
enum Bucket {
    All,
    Field(Box<str>, Box<str>),
}

/// A kind's watchers, in buckets, so that an event costs nothing for those it cannot concern.
#[derive(Default)]
pub(super) struct Watchers {
    all: Vec<Watcher>,
    by_field: BTreeMap<Box<str>, HashMap<Box<str>, Vec<Watcher>>>,
    /// The selections of all of them, each once.
    selections: HashSet<Arc<Selection>>,
    /// How many of these there may be before those are looked for that nobody has any more.
    most: usize,
    last: u64,
}

/// What an event is to those selections that several watchers share.
type Answers = HashMap<*const Selection, Option<WatchEvent>>;

struct Watcher {
    id: u64,
    selection: Arc<Selection>,
    bookmarks: bool,
    events: Sender<WatchEvent>,
    behind: Mutex<Behind>,
    account: Account,
    _alive: oneshot::Sender<()>,
}

/// Whose what a watcher is behind is, where it is much.
type Account = Option<(Arc<Rooms>, User)>;

impl Watcher {
    /// False when it is gone or too slow.
    fn tell(&self, resource: &ResourceCache, event: &Event, answers: &mut Answers) -> bool {
        let told = || event.told(resource, &self.selection);
        // The set of all selections has one too.
        let shared = Arc::strong_count(&self.selection) > 2 && self.selection.lookups() >= SHARED;
        let told = match shared {
            true => answers.entry(Arc::as_ptr(&self.selection)).or_insert_with(told).clone(),
            false => told(),
        };
        told.is_none_or(|told| self.send(told))
    }

    fn send(&self, mut event: WatchEvent) -> bool {
        let mut behind = self.behind.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !behind.take(self.events.max_capacity() - self.events.capacity(), event.object.len()) {
            return false;
        }
        if let Some((rooms, user)) = self.account.as_ref().filter(|_| behind.bytes > FREE) {
            let Some(object) = rooms.charged(user, event.object) else { return false };
            event.object = object;
        }
        self.events.try_send(event).is_ok()
    }
}

/// The sizes of what a watcher has not read yet, oldest first.
#[derive(Default)]
struct Behind {
    /// Events that it got to begin with: how many those are is no fault of its reader.
    first: usize,
    sizes: VecDeque<usize>,
    bytes: usize,
}

impl Behind {
    /// Notes one more event behind the `unread` ones; false: that is too much.
    fn take(&mut self, unread: usize, size: usize) -> bool {
        let gone = (self.first + self.sizes.len()).saturating_sub(unread);
        let of_first = gone.min(self.first);
        self.first -= of_first;
        self.bytes -= self.sizes.drain(..gone - of_first).sum::<usize>();
        if self.bytes > 0 && self.bytes + size > BACKLOG_BYTES {
            return false;
        }
        self.sizes.push_back(size);
        self.bytes += size;
        true
    }
}

impl Watchers {
    /// Hands an event to whom it concerns. Who cannot take it is dropped: its stream ends, and the client resumes.
    pub fn tell(&mut self, resource: &ResourceCache, event: &Event) {
        let mut answers = Answers::new();
        self.all.retain(|watcher| watcher.tell(resource, event, &mut answers));
        for (path, buckets) in &mut self.by_field {
            let old = event.old.as_ref().map(|item| item.field(resource.kind, path));
            let new = event.new.as_ref().map(|item| item.field(resource.kind, path));
            for value in [old, new.filter(|_| new != old)].into_iter().flatten() {
                if let Some(bucket) = buckets.get_mut(value) {
                    bucket.retain(|watcher| watcher.tell(resource, event, &mut answers));
                }
            }
        }
    }

    /// Adds a watcher, which has `first` events to read already: its id, and what resolves when it has been dropped.
    fn add(
        &mut self,
        selection: Arc<Selection>,
        bookmarks: bool,
        events: Sender<WatchEvent>,
        first: usize,
        account: Account,
    ) -> (u64, oneshot::Receiver<()>) {
        self.last += 1;
        let selection = self.shared(selection);
        let (alive, dropped) = oneshot::channel();
        let behind = Mutex::new(Behind { first, ..Behind::default() });
        let bucket = match selection.bucket() {
            Bucket::All => &mut self.all,
            Bucket::Field(path, value) => self.by_field.entry(path).or_default().entry(value).or_default(),
        };
        bucket.push(Watcher { id: self.last, selection, bookmarks, events, behind, account, _alive: alive });
        (self.last, dropped)
    }

    /// The same selection as others have it.
    fn shared(&mut self, selection: Arc<Selection>) -> Arc<Selection> {
        if let Some(known) = self.selections.get(&selection) {
            return known.clone();
        }
        if self.selections.len() >= self.most {
            self.selections.retain(|selection| Arc::strong_count(selection) > 1);
            self.most = 2 * self.selections.len() + 64;
        }
        self.selections.insert(selection.clone());
        selection
    }

    fn remove(&mut self, id: u64) {
        self.all.retain(|watcher| watcher.id != id);
        self.by_field.retain(|_, buckets| {
            buckets.retain(|_, bucket| {
                bucket.retain(|watcher| watcher.id != id);
                !bucket.is_empty()
            });
            !buckets.is_empty()
        });
    }

    /// Tells those who want to know how far the kind is.
    pub fn bookmark(&self, resource: &ResourceCache, revision: Revision) {
        let bookmark = bookmark(resource.kind, revision, false);
        let in_buckets = self.by_field.values().flat_map(HashMap::values).flatten();
        let mut all: Vec<&Watcher> = self.all.iter().chain(in_buckets).filter(|w| w.bookmarks).collect();
        // Not in the order of a hash: who is told first acts first.
        all.sort_unstable_by_key(|watcher| watcher.id);
        for watcher in all {
            // A watcher without room is busy with news and needs none.
            if watcher.events.capacity() > 0 {
                watcher.send(bookmark.clone());
            }
        }
    }
}

fn bookmark(kind: &Kind, revision: Revision, initial_events_end: bool) -> WatchEvent {
    let mut object = json!({
        "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"resourceVersion": revision.to_string()},
    });
    if initial_events_end {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    WatchEvent { kind: EventKind::Bookmark, object: Bytes::from(object.to_string()) }
}

/// Where a watch starts.
enum Start {
    /// With an ADDED for each object there is; then a bookmark that says so, where it is wanted.
    Present { bookmark: bool },
    /// With the changes after this revision.
    After(Revision),
}

impl Server {
    pub(super) async fn open_watch(&self, call: &ResolvedRequest) -> Result<Watch, Status> {
        let selection = Arc::new(Selection::of(call)?);
        let watched = self.limiters.watches.enter(&call.user, selection.lookups())?;
        let asked = super::list::revision_option(call)?;
        let start = match asked {
            _ if call.options.send_initial_events => Start::Present { bookmark: call.options.allow_watch_bookmarks },
            None | Some(0) => Start::Present { bookmark: false },
            Some(revision) => Start::After(revision),
        };
        match asked {
            None => self.cache.fresh().await?,
            Some(revision) => self.cache.reach(revision).await?,
        }

        let resource = self.cache.resource(call.kind);
        resource.read().unopened.none_below(&super::list::prefix(call.kind, &selection))?;
        let (start, older) = match start {
            Start::After(revision) => {
                let (revision, older) = self.catch_up(call, &resource, &selection, revision).await?;
                (Start::After(revision), older)
            }
            present => (present, None),
        };
        let (first, told) = self.first_events(call, &resource, &selection, start).await?;
        let (sender, watch, (id, dropped), later) = {
            let mut state = resource.write();
            // What has happened while those were looked at.
            let Some(missed) = state.after(told) else {
                return Err(Status::expired("too old resource version: too much has changed meanwhile"));
            };
            let missed: Vec<_> = missed.filter_map(|event| event.told(&resource, &selection)).collect();
            let (first, later) = match first {
                First::Few(events) => (events, None),
                First::Many(later) => (Vec::new(), Some(later)),
            };
            let given = first.len() + missed.len();
            let (sender, watch) = mpsc::channel(given + BACKLOG);
            for event in first.into_iter().chain(missed) {
                // The channel has room for all of them.
                let _ = sender.try_send(event);
            }
            let account = Some((self.answers.clone(), call.user.clone())).filter(|_| !call.user.is_in(MASTERS));
            let bookmarks = call.options.allow_watch_bookmarks;
            let added = state.watchers.add(selection, bookmarks, sender.clone(), given, account);
            (sender, watch, added, later)
        };
        let timeout = call.options.timeout_seconds.map(Duration::from_secs);
        let withdrawn = self.withdrawn(vec![call.attributes().keep()]);
        let end = end_of_watch(Arc::downgrade(&resource), id, sender, dropped, timeout, withdrawn);
        tokio::spawn(async move {
            end.await;
            drop(watched);
        });
        let watch = match later {
            Some(later) => later.before(watch),
            None => watch,
        };
        Ok(match older {
            Some(older) => older.before(watch),
            None => watch,
        })
    }

    /// Takes the changes after a revision out of the store, as far as the window no longer holds them (or never did: the
    /// server was restarted). The revision from which the window goes on.
    async fn catch_up(
        &self,
        call: &ResolvedRequest,
        resource: &ResourceCache,
        selection: &Selection,
        mut after: Revision,
    ) -> Result<(Revision, Option<Older>), Status> {
        let mut older = None;
        let too_old = |after: Revision, oldest: Revision| {
            Status::expired(format!("too old resource version: {after} ({oldest})"))
        };
        while !resource.read().remembers(after) {
            let older = match &mut older {
                Some(older) => older,
                None => {
                    let room = self.answers.try_enter(&call.user, 0).ok_or_else(answers::full)?;
                    older.insert(Older::new(room))
                }
            };
            // What a piece will have is known when it lies in memory: as much as one has at most.
            let place = self.large.enter_part(&call.user, PAGE_BYTES).await?;
            let Batch { changes, reached } = match self.store.history(&resource.kind.prefix(), after).await {
                Ok(piece) => piece,
                Err(Error::Compacted { oldest, .. }) => return Err(too_old(after, oldest)),
                Err(why) => return Err(super::store_error(why)),
            };
            let size = of_lookups(changes.len().saturating_mul(2 * selection.lookups()));
            let found = async {
                changes.iter().filter_map(|change| resource.event(change).told(resource, selection)).collect::<Vec<_>>()
            };
            let found = self.large.run(&call.user, size, found).await;
            drop(place);
            if !older.take(&call.user, found) {
                return Err(answers::full());
            }
            if older.len() > MOST_OLDER || older.bytes() > MOST_OLDER_BYTES {
                return Err(too_old(after, self.cache.revision()));
            }
            // The window takes over from there: so it must have come that far.
            self.cache.reach(reached).await?;
            after = reached;
        }
        Ok((after, older))
    }

    /// What a watcher is told first, and how many events of its resource cache that comprises.
    async fn first_events(
        &self,
        call: &ResolvedRequest,
        resource: &ResourceCache,
        selection: &Selection,
        start: Start,
    ) -> Result<(First, u64), Status> {
        match start {
            Start::After(revision) => {
                let (events, told) = {
                    let state = resource.read();
                    match state.since(revision) {
                        Ok(events) => (events.cloned().collect::<Vec<_>>(), state.told),
                        Err(oldest) => {
                            return Err(Status::expired(format!("too old resource version: {revision} ({oldest})")));
                        }
                    }
                };
                let size = of_lookups(events.len().saturating_mul(2 * selection.lookups()));
                let _place = self.large.enter_part(&call.user, size).await?;
                let found = async { events.iter().filter_map(|event| event.told(resource, selection)).collect() };
                let found: Vec<WatchEvent> = self.large.run(&call.user, size, found).await;
                let found = self.on_account(&call.user, found).ok_or_else(answers::full)?;
                Ok((First::Few(found), told))
            }
            Start::Present { bookmark: wanted } => {
                let now = self.cache.revision();
                let prefix = super::list::prefix(resource.kind, selection);
                let (items, told, revision) = {
                    let state = resource.read();
                    (state.range(&prefix, None).cloned().collect(), state.told, state.revision)
                };
                let present = self.matching(call, resource.kind, selection, items, usize::MAX).await?;
                let end = wanted.then(|| bookmark(resource.kind, now.max(revision), true));
                Ok((First::present(&call.user, present, end), told))
            }
        }
    }

    /// What a watcher is told of the window: beyond a little it is on its user's account. `None`: that has no room for it.
    fn on_account(&self, user: &User, events: Vec<WatchEvent>) -> Option<Vec<WatchEvent>> {
        let mut bytes = 0;
        let charged = |event: WatchEvent| {
            bytes += event.object.len();
            match bytes > FREE {
                true => Some(WatchEvent { object: self.answers.charged(user, event.object)?, ..event }),
                false => Some(event),
            }
        };
        events.into_iter().map(charged).collect()
    }

    /// Tells idle watchers how far everything is.
    pub(super) fn send_bookmarks(&self) {
        // Everything up to this revision has been handed to the watchers before their resource cache's lock is taken below.
        let revision = self.cache.revision();
        for resource in self.cache.resources() {
            resource.read().watchers.bookmark(&resource, revision);
        }
    }
}

/// Takes a watcher off its resource cache when its reader is gone, its time is up or its right withdrawn; holds its stream open no
/// longer than the resource cache does.
async fn end_of_watch(
    resource: Weak<ResourceCache>,
    id: u64,
    events: Sender<WatchEvent>,
    dropped: oneshot::Receiver<()>,
    timeout: Option<Duration>,
    withdrawn: impl Future<Output = ()>,
) {
    let up = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        _ = dropped => return,
        () = events.closed() => {}
        () = up => {}
        () = withdrawn => {}
    }
    if let Some(resource) = resource.upgrade() {
        resource.write().watchers.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_selections_are_one_and_are_forgotten_with_their_watchers() {
        let selection = |text: &str| {
            let labels = LabelSelector::parse(text).unwrap();
            Arc::new(Selection { labels, ..Selection::default() })
        };
        let mut watchers = Watchers::default();
        let add =
            |watchers: &mut Watchers, text: &str| watchers.add(selection(text), false, mpsc::channel(1).0, 0, None);
        let kept: Vec<_> = (0..100).map(|_| add(&mut watchers, "a,b,c")).collect();
        assert_eq!(watchers.selections.len(), 1);
        let first = &watchers.all[0].selection;
        assert!(watchers.all.iter().all(|watcher| Arc::ptr_eq(&watcher.selection, first)));
        for i in 0..1000 {
            let (id, _dropped) = add(&mut watchers, &format!("n{i}"));
            watchers.remove(id);
        }
        assert!(watchers.selections.len() < 100, "{} are kept", watchers.selections.len());
        assert_eq!(kept.len(), watchers.all.len());
    }
}
