//! Custom resources that are called as kinds of the table are: they get nothing of what is special about these.

use std::sync::Arc;

use podwright::api::{Env, Object, Options, Verb};
use podwright::server::{Config, Server};
use podwright::store::{Memory, Store, Txn, Write};
use serde_json::{Value, json};

use super::super::{Api, pod, service};
use super::{DEFINITIONS, definition};

const GROUP: &str = "evil.example";
const NAMES: &[(&str, &str)] = &[
    ("Service", "services"),
    ("Node", "nodes"),
    ("Pod", "pods"),
    ("Secret", "secrets"),
    ("Namespace", "namespaces"),
    ("CustomResourceDefinition", "customresourcedefinitions"),
    ("PersistentVolumeClaim", "persistentvolumeclaims"),
    ("PersistentVolume", "persistentvolumes"),
    ("CertificateSigningRequest", "certificatesigningrequests"),
    ("ResourceQuota", "resourcequotas"),
    ("Ingress", "ingresses"),
    ("Event", "events"),
    ("TokenReview", "tokenreviews"),
    ("ClusterRole", "clusterroles"),
];

fn named(kind: &str, plural: &str) -> Value {
    let mut made = definition(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    made["metadata"]["name"] = format!("{plural}.{GROUP}").into();
    made["spec"]["group"] = GROUP.into();
    made["spec"]["names"] = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind});
    made
}

async fn defined(api: &Api, kind: &str) -> String {
    let (_, plural) = NAMES.iter().find(|(known, _)| *known == kind).unwrap();
    api.define(named(kind, plural)).await;
    format!("{plural}.{GROUP}")
}

fn object(kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}});
    json_patch::merge(&mut object, &rest);
    object
}

#[tokio::test]
async fn a_service_of_another_group_frees_no_address() {
    let api = Api::new().await;
    let services = defined(&api, "Service").await;
    let victim = service(
        "victim",
        json!({"clusterIP": "10.96.7.7", "type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}]}),
    );
    api.create("services", victim).await.unwrap();
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None", "10.96.7.7"], "type": "NodePort", "ports": [{"nodePort": 30001}]});
    api.create(&services, object("Service", "x", json!({"spec": spec}))).await.unwrap();
    api.patch(&services, "x", json!({"spec": {"clusterIPs": ["None"], "ports": []}})).await.unwrap();
    api.create(&services, object("Service", "y", json!({"spec": spec}))).await.unwrap();
    api.delete(&services, "y", Options::default()).await.unwrap();
    for spec in
        [json!({"clusterIP": "10.96.7.7"}), json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}]})]
    {
        let refused = api.create("services", service("thief", spec)).await.unwrap_err();
        assert!(refused.message.contains("already allocated"), "{}", refused.message);
    }
}

/// Whatever way a Service came to say so.
#[tokio::test]
async fn a_service_frees_what_is_its_own_alone() {
    let store = Arc::new(Memory::new());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    for (name, ip) in [("victim", "10.96.7.7"), ("liar", "10.96.7.8")] {
        api.create("services", service(name, json!({"clusterIP": ip}))).await.unwrap();
    }
    let key = "/registry/services/default/liar".to_owned();
    let kept = store.get(&key).await.unwrap().unwrap();
    let changed = String::from_utf8(kept.value.to_vec()).unwrap().replace("10.96.7.8", "10.96.7.7");
    let writes = vec![Write::Put(key, changed.into())];
    store.commit(Txn { writes, ..Txn::default() }).await.unwrap();
    api.get("services", "liar").await.unwrap();
    api.delete("services", "liar", Options::default()).await.unwrap();
    let refused = api.create("services", service("thief", json!({"clusterIP": "10.96.7.7"}))).await.unwrap_err();
    assert!(refused.message.contains("already allocated"), "{}", refused.message);
}

#[tokio::test]
async fn there_is_no_session_with_a_node_or_pod_of_another_group() {
    let api = Api::new().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "real"}});
    api.create("nodes", node).await.unwrap();
    let _sessions = api.0.sessions(&podwright::api::User::system("system:node:real"), "real");
    let (nodes, pods) = (defined(&api, "Node").await, defined(&api, "Pod").await);
    api.create(&nodes, object("Node", "real", json!({}))).await.unwrap();
    let spec = json!({"nodeName": "real", "containers": [{"name": "c"}]});
    api.create(&pods, object("Pod", "real", json!({"spec": spec}))).await.unwrap();
    for (verb, resource, sub) in [
        (Verb::Connect, &nodes, "dial"),
        (Verb::Connect, &nodes, "image"),
        (Verb::Update, &nodes, "usage"),
        (Verb::Connect, &nodes, "proxy"),
        (Verb::Connect, &pods, "inspect"),
        (Verb::Connect, &pods, "trace"),
        (Verb::Get, &pods, "trace"),
        (Verb::Connect, &pods, "exec"),
        (Verb::Connect, &pods, "log"),
        (Verb::Create, &pods, "binding"),
        (Verb::Create, &pods, "eviction"),
    ] {
        let asked = api.sub(verb, resource, "real", sub, json!({"address": "127.0.0.1:22"})).await;
        let refused = asked.err().unwrap_or_else(|| panic!("{verb:?} {resource}/{sub} is answered"));
        assert_eq!(refused.code, 404, "{verb:?} {resource}/{sub}: {}", refused.message);
    }
}

#[tokio::test]
async fn a_secret_of_another_group_gets_no_token() {
    let api = Api::new().await;
    let secrets = defined(&api, "Secret").await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    api.create("serviceaccounts", account).await.unwrap();
    let annotations = json!({"kubernetes.io/service-account.name": "robot"});
    let rest = json!({"metadata": {"annotations": annotations}, "type": "kubernetes.io/service-account-token"});
    let made = api.create(&secrets, object("Secret", "x", rest)).await.unwrap();
    assert_eq!(made.at("data"), None);
}

