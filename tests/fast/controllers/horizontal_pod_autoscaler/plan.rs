//! What an autoscaler does about its target, and what it reports.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use podwright::{
    api::{Status, selector::LabelSelector},
    client::{Autoscaler, Key},
    controllers::{
        Failure, Plan,
        horizontal_pod_autoscaler::{self, History, Inputs, MetricsError, Scale, ScaleError, Settings, Spec, remote},
    },
};
use serde_json::{Value, json};

use super::{
    super::{at, lines, object},
    pod, spec,
};

/// The error for an autoscaler whose target does not exist.
pub(super) fn not_found() -> ScaleError {
    ScaleError::Refused(Status::not_found("deployments", "apps", "web"))
}

/// An autoscaler `web`, its target, and the CPU usage of each of its Pods in millicores.
pub(super) struct Case {
    hpa: Value,
    pub(super) scale: Result<Scale, ScaleError>,
    metrics: Result<Vec<Value>, MetricsError>,
    pub(super) told: Vec<Option<remote::Told>>,
    pods: usize,
    /// Mirrors of static Pods with the labels of its Pods.
    mirrors: usize,
    rivals: Vec<(Key, LabelSelector)>,
    pub(super) failure: Option<Failure>,
    history: History,
    pub(super) now: i64,
}

impl Case {
    /// A target of `replicas` replicas.
    pub(super) fn of(replicas: i32, used: &[i64], more: Value) -> Case {
        let metadata = json!({ "name": "web", "namespace": "a", "uid": "hpa", "generation": 3 });
        let one = |(at, used): (usize, &i64)| {
            let usage = json!({ "cpu": format!("{used}m"), "memory": "48Mi" });
            json!({
                "metadata": { "name": format!("p{at}"), "namespace": "a" }, "timestamp": super::at(0).to_string(),
                "window": "15s", "containers": [{ "name": "c", "usage": usage }],
            })
        };
        Case {
            hpa: json!({ "metadata": metadata, "spec": spec(more), "status": { "desiredReplicas": 0 } }),
            scale: Ok(Scale {
                resource: "deployments.apps".into(),
                replicas,
                there: replicas,
                selector: "app=web".into(),
            }),
            metrics: Ok(used.iter().enumerate().map(one).collect()),
            told: Vec::new(),
            pods: used.len(),
            mirrors: 0,
            rivals: Vec::new(),
            failure: None,
            history: History::default(),
            now: 0,
        }
    }

    fn plan(&mut self) -> Plan {
        let hpa: Arc<Autoscaler> = object(self.hpa.clone());
        let mirror = |at: usize| {
            let mut mirror = pod(&format!("m{at}"));
            mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "hash" });
            object(mirror)
        };
        let pods = (0..self.pods).map(|at| object(pod(&format!("p{at}"))));
        let pods: Vec<Arc<Pod>> = pods.chain((0..self.mirrors).map(mirror)).collect();
        let settings = Settings::default();
        let view = Inputs {
            hpa: &hpa,
            spec: &Spec::of(&hpa.spec, &settings),
            scale: self.scale.clone(),
            pods: &pods,
            metrics: self.metrics.clone(),
            told: &self.told,
            rivals: &self.rivals,
            failure: self.failure.as_ref(),
            settings: &settings,
            now: at(self.now),
        };
        horizontal_pod_autoscaler::plan(&view, &mut self.history)
    }

    /// Runs it, and writes its status; checks that it is requeued after 15 seconds.
    pub(super) fn runs(&mut self) -> Ran {
        let plan = self.plan();
        assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(15));
        for write in plan.writes().filter(|write| write.request.subresource.as_deref() == Some("status")) {
            json_patch::merge(&mut self.hpa, write.request.body.as_ref().unwrap());
        }
        let scaled = plan.writes().find(|write| write.request.subresource.as_deref() == Some("scale"));
        Ran {
            to: scaled.and_then(|write| write.request.body.as_ref()?["spec"]["replicas"].as_i64()),
            why: scaled.and_then(|write| write.done.first().cloned()).map(|note| note.message),
            status: self.hpa["status"].clone(),
            events: plan.notes.iter().map(|note| format!("{}: {}", note.reason, note.message)).collect(),
            lines: lines(&plan),
        }
    }
}

