//! Deployment (apps/v1).

use serde_json::json;

use super::replica_set::SCALE;
use super::{Kind, Strategy};
use crate::api::Object;
use crate::api::columns::{AGE, NAME, column, containers, number, selector, wide};
use crate::api::defaults::{self, fill, made};
use crate::api::schema::of_type;

pub const KIND: Kind = Kind {
    kind: "Deployment",
    group: "apps",
    version: "v1",
    plural: "deployments",
    singular: "deployment",
    short_names: &["deploy"],
    namespaced: true,
    categories: &["all"],
    subresources: &["status", "scale"],
    selectable: &[],
    schema: of_type::<k8s_openapi::api::apps::v1::Deployment>(),
    columns: &[
        NAME,
        column("READY", |o, _| format!("{}/{}", number(o, "status.readyReplicas"), number(o, "spec.replicas"))),
        column("UP-TO-DATE", |o, _| number(o, "status.updatedReplicas").to_string()),
        column("AVAILABLE", |o, _| number(o, "status.availableReplicas").to_string()),
        AGE,
        wide("CONTAINERS", |o, _| containers(o, "name")),
        wide("IMAGES", |o, _| containers(o, "image")),
        wide("SELECTOR", |o, _| selector(o.at("spec.selector"))),
    ],
    scale: Some(SCALE),
    strategy: Strategy { default, prepare_create, has_generation: true, ..Strategy::PLAIN },
};

fn default(deployment: &mut Object) {
    let Some(map) = deployment.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    fill(spec, "progressDeadlineSeconds", 600);
    let strategy = made(spec, "strategy");
    fill(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = made(strategy, "rollingUpdate");
        fill(rolling, "maxUnavailable", "25%");
        fill(rolling, "maxSurge", "25%");
    }
    defaults::pod::template(spec);
}

fn prepare_create(deployment: &mut Object) {
    deployment.0["status"] = json!({});
}
