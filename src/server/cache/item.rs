//! One object in the cache, and one change of it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;

use podwright_api::schema::burden;
use podwright_api::{Kind, Object, Status, User};
use podwright_store::Revision;

use crate::Server;
use crate::authorize::grants::Rights;
use crate::encode::{Current, Head};
use crate::external_ips::Ways;
use crate::extract::{Extractor, Facts, Labels};
use crate::large::{LARGE, Weighed, aside};

/// One object in the cache.
#[derive(Debug)]
pub(crate) struct Item {
    pub key: Arc<str>,
    pub revision: Revision,
    /// In its served form.
    pub bytes: Bytes,
    labels: Labels,
    /// The values of `Kind::indexed`, in that order.
    fields: Box<[Box<str>]>,
    facts: Facts,
    pub rights: Rights,
    /// The external addresses and ports of a Service, if it has any.
    pub(super) ways: Option<Arc<Ways>>,
    /// What its namespace is charged for it.
    pub(super) burden: usize,
}

/// The namespace in the key of a namespaced object.
pub(super) fn namespace_of(key: &str) -> &str {
    key.rsplit('/').nth(1).unwrap_or("")
}

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Event {
    pub revision: Revision,
    pub old: Option<Arc<Item>>,
    pub new: Option<Arc<Item>>,
    gone: OnceLock<Bytes>,
}

impl Item {
    /// Parses what is kept beside the bytes; a long object on a blocking thread.
    pub fn of(kind: &Kind, extractor: &Extractor, key: Arc<str>, bytes: Bytes, revision: Revision) -> Item {
        let mut item = Item::without_rights(extractor, key, bytes, revision);
        let is_large = item.bytes.len() >= LARGE;
        // For a small Pod its node's grants are parsed on demand: that is quick.
        let is_bound = is_large && !item.field(kind, "spec.nodeName").is_empty();
        let read = || {
            let rights = Rights::of(kind, item.namespace(kind), is_bound, &item.bytes);
            (rights, Ways::of_stored(kind, &item.bytes), burden::of_stored(kind, &item.bytes))
        };
        (item.rights, item.ways, item.burden) = if is_large { aside(read) } else { read() };
        item
    }

    /// The same without its grants.
    pub fn without_rights(extractor: &Extractor, key: Arc<str>, bytes: Bytes, revision: Revision) -> Item {
        let (labels, fields, facts) = extractor.extract(&bytes);
        Item { key, revision, bytes, labels, fields, facts, rights: Rights::None, ways: None, burden: 0 }
    }

    /// "" if it is not kept for its kind.
    pub fn uid(&self) -> &str {
        &self.facts.uid
    }
    pub fn deletion_timestamp(&self) -> Option<Timestamp> {
        self.facts.deleted
    }

    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or("")
    }
    /// The namespace; "" for an object of a cluster-scoped kind.
    pub fn namespace(&self, kind: &Kind) -> &str {
        if !kind.namespaced {
            return "";
        }
        namespace_of(&self.key)
    }
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name)
    }
    /// A selectable field's value, "" if unset.
    pub fn field(&self, kind: &Kind, path: &str) -> &str {
        match path {
            "metadata.name" => self.name(),
            "metadata.namespace" => self.namespace(kind),
            _ => kind.indexed().iter().position(|p| *p == path).map_or("", |i| &self.fields[i]),
        }
    }
    /// The whole object. For users, decoding is part of the request's cost.
    pub fn decode(&self, _: Weighed) -> Result<Current, Status> {
        Current::of_bytes(self.bytes.clone(), self.revision)
    }
}

impl Event {
    pub fn of(revision: Revision, old: Option<Arc<Item>>, new: Option<Arc<Item>>) -> Event {
        Event { revision, old, new, gone: OnceLock::new() }
    }

    /// The object's last state, for a deletion event.
    pub fn gone(&self, head: &Head) -> Option<Bytes> {
        let old = self.old.as_ref()?;
        Some(self.gone.get_or_init(|| head.redeliver(&old.bytes, self.revision)).clone())
    }

    pub fn size(&self) -> usize {
        self.new.as_ref().map_or(64, |item| item.bytes.len())
    }
}

impl Server {
    /// Looks into an object for a user, whatever its size.
    pub(crate) async fn look<T>(&self, user: &User, item: &Item, look: impl FnOnce(&Object) -> T) -> Result<T, Status> {
        let looked = |weighed| async move { item.decode(weighed).map(|current| look(&current.object)) };
        self.large.part(user, item.bytes.len(), looked).await?
    }
}
