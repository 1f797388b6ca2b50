//! What a row of the table says of its kind, and what follows from it.

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
    /// Of a row of the table; read them through `Kind::short_names`.
    pub short_names: &'static [&'static str],
    pub namespaced: bool,
    /// Of a row of the table; read them through `Kind::categories`.
    pub categories: &'static [&'static str],
    /// Where its objects lie; the other versions of a kind are rows that convert.
    pub storage: Storage,
    /// What it serves on itself; subresources have verbs of their own.
    pub verbs: &'static [Verb],
    /// `status`, `scale`, `binding`, ...: the subresources that it serves.
    pub subresources: &'static [&'static str],
    /// The fields beside `metadata.name` and `metadata.namespace` that a field selector may name.
    pub selectable: &'static [&'static str],
    /// Where its field types come from; read it through `Kind::schema`.
    pub schema: Source,
    /// Its rows in a table, as `get` prints it; read them through `Kind::columns`.
    pub columns: &'static [Column],
    /// Where its `scale` view finds its numbers, if it has one; read it through `Kind::scale`.
    pub scale: Option<Scale>,
    /// What is special about it; see `Strategy`.
    pub strategy: Strategy,
}

/// Where a kind's JSON schema is found.
pub enum Source {
    /// Among the definitions, by name: `io.k8s.api.core.v1.Pod`.
    Defined(&'static str),
    /// In a CustomResourceDefinition, which may change it while we run.
    Custom(&'static Custom),
}

impl Source {
    /// The schema of a k8s-openapi type.
    pub const fn of_type<T: Defined>() -> Source {
        Source::Defined(T::NAME)
    }
}

/// Where the objects of a row lie.
#[derive(Clone, Copy)]
pub enum Storage {
    /// Below the row's own prefix.
    Own,
    /// As objects of another row: another version of the same kind.
    As(Conversion),
    /// The same for a custom resource.
    Version(&'static Kind),
    /// Nowhere: what is created is an answer (reviews), or what is read is made of what nodes report (metrics).
    Nowhere,
}

/// How one version of a kind becomes the stored one and back.
#[derive(Clone, Copy)]
pub struct Conversion {
    /// The row that is stored.
    pub stored: fn() -> &'static Kind,
    /// Changes the fields that differ; `apiVersion` is taken care of.
    pub to_stored: fn(&mut Object),
    pub from_stored: fn(&mut Object),
    /// The stored name of a field that a field selector names.
    pub field: fn(&str) -> &str,
}

/// All that a stored kind serves.
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

/// The kind's own rules, run by the generic verbs (`api::strategy`). All are pure.
pub struct Strategy {
    /// Fills upstream's defaults.
    pub default: fn(&mut Object),
    /// Sets what the system owns, before validation. `status` has been dropped already where it is a subresource.
    pub prepare_create: fn(&mut Object),
    /// Sets what is made of its name and uid, which are known by now; before validation.
    pub identify: fn(&mut Object),
    /// Carries over what an updater may not change, new then old. `status` is the old one already.
    pub prepare_update: fn(&mut Object, &Object),
    /// Carries over what a writer of the `status` subresource may leave out, new then old.
    pub prepare_status: fn(&mut Object, &Object),
    /// Notes about a change what has to be known later: new, then old, then the time. The change has been admitted already.
    pub stamp: fn(&mut Object, &Object, &str),
    /// The rules for the object by itself, beside those of metadata that hold for every kind.
    pub validate: fn(&Object) -> Vec<Cause>,
    /// The rules for a new object alone; `validate` runs too.
    pub validate_create: fn(&Object) -> Vec<Cause>,
    /// The rules about change alone (immutable fields), new then old; `validate` runs too.
    pub validate_update: fn(&Object, &Object) -> Vec<Cause>,
    /// The rules for an update of the `status` subresource, new then old.
    pub validate_status: fn(&Object, &Object) -> Vec<Cause>,
    /// Which metadata a writer of the `status` subresource may change; by upstream's `PrepareForUpdate` of the kind's status. Where
    /// that resets nothing but the spec, it is all.
    pub metadata_by_status: &'static [&'static str],
    /// Which names it may have.
    pub name: crate::validation::NameRule,
    /// The grace period in seconds of a delete that names none; `None`: deleted at once.
    pub default_grace: fn(&Object) -> Option<i64>,
    /// Whether `metadata.generation` counts changes of everything but metadata and status.
    pub has_generation: bool,
    /// Whether a create may bring a status along, though that is a subresource.
    pub creates_with_status: bool,
    /// Whether the delete that takes an object away answers with the object, and not with a `Status`.
    pub returns_deleted: bool,
}

impl Strategy {
    /// A kind without rules of its own.
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

/// Whether a k8s-openapi type's objects have a namespace.
pub trait Scope {
    const NAMESPACED: bool;
}

impl Scope for k8s_openapi::NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

/// What is sent to a subresource is where its object is.
impl Scope for k8s_openapi::SubResourceScope {
    const NAMESPACED: bool = true;
}

impl Scope for k8s_openapi::ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl Kind {
    /// The row of a k8s-openapi type, with nothing special about it yet.
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
    /// The row under which its objects are stored: itself, or another version.
    pub fn stored(&'static self) -> &'static Kind {
        match self.storage {
            Storage::As(conversion) => (conversion.stored)(),
            Storage::Version(stored) => stored,
            _ => self,
        }
    }
    /// The name in requests that finds exactly this row: `pods`, `deployments.apps`; with its version where it is not the
    /// group's first: `horizontalpodautoscalers.v1.autoscaling`.
    pub fn resource(&self) -> String {
        match self.is_preferred() {
            true => crate::status::qualified(self.plural, self.group),
            false => format!("{}.{}.{}", self.plural, self.version, self.group),
        }
    }
    /// The name in requests that can be no other row's: `widgets.example.com/v1`. Groups are names that others choose, and
    /// `widgets.v1.example.com` is read in two ways: of a definition whose group is `v1.example.com`, and as a version.
    pub fn exact(&self) -> String {
        match self.is_custom() {
            true => format!("{}.{}/{}", self.plural, self.group, self.version),
            false => self.resource(),
        }
    }
    /// Whether it is the version that its group prefers.
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
    /// The store prefix, as in etcd: `/registry/<resource>/` (upstream's names: `services/specs`, `minions` are not copied).
    pub fn prefix(&self) -> String {
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
    /// The short names by which requests find it: `po`.
    pub fn short_names(&self) -> Vec<String> {
        match self.custom() {
            Some(version) => version.short_names.clone(),
            None => owned(self.short_names),
        }
    }
    /// The words that stand for several kinds, its own among them: `all`.
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
    /// Where its `scale` view finds its numbers, if it has one.
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
    /// What its CustomResourceDefinition says now, if it is of one.
    pub fn custom(&self) -> Option<Arc<Version>> {
        match &self.schema {
            Source::Custom(custom) => Some(custom.version()),
            Source::Defined(_) => None,
        }
    }
    /// The fields beside `metadata.name` and `metadata.namespace` by which its objects are found: those that selectors of any
    /// version of it may name.
    pub fn indexed(&self) -> &'static [&'static str] {
        match &self.schema {
            Source::Custom(custom) => custom.indexed,
            Source::Defined(_) => self.selectable,
        }
    }
    pub fn is_custom(&self) -> bool {
        matches!(self.schema, Source::Custom(_))
    }
    /// Which kind of the table it is: `Pod`, `Service`; "" for a custom one, whatever that calls itself. What is special about
    /// a kind goes by this, never by `kind`, which anyone gives to a definition of his own. (The table's kinds have names
    /// that differ, but for Event, which is one kind in two groups; a test holds it to that.)
    pub fn built_in(&self) -> &'static str {
        if self.is_custom() { "" } else { self.kind }
    }
    /// Fills its defaults.
    pub fn default(&self, object: &mut Object) {
        (self.strategy.default)(object);
        if let Some(version) = self.custom() {
            crate::structural::fill::defaults(&version.schema, &mut object.0);
        }
    }
    /// Its field types, compiled at the first use and kept.
    pub fn schema(&self) -> Arc<Struct> {
        match &self.schema {
            Source::Defined(name) => schema::of(name),
            Source::Custom(custom) => custom.version().tree.clone(),
        }
    }

    /// Where the field lies that a field selector names so.
    pub fn field_path<'a>(&self, path: &'a str) -> &'a str {
        // A few selectors are named otherwise than the field that they mean.
        match (self.built_in(), path) {
            ("Event", "source") => "source.component",
            ("Job", "status.successful") => "status.succeeded",
            _ => path,
        }
    }

    /// The selectable field whose value counts where one is empty.
    pub fn instead_of(&self, path: &str) -> Option<&'static str> {
        (self.built_in() == "Event" && path == "source").then_some("reportingComponent")
    }

    /// The value of a field that a field selector may name, as a string; "" where it is unset.
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
                // What a custom resource lacks is nothing, whatever its type.
                _ if self.is_custom() => String::new(),
                Some(Type::Boolean) => "false".to_owned(),
                Some(Type::Integer { .. }) => "0".to_owned(),
                _ => String::new(),
            },
        }
    }
    /// All fields that a field selector may name, with their values.
    pub fn fields(&self, object: &Object) -> Vec<(&'static str, String)> {
        let metadata = ["metadata.name", "metadata.namespace"];
        metadata.into_iter().chain(self.selectable.iter().copied()).map(|p| (p, self.field(object, p))).collect()
    }
    /// Whether a field selector may name this field.
    pub fn is_selectable(&self, path: &str) -> bool {
        path == "metadata.name" || (path == "metadata.namespace" && self.namespaced) || self.selectable.contains(&path)
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
