//! What admission looks at: a request on an object, and the rest of the cluster.

use std::sync::Arc;

use super::operation::Operation;
use crate::Server;
use crate::cache::{ResourceCache, item::Item};
use crate::large::{LARGE, Weighed, aside};
use crate::resolved_request::ResolvedRequest;
use podwright_api::{Kind, Object, Status, kinds};

/// The request, apart from the object; upstream's `admission.Attributes`.
#[derive(Clone, Copy)]
pub(crate) struct Review<'a> {
    pub server: &'a Server,
    pub call: &'a ResolvedRequest,
    pub operation: Operation,
    /// The object before an update.
    pub old: Option<&'a Object>,
}

impl<'a> Review<'a> {
    pub fn new(
        server: &'a Server,
        call: &'a ResolvedRequest,
        operation: Operation,
        old: Option<&'a Object>,
    ) -> Review<'a> {
        Review { server, call, operation, old }
    }

    /// Whether the request is for objects of a kind themselves, not for a subresource.
    pub fn is(&self, kind: &str, operation: Operation) -> bool {
        self.operation == operation && self.is_about(kind)
    }
    pub fn is_about(&self, kind: &str) -> bool {
        self.call.kind.built_in() == kind && self.subresource().is_empty()
    }
    /// "" for the object itself.
    pub fn subresource(&self) -> &'a str {
        self.call.subresource.as_deref().unwrap_or("")
    }
    /// "" at the cluster scope.
    pub fn namespace(&self) -> &'a str {
        self.call.within()
    }

    /// A refusal, worded with the name that the object has or will get.
    pub fn forbidden(&self, object: &Object, why: impl std::fmt::Display) -> Status {
        let generated = object.0["metadata"]["generateName"].as_str().unwrap_or("");
        let names = [self.call.name(), object.name(), generated];
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown");
        Status::forbidden(self.call.kind.plural, self.call.kind.group, name, why)
    }

    /// The request's Namespace; `None` at the cluster scope.
    pub fn namespace_item(&self) -> Option<Arc<Item>> {
        let kind = kinds::lookup("namespaces")?;
        self.server.cache.resource(kind).get(&kind.key(None, self.namespace()))
    }

    /// The kind of a resource, including custom ones.
    fn kind(&self, resource: &str) -> Option<&'static Kind> {
        self.server.kinds().lookup(resource)
    }

    /// An object from the cache.
    pub fn get(&self, resource: &str, namespace: Option<&str>, name: &str) -> Option<Object> {
        decoded(&*self.item(resource, namespace, name)?)
    }

    /// The same undecoded.
    pub fn item(&self, resource: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Item>> {
        let kind = self.kind(resource)?;
        self.server.cache.resource(kind).get(&kind.key(namespace, name))
    }

    /// Whether a namespace has any objects of a resource.
    pub fn exists(&self, resource: &str, namespace: Option<&str>) -> bool {
        let Some(kind) = self.kind(resource) else { return false };
        let prefix = kind.key(namespace, "");
        let resource = self.server.cache.resource(kind);
        let state = resource.read();
        state.range(&prefix, None).next().is_some()
    }

    /// The cache of a resource.
    pub fn resource(&self, resource: &str) -> Result<Arc<ResourceCache>, Status> {
        let kind = self.kind(resource).ok_or_else(|| Status::internal(format!("no kind {resource}")))?;
        Ok(self.server.cache.resource(kind))
    }

    /// The objects of a namespace, or all if it is `None`, from the cache.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Object> {
        let items = self.items(resource, namespace);
        items.iter().filter_map(|item| decoded(item)).collect()
    }

    /// The same undecoded.
    pub fn items(&self, resource: &str, namespace: Option<&str>) -> Vec<Arc<Item>> {
        let Some(kind) = self.kind(resource) else { return Vec::new() };
        let prefix = kind.key(namespace, "");
        let resource = self.server.cache.resource(kind);
        let state = resource.read();
        state.range(&prefix, None).cloned().collect()
    }
}

/// What admission looks at is an administrator's, or a part of what the request weighs (as `service_account`); what is large
/// nevertheless, as parameters of a policy may be, is decoded on a thread that nobody waits for.
pub(super) fn decoded(item: &Item) -> Option<Object> {
    let decode = || Some(item.decode(Weighed::own()).ok()?.object);
    if item.bytes.len() < LARGE { decode() } else { aside(decode) }
}
