//! What a DELETE answers, for every kind there is: the object, or a Status that names it.

use std::collections::BTreeSet;

use podwright::api::{
    Verb,
    kinds::{self, KINDS},
    yaml,
};
use serde_json::{Value, json};

use super::Rest;
use crate::api::manifests::MANIFESTS;

/// The kinds whose deletion upstream answers with the object that is gone; all others get a Status.
const RETURNED: &[&str] = &[
    "CSIDriver",
    "CSINode",
    "DeviceClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceQuota",
    "ResourceSlice",
    "Service",
    "ServiceAccount",
    "StorageClass",
    "VolumeAttachment",
    "VolumeAttributesClass",
];

#[tokio::test]
async fn a_deletion_answers_as_upstreams_does_for_every_kind() {
    let rest = Rest::new().await;
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (name, text) in MANIFESTS {
        let text = text.replace("namespace: d}", "namespace: default}").replace("namespace: d,", "namespace: default,");
        let manifest: Value = yaml::documents(&text).unwrap().remove(0);
        let kind = kinds::of(manifest["apiVersion"].as_str().unwrap(), manifest["kind"].as_str().unwrap()).unwrap();
        if !kind.verbs.contains(&Verb::Delete) || !kind.verbs.contains(&Verb::Create) {
            continue;
        }
        let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
        let namespace = if kind.namespaced { "/namespaces/default" } else { "" };
        let list = format!("{root}/{}{namespace}/{}", kind.version, kind.plural);
        let made = rest.post(&list, manifest).await;
        if made.code != 201 {
            wrong.push(format!("{name} is not made: {}", made.text()));
            continue;
        }
        let made = made.json();
        let path = format!("{list}/{}", made["metadata"]["name"].as_str().unwrap());
        let answer = rest.ask(&format!("DELETE {path}?gracePeriodSeconds=0"), &[], "").await;
        assert_eq!(answer.code, 200, "{name}: {}", answer.text());
        let answer = answer.json();
        let left = rest.get(&path).await;
        let of = format!("{name}: {answer:#}");
        if left.code == 200 || answer["metadata"]["deletionTimestamp"].is_string() && answer["kind"] == kind.kind {
            // Something held it: it was going, and was shown as such. It may have gone since.
            assert_eq!(answer["kind"], kind.kind, "{of}");
            assert!(answer["metadata"]["deletionTimestamp"].is_string(), "{of}");
        } else if RETURNED.contains(&kind.kind) {
            assert_eq!(
                (&answer["kind"], &answer["apiVersion"]),
                (&json!(kind.kind), &json!(kind.api_version())),
                "{of}"
            );
            assert_eq!(answer["metadata"]["uid"], made["metadata"]["uid"], "{of}");
        } else {
            let details =
                json!({"name": made["metadata"]["name"], "kind": kind.plural, "uid": made["metadata"]["uid"]});
            let mut wanted = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
            });
            if !kind.group.is_empty() {
                wanted["details"]["group"] = kind.group.into();
            }
            if answer != wanted {
                wrong.push(of);
            }
        }
        seen.insert(kind.kind);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let deletable = KINDS.iter().filter(|k| k.verbs.contains(&Verb::Delete) && k.verbs.contains(&Verb::Create));
    let missing: Vec<&str> = deletable.map(|kind| kind.kind).filter(|kind| !seen.contains(kind)).collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
}
