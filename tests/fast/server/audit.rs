//! The audit log: what a policy says is told, from each face, and nothing else; files that are full.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podwright::api::{Env, Options, User};
use podwright::server::audit::{Audit, LogTarget, Policy};
use podwright::server::rest::{self, authenticate::Peer};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::{Value, json};

use super::{Api, config_map, request};
use podwright::api::Verb;

fn log(dir: &Path, rules: &str, place: LogTarget) -> Arc<Audit> {
    let text =
        format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{rules}]}}");
    let place = LogTarget { path: Some(dir.join("audit.log")), ..place };
    Arc::new(Audit::open(Policy::parse(&text).unwrap(), place, Env::system()).unwrap())
}

async fn api(audit: Arc<Audit>) -> Api {
    let config = Config { audit: Some(audit), ..Config::default() };
    Api(Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap())
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits for so many events that are of this verb and user.
async fn told(dir: &Path, user: &str, verb: &str, count: usize) -> Vec<Value> {
    for _ in 0..250 {
        let mut all = lines(&dir.join("audit.log"));
        all.retain(|event| event["verb"] == verb && event["user"]["username"] == user);
        if all.len() >= count {
            assert_eq!(all.len(), count, "{all:#?}");
            return all;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not {count} events {verb} of {user}: {:#?}", lines(&dir.join("audit.log")));
}

#[tokio::test]
async fn each_request_is_told_as_the_policy_says() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "
{level: None, users: ['system:apiserver', 'system:node-certificates']},
{level: Metadata, resources: [{resources: [secrets]}]},
{level: RequestResponse, resources: [{resources: [configmaps]}], verbs: [create], omitManagedFields: true},
{level: Request, verbs: [patch]}, {level: Metadata}";
    let api = api(log(dir.path(), rules, LogTarget::default())).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "c2VjcmV0"}});
    api.create("secrets", secret).await.unwrap();
    let mut options = Options { field_manager: Some("tests".into()), ..Options::default() };
    let create = request(Verb::Create, "configmaps", "", Some(config_map("a")), options.clone());
    api.0.handle(create).await.unwrap();
    options.patch_type = Some(podwright::api::request::PatchType::Merge);
    let patch = request(Verb::Patch, "configmaps", "a", Some(json!({"data": {"b": "2"}})), options);
    api.0.handle(patch).await.unwrap();

    let created = told(dir.path(), "test", "create", 2).await;
    let of_secret = &created[0];
    assert_eq!((&of_secret["level"], &of_secret["stage"]), (&json!("Metadata"), &json!("ResponseComplete")));
    assert!(of_secret["requestObject"].is_null() && of_secret["responseObject"].is_null());
    let object = json!({"resource": "secrets", "namespace": "default", "name": "s", "apiVersion": "v1"});
    assert_eq!(of_secret["objectRef"], object);
    assert_eq!(of_secret["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(of_secret["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(of_secret["requestURI"], "/api/v1/namespaces/default/secrets");
    for field in ["requestReceivedTimestamp", "stageTimestamp"] {
        assert_eq!(of_secret[field].as_str().unwrap().len(), "2026-01-01T00:00:00.000000Z".len(), "{of_secret}");
    }
    let of_map = &created[1];
    assert_eq!(of_map["requestObject"]["data"], json!({"a": "1"}));
    let answered = &of_map["responseObject"];
    assert!(answered["metadata"]["uid"].is_string() && answered["metadata"]["managedFields"].is_null(), "{answered}");
    let patched = &told(dir.path(), "test", "patch", 1).await[0];
    assert_eq!((&patched["requestObject"], &patched["responseObject"]), (&json!({"data": {"b": "2"}}), &Value::Null));
    let whole = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    assert!(!whole.contains("c2VjcmV0"), "a Secret's content is not told");
    assert!(!whole.contains("system:apiserver"), "rule one");
}

#[tokio::test]
async fn refusals_watches_and_roles_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(log(dir.path(), "{level: Metadata}", LogTarget::default())).await;
    let ann = User::new("ann", ["system:authenticated"]);
    let ask = |verb, name: &str| podwright::api::Request {
        user: ann.clone(),
        ..request(verb, "configmaps", name, None, Options::default())
    };
    assert_eq!(api.0.handle(ask(Verb::Get, "x")).await.unwrap_err().code, 403);
    let refused = &told(dir.path(), "ann", "get", 1).await[0];
    assert_eq!(refused["responseStatus"]["reason"], "Forbidden");
    assert_eq!(refused["responseStatus"]["code"], 403);
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");

    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "anns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
    });
    api.create("rolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let watch = api.0.watch(ask(Verb::Watch, "")).await.unwrap();
    drop(watch);
    let stages = told(dir.path(), "ann", "watch", 2).await;
    assert_eq!([&stages[0]["stage"], &stages[1]["stage"]], ["ResponseStarted", "ResponseComplete"]);
    assert_eq!(stages[0]["auditID"], stages[1]["auditID"]);
    let why = "RBAC: allowed by RoleBinding \"anns/default\" of ClusterRole \"view\" to User \"ann\"";
    assert_eq!(stages[0]["annotations"]["authorization.k8s.io/reason"], why);
}

