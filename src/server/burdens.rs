//! Namespaces have shares of the memory that objects take where controllers, scheduler and agents keep them as types.
//!
//! Most take some times the bytes that are stored. What of one exceeds that by far (`podwright_api::schema::burden`: thousands of empty
//! volumes, variables, containers) is charged to its namespace, and refused once the namespace has its share: as a quota does, where it
//! can be told to whoever writes it. What is stored already stays as it is, and may shrink.

use std::collections::HashMap;

use super::admission::{Operation, Review};
use podwright_api::schema::burden;
use podwright_api::{Object, Status};

/// What all namespaces have together, and one at least, whatever the others have: otherwise half of what these leave.
const MOST: usize = 512 << 20;
const LEAST: usize = MOST / 8;

/// How much each namespace is charged for one kind.
#[derive(Debug, Default)]
pub(super) struct Burdens {
    by_namespace: HashMap<Box<str>, usize>,
    all: usize,
}

impl Burdens {
    /// Updates it after a change of an object.
    pub fn change(&mut self, namespace: &str, old: usize, new: usize) {
        if old == new {
            return;
        }
        let own = self.by_namespace.entry(namespace.into()).or_default();
        *own = *own + new - old;
        if *own == 0 {
            self.by_namespace.remove(namespace);
        }
        self.all = self.all + new - old;
    }

    fn of(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }
}

/// How much a namespace may have, beside others that have so much.
fn share(others: usize) -> usize {
    (MOST.saturating_sub(others) / 2).max(LEAST)
}

/// How much more an object is charged than before. What its controllers and its node say of it is not its author's to bound.
fn grows(review: &Review<'_>, object: &Object) -> Option<usize> {
    let is_write =
        matches!(review.operation, Operation::Create | Operation::Update) && review.subresource() != "status";
    if !is_write || !burden::is_kept(review.call.kind) {
        return None;
    }
    let new = burden::of(review.call.kind, object);
    let old = review.old.filter(|_| new > 0).map_or(0, |old| burden::of(review.call.kind, old));
    new.checked_sub(old).filter(|more| *more > 0)
}

/// Whether a write is charged.
pub(super) fn concerns(review: &Review<'_>, object: &Object) -> bool {
    grows(review, object).is_some()
}

/// Refuses what the object's namespace has no room for.
pub(super) fn check(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    let Some(more) = grows(review, object) else { return Ok(()) };
    let (mut own, mut all) = (0, 0);
    for kind in burden::kinds() {
        let resource = review.server.cache.resource(kind);
        let state = resource.read();
        own += state.burdens.of(review.namespace());
        all += state.burdens.all;
    }
    let most = share(all - own);
    if own + more <= most {
        return Ok(());
    }
    Err(review.forbidden(
        object,
        format!(
            "it would take {more} bytes of memory beyond what is usual for its size, as its lists of volumes, containers, variables \
             and the like have very many small items; the objects of namespace {:?} take {own} bytes beyond that, and may take {most}",
            review.namespace()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_half_of_what_the_others_leave() {
        assert_eq!((share(0), share(MOST / 2), share(MOST), share(2 * MOST)), (MOST / 2, MOST / 4, LEAST, LEAST));
        let mut burdens = Burdens::default();
        for (old, new, own) in [(0, 7, 7), (0, 3, 10), (7, 1, 4), (1, 0, 3), (3, 0, 0)] {
            burdens.change("a", old, new);
            assert_eq!((burdens.of("a"), burdens.of("b"), burdens.all), (own, 0, own));
        }
        assert!(burdens.by_namespace.is_empty());
    }
}