pub(super) struct Ran {
    /// The replicas that the target is set to.
    pub(super) to: Option<i64>,
    pub(super) why: Option<String>,
    pub(super) status: Value,
    events: Vec<String>,
    lines: Vec<String>,
}

impl Ran {
    /// `True ValidMetricFound: ...`
    pub(super) fn condition(&self, kind: &str) -> String {
        let all = self.status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = all.iter().find(|condition| condition["type"] == kind);
        let text = |field: &str| found.map(|it| it[field].as_str().unwrap_or_default().to_owned()).unwrap_or_default();
        format!("{} {}: {}", text("status"), text("reason"), text("message"))
    }
}

/// Any node can create a mirror with any labels: it would hold a target down, or drive it up.
#[test]
fn mirrors_of_static_pods_are_none_of_its_pods() {
    for used in [[900; 3], [100; 3]] {
        let told = |mirrors: usize| {
            let mut case = Case { mirrors, ..Case::of(3, &used, json!({})) };
            let ran = case.runs();
            (ran.to, ran.condition("ScalingActive"), ran.status["currentMetrics"].clone())
        };
        let without = told(0);
        assert!(without.1.starts_with("True"), "{without:?}");
        assert_eq!(told(20), without);
    }
}

#[test]
fn too_much_use_makes_it_more() {
    let mut case = Case::of(3, &[900, 900, 900], json!({}));
    let ran = case.runs();
    let why = "New size: 6; reason: cpu resource utilization (percentage of request) above target";
    assert_eq!(
        ran.lines,
        [
            format!("patch deployments.apps/web/scale: {why}"),
            "patch horizontalpodautoscalers.autoscaling/web/status".into()
        ]
    );
    let current = json!({ "name": "cpu", "current": { "averageUtilization": 90, "averageValue": "900m" } });
    let facts = json!({
        "observedGeneration": 3, "currentReplicas": 3, "desiredReplicas": 6, "lastScaleTime": at(0).to_string(),
        "currentMetrics": [{ "type": "Resource", "resource": current }],
    });
    for (field, value) in facts.as_object().unwrap() {
        assert_eq!(&ran.status[field], value, "{field}");
    }
    assert_eq!(
        ran.condition("AbleToScale"),
        "True SucceededRescale: the HPA controller was able to update the target scale to 6"
    );
    assert_eq!(
        ran.condition("ScalingActive"),
        "True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource utilization \
         (percentage of request)"
    );
    assert_eq!(
        ran.condition("ScalingLimited"),
        "False DesiredWithinRange: the desired count is within the acceptable range"
    );
    assert_eq!(ran.events, [""; 0]);
    let failed = case.plan().writes().next().and_then(|write| write.failed.clone()).unwrap();
    assert_eq!((failed.reason, failed.message), ("FailedRescale", format!("{why}; error: {{}}")));
}

#[test]
fn little_use_makes_it_less_after_a_while() {
    let mut case = Case::of(4, &[100, 100, 100, 100], json!({}));
    let ran = case.runs();
    let higher = "recent recommendations were higher than current one, applying the highest recent recommendation";
    assert_eq!((ran.to, ran.condition("AbleToScale")), (None, format!("True ScaleDownStabilized: {higher}")));
    assert_eq!((&ran.status["desiredReplicas"], &ran.status["lastScaleTime"]), (&json!(4), &Value::Null));
    // Nothing has changed, so nothing is written.
    assert_eq!(case.runs().lines, [""; 0]);
    case.now = 301;
    let ran = case.runs();
    assert_eq!((ran.to, ran.why.as_deref()), (Some(1), Some("New size: 1; reason: All metrics below target")));
    case.scale.as_mut().unwrap().replicas = 1;
    (case.pods, case.now) = (1, 316);
    let ran = case.runs();
    assert_eq!(ran.to, None);
    assert_eq!(
        ran.condition("ScalingLimited"),
        "False DesiredWithinRange: the desired count is within the acceptable range"
    );
}