#[tokio::test]
async fn who_asks_as_another_is_told_with_both_names_and_paths_are_told_too() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "{level: Metadata, verbs: [list], resources: [{resources: [configmaps]}]},
        {level: Metadata, nonResourceURLs: ['/healthz*']}";
    let api = api(log(dir.path(), rules, LogTarget::default())).await;
    let face = rest::Face::new(api.0.clone());
    let root = Peer { root: true, certificate: None, until: None };
    let ask = async |path: &str, id: &str, headers: &[(&str, &str)]| {
        let mut request = hyper::Request::get(path).header("audit-id", id).header("user-agent", "tests/1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(http_body_util::Full::new(bytes::Bytes::new())).unwrap();
        face.answer(&root, rest::boxed(request)).await.status().as_u16()
    };
    let forged = [("authorization", "Bearer nothing")];
    let by = [("impersonate-user", "bob"), ("x-forwarded-for", "192.0.2.7, rubbish")];
    let many = (0..40).map(|n| format!("192.0.2.{n}")).collect::<Vec<_>>().join(",");
    assert_eq!(ask("/api/v1/namespaces/default/configmaps?limit=5", "one", &by).await, 403);
    assert_eq!(ask("/healthz", "two", &[("x-forwarded-for", &many)]).await, 200);
    assert_eq!(ask("/readyz", "three", &forged).await, 401);
    let both = || {
        let all = lines(&dir.path().join("audit.log"));
        ["one", "two"].map(|id| all.iter().find(|event| event["auditID"] == id).cloned().unwrap_or_default())
    };
    let begun = std::time::Instant::now();
    while both().iter().any(Value::is_null) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:#?}", both());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let [one, two] = both();
    assert_eq!(one["impersonatedUser"]["username"], "bob");
    assert!(one["user"]["groups"].as_array().unwrap().contains(&json!("system:masters")), "{one}");
    assert_eq!(
        (&one["requestURI"], &one["userAgent"]),
        (&json!("/api/v1/namespaces/default/configmaps?limit=5"), &json!("tests/1"))
    );
    assert_eq!((&one["sourceIPs"], &one["responseStatus"]["code"]), (&json!(["192.0.2.7"]), &json!(403)));
    assert_eq!(one["annotations"]["audit.k8s.io/truncated"], Value::Null);
    assert_eq!(two["annotations"]["audit.k8s.io/truncated"], "true", "sixteen addresses are told");
    assert_eq!(two["sourceIPs"].as_array().map(Vec::len), Some(16));
    assert_eq!(
        (&two["verb"], &two["requestURI"], &two["objectRef"]),
        (&json!("get"), &json!("/healthz"), &Value::Null)
    );
    assert_eq!(lines(&dir.path().join("audit.log")).len(), 2, "no rule is about /readyz");
}

#[tokio::test]
async fn a_full_file_gets_a_name_and_old_ones_go() {
    let dir = tempfile::tempdir().unwrap();
    let place = LogTarget { max_size: 1, max_backups: 2, ..LogTarget::default() };
    let api = api(log(dir.path(), "{level: RequestResponse, verbs: [create]}", place)).await;
    std::fs::write(dir.path().join("audit-of-another.log"), "kept").unwrap();
    let big = "x".repeat(300 << 10);
    for i in 0..12 {
        let mut map = config_map(&format!("m{i}"));
        map["data"]["a"] = big.as_str().into();
        api.create("configmaps", map).await.unwrap();
    }
    drop(api);
    let files = || {
        let all = std::fs::read_dir(dir.path()).unwrap();
        let mut all: Vec<_> = all
            .map(|e| e.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len()))
            .collect();
        all.sort();
        all
    };
    // The last event is written when the current file holds it: 12 of 600 kB, one a file.
    for _ in 0..250 {
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap_or_default();
        if text.contains("\"m11\"") && files().len() == 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let names = files();
    assert_eq!(names.len(), 4, "the file, two backups, and what is none of ours: {names:?}");
    assert!(names.iter().all(|(_, size)| *size <= 1 << 20), "{names:?}");
    assert!(names.iter().any(|(name, _)| name == "audit-of-another.log"));
    assert_eq!(names.iter().filter(|(name, _)| name.starts_with("audit-2")).count(), 2, "{names:?}");
}

