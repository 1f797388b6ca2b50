//! A request whose resource, scope and names have been checked.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use podwright_api::kinds::{self, registry::Kinds};
use podwright_api::request::FieldValidation;
use podwright_api::selector::FieldSelector;
use podwright_api::validation::names;
use podwright_api::{Cause, Kind, Object, Options, Request, Status, User, Verb, status};

use super::authorize::attributes::Attributes;
use super::notes::Notes;

/// A selector is evaluated for each object of a collection. (REST paths are no longer either.)
const LONGEST_SELECTOR: usize = 64 << 10;

/// A resolved request, the input of everything inside the pipeline.
pub(super) struct ResolvedRequest {
    pub verb: Verb,
    /// The stored kind.
    pub kind: &'static Kind,
    /// Another version of it, if requested.
    pub version: Option<&'static Kind>,
    /// `None` for cluster-scoped kinds, and for a collection over all namespaces.
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    pub body: Option<Value>,
    pub options: Options,
    pub user: User,
    /// The peer address of its connection.
    pub address: Option<IpAddr>,
    /// A deletion by an eviction.
    pub evicts: bool,
    /// Warnings and annotations.
    pub notes: Arc<Notes>,
}

impl ResolvedRequest {
    pub fn resolve(kinds: &Kinds, request: Request) -> Result<ResolvedRequest, Status> {
        let Some(asked) = kinds.lookup(&request.resource) else {
            return Err(no_such_resource(&request.resource, ""));
        };
        let kind = asked.stored();
        let given = |s: Option<String>| s.filter(|s| !s.is_empty());
        let namespace = given(request.namespace);
        // Cluster-scoped objects are not in any namespace: a component acting within one on a user's behalf must not reach them by
        // name.
        if namespace.is_some() && !kind.namespaced {
            return Err(no_such_resource(kind.plural, kind.group));
        }
        // A custom resource may be stored in another version, or by an older schema: it is always converted to the requested form.
        let version = (asked.is_custom() || !std::ptr::eq(asked, kind)).then_some(asked);
        let mut call = ResolvedRequest {
            verb: request.verb,
            kind,
            version,
            namespace,
            name: given(request.name),
            subresource: given(request.subresource),
            body: request.body,
            options: request.options,
            user: request.user,
            address: request.address,
            evicts: false,
            notes: Arc::default(),
        };
        call.take_names_of_body();
        call.check()?;
        call.refuse_duplicates(&request.duplicates)?;
        Ok(call)
    }

    /// A create or update may take its namespace and name from the object, as with `kubectl create -f`.
    fn take_names_of_body(&mut self) {
        if !matches!(self.verb, Verb::Create | Verb::Update) {
            return;
        }
        let of = |field: &str| {
            self.body.as_ref()?.get("metadata")?.get(field)?.as_str().filter(|s| !s.is_empty()).map(str::to_owned)
        };
        let (namespace, name) = (of("namespace"), of("name"));
        if self.kind.namespaced && self.namespace.is_none() {
            self.namespace = namespace;
        }
        if self.name.is_none() && self.subresource.is_none() {
            self.name = name;
        }
    }

