//! DeviceClass, ResourceClaim, ResourceClaimTemplate and ResourceSlice (resource.k8s.io/v1).

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::defaults::{each, fill, object};
use crate::validation::{At, Errors, names, same};
use crate::{Cause, Object};

pub const DEVICE_CLASS: Kind = Kind {
    strategy: Strategy { validate: validate_class, has_generation: true, returns_deleted: true, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::resource::v1::DeviceClass>("deviceclass")
};

pub const RESOURCE_CLAIM: Kind = Kind {
    subresources: &["status"],
    columns: &[NAME, column("STATE", |o, _| state(o)), AGE],
    strategy: Strategy {
        default: |claim| default_devices(claim, &["spec", "devices"]),
        prepare_create: |claim| claim.0["status"] = json!({}),
        metadata_by_status: &[],
        validate: validate_claim,
        validate_update: |new, old| fixed(new, old, "spec"),
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::resource::v1::ResourceClaim>("resourceclaim")
};

pub const RESOURCE_CLAIM_TEMPLATE: Kind = Kind {
    strategy: Strategy {
        default: |template| default_devices(template, &["spec", "spec", "devices"]),
        validate: validate_template,
        validate_update: |new, old| fixed(new, old, "spec"),
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::resource::v1::ResourceClaimTemplate>("resourceclaimtemplate")
};

pub const RESOURCE_SLICE: Kind = Kind {
    selectable: &["spec.nodeName", "spec.driver"],
    columns: &[
        NAME,
        column("NODE", |o, _| text(o, "spec.nodeName")),
        column("DRIVER", |o, _| text(o, "spec.driver")),
        column("POOL", |o, _| text(o, "spec.pool.name")),
        AGE,
    ],
    strategy: Strategy {
        validate: validate_slice,
        validate_update: update_slice,
        has_generation: true,
        returns_deleted: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::resource::v1::ResourceSlice>("resourceslice")
};

/// `pending`, `allocated,reserved`
fn state(claim: &Object) -> String {
    let mut all: Vec<&str> = Vec::new();
    all.extend(claim.is_terminating().then_some("deleted"));
    match claim.at("status.allocation") {
        None if claim.is_terminating() => {}
        None => all.push("pending"),
        Some(_) => all.push("allocated"),
    }
    let reserved = claim.at("status.reservedFor").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    all.extend(reserved.then_some("reserved"));
    all.join(",")
}

fn default_devices(it: &mut Object, path: &[&str]) {
    let mut at = it.0.as_object_mut();
    for step in path {
        at = at.and_then(|map| object(map, step));
    }
    let Some(devices) = at else { return };
    for request in each(devices, "requests") {
        if let Some(exactly) = object(request, "exactly") {
            default_request(exactly);
        }
        each(request, "firstAvailable").for_each(default_request);
    }
}

fn default_request(request: &mut Map<String, Value>) {
    fill(request, "allocationMode", "ExactCount");
    if request["allocationMode"] == "ExactCount" && request.get("count").and_then(Value::as_i64).unwrap_or(0) == 0 {
        request.insert("count".into(), 1.into());
    }
    each(request, "tolerations").for_each(|toleration| fill(toleration, "operator", "Equal"));
}

const MAX_ITEMS: usize = 32;

fn validate_class(class: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&class.0).get("spec");
    for field in ["selectors", "config"] {
        let list = spec.get(field);
        if list.len() > MAX_ITEMS {
            errs.too_many(&list.path, list.len(), MAX_ITEMS);
        }
    }
    selectors(&spec.get("selectors"), &mut errs);
    errs.0
}

fn selectors(list: &At<'_>, errs: &mut Errors) {
    for selector in list.items() {
        let cel = selector.get("cel");
        if !cel.is_set() {
            errs.required(&cel.path, "");
        } else if cel.get("expression").is_empty() {
            errs.required(cel.path("expression"), "");
        }
    }
}

fn validate_claim(claim: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    devices(&At::root(&claim.0).get("spec").get("devices"), &mut errs);
    errs.0
}

fn validate_template(template: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    devices(&At::root(&template.0).get("spec").get("spec").get("devices"), &mut errs);
    errs.0
}

fn devices(devices: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for request in devices.get("requests").items() {
        let name = request.get("name");
        errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str()));
        if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
        let (exactly, first) = (request.get("exactly"), request.get("firstAvailable"));
        match (exactly.is_set(), first.is_empty()) {
            (false, true) => errs.required(&request.path, "exactly one of `exactly` or `firstAvailable` is required"),
            (true, false) => {
                errs.invalid(
                    &request.path,
                    "",
                    "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
                );
            }
            (true, true) => device_request(&exactly, errs),
            (false, false) => first.items().for_each(|it| device_request(&it, errs)),
        }
    }
    for constraint in devices.get("constraints").items() {
        for request in constraint.get("requests").items() {
            let main = request.str().split('/').next().unwrap_or("");
            if !seen.contains(&main) {
                errs.invalid(&request.path, request.str(), "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'");
            }
        }
    }
}

fn device_request(request: &At<'_>, errs: &mut Errors) {
    let (class, mode, count) = (request.get("deviceClassName"), request.get("allocationMode"), request.get("count"));
    match class.is_empty() {
        true => errs.required(&class.path, ""),
        false => errs.invalid_each(&class.path, class.str(), names::dns1123_subdomain(class.str())),
    }
    selectors(&request.get("selectors"), errs);
    match mode.str() {
        "ExactCount" if count.int().unwrap_or(0) <= 0 => {
            errs.invalid(&count.path, count.int().unwrap_or(0), "must be greater than zero");
        }
        "All" if count.int().unwrap_or(0) != 0 => {
            errs.invalid_value(&count.path, count.value, "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" | "All" => {}
        other => errs.not_supported(&mode.path, other, &["All", "ExactCount"]),
    }
}

fn fixed(new: &Object, old: &Object, field: &str) -> Vec<Cause> {
    let mut errs = Errors::default();
    errs.immutable(&At::root(&new.0).get(field), &At::root(&old.0).get(field));
    errs.0
}

fn validate_slice(slice: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&slice.0).get("spec");
    let (driver, pool) = (spec.get("driver"), spec.get("pool"));
    super::csi_driver::driver_name(&driver, &mut errs);
    if pool.get("name").is_empty() {
        errs.required(pool.path("name"), "");
    }
    if pool.get("resourceSliceCount").int().unwrap_or(0) <= 0 {
        errs.invalid(
            pool.path("resourceSliceCount"),
            pool.get("resourceSliceCount").int().unwrap_or(0),
            "must be greater than zero",
        );
    }
    errs.non_negative(&pool.get("generation"));
    let places = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    let set = places.iter().filter(|place| {
        let at = spec.get(place);
        at.bool() || (at.is_set() && !at.value.is_boolean())
    });
    match set.count() {
        0 => errs.required(&spec.path, "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"),
        1 => {}
        _ => errs.invalid(&spec.path, "", "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"),
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for device in spec.get("devices").items() {
        let name = device.get("name");
        errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str()));
        if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
    }
    errs.0
}

fn update_slice(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let (new, old) = (At::root(&new.0).get("spec"), At::root(&old.0).get("spec"));
    for field in ["driver", "nodeName"] {
        if !same(new.get(field).value, old.get(field).value) {
            errs.immutable(&new.get(field), &old.get(field));
        }
    }
    errs.immutable(&new.get("pool").get("name"), &old.get("pool").get("name"));
    errs.0
}