#[tokio::test]
async fn admission_tells_what_it_found() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(log(dir.path(), "{level: Metadata}", LogTarget::default())).await;
    let labels = json!({"pod-security.kubernetes.io/audit": "restricted"});
    api.patch("namespaces", "default", json!({"metadata": {"labels": labels}})).await.unwrap();
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"}, "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
            "validations": [{"expression": "false", "message": "no"}],
            "auditAnnotations": [{"key": "image", "valueExpression": "object.spec.containers[0].image"}]}});
    api.create("validatingadmissionpolicies", policy).await.unwrap();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Audit"]}});
    api.create("validatingadmissionpolicybindings", binding).await.unwrap();
    api.create("pods", super::pod("x")).await.unwrap();
    let annotations = told(dir.path(), "test", "create", 3).await[2]["annotations"].clone();
    assert_eq!(annotations["pod-security.kubernetes.io/enforce-policy"], "privileged:latest");
    let audited = annotations["pod-security.kubernetes.io/audit-violations"].as_str().unwrap();
    let head =
        "would violate PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" must set";
    assert!(audited.starts_with(head), "{audited}");
    assert_eq!(annotations["p/image"], "busybox:1");
    let failure = annotations["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap();
    let failure: Value = serde_json::from_str(failure).unwrap();
    let told =
        json!([{"message": "no", "policy": "p", "binding": "b", "expressionIndex": 0, "validationActions": ["Audit"]}]);
    assert_eq!(failure, told);
}

/// Rules name custom resources by their groups; and what no resource is asked for by JSON-RPC is told by its path.
#[tokio::test]
async fn custom_resources_are_told_by_their_group() {
    use super::custom::{definition, spec, widget};
    let dir = tempfile::tempdir().unwrap();
    let rules = "{level: Metadata, resources: [{group: example.com, resources: [widgets]}]}, {level: None}";
    let api = api(log(dir.path(), rules, LogTarget::default())).await;
    api.define(definition(spec(json!({})))).await;
    for resource in ["widgets.v1.example.com", "widgets.example.com/v1"] {
        let name = resource.replace('/', ".");
        api.create(resource, widget(&name, json!({}))).await.unwrap();
    }
    let told = told(dir.path(), "test", "create", 2).await;
    assert_eq!(
        (&told[0]["objectRef"]["apiGroup"], &told[0]["objectRef"]["resource"]),
        (&json!("example.com"), &json!("widgets"))
    );
}

/// What is refused before anybody looks at the object is told with what was asked for.
#[tokio::test]
async fn a_refusal_before_the_pipeline_tells_what_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(log(dir.path(), "{level: Metadata}", LogTarget::default())).await;
    let face = rest::Face::new(api.0.clone());
    let secret = "/api/v1/namespaces/a/secrets/s";
    let cases: [(&str, &str, &str, &[(&str, &str)], u16, &str); 5] = [
        ("stranger", "GET", secret, &[], 403, "get"),
        ("bad", "HEAD", secret, &[("authorization", "Bearer x.y.z")], 401, "get"),
        ("many", "GET", "/api/v1/namespaces/a/secrets?watch=true", &[], 403, "watch"),
        ("acting", "DELETE", secret, &[("authorization", "Bearer x.y.z"), ("impersonate-user", "bob")], 401, "delete"),
        ("body", "POST", "/api/v1/namespaces/a/secrets", &[], 400, "create"),
    ];
    for (id, method, path, headers, code, _) in &cases {
        let peer = Peer { root: *id == "body", certificate: None, until: None };
        let mut request = hyper::Request::builder().method(*method).uri(*path).header("audit-id", *id);
        for (name, value) in *headers {
            request = request.header(*name, *value);
        }
        let body = http_body_util::Full::new(bytes::Bytes::from_static(b"{"));
        let reply = face.answer(&peer, rest::boxed(request.body(body).unwrap())).await;
        assert_eq!(reply.status().as_u16(), *code, "{id}");
    }
    let begun = std::time::Instant::now();
    for (id, _, path, _, _, verb) in cases {
        let event = loop {
            match lines(&dir.path().join("audit.log")).into_iter().find(|event| event["auditID"] == id) {
                Some(event) => break event,
                None => assert!(begun.elapsed() < Duration::from_secs(10), "nothing is told of {id}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let mut object = json!({"resource": "secrets", "namespace": "a", "apiVersion": "v1"});
        if path == secret {
            object["name"] = "s".into();
        }
        assert_eq!((&event["verb"], &event["objectRef"]), (&json!(verb), &object), "{id}");
    }
}
