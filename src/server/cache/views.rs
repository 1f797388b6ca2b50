//! Views: what is derived from the objects of another resource, one from each. It is encoded once for all who watch it, and changes
//! only when what is shown does.

use std::sync::Arc;

use bytes::Bytes;
use podwright_api::Kind;

use super::item::Item;
use crate::encode::Head;
use crate::large::{LARGE, aside};

/// What is served of an entry of the store, in its stored form. `None`: nothing.
pub(super) fn shown(kind: &Kind, head: &Head, stored: Bytes) -> Option<Bytes> {
    let Some(view) = kind.view() else { return Some(stored) };
    let show = || (view.show)(&stored).map(|object| head.store(&object));
    if stored.len() >= LARGE { aside(show) } else { show() }
}

/// Whether a change of what a view's object is derived from is none of the view's: then it keeps its revision, and nobody hears of it.
pub(super) fn look_alike(kind: &Kind, head: &Head, old: Option<&Arc<Item>>, new: Option<&Arc<Item>>) -> bool {
    let same = match (old, new) {
        (Some(old), Some(new)) => head.content(&old.bytes) == head.content(&new.bytes),
        (old, new) => old.is_none() && new.is_none(),
    };
    same && kind.view().is_some()
}
