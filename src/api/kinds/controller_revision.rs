//! ControllerRevision (apps/v1).

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, number};
use crate::status::qualified;
use crate::validation::{At, Errors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[
        NAME,
        column("CONTROLLER", |o, _| controller(o)),
        column("REVISION", |o, _| number(o, "revision").to_string()),
        AGE,
    ],
    strategy: Strategy { validate, validate_update, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::apps::v1::ControllerRevision>("controllerrevision")
};

/// `statefulset.apps/web`
fn controller(revision: &Object) -> String {
    let Some(owner) = revision.controller() else { return "<none>".into() };
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    format!("{}/{}", qualified(&owner.kind.to_lowercase(), group), owner.name)
}

fn validate(revision: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let root = At::root(&revision.0);
    if !root.get("data").is_set() {
        errs.required("data", "data is mandatory");
    }
    errs.non_negative(&root.get("revision"));
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    errs.immutable(&At::root(&new.0).get("data"), &At::root(&old.0).get("data"));
    errs.0
}
