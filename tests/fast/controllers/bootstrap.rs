//! Bootstrap tokens: what they sign, and when they go.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use podwright::api::bootstrap_token::Token;
use podwright::controllers::{Plan, bootstrap_signer, token_cleaner};
use serde_json::{Value, json};

use super::{at, lines, merge, object};

const INFO: &str = "apiVersion: v1\nclusters: []\n";

fn info(signatures: Value) -> Arc<ConfigMap> {
    let mut data = json!({"kubeconfig": INFO});
    json_patch::merge(&mut data, &signatures);
    object(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": "cluster-info", "namespace": "kube-public", "resourceVersion": "3"},
    }))
}

/// The Secret of `abcdef.0123456789abcdef`, changed by a merge patch whose `data` is plain text.
fn token(change: Value) -> Arc<Secret> {
    let mut secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system", "uid": "u", "resourceVersion": "7"},
        "data": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"},
    });
    json_patch::merge(&mut secret, &change);
    for text in secret["data"].as_object_mut().unwrap().values_mut() {
        *text = STANDARD.encode(text.as_str().unwrap()).into();
    }
    object(secret)
}

fn signed(held: &ConfigMap, tokens: &[Arc<Secret>]) -> Plan {
    bootstrap_signer::plan(held, tokens.iter().map(AsRef::as_ref), at(0))
}

/// The ids that the ConfigMap is signed by after the plan.
fn signers(held: &Arc<ConfigMap>, plan: &Plan) -> Vec<String> {
    let mut after = (**held).clone();
    for write in plan.writes() {
        assert_eq!(write.request.body.as_ref().unwrap()["metadata"]["resourceVersion"], "3", "of exactly this state");
        merge(&mut after, write.request.body.as_ref().unwrap());
    }
    let data = after.data.unwrap();
    assert_eq!(data["kubeconfig"], INFO);
    let signatures = data.iter().filter_map(|(key, signature)| Some((key.strip_prefix("jws-kubeconfig-")?, signature)));
    let valid = signatures.inspect(|(id, signature)| {
        let token: Token = format!("{id}.0123456789abcdef").parse().unwrap();
        assert!(token.has_signed(INFO, signature), "{id}");
    });
    valid.map(|(id, _)| id.to_owned()).collect()
}

#[test]
fn cluster_info_is_signed_by_each_token_that_may_sign_and_by_no_other() {
    let own = token(json!({}));
    let second = token(json!({"metadata": {"name": "bootstrap-token-second"}, "data": {"token-id": "second"}}));
    let held = info(json!({}));
    let plan = signed(&held, &[own.clone(), second.clone()]);
    assert_eq!(signers(&held, &plan), ["abcdef", "second"]);
    // Signed, nothing is left to do.
    let signature = "abcdef.0123456789abcdef".parse::<Token>().unwrap().sign(INFO);
    let held = info(json!({"jws-kubeconfig-abcdef": signature, "jws-kubeconfig-gone99": "x.y.z"}));
    assert_eq!(signers(&held, &signed(&held, &[own.clone()])), ["abcdef"], "a signature goes with its token");
    let held = info(json!({"jws-kubeconfig-abcdef": signature}));
    assert!(signed(&held, &[own]).is_empty());
    let other_text = info(json!({"jws-kubeconfig-abcdef": "eyJh..x", "kubeconfig": INFO}));
    assert_eq!(signers(&other_text, &signed(&other_text, &[token(json!({}))])), ["abcdef"], "a wrong one is replaced");
    assert!(signed(&info(json!({"kubeconfig": null})), &[second]).is_empty());

    for (why, change) in [
        ("usage", json!({"data": {"usage-bootstrap-signing": "false"}})),
        ("usage", json!({"data": {"usage-bootstrap-signing": null, "usage-bootstrap-authentication": "true"}})),
        ("type", json!({"type": "Opaque"})),
        ("namespace", json!({"metadata": {"namespace": "default"}})),
        ("name", json!({"metadata": {"name": "bootstrap-token-second"}})),
        ("secret", json!({"data": {"token-secret": "short"}})),
        ("ended", json!({"data": {"expiration": at(0).to_string()}})),
        ("no time", json!({"data": {"expiration": "soon"}})),
        ("deleted", json!({"metadata": {"deletionTimestamp": at(-1).to_string()}})),
    ] {
        let held = info(json!({}));
        let plan = signed(&held, &[token(change)]);
        assert!(plan.is_empty() && plan.requeue_after.is_none(), "{why}: {:?}", lines(&plan));
    }
    // One that ends is looked at again then.
    let plan = signed(&info(json!({})), &[token(json!({"data": {"expiration": at(60).to_string()}}))]);
    assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(60));
}

#[test]
fn a_token_that_has_ended_is_deleted_and_no_other_secret() {
    let plan = |change: Value| token_cleaner::plan(&token(change), at(0));
    let due = plan(json!({"data": {"expiration": at(0).to_string()}}));
    assert_eq!(lines(&due), ["delete secrets/bootstrap-token-abcdef"]);
    let preconditions = due.writes().next().unwrap().request.options.preconditions.clone().unwrap();
    let exactly = (preconditions.uid.as_deref(), preconditions.resource_version.as_deref());
    assert_eq!(exactly, (Some("u"), Some("7")), "another state of it is looked at anew");
    assert_eq!(lines(&plan(json!({"data": {"expiration": "soon"}}))).len(), 1, "upstream: what is no time has ended");

    let early = plan(json!({"data": {"expiration": at(60).to_string()}}));
    assert_eq!((lines(&early), early.requeue_after.map(|wait| wait.as_secs())), (vec![], Some(60)));
    let ended = at(-60).to_string();
    for kept in [
        json!({}),
        json!({"data": {"expiration": ""}}),
        json!({"type": "Opaque", "data": {"expiration": ended}}),
        json!({"metadata": {"namespace": "default"}, "data": {"expiration": ended}}),
        json!({"metadata": {"deletionTimestamp": ended}, "data": {"expiration": ended}}),
    ] {
        let plan = plan(kept.clone());
        assert!(plan.is_empty() && plan.requeue_after.is_none(), "{kept}");
    }
}