#[test]
fn bounds_come_before_all_metrics() {
    for (replicas, to, why) in [
        (0, None, None),
        (12, Some(10), Some("New size: 10; reason: Current number of replicas above Spec.MaxReplicas")),
        (1, Some(2), Some("New size: 2; reason: Current number of replicas below Spec.MinReplicas")),
    ] {
        let mut case = Case::of(replicas, &[900], json!({ "minReplicas": 2 }));
        case.metrics = Err(MetricsError::Unasked);
        case.hpa["status"]["currentMetrics"] = json!([{ "type": "" }]);
        let ran = case.runs();
        assert_eq!((ran.to, ran.why.as_deref()), (to, why), "{replicas}");
        assert_eq!(ran.status["currentMetrics"], Value::Null);
        assert_eq!(ran.events, [""; 0]);
        let disabled = "False ScalingDisabled: scaling is disabled since the replica count of the target is zero";
        assert_eq!(ran.condition("ScalingActive") == disabled, replicas == 0, "{replicas}");
    }
    let mut case = Case::of(5, &[900; 5], json!({ "maxReplicas": 8 }));
    let ran = case.runs();
    assert_eq!(ran.to, Some(8));
    assert_eq!(
        ran.condition("ScalingLimited"),
        "True TooManyReplicas: the desired replica count is more than the maximum replica count"
    );
}

#[test]
fn a_target_that_cannot_be_had() {
    let mut case = Case::of(3, &[900; 3], json!({}));
    case.scale = Err(not_found());
    let ran = case.runs();
    assert_eq!(ran.events, ["FailedGetScale: deployments.apps \"web\" not found"]);
    assert_eq!(
        ran.condition("AbleToScale"),
        "False FailedGetScale: the HPA controller was unable to get the target's current scale: deployments.apps \"web\" not found"
    );
    assert_eq!(ran.lines.len(), 1);
}

#[test]
fn selectors_that_say_nothing_or_too_much() {
    let rival = (Key::new("a", "other"), LabelSelector::parse("app in (web,x)").unwrap());
    let stranger = (Key::new("a", "stranger"), LabelSelector::parse("app=x").unwrap());
    let ambiguous = "pods by selector app=web are controlled by multiple HPAs: [a/other a/web]";
    for (selector, rivals, event, condition) in [
        (
            "",
            vec![],
            "SelectorRequired: selector is required",
            "InvalidSelector: the HPA target's scale is missing a selector",
        ),
        (
            "app=web",
            vec![stranger, rival],
            &*format!("AmbiguousSelector: {ambiguous}"),
            &*format!("AmbiguousSelector: {ambiguous}"),
        ),
    ] {
        let mut case = Case::of(3, &[900; 3], json!({}));
        case.scale.as_mut().unwrap().selector = selector.into();
        case.rivals = rivals;
        let ran = case.runs();
        assert_eq!((ran.to, ran.condition("ScalingActive")), (None, format!("False {condition}")));
        let why = event.split_once(": ").unwrap().1;
        assert_eq!(ran.events, [event.to_owned(), format!("FailedComputeMetricsReplicas: {why}")]);
        assert_eq!(ran.status["currentReplicas"], 3);
    }
    let mut case = Case::of(3, &[900; 3], json!({}));
    case.scale.as_mut().unwrap().selector = "app in".into();
    let ran = case.runs();
    let why = "False InvalidSelector: couldn't convert selector into a corresponding internal selector object: ";
    assert!(ran.condition("ScalingActive").starts_with(why), "{}", ran.condition("ScalingActive"));
}

/// A metric that is on target, one too low, one too high; by CPU and by memory.
fn metric(name: &str, percent: i64) -> Value {
    let target = json!({ "type": "Utilization", "averageUtilization": percent });
    json!({ "type": "Resource", "resource": { "name": name, "target": target } })
}

