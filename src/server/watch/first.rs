//! The first events of a watch: existing objects, or changes from the store's history.

use std::sync::{Arc, Weak};

use tokio::sync::mpsc::{self, Sender};

use super::watchers::FREE;
use crate::Watch;
use crate::answers::Room;
use crate::authorize::attributes::MASTERS;
use crate::cache::item::Item;
use podwright_api::request::EventKind;
use podwright_api::{Status, User, WatchEvent};

/// Historical events for a watcher, which are not shared with the cache: they are charged to its user until taken.
pub(super) struct Older {
    events: Vec<WatchEvent>,
    bytes: usize,
    room: Room,
}

impl Older {
    pub fn new(room: Room) -> Older {
        Older { events: Vec::new(), bytes: 0, room }
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// False: its user has no room for them.
    pub fn take(&mut self, user: &User, events: Vec<WatchEvent>) -> bool {
        let bytes = events.iter().map(|event| event.object.len()).sum();
        self.bytes += bytes;
        self.events.extend(events);
        self.room.grow(user, bytes)
    }

    /// Sends these one by one, and then the watch's events.
    pub fn before(self, watch: Watch) -> Watch {
        let (sender, told) = mpsc::channel(1);
        tokio::spawn(async move {
            let Older { events, bytes: mut left, mut room } = self;
            for event in events {
                left -= event.object.len();
                if sender.send(event).await.is_err() {
                    return;
                }
                room.shrink(left);
            }
            drop(room);
            go_on(watch, sender).await;
        });
        told
    }
}

/// What exists when a watch starts, or the window's changes.
pub(super) enum First {
    Few(Vec<WatchEvent>),
    Many(Present),
}

/// Objects shared with the cache, as long as they do not change. An unread watch does not keep old states alive.
pub(super) struct Present {
    items: Vec<Weak<Item>>,
    end: Option<WatchEvent>,
}

impl First {
    /// An ADDED event for each object, then a final event.
    pub fn present(user: &User, items: Vec<Arc<Item>>, end: Option<WatchEvent>) -> First {
        let bytes: usize = items.iter().map(|item| item.bytes.len()).sum();
        if bytes <= FREE || user.is_in(MASTERS) {
            return First::Few(items.iter().map(|item| added(item)).chain(end).collect());
        }
        First::Many(Present { items: items.iter().map(Arc::downgrade).collect(), end })
    }
}

fn added(item: &Item) -> WatchEvent {
    WatchEvent { kind: EventKind::Added, object: item.bytes.clone() }
}

impl Present {
    /// Sends these one by one, and then the watch's events. If one has changed before its turn, and its old state is gone, the
    /// watch ends: its client lists again, as if it had fallen too far behind.
    pub fn before(self, watch: Watch) -> Watch {
        let (sender, told) = mpsc::channel(1);
        tokio::spawn(async move {
            for item in self.items {
                let Ok(room) = sender.reserve().await else { return };
                let Some(item) = item.upgrade() else { return room.send(too_old()) };
                room.send(added(&item));
            }
            if let Some(end) = self.end
                && sender.send(end).await.is_err()
            {
                return;
            }
            go_on(watch, sender).await;
        });
        told
    }
}

fn too_old() -> WatchEvent {
    let why = Status::expired("too old resource version: too much has changed before it was read");
    WatchEvent { kind: EventKind::Error, object: serde_json::to_vec(&why).unwrap_or_default().into() }
}

async fn go_on(mut watch: Watch, sender: Sender<WatchEvent>) {
    loop {
        let event = tokio::select! {
            event = watch.recv() => event,
            () = sender.closed() => return,
        };
        let Some(event) = event else { return };
        if sender.send(event).await.is_err() {
            return;
        }
    }
}
