//! StatefulSet (apps/v1).

use serde_json::{Value, json};

use super::replica_set::SCALE;
use super::{Kind, Strategy, persistent_volume_claim};
use crate::columns::{AGE, NAME, column, containers, number, wide};
use crate::defaults::{self, each, fill, made};
use crate::validation::{At, Errors, same, workload};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["sts"],
    categories: &["all"],
    subresources: &["status", "scale"],
    columns: &[
        NAME,
        column("READY", |o, _| format!("{}/{}", number(o, "status.readyReplicas"), number(o, "spec.replicas"))),
        AGE,
        wide("CONTAINERS", |o, _| containers(o, "name")),
        wide("IMAGES", |o, _| containers(o, "image")),
    ],
    scale: Some(SCALE),
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        validate_update,
        validate_status,
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::apps::v1::StatefulSet>("statefulset")
};

fn default(set: &mut Object) {
    let Some(map) = set.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "podManagementPolicy", "OrderedReady");
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    let strategy = made(spec, "updateStrategy");
    fill(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        fill(made(strategy, "rollingUpdate"), "partition", 0);
    }
    let retention = made(spec, "persistentVolumeClaimRetentionPolicy");
    fill(retention, "whenDeleted", "Retain");
    fill(retention, "whenScaled", "Retain");
    for claim in each(spec, "volumeClaimTemplates") {
        fill(claim, "apiVersion", "v1");
        fill(claim, "kind", "PersistentVolumeClaim");
        persistent_volume_claim::default_spec(made(claim, "spec"));
        fill(made(claim, "status"), "phase", "Pending");
    }
    defaults::pod::template(spec);
}

fn prepare_create(set: &mut Object) {
    set.0["status"] = json!({"replicas": 0, "availableReplicas": 0});
}

fn validate(set: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&set.0).get("spec");
    let policy = spec.get("podManagementPolicy");
    if !matches!(policy.str(), "OrderedReady" | "Parallel") {
        errs.invalid(&policy.path, policy.str(), "must be 'OrderedReady' or 'Parallel'");
    }
    update_strategy(&spec.get("updateStrategy"), &mut errs);
    let retention = spec.get("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        errs.one_of(&retention.get(field), &["Delete", "Retain"]);
    }
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        errs.non_negative(&spec.get(field));
    }
    errs.non_negative(&spec.get("ordinals").get("start"));
    workload::selector_and_template(&spec, "StatefulSet", &claims(&spec), &mut errs);
    errs.0
}

/// The volumes that claim templates add to Pods.
fn claims<'a>(spec: &At<'a>) -> Vec<&'a str> {
    spec.get("volumeClaimTemplates").items().map(|claim| claim.get("metadata").get("name").str()).collect()
}

fn update_strategy(strategy: &At<'_>, errs: &mut Errors) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").str() {
        "OnDelete" if rolling.is_set() => {
            errs.invalid_value(&rolling.path, rolling.value, "only allowed for updateStrategy 'RollingUpdate'");
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            errs.non_negative(&rolling.get("partition"));
            let unavailable = rolling.get("maxUnavailable");
            if unavailable.is_set() {
                workload::int_or_percent(&unavailable, errs);
                workload::at_most_100_percent(&unavailable, errs);
                if workload::is_zero(unavailable.value) {
                    errs.invalid_value(&unavailable.path, unavailable.value, "cannot be 0");
                }
            }
        }
        _ => errs.invalid_value(&strategy.path, strategy.value, "must be 'RollingUpdate' or 'OnDelete'"),
    }
}

/// The mutable fields of a spec.
const MUTABLE: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let fixed = |set: &Object| -> Value {
        let mut spec = set.0["spec"].clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|field, _| !MUTABLE.contains(&field.as_str()));
        }
        spec
    };
    if !same(&fixed(new), &fixed(old)) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                   'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                   'minReadySeconds' are forbidden";
        errs.forbidden("spec", why);
    }
    errs.0
}

fn validate_status(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    const COUNTS: &[&str] = &[
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    const ORDER: &[(&str, &str)] = &[
        ("readyReplicas", "replicas"),
        ("currentReplicas", "replicas"),
        ("updatedReplicas", "replicas"),
        ("availableReplicas", "replicas"),
        ("availableReplicas", "readyReplicas"),
    ];
    let (new, old) = (At::root(&new.0).get("status"), At::root(&old.0).get("status"));
    workload::status(&new, COUNTS, ORDER, &mut errs);
    workload::not_decremented(&new.get("collisionCount"), &old.get("collisionCount"), &mut errs);
    errs.0
}