#[test]
fn of_several_metrics_the_largest_wish_counts() {
    let mut case = Case::of(3, &[500; 3], json!({ "metrics": [metric("cpu", 50), metric("memory", 40)] }));
    let ran = case.runs();
    let why = "New size: 6; reason: memory resource utilization (percentage of request) above target";
    assert_eq!(ran.why.as_deref(), Some(why));
    let current: Vec<Value> =
        ran.status["currentMetrics"].as_array().unwrap().iter().map(|it| it["resource"]["current"].clone()).collect();
    assert_eq!(
        current,
        [
            json!({ "averageUtilization": 50, "averageValue": "500m" }),
            json!({ "averageUtilization": 75, "averageValue": "48Mi" })
        ]
    );
}

#[test]
fn of_metrics_that_wish_for_the_same_the_first_is_named() {
    for (first, second) in [("cpu", "memory"), ("memory", "cpu")] {
        let metrics = [first, second].map(|name| metric(name, 50));
        let ran = Case::of(3, &[750; 3], json!({ "metrics": metrics })).runs();
        let why = format!("New size: 5; reason: {first} resource utilization (percentage of request) above target");
        assert_eq!(ran.why, Some(why));
    }
}

#[test]
fn without_one_metric_it_does_not_become_less() {
    let external = json!({ "type": "External", "external": {
        "metric": { "name": "jobs", "selector": { "matchLabels": { "queue": "q" } } }, "target": { "type": "Value", "value": "30" } } });
    let mixed = |percent: i64| json!({ "metrics": [metric("cpu", percent), external] });
    let missing = "unable to get external metric a/jobs/queue=q: unable to fetch metrics from external metrics API: no external \
                   metrics API (external.metrics.k8s.io) registered";
    // Too high and on target: the available metrics are used.
    for (percent, to) in [(25, Some(6)), (50, None)] {
        let ran = Case::of(3, &[500; 3], mixed(percent)).runs();
        assert_eq!(ran.to, to);
        assert!(
            ran.condition("ScalingActive").starts_with("True ValidMetricFound"),
            "{}",
            ran.condition("ScalingActive")
        );
        assert_eq!(ran.events, [format!("FailedGetExternalMetric: {missing}")]);
        assert_eq!(ran.status["currentMetrics"][1], json!({ "type": "" }));
    }
    let mut case = Case::of(3, &[500; 3], mixed(90));
    assert_eq!(case.runs().to, None);
    case.now = 301;
    let ran = case.runs();
    assert_eq!(ran.to, None);
    assert_eq!(
        ran.condition("ScalingActive"),
        format!("False FailedGetExternalMetric: the HPA was unable to compute the replica count: {missing}")
    );
    let first = format!("first error is: failed to get jobs external metric value: {missing}");
    assert_eq!(ran.events[1], format!("FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 2), {first}"));
}

#[test]
fn the_selector_of_an_external_metric_is_told() {
    let expression = json!({ "key": "tier", "operator": "NotIn", "values": ["b", "a"] });
    let both = json!({ "matchLabels": { "queue": "q" }, "matchExpressions": [expression] });
    for (selector, shown) in [(json!(null), "<none>"), (json!({}), "<none>"), (both, "queue=q,tier notin (a,b)")] {
        let target = json!({ "type": "Value", "value": "30" });
        let metric = json!({ "name": "jobs", "selector": selector });
        let external = json!({ "type": "External", "external": { "metric": metric, "target": target } });
        let ran = Case::of(3, &[500; 3], json!({ "metrics": [external] })).runs();
        let told = format!("FailedGetExternalMetric: unable to get external metric a/jobs/{shown}: ");
        assert!(ran.events[0].starts_with(&told), "{}", ran.events[0]);
    }
}

