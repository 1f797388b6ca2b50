//! Metrics from the metrics APIs: the requests, how responses are read, and how autoscalers use them.

use bytes::Bytes;
use podwright::{
    api::{Request, Status, Verb, request::Body, request::List},
    client::Key,
    controllers::horizontal_pod_autoscaler::{
        MetricsApi, RemoteError, ReplicasError, Tolerance, UnknownKind, propose_for_average, propose_for_value, remote,
    },
};
use serde_json::{Value, json};

use super::{plan::Case, read};

fn pods() -> Value {
    let metric = json!({ "name": "qps", "selector": { "matchLabels": { "verb": "GET" } } });
    json!({ "type": "Pods", "pods": { "metric": metric, "target": { "type": "AverageValue", "averageValue": "10" } } })
}

fn object(target: Value) -> Value {
    let described = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "front" });
    json!({ "type": "Object", "object": { "metric": { "name": "hits" }, "describedObject": described, "target": target } })
}

fn external(target: Value) -> Value {
    let metric = json!({ "name": "jobs", "selector": { "matchLabels": { "queue": "q" } } });
    json!({ "type": "External", "external": { "metric": metric, "target": target } })
}

fn value(of: &str) -> Value {
    json!({ "type": "Value", "value": of })
}

fn average(of: &str) -> Value {
    json!({ "type": "AverageValue", "averageValue": of })
}

fn asked(metric: Value) -> Result<Request, RemoteError> {
    let spec = read(json!({ "metrics": [metric] }));
    let resource = |api_version: &str, kind: &str| match kind {
        "Nothing" => Err(UnknownKind { kind: "Nothing".into(), group: "networking.k8s.io".into() }),
        _ => Ok(format!("{}es.{}", kind.to_lowercase(), api_version.split('/').next().unwrap())),
    };
    remote::question(&spec.metrics[0], &Key::new("a", "web"), "app=web", resource).unwrap()
}

#[test]
fn each_source_is_asked_as_upstream_asks_it() {
    let line = |request: &Request| {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let Request { verb, resource, namespace, name, subresource, options, .. } = request;
        let selectors = [&options.label_selector, &options.metric_label_selector].map(part);
        let path = [namespace, name, subresource].map(part).join("/");
        format!("{} {resource} {path} {} {}", verb.as_str(), selectors[0], selectors[1])
    };
    let told = line(&asked(pods()).unwrap());
    assert_eq!(told, "get pods.custom.metrics.k8s.io/ a/*/qps app=web verb=GET");
    let told = line(&asked(object(value("10"))).unwrap());
    assert_eq!(told, "get ingresses.networking.k8s.io.custom.metrics.k8s.io/ a/front/hits  ");
    let mut of_namespace = object(value("10"));
    of_namespace["object"]["describedObject"] = json!({ "apiVersion": "v1", "kind": "Namespace", "name": "b" });
    assert_eq!(line(&asked(of_namespace).unwrap()), "get metrics.custom.metrics.k8s.io/ a/hits/  ");
    // Whatever an autoscaler names, it requests metrics of its own namespace only.
    for metric in [pods(), external(value("10")), object(value("10"))] {
        assert_eq!(asked(metric).unwrap().namespace.as_deref(), Some("a"));
    }
    let told = line(&asked(external(value("10"))).unwrap());
    assert_eq!(told, "list jobs.external.metrics.k8s.io/ a// queue=q ");
    let mut unknown = object(value("10"));
    unknown["object"]["describedObject"]["kind"] = "Nothing".into();
    let why = asked(unknown).unwrap_err();
    let said = "unable to fetch metrics from custom metrics API: no matches for kind \"Nothing\" in group \"networking.k8s.io\"";
    assert_eq!(why.to_string(), said);
    assert_eq!(asked(pods()).unwrap().verb, Verb::Get);
}

fn told(metric: Value, items: Value) -> remote::Told {
    let spec = read(json!({ "metrics": [metric] }));
    let bytes = Bytes::from(json!({ "kind": "MetricValueList", "items": items }).to_string());
    remote::told(&spec.metrics[0], Ok(&Body::Object { bytes, created: false }))
}

