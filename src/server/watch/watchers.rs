//! A kind's watchers, found by what they select.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use podwright_api::request::EventKind;
use podwright_api::{Kind, User, WatchEvent};
use podwright_store::Revision;

use super::selection::{Bucket, Selection};
use crate::answers::Answers as Rooms;
use crate::cache::item::Event;
use crate::encode::Head;

/// How many events a watcher may lag before it is cut off.
pub(crate) const BACKLOG: usize = 8 * 1024;
/// The same in bytes; a single event may be larger. The window of recent changes, from which it resumes, holds twice as many.
const BACKLOG_BYTES: usize = 16 << 20;
/// How many bytes of backlog and first events are free: these are usually shared with others.
pub(super) const FREE: usize = 256 << 10;
/// From this many lookups on, a shared selection's result for an event is cached.
const SHARED: usize = 8;

/// A kind's watchers in buckets, so that an event costs nothing for those that it cannot concern.
#[derive(Default)]
pub(crate) struct Watchers {
    all: Vec<Watcher>,
    by_field: BTreeMap<Box<str>, HashMap<Box<str>, Vec<Watcher>>>,
    /// All distinct selections.
    selections: HashSet<Arc<Selection>>,
    /// How many of these there may be before unused ones are removed.
    most: usize,
    last: u64,
}

/// The results of an event for shared selections.
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

/// The account for a large backlog.
pub(super) type Account = Option<(Arc<Rooms>, User)>;

impl Watcher {
    /// False if it is gone or too slow.
    fn tell(&self, (kind, head): (&Kind, &Head), event: &Event, answers: &mut Answers) -> bool {
        let told = || self.selection.shows(kind, head, event);
        // The set of all selections holds a reference, too.
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

/// The sizes of unread events, oldest first.
#[derive(Default)]
struct Behind {
    /// Initial events, whose number is not the reader's fault.
    first: usize,
    sizes: VecDeque<usize>,
    bytes: usize,
}

impl Behind {
    /// Adds an event after the `unread` ones; false: that is too much.
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
    /// Sends an event to the watchers that it concerns. One that cannot take it is dropped: its stream ends, and the client
    /// resumes.
    pub fn tell(&mut self, kind: &Kind, head: &Head, event: &Event) {
        let mut answers = Answers::new();
        self.all.retain(|watcher| watcher.tell((kind, head), event, &mut answers));
        for (path, buckets) in &mut self.by_field {
            let old = event.old.as_ref().map(|item| item.field(kind, path));
            let new = event.new.as_ref().map(|item| item.field(kind, path));
            for value in [old, new.filter(|_| new != old)].into_iter().flatten() {
                if let Some(bucket) = buckets.get_mut(value) {
                    bucket.retain(|watcher| watcher.tell((kind, head), event, &mut answers));
                }
            }
        }
    }

    /// Adds a watcher with `first` unread initial events: returns its id, and a future that resolves when it was dropped.
    pub fn add(
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

    /// The shared copy of an equal selection.
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

    pub fn remove(&mut self, id: u64) {
        self.all.retain(|watcher| watcher.id != id);
        self.by_field.retain(|_, buckets| {
            buckets.retain(|_, bucket| {
                bucket.retain(|watcher| watcher.id != id);
                !bucket.is_empty()
            });
            !buckets.is_empty()
        });
    }

    /// Sends bookmarks to watchers that allow them.
    pub fn bookmark(&self, kind: &Kind, revision: Revision) {
        let bookmark = bookmark(kind, revision, false);
        let in_buckets = self.by_field.values().flat_map(HashMap::values).flatten();
        let mut all: Vec<&Watcher> = self.all.iter().chain(in_buckets).filter(|w| w.bookmarks).collect();
        // Not in hash order: who is notified first acts first.
        all.sort_unstable_by_key(|watcher| watcher.id);
        for watcher in all {
            // A watcher without room is busy with events and needs none.
            if watcher.events.capacity() > 0 {
                watcher.send(bookmark.clone());
            }
        }
    }
}

pub(super) fn bookmark(kind: &Kind, revision: Revision, initial_events_end: bool) -> WatchEvent {
    let mut object = json!({
        "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"resourceVersion": revision.to_string()},
    });
    if initial_events_end {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    WatchEvent { kind: EventKind::Bookmark, object: Bytes::from(object.to_string()) }
}

#[cfg(test)]
mod tests {
    use podwright_api::selector::LabelSelector;
    use tokio::sync::mpsc;

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
