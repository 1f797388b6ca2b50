//! A row of the table of kinds, and what follows from it.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::custom::{Custom, Version};
use super::scale::Scale;
use crate::columns::{self, Column, Columns};
use crate::object::Object;
use crate::request::Verb;
use crate::schema::{self, Defined, Struct, Type};
use crate::status::Cause;

/// One kind of object, in one version. Adding a kind is adding a row.
pub struct Kind {
    pub kind: &'static str,
    /// "" for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    /// Of a table row; use `Kind::short_names`.
    pub short_names: &'static [&'static str],
    pub namespaced: bool,
    /// Of a table row; use `Kind::categories`.
    pub categories: &'static [&'static str],
    /// Where its objects are stored; the other versions of a kind are rows that convert.
    pub storage: Storage,
    /// Its own verbs; subresources have theirs.
    pub verbs: &'static [Verb],
    /// Its subresources: `status`, `scale`, `binding`, ...
    pub subresources: &'static [&'static str],
    /// The fields that a field selector may use in addition to `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
    /// The source of its field types; use `Kind::schema`.
    pub schema: Source,
    /// Its columns in `get`; use `Kind::columns`.
    pub columns: &'static [Column],
    /// The fields of its `scale` view, if it has one; use `Kind::scale`.
    pub scale: Option<Scale>,
    /// Its specific behaviour; see `Strategy`.
    pub strategy: Strategy,
}

