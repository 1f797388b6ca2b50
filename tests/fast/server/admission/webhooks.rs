//! Webhooks: real ones, over TLS on loopback; what they are asked, and what their answers do.

use std::net::Ipv4Addr;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use podwright::api::request::PatchType;
use podwright::api::rpc::Task;
use podwright::api::stream::{Frame, FrameCodec, STDIN, STDOUT};
use podwright::api::{Object, Options, Request, Status, User, Verb};
use podwright::client::rpc;
use podwright::server::listen::{bind, serve};
use podwright::server::{Config, Limits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::codec::Framed;

use super::hook::{Hook, label, patch};
use super::{Api, object_of, pod, request, told, with, within};

fn configuration(kind: &str, name: &str, entries: &[Value]) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": entries})
}

impl Api {
    pub(super) async fn mutating(&self, name: &str, entries: &[Value]) {
        let made = configuration("MutatingWebhookConfiguration", name, entries);
        self.create("mutatingwebhookconfigurations", made).await.unwrap();
    }
    pub(super) async fn validating(&self, name: &str, entries: &[Value]) {
        let made = configuration("ValidatingWebhookConfiguration", name, entries);
        self.create("validatingwebhookconfigurations", made).await.unwrap();
    }
}

#[tokio::test]
async fn a_mutating_webhook_is_asked_in_upstreams_form_and_patches() {
    let api = Api::new().await;
    let hook = Hook::new(|_| {
        patch(json!([
            {"op": "add", "path": "/spec/containers/-", "value": {"name": "sidecar", "image": "s:1"}},
            {"op": "add", "path": "/metadata/labels/hooked", "value": "yes"},
        ]))
    })
    .await;
    api.mutating("m", &[hook.entry("a.example.com", json!({}))]).await;
    let options = Options { field_manager: Some("me".into()), ..Options::default() };
    let made = object_of(api.0.handle(request(Verb::Create, "pods", "", Some(pod("p")), options)).await.unwrap());
    assert_eq!(made.label("hooked"), Some("yes"));
    let sidecar = &made.0["spec"]["containers"][1];
    assert_eq!(
        (&sidecar["name"], &sidecar["imagePullPolicy"]),
        (&json!("sidecar"), &json!("IfNotPresent")),
        "with defaults"
    );
    assert!(sidecar["volumeMounts"][0]["mountPath"].is_string(), "other plugins look at what was patched in");

    let seen = hook.requests().remove(0);
    let gvk = json!({"group": "", "version": "v1", "kind": "Pod"});
    let gvr = json!({"group": "", "version": "v1", "resource": "pods"});
    for (field, value) in [
        ("kind", gvk.clone()),
        ("requestKind", gvk),
        ("resource", gvr.clone()),
        ("requestResource", gvr),
        ("name", json!("p")),
        ("namespace", json!("default")),
        ("operation", json!("CREATE")),
        ("dryRun", json!(false)),
        ("oldObject", Value::Null),
        ("options", json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"})),
        ("userInfo", json!({"username": "test", "groups": ["system:masters", "system:authenticated"]})),
    ] {
        assert_eq!(seen[field], value, "{field}");
    }
    assert_eq!(seen["object"]["spec"]["containers"][0]["name"], "c");
    assert_eq!(seen["object"]["spec"]["serviceAccountName"], "default", "the built-in plugins come first");
    assert_eq!(seen["uid"].as_str().unwrap().len(), 36);
}

#[tokio::test]
async fn what_a_webhook_changes_counts_as_a_generation_and_stays_within_the_part() {
    let api = Api::new().await;
    let labels = json!({"app": "d"});
    let container = json!({"name": "c", "image": "i:1"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template}});
    api.create("deployments.apps", deployment).await.unwrap();
    let hook = Hook::new(|_| patch(json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]))).await;
    let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["deployments", "deployments/status"]}]);
    api.mutating("m", &[hook.entry("a.example.com", json!({"rules": rules}))]).await;
    let status = json!({"status": {"observedGeneration": 1, "replicas": 1}});
    let told = object_of(api.sub(Verb::Patch, "deployments.apps", "d", "status", status).await.unwrap());
    assert_eq!((&told.0["spec"]["replicas"], told.generation()), (&json!(1), 1));
    assert_eq!(told.0["status"]["replicas"], 1);
    let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
    let body = json!({"metadata": {"labels": {"more": "yes"}}});
    let changed = api.0.handle(request(Verb::Patch, "deployments.apps", "d", Some(body), options)).await.unwrap();
    let changed = object_of(changed);
    assert_eq!((&changed.0["spec"]["replicas"], changed.generation()), (&json!(3), 2));
    assert_eq!(hook.lines(), ["UPDATE deployments/status d", "UPDATE deployments d"]);
}

