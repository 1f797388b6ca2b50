//! Pods, and what admission and their subresources do: grace, binding, tokens, eviction, traces; Namespaces; scale.

use podwright::api::request::{Body, Preconditions};
use podwright::api::{Object, Options, Request, Status, Verb};
use podwright::server::Server;
use serde_json::{Value, json};

use super::{Api, object_of, pod, request};

fn grace(seconds: i64) -> Options {
    Options { grace_period_seconds: Some(seconds), ..Options::default() }
}

async fn bind(api: &Api, name: &str, node: &str) -> Result<(), Status> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
    api.sub(Verb::Create, "pods", name, "binding", binding).await.map(drop)
}

#[tokio::test]
async fn a_pod_gets_an_account_a_token_and_tolerations() {
    let api = Api::new().await;
    let made = api.create("pods", pod("p")).await.unwrap();
    let spec = &made.0["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    assert!(api.get("serviceaccounts", "default").await.is_ok());
    let volume = spec["volumes"][0]["name"].as_str().unwrap();
    assert!(volume.starts_with("kube-api-access-"), "{volume}");
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]);
    assert_eq!(spec["volumes"][0]["projected"], json!({"defaultMode": 420, "sources": sources}));
    let mount = &spec["containers"][0]["volumeMounts"][0];
    assert_eq!((mount["name"].as_str(), mount["readOnly"].as_bool()), (Some(volume), Some(true)));
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(spec["priority"], 0);
    assert_eq!(made.generation(), 1);

    // Each mount would repeat the name of a volume that nobody has looked at yet.
    let mut long = pod("long");
    long["spec"]["volumes"] = json!([{"name": format!("kube-api-access-{}", "x".repeat(48)), "emptyDir": {}}]);
    let refused = api.create("pods", long).await.unwrap_err();
    assert!(!refused.message.contains("volumeMounts"), "{}", refused.message);
    assert!(refused.message.contains("spec.volumes[0].name: Invalid value"), "{}", refused.message);

    let mut without = pod("q");
    without["spec"]["automountServiceAccountToken"] = false.into();
    let without = api.create("pods", without).await.unwrap();
    assert!(without.0["spec"]["volumes"].as_array().is_none_or(Vec::is_empty));
    let mut unknown = pod("r");
    unknown["spec"]["serviceAccountName"] = "nobody".into();
    let refused = api.create("pods", unknown).await.unwrap_err();
    assert_eq!(
        refused.message,
        "pods \"r\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
    );
}