/// The source of a kind's JSON schema.
pub enum Source {
    /// A definition's name: `io.k8s.api.core.v1.Pod`.
    Defined(&'static str),
    /// A CustomResourceDefinition, which may change it at run time.
    Custom(&'static Custom),
}

impl Source {
    /// The schema of a k8s-openapi type.
    pub const fn of_type<T: Defined>() -> Source {
        Source::Defined(T::NAME)
    }
}

/// Where the objects of a row are stored.
#[derive(Clone, Copy)]
pub enum Storage {
    /// Below the row's own prefix.
    Own,
    /// As objects of another row: another version of the same kind.
    As(Conversion),
    /// The same for a custom resource.
    Version(&'static Kind),
    /// Nowhere: each is derived from an object of another row, has its name, and changes with it.
    View(View),
    /// Nowhere: created objects are answered (reviews), and read objects are generated from nodes' reports (metrics).
    Nowhere,
}

/// The conversion to the stored version of a kind and back.
#[derive(Clone, Copy)]
pub struct Conversion {
    /// The row that is stored.
    pub stored: fn() -> &'static Kind,
    /// Changes the fields that differ, except for `apiVersion`.
    pub to_stored: fn(&mut Object),
    pub from_stored: fn(&mut Object),
    /// The stored name of a field in a field selector.
    pub field: fn(&str) -> &str,
}

/// How an object is derived from another one.
#[derive(Clone, Copy)]
pub struct View {
    /// The row that is stored.
    pub source: fn() -> &'static Kind,
    /// What is shown of an object, by its stored bytes, without its type. `None`: nothing.
    pub show: fn(&[u8]) -> Option<Object>,
}

/// All verbs of a stored kind.
pub const VERBS: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];

/// The kind's specific functions, called by the generic verbs (`api::strategy`). All are pure.
pub struct Strategy {
    /// Sets upstream's defaults.
    pub default: fn(&mut Object),
    /// Sets system fields, before validation. If `status` is a subresource, it has been dropped already.
    pub prepare_create: fn(&mut Object),
    /// Sets what depends on its name and uid, which are known by now; before validation.
    pub identify: fn(&mut Object),
    /// Restores what an update may not change, new then old. `status` is the old one already.
    pub prepare_update: fn(&mut Object, &Object),
    /// Restores what an update of the `status` subresource may omit, new then old.
    pub prepare_status: fn(&mut Object, &Object),
    /// Records facts about a change for later: new, then old, then the time. The change has been admitted already.
    pub stamp: fn(&mut Object, &Object, &str),
    /// Validates the object by itself, in addition to the metadata rules for every kind.
    pub validate: fn(&Object) -> Vec<Cause>,
    /// Additional rules for new objects.
    pub validate_create: fn(&Object) -> Vec<Cause>,
    /// Additional rules for changes (immutable fields), new then old.
    pub validate_update: fn(&Object, &Object) -> Vec<Cause>,
    /// The rules for an update of the `status` subresource, new then old.
    pub validate_status: fn(&Object, &Object) -> Vec<Cause>,
    /// The metadata that an update of the `status` subresource may change; by upstream's `PrepareForUpdate` of the kind's status.
    /// If that only resets the spec, it is all.
    pub metadata_by_status: &'static [&'static str],
    /// The rule for its names.
    pub name: crate::validation::NameRule,
    /// The default grace period of a delete in seconds; `None`: deleted at once.
    pub default_grace: fn(&Object) -> Option<i64>,
    /// Whether `metadata.generation` counts changes of everything but metadata and status.
    pub has_generation: bool,
    /// Whether a create may include a status, though that is a subresource.
    pub creates_with_status: bool,
    /// Whether the final delete returns the object instead of a `Status`.
    pub returns_deleted: bool,
}

impl Strategy {
    /// A kind without specific behaviour.
    pub const PLAIN: Strategy = Strategy {
        default: |_| {},
        prepare_create: |_| {},
        identify: |_| {},
        prepare_update: |_, _| {},
        prepare_status: |_, _| {},
        stamp: |_, _, _| {},
        validate: |_| Vec::new(),
        validate_create: |_| Vec::new(),
        validate_update: |_, _| Vec::new(),
        validate_status: |_, _| Vec::new(),
        metadata_by_status: &["labels", "annotations", "finalizers", "ownerReferences"],
        name: crate::validation::NameRule::Subdomain,
        default_grace: |_| None,
        has_generation: false,
        creates_with_status: false,
        returns_deleted: false,
    };
}

/// Whether the objects of a k8s-openapi type are namespaced.
pub trait Scope {
    const NAMESPACED: bool;
}

impl Scope for k8s_openapi::NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

/// A subresource's body has its object's namespace.
impl Scope for k8s_openapi::SubResourceScope {
    const NAMESPACED: bool = true;
}

impl Scope for k8s_openapi::ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl Kind {
    /// The row of a k8s-openapi type, without specifics.
    pub const fn of<T>(singular: &'static str) -> Kind
    where
        T: k8s_openapi::Resource<Scope: Scope> + Defined,
    {
        Kind {
            kind: T::KIND,
            group: T::GROUP,
            version: T::VERSION,
            plural: T::URL_PATH_SEGMENT,
            singular,
            short_names: &[],
            namespaced: <T::Scope as Scope>::NAMESPACED,
            categories: &[],
            storage: Storage::Own,
            verbs: VERBS,
            subresources: &[],
            selectable: &[],
            schema: Source::of_type::<T>(),
            columns: columns::PLAIN,
            scale: None,
            strategy: Strategy::PLAIN,
        }
    }

    pub fn is_stored(&self) -> bool {
        matches!(self.storage, Storage::Own)
    }
    /// How its objects are derived from others'.
    pub fn view(&self) -> Option<View> {
        match self.storage {
            Storage::View(view) => Some(view),
            _ => None,
        }
    }
    /// The row of its stored objects: itself, or another version.
    pub fn stored(&'static self) -> &'static Kind {
        match self.storage {
            Storage::As(conversion) => (conversion.stored)(),
            Storage::Version(stored) => stored,
            _ => self,
        }
    }
    /// The name in requests that finds exactly this row: `pods`, `deployments.apps`; with its version if that is not the group's
    /// first: `horizontalpodautoscalers.v1.autoscaling`.
    pub fn resource(&self) -> String {
        match self.is_preferred() {
            true => crate::status::qualified(self.plural, self.group),
            false => format!("{}.{}.{}", self.plural, self.version, self.group),
        }
    }
    /// The unambiguous name in requests: `widgets.example.com/v1`. CRDs choose groups freely, and `widgets.v1.example.com` has two
    /// meanings: a definition with the group `v1.example.com`, and a version.
    pub fn exact(&self) -> String {
        match self.is_custom() {
            true => format!("{}.{}/{}", self.plural, self.group, self.version),
            false => self.resource(),
        }
    }
    /// Whether it is the preferred version of its group.
    pub fn is_preferred(&self) -> bool {
        match (&self.schema, self.storage) {
            (Source::Custom(custom), _) => custom.preferred,
            (_, Storage::As(conversion)) => (conversion.stored)().group != self.group,
            _ => true,
        }
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
    pub fn list_kind(&self) -> String {
        let named = self.custom().map(|version| version.list_kind.clone()).filter(|named| !named.is_empty());
        named.unwrap_or_else(|| format!("{}List", self.kind))
    }
    /// The store prefix, as in etcd: `/registry/<resource>/` (without upstream's historical names `services/specs`, `minions`). What is
    /// derived from others is found by these.
    pub fn prefix(&self) -> String {
        if let Some(view) = self.view() {
            return (view.source)().prefix();
        }
        if self.group.is_empty() {
            format!("/registry/{}/", self.plural)
        } else {
            format!("/registry/{}.{}/", self.plural, self.group)
        }
    }
    /// The store key of one object.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> String {
        match namespace.filter(|_| self.namespaced) {
            Some(ns) => format!("{}{ns}/{name}", self.prefix()),
            None => format!("{}{name}", self.prefix()),
        }
    }
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.contains(&name)
    }
    /// Its short names in requests: `po`.
    pub fn short_names(&self) -> Vec<String> {
        match self.custom() {
            Some(version) => version.short_names.clone(),
            None => owned(self.short_names),
        }
    }
    /// Its categories, which stand for several kinds: `all`.
    pub fn categories(&self) -> Vec<String> {
        match self.custom() {
            Some(version) => version.categories.clone(),
            None => owned(self.categories),
        }
    }
    /// The columns of its table.
    pub fn columns(&self) -> Columns {
        match self.custom() {
            Some(version) => Columns::Defined(version.columns.clone()),
            None => Columns::Fixed(self.columns),
        }
    }
    /// The fields of its `scale` view, if it has one.
    pub fn scale(&self) -> Option<Scale<Cow<'static, str>>> {
        match self.custom() {
            Some(version) => version.scale.clone(),
            None => self.scale.map(|Scale { spec_replicas, status_replicas, selector }| Scale {
                spec_replicas: spec_replicas.into(),
                status_replicas: status_replicas.into(),
                selector: selector.into(),
            }),
        }
    }
    /// The current content of its CustomResourceDefinition, if it has one.
    pub fn custom(&self) -> Option<Arc<Version>> {
        match &self.schema {
            Source::Custom(custom) => Some(custom.version()),
            Source::Defined(_) => None,
        }
    }
    /// The indexed fields in addition to `metadata.name` and `metadata.namespace`: the selectable fields of all its versions.
    pub fn indexed(&self) -> &'static [&'static str] {
        match &self.schema {
            Source::Custom(custom) => custom.indexed,
            Source::Defined(_) => self.selectable,
        }
    }
    pub fn is_custom(&self) -> bool {
        matches!(self.schema, Source::Custom(_))
    }
    /// Its kind if it is built-in: `Pod`, `Service`; "" for a custom one, whatever its name. Special cases for a kind must use
    /// this, never `kind`, which CRDs choose freely. (Built-in kinds have distinct names, except for Event, which is one kind in
    /// two groups; a test ensures this.)
    pub fn built_in(&self) -> &'static str {
        if self.is_custom() { "" } else { self.kind }
    }
    /// Sets its defaults.
    pub fn default(&self, object: &mut Object) {
        (self.strategy.default)(object);
        if let Some(version) = self.custom() {
            crate::structural::fill::defaults(&version.schema, &mut object.0);
        }
    }
    /// Its field types, compiled on first use.
    pub fn schema(&self) -> Arc<Struct> {
        match &self.schema {
            Source::Defined(name) => schema::of(name),
            Source::Custom(custom) => custom.version().tree.clone(),
        }
    }

    /// The path of a field in a field selector.
    pub fn field_path<'a>(&self, path: &'a str) -> &'a str {
        // Some selectors have another name than their field.
        match (self.built_in(), path) {
            ("Event", "source") => "source.component",
            ("Job", "status.successful") => "status.succeeded",
            _ => path,
        }
    }

    /// The selectable field that replaces an empty one.
    pub fn instead_of(&self, path: &str) -> Option<&'static str> {
        (self.built_in() == "Event" && path == "source").then_some("reportingComponent")
    }

    /// The value of a selectable field as a string; "" if unset.
    pub fn field(&self, object: &Object, path: &str) -> String {
        match (self.own_field(object, path), self.instead_of(path)) {
            (own, Some(other)) if own.is_empty() => self.own_field(object, other),
            (own, _) => own,
        }
    }

    fn own_field(&self, object: &Object, path: &str) -> String {
        let path = self.field_path(path);
        match object.at(path) {
            Some(Value::String(s)) => s.clone(),
            Some(v @ (Value::Bool(_) | Value::Number(_))) => v.to_string(),
            _ => match self.schema().at(path) {
                // A custom resource's missing field is empty, whatever its type.
                _ if self.is_custom() => String::new(),
                Some(Type::Boolean) => "false".to_owned(),
                Some(Type::Integer { .. }) => "0".to_owned(),
                _ => String::new(),
            },
        }
    }
    /// All selectable fields with their values.
    pub fn fields(&self, object: &Object) -> Vec<(&'static str, String)> {
        let metadata = ["metadata.name", "metadata.namespace"];
        metadata.into_iter().chain(self.selectable.iter().copied()).map(|p| (p, self.field(object, p))).collect()
    }
    /// Whether the field is selectable.
    pub fn is_selectable(&self, path: &str) -> bool {
        path == "metadata.name" || (path == "metadata.namespace" && self.namespaced) || self.selectable.contains(&path)
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
