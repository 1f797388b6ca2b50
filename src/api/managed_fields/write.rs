//! The effect of a write on an object's managers: an update takes fields, an apply merges, conflicts and releases.

use std::collections::BTreeMap;

use serde_json::Value;

use super::BEFORE_FIRST_APPLY;
use super::element;
use super::entries::{Managed, Operation, Who};
use super::set::Set;
use super::walk::{self, Comparison, Scope};
use crate::patch::apply::LAST_APPLIED;
use crate::schema::Struct;
use crate::status::Cause;
use crate::validation::MAX_CAUSES;
use crate::{Object, Status, field_path};

/// The only manager whose apply takes over fields from client-side `kubectl apply`.
const KUBECTL: &str = "kubectl";

/// How much of a manager's name is shown with each field, in bytes.
const MANAGER: usize = 512;

/// Fields that another manager owns with other values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// In the form of error messages.
    pub manager: String,
    /// Not empty.
    pub fields: Set,
}

/// The managers after an update; `old` is `None` for a new object.
pub fn update(
    schema: &Struct,
    scope: Scope,
    old: Option<&Object>,
    new: &Object,
    managed: Managed,
    who: &Who,
    now: &str,
) -> Managed {
    update_with(walk::compare(schema, scope, old, new), managed, who, now)
}

/// The managers after an update with these changes.
pub fn update_with(changed: Comparison, mut managed: Managed, who: &Who, now: &str) -> Managed {
    if changed.is_empty() {
        return managed;
    }
    let written = changed.modified.union(&changed.added);
    let own = managed.find(who).map(|entry| entry.set.clone()).unwrap_or_default();
    take(&mut managed, who, &written, &changed.removed, now);
    managed.set(who, own.difference(&changed.removed).union(&written), now);
    managed.finish();
    managed
}

/// Removes fields from all managers but one.
fn take(managed: &mut Managed, who: &Who, written: &Set, removed: &Set, now: &str) {
    for entry in managed.0.iter_mut().filter(|entry| !entry.who.is(who)) {
        let left = entry.set.difference(written).difference(removed);
        if left != entry.set {
            entry.set = left;
            entry.time = now.to_owned();
        }
    }
    managed.0.retain(|entry| !entry.set.is_empty() || entry.who.is(who));
}

/// The parameters of an apply, independent of the objects.
pub struct Apply<'a> {
    pub schema: &'a Struct,
    pub scope: Scope,
    pub who: &'a Who,
    /// RFC 3339.
    pub now: &'a str,
}

type Conflicts = Vec<Conflict>;

