//! PriorityClass (scheduling.k8s.io/v1).

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, number, text_or};
use crate::defaults::fill;
use crate::validation::{At, Errors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["pc"],
    columns: &[
        NAME,
        column("VALUE", |o, _| number(o, "value").to_string()),
        column("GLOBAL-DEFAULT", |o, _| (o.0["globalDefault"] == true).to_string()),
        AGE,
        column("PREEMPTIONPOLICY", |o, _| text_or(o, "preemptionPolicy", "PreemptLowerPriority")),
    ],
    strategy: Strategy { default, validate, validate_update, has_generation: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::scheduling::v1::PriorityClass>("priorityclass")
};

/// The limit for users' classes; the system's two are above it.
const HIGHEST: i64 = 1_000_000_000;
const SYSTEM: &[(&str, i64)] = &[("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

fn default(class: &mut Object) {
    let Some(map) = class.0.as_object_mut() else { return };
    fill(map, "preemptionPolicy", "PreemptLowerPriority");
}

fn validate(class: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&class.0);
    let value = root.get("value").int().unwrap_or(0);
    if let Some(name) = Some(class.name()).filter(|name| name.starts_with("system-")) {
        let known = SYSTEM.iter().find(|(system, _)| *system == name);
        match known {
            None => {
                let why = "priority class names with 'system-' prefix are reserved for system use only. error: \
                           forbidden priority class name";
                errs.forbidden("metadata.name", why);
            }
            Some((_, wanted)) if *wanted != value => {
                let why = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: value of {name} \
                     PriorityClass must be {wanted}"
                );
                errs.forbidden("metadata.name", why);
            }
            Some(_) => {}
        }
    } else if value > HIGHEST {
        errs.forbidden("value", format!("maximum allowed value of a user defined priority is {HIGHEST}"));
    }
    errs.one_of(&root.get("preemptionPolicy"), &["Never", "PreemptLowerPriority"]);
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0), At::root(&old.0));
    if new.get("value").int().unwrap_or(0) != old.get("value").int().unwrap_or(0) {
        errs.forbidden("value", "may not be changed in an update.");
    }
    errs.immutable(&new.get("preemptionPolicy"), &old.get("preemptionPolicy"));
    errs.0
}
