//! The kinds table: one row a kind. Everything generic (server verbs, discovery, CLI, storage keys) reads it.

use super::object::Object;
use super::status::Cause;

/// One kind of object. Adding a kind is adding a row.
pub struct Kind {
    pub kind: &'static str,
    /// "" for the core group.
    pub group: &'static str,
    /// The storage version.
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub namespaced: bool,
    pub categories: &'static [&'static str],
    /// `status`, `scale`, `binding`, ...: the subresources that it serves.
    pub subresources: &'static [&'static str],
    /// The fields beside `metadata.name` and `metadata.namespace` that a field selector may name.
    pub selectable: &'static [&'static str],
    /// What is special about it; see `Strategy`.
    pub strategy: Strategy,
}

/// The kind's own rules, run by the generic verbs. All are pure.
pub struct Strategy {
    /// Fills upstream's defaults.
    pub default: fn(&mut Object),
    /// Clears what a creator may not set (status) and sets what the system owns, before validation.
    pub prepare_create: fn(&mut Object),
    /// Carries over what an updater may not change (status of a spec update), new then old.
    pub prepare_update: fn(&mut Object, &Object),
    pub validate: fn(&Object) -> Vec<Cause>,
    /// The rules about change alone (immutable fields), new then old; `validate` runs too.
    pub validate_update: fn(&Object, &Object) -> Vec<Cause>,
    /// The rules for an update of the `status` subresource, new then old.
    pub validate_status: fn(&Object, &Object) -> Vec<Cause>,
    /// The grace period in seconds of a delete that names none; `None`: deleted at once.
    pub default_grace: fn(&Object) -> Option<i64>,
    /// Whether `metadata.generation` counts changes of everything but metadata and status.
    pub has_generation: bool,
}

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
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
}

/// The table.
pub static KINDS: &[Kind] = &[];

/// Finds a kind by plural, singular, short name or Kind, any case, with or without its group: `po`, `deployments.apps`,
/// `Deployment`, `deployments.v1.apps`.
pub fn lookup(_name: &str) -> Option<&'static Kind> {
    None
}

/// Finds a kind by an object's `apiVersion` and `kind`.
pub fn of(_api_version: &str, _kind: &str) -> Option<&'static Kind> {
    None
}
