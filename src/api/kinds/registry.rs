//! The kinds of one API server: the table, and the CustomResourceDefinitions added at run time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde_json::Value;

use super::{KINDS, Kind, Source, custom, definition};
use crate::Object;
use crate::schema::interned;

/// All current kinds. Readers take a [`Kinds`] and keep it as long as they need one consistent view.
#[derive(Default)]
pub struct Registry {
    now: RwLock<Arc<Kinds>>,
    rows: Mutex<Rows>,
}

/// The rows created so far. They are leaked: definitions can change any number of times, so the number of their shapes is limited.
#[derive(Default)]
struct Rows {
    by_shape: HashMap<String, &'static Kind>,
    /// By version of a definition, using the names of both: they all have its current content.
    by_version: HashMap<String, BTreeMap<String, Vec<&'static Kind>>>,
}

/// The most rows. (One takes about a kilobyte.) Definitions beyond that are not served.
const MOST_ROWS: usize = 10_000;

/// The most bytes of names in them, for all registries of the process.
const MOST_NAMES: usize = 32 << 20;

/// A consistent view of all kinds.
#[derive(Clone, Default)]
pub struct Kinds {
    by_definition: BTreeMap<String, Defined>,
    /// Counts the changes.
    pub generation: u64,
}

/// The rows of one definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Defined {
    /// The row of the storage version, served or not.
    pub stored: Row,
    /// The served versions, the preferred one first.
    pub served: Vec<Row>,
}

/// A row, identified by its address.
#[derive(Clone, Copy, Debug)]
pub struct Row(pub &'static Kind);

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.plural, self.version, self.group)
    }
}

impl Kinds {
    /// The table's rows, then those of definitions.
    pub fn all(&self) -> impl Iterator<Item = &'static Kind> {
        KINDS.iter().chain(self.custom())
    }
    /// The served rows of definitions.
    pub fn custom(&self) -> impl Iterator<Item = &'static Kind> {
        self.by_definition.values().flat_map(|defined| defined.served.iter().map(|row| row.0))
    }
    pub fn defined(&self, definition: &str) -> Option<&Defined> {
        self.by_definition.get(definition)
    }

    /// Like [`super::lookup`], including custom resources: these also by [`Kind::exact`], without a version for the preferred one.
    pub fn lookup(&self, name: &str) -> Option<&'static Kind> {
        if let Some((resource, version)) = name.split_once('/') {
            let (plural, group) = resource.split_once('.')?;
            let is_it = |kind: &&Kind| kind.plural == plural && kind.group == group;
            return self.custom().filter(is_it).find(|kind| version.is_empty() || kind.version == version);
        }
        let known = super::lookup(name);
        if known.is_some() || self.by_definition.is_empty() {
            return known;
        }
        let name = name.to_ascii_lowercase();
        self.custom().find(|kind| {
            let of = |word: &str| {
                word == kind.plural || word == kind.singular || kind.short_names().iter().any(|own| own == word)
            };
            let kind_name = || kind.kind.eq_ignore_ascii_case(&name);
            let qualified = || {
                let Some((word, rest)) = name.split_once('.') else { return false };
                let version = || rest.strip_prefix(kind.version).and_then(|rest| rest.strip_prefix('.'));
                of(word) && (rest == kind.group || version() == Some(kind.group))
            };
            of(&name) || kind_name() || qualified()
        })
    }

    /// Like [`super::of`], including custom resources.
    pub fn of(&self, api_version: &str, kind: &str) -> Option<&'static Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let is_it = |k: &&'static Kind| k.kind == kind && k.group == group && k.version == version;
        super::of(api_version, kind).or_else(|| self.custom().find(is_it))
    }
}

impl Registry {
    pub fn now(&self) -> Arc<Kinds> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies a definition; one that is not established defines nothing. `true`: its rows have changed.
    pub fn put(&self, definition: &Object) -> bool {
        match (is_established(definition) && !is_built_in(definition)).then(|| self.define(definition)).flatten() {
            Some(defined) => self.set(definition.name(), Some(defined)),
            None => self.set(definition.name(), None),
        }
    }

