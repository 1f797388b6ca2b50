//! Follows one kind in the watch cache: what changed since the last look.

use std::sync::Arc;

use crate::cache::{ResourceCache, item::Item};
use podwright_store::Revision;

/// An event of a kind.
pub(super) enum ObjectEvent<'a> {
    /// Too much has happened: everything known is void, and all existing objects follow.
    Restart,
    Put(&'a Item),
    Gone(&'a Item),
}

/// A position in a kind's changes.
pub(super) struct Follower {
    resource: Arc<ResourceCache>,
    seen: Option<Revision>,
}

impl Follower {
    pub fn new(resource: &Arc<ResourceCache>) -> Follower {
        Follower { resource: resource.clone(), seen: None }
    }

    pub fn is_behind(&self) -> bool {
        self.seen != Some(self.resource.read().revision)
    }

    /// Reports what is new, oldest first.
    pub fn catch_up(&mut self, mut tell: impl FnMut(ObjectEvent<'_>)) {
        let state = self.resource.read();
        let now = state.revision;
        let seen = self.seen.replace(now);
        if seen == Some(now) {
            return;
        }
        let events = seen.and_then(|seen| Some(state.since(seen).ok()?.cloned().collect::<Vec<_>>()));
        let Some(events) = events else {
            let items: Vec<_> = state.items.values().cloned().collect();
            drop(state);
            tell(ObjectEvent::Restart);
            return items.iter().for_each(|item| tell(ObjectEvent::Put(item)));
        };
        drop(state);
        for event in events {
            match (&event.new, &event.old) {
                (Some(new), _) => tell(ObjectEvent::Put(new)),
                (None, Some(old)) => tell(ObjectEvent::Gone(old)),
                (None, None) => {}
            }
        }
    }
}
