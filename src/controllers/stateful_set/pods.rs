//! Builds a StatefulSet's Pods: from a revision's template, with the identity and claims of an ordinal.

use std::collections::HashSet;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaimVolumeSource, Pod, Volume},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Revision, claims, identity, meta};
use crate::{history, replica_set};

/// The Pod of an ordinal.
pub fn create(set: &StatefulSet, ordinal: i32, revision: &Revision) -> Pod {
    let from = revision.template.metadata.clone().unwrap_or_default();
    let mut labels = from.labels.unwrap_or_default();
    labels.insert(history::REVISION.into(), revision.name.clone());
    let mut spec = revision.template.spec.clone().unwrap_or_default();
    spec.hostname = Some(identity::name(set, ordinal));
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone()).filter(|name| !name.is_empty());
    let volumes = volumes(set, ordinal, spec.volumes.take().unwrap_or_default());
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(identity::name(set, ordinal)),
            // It has no effect, but upstream's Pods have it, and some programs identify siblings by it.
            generate_name: Some(replica_set::prefix(meta::name(&set.metadata))),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![meta::owner_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    };
    identity::named(set, ordinal, &pod)
}

/// The ordinal's claims and the template's volumes; a claim replaces a volume of the same name.
fn volumes(set: &StatefulSet, ordinal: i32, others: Vec<Volume>) -> Vec<Volume> {
    let claimed: Vec<Volume> = claims::templates(set)
        .map(|template| Volume {
            name: meta::name(&template.metadata).to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claims::name(set, template, ordinal),
                read_only: None,
            }),
            ..Volume::default()
        })
        .collect();
    let names: HashSet<String> = claimed.iter().map(|volume| volume.name.clone()).collect();
    let others = others.into_iter().filter(|other| !names.contains(&other.name));
    claimed.into_iter().chain(others).collect()
}
