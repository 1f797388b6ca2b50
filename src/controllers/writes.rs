//! What controllers write: what each of them says of it, and what the informers must show of a write before the next plan.

use std::sync::Arc;

use super::Row;
use podwright_api::{Object, Request, Verb};
use podwright_client::{Followed, Informers, Key};

/// What a controller's plans write.
#[derive(Clone, Copy, Debug)]
pub enum Writes {
    /// Objects of these resources. Each has an informer: the next plan sees what the last one has written.
    Of(&'static [&'static str]),
    /// Objects of any kind. What has no informer is not waited for.
    Any,
}

/// A controller that would plan anew without seeing what it has written.
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
            Writes::Any => true,
        }
    }
}

/// Fails for the first of the controllers that says that it writes what no informer follows.
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
}

enum Change {
    Revision(u64),
    Gone { key: Key, uid: String },
}

impl Awaited {
    /// What is to be shown after `request` was answered with `answer`. Nothing of what no informer follows.
    pub fn after(informers: &Informers, request: &Request, answer: Option<Object>) -> Option<Awaited> {
        let by = informers.of(&request.resource)?;
        if request.verb == Verb::Delete {
            let uid = request.options.preconditions.as_ref().and_then(|p| p.uid.clone())?;
            let key = Key::new(request.namespace.clone().unwrap_or_default(), request.name.clone().unwrap_or_default());
            return Some(Awaited { by, change: Change::Gone { key, uid } });
        }
        let object = answer?;
        let revision = object.resource_version().parse().ok()?;
        let key = Key::new(object.namespace().unwrap_or_default(), object.name());
        by.covers(&key).then_some(Awaited { by, change: Change::Revision(revision) })
    }

    pub fn is_shown(&self) -> bool {
        match &self.change {
            Change::Revision(revision) => self.by.has_reached(*revision),
            Change::Gone { key, uid } => self.by.has_lost(key, uid),
        }
    }
}

#[cfg(test)]
mod tests;