#[test]
fn metrics_that_nobody_serves() {
    let custom =
        "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered";
    let target = json!({ "type": "AverageValue", "averageValue": "10" });
    let object = json!({ "kind": "Service", "name": "front", "apiVersion": "v1" });
    for (metric, reason, context, why) in [
        (
            json!({ "type": "Pods", "pods": { "metric": { "name": "qps" }, "target": target } }),
            "FailedGetPodsMetric",
            "failed to get pods metric value: ",
            format!("unable to get metric qps: {custom}"),
        ),
        (
            json!({ "type": "Object", "object": { "metric": { "name": "qps" }, "describedObject": object, "target": target } }),
            "FailedGetObjectMetric",
            "failed to get object metric value: ",
            format!("unable to get metric qps on Service a/front: {custom}"),
        ),
    ] {
        let ran = Case::of(3, &[500; 3], json!({ "metrics": [metric] })).runs();
        assert_eq!(ran.to, None);
        assert_eq!(
            ran.condition("ScalingActive"),
            format!("False {reason}: the HPA was unable to compute the replica count: {why}")
        );
        let all = format!(
            "FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: {context}{why}"
        );
        assert_eq!(ran.events, [format!("{reason}: {why}"), all]);
    }
}

#[test]
fn resource_metrics_that_cannot_be_had() {
    let none = "no metrics returned from resource metrics API";
    let by_container = json!({ "metrics": [{ "type": "ContainerResource", "containerResource": {
        "name": "cpu", "container": "c", "target": { "type": "AverageValue", "averageValue": "500m" } } }] });
    for (more, reason, context, what) in [
        (json!({}), "FailedGetResourceMetric", "failed to get cpu resource metric value: ", "utilization"),
        (by_container, "FailedGetContainerResourceMetric", "failed to get c container metric value: ", "usage"),
    ] {
        let mut case = Case::of(3, &[500; 3], more);
        case.metrics = Err(MetricsError::Empty);
        let ran = case.runs();
        let why = format!("failed to get cpu {what}: unable to get metrics for resource cpu: {none}");
        assert_eq!(
            ran.condition("ScalingActive"),
            format!("False {reason}: the HPA was unable to compute the replica count: {why}")
        );
        let all = format!(
            "FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: {context}{why}"
        );
        assert_eq!(ran.events, [format!("{reason}: {why}"), all]);
        // The known status stays, except for the metrics.
        assert_eq!(
            (&ran.status["currentReplicas"], &ran.status["currentMetrics"]),
            (&json!(3), &json!([{ "type": "" }]))
        );
    }
}

#[test]
fn one_container_is_measured_by_itself() {
    let target = json!({ "type": "Utilization", "averageUtilization": 50 });
    let metric = json!({ "type": "ContainerResource", "containerResource": { "name": "cpu", "container": "c", "target": target } });
    let ran = Case::of(2, &[1000; 2], json!({ "metrics": [metric] })).runs();
    let why = "New size: 4; reason: cpu container resource utilization (percentage of request) above target";
    assert_eq!(ran.why.as_deref(), Some(why));
    let current = json!({ "averageUtilization": 100, "averageValue": "1" });
    let status = json!({ "type": "ContainerResource", "containerResource": { "name": "cpu", "container": "c", "current": current } });
    assert_eq!(ran.status["currentMetrics"], json!([status]));
}

#[test]
fn a_behavior_counts() {
    let behavior = json!({
        "scaleUp": { "selectPolicy": "Max", "policies": [{ "type": "Pods", "value": 1, "periodSeconds": 60 }], "tolerance": "0.5" },
        "scaleDown": { "stabilizationWindowSeconds": 0, "policies": [{ "type": "Percent", "value": 100, "periodSeconds": 15 }] },
    });
    let of = |used: i64| Case::of(3, &[used; 3], json!({ "behavior": behavior }));
    assert_eq!(of(700).runs().to, None, "a ratio of 1.4 is well");
    let mut case = of(900);
    let ran = case.runs();
    assert_eq!((ran.to, ran.condition("ScalingLimited").split(':').next()), (Some(4), Some("True ScaleUpLimit")));
    // The step counts for a minute.
    case.scale.as_mut().unwrap().replicas = 4;
    case.now = 15;
    assert_eq!(case.runs().to, None);
    assert_eq!(of(100).runs().to, Some(1), "at once");
}
