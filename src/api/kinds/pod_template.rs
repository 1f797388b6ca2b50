//! PodTemplate.

use serde_json::Value;

use super::{Kind, Strategy};
use crate::columns::{NAME, column, joined, pairs};
use crate::defaults;
use crate::validation::{At, Errors, pod};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    columns: &[
        NAME,
        column("CONTAINERS", |o, _| joined(containers(o), |c| c["name"].as_str())),
        column("IMAGES", |o, _| joined(containers(o), |c| c["image"].as_str())),
        column("POD LABELS", |o, _| pairs(o.at("template.metadata.labels"))),
    ],
    strategy: Strategy { default, validate, has_generation: true, returns_deleted: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::core::v1::PodTemplate>("podtemplate")
};

fn containers(template: &Object) -> Option<&Value> {
    template.at("template.spec.containers")
}

fn default(template: &mut Object) {
    if let Some(map) = template.0.as_object_mut() {
        defaults::pod::template(map);
    }
}

fn validate(template: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    pod::template(&At::root(&template.0).get("template"), &mut errs);
    errs.0
}