#[tokio::test]
async fn what_is_called_a_namespace_or_a_definition_goes_as_others_do() {
    let api = Api::new().await;
    for kind in ["Namespace", "CustomResourceDefinition"] {
        let resource = defined(&api, kind).await;
        api.create(&resource, object(kind, "x", json!({}))).await.unwrap();
        api.delete(&resource, "x", Options::default()).await.unwrap();
        assert!(api.get(&resource, "x").await.unwrap_err().is_not_found(), "{kind}");
    }
}

/// No rule of a built-in kind is made for such objects: some would end the request.
#[tokio::test]
async fn any_shape_is_taken_under_any_name() {
    let api = Api::new().await;
    let fields = ["spec", "status", "data", "type", "rules", "roleRef", "involvedObject"];
    for (kind, _) in NAMES {
        let resource = defined(&api, kind).await;
        for (at, odd) in
            [json!("x"), json!(7), json!(["x"]), json!({"x": "y"}), json!({"ports": "x"})].iter().enumerate()
        {
            let rest: Value = fields.iter().map(|field| (field.to_string(), odd.clone())).collect();
            let name = format!("n{at}");
            let made = api.create(&resource, object(kind, &name, rest)).await;
            let made = made.unwrap_or_else(|why| panic!("{kind} {odd}: {why}"));
            let rest: Value = fields.iter().map(|field| (field.to_string(), json!([odd]))).collect();
            let mut changed: Object = made.clone();
            json_patch::merge(&mut changed.0, &rest);
            api.update(&resource, &changed).await.unwrap_or_else(|why| panic!("{kind} {odd}: {why}"));
            api.delete(&resource, &name, Options::default()).await.unwrap();
            assert!(api.get(&resource, &name).await.unwrap_err().is_not_found(), "{kind} {odd}");
        }
    }
    // What the namespace's real rules say goes on for the real ones.
    api.create("pods", pod("p")).await.unwrap();
}

/// A rule for a built-in group's resource would be about the custom one too, and both would lie in one place.
#[tokio::test]
async fn a_group_of_the_table_keeps_its_names() {
    let api = Api::new().await;
    const RBAC: &str = "rbac.authorization.k8s.io";
    for (plural, singular, kind, why) in [
        ("clusterroles", "thing", "Thing", "PluralConflict"),
        ("things", "clusterrole", "Thing", "SingularConflict"),
        ("things", "thing", "ClusterRole", "KindConflict"),
    ] {
        let mut made = definition(json!({"type": "object"}));
        let name = format!("{plural}.{RBAC}");
        made["metadata"] = json!({"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, testing"}});
        made["spec"]["group"] = RBAC.into();
        made["spec"]["names"] = json!({"plural": plural, "singular": singular, "kind": kind});
        api.create(DEFINITIONS, made).await.unwrap();
        assert_eq!(api.until(&name, "NamesAccepted", "False").await["reason"], why);
        api.until(&name, "Established", "False").await;
        // Nor where someone says so himself.
        let established = json!({"status": {"conditions": [{"type": "Established", "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "x", "message": "x"}]}});
        api.sub(Verb::Patch, DEFINITIONS, &name, "status", established).await.unwrap();
        let row = format!("{plural}.v1.{RBAC}");
        let listed = api.list(&row, Options::default()).await;
        assert!(listed.is_err() || listed.unwrap().kind == "ClusterRoleList", "{row}");
        api.delete(DEFINITIONS, &name, Options::default()).await.unwrap();
        for _ in 0..500 {
            if api.get(DEFINITIONS, &name).await.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

/// `deployments.v1.apps` is a definition whose group is `v1.apps`, and a version of a kind of the table.
#[tokio::test]
async fn a_group_that_reads_like_a_version_has_none_of_the_others_objects() {
    let api = Api::new().await;
    let of = |group: &str, plural: &str, kind: &str| {
        let mut made = definition(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
        made["metadata"]["name"] = format!("{plural}.{group}").into();
        made["spec"]["group"] = group.into();
        made["spec"]["names"] = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind});
        made
    };
    for (group, plural, kind) in
        [("v1.apps", "deployments", "Odd"), ("v1.z.example", "things", "Other"), ("z.example", "things", "Thing")]
    {
        api.define(of(group, plural, kind)).await;
    }
    let kinds =
        [("deployments.v1.apps/v1", "Odd"), ("things.v1.z.example/", "Other"), ("things.z.example/v1", "Thing")];
    for (resource, kind) in kinds {
        let version = resource.split_once('.').unwrap().1.trim_end_matches("/v1").trim_end_matches('/');
        let object = json!({"apiVersion": format!("{version}/v1"), "kind": kind, "metadata": {"name": "x"}});
        assert_eq!(api.create(resource, object).await.unwrap().0["kind"], kind);
    }
    assert!(api.list("things.z.example/v2", Options::default()).await.is_err());
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("p")["spec"]});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "victim"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    api.create("deployments.apps", deployment).await.unwrap();
    for name in ["deployments.v1.apps", "things.v1.z.example"] {
        api.delete(DEFINITIONS, name, Options::default()).await.unwrap();
        for _ in 0..500 {
            if api.get(DEFINITIONS, name).await.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(api.get(DEFINITIONS, name).await.unwrap_err().is_not_found(), "{name} goes with its own objects");
    }
    assert!(!api.get("deployments.apps", "victim").await.unwrap().is_terminating());
    api.get("things.z.example/v1", "x").await.unwrap();
    // Nor by a group that begins with a version.
    assert!(podwright::api::kinds::lookup("roles.v1rbac.authorization.k8s.io").is_none());
}