    /// A body with duplicate fields. (Non-strict decoding keeps the last of both.)
    fn refuse_duplicates(&self, duplicates: &[String]) -> Result<(), Status> {
        let strict = self.options.field_validation.unwrap_or_default() == FieldValidation::Strict;
        let writes = matches!(self.verb, Verb::Create | Verb::Update | Verb::Patch);
        if duplicates.is_empty() || !strict || !writes {
            return Ok(());
        }
        let each: Vec<String> = duplicates.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
        let (kind, version) = (self.kind.kind, self.kind.version);
        Err(Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {}",
            each.join(", ")
        )))
    }

    fn check(&self) -> Result<(), Status> {
        if self.subresource.is_none() && self.verb != Verb::Connect && !self.asked().verbs.contains(&self.verb) {
            return Err(self.not_allowed(self.verb.as_str()));
        }
        for selector in [&self.options.label_selector, &self.options.field_selector].into_iter().flatten() {
            if selector.len() > LONGEST_SELECTOR {
                return Err(Status::bad_request(format!("a selector has at most {LONGEST_SELECTOR} bytes")));
            }
        }
        let collection = matches!(self.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        if self.kind.namespaced && self.namespace.is_none() && !collection {
            let why = match self.verb {
                Verb::Create => "an empty namespace may not be set during creation",
                _ => "an empty namespace may not be set when a resource name is provided",
            };
            return Err(Status::bad_request(why));
        }
        self.check_names()?;
        // Otherwise authorization for a subresource would return whole objects.
        if self.subresource.is_some() && collection {
            return Err(self.not_allowed(self.verb.as_str()));
        }
        if let Some(sub) = &self.subresource
            && !self.kind.has_subresource(sub)
            && !is_served(self.kind, sub)
        {
            return Err(no_such_resource(&format!("{}/{sub}", self.kind.plural), self.kind.group));
        }
        let named = matches!(self.verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete | Verb::Connect);
        if (named || self.subresource.is_some()) && self.name.is_none() {
            return Err(Status::bad_request("name is required"));
        }
        Ok(())
    }

    /// A name with a slash would be another object's key.
    pub fn check_names(&self) -> Result<(), Status> {
        for part in [&self.namespace, &self.name].into_iter().flatten() {
            let why = names::path_segment(part);
            if !why.is_empty() {
                return Err(Status::bad_request(format!("invalid resource name {part:?}: [{}]", why.join(" "))));
            }
        }
        Ok(())
    }

    /// The requested version.
    pub fn asked(&self) -> &'static Kind {
        self.version.unwrap_or(self.kind)
    }

    /// The version whose rules apply: a custom resource is validated in the version in which it was sent.
    pub fn rules(&self) -> &'static Kind {
        if self.kind.is_custom() { self.asked() } else { self.kind }
    }

    /// The same request without its body.
    pub fn again(&self) -> ResolvedRequest {
        ResolvedRequest {
            verb: self.verb,
            kind: self.kind,
            version: self.version,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            subresource: self.subresource.clone(),
            body: None,
            options: self.options.clone(),
            user: self.user.clone(),
            address: self.address,
            evicts: self.evicts,
            notes: self.notes.clone(),
        }
    }

    /// The name of a request; `check` ensures that it has one.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("")
    }
    pub fn key(&self) -> String {
        self.kind.key(self.namespace.as_deref(), self.name())
    }
    pub fn take_body(&mut self) -> Result<Value, Status> {
        self.body.take().ok_or_else(|| Status::bad_request("the request has no body"))
    }
    /// The kind of the subresource's body, if it is not the request's kind.
    pub fn order(&self) -> Option<&'static Kind> {
        kinds::order::of(self.subresource.as_deref()?)
    }
    /// The body, decoded as the subresource's kind; and warnings.
    pub fn take_order(&mut self) -> Result<(Object, Vec<String>), Status> {
        let body = self.take_body()?;
        let order = self.order().ok_or_else(|| self.not_allowed(self.verb.as_str()))?;
        order.decode(body, self.options.field_validation.unwrap_or_default())
    }
    /// The namespace; "" at the cluster scope.
    pub fn within(&self) -> &str {
        self.namespace.as_deref().unwrap_or("")
    }

    /// The attributes for authorization, as upstream's paths define them.
    pub fn attributes(&self) -> Attributes<'_> {
        let is_namespace = self.kind.built_in() == "Namespace";
        let selector = self.options.field_selector.as_deref().unwrap_or("");
        let name = match self.verb {
            // On create the name is in the body; rules for names do not allow creation.
            Verb::Create if self.subresource.is_none() => "",
            Verb::List | Verb::Watch | Verb::DeleteCollection => named_by(selector).unwrap_or(self.name()),
            _ => self.name(),
        };
        Attributes {
            subresource: self.subresource.as_deref().unwrap_or(""),
            // A Namespace is within itself: whoever may read everything within it may read it.
            namespace: if is_namespace { name } else { self.within() },
            name,
            field_selector: selector,
            label_selector: self.options.label_selector.as_deref().unwrap_or(""),
            ..Attributes::new(&self.user, self.verb_asked(), self.asked().group, self.kind.plural)
        }
    }

    /// The verb as rules name it: sessions use get or create.
    fn verb_asked(&self) -> &'static str {
        match (self.verb, self.subresource.as_deref()) {
            (Verb::Connect, Some("log" | "inspect" | "trace" | "proxy")) => "get",
            (Verb::Connect, Some("exec" | "attach" | "portforward")) => "create",
            (verb, _) => verb.as_str(),
        }
    }

    pub fn not_found(&self) -> Status {
        Status::not_found(self.kind.plural, self.kind.group, self.name())
    }
    pub fn modified(&self) -> Status {
        Status::modified(self.kind.plural, self.kind.group, self.name())
    }
    pub fn conflict(&self, why: impl std::fmt::Display) -> Status {
        Status::conflict(self.kind.plural, self.kind.group, self.name(), why)
    }
    pub fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(self.kind.plural, self.kind.group, self.name(), why)
    }
    pub fn already_exists(&self, name: &str) -> Status {
        Status::already_exists(self.kind.plural, self.kind.group, name)
    }
    pub fn invalid(&self, name: &str, causes: Vec<Cause>) -> Status {
        Status::invalid(self.kind.kind, self.kind.group, name, causes)
    }
    pub fn not_allowed(&self, verb: &str) -> Status {
        Status::method_not_allowed(self.kind.plural, self.kind.group, verb)
    }
    /// A `Success` status about this object, with the group of the requested version.
    pub fn success(&self, uid: &str) -> Status {
        let asked = self.asked();
        let mut status = Status::success().with_details(asked.plural, asked.group, self.name());
        status.details = status.details.map(|d| status::Details { uid: uid.to_owned(), ..d });
        status
    }
}