#[tokio::test]
async fn annotations_of_profiles_become_fields_and_earn_a_warning() {
    let api = Api::new().await;
    const KEY: &str = "container.apparmor.security.beta.kubernetes.io/c";
    let warning =
        format!("metadata.annotations[{KEY}]: deprecated since v1.30; use the \"appArmorProfile\" field instead");
    let named = json!({"type": "Localhost", "localhostProfile": "a"});
    let plain = |kind: &str| json!({"type": kind});
    for (at, (annotation, of_pod, own, field, warned)) in [
        ("localhost/a", Value::Null, Value::Null, named.clone(), true),
        ("unconfined", Value::Null, Value::Null, plain("Unconfined"), true),
        ("runtime/default", named.clone(), Value::Null, plain("RuntimeDefault"), true),
        // It says nothing new.
        ("localhost/a", named.clone(), Value::Null, Value::Null, false),
        ("localhost/a", Value::Null, named.clone(), named.clone(), false),
        // It says nothing.
        ("", Value::Null, Value::Null, Value::Null, true),
        ("localhost/", Value::Null, Value::Null, Value::Null, true),
        ("localhost/ a", Value::Null, Value::Null, Value::Null, true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut asked = pod(&format!("p{at}"));
        asked["metadata"]["annotations"] = json!({KEY: annotation});
        asked["spec"]["securityContext"]["appArmorProfile"] = of_pod;
        asked["spec"]["containers"][0]["securityContext"]["appArmorProfile"] = own;
        let answer = api.0.handle(request(Verb::Create, "pods", "", Some(asked), Options::default())).await.unwrap();
        let warnings = answer.warnings.clone();
        let made = object_of(answer);
        assert_eq!(made.0["spec"]["containers"][0]["securityContext"]["appArmorProfile"], field, "{annotation:?}");
        assert_eq!(warnings, if warned { vec![warning.clone()] } else { Vec::new() }, "{annotation:?}");
        assert_eq!(made.annotation(KEY), Some(annotation), "it stays as it was written");
    }
}

#[tokio::test]
async fn a_binding_schedules_a_pod_once() {
    let api = Api::new().await;
    api.create("pods", pod("p")).await.unwrap();
    bind(&api, "p", "n1").await.unwrap();
    let bound = api.get("pods", "p").await.unwrap();
    assert_eq!(bound.0["spec"]["nodeName"], "n1");
    let condition = &bound.0["status"]["conditions"][0];
    assert_eq!((condition["type"].as_str(), condition["status"].as_str()), (Some("PodScheduled"), Some("True")));
    let again = bind(&api, "p", "n2").await.unwrap_err();
    assert!(again.is_conflict() && again.message.contains("pod p is already assigned to node \"n1\""), "{again}");
    assert!(bind(&api, "gone", "n1").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_bound_pod_is_nominated_for_no_node() {
    let api = Api::new().await;
    api.create("pods", pod("p")).await.unwrap();
    let nominated = json!({"status": {"nominatedNodeName": "n2"}});
    let told = object_of(api.sub(Verb::Patch, "pods", "p", "status", nominated).await.unwrap());
    assert_eq!(told.0["status"]["nominatedNodeName"], "n2");
    bind(&api, "p", "n1").await.unwrap();
    let bound = api.get("pods", "p").await.unwrap();
    assert_eq!(bound.0["spec"]["nodeName"], "n1");
    assert_eq!(bound.0["status"].get("nominatedNodeName"), None);
}

#[tokio::test]
async fn a_running_pod_is_given_its_grace_and_only_less_later() {
    let api = Api::new().await;
    api.create("pods", pod("early")).await.unwrap();
    let gone = object_of(api.delete("pods", "early", grace(10)).await.unwrap());
    assert_eq!(gone.0["metadata"]["deletionTimestamp"], serde_json::Value::Null, "it is told as it was");
    assert!(api.get("pods", "early").await.unwrap_err().is_not_found(), "nothing runs, nothing is waited for");

    let made = api.create("pods", pod("p")).await.unwrap();
    bind(&api, "p", "n1").await.unwrap();
    let first = object_of(api.delete("pods", "p", Options::default()).await.unwrap());
    assert_eq!(first.0["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(first.generation(), made.generation() + 1);
    let longer = object_of(api.delete("pods", "p", grace(60)).await.unwrap());
    assert_eq!(longer, first, "grace does not grow");
    let shorter = object_of(api.delete("pods", "p", grace(5)).await.unwrap());
    assert_eq!(shorter.0["metadata"]["deletionGracePeriodSeconds"], 5);
    let (was, is) = (first.deletion_timestamp().unwrap(), shorter.deletion_timestamp().unwrap());
    assert_eq!(was.duration_since(is).as_secs(), 25);
    assert!(bind(&api, "p", "n2").await.unwrap_err().message.contains("is being deleted"));
    let other = Preconditions { uid: Some("other".into()), ..Preconditions::default() };
    let refused = api.delete("pods", "p", Options { preconditions: Some(other), ..grace(0) }).await.unwrap_err();
    assert!(refused.message.contains("the UID in the precondition (other) does not match"), "{refused}");
    api.delete("pods", "p", grace(0)).await.unwrap();
    assert!(api.get("pods", "p").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn status_is_written_by_its_subresource_alone() {
    let api = Api::new().await;
    let made = api.create("pods", pod("p")).await.unwrap();
    let status = json!({"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}});
    let patched = object_of(api.sub(Verb::Patch, "pods", "p", "status", status).await.unwrap());
    assert_eq!(patched.0["status"]["phase"], "Running");
    assert_eq!(patched.0["spec"], made.0["spec"]);
    assert_eq!(patched.generation(), made.generation());
    let whole = api.patch("pods", "p", json!({"status": {"phase": "Failed"}})).await.unwrap();
    assert_eq!(whole, patched, "and nothing else writes it");
}

#[tokio::test]
async fn propagation_sets_the_collectors_finalizers() {
    let api = Api::new().await;
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        api.create("configmaps", super::config_map("a")).await.unwrap();
        let options = Options { propagation_policy: Some(policy.into()), ..Options::default() };
        let held = object_of(api.delete("configmaps", "a", options).await.unwrap());
        assert_eq!(held.finalizers(), [finalizer]);
        assert!(held.is_terminating());
        api.patch("configmaps", "a", json!({"metadata": {"finalizers": []}})).await.unwrap();
        assert!(api.get("configmaps", "a").await.unwrap_err().is_not_found());
    }
    let odd = Options { propagation_policy: Some("Sideways".into()), ..Options::default() };
    assert_eq!(api.delete("configmaps", "a", odd).await.unwrap_err().code, 400);
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

#[tokio::test]
async fn a_namespace_terminates_then_goes_with_its_finalizers() {
    let api = Api::new().await;
    let made = api.create("namespaces", namespace("n")).await.unwrap();
    assert_eq!(made.0["spec"]["finalizers"], json!(["kubernetes"]));
    let dying = object_of(api.delete("namespaces", "n", Options::default()).await.unwrap());
    assert_eq!(dying.0["status"]["phase"], "Terminating");
    let mut object = super::config_map("a");
    object["metadata"]["namespace"] = "n".into();
    let refused = api.create("configmaps", object).await.unwrap_err();
    let why =
        "configmaps \"a\" is forbidden: unable to create new content in namespace n because it is being terminated";
    assert_eq!(refused.message, why);
    assert_eq!(refused.details.unwrap().causes[0].reason, "NamespaceTerminating");
    let mut finalized = dying.clone();
    finalized.0["spec"]["finalizers"] = json!([]);
    api.sub(Verb::Update, "namespaces", "n", "finalize", finalized.0).await.unwrap();
    assert!(api.get("namespaces", "n").await.unwrap_err().is_not_found());
    let immortal = api.delete("namespaces", "default", Options::default()).await.unwrap_err();
    assert_eq!(immortal.message, "namespaces \"default\" is forbidden: this namespace may not be deleted");
}

#[tokio::test]
async fn scale_shows_and_changes_replicas() {
    let api = Api::new().await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}}});
    let made = api.create("deployments", deployment).await.unwrap();
    assert_eq!((made.generation(), made.0["spec"]["replicas"].as_i64()), (1, Some(1)));
    let scale = object_of(api.sub(Verb::Get, "deployments", "d", "scale", Value::Null).await.unwrap());
    assert_eq!(scale.0["status"]["selector"], "app=d");
    let patch = json!({"spec": {"replicas": 3}});
    let scaled = object_of(api.sub(Verb::Patch, "deployments", "d", "scale", patch).await.unwrap());
    assert_eq!((scaled.kind(), scaled.0["spec"]["replicas"].as_i64()), ("Scale", Some(3)));
    let now = api.get("deployments", "d").await.unwrap();
    assert_eq!((now.generation(), now.0["spec"]["replicas"].as_i64()), (2, Some(3)));
    let negative = api.sub(Verb::Patch, "deployments", "d", "scale", json!({"spec": {"replicas": -1}})).await;
    assert_eq!(negative.unwrap_err().code, 422);
}

#[tokio::test]
async fn a_token_says_whose_it_is_until_its_pod_is_gone() {
    let api = Api::new().await;
    let made = api.create("pods", pod("p")).await.unwrap();
    let reference = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": made.uid()});
    let ask = |spec: Value| api.sub(Verb::Create, "serviceaccounts", "default", "token", json!({"spec": spec}));
    let spec = json!({"audiences": ["a"], "expirationSeconds": 3607, "boundObjectRef": reference});
    let answer = object_of(ask(spec).await.unwrap());
    let token = answer.0["status"]["token"].as_str().unwrap();
    let server: &Server = &api.0;
    assert_eq!(server.verify_token(token, "a").await.unwrap().name, "system:serviceaccount:default:default");
    assert!(server.verify_token(token, "b").await.is_err());
    let (head, rest) = token.split_at(token.len() - 8);
    let forged = format!("{head}{}", rest.chars().rev().collect::<String>());
    assert!(server.verify_token(&forged, "a").await.is_err());
    api.delete("pods", "p", grace(0)).await.unwrap();
    assert!(server.verify_token(token, "a").await.unwrap_err().message.contains("pod default/p is gone"));
    let short = ask(json!({"expirationSeconds": 60})).await.unwrap_err();
    assert!(short.message.contains("may not specify a duration less than 10 minutes"), "{short}");
}

#[tokio::test]
async fn an_eviction_deletes_and_a_trace_tells_the_story() {
    let api = Api::new().await;
    let mut owned = pod("p");
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "owner"}, "spec": {
        "selector": {"matchLabels": {"app": "p"}},
        "template": {"metadata": {"labels": {"app": "p"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}}});
    let owner = api.create("replicasets", set).await.unwrap();
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner",
        "uid": owner.uid(), "controller": true}]);
    api.create("pods", owned).await.unwrap();
    bind(&api, "p", "n1").await.unwrap();
    let trace = object_of(api.sub(Verb::Get, "pods", "p", "trace", Value::Null).await.unwrap());
    let told: Vec<_> = trace.0["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| {
            format!(
                "{} {}{}",
                step["verb"].as_str().unwrap(),
                step["kind"].as_str().unwrap(),
                step["subresource"].as_str().map(|s| format!("/{s}")).unwrap_or_default()
            )
        })
        .collect();
    assert_eq!(told, ["create ReplicaSet", "create Pod", "create Pod/binding"]);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 7}});
    api.sub(Verb::Create, "pods", "p", "eviction", eviction).await.unwrap();
    assert_eq!(api.get("pods", "p").await.unwrap().0["metadata"]["deletionGracePeriodSeconds"], 7);
}

