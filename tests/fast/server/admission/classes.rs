//! What classes say of Pods, Ingresses and claims.

use podwright::api::Verb;
use serde_json::{Value, json};

use super::{Api, pod, with};

#[tokio::test]
async fn a_runtime_class_says_what_a_pod_costs_and_where_it_runs() {
    let api = Api::new().await;
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"}, "handler": "vm",
        "overhead": {"podFixed": {"cpu": "250m"}}, "scheduling": {"nodeSelector": {"vm": "yes"},
            "tolerations": [{"key": "vm", "operator": "Exists"}]}});
    api.create("runtimeclasses", class).await.unwrap();
    let of = |class: &str| with(pod("p"), "/spec/runtimeClassName", class.into());
    for (object, why) in [
        (of("none"), "pod rejected: RuntimeClass \"none\" not found"),
        (
            with(of("vm"), "/spec/overhead", json!({"cpu": "1"})),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            with(pod("p"), "/spec/overhead", json!({"cpu": "1"})),
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            with(of("vm"), "/spec/nodeSelector", json!({"vm": "no"})),
            "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no",
        ),
    ] {
        let refused = api.create("pods", object).await.unwrap_err();
        assert_eq!((refused.code, refused.message), (403, format!("pods \"p\" is forbidden: {why}")));
    }
    let made = api.create("pods", with(of("vm"), "/spec/nodeSelector", json!({"disk": "fast"}))).await.unwrap().0;
    assert_eq!(made["spec"]["overhead"], json!({"cpu": "250m"}));
    assert_eq!(made["spec"]["nodeSelector"], json!({"disk": "fast", "vm": "yes"}));
    let tolerated = made["spec"]["tolerations"].as_array().unwrap().iter().filter(|t| t["key"] == "vm").count();
    assert_eq!(tolerated, 1);
}

#[tokio::test]
async fn an_ingress_without_a_class_gets_the_default_one() {
    let api = Api::new().await;
    let ingress = |name: &str, class: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name}, "spec": {
            "ingressClassName": class, "defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}})
    };
    let class_of = |ingress: podwright::api::Object| ingress.0["spec"]["ingressClassName"].clone();
    assert!(class_of(api.create("ingresses", ingress("before", Value::Null)).await.unwrap()).is_null());
    for (name, default) in [("plain", "false"), ("usual", "true")] {
        let class = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "spec": {"controller": "x/y"},
            "metadata": {"name": name, "annotations": {"ingressclass.kubernetes.io/is-default-class": default}}});
        api.create("ingressclasses", class).await.unwrap();
    }
    assert_eq!(class_of(api.create("ingresses", ingress("a", Value::Null)).await.unwrap()), "usual");
    assert_eq!(class_of(api.create("ingresses", ingress("b", "plain".into())).await.unwrap()), "plain");
}

#[tokio::test]
async fn a_claim_grows_where_its_class_lets_it() {
    let api = Api::new().await;
    for (name, grows) in [("fixed", false), ("elastic", true)] {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "x/y",
            "metadata": {"name": name}, "allowVolumeExpansion": grows});
        api.create("storageclasses", class).await.unwrap();
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": name,
            "volumeName": "v"}});
        api.create("persistentvolumeclaims", claim).await.unwrap();
    }
    let grow = |name: &'static str| {
        api.patch("persistentvolumeclaims", name, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}))
    };
    let early = grow("elastic").await.unwrap_err();
    assert!(early.message.contains("ound"), "{early}");
    for name in ["fixed", "elastic"] {
        api.sub(Verb::Patch, "persistentvolumeclaims", name, "status", json!({"status": {"phase": "Bound"}}))
            .await
            .unwrap();
    }
    let refused = grow("fixed").await.unwrap_err();
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    assert_eq!(refused.message, format!("persistentvolumeclaims \"fixed\" is forbidden: {why}"));
    assert_eq!(grow("elastic").await.unwrap().0["spec"]["resources"]["requests"]["storage"], "2Gi");
}