#[test]
fn answers_are_read_and_what_is_wrong_with_them_is_told_in_upstreams_words() {
    let item = |name: &str, value: &str| json!({ "describedObject": { "name": name }, "value": value, "timestamp": "2026-01-01T00:00:00Z", "windowSeconds": 30 });
    let readings = told(pods(), json!([item("p0", "15500m"), item("p1", "1k")])).unwrap();
    let all: Vec<_> =
        readings.iter().map(|it| (it.of.as_str(), it.sample.millis, it.sample.window.as_secs())).collect();
    assert_eq!(all, [("p0", 15_500, 30), ("p1", 1_000_000, 30)]);
    assert_eq!(told(pods(), json!([])), Err(RemoteError::Empty(MetricsApi::Custom)));
    let two = told(object(value("1")), json!([item("a", "1"), item("b", "1")])).unwrap_err();
    let said = "unable to fetch metrics from custom metrics API: the custom metrics API server returned 2 results when we \
                asked for exactly one";
    assert_eq!(two.to_string(), said);
    let odd = told(pods(), json!([{ "value": "much" }])).unwrap_err();
    assert_eq!(odd.to_string(), "unable to fetch metrics from custom metrics API: a value is no quantity");
    let spec = read(json!({ "metrics": [external(value("1"))] }));
    let none = Body::List(List::default());
    let none = remote::told(&spec.metrics[0], Ok(&none)).unwrap_err();
    assert_eq!(none.to_string(), "no metrics returned from external metrics API");
    let away = Status::unavailable("the server is currently unable to handle the request");
    let why = remote::told(&spec.metrics[0], Err(&away)).unwrap_err();
    let said =
        "unable to fetch metrics from external metrics API: the server is currently unable to handle the request";
    assert_eq!(why.to_string(), said);
}

#[test]
fn totals_come_to_replicas_by_upstreams_arithmetic() {
    let even = Tolerance { up: 0.1, down: 0.1 };
    // (there, total, goal) -> (replicas, average)
    for (there, total, goal, told) in [
        (3, 60_000, 10_000, (6, 20_000)),
        (3, 31_000, 10_000, (3, 10_334)),
        (3, 1_000, 10_000, (1, 334)),
        (0, 50_000, 10_000, (5, 50_000)),
        (3, 0, 10_000, (0, 0)),
    ] {
        assert_eq!(propose_for_average(there, total, goal, even), told, "{there} {total} {goal}");
    }
    assert_eq!(propose_for_value(&[], 3, 10_500, 10_000, even), Ok(3), "near enough");
    assert_eq!(propose_for_value(&[], 0, 25_000, 10_000, even), Ok(3));
    let why = "unable to calculate ready pods: no pods returned by selector while calculating replica count";
    let none = propose_for_value(&[], 3, 25_000, 10_000, even).unwrap_err();
    assert_eq!((none.to_string().as_str(), none), (why, ReplicasError::NoneToBeReady));
}

/// The result of one metric for three Pods, given its values by name in thousandths.
fn ran(metric: Value, told: &[(&str, &str)]) -> super::plan::Ran {
    let item = |(name, value): &(&str, &str)| json!({ "describedObject": { "name": name }, "value": value });
    let items: Vec<Value> = told.iter().map(item).collect();
    let mut case = Case::of(3, &[500; 3], json!({ "metrics": [metric.clone()] }));
    case.told = vec![Some(self::told(metric, json!(items)))];
    case.runs()
}

#[test]
fn pods_objects_and_externals_scale_a_target() {
    let ran_ = ran(pods(), &[("p0", "20"), ("p1", "20"), ("p2", "20")]);
    assert_eq!((ran_.to, ran_.why.as_deref()), (Some(6), Some("New size: 6; reason: pods metric qps above target")));
    let metric = json!({ "name": "qps", "selector": { "matchLabels": { "verb": "GET" } } });
    let shown = json!({ "type": "Pods", "pods": { "metric": metric, "current": { "averageValue": "20" } } });
    assert_eq!(ran_.status["currentMetrics"], json!([shown]));
    assert_eq!(
        ran_.condition("ScalingActive"),
        "True ValidMetricFound: the HPA was able to successfully calculate a replica count from pods metric qps"
    );
    let ran_ = ran(object(value("10")), &[("front", "20")]);
    assert_eq!(
        (ran_.to, ran_.why.as_deref()),
        (Some(6), Some("New size: 6; reason: Ingress metric hits above target"))
    );
    assert_eq!(ran_.status["currentMetrics"][0]["object"]["current"], json!({ "value": "20" }));
    assert_eq!(ran_.status["currentMetrics"][0]["object"]["describedObject"]["name"], "front");
    let ran_ = ran(object(average("10")), &[("front", "40")]);
    assert_eq!(ran_.to, Some(4));
    assert_eq!(ran_.status["currentMetrics"][0]["object"]["current"], json!({ "averageValue": "13334m" }));
    let ran_ = ran(external(value("30")), &[("", "30"), ("", "30")]);
    let why = "New size: 6; reason: external metric jobs(queue=q) above target";
    assert_eq!((ran_.to, ran_.why.as_deref()), (Some(6), Some(why)));
    assert_eq!(ran_.status["currentMetrics"][0]["external"]["current"], json!({ "value": "60" }));
    let ran_ = ran(external(average("30")), &[("", "150")]);
    assert_eq!(ran_.to, Some(5));
}

#[test]
fn what_an_adapter_fails_to_tell_is_told_in_conditions() {
    let ran_ = ran(pods(), &[]);
    assert_eq!(ran_.to, None);
    let why = "unable to get metric qps: no metrics returned from custom metrics API";
    assert_eq!(
        ran_.condition("ScalingActive"),
        format!("False FailedGetPodsMetric: the HPA was unable to compute the replica count: {why}")
    );
}