#[tokio::test]
async fn only_masters_may_do_anything() {
    let api = Api::new().await;
    let asked = Request { user: Default::default(), ..request(Verb::Get, "pods", "p", None, Options::default()) };
    let refused = api.0.handle(asked).await.unwrap_err();
    let why = "pods \"p\" is forbidden: User \"system:anonymous\" cannot get resource \"pods\" in API group \"\" in the namespace \"default\"";
    assert_eq!((refused.code, refused.message.as_str()), (403, why));
}

#[tokio::test]
async fn apply_creates_merges_and_leaves_alone() {
    let api = Api::new().await;
    let apply = |object: Value| {
        let options = Options { patch_type: Some(podwright::api::request::PatchType::ThreeWay), ..Options::default() };
        api.0.handle(request(Verb::Patch, "configmaps", "a", Some(object), options))
    };
    let first = apply(super::config_map("a")).await.unwrap();
    assert!(matches!(first.body, Body::Object { created: true, .. }));
    api.patch("configmaps", "a", json!({"data": {"mine": "x"}})).await.unwrap();
    let mut next = super::config_map("a");
    next["data"] = json!({"b": "2"});
    let merged = object_of(apply(next.clone()).await.unwrap());
    assert_eq!(merged.0["data"], json!({"mine": "x", "b": "2"}));
    let same: Object = object_of(apply(next).await.unwrap());
    assert_eq!(same.resource_version(), merged.resource_version());
}

