//! NamespaceIdentity (network.podwright.io/v1): a Namespace's labels, derived from the Namespace. Nodes read it.

use super::{Kind, Storage, View};
use crate::columns::NAME;
use crate::namespace_identity::NamespaceIdentity;
use crate::{Object, Verb};

pub const KIND: Kind = Kind {
    storage: Storage::View(View { source: || super::row("v1", "Namespace"), show }),
    verbs: &[Verb::Get, Verb::List, Verb::Watch],
    columns: &[NAME],
    ..Kind::of::<NamespaceIdentity>("namespaceidentity")
};

fn show(namespace: &[u8]) -> Option<Object> {
    serde_json::to_value(NamespaceIdentity::of_stored(namespace)?).ok().map(Object)
}
