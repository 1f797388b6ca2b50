//! Anything with a scale subresource is scaled, by its Pods' usage as their node reports it to the server.

use std::{sync::Arc, time::Duration};

use podwright::{
    api::{
        Env, Object, Options, Request, Status, User, Verb,
        metrics::{ContainerUsage, PodUsage, Report, Usage},
        request::{Body, PatchType},
    },
    client::{Client, Informers, local},
    controllers,
    server::{Config, Server},
    store::Memory,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A server with controllers and one node that runs nothing: the test writes its Pods' statuses.
pub(super) struct World {
    server: Arc<Server>,
    client: Client,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    async fn start() -> World {
        World::with(controllers::Config::default(), |client| client).await
    }

    /// Controllers with a configuration, which reach the server through `way`.
    pub(super) async fn with(config: controllers::Config, way: impl FnOnce(Client) -> Client) -> World {
        let server = Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
        let client = local::client(server.clone(), "test");
        let stop = CancellationToken::new();
        let informers = Informers::start(client.clone());
        tokio::spawn(controllers::run(way(client.clone()), Env::system(), informers, config, stop.clone()));
        let world = World { server, client, stop };
        world.create("nodes", "", json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } })).await;
        world
    }

    async fn ask(&self, request: Request) -> Result<Body, Status> {
        let answer = self.server.handle(Request { user: User::system("test"), ..request }).await;
        answer.map(|response| response.body)
    }

    pub(super) async fn create(&self, resource: &str, namespace: &str, body: Value) {
        let namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        let request = Request {
            verb: Verb::Create,
            resource: resource.into(),
            namespace,
            body: Some(body),
            ..Request::default()
        };
        self.ask(request).await.unwrap();
    }

    pub(super) async fn get(&self, resource: &str, name: &str) -> Object {
        let request = Request { name: Some(name.into()), ..of(Verb::Get, resource) };
        match self.ask(request).await.unwrap() {
            Body::Object { bytes, .. } => Object::from_slice(&bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn patch(&self, resource: &str, name: &str, subresource: &str, patch: Value) {
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        let subresource = Some(subresource.to_owned());
        let request = of(Verb::Patch, resource);
        self.ask(Request { name: Some(name.into()), subresource, body: Some(patch), options, ..request })
            .await
            .unwrap();
    }

    pub(super) async fn delete(&self, resource: &str, name: &str) {
        self.ask(Request { name: Some(name.into()), ..of(Verb::Delete, resource) }).await.unwrap();
    }

    pub(super) async fn list(&self, resource: &str, selector: &str) -> Vec<Object> {
        let options = Options { label_selector: Some(selector.into()), ..Options::default() };
        match self.ask(Request { options, ..of(Verb::List, resource) }).await.unwrap() {
            Body::List(list) => list.items.iter().map(|bytes| Object::from_slice(bytes).unwrap()).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Marks the only Pod of an application as running for an hour.
    pub(super) async fn runs(&self, app: &str) -> Object {
        let pod = loop {
            match self.list("pods", &format!("app={app}")).await.pop() {
                Some(pod) => break pod,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let ago = |seconds: i64| (Env::system().now() - jiff::SignedDuration::from_secs(seconds)).to_string();
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": ago(3590) });
        let status = json!({ "phase": "Running", "startTime": ago(3600), "conditions": [ready] });
        self.patch("pods", pod.name(), "status", json!({ "status": status })).await;
        pod
    }

    /// Has the node report that each of these Pods uses 120m.
    pub(super) async fn report(&self, pods: &[Object]) {
        let used = |pod: &Object| PodUsage {
            namespace: "default".into(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            window_ms: 15_000,
            containers: vec![ContainerUsage {
                name: "c".into(),
                usage: Usage { nanocores: 120_000_000, memory: 1 << 20 },
            }],
        };
        let report = Report { time: Env::system().now(), node: None, pods: pods.iter().map(used).collect() };
        self.client.report("n1", &report).await.unwrap();
    }
}

fn of(verb: Verb, resource: &str) -> Request {
    Request { verb, resource: resource.into(), namespace: Some("default".into()), ..Request::default() }
}

/// `(resource, apiVersion, kind)`; each has one replica, and Pods with the label `app` of its kind's name.
const TARGETS: &[(&str, &str, &str)] = &[
    ("deployments.apps", "apps/v1", "Deployment"),
    ("replicasets.apps", "apps/v1", "ReplicaSet"),
    ("statefulsets.apps", "apps/v1", "StatefulSet"),
    ("replicationcontrollers", "v1", "ReplicationController"),
    ("herds.example.com", "example.com/v1", "Herd"),
];

pub(super) fn target(api_version: &str, kind: &str) -> Value {
    let app = kind.to_lowercase();
    let container = json!({ "name": "c", "image": "i:1", "resources": { "requests": { "cpu": "100m" } } });
    let pod = json!({ "nodeName": "n1", "containers": [container] });
    let mut spec = json!({
        "replicas": 1, "selector": { "matchLabels": { "app": app } },
        "template": { "metadata": { "labels": { "app": app } }, "spec": pod },
    });
    match kind {
        "ReplicationController" => spec["selector"] = json!({ "app": app }),
        "StatefulSet" => spec["serviceName"] = app.clone().into(),
        "Herd" => spec = json!({ "size": 1 }),
        _ => {}
    }
    let mut target = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": app }, "spec": spec });
    if kind == "Herd" {
        target["status"] = json!({ "size": 1, "selector": "app=herd" });
    }
    target
}

/// Herds have a scale, and no controller: the test creates their Pods.
fn herds() -> Value {
    let free = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let scale = json!({ "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size", "labelSelectorPath": ".status.selector" });
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": free }, "subresources": { "scale": scale },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "herds.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "herds", "kind": "Herd" }, "versions": [version],
        },
    })
}

pub(super) fn autoscaler(name: &str, api_version: &str, kind: &str, metric: Value) -> Value {
    let reference = json!({ "apiVersion": api_version, "kind": kind, "name": kind.to_lowercase() });
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": name },
        "spec": { "scaleTargetRef": reference, "maxReplicas": 3, "metrics": [metric] },
    })
}

pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let mut last = String::new();
    for _ in 0..1500 {
        match holds().await {
            Ok(()) => return,
            Err(why) => last = why,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_has_a_scale_is_scaled() {
    let world = World::start().await;
    world.create("customresourcedefinitions", "", herds()).await;
    until("herds are known", async || {
        let herds = world.ask(of(Verb::List, "herds.example.com")).await;
        herds.map(drop).map_err(|status| status.message)
    })
    .await;
    let mut used = Vec::new();
    for (resource, api_version, kind) in TARGETS {
        world.create(resource, "default", target(api_version, kind)).await;
        let app = kind.to_lowercase();
        if *kind == "Herd" {
            let spec = &target("apps/v1", "Deployment")["spec"]["template"]["spec"];
            let metadata = json!({ "name": "sheep", "labels": { "app": app } });
            let sheep = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
            world.create("pods", "default", sheep).await;
        }
        let pod = world.runs(&app).await;
        used.push(pod);
    }
    world.report(&used).await;
    // 120m of 100m is 120 %, half as much again as 80 %.
    let metric = json!({ "type": "Resource", "resource": {
        "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } });
    for (_, api_version, kind) in TARGETS {
        let it = autoscaler(&kind.to_lowercase(), api_version, kind, metric.clone());
        world.create("horizontalpodautoscalers.autoscaling", "default", it).await;
    }
    for (resource, _, kind) in TARGETS {
        let app = kind.to_lowercase();
        until(kind, async || {
            let object = world.get(resource, &app).await;
            let path = if *kind == "Herd" { "spec.size" } else { "spec.replicas" };
            let hpa = world.get("horizontalpodautoscalers.autoscaling", &app).await;
            match object.at(path) == Some(&json!(2)) && hpa.at("status.desiredReplicas") == Some(&json!(2)) {
                true => Ok(()),
                false => Err(format!("{}", hpa.0["status"])),
            }
        })
        .await;
        let hpa = world.get("horizontalpodautoscalers.autoscaling", &app).await;
        assert_eq!(hpa.0["status"]["currentMetrics"][0]["resource"]["current"]["averageUtilization"], 120);
        assert_eq!((&hpa.0["metadata"]["generation"], &hpa.0["status"]["observedGeneration"]), (&json!(1), &json!(1)));
    }
    until("it is told", async || {
        let all = world.list("events", "").await;
        let told = all.iter().filter(|event| {
            event.0["reason"] == "SuccessfulRescale" && event.0["source"]["component"] == "horizontal-pod-autoscaler"
        });
        match told.count() {
            5 => Ok(()),
            count => Err(format!("{count} events")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_scaled_is_told() {
    let world = World::start().await;
    world.create("deployments.apps", "default", target("apps/v1", "Deployment")).await;
    let metric = json!({ "type": "Resource", "resource": {
        "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } });
    let nobody = "the HPA controller was unable to get the target's current scale: ";
    for (name, api_version, kind, reason, message) in [
        ("missing", "apps/v1", "ReplicaSet", "FailedGetScale", format!("{nobody}replicasets.apps \"replicaset\" not found")),
        ("strange", "example.com/v1", "Herd", "FailedGetScale", format!("{nobody}no matches for kind \"Herd\" in group \"example.com\"")),
        ("wrong", "a/b/c", "Deployment", "FailedGetScale", format!("{nobody}unexpected GroupVersion string: a/b/c")),
        ("scaleless", "v1", "ConfigMap", "FailedGetScale", nobody.to_owned()),
        (
            "unknown",
            "apps/v1",
            "Deployment",
            "FailedGetResourceMetric",
            "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource \
             cpu: no metrics returned from resource metrics API"
                .to_owned(),
        ),
    ] {
        world.create("horizontalpodautoscalers.autoscaling", "default", autoscaler(name, api_version, kind, metric.clone())).await;
        until(name, async || {
            let hpa = world.get("horizontalpodautoscalers.autoscaling", name).await;
            let all = hpa.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_it = |it: &Value| {
                it["status"] == "False" && it["reason"] == reason && it["message"].as_str().unwrap_or("").starts_with(&message)
            };
            match all.iter().any(is_it) {
                true => Ok(()),
                false => Err(format!("{all:?}")),
            }
        })
        .await;
    }
    // Two for one target; the second is stopped, and the first at its next reconcile.
    let second = autoscaler("second", "apps/v1", "Deployment", metric);
    world.create("horizontalpodautoscalers.autoscaling", "default", second).await;
    until("two of one target", async || {
        let hpa = world.get("horizontalpodautoscalers.autoscaling", "second").await;
        let told = hpa.0["status"]["conditions"].to_string();
        let why = "pods by selector app=deployment are controlled by multiple HPAs: [default/second default/unknown]";
        if told.contains(why) { Ok(()) } else { Err(told) }
    })
    .await;
}

/// Who may make autoscalers in a namespace has no say in what is the cluster's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_the_cluster_is_not_scaled() {
    let world = World::start().await;
    let mut pools = herds();
    pools["metadata"]["name"] = "pools.example.com".into();
    pools["spec"]["scope"] = "Cluster".into();
    pools["spec"]["names"] = json!({ "plural": "pools", "kind": "Pool" });
    world.create("customresourcedefinitions", "", pools).await;
    let of_cluster = |verb, resource: &str| Request { namespace: None, ..of(verb, resource) };
    until("pools are known", async || {
        let pools = world.ask(of_cluster(Verb::List, "pools.example.com")).await;
        pools.map(drop).map_err(|status| status.message)
    })
    .await;
    let pool = json!({ "apiVersion": "example.com/v1", "kind": "Pool", "metadata": { "name": "pool" }, "spec": { "size": 3 } });
    world.create("pools.example.com", "", pool).await;
    let metric = json!({ "type": "Resource", "resource": {
        "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } });
    let mut it = autoscaler("pool", "example.com/v1", "Pool", metric);
    it["spec"]["minReplicas"] = 40.into();
    it["spec"]["maxReplicas"] = 41.into();
    world.create("horizontalpodautoscalers.autoscaling", "default", it).await;
    until("it is told", async || {
        let hpa = world.get("horizontalpodautoscalers.autoscaling", "pool").await;
        let conditions = hpa.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let failed = conditions.iter().any(|it| {
            it["type"] == "AbleToScale"
                && it["reason"] == "FailedGetScale"
                && it["message"]
                    .as_str()
                    .is_some_and(|message| message.ends_with("the server could not find the requested resource"))
        });
        if failed { Ok(()) } else { Err(format!("{}", hpa.0["status"])) }
    })
    .await;
    let request = Request { name: Some("pool".into()), ..of_cluster(Verb::Get, "pools.example.com") };
    let Body::Object { bytes, .. } = world.ask(request).await.unwrap() else { panic!("no object") };
    assert_eq!(Object::from_slice(&bytes).unwrap().0["spec"]["size"], 3);
}