#[tokio::test]
async fn generated_names_and_dry_runs() {
    let api = Api::new().await;
    let mut object = super::config_map("");
    object["metadata"] = json!({"generateName": "x-"});
    let made = api.create("configmaps", object.clone()).await.unwrap();
    assert!(made.name().starts_with("x-") && made.name().len() == 7, "{}", made.name());
    object["metadata"] = json!({});
    assert_eq!(api.create("configmaps", object).await.unwrap_err().code, 422);
    let options = Options { dry_run: true, ..Options::default() };
    let dry = request(Verb::Create, "configmaps", "", Some(super::config_map("dry")), options.clone());
    assert_eq!(object_of(api.0.handle(dry).await.unwrap()).name(), "dry");
    assert!(api.get("configmaps", "dry").await.unwrap_err().is_not_found());
    api.delete("configmaps", made.name(), options).await.unwrap();
    assert!(api.get("configmaps", made.name()).await.is_ok());
}

#[tokio::test]
async fn endless_grace_can_be_shortened() {
    let api = Api::new().await;
    api.create("pods", pod("p")).await.unwrap();
    bind(&api, "p", "n").await.unwrap();
    api.delete("pods", "p", grace(i64::MAX)).await.unwrap();
    let shorter = object_of(api.delete("pods", "p", grace(5)).await.unwrap());
    assert_eq!(shorter.0["metadata"]["deletionGracePeriodSeconds"], 5);
    let wait = shorter.deletion_timestamp().unwrap().as_second() - jiff::Timestamp::now().as_second();
    assert!((0..=6).contains(&wait), "{}", shorter.0["metadata"]["deletionTimestamp"]);
}

