//! An informer of any kind, for waiting until a write is visible.

use super::{Key, Shared};
use crate::Typed;

/// Which objects of its kind an informer follows.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// Whether it also depends on what the objects say beside their keys.
    pub by_fields: bool,
}

/// An informer of any kind.
pub trait Followed: Send + Sync {
    /// Whether an object of this key may be followed; of others no change is ever shown.
    fn may_cover(&self, key: &Key) -> bool;
    /// Whether it is followed, whatever its fields say.
    fn covers(&self, key: &Key) -> bool;
    /// Whether everything up to a revision is visible.
    fn has_reached(&self, revision: u64) -> bool;
    /// Whether exactly this object is visible as deleted or terminating.
    fn has_lost(&self, key: &Key, uid: &str) -> bool;
}

impl<K: Typed> Followed for Shared<K> {
    fn may_cover(&self, key: &Key) -> bool {
        let Scope { namespace, name, by_fields: _ } = &self.scope;
        namespace.as_ref().is_none_or(|it| *it == key.namespace) && name.as_ref().is_none_or(|it| *it == key.name)
    }

    fn covers(&self, key: &Key) -> bool {
        !self.scope.by_fields && self.may_cover(key)
    }

    fn has_reached(&self, revision: u64) -> bool {
        let state = self.state.read().unwrap_or_else(|p| p.into_inner());
        state.resource_version.parse::<u64>().is_ok_and(|known| known >= revision)
    }

    fn has_lost(&self, key: &Key, uid: &str) -> bool {
        let state = self.state.read().unwrap_or_else(|p| p.into_inner());
        state.objects.get(key).is_none_or(|object| {
            let meta = object.metadata();
            meta.uid.as_deref() != Some(uid) || meta.deletion_timestamp.is_some()
        })
    }
}
