//! The watch verb: where a watch starts and ends.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;

use podwright_api::{Status, User, WatchEvent};
use podwright_store::{Batch, Error, PAGE_BYTES, Revision};

use super::answers;
use super::authorize::attributes::MASTERS;
use super::cache::ResourceCache;
use super::large::of_lookups;
use super::resolved_request::ResolvedRequest;
use super::{Server, Watch};

mod first;
pub(super) mod selection;
pub(super) mod watchers;

use first::{First, Older};
use selection::Selection;
use watchers::{BACKLOG, FREE, bookmark};

/// A watcher with more older changes than this should list again.
const MOST_OLDER: usize = 16 * 1024;
const MOST_OLDER_BYTES: usize = 64 << 20;

/// Where a watch starts.
enum Start {
    /// With an ADDED event for each existing object, then a bookmark if requested.
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
            // What has happened meanwhile.
            let Some(missed) = state.after(told) else {
                return Err(Status::expired("too old resource version: too much has changed meanwhile"));
            };
            let missed: Vec<_> =
                missed.filter_map(|event| selection.shows(resource.kind, &resource.head, event)).collect();
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

    /// Reads the changes after a revision from the store, as far as the window does not hold them (as after a restart). Returns the
    /// revision from which the window continues.
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
            // The size of a piece is unknown until it is in memory: assume the maximum.
            let place = self.large.enter_part(&call.user, PAGE_BYTES).await?;
            let Batch { changes, reached } = match self.store.history(&resource.kind.prefix(), after).await {
                Ok(piece) => piece,
                Err(Error::Compacted { oldest, .. }) => return Err(too_old(after, oldest)),
                Err(why) => return Err(super::store_error(why)),
            };
            let size = of_lookups(changes.len().saturating_mul(2 * selection.lookups()));
            let found = async {
                changes
                    .iter()
                    .filter_map(|change| selection.shows(resource.kind, &resource.head, &resource.event(change)?))
                    .collect::<Vec<_>>()
            };
            let found = self.large.run(&call.user, size, found).await;
            drop(place);
            if !older.take(&call.user, found) {
                return Err(answers::full());
            }
            if older.len() > MOST_OLDER || older.bytes() > MOST_OLDER_BYTES {
                return Err(too_old(after, self.cache.revision()));
            }
            // The window continues from there, so it must have reached it.
            self.cache.reach(reached).await?;
            after = reached;
        }
        Ok((after, older))
    }

    /// The first events of a watcher, and how many events of the resource cache they cover.
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
                let found = async {
                    events.iter().filter_map(|event| selection.shows(resource.kind, &resource.head, event)).collect()
                };
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

    /// Charges a watcher's events from the window to its user, beyond a small amount. `None`: there is no room.
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

    /// Sends the current revision to idle watchers.
    pub(super) fn send_bookmarks(&self) {
        // Everything up to this revision was passed to the watchers before their resource cache is locked below.
        let revision = self.cache.revision();
        for resource in self.cache.resources() {
            resource.read().watchers.bookmark(resource.kind, revision);
        }
    }
}

/// Removes a watcher from its resource cache when its reader is gone, its time is up or its authorization ends; keeps its stream
/// open no longer than the resource cache does.
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