#[tokio::test]
async fn ephemeral_containers_join_by_their_subresource_and_stay() {
    let api = Api::new().await;
    let made = api.create("pods", pod("p")).await.unwrap();
    let with = |containers: Value| json!({"spec": {"ephemeralContainers": containers, "nodeName": "elsewhere"}});
    let one = json!({"name": "d", "image": "busybox:1", "targetContainerName": "c"});
    let joined = object_of(api.sub(Verb::Patch, "pods", "p", "ephemeralcontainers", with(json!([one]))).await.unwrap());
    assert_eq!(joined.generation(), made.generation() + 1);
    let spec = &joined.0["spec"];
    assert_eq!(spec["nodeName"], Value::Null, "nothing else is changed by it");
    assert_eq!(spec["ephemeralContainers"][0]["terminationMessagePath"], "/dev/termination-log", "defaults are filled");
    assert_eq!(object_of(api.sub(Verb::Get, "pods", "p", "ephemeralcontainers", Value::Null).await.unwrap()), joined);

    let whole = object_of(api.sub(Verb::Update, "pods", "p", "ephemeralcontainers", joined.0.clone()).await.unwrap());
    assert_eq!(whole, joined);
    for (containers, field, words) in [
        (json!([]), "spec.ephemeralContainers", "existing ephemeral containers \"d\" may not be removed"),
        (
            json!([{"name": "d", "image": "other:1", "targetContainerName": "c"}]),
            "spec.ephemeralContainers",
            "existing ephemeral containers \"d\" may not be changed",
        ),
        (
            json!([spec["ephemeralContainers"][0], {"name": "e", "image": "i", "targetContainerName": "none"}]),
            "spec.ephemeralContainers[1].targetContainerName",
            "Not found: \"none\"",
        ),
        (json!([spec["ephemeralContainers"][0], {"name": "c", "image": "i"}]), "spec.ephemeralContainers[1].name", ""),
        (
            json!([spec["ephemeralContainers"][0], {"name": "e", "image": "i", "ports": [{"containerPort": 1}]}]),
            "spec.ephemeralContainers[1].ports",
            "cannot be set for an Ephemeral Container",
        ),
    ] {
        let refused = api.sub(Verb::Patch, "pods", "p", "ephemeralcontainers", with(containers)).await.unwrap_err();
        assert_eq!(refused.code, 422, "{refused}");
        let causes = refused.details.as_ref().unwrap().causes.clone();
        assert!(causes.iter().any(|c| c.field == field && c.message.contains(words)), "{causes:?}");
    }
    // With the Pod's own container there is room for 511; a node bears no more.
    let many = |last: usize| {
        let more = (1..=last).map(|n| json!({"name": format!("e{n}"), "image": "i"}));
        with([spec["ephemeralContainers"][0].clone()].into_iter().chain(more).collect())
    };
    let refused = api.sub(Verb::Patch, "pods", "p", "ephemeralcontainers", many(511)).await.unwrap_err();
    let words = "spec.ephemeralContainers: Too many: 512: must have at most 511 items";
    assert!(refused.code == 422 && refused.message.contains(words), "{refused}");
    api.sub(Verb::Patch, "pods", "p", "ephemeralcontainers", many(510)).await.unwrap();
    let plain =
        api.patch("pods", "p", json!({"spec": {"ephemeralContainers": [one, {"name": "e", "image": "i"}]}})).await;
    assert!(plain.unwrap_err().message.contains("pod updates may not change fields"), "only there");
}

