//! Field management: how a write changes an object's managedFields, and server-side apply.

use serde_json::Value;

use podwright_api::kinds::{self, Storage};
use podwright_api::managed_fields::{self, Entry, MAX_MANAGERS, Managed, Operation, Scope, Set, Who};
use podwright_api::request::PatchType;
use podwright_api::validation::Errors;
use podwright_api::{Object, Status, Verb};

use super::resolved_request::WriteScope;
use super::resolved_request::{ResolvedRequest, bad_value};
use super::versions::{shown_as, stored_of};

/// Objects created by built-in components are not tracked until somebody applies them; upstream's server has this option too
/// (`skipNonAppliedManager`), and untracked fields belong to `before-first-apply` then.
const COMPONENTS: &[&str] = &["kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];

/// For how many managers of an object fields are converted between versions.
const MAX_OTHERS: usize = 32;

/// The longest name of a manager.
const MAX_MANAGER: usize = 128;

impl ResolvedRequest {
    /// Whether it is a server-side apply; the applied object carries managers.
    pub fn is_apply(&self) -> bool {
        // A Scale is a view: its one field is written, not applied.
        self.options.patch_type == Some(PatchType::Apply) && self.subresource.as_deref() != Some("scale")
    }

    fn manager(&self) -> Option<&str> {
        self.options.field_manager.as_deref().filter(|name| !name.is_empty())
    }

    fn who(&self, operation: Operation) -> Who {
        Who {
            manager: self.manager().unwrap_or("unknown").to_owned(),
            operation,
            api_version: self.asked().api_version(),
            subresource: self.subresource.clone().unwrap_or_default(),
        }
    }

    fn scope(&self, part: WriteScope) -> Scope {
        match part {
            WriteScope::Status => Scope::Status,
            WriteScope::Resize => Scope::Resize,
            WriteScope::Whole | WriteScope::Ephemeral if self.kind.has_subresource("status") => Scope::Main,
            _ => Scope::All,
        }
    }

    /// Validates the field manager of a request.
    pub fn check_manager(&self) -> Result<(), Status> {
        let options = match self.verb {
            Verb::Create => "CreateOptions",
            Verb::Update => "UpdateOptions",
            _ => "PatchOptions",
        };
        let refused = |cause| Err(Status::invalid(options, "meta.k8s.io", "", vec![cause]));
        let name = self.manager().unwrap_or("");
        if name.len() > MAX_MANAGER {
            let why = format!("may not be more than {MAX_MANAGER} bytes");
            return refused(bad_value("fieldManager", &Value::from(name), &why));
        }
        if name.chars().any(|c| c.is_control()) {
            return refused(bad_value("fieldManager", &Value::from(name), "should only contain printable characters"));
        }
        if self.verb != Verb::Patch {
            return Ok(());
        }
        if self.is_apply() && name.is_empty() {
            let message = "Required value: is required for apply patch".to_owned();
            return refused(podwright_api::Cause {
                reason: "FieldValueRequired".into(),
                message,
                field: "fieldManager".into(),
            });
        }
        if self.options.force && !self.is_apply() {
            let message = "Forbidden: may not be specified for non-apply patch".to_owned();
            return refused(podwright_api::Cause {
                reason: "FieldValueForbidden".into(),
                message,
                field: "force".into(),
            });
        }
        Ok(())
    }
}

/// What the object itself says about managers.
enum Given {
    /// Clears all managers.
    Reset,
    /// Unchanged, or as the writer has changed it.
    Managed(Managed),
}

fn given(new: &Object, old: Option<&Object>) -> Given {
    let of_old = || old.and_then(Managed::of).unwrap_or_default();
    match &new.0["metadata"]["managedFields"] {
        Value::Array(entries) if entries.iter().all(|e| e.as_object().is_some_and(|m| m.is_empty())) => Given::Reset,
        Value::Array(_) => Given::Managed(Managed::of(new).filter(|m| !m.is_empty()).unwrap_or_else(of_old)),
        _ => Given::Managed(of_old()),
    }
}

/// Sets the managers of a new object: all of its fields belong to its creator.
pub(super) fn created(call: &ResolvedRequest, object: &mut Object, now: &str) {
    if call.is_apply() {
        return;
    }
    let tracked = call.manager().is_some_and(|name| !COMPONENTS.contains(&name));
    let managed = match given(object, None) {
        Given::Managed(managed) if tracked || !managed.is_empty() => managed,
        _ => return object.set_meta("managedFields", None),
    };
    let (schema, who) = (call.asked().schema(), call.who(Operation::Update));
    let scope = call.scope(WriteScope::Whole);
    let managed = managed_fields::update(&schema, scope, None, &call.shown(object), managed, &who, now);
    object.set_meta("managedFields", managed.to_json());
}

/// Sets the managers of an updated object. Untracked objects stay untracked.
pub(super) fn updated(
    call: &ResolvedRequest,
    part: WriteScope,
    new: &mut Object,
    old: &Object,
    now: impl FnOnce() -> String,
) {
    if call.is_apply() {
        return;
    }
    let before = old.0["metadata"].get("managedFields");
    if before.is_none() && new.0["metadata"].get("managedFields").is_none() {
        return;
    }
    let (schema, who) = (call.asked().schema(), call.who(Operation::Update));
    // Most writers send no managers: then the entries are parsed only if something has changed.
    if new.0["metadata"].get("managedFields").is_none_or(|value| Some(value) == before) {
        let changed = managed_fields::compare(&schema, call.scope(part), Some(&call.shown(old)), &call.shown(new));
        let value = match Managed::of(old).filter(|managed| !changed.is_empty() && !managed.is_empty()) {
            Some(managed) => {
                let told = Told::of(call, old, managed);
                told.back(managed_fields::update_with(changed, told.managed.clone(), &who, &now())).to_json()
            }
            None => before.cloned(),
        };
        return new.set_meta("managedFields", value);
    }
    let managed = match given(new, Some(old)) {
        Given::Managed(managed) if !managed.is_empty() => managed,
        _ => return new.set_meta("managedFields", None),
    };
    let (shown, shown_old) = (call.shown(new), call.shown(old));
    let after =
        managed_fields::update(&schema, call.scope(part), Some(&shown_old), &shown, managed.clone(), &who, &now());
    // Keeps the original text if nothing has changed: otherwise this would be a write.
    let value = match before {
        Some(value) if Managed::of(old).as_ref() == Some(&after) => Some(value.clone()),
        _ => after.to_json(),
    };
    new.set_meta("managedFields", value);
}

/// Refuses a manifest with wrong types, or one that cannot be merged, in upstream's words, which have no reason.
pub(super) fn check_applied(call: &ResolvedRequest, body: &Value) -> Result<(), Status> {
    let kind = call.asked();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let asked = (kind.api_version(), kind.kind.to_owned());
    if (text(&body["apiVersion"]), text(&body["kind"])) != asked {
        // Decoding reports the error.
        return Ok(());
    }
    managed_fields::check(&kind.schema(), body).map_err(|why| {
        let namespace = match body["metadata"]["namespace"].as_str() {
            Some(namespace) if !namespace.is_empty() => namespace,
            _ => call.namespace.as_deref().unwrap_or(""),
        };
        let place = format!("{namespace}/{}", text(&body["metadata"]["name"]));
        let version = format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind);
        Status::failure(500, "", format!("failed to create typed patch object ({place}; {version}): {why}"))
    })
}

