//! Names of custom resources: each belongs to one definition of a group. Upstream: the naming and establishing controllers.

use serde_json::{Value, json};

use super::{set_condition, strings};
use podwright_api::Object;
use podwright_api::kinds::KINDS;

/// The single-valued name fields, with upstream's reasons for a conflict.
const SINGLE: &[(&str, &str)] = &[
    ("plural", "PluralConflict"),
    ("singular", "SingularConflict"),
    ("kind", "KindConflict"),
    ("listKind", "ListKindConflict"),
];

/// The definition with its accepted names and conditions, if they differ from its status; `all` contains the definitions of all
/// groups, including itself.
pub fn accept(definition: &Object, all: &[Object], now: &str) -> Option<Object> {
    let taken = OccupiedNames::by_others(definition, all);
    let (asked, had) = (&definition.0["spec"]["names"], &definition.0["status"]["acceptedNames"]);
    let mut accepted = if had.is_object() { had.clone() } else { json!({}) };
    let mut refusal: Option<(&str, String)> = None;
    let mut refuse = |reason: &'static str, name: &str| refusal = Some((reason, format!("{name:?} is already in use")));
    for (field, reason) in SINGLE {
        let name = asked[*field].as_str().unwrap_or("");
        let others = if field.ends_with("ind") { &taken.kinds } else { &taken.resources };
        match others.contains(&name) && had[*field].as_str() != Some(name) {
            true => refuse(reason, name),
            false => accepted[*field] = name.into(),
        }
    }
    let short = strings(&asked["shortNames"]);
    let clashing: Vec<&&str> = short.iter().filter(|name| taken.resources.contains(name)).collect();
    match clashing.first() {
        Some(name) => refuse("ShortNamesConflict", name),
        None => set(&mut accepted, "shortNames", &asked["shortNames"]),
    }
    set(&mut accepted, "categories", &asked["categories"]);

    let mut new = definition.clone();
    if !new.0["status"].is_object() {
        new.0["status"] = json!({});
    }
    let mut changed = had != &accepted;
    new.0["status"]["acceptedNames"] = accepted;
    changed |= match &refusal {
        None => set_condition(&mut new, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now),
        Some((reason, why)) => set_condition(&mut new, "NamesAccepted", "False", reason, why, now),
    };
    let established = |o: &Object| condition(o, "Established") == Some("True");
    changed |= match refusal {
        _ if established(definition) => false,
        None => {
            let why = "the initial names have been accepted";
            set_condition(&mut new, "Established", "True", "InitialNamesAccepted", why, now)
        }
        Some(_) => {
            let why = "not all names are accepted";
            set_condition(&mut new, "Established", "False", "NotAccepted", why, now)
        }
    };
    let storage = definition.0["spec"]["versions"].as_array().into_iter().flatten().find(|v| v["storage"] == true);
    let storage = storage.and_then(|version| version["name"].as_str()).unwrap_or("");
    if !storage.is_empty() && !strings(&definition.0["status"]["storedVersions"]).contains(&storage) {
        let mut stored: Vec<&str> = strings(&definition.0["status"]["storedVersions"]);
        stored.push(storage);
        new.0["status"]["storedVersions"] = json!(stored);
        changed = true;
    }
    changed.then_some(new)
}

fn set(accepted: &mut Value, field: &str, names: &Value) {
    let Some(map) = accepted.as_object_mut() else { return };
    match names.as_array().is_some_and(|names| !names.is_empty()) {
        true => drop(map.insert(field.to_owned(), names.clone())),
        false => drop(map.shift_remove(field)),
    }
}

fn condition<'a>(definition: &'a Object, of: &str) -> Option<&'a str> {
    let conditions = definition.0["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == of)?["status"].as_str()
}

/// The names taken in the group: by other definitions, and by built-in kinds.
#[derive(Default)]
struct OccupiedNames<'a> {
    resources: Vec<&'a str>,
    kinds: Vec<&'a str>,
}

impl<'a> OccupiedNames<'a> {
    fn by_others(definition: &Object, all: &'a [Object]) -> OccupiedNames<'a> {
        let mut taken = OccupiedNames::default();
        let group = &definition.0["spec"]["group"];
        for other in all.iter().filter(|o| o.name() != definition.name() && &o.0["spec"]["group"] == group) {
            let names = &other.0["status"]["acceptedNames"];
            taken.resources.extend([names["plural"].as_str(), names["singular"].as_str()].into_iter().flatten());
            taken.resources.extend(strings(&names["shortNames"]));
            taken.kinds.extend([names["kind"].as_str(), names["listKind"].as_str()].into_iter().flatten());
        }
        for kind in KINDS.iter().filter(|kind| group == kind.group) {
            taken.resources.extend([kind.plural, kind.singular]);
            taken.resources.extend(kind.short_names);
            taken.kinds.push(kind.kind);
        }
        taken.resources.retain(|name| !name.is_empty());
        taken.kinds.retain(|name| !name.is_empty());
        taken
    }
}
