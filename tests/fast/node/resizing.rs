//! In-place resize on a hollow node: what it grants, what waits, what starts anew.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use podwright::api::{Request, Verb, request::PatchType};
use serde_json::{Value, json};

use super::hollow::{self, Cluster, spec, until};

impl Cluster {
    pub async fn resize(&self, name: &str, resources: Value) {
        let request = Request {
            verb: Verb::Patch,
            resource: "pods".into(),
            namespace: Some("default".into()),
            name: Some(name.to_owned()),
            subresource: Some("resize".into()),
            body: Some(json!({ "spec": { "containers": [{ "name": "a", "resources": resources }] } })),
            options: podwright::api::Options { patch_type: Some(PatchType::Strategic), ..Default::default() },
            ..Request::default()
        };
        self.client.call(request).await.unwrap();
    }

    /// The first container's CPU: allocated and had; and the reason of a wish that waits.
    async fn cpu(&self, name: &str) -> [String; 3] {
        let status = self.status(name).await;
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let container = &status["containerStatuses"][0];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let pending = conditions.iter().find(|c| c["type"] == "PodResizePending");
        [
            text(&container["allocatedResources"]["cpu"]),
            text(&container["resources"]["requests"]["cpu"]),
            pending.map(|c| text(&c["reason"])).unwrap_or_default(),
        ]
    }

    async fn until_cpu(&self, name: &str, wanted: [&str; 3]) {
        for _ in 0..2000 {
            if self.cpu(name).await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} has never {wanted:?}: {:#}", self.status(name).await);
    }

    async fn reasons(&self, about: &str) -> Vec<String> {
        let events = self.client.list::<Event>(Some("default"), Default::default()).await.unwrap();
        let mut all: Vec<_> =
            events.items.iter().filter(|e| e.involved_object.name.as_deref() == Some(about)).collect();
        all.sort_by_key(|e| e.metadata.resource_version.as_ref().and_then(|v| v.parse::<u64>().ok()));
        let reasons = all.iter().filter_map(|e| e.reason.clone());
        reasons.filter(|r| r.starts_with("Resize")).collect()
    }
}

fn of_cpu(cpu: &str) -> Value {
    let mut spec = spec();
    spec["containers"][0]["resources"] = json!({ "requests": { "cpu": cpu }, "limits": { "memory": "64Mi" } });
    spec
}

#[tokio::test(start_paused = true)]
async fn a_node_grants_what_it_has() {
    let cluster = hollow::cluster_with(|_| ()).await;
    let node: k8s_openapi::api::core::v1::Node = cluster.client.get(None, "n1").await.unwrap();
    let cpus: i64 = node.status.unwrap().allocatable.unwrap()["cpu"].0.parse().unwrap();
    let most = |less: i64| (cpus - less).to_string();
    cluster.create("web", of_cpu("1")).await;
    cluster.create("big", of_cpu(&most(3))).await;
    for name in ["web", "big"] {
        cluster.until_phase(name, "Running").await;
    }
    let before = cluster.get("web").await.unwrap();
    cluster.resize("web", json!({ "requests": { "cpu": "2" } })).await;
    cluster.until_cpu("web", ["2", "2", ""]).await;
    let after = cluster.get("web").await.unwrap();
    assert_eq!(after.metadata.generation, before.metadata.generation.map(|g| g + 1));
    let status = |pod: &Pod| pod.status.clone().unwrap();
    let id = |pod: &Pod| status(pod).container_statuses.unwrap()[0].container_id.clone();
    assert_eq!((id(&after), status(&after).observed_generation), (id(&before), after.metadata.generation));
    // More than is left waits; more than there is never comes.
    cluster.resize("web", json!({ "requests": { "cpu": "4" } })).await;
    cluster.until_cpu("web", ["2", "2", "Deferred"]).await;
    cluster.resize("big", json!({ "requests": { "cpu": most(-1) } })).await;
    cluster.until_cpu("big", [&most(3), &most(3), "Infeasible"]).await;
    // What is taken back makes room.
    cluster.resize("big", json!({ "requests": { "cpu": most(4) } })).await;
    cluster.until_cpu("big", [&most(4), &most(4), ""]).await;
    cluster.until_cpu("web", ["4", "4", ""]).await;
    until("all is told", || async {
        cluster.reasons("web").await.len() >= 5 && cluster.reasons("big").await.len() >= 3
    })
    .await;
    let told = ["ResizeStarted", "ResizeCompleted", "ResizeDeferred", "ResizeStarted", "ResizeCompleted"];
    assert_eq!(cluster.reasons("web").await, told);
    assert_eq!(cluster.reasons("big").await, ["ResizeInfeasible", "ResizeStarted", "ResizeCompleted"]);
    let done = cluster.status("web").await;
    let types: Vec<_> = done["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert!(!types.iter().any(|kind| kind.contains("Resize")), "{types:?}");

    // An agent that finds nothing of its Pods goes by what the server remembers.
    cluster.resize("web", json!({ "requests": { "cpu": "5" } })).await;
    cluster.until_cpu("web", ["4", "4", "Deferred"]).await;
    let cluster = cluster.restarted_with(|_| ()).await;
    until("the Pod was started anew", || async {
        cluster.status("web").await["containerStatuses"][0]["restartCount"] == 1
    })
    .await;
    cluster.until_cpu("web", ["4", "4", "Deferred"]).await;
    cluster.client.delete::<Pod>(Some("default"), "big", None, Default::default()).await.unwrap();
    cluster.until_cpu("web", ["5", "5", ""]).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_asks_for_it_is_restarted() {
    let cluster = hollow::cluster_with(|_| ()).await;
    let mut spec = of_cpu("1");
    spec["containers"][0]["resizePolicy"] = json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]);
    spec["restartPolicy"] = "OnFailure".into();
    cluster.create("web", spec).await;
    cluster.until_phase("web", "Running").await;
    cluster.resize("web", json!({ "limits": { "memory": "128Mi" } })).await;
    until("its memory grows in place", || async {
        cluster.status("web").await["containerStatuses"][0]["resources"]["limits"]["memory"] == "128Mi"
    })
    .await;
    assert_eq!(cluster.status("web").await["containerStatuses"][0]["restartCount"], 0);
    cluster.resize("web", json!({ "requests": { "cpu": "2" } })).await;
    until("it runs again", || async {
        let status = cluster.status("web").await;
        let container = &status["containerStatuses"][0];
        container["restartCount"] == 1 && !container["state"]["running"].is_null()
    })
    .await;
    cluster.until_cpu("web", ["2", "2", ""]).await;
    assert_eq!(cluster.status("web").await["phase"], "Running");
}