/// Whoever writes may send a note, and the trace outlives its object.
#[tokio::test]
async fn what_a_writer_says_about_itself_is_bounded() {
    let api = Api::new().await;
    let options = Options { note: Some("ä".repeat(10_000)), ..Options::default() };
    api.0.handle(request(Verb::Create, "pods", "", Some(pod("noted")), options)).await.unwrap();
    let request_of_trace =
        Request { subresource: Some("trace".into()), ..request(Verb::Get, "pods", "noted", None, Options::default()) };
    let trace = object_of(api.0.handle(request_of_trace).await.unwrap());
    assert_eq!(trace.0["items"][0]["note"], "ä".repeat(512));

    for (verb, name, options_of) in [(Verb::Create, "", "CreateOptions"), (Verb::Update, "noted", "UpdateOptions")] {
        let options = Options { field_manager: Some("m".repeat(129)), ..Options::default() };
        let refused = api.0.handle(request(verb, "pods", name, Some(pod("noted")), options)).await.unwrap_err();
        assert_eq!(refused.code, 422, "{refused:?}");
        assert!(refused.message.contains(options_of) && refused.message.contains("may not be more than 128 bytes"));
    }
}

#[tokio::test]
async fn the_trace_of_a_pod_has_its_first_steps_and_its_latest() {
    let api = Api::new().await;
    let trace = async |name: &str| {
        let asked = request(Verb::Get, "pods", name, None, Options::default());
        let asked = Request { subresource: Some("trace".into()), ..asked };
        object_of(api.0.handle(asked).await.unwrap()).0["items"].as_array().unwrap().clone()
    };
    api.create("pods", pod("first")).await.unwrap();
    for n in 0..30 {
        api.patch("pods", "first", json!({"metadata": {"labels": {"n": n.to_string()}}})).await.unwrap();
    }
    let steps = trace("first").await;
    let last = api.get("pods", "first").await.unwrap();
    assert_eq!((steps.len(), steps[0]["verb"].as_str()), (20, Some("create")));
    assert_eq!(steps[19]["revision"].to_string(), last.resource_version(), "{steps:?}");
    // More objects than are remembered.
    for n in 0..1024 {
        api.create("pods", pod(&format!("p{n}"))).await.unwrap();
    }
    assert_eq!((trace("first").await.len(), trace("p0").await.len()), (0, 1));
}