#[tokio::test]
async fn a_refusal_says_who_refused_and_why() {
    for (status, code, message) in [
        (
            json!({"message": "not here", "code": 403, "reason": "Forbidden"}),
            403,
            "admission webhook \"a.example.com\" denied the request: not here",
        ),
        (json!({"reason": "NoSuchThing"}), 400, "admission webhook \"a.example.com\" denied the request: NoSuchThing"),
        (Value::Null, 400, "admission webhook \"a.example.com\" denied the request without explanation"),
        (json!({"code": 200, "message": "odd"}), 400, "admission webhook \"a.example.com\" denied the request: odd"),
    ] {
        for mutating in [true, false] {
            let api = Api::new().await;
            let status = status.clone();
            let hook =
                Hook::new(move |_| json!({"allowed": false, "status": status, "warnings": ["think again"]})).await;
            let entries = [hook.entry("a.example.com", json!({}))];
            if mutating {
                api.mutating("w", &entries).await
            } else {
                api.validating("w", &entries).await
            }
            let (refused, warnings) = api.create_warned("pods", pod("p")).await;
            let refused = refused.unwrap_err();
            assert_eq!((refused.code, refused.message.as_str()), (code, message));
            assert_eq!(warnings, ["think again"]);
            assert!(api.get("pods", "p").await.unwrap_err().is_not_found());
        }
    }
}

#[tokio::test]
async fn what_cannot_be_asked_fails_or_is_passed_over() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
    let stranger = Hook::allowing().await;
    let cases: Vec<(Hook, Value, &str)> = vec![
        (
            Hook::allowing().await,
            json!({"clientConfig": {"url": format!("https://127.0.0.1:{closed}/path")}}),
            "/path?timeout=1s\": the webhook cannot be reached",
        ),
        // Neither that a port is open, nor whose certificate is there.
        (
            Hook::allowing().await,
            json!({"clientConfig": {"caBundle": stranger.ca}}),
            "timeout=1s\": the webhook cannot be reached",
        ),
        (Hook::new(|_| json!({"wait": true})).await, json!({}), "?timeout=1s\": context deadline exceeded"),
        (
            Hook::new(|_| json!({"code": 500})).await,
            json!({}),
            "an error on the server (500 Internal Server Error) has prevented the request from succeeding",
        ),
        (Hook::new(|_| json!({"code": 404})).await, json!({}), "the server rejected our request: 404 Not Found"),
        // Nor is it asked elsewhere.
        (
            Hook::new(|_| json!({"code": 307})).await,
            json!({}),
            "the server rejected our request: 307 Temporary Redirect",
        ),
        (
            Hook::new(|_| json!({"uid": "x", "allowed": true})).await,
            json!({}),
            "received invalid webhook response: expected response.uid=",
        ),
        (
            Hook::new(|_| json!({"raw": {"kind": "AdmissionReview"}})).await,
            json!({}),
            "received invalid webhook response: webhook response was absent",
        ),
        (
            Hook::new(|_| json!({"raw": {"kind": "Pod", "apiVersion": "v1", "response": {}}})).await,
            json!({}),
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got v1, Kind=Pod",
        ),
        (Hook::new(|_| label("x")).await, json!({}), "validating webhook may not return response.patch"),
        (
            Hook::allowing().await,
            json!({"clientConfig": {"url": null, "service": {"namespace": "default", "name": "none", "path": "/x"}}}),
            "Post \"https://none.default.svc:443/x?timeout=1s\": services \"none\" not found",
        ),
    ];
    for (hook, more, why) in cases {
        let mut entry = hook.entry("a.example.com", json!({"timeoutSeconds": 1}));
        json_patch::merge(&mut entry, &more);
        let api = Api::new().await;
        api.validating("w", &[entry]).await;
        let refused = api.create("pods", pod("p")).await.unwrap_err();
        let head = "Internal error occurred: failed calling webhook \"a.example.com\": ";
        assert!(
            refused.code == 500 && refused.message.starts_with(head) && refused.message.contains(why),
            "{refused}\n{why}"
        );
        assert!(!refused.message.contains("trouble"), "what it answered is told: {refused}");
        for found in ["refused", "certificate", "dial"] {
            assert!(!refused.message.contains(found), "what was found there is told: {refused}");
        }
        let open = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
        let options = Options { patch_type: Some(PatchType::Json), ..Options::default() };
        api.0.handle(request(Verb::Patch, "validatingwebhookconfigurations", "w", Some(open), options)).await.unwrap();
        api.create("pods", pod("p")).await.unwrap();
    }
}