/// The response for an unknown path, on any face.
fn no_such_resource(resource: &str, group: &str) -> Status {
    let why = "the server could not find the requested resource";
    Status::failure(404, "NotFound", why).with_details(resource, group, "")
}

/// Subresources in addition to the kinds table: podwright's own, and proxy, which the REST face handles.
const OWN: &[(&str, &[&str])] = &[
    ("Pod", &["inspect", "trace", "proxy"]),
    ("Service", &["proxy"]),
    ("Node", &["image", "dial", "inspect", "proxy", "usage"]),
];

fn is_served(kind: &Kind, subresource: &str) -> bool {
    OWN.iter().any(|(of, names)| *of == kind.built_in() && names.contains(&subresource))
}

/// The single name that a field selector selects, as parsed for selection. One with escapes counts as none: then the right to all
/// objects is required.
fn named_by(selector: &str) -> Option<&str> {
    let read = FieldSelector::parse(selector).ok()?;
    let name = read.exact("metadata.name")?;
    let at = selector.find(name)?;
    selector.get(at..at + name.len())
}

/// A cause of `Invalid`, in upstream's wording of a bad value.
pub(super) fn bad_value(field: &str, value: &Value, why: &str) -> Cause {
    Cause { reason: "FieldValueInvalid".into(), message: format!("Invalid value: {value}: {why}"), field: field.into() }
}

/// Which part of an object a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteScope {
    /// All but status.
    Whole,
    Status,
    /// A Namespace's `spec.finalizers`.
    Finalize,
    /// A CertificateSigningRequest's conditions.
    Approval,
    /// A Pod's `spec.ephemeralContainers`.
    Ephemeral,
    /// The resources of a Pod's containers.
    Resize,
}
