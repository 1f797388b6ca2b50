//! What controllers write: each one's declaration, and what the informers must show of a write before the next plan.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{MetadataInformers, Row};
use podwright_api::{Object, Request, Verb};
use podwright_client::{Followed, Informers, Key};

/// How long to wait for metadata informers: some kinds cannot be listed, or were removed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a controller's plans write.
#[derive(Clone, Copy, Debug)]
pub enum Writes {
    /// Objects of these resources. Each has an informer: the next plan sees the last one's writes.
    Of(&'static [&'static str]),
    /// Objects of any kind. Those without an informer are not waited for.
    Any,
    /// Objects of any kind, of which its plans see only the metadata: these are waited for. (Deletions are not: the server checks
    /// whether the object has changed.)
    AnySeenByMetadata,
}

/// A controller that would plan again without seeing its own writes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("controller {controller:?} writes {resource:?}, which no shared informer follows")]
pub struct Unfollowed {
    pub controller: &'static str,
    pub resource: &'static str,
}

impl Writes {
    pub(super) fn include(&self, resource: &str) -> bool {
        match self {
            Writes::Of(resources) => resources.contains(&resource),
            Writes::Any | Writes::AnySeenByMetadata => true,
        }
    }
}

/// Fails for the first controller that writes a resource without an informer.
pub fn check(rows: &[Row]) -> Result<(), Unfollowed> {
    let followed = Informers::resources();
    for row in rows {
        let Writes::Of(resources) = row.writes else { continue };
        if let Some(resource) = resources.iter().copied().find(|name| !followed.iter().any(|it| it == name)) {
            return Err(Unfollowed { controller: row.name, resource });
        }
    }
    Ok(())
}

/// A change that an informer must show before the key is reconciled again.
pub(super) struct Awaited {
    by: Arc<dyn Followed>,
    change: Change,
    /// The time limit, if any.
    until: Option<Instant>,
}

enum Change {
    Revision(u64),
    Gone { key: Key, uid: String },
}

impl Awaited {
    /// What must be shown after `request` was answered with `answer`. `None` for resources without an informer.
    pub fn after(informers: &Informers, request: &Request, answer: Option<Object>) -> Option<Awaited> {
        if request.verb == Verb::Delete {
            let uid = request.options.preconditions.as_ref().and_then(|p| p.uid.clone())?;
            let key = Key::new(request.namespace.clone().unwrap_or_default(), request.name.clone().unwrap_or_default());
            let by = informers.of(&request.resource, &key)?;
            return Some(Awaited { by, change: Change::Gone { key, uid }, until: None });
        }
        let object = answer?;
        let by = informers.of(&request.resource, &key_of(&object))?;
        Awaited::changed(by, object, None)
    }

    /// The same for a controller that sees only metadata. Remote resources have their own revisions.
    pub fn by_metadata(metadata: &MetadataInformers, request: &Request, answer: Option<Object>) -> Option<Awaited> {
        if request.verb == Verb::Delete {
            return None;
        }
        let informers = metadata.informers();
        let own = informers.iter().find(|it| it.resource == request.resource && !it.is_elsewhere())?;
        Awaited::changed(own.objects.followed(), answer?, Some(Instant::now() + PATIENCE))
    }

    fn changed(by: Arc<dyn Followed>, object: Object, until: Option<Instant>) -> Option<Awaited> {
        let revision = object.resource_version().parse().ok()?;
        by.covers(&key_of(&object)).then_some(Awaited { by, change: Change::Revision(revision), until })
    }

    /// Whether waiting for it is over.
    pub fn is_shown(&self) -> bool {
        let is_shown = match &self.change {
            Change::Revision(revision) => self.by.has_reached(*revision),
            Change::Gone { key, uid } => self.by.has_lost(key, uid),
        };
        is_shown || self.until.is_some_and(|until| until <= Instant::now())
    }
}

fn key_of(object: &Object) -> Key {
    Key::new(object.namespace().unwrap_or_default(), object.name())
}

#[cfg(test)]
mod tests;
