//! Scale updates that the server rejects: they are reported, and count as no step.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};
use std::time::Duration;

use async_trait::async_trait;
use podwright::{
    api::{Request, Response, Status, Verb, WatchEvent, rpc::Session},
    client::{Client, Stream, Transport},
    controllers::{Config, Failure, horizontal_pod_autoscaler::Settings},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use super::{
    super::at,
    plan::Case,
    targets::{World, autoscaler, target, until},
};

fn refused(message: &str) -> Option<Failure> {
    Some(Failure { reason: "FailedRescale", message: message.into() })
}

/// One more within a minute.
fn one_a_minute() -> Value {
    let policies = json!([{ "type": "Pods", "value": 1, "periodSeconds": 60 }]);
    let up = json!({ "stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": policies });
    json!({ "behavior": { "scaleUp": up, "scaleDown": up } })
}

#[test]
fn a_scale_that_could_not_be_set() {
    let mut case = Case::of(3, &[900; 3], one_a_minute());
    assert_eq!(case.runs().to, Some(4));
    case.failure = refused("it is forbidden");
    let ran = case.runs();
    assert_eq!((ran.to, &ran.status["currentReplicas"]), (None, &json!(3)));
    assert_eq!(
        ran.condition("AbleToScale"),
        "False FailedUpdateScale: the HPA controller was unable to update the target scale: it is forbidden"
    );
    // The measurement is reported all the same.
    assert!(ran.condition("ScalingActive").starts_with("True ValidMetricFound"), "{}", ran.condition("ScalingActive"));
    assert_eq!(ran.status["currentMetrics"][0]["resource"]["current"]["averageUtilization"], 90);
    case.failure = None;
    assert_eq!(case.runs().to, Some(4), "it is tried again with the next look, from 3");
}

#[test]
fn a_step_that_has_failed_counts_no_more_even_if_the_target_is_gone() {
    let mut case = Case::of(3, &[900; 3], one_a_minute());
    assert_eq!(case.runs().to, Some(4));
    let target = std::mem::replace(&mut case.scale, Err(super::plan::not_found()));
    case.failure = refused("deployments.apps \"web\" not found");
    assert!(case.runs().condition("AbleToScale").starts_with("False FailedGetScale"));
    (case.scale, case.failure, case.now) = (target, None, 15);
    assert_eq!(case.runs().to, Some(4), "from 3");
}

#[test]
fn what_somebody_else_has_done_meanwhile_is_no_failure() {
    let mut case = Case::of(3, &[500; 3], json!({}));
    case.failure = refused("the object has been modified");
    let ran = case.runs();
    assert_eq!((ran.to, &ran.status["desiredReplicas"]), (None, &json!(3)));
    assert!(ran.condition("AbleToScale").starts_with("True ReadyForNewScale"), "{}", ran.condition("AbleToScale"));
    let written = at(0).to_string();
    assert_ne!(ran.status["lastScaleTime"], written.as_str());
}

/// Controllers with very frequent reconciles of autoscalers.
fn restless() -> Config {
    let settings = Settings { sync_period: Duration::from_millis(20), ..Settings::default() };
    Config { autoscaling: settings, ..Config::default() }
}

/// Eighty percent of the requested CPU.
fn metric() -> Value {
    json!({ "type": "Resource", "resource": {
        "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } })
}

/// A client to the server on which no scale can be set until it is allowed.
struct Barred {
    client: Client,
    /// The status of the rejection.
    status: fn() -> Status,
    /// The number of further rejections.
    left: Arc<AtomicUsize>,
}

#[async_trait]
impl Transport for Barred {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let is_scale = request.verb == Verb::Patch && request.subresource.as_deref() == Some("scale");
        let one_less = |left: usize| left.checked_sub(1);
        match is_scale && self.left.fetch_update(SeqCst, SeqCst, one_less).is_ok() {
            true => Err((self.status)()),
            false => self.client.call(request).await,
        }
    }
    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        self.client.watch(request).await
    }
    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.client.dial(id).await
    }
    async fn sessions(&self, node: &str) -> Result<Receiver<Session>, Status> {
        self.client.sessions(node).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_refusal_of_a_scale_passes_in_silence() {
    let conflict = || Status::conflict("deployments", "apps", "deployment", "somebody else was faster");
    for status in [conflict as fn() -> Status, || Status::not_found("deployments", "apps", "deployment")] {
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let barred = |client| Client::new(Arc::new(Barred { client, status, left: left.clone() }), "test");
        let world = World::with(restless(), barred).await;
        world.create("deployments.apps", "default", target("apps/v1", "Deployment")).await;
        let pod = world.runs("deployment").await;
        world.report(&[pod]).await;
        let mut hpa = autoscaler("it", "apps/v1", "Deployment", metric());
        let policies = json!([{ "type": "Pods", "value": 1, "periodSeconds": 1800 }]);
        hpa["spec"]["behavior"] = json!({ "scaleUp": { "policies": policies } });
        world.create("horizontalpodautoscalers.autoscaling", "default", hpa).await;
        let why = (status)().message;
        let told = format!("the HPA controller was unable to update the target scale: {why}");
        until("the refusal is in the status", async || {
            let hpa = world.get("horizontalpodautoscalers.autoscaling", "it").await;
            let all = hpa.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let able = all.iter().find(|it| it["type"] == "AbleToScale").cloned().unwrap_or_default();
            let is_it = able["status"] == "False" && able["reason"] == "FailedUpdateScale" && able["message"] == *told;
            if is_it { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        let told = format!("resource utilization (percentage of request) above target; error: {why}");
        until("the refusal is an event", async || {
            let all = world.list("events", "").await;
            let is_it = |it: &Value| {
                it["type"] == "Warning"
                    && it["reason"] == "FailedRescale"
                    && it["message"].as_str().is_some_and(|message| message.ends_with(&told))
            };
            match all.iter().any(|event| is_it(&event.0)) {
                true => Ok(()),
                false => Err(format!("{:?}", all.iter().map(|event| &event.0["reason"]).collect::<Vec<_>>())),
            }
        })
        .await;
        // One Pod per half an hour: if the rejected steps were counted, none would be left.
        left.store(0, SeqCst);
        until("it is scaled in the end", async || {
            let object = world.get("deployments.apps", "deployment").await;
            match object.at("spec.replicas") == Some(&json!(2)) {
                true => Ok(()),
                false => Err(world.get("horizontalpodautoscalers.autoscaling", "it").await.0["status"].to_string()),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rival_that_is_gone_is_none() {
    let world = World::with(restless(), |client| client).await;
    world.create("deployments.apps", "default", target("apps/v1", "Deployment")).await;
    let pod = world.runs("deployment").await;
    world.report(&[pod]).await;
    let active = async |name: &str| {
        let hpa = world.get("horizontalpodautoscalers.autoscaling", name).await;
        let all = hpa.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().find(|it| it["type"] == "ScalingActive").map(|it| it["reason"].clone()).unwrap_or_default()
    };
    for name in ["first", "second"] {
        let hpa = autoscaler(name, "apps/v1", "Deployment", metric());
        world.create("horizontalpodautoscalers.autoscaling", "default", hpa).await;
        let reason = if name == "first" { "ValidMetricFound" } else { "AmbiguousSelector" };
        until(name, async || match active(name).await {
            now if now == reason => Ok(()),
            now => Err(now.to_string()),
        })
        .await;
    }
    world.delete("horizontalpodautoscalers.autoscaling", "first").await;
    until("the second has the target to itself", async || match active("second").await {
        now if now == "ValidMetricFound" => Ok(()),
        now => Err(now.to_string()),
    })
    .await;
}
