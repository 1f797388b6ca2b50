//! The loop behind an informer of any kind: list, watch from there, list again when the watch is too old.

use std::{sync::Weak, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Client;
use podwright_api::{Request, Status, request::EventKind};

/// The copy that a reflector updates. Its methods do nothing once it is no longer used.
pub(super) trait LocalCopy: Send + Sync {
    /// Its revision; `None`: it is no longer used.
    fn revision(&self) -> Option<String>;
    /// All existing objects, at a revision.
    fn replace(&self, objects: &[Box<RawValue>], revision: String) -> Result<(), Status>;
    /// Nothing has changed up to a revision.
    fn reached(&self, revision: String);
    /// An object's current state, or its last one when it was deleted.
    fn changed(&self, kind: EventKind, object: &[u8]) -> Result<(), Status>;
}

/// The fields of every object.
#[derive(Deserialize)]
pub(super) struct Named {
    metadata: Name,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Name {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

impl Named {
    pub fn read(object: &[u8]) -> Result<Name, Status> {
        Ok(serde_json::from_slice::<Named>(object).map_err(Status::internal)?.metadata)
    }
}

pub(super) struct Reflector {
    pub client: Client,
    pub request: Request,
    pub copy: Weak<dyn LocalCopy>,
}

/// The delay after a failure, at first and at most.
const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(5);

/// When it last listed, and the delay before the next list: otherwise a server whose watches reject revisions from its own lists
/// would be listed in a tight loop.
#[derive(Default)]
struct Relists {
    last: Option<Instant>,
    wait: Duration,
}

impl Relists {
    /// Before the next list; `None` if the last one was useful for a while.
    fn pause(&mut self) -> Duration {
        self.wait = match self.last {
            Some(last) if last.elapsed() < MOST => (self.wait * 2).clamp(FIRST, MOST),
            _ => Duration::ZERO,
        };
        self.wait
    }
}

/// How a watch ended.
enum End {
    /// Resume from the newest revision seen.
    Resume,
    /// The same, but it ended at once: resuming must wait, for a server that ends watches immediately.
    Brief { silent: bool },
    /// The missed changes are no longer available: list again.
    Relist,
}

impl Reflector {
    /// Ends when the copy is no longer used.
    pub async fn run(self) {
        const BRIEF: Duration = Duration::from_secs(1);
        let mut wait = FIRST;
        let mut listed = false;
        let mut relists = Relists::default();
        loop {
            let began = Instant::now();
            let outcome = match listed {
                true => match self.watch().await {
                    Ok((End::Resume, events)) if began.elapsed() < BRIEF => Ok(End::Brief { silent: events == 0 }),
                    other => other.map(|(end, _)| end),
                },
                false => {
                    tokio::time::sleep(relists.pause()).await;
                    let list = self.list().await.map(|()| End::Resume);
                    // A failed one is delayed as a failure.
                    relists.last = if list.is_ok() { Some(Instant::now()) } else { relists.last };
                    list
                }
            };
            if self.copy.upgrade().and_then(|copy| copy.revision()).is_none() {
                return;
            }
            match outcome {
                Ok(End::Resume) => {
                    listed = true;
                    wait = FIRST;
                }
                Ok(End::Brief { silent }) => {
                    wait = if silent { (wait * 2).min(BRIEF) } else { FIRST };
                    tokio::time::sleep(wait).await;
                }
                Ok(End::Relist) => listed = false,
                // This does not count as a failure: the delay depends on the time of the last list.
                Err(status) if listed && status.is_gone() => listed = false,
                Err(status) => {
                    tracing::debug!(resource = self.request.resource, %status, "list or watch failed");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(MOST);
                }
            }
        }
    }

    async fn list(&self) -> Result<(), Status> {
        let list = self.client.collection::<Box<RawValue>>(self.request.clone()).await?;
        self.copy.upgrade().map_or(Ok(()), |copy| copy.replace(&list.items, list.resource_version))
    }

    /// How it ended, and after how many events.
    async fn watch(&self) -> Result<(End, u64), Status> {
        let mut request = self.request.clone();
        request.options.allow_watch_bookmarks = true;
        let Some(from) = self.copy.upgrade().and_then(|copy| copy.revision()) else { return Ok((End::Resume, 0)) };
        request.options.resource_version = Some(from);
        let mut told = 0;
        let mut events = self.client.watch(request).await?;
        while let Some(event) = events.recv().await {
            let Some(copy) = self.copy.upgrade() else { return Ok((End::Resume, told)) };
            told += 1;
            match event.kind {
                EventKind::Error => {
                    let status: Status = serde_json::from_slice(&event.object).map_err(Status::internal)?;
                    return if status.is_gone() { Ok((End::Relist, told)) } else { Err(status) };
                }
                EventKind::Bookmark => copy.reached(Named::read(&event.object)?.resource_version),
                kind => copy.changed(kind, &event.object)?,
            }
        }
        Ok((End::Resume, told))
    }
}
