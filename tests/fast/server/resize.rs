//! In-place resize: what may change of a Pod's resources, by whom, and what it is charged.

use podwright::api::request::PatchType;
use podwright::api::{Object, Options, Request, Status, User, Verb, quota};
use serde_json::{Value, json};

use super::{Api, mirror, object_of, pod, request};

/// One patch of a Pod's `resize`.
async fn patch(api: &Api, of_type: PatchType, name: &str, body: Value) -> Result<Object, Status> {
    let options = Options { patch_type: Some(of_type), field_manager: Some("me".into()), ..Options::default() };
    let asked =
        Request { subresource: Some("resize".into()), ..request(Verb::Patch, "pods", name, Some(body), options) };
    api.0.handle(asked).await.map(object_of)
}

async fn resize(api: &Api, name: &str, containers: Value) -> Result<Object, Status> {
    patch(api, PatchType::Strategic, name, json!({"spec": {"containers": containers}})).await
}

/// A Burstable Pod: a sidecar, an init container, and the containers `c` and `d`.
fn sized(name: &str) -> Value {
    let mut pod = pod(name);
    let resources =
        || json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}});
    pod["spec"]["initContainers"] = json!([
        {"name": "s", "image": "i:1", "restartPolicy": "Always", "resources": resources()},
        {"name": "i", "image": "i:1", "resources": resources()},
    ]);
    pod["spec"]["containers"] = json!([
        {"name": "c", "image": "i:1", "resources": resources(),
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]},
        {"name": "d", "image": "i:1", "resources": {"requests": {"cpu": "100m"}}},
    ]);
    pod
}

const ONLY: &str = "Forbidden: only cpu and memory resources are mutable";

/// What is merged into the spec (as a strategic merge patch has it), and what it is answered: nothing where it is accepted.
#[rustfmt::skip]
const CHANGES: &[(&str, &str, &str)] = &[
    ("containers: [{name: c, resources: {requests: {cpu: 150m}, limits: {cpu: 1}}}]", "", ""),
    ("containers: [{name: c, resources: {requests: {memory: 32Mi}, limits: {memory: 64Mi}}}]", "", ""),
    ("containers: [{name: d, resources: {limits: {memory: 64Mi}}}]", "", ""),
    ("containers: [{name: d, resources: {requests: {memory: 64Mi}, limits: {cpu: 2, memory: 64Mi}}}]", "", ""),
    ("initContainers: [{name: s, resources: {limits: {cpu: 300m}}}]", "", ""),
    ("containers: [{name: c, image: 'other:1', resources: {limits: {cpu: 1}}}]", "", ""),
    ("containers: [{name: c, resources: {requests: {cpu: 300m}}}]", "spec.containers[0].resources.requests", "Invalid value: \"300m\": must be less than or equal to cpu limit of 200m"),
    ("containers: [{name: c, resources: {requests: {cpu: ~}}}, {name: d, resources: ~}]", "spec.containers[1].resources.requests", "Forbidden: resource requests cannot be removed"),
    ("containers: [{name: c, resources: {limits: {memory: ~}}}]", "spec.containers[0].resources.limits", "Forbidden: resource limits cannot be removed"),
    ("containers: [{name: c, resources: {limits: {cpu: 0}, requests: {cpu: 0}}}]", "spec.containers[0].resources.limits", "Forbidden: resource limits cannot be removed"),
    ("initContainers: [{name: s, resources: ~}]", "spec.initContainers[0].resources.limits", "Forbidden: resource limits cannot be removed"),
    ("containers: [{name: c, resources: {limits: {ephemeral-storage: 1Gi}}}]", "spec", ONLY),
    ("containers: [{name: d, resources: {limits: {example.com/gpu: 1}}}]", "spec", ONLY),
    ("containers: [{name: d, resources: {claims: [{name: gpu}]}}]", "spec", ONLY),
    ("initContainers: [{name: s, resources: {claims: [{name: gpu}]}}]", "spec", "Forbidden: only cpu and memory resources for sidecar containers are mutable"),
    ("containers: [{name: c, resizePolicy: [{resourceName: memory, restartPolicy: NotRequired}]}]", "spec", ONLY),
    ("containers: [{name: d, resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]}]", "spec", ONLY),
    ("initContainers: [{name: s, resources: {limits: {ephemeral-storage: 1Gi}}}]", "spec", "Forbidden: only cpu and memory resources for sidecar containers are mutable"),
    ("initContainers: [{name: i, resources: {limits: {cpu: 300m}}}]", "spec", "Forbidden: resources for non-sidecar init containers are immutable"),
    ("containers: [{name: e, image: 'i:1'}]", "spec.containers", "Forbidden: containers may not be added or removed on resize"),
    ("containers: [{name: d, $patch: delete}]", "spec.containers", "Forbidden: containers may not be added or removed on resize"),
    ("initContainers: [{name: i, $patch: delete}]", "spec.initContainers", "Forbidden: initContainers may not be added or removed on resize"),
    ("$setElementOrder/containers: [{name: d}, {name: c}], containers: [{name: c}]", "spec.containers[0].name", "Forbidden: containers may not be renamed or reordered on resize"),
    ("$setElementOrder/initContainers: [{name: i}, {name: s}], initContainers: [{name: s}]", "spec.initContainers[1].name", "Forbidden: initContainers may not be renamed or reordered on resize"),
];

