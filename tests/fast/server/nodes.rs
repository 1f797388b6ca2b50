//! What a node's agent may do: the Node authorizer, and what it may write.

use podwright::api::request::PatchType;
use podwright::api::{Object, Options, Request, Response, Status, User, Verb};
use serde_json::{Value, json};

use super::{Api, object_of, pod, request};

pub fn node(name: &str) -> User {
    User::new(format!("system:node:{name}"), ["system:nodes", "system:authenticated"])
}

/// A request of the node `n1`.
pub async fn ask(
    api: &Api,
    verb: Verb,
    resource: &str,
    name: &str,
    sub: &str,
    body: Value,
) -> Result<Response, Status> {
    let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
    let subresource = Some(sub.to_owned()).filter(|sub| !sub.is_empty());
    let body = Some(body).filter(|body| !body.is_null());
    api.0.handle(Request { user: node("n1"), subresource, ..request(verb, resource, name, body, options) }).await
}

async fn in_namespace(
    api: &Api,
    verb: Verb,
    resource: &str,
    namespace: &str,
    name: &str,
    body: Value,
) -> Result<Response, Status> {
    let body = Some(body).filter(|body| !body.is_null());
    let request = request(verb, resource, name, body, Options::default());
    api.0.handle(Request { user: node("n1"), namespace: Some(namespace.into()), ..request }).await
}

/// A Pod on a node that refers to things named after it.
fn referring(name: &str, on: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = on.into();
    pod["spec"]["serviceAccountName"] = "robot".into();
    pod["spec"]["imagePullSecrets"] = json!([{"name": format!("{name}-pull")}]);
    pod["spec"]["volumes"] = json!([
        {"name": "s", "secret": {"secretName": format!("{name}-volume")}},
        {"name": "c", "configMap": {"name": format!("{name}-map")}},
        {"name": "p", "projected": {"sources": [{"secret": {"name": format!("{name}-projected")}}]}},
        {"name": "d", "persistentVolumeClaim": {"claimName": format!("{name}-claim")}},
    ]);
    pod["spec"]["containers"][0]["env"] =
        json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": format!("{name}-env"), "key": "k"}}}]);
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": format!("{name}-envfrom")}}]);
    pod
}

/// Whether the answer is not a refusal; that there is nothing by the name is none.
fn allowed(answer: &Result<Response, Status>) -> bool {
    !matches!(answer, Err(status) if status.code == 403)
}

#[tokio::test]
async fn a_node_reads_what_its_pods_need() {
    let api = Api::new().await;
    api.create("serviceaccounts", json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}))
        .await
        .unwrap();
    api.create("pods", referring("mine", "n1")).await.unwrap();
    api.create("pods", referring("other", "n2")).await.unwrap();
    let things = [
        ("secrets", "pull"),
        ("secrets", "volume"),
        ("secrets", "projected"),
        ("secrets", "env"),
        ("configmaps", "map"),
        ("configmaps", "envfrom"),
        ("persistentvolumeclaims", "claim"),
    ];
    for (resource, what) in things {
        for (of, expected) in [("mine", true), ("other", false)] {
            let answer = ask(&api, Verb::Get, resource, &format!("{of}-{what}"), "", Value::Null).await;
            assert_eq!(allowed(&answer), expected, "{resource} {of}-{what}: {answer:?}");
        }
        assert!(!allowed(&ask(&api, Verb::List, resource, "", "", Value::Null).await), "{resource}");
        let elsewhere =
            in_namespace(&api, Verb::Get, resource, "kube-system", &format!("mine-{what}"), Value::Null).await;
        assert!(!allowed(&elsewhere), "{resource}");
        assert!(!allowed(&ask(&api, Verb::Delete, resource, &format!("mine-{what}"), "", Value::Null).await));
    }
    let refused = ask(&api, Verb::Get, "secrets", "other-env", "", Value::Null).await.unwrap_err();
    assert!(refused.message.ends_with(": no relationship found between node 'n1' and this object"), "{refused}");

    assert!(ask(&api, Verb::Get, "pods", "mine", "", Value::Null).await.is_ok());
    assert_eq!(ask(&api, Verb::Get, "pods", "other", "", Value::Null).await.unwrap_err().code, 403);
    // Of their stories it is told what its start of them is traced by, not who has written what.
    let story = object_of(ask(&api, Verb::Get, "pods", "mine", "trace", Value::Null).await.unwrap());
    assert_eq!((story.name(), &story.0["items"]), ("mine", &json!([])));
    assert_eq!(ask(&api, Verb::Get, "pods", "other", "trace", Value::Null).await.unwrap_err().code, 403);
    let all = Options::default();
    let own = Options { field_selector: Some("spec.nodeName=n1".into()), ..Options::default() };
    for (options, expected) in [(all, false), (own, true)] {
        let request = Request { user: node("n1"), namespace: None, ..request(Verb::List, "pods", "", None, options) };
        assert_eq!(allowed(&api.0.handle(request).await), expected);
    }
    // Who its Pods may talk with it reads of all, and writes of none.
    for (resource, expected) in [("networkpolicies.networking.k8s.io", true), ("namespaces", false)] {
        let everywhere = |verb| Request { namespace: None, ..request(verb, resource, "", None, Options::default()) };
        let listed = api.0.handle(Request { user: node("n1"), ..everywhere(Verb::List) }).await;
        assert_eq!(allowed(&listed), expected, "{resource}");
        for verb in [Verb::Create, Verb::Delete] {
            assert!(!allowed(&ask(&api, verb, resource, "default", "", json!({})).await), "{resource}");
        }
    }
    // When the Pod is gone, so is the reason.
    let now = Options { grace_period_seconds: Some(0), ..Options::default() };
    api.delete("pods", "mine", now).await.unwrap();
    api.get("serviceaccounts", "robot").await.unwrap();
    assert!(!allowed(&ask(&api, Verb::Get, "secrets", "mine-env", "", Value::Null).await));
}