#[tokio::test]
async fn rules_say_what_is_asked_about() {
    let api = Api::new().await;
    let rule = |operations: Value, resources: Value| json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": operations, "resources": resources});
    let all = Hook::allowing().await;
    let named = Hook::allowing().await;
    let cluster = Hook::allowing().await;
    let mut wide = rule(json!(["*"]), json!(["*/*"]));
    wide["scope"] = "Cluster".into();
    api.validating(
        "w",
        &[
            all.entry("a.example.com", json!({"rules": [rule(json!(["*"]), json!(["configmaps", "pods/*"]))]})),
            named.entry("b.example.com", json!({"rules": [rule(json!(["DELETE", "UPDATE"]), json!(["configmaps"]))]})),
            cluster.entry("c.example.com", json!({"rules": [wide]})),
        ],
    )
    .await;
    api.create("configmaps", super::super::config_map("a")).await.unwrap();
    let changed = api.patch("configmaps", "a", json!({"data": {"a": "2"}})).await.unwrap();
    api.create("pods", pod("p")).await.unwrap();
    api.sub(Verb::Patch, "pods", "p", "status", json!({"status": {"phase": "Running"}})).await.unwrap();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    api.sub(Verb::Create, "pods", "p", "binding", binding).await.unwrap();
    api.sub(Verb::Connect, "pods", "p", "exec", json!({"container": "c", "command": ["sh"]})).await.ok();
    api.namespace("other", json!({})).await;
    api.ask(Verb::DeleteCollection, "configmaps", "", Options::default()).await.unwrap();
    // What webhooks are set up by is not theirs to judge.
    api.delete("validatingwebhookconfigurations", "w", Options::default()).await.unwrap();

    assert_eq!(
        all.lines(),
        [
            "CREATE configmaps a",
            "UPDATE configmaps a",
            // As upstream reads `pods/*`.
            "CREATE pods p",
            "UPDATE pods/status p",
            "CREATE pods/binding p",
            "CONNECT pods/exec p",
            "DELETE configmaps a"
        ]
    );
    assert_eq!(named.lines(), ["UPDATE configmaps a", "DELETE configmaps a"]);
    assert_eq!(cluster.lines(), ["CREATE namespaces other"]);
    let requests = named.requests();
    assert_eq!(
        (&requests[0]["oldObject"]["data"]["a"], &requests[0]["object"]["data"]["a"]),
        (&json!("1"), &json!("2"))
    );
    assert_eq!((&requests[1]["object"], &requests[1]["oldObject"]), (&Value::Null, &changed.0));
    assert_eq!(all.requests()[4]["kind"], json!({"group": "", "version": "v1", "kind": "Binding"}));
    assert_eq!(
        all.requests()[5]["object"],
        json!({"kind": "PodExecOptions", "apiVersion": "v1", "container": "c", "command": ["sh"]})
    );
    assert_eq!(cluster.requests()[0]["namespace"], "other");
}