    /// Removes a definition.
    pub fn remove(&self, definition: &str) -> bool {
        self.rows().keep_versions(definition, &[]);
        self.set(definition, None)
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        // Consistent after a panic: rows are added one by one.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, name: &str, defined: Option<Defined>) -> bool {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        if defined.is_none() && now.defined(name).is_none() {
            return false;
        }
        let mut next = Kinds::clone(&now);
        let before = match defined.clone() {
            Some(defined) => next.by_definition.insert(name.to_owned(), defined),
            None => next.by_definition.remove(name),
        };
        next.generation += 1;
        *now = Arc::new(next);
        before != defined
    }

    fn define(&self, definition: &Object) -> Option<Defined> {
        let versions = definition.0["spec"]["versions"].as_array()?;
        let mut served: Vec<&Value> = versions.iter().filter(|version| version["served"] == true).collect();
        served.sort_by_key(|version| std::cmp::Reverse(super::version_rank(version["name"].as_str().unwrap_or(""))));
        let storage = versions.iter().find(|version| version["storage"] == true)?;
        let preferred = |version: &Value| served.first().is_some_and(|first| first["name"] == version["name"]);
        let mut rows = self.rows();
        let stored = rows.row(definition, storage, None, preferred(storage))?;
        let mut row = |version: &&Value| match version["name"] == storage["name"] {
            true => Some(Row(stored)),
            false => rows.row(definition, version, Some(stored), preferred(version)).map(Row),
        };
        let made = served.iter().map(&mut row).collect::<Option<_>>()?;
        rows.keep_versions(definition.name(), &served.iter().chain([&storage]).map(|v| &v["name"]).collect::<Vec<_>>());
        Some(Defined { stored: Row(stored), served: made })
    }
}

impl Rows {
    /// The row of this shape, with the definition's current content. `None`: there is no room for it.
    fn row(
        &mut self,
        definition: &Object,
        json: &Value,
        stored: Option<&'static Kind>,
        preferred: bool,
    ) -> Option<&'static Kind> {
        let shape = definition::shape(definition, json, stored, preferred);
        let version = Arc::new(definition::version(definition, json));
        let name = json["name"].as_str().unwrap_or("").to_owned();
        let row = match self.by_shape.get(&shape) {
            Some(known) => known,
            None if self.by_shape.len() >= MOST_ROWS => {
                let definition = definition.name();
                tracing::error!(definition, "definitions have had {MOST_ROWS} shapes: this one is not served");
                return None;
            }
            None if interned::held() >= MOST_NAMES => {
                let definition = definition.name();
                tracing::error!(
                    definition,
                    "the names of definitions have taken {MOST_NAMES} bytes: this one is not served"
                );
                return None;
            }
            None => {
                let made = definition::row(definition, json, version.clone(), stored, preferred);
                self.by_shape.insert(shape, made);
                made
            }
        };
        let all = self.by_version.entry(definition.name().to_owned()).or_default().entry(name).or_default();
        if !all.iter().any(|known| std::ptr::eq(*known, row)) {
            all.push(row);
        }
        // Those of former shapes too: no row keeps obsolete content.
        all.iter().for_each(|row| set(row, &version));
        Some(row)
    }

    /// Clears the rows of all other versions of a definition.
    fn keep_versions(&mut self, definition: &str, kept: &[&Value]) {
        let gone = self.by_version.get(definition).into_iter().flatten();
        for (_, rows) in gone.filter(|(name, _)| !kept.iter().any(|kept| *kept == name.as_str())) {
            let version = Arc::new(custom::Version::gone());
            rows.iter().for_each(|row| set(row, &version));
        }
    }
}

fn set(row: &'static Kind, version: &Arc<custom::Version>) {
    if let Source::Custom(custom) = &row.schema {
        custom.set(version.clone());
    }
}

/// Whether a definition has the name of a built-in kind in the same group: its objects would be stored in the same place, and rules
/// for one would apply to the other. Such names are not accepted; here they are not served even if their status claims so.
fn is_built_in(definition: &Object) -> bool {
    let (group, names) = (&definition.0["spec"]["group"], &definition.0["spec"]["names"]);
    let mut namesakes = KINDS.iter().filter(|kind| group == kind.group);
    namesakes
        .any(|kind| names["plural"] == kind.plural || names["singular"] == kind.singular || names["kind"] == kind.kind)
}

/// Whether a definition is served: once established, it remains so.
fn is_established(definition: &Object) -> bool {
    let conditions = definition.0["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Rows are never freed: endless changes of definitions reach the limit, and existing ones are still served.
    #[test]
    fn there_are_so_many_rows_and_no_more() {
        let definition = Object(json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Cluster",
                "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
            "status": {"acceptedNames": {"plural": "widgets", "singular": "widget", "kind": "Widget"}},
        }));
        let version = &definition.0["spec"]["versions"][0];
        let full = || (1..=MOST_ROWS).map(|n| (n.to_string(), &super::super::KINDS[0])).collect();
        let mut rows = Rows { by_shape: full(), ..Rows::default() };
        assert!(rows.row(&definition, version, None, true).is_none());
        rows.by_shape.remove("1");
        let made = rows.row(&definition, version, None, true).expect("there is room for one");
        assert_eq!((made.plural, rows.by_shape.len()), ("widgets", MOST_ROWS));
        let again = rows.row(&definition, version, None, true).expect("it is known");
        assert!(std::ptr::eq(made, again));
        // Another scope is another shape.
        let mut other = definition.clone();
        other.0["spec"]["scope"] = "Namespaced".into();
        assert!(rows.row(&other, version, None, true).is_none());
    }
}