#[tokio::test]
async fn a_node_writes_its_own_status_and_its_pods() {
    let api = Api::new().await;
    let new = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    assert!(ask(&api, Verb::Create, "nodes", "", "", new("n1")).await.is_ok());
    assert_eq!(ask(&api, Verb::Create, "nodes", "", "", new("n2")).await.unwrap_err().code, 403);
    api.create("nodes", new("n2")).await.unwrap();
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    assert!(ask(&api, Verb::Patch, "nodes", "n1", "status", ready.clone()).await.is_ok());
    assert_eq!(ask(&api, Verb::Patch, "nodes", "n2", "status", ready).await.unwrap_err().code, 403);
    assert!(ask(&api, Verb::Get, "nodes", "n1", "", Value::Null).await.is_ok());
    assert_eq!(ask(&api, Verb::Delete, "nodes", "n1", "", Value::Null).await.unwrap_err().code, 403);
    let labelled = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    assert!(ask(&api, Verb::Patch, "nodes", "n1", "", labelled("kubernetes.io/arch")).await.is_ok());
    assert!(ask(&api, Verb::Patch, "nodes", "n1", "", labelled("example.com/disk")).await.is_ok());
    for key in ["node-restriction.kubernetes.io/pci", "node-role.kubernetes.io/control-plane", "x.k8s.io/y"] {
        let refused = ask(&api, Verb::Patch, "nodes", "n1", "", labelled(key)).await.unwrap_err();
        assert!(refused.code == 403 && refused.message.contains(key), "{refused}");
    }
    let tainted = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    assert_eq!(ask(&api, Verb::Patch, "nodes", "n1", "", tainted).await.unwrap_err().code, 403);

    let lease =
        |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}});
    for (namespace, name, expected) in
        [("kube-node-lease", "n1", true), ("kube-node-lease", "n2", false), ("default", "n1", false)]
    {
        let answer = in_namespace(&api, Verb::Create, "leases", namespace, "", lease(name)).await;
        assert_eq!(answer.is_ok(), expected, "{namespace}/{name}: {answer:?}");
    }

    for (name, on) in [("mine", "n1"), ("other", "n2")] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = on.into();
        api.create("pods", pod).await.unwrap();
    }
    let running = json!({"status": {"phase": "Running"}});
    assert!(ask(&api, Verb::Patch, "pods", "mine", "status", running.clone()).await.is_ok());
    assert_eq!(ask(&api, Verb::Patch, "pods", "other", "status", running).await.unwrap_err().code, 403);
    assert_eq!(
        ask(&api, Verb::Patch, "pods", "mine", "", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap_err().code,
        403
    );
    assert_eq!(ask(&api, Verb::Delete, "pods", "other", "", Value::Null).await.unwrap_err().code, 403);
    assert!(ask(&api, Verb::Delete, "pods", "mine", "", Value::Null).await.is_ok());
    assert_eq!(ask(&api, Verb::Create, "pods", "", "", pod("made")).await.unwrap_err().code, 403);
}

#[tokio::test]
async fn a_node_gets_tokens_for_its_pods_alone() {
    let api = Api::new().await;
    api.create("serviceaccounts", json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}))
        .await
        .unwrap();
    let mut uids = Vec::new();
    for (name, on) in [("mine", "n1"), ("other", "n2")] {
        let made: Object = api.create("pods", referring(name, on)).await.unwrap();
        uids.push(made.uid().to_owned());
    }
    let bound = |pod: &str, uid: &str| json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}}});
    let token = ask(&api, Verb::Create, "serviceaccounts", "robot", "token", bound("mine", &uids[0])).await;
    let token = object_of(token.unwrap());
    let user =
        api.0.verify_token(token.0["status"]["token"].as_str().unwrap(), podwright::server::ISSUER).await.unwrap();
    assert_eq!(user.name, "system:serviceaccount:default:robot");
    assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["mine"]);
    assert_eq!(user.extra["authentication.kubernetes.io/node-name"], ["n1"]);
    for body in [bound("other", &uids[1]), bound("mine", ""), json!({})] {
        let refused = ask(&api, Verb::Create, "serviceaccounts", "robot", "token", body).await.unwrap_err();
        assert_eq!(refused.code, 403, "{refused}");
    }
    assert_eq!(ask(&api, Verb::Create, "serviceaccounts", "default", "token", json!({})).await.unwrap_err().code, 403);
}