/// The object, with its managers, that results from applying a manifest to the live one. All in the requested version.
pub(super) fn applied(
    call: &ResolvedRequest,
    part: WriteScope,
    live: Option<&Object>,
    config: &Object,
    now: &str,
) -> Result<Object, Status> {
    let schema = call.asked().schema();
    let managed = live.and_then(Managed::of).unwrap_or_default();
    let told = match live {
        Some(live) => Told::of(call, &stored_of(call.asked(), live.clone()), managed),
        None => Told { managed, other: Vec::new(), version: call.asked().api_version() },
    };
    let who = call.who(Operation::Apply);
    let applying = told.managed.0.iter().filter(|entry| entry.who.operation == Operation::Apply).count();
    if applying >= MAX_MANAGERS && told.managed.find(&who).is_none() {
        let mut errs = Errors::default();
        errs.too_many("metadata.managedFields", applying + 1, MAX_MANAGERS);
        return Err(call.invalid(config.name(), errs.0));
    }
    let apply = managed_fields::Apply { schema: &schema, scope: call.scope(part), who: &who, now };
    let applied = apply.run(live, config, told.managed.clone(), call.options.force);
    let mut object = applied.map_err(|conflicts| managed_fields::refusal(&conflicts))?;
    if !told.other.is_empty() {
        let managed = told.back(Managed::of(&object).unwrap_or_default());
        object.set_meta("managedFields", managed.to_json());
    }
    Ok(object)
}

/// An object's managers, with their fields named by one version of its kind: what was written in another version, where fields have
/// other names, belongs to its manager in this one too.
///
/// Each conversion costs as much as the whole object, so only the first ones are converted: later managers in other versions are
/// compared by those versions' names.
struct Told {
    managed: Managed,
    /// The entries written in other versions, with their conversions.
    other: Vec<(Entry, Set)>,
    version: String,
}

impl Told {
    /// The managers of a stored object in the requested version.
    fn of(call: &ResolvedRequest, stored: &Object, mut managed: Managed) -> Told {
        let (asked, version) = (call.asked(), call.asked().api_version());
        let mut other = Vec::new();
        let others = managed.0.iter_mut().filter(|entry| entry.who.api_version != version).take(MAX_OTHERS);
        let mut stored = stored.clone();
        stored.set_meta("managedFields", None);
        for entry in others {
            let Some(row) = kinds::of(&entry.who.api_version, asked.kind) else { continue };
            let converts = matches!(row.storage, Storage::As(_)) || matches!(asked.storage, Storage::As(_));
            if !converts || !std::ptr::eq(row.stored(), asked.stored()) {
                continue;
            }
            // Only the managed fields, as an object of its version; then converted to ours.
            let schema = row.schema();
            let shown = shown_as(row, &stored);
            let rest = managed_fields::all_fields(&schema, &shown).difference(&entry.set);
            let own = shown_as(asked, &stored_of(row, managed_fields::without(&schema, &shown, &rest)));
            let scope = if entry.who.subresource == "status" { Scope::Status } else { call.scope(WriteScope::Whole) };
            let set = managed_fields::fields(&asked.schema(), scope, &own);
            other.push((std::mem::replace(entry, Entry { set: set.clone(), ..entry.clone() }), set));
        }
        Told { managed, other, version }
    }

    /// The managers after a write: untouched ones stay in their own version.
    fn back(&self, mut managed: Managed) -> Managed {
        for (before, set) in &self.other {
            for entry in managed.0.iter_mut().filter(|entry| entry.who == before.who) {
                match entry.set == *set {
                    true => *entry = before.clone(),
                    false => entry.who.api_version.clone_from(&self.version),
                }
            }
        }
        managed
    }
}