impl Apply<'_> {
    /// The object that results from applying `config` to `live`, with its `managedFields`.
    pub fn run(
        &self,
        live: Option<&Object>,
        config: &Object,
        managed: Managed,
        force: bool,
    ) -> Result<Object, Conflicts> {
        let nothing = Object(Value::Object(Default::default()));
        let managed = match live {
            Some(live) if managed.is_empty() => self.before_first_apply(live),
            _ => managed,
        };
        let live = live.unwrap_or(&nothing);
        let mut object = match self.attempt(live, config, managed.clone(), force) {
            Err(conflicts) if self.who.manager == KUBECTL => {
                let ours = self.by_last_applied(live);
                let others = conflicts.into_iter().map(|c| Conflict { fields: c.fields.difference(&ours), ..c });
                let others: Conflicts = others.filter(|c| !c.fields.is_empty()).collect();
                if !others.is_empty() {
                    return Err(others);
                }
                self.attempt(live, config, managed, true)?
            }
            outcome => outcome?,
        };
        if self.who.manager == KUBECTL && object.annotation(LAST_APPLIED).is_some_and(|text| !text.is_empty()) {
            keep_telling(&mut object, config);
        }
        Ok(object)
    }

    /// All existing fields of an untracked object.
    fn before_first_apply(&self, live: &Object) -> Managed {
        let who = Who {
            manager: BEFORE_FIRST_APPLY.into(),
            operation: Operation::Update,
            subresource: String::new(),
            ..self.who.clone()
        };
        update(self.schema, self.scope, None, live, Managed::default(), &who, self.now)
    }

    fn attempt(&self, live: &Object, config: &Object, mut managed: Managed, force: bool) -> Result<Object, Conflicts> {
        let last = managed.find(self.who).map(|entry| entry.set.clone()).unwrap_or_default();
        managed.set(self.who, walk::fields(self.schema, self.scope, config), self.now);
        let merged = walk::merge(self.schema, live, config);
        let mut object = self.prune(merged, &managed, &last);

        let changed = walk::compare(self.schema, self.scope, Some(live), &object);
        let written = changed.modified.union(&changed.added);
        let others = managed.0.iter().filter(|entry| !entry.who.is(self.who));
        let conflicts =
            others.map(|entry| Conflict { manager: entry.who.shown(), fields: entry.set.intersection(&written) });
        let conflicts: Conflicts = conflicts.filter(|conflict| !force && !conflict.fields.is_empty()).collect();
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        take(&mut managed, self.who, &written, &changed.removed, self.now);
        managed.finish();
        object.set_meta("managedFields", managed.to_json());
        Ok(object)
    }

    /// Removes what was applied last and is not now, unless another manager owns it too.
    fn prune(&self, merged: Object, managed: &Managed, last: &Set) -> Object {
        // By far the most common case: the new set includes the last one, so nothing is removed.
        let own = managed.find(self.who).map(|entry| &entry.set);
        if last.is_empty() || own.is_some_and(|own| last.difference(own).is_empty()) {
            return merged;
        }
        let named = |set: &Set| walk::with_named_fields(self.schema, set);
        let present = |object: &Object| named(&walk::all_fields(self.schema, object));
        let last = named(last);
        let pruned = walk::hollowed(self.schema, &merged, &last);
        // Others' fields are restored, with the path to them.
        let mut owned = managed.0.iter().fold(Set::default(), |all, entry| all.union(&entry.set));
        // The name has no owner: metadata is not removed with its applied fields.
        owned.insert([element::field("metadata"), element::field("name")]);
        let before = present(&merged);
        let pruned = walk::hollowed(self.schema, &merged, &before.difference(&present(&pruned).union(&named(&owned))));
        // Only what was applied last is removed: other fields below it are restored as well.
        walk::without(self.schema, &merged, &before.difference(&present(&pruned)).intersection(&last))
    }

    /// The fields that a client-side apply set last and that have not changed since.
    fn by_last_applied(&self, live: &Object) -> Set {
        let text = live.annotation(LAST_APPLIED).unwrap_or("");
        let Ok(last) = serde_json::from_str::<Value>(text).map(Object) else { return Set::default() };
        if last.api_version() != self.who.api_version {
            return Set::default();
        }
        let changed = walk::compare(self.schema, self.scope, Some(&last), live);
        let differs = changed.modified.union(&changed.added).union(&changed.removed);
        walk::fields(self.schema, self.scope, &last).difference(&differs)
    }
}

/// The annotation is kept up to date, as long as client-side apply may be used as well.
fn keep_telling(object: &mut Object, config: &Object) {
    let mut bare = config.clone();
    bare.set_meta("managedFields", None);
    if let Ok(annotated) = crate::patch::apply::annotated(&bare.0) {
        object.0["metadata"]["annotations"][LAST_APPLIED] = annotated["metadata"]["annotations"][LAST_APPLIED].clone();
    }
}

/// The refusal of an apply, in upstream's words. Of many conflicts only the first are listed.
pub fn refusal(conflicts: &[Conflict]) -> Status {
    let count: usize = conflicts.iter().map(|conflict| conflict.fields.len()).sum();
    let mut of_managers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut left = MAX_CAUSES;
    for conflict in conflicts {
        let paths = conflict.fields.first_paths(left);
        left -= paths.len();
        of_managers.entry(field_path::head(&conflict.manager, MANAGER)).or_default().extend(paths);
    }
    let shown = of_managers.iter().flat_map(|(manager, paths)| paths.iter().map(move |path| (*manager, path)));
    let causes = shown.clone().map(|(manager, path)| Cause {
        reason: "FieldManagerConflict".into(),
        message: format!("conflict with {manager}"),
        field: path.clone(),
    });
    let message = match (count, shown.clone().next()) {
        (1, Some((manager, path))) => format!("Apply failed with 1 conflict: conflict with {manager}: {path}"),
        _ => {
            let lines = of_managers.iter().flat_map(|(manager, paths)| {
                let named = paths.iter().map(|path| format!("- {path}"));
                std::iter::once(format!("conflicts with {manager}:")).chain(named)
            });
            let lines: Vec<String> = lines.collect();
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
        }
    };
    Status::failure(409, "Conflict", message).with_causes(causes.collect())
}