#[tokio::test]
async fn what_may_change_and_what_may_not() {
    let mut wrong = Vec::new();
    for (change, field, why) in CHANGES {
        let api = Api::new().await;
        let made = api.create("pods", sized("p")).await.unwrap();
        let spec = podwright::api::yaml::documents(&format!("{{{change}}}")).unwrap().remove(0);
        match patch(&api, PatchType::Strategic, "p", json!({"spec": spec})).await {
            Ok(new) if why.is_empty() => {
                assert_eq!(new.generation(), made.generation() + 1, "{change}");
                assert_eq!(new.0["spec"]["containers"][0]["image"], "i:1", "nothing else is changed by it");
                assert_eq!(new.0["status"], made.0["status"]);
            }
            Err(status) if !why.is_empty() => {
                let causes = status.details.as_ref().map(|d| d.causes.clone()).unwrap_or_default();
                let told = causes.iter().any(|c| c.field == *field && c.message == *why);
                wrong.extend((!told || status.code != 422).then(|| format!("{change}\n  {status}")));
            }
            other => wrong.push(format!("{change}\n  {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_pods_class_stays_and_some_pods_stay_as_they_are() {
    let api = Api::new().await;
    let mut exact = pod("exact");
    exact["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    let mut whole = sized("whole");
    whole["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let mirror = mirror("mirror", &api.create("nodes", node).await.unwrap());
    let mut windows = pod("windows");
    windows["spec"]["os"] = json!({"name": "windows"});
    for object in [exact, whole, mirror, windows, pod("modest"), sized("p")] {
        api.create("pods", object).await.unwrap();
    }
    let class = |now: &str| format!("Invalid value: \"{now}\": Pod QOS Class may not change as a result of resizing");
    for (name, resources, field, why) in [
        ("exact", json!({"requests": {"cpu": "500m"}}), "spec", class("Guaranteed")),
        ("modest", json!({"requests": {"cpu": "500m"}}), "spec", class("BestEffort")),
        (
            "whole",
            json!({"limits": {"cpu": "2"}}),
            "",
            "Forbidden: pods with pod-level resources cannot be resized".into(),
        ),
        ("mirror", json!({"limits": {"cpu": "2"}}), "", "Forbidden: static pods cannot be resized".into()),
        ("windows", json!({"limits": {"cpu": "2"}}), "", "Forbidden: windows pods cannot be resized".into()),
    ] {
        let refused = resize(&api, name, json!([{"name": "c", "resources": resources}])).await.unwrap_err();
        let causes = refused.details.unwrap().causes;
        assert_eq!((causes.len(), causes[0].field.as_str(), causes[0].message.as_str()), (1, field, why.as_str()));
    }
    let both = json!({"requests": {"cpu": "2", "memory": "32Mi"}, "limits": {"cpu": "2", "memory": "32Mi"}});
    resize(&api, "exact", json!([{"name": "c", "resources": both}])).await.unwrap();

    // A node that does not say what its containers have got knows nothing of this.
    let runs = |resources: Value| {
        let mut status = json!({"name": "c", "image": "i:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
        if !resources.is_null() {
            status["resources"] = resources;
        }
        json!({"status": {"containerStatuses": [status]}})
    };
    api.sub(Verb::Patch, "pods", "p", "status", runs(Value::Null)).await.unwrap();
    let more = || json!([{"name": "c", "resources": {"limits": {"cpu": "1"}}}]);
    let refused = resize(&api, "p", more()).await.unwrap_err();
    assert!(refused.message.ends_with("spec: Forbidden: Pod running on node without support for resize"), "{refused}");
    api.sub(Verb::Patch, "pods", "p", "status", runs(json!({}))).await.unwrap();
    resize(&api, "p", more()).await.unwrap();
}

#[tokio::test]
async fn every_way_of_writing_leads_to_it_and_no_other() {
    let api = Api::new().await;
    let made = api.create("pods", sized("p")).await.unwrap();
    let cpu = |pod: &Object| pod.0["spec"]["containers"][0]["resources"]["limits"]["cpu"].as_str().unwrap().to_owned();
    let place = "/spec/containers/0/resources/limits/cpu";
    let json_patch = json!([{"op": "replace", "path": place, "value": "300m"}]);
    let new = patch(&api, PatchType::Json, "p", json_patch.clone()).await.unwrap();
    assert_eq!((cpu(&new), new.generation()), ("300m".into(), made.generation() + 1));
    let mut containers = new.0["spec"]["containers"].clone();
    containers[0]["resources"]["limits"]["cpu"] = "400m".into();
    let body = json!({"spec": {"containers": containers}, "metadata": {"labels": {"not": "this"}}});
    let new = patch(&api, PatchType::Merge, "p", body).await.unwrap();
    assert_eq!((cpu(&new), new.labels()), ("400m".into(), made.labels()));
    let new = resize(&api, "p", json!([{"name": "c", "resources": {"limits": {"cpu": "500m"}}}])).await.unwrap();
    assert_eq!((cpu(&new), new.generation()), ("500m".into(), made.generation() + 3));
    let mut whole = new.clone();
    whole.0["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "0.6".into();
    let new = object_of(api.sub(Verb::Update, "pods", "p", "resize", whole.0.clone()).await.unwrap());
    assert_eq!(cpu(&new), "600m");
    assert!(api.sub(Verb::Update, "pods", "p", "resize", whole.0).await.unwrap_err().is_conflict());
    assert_eq!(object_of(api.sub(Verb::Get, "pods", "p", "resize", Value::Null).await.unwrap()), new);
    let same = resize(&api, "p", json!([{"name": "c", "resources": {"limits": {"cpu": "600m"}}}])).await.unwrap();
    assert_eq!(same.resource_version(), new.resource_version(), "nothing has changed");
    assert!(resize(&api, "gone", json!([])).await.unwrap_err().is_not_found());

    let options = Options { patch_type: Some(PatchType::Json), ..Options::default() };
    let refused = api.0.handle(request(Verb::Patch, "pods", "p", Some(json_patch), options)).await.unwrap_err();
    let why = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,";
    assert!(refused.message.contains(why), "{refused}");
}

#[tokio::test]
async fn who_applies_it_manages_nothing_but_resources() {
    let api = Api::new().await;
    let options = Options { field_manager: Some("maker".into()), ..Options::default() };
    api.0.handle(request(Verb::Create, "pods", "", Some(sized("p")), options)).await.unwrap();
    let manifest = |cpu: &str| {
        let container = json!({"name": "d", "image": "ignored:1", "resources": {"limits": {"cpu": cpu}}});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"not": "this"}},
            "spec": {"containers": [container]}})
    };
    let new = patch(&api, PatchType::Apply, "p", manifest("2")).await.unwrap();
    let container = &new.0["spec"]["containers"][1];
    assert_eq!((&container["resources"]["limits"], &container["image"]), (&json!({"cpu": "2"}), &json!("i:1")));
    assert_eq!(new.generation(), 2);
    let entries = new.0["metadata"]["managedFields"].as_array().unwrap();
    let own = entries.iter().find(|e| e["manager"] == "me").unwrap();
    assert_eq!((&own["operation"], &own["subresource"]), (&json!("Apply"), &json!("resize")));
    let fields =
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"d\"}": {"f:resources": {"f:limits": {"f:cpu": {}}}}}}});
    assert_eq!(own["fieldsV1"], fields);
    assert_eq!(patch(&api, PatchType::Apply, "p", manifest("2")).await.unwrap(), new, "no write");
    // What another has written is his.
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}});
    let refused = patch(&api, PatchType::Apply, "p", other).await.unwrap_err();
    assert_eq!(refused.reason, "Conflict");
    let place = ".spec.containers[name=\"c\"].resources.limits.cpu";
    assert_eq!(refused.details.unwrap().causes[0].field, place);
}