#[tokio::test]
async fn selectors_choose_by_namespace_and_by_labels_before_and_after() {
    let api = Api::new().await;
    api.namespace("loud", json!({"watched": "yes"})).await;
    let by_namespace = Hook::allowing().await;
    let by_object = Hook::allowing().await;
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps", "namespaces"]}]);
    api.validating(
        "w",
        &[
            by_namespace.entry(
                "a.example.com",
                json!({"rules": rules, "namespaceSelector": {"matchLabels": {"watched": "yes"}}}),
            ),
            by_object.entry(
                "b.example.com",
                json!({"rules": rules, "objectSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}),
            ),
        ],
    )
    .await;
    api.create("configmaps", super::super::config_map("a")).await.unwrap();
    let loud = request(Verb::Create, "configmaps", "", Some(super::super::config_map("b")), Options::default());
    api.0.handle(within("loud", loud)).await.unwrap();
    api.patch("configmaps", "a", json!({"metadata": {"labels": {"x": "1"}}})).await.unwrap();
    api.patch("configmaps", "a", json!({"metadata": {"labels": {"x": null}}})).await.unwrap();
    api.patch("configmaps", "a", json!({"data": {"a": "3"}})).await.unwrap();
    api.patch("namespaces", "loud", json!({"metadata": {"labels": {"y": "1"}}})).await.unwrap();
    assert_eq!(by_namespace.lines(), ["CREATE configmaps b", "UPDATE namespaces loud"]);
    assert_eq!(by_object.lines(), ["UPDATE configmaps a", "UPDATE configmaps a"]);
}

#[tokio::test]
async fn equivalent_versions_are_converted_to_what_the_rule_names() {
    let api = Api::new().await;
    let (equivalent, exact) = (
        Hook::new(|_| patch(json!([{"op": "replace", "path": "/spec/maxReplicas", "value": 7}]))).await,
        Hook::allowing().await,
    );
    let rules = json!([{"apiGroups": ["autoscaling"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["horizontalpodautoscalers"]}]);
    api.mutating(
        "w",
        &[
            equivalent.entry("a.example.com", json!({"rules": rules})),
            exact.entry("b.example.com", json!({"rules": rules, "matchPolicy": "Exact"})),
        ],
    )
    .await;
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": {
        "maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}]}});
    let made = api.create("horizontalpodautoscalers", scaler).await.unwrap();
    assert_eq!((made.api_version(), &made.0["spec"]["maxReplicas"]), ("autoscaling/v2", &json!(7)));
    assert_eq!(made.0["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
    let seen = equivalent.requests().remove(0);
    assert_eq!((&seen["kind"]["version"], &seen["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(seen["object"]["spec"]["targetCPUUtilizationPercentage"], 60);
    assert_eq!(exact.lines(), [""; 0]);
}

#[tokio::test]
async fn who_wants_to_see_later_changes_is_asked_again() {
    let api = Api::new().await;
    let again = Hook::new(|request| match request["object"]["metadata"]["labels"]["second"].is_string() {
        true => label("saw-second"),
        false => label("first"),
    })
    .await;
    let once = Hook::allowing().await;
    let second = Hook::new(|_| label("second")).await;
    api.mutating(
        "w",
        &[
            again.entry("a.example.com", json!({"reinvocationPolicy": "IfNeeded"})),
            once.entry("b.example.com", json!({})),
            second.entry("c.example.com", json!({})),
        ],
    )
    .await;
    let made = api.create("pods", pod("p")).await.unwrap();
    for name in ["first", "second", "saw-second"] {
        assert_eq!(made.label(name), Some("yes"), "{name}");
    }
    assert_eq!([again.lines().len(), once.lines().len(), second.lines().len()], [2, 1, 1]);
}

#[tokio::test]
async fn dry_runs_warnings_and_updates_pass_through() {
    let api = Api::new().await;
    let hook = Hook::new(|request| {
        let mut answer = patch(json!([
            {"op": "add", "path": "/data/hooked", "value": "yes"},
            {"op": "replace", "path": "/metadata/uid", "value": request["object"]["metadata"]["uid"]},
        ]));
        answer["warnings"] = json!(["mind the gap", "and the step"]);
        answer["auditAnnotations"] = json!({"key": "value"});
        answer
    })
    .await;
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]);
    api.mutating("w", &[hook.entry("a.example.com", json!({"rules": rules}))]).await;
    let dry = Options { dry_run: true, ..Options::default() };
    let create = request(Verb::Create, "configmaps", "", Some(super::super::config_map("a")), dry);
    let (made, warnings) = told(api.0.handle(create).await);
    assert_eq!(made.unwrap().0["data"]["hooked"], "yes");
    assert_eq!(warnings, ["mind the gap", "and the step"]);
    assert_eq!(hook.requests()[0]["dryRun"], true);
    assert!(api.get("configmaps", "a").await.unwrap_err().is_not_found());

    let made = api.create("configmaps", super::super::config_map("a")).await.unwrap();
    let mut replaced: Object = made.clone();
    replaced.0["data"] = json!({"b": "1"});
    assert_eq!(api.update("configmaps", &replaced).await.unwrap().0["data"], json!({"b": "1", "hooked": "yes"}));
}

#[tokio::test]
async fn a_patch_that_makes_no_object_is_refused() {
    let api = Api::new().await;
    for (operations, code, why) in [
        (json!([{"op": "replace", "path": "/spec/containers/0/image", "value": 7}]), 500, "image"),
        (json!([{"op": "remove", "path": "/spec/nowhere"}]), 500, "nowhere"),
        (
            json!([{"op": "add", "path": "/spec/containers/0/image", "value": ""}]),
            422,
            "spec.containers[0].image: Required value",
        ),
    ] {
        let hook = Hook::new(move |_| patch(operations.clone())).await;
        api.mutating("w", &[hook.entry("a.example.com", json!({}))]).await;
        let refused: Status = api.create("pods", pod("p")).await.unwrap_err();
        assert!(refused.code == code && refused.message.contains(why), "{refused}");
        api.delete("mutatingwebhookconfigurations", "w", Options::default()).await.unwrap();
    }
}

/// Whoever may write a Service chooses where such a webhook is: not on the server's own machine, nor at its cloud's metadata.
#[tokio::test]
async fn a_service_leads_neither_to_loopback_nor_to_link_local_addresses() {
    let api = Api::new().await;
    let hook = Hook::new(|_| label("hooked")).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"}, "spec": {
        "type": "ExternalName", "externalName": "localhost"}});
    api.create("services", service).await.unwrap();
    let place = json!({"url": null, "service": {"namespace": "default", "name": "hook", "port": hook.port}});
    api.mutating("w", &[hook.entry("a.example.com", json!({"clientConfig": place}))]).await;
    let refused = api.create("pods", with(pod("p"), "/metadata/labels", json!({}))).await.unwrap_err();
    assert!(refused.message.contains(": the webhook cannot be reached"), "{refused}");
    assert!(hook.requests().is_empty(), "it was asked");
}

#[tokio::test]
async fn conditions_say_what_is_not_worth_asking() {
    let api = Api::new().await;
    let entry = |hook: &Hook, name: &str, more: Value| {
        let mut entry = hook.entry(
            name,
            json!({"rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]}),
        );
        json_patch::merge(&mut entry, &more);
        entry
    };
    let conditions = |expression: &str| json!({"matchConditions": [{"name": "a", "expression": expression}]});
    let (asked, spared, odd) = (Hook::allowing().await, Hook::allowing().await, Hook::allowing().await);
    let broken = |policy: &str| {
        let mut more = conditions("object.nothing == 1");
        more["failurePolicy"] = policy.into();
        more
    };
    api.validating(
        "w",
        &[
            entry(&asked, "a.example.com", conditions("object.data.a == '1' && request.userInfo.username == 'test'")),
            entry(&spared, "b.example.com", conditions("!authorizer.requestResource.check('create').allowed()")),
            entry(&odd, "c.example.com", broken("Ignore")),
        ],
    )
    .await;
    api.create("configmaps", super::super::config_map("a")).await.unwrap();
    assert_eq!((asked.lines(), spared.lines(), odd.lines()), (vec!["CREATE configmaps a".to_owned()], vec![], vec![]));
    api.validating("x", &[entry(&odd, "d.example.com", broken("Fail"))]).await;
    let refused = api.create("configmaps", super::super::config_map("b")).await.unwrap_err();
    let why = "configmaps \"b\" is forbidden: expression 'object.nothing == 1' resulted in error: no such key: nothing";
    assert_eq!((refused.code, refused.message.as_str()), (403, why));
}

/// A node whose network is this machine's loopback: what is dialled is led to `port`, and told.
async fn node(api: &Api, dir: &std::path::Path, port: u16, dialled: mpsc::UnboundedSender<String>) {
    let path = dir.join("api.sock");
    let (listener, server) = (bind(&path).unwrap(), api.0.clone());
    tokio::spawn(async move { serve(server, listener, None, std::future::pending()).await.unwrap() });
    let client = rpc::client(rpc::Address(path), "test");
    let mut sessions = client.sessions("n").await.unwrap();
    tokio::spawn(async move {
        while let Some(session) = sessions.recv().await {
            let Task::Dial { address, .. } = session.task else { panic!("{:?}", session.task) };
            dialled.send(address).unwrap();
            let frames = Framed::new(client.dial(&session.id).await.unwrap(), FrameCodec);
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            tokio::spawn(join(frames, stream));
        }
    });
}

async fn join(frames: Framed<podwright::client::Stream, FrameCodec>, stream: TcpStream) {
    let ((mut to, mut from), (mut reader, mut writer)) = (frames.split(), stream.into_split());
    let up = async {
        while let Some(Ok(frame)) = from.next().await {
            if frame.channel == STDIN && writer.write_all(&frame.payload).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 8192];
        while let Ok(count @ 1..) = reader.read(&mut buffer).await {
            let payload = Bytes::copy_from_slice(&buffer[..count]);
            if to.send(Frame { channel: STDOUT, payload }).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(up, down);
}

#[tokio::test]
async fn a_service_is_reached_through_the_node_of_its_endpoint() {
    let api = Api::new().await;
    let hook = Hook::new(|_| label("hooked")).await;
    let dir = tempfile::tempdir().unwrap();
    let (sender, mut dialled) = mpsc::unbounded_channel();
    node(&api, dir.path(), hook.port, sender).await;
    let ports = json!({"ports": [{"port": 443, "targetPort": 8443}]});
    api.create("services", super::super::service("hook", ports)).await.unwrap();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "ports": [{"name": "", "port": 8443, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.244.0.8"], "nodeName": "n", "conditions": {"ready": false}},
            {"addresses": ["10.244.0.9"], "nodeName": "n", "conditions": {"ready": true}}]});
    api.create("endpointslices", slice).await.unwrap();
    let mut entry = hook.entry("a.example.com", json!({}));
    json_patch::merge(
        &mut entry,
        &json!({"clientConfig": {"url": null, "service": {"namespace": "default", "name": "hook"}}}),
    );
    api.mutating("w", &[entry]).await;
    assert_eq!(api.create("pods", pod("p")).await.unwrap().label("hooked"), Some("yes"));
    assert_eq!(dialled.recv().await.as_deref(), Some("10.244.0.9:8443"));
}

/// A server on which somebody who is no administrator may do everything with these resources, and has little room.
pub async fn with_little_room(group: &str, resources: &[&str]) -> (Api, User) {
    let limits = Limits { bodies_of_one: 64 << 10, ..Limits::default() };
    let api = Api::with(Config { limits, ..Config::default() }).await;
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": "some"},
        "rules": [{"apiGroups": [group], "resources": resources, "verbs": ["*"]}]});
    let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "some"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "some"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ann"}]});
    api.create("clusterroles", role).await.unwrap();
    api.create("clusterrolebindings", binding).await.unwrap();
    (api, User::new("ann", ["system:authenticated"]))
}

#[tokio::test]
async fn an_answer_counts_for_the_user_whose_request_asked() {
    let (api, ann) = with_little_room("", &["pods"]).await;
    // What it says means nothing: it is long.
    let hook = Hook::new(|request| match request["name"].as_str().unwrap_or("").starts_with("long") {
        true => json!({"allowed": true, "status": {"message": "x".repeat(200 << 10)}}),
        false => json!({"allowed": true}),
    })
    .await;
    api.validating("v", &[hook.entry("a.example.com", json!({"failurePolicy": "Ignore"}))]).await;
    let create = async |user: &User, name: &str| {
        let asked = request(Verb::Create, "pods", "", Some(pod(name)), Options::default());
        api.0.handle(Request { user: user.clone(), ..asked }).await.map(drop)
    };
    for _ in 0..3 {
        let refused = create(&ann, "long").await.unwrap_err();
        assert_eq!(refused.code, 429, "{refused}: nothing passes over it");
    }
    create(&ann, "short").await.expect("what was refused is given back");
    create(&User::system("us"), "long-too").await.expect("the superuser is not counted");
}

/// What a patch becomes is known when it is decoded, not by the bytes of the answer.
#[tokio::test]
async fn a_patch_of_many_values_is_applied() {
    let (api, ann) = with_little_room("", &["pods"]).await;
    let hook = Hook::new(|_| {
        let tests: Vec<Value> = (0..500).map(|_| json!({"op": "test", "path": "/kind", "value": "Pod"})).collect();
        let label = json!({"op": "add", "path": "/metadata/labels/hooked", "value": "yes"});
        patch(Value::from([tests, vec![label]].concat()))
    })
    .await;
    api.mutating("m", &[hook.entry("a.example.com", json!({}))]).await;
    let asked = request(Verb::Create, "pods", "", Some(pod("p")), Options::default());
    let made = object_of(api.0.handle(Request { user: ann, ..asked }).await.unwrap());
    assert_eq!(made.label("hooked"), Some("yes"));
}
