//! What a write adds to the memory that its namespace's objects take where they are kept as types, and whether there is room.

use super::operation::Operation;
use super::review::Review;
use crate::burdens::share;
use podwright_api::schema::burden;
use podwright_api::{Object, Status};

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
        all += state.burdens.all();
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