#[tokio::test]
async fn it_is_admitted_as_a_write_of_its_own() {
    let api = Api::new().await;
    let hard = json!({"requests.cpu": "1", "limits.memory": "1Gi"});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}});
    api.create("resourcequotas", quota).await.unwrap();
    let used = json!({"status": {"hard": hard, "used": {"requests.cpu": "0", "limits.memory": "0"}}});
    api.sub(Verb::Patch, "resourcequotas", "q", "status", used).await.unwrap();
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}});
    api.create("limitranges", range).await.unwrap();
    let mut small = pod("p");
    small["spec"]["nodeName"] = "n1".into();
    small["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "600m", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}});
    api.create("pods", small).await.unwrap();
    let used = async || api.get("resourcequotas", "q").await.unwrap().0["status"]["used"].clone();
    assert_eq!(used().await, json!({"requests.cpu": "600m", "limits.memory": "512Mi"}));

    let ask = |resources: Value| resize(&api, "p", json!([{"name": "c", "resources": resources}]));
    let refused = ask(json!({"requests": {"cpu": "1100m"}, "limits": {"cpu": "1100m"}})).await.unwrap_err();
    let why = "exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1";
    assert_eq!((refused.code, refused.message), (403, format!("pods \"p\" is forbidden: {why}")));
    let refused = ask(json!({"limits": {"cpu": "3"}})).await.unwrap_err();
    let why = "maximum cpu usage per Container is 2, but limit is 3";
    assert_eq!((refused.code, refused.message), (403, format!("pods \"p\" is forbidden: {why}")));
    ask(json!({"requests": {"cpu": "900m"}})).await.unwrap();
    assert_eq!(used().await["requests.cpu"], "900m");
    // What its node has not taken off yet is still used.
    let given = json!({"requests": {"cpu": "900m", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}});
    let status = json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true,
        "restartCount": 0, "resources": given, "allocatedResources": given["requests"]}]}});
    api.sub(Verb::Patch, "pods", "p", "status", status).await.unwrap();
    let shrunk = ask(json!({"requests": {"cpu": "100m"}, "limits": {"memory": "16Mi"}})).await.unwrap();
    assert_eq!(used().await, json!({"requests.cpu": "900m", "limits.memory": "512Mi"}));
    let kind = podwright::api::kinds::lookup("pods").unwrap();
    let counted = |pod: &Object| {
        let used = quota::usage(kind, pod, jiff::Timestamp::now());
        [used["requests.cpu"].to_string(), used["limits.memory"].to_string()]
    };
    assert_eq!(counted(&shrunk), ["900m", "512Mi"]);
    let mut got = shrunk.clone();
    got.0["status"]["containerStatuses"][0]["allocatedResources"] = json!({"cpu": "100m"});
    assert_eq!(counted(&got), ["900m", "512Mi"], "it is promised, and not taken off");
    got.0["status"]["containerStatuses"][0]["resources"] = got.0["spec"]["containers"][0]["resources"].clone();
    assert_eq!(counted(&got), ["100m", "16Mi"]);
    // What cannot ever be given is not used.
    got.0["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "500".into();
    assert_eq!(counted(&got)[0], "500");
    let infeasible = |generation: i64| json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible", "observedGeneration": generation}]);
    got.0["status"]["conditions"] = infeasible(got.generation());
    assert_eq!(counted(&got)[0], "100m");
    got.0["status"]["conditions"] = infeasible(got.generation() - 1);
    assert_eq!(counted(&got)[0], "500", "its node has not judged this wish yet");
    got.set_meta("deletionTimestamp", Value::from("2026-01-01T00:00:00Z"));
    assert_eq!(counted(&got)[0], "100m", "to be deleted is no new wish");

    // Nor does a verdict on an older wish let a newer one pass.
    let verdict = json!({"status": {"conditions": infeasible(shrunk.generation())}});
    let shrunk = object_of(api.sub(Verb::Patch, "pods", "p", "status", verdict).await.unwrap());
    let refused = ask(json!({"requests": {"cpu": "1100m"}, "limits": {"cpu": "1100m"}})).await.unwrap_err();
    let why = "exceeded quota: q, requested: requests.cpu=200m, used: requests.cpu=900m, limited: requests.cpu=1";
    assert_eq!((refused.code, refused.message), (403, format!("pods \"p\" is forbidden: {why}")));

    let user = User::new("system:node:n1", ["system:nodes", "system:authenticated"]);
    let asked = Request {
        user,
        subresource: Some("resize".into()),
        ..request(Verb::Update, "pods", "p", Some(shrunk.0), Options::default())
    };
    assert_eq!(api.0.handle(asked).await.unwrap_err().code, 403, "no node resizes what it runs");
}

#[tokio::test]
async fn a_limit_range_fills_in_what_a_resize_leaves_out() {
    let api = Api::new().await;
    let mut made = sized("p");
    made["spec"]["initContainers"][1]["resources"] = json!({});
    api.create("pods", made).await.unwrap();
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "1", "ephemeral-storage": "1Gi"},
            "defaultRequest": {"memory": "8Mi"}}]}});
    api.create("limitranges", range).await.unwrap();
    let new = resize(&api, "p", json!([{"name": "d", "resources": {"requests": {"cpu": "50m"}}}])).await.unwrap();
    let filled = json!({"requests": {"cpu": "50m", "memory": "8Mi"}, "limits": {"cpu": "1"}});
    assert_eq!(new.0["spec"]["containers"][1]["resources"], filled);
    assert_eq!(new.generation(), 2);
    assert!(new.0["metadata"]["annotations"].is_null(), "a resize writes resources alone");
}
