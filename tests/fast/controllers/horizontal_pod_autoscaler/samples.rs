//! The usage of Pods, as metrics.k8s.io reports it.

use podwright::controllers::horizontal_pod_autoscaler::{of_container, of_pods};
use serde_json::{Value, json};

use super::super::at;

fn metrics() -> Vec<Value> {
    let pod = |name: &str, containers: Value| {
        json!({
            "metadata": { "name": name, "namespace": "a" },
            "timestamp": at(-5).to_string(), "window": "15s", "containers": containers,
        })
    };
    let one = |name: &str, cpu: &str, memory: &str| json!({ "name": name, "usage": { "cpu": cpu, "memory": memory } });
    vec![
        pod("a", json!([one("c", "250m", "1Mi"), one("side", "1500001n", "1Ki")])),
        pod("b", json!([one("c", "1", "2Mi"), { "name": "side", "usage": { "memory": "1" } }])),
        pod("empty", json!([])),
    ]
}

#[test]
fn a_pod_uses_what_its_containers_use_together() {
    // One container of `b` does not report its CPU, so the usage of `b` is unknown.
    let cpu = of_pods(&metrics(), "cpu");
    assert_eq!(cpu.iter().map(|(name, it)| (name.as_str(), it.millis)).collect::<Vec<_>>(), [("a", 252)]);
    assert_eq!((cpu["a"].at, cpu["a"].window.as_secs()), (at(-5), 15));
    let memory = of_pods(&metrics(), "memory");
    let memory: Vec<(&str, i64)> = memory.iter().map(|(name, it)| (name.as_str(), it.millis)).collect();
    assert_eq!(memory, [("a", (1024 * 1024 + 1024) * 1000), ("b", (2 * 1024 * 1024 + 1) * 1000)]);
}

#[test]
fn a_container_is_told_of_by_itself() {
    let of = |container: &str| {
        let samples = of_container(&metrics(), "cpu", container);
        samples.into_iter().map(|(name, it)| (name, it.millis)).collect::<Vec<_>>()
    };
    assert_eq!(of("c"), [("a".to_owned(), 250), ("b".to_owned(), 1000)]);
    assert_eq!(of("side"), [("a".to_owned(), 2)], "rounded up");
    assert_eq!(of("other"), []);
}
