//! The CA published to every namespace.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use podwright::controllers::root_ca::plan;
use serde_json::{Value, json};

use super::{lines, object};

fn held(data: Value) -> Arc<ConfigMap> {
    object(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt", "namespace": "a"}, "data": data,
    }))
}

#[test]
fn a_namespace_without_the_ca_gets_it_and_another_text_is_replaced() {
    let made = plan("a", None, "PEM");
    let request = &made.writes().next().unwrap().request;
    assert_eq!((request.namespace.as_deref(), request.resource.as_str()), (Some("a"), "configmaps"));
    assert_eq!(request.body.as_ref().unwrap()["data"], json!({"ca.crt": "PEM"}));

    assert!(plan("a", Some(&held(json!({"ca.crt": "PEM"}))), "PEM").is_empty());
    for data in [json!({"ca.crt": "another"}), json!({"ca.crt": "PEM", "more": "x"}), json!({})] {
        let change = plan("a", Some(&held(data.clone())), "PEM");
        assert_eq!(lines(&change), ["patch configmaps/kube-root-ca.crt"]);
        let mut after = json!({"data": data});
        json_patch::merge(&mut after, change.writes().next().unwrap().request.body.as_ref().unwrap());
        assert_eq!(after["data"], json!({"ca.crt": "PEM"}));
    }
}
