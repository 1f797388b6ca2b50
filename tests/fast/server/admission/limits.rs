//! LimitRanges: what they fill in, and what they refuse.

use podwright::api::Verb;
use serde_json::{Value, json};

use super::{Api, pod, with};
use podwright::api::Options;

fn range(limits: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": limits}})
}

fn claim(storage: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}})
}

#[tokio::test]
async fn containers_get_what_they_leave_out() {
    let api = Api::new().await;
    let limits =
        json!([{"type": "Container", "default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}]);
    api.create("limitranges", range(limits)).await.unwrap();
    let mut asked = with(pod("p"), "/spec/containers/0/resources", json!({"limits": {"memory": "2Gi"}}));
    asked["spec"]["initContainers"] = json!([{"name": "i", "image": "x:1"}]);
    let made = api.create("pods", asked).await.unwrap();
    let resources = |list: &str| made.0["spec"][list][0]["resources"].clone();
    assert_eq!(
        resources("containers"),
        json!({"limits": {"memory": "2Gi", "cpu": "500m"}, "requests": {"memory": "2Gi", "cpu": "100m"}}),
        "the request of memory is that container's own limit"
    );
    assert_eq!(
        resources("initContainers"),
        json!({"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}})
    );
    assert_eq!(
        made.annotation("kubernetes.io/limit-ranger"),
        Some(
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c; cpu, memory request for init \
             container i; cpu, memory limit for init container i"
        )
    );
    assert_eq!(made.0["status"]["qosClass"], "Burstable", "counted with what was filled in");
}

#[tokio::test]
async fn what_is_beyond_a_bound_is_refused_in_upstreams_words() {
    let container = |resources: Value| with(pod("p"), "/spec/containers/0/resources", resources);
    let asks = |cpu: &str, limit: &str| container(json!({"requests": {"cpu": cpu}, "limits": {"cpu": limit}}));
    let two = || {
        let mut two = asks("600m", "600m");
        let more = json!({"name": "d", "image": "x:1", "resources": two["spec"]["containers"][0]["resources"]});
        two["spec"]["containers"].as_array_mut().unwrap().push(more);
        two
    };
    for (limit, object, refusal) in [
        (
            json!({"type": "Container", "min": {"cpu": "200m"}}),
            asks("100m", "1"),
            "minimum cpu usage per Container is 200m, but request is 100m",
        ),
        (
            json!({"type": "Container", "max": {"cpu": "1"}}),
            asks("2", "2"),
            "maximum cpu usage per Container is 1, but limit is 2",
        ),
        (
            json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
            asks("100m", "300m"),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
        ),
        (
            json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
            container(json!({"requests": {"cpu": "1"}})),
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
        (
            json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
            pod("p"),
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
        (json!({"type": "Pod", "max": {"cpu": "1"}}), two(), "maximum cpu usage per Pod is 1, but limit is 1200m"),
        (
            json!({"type": "Pod", "max": {"cpu": "1"}}),
            pod("p"),
            "maximum cpu usage per Pod is 1.  No limit is specified",
        ),
        (
            json!({"type": "Pod", "min": {"memory": "1Gi"}}),
            pod("p"),
            "minimum memory usage per Pod is 1Gi.  No request is specified",
        ),
        (
            json!({"type": "Pod", "max": {"cpu": "1"}, "min": {"memory": "1Gi"}}),
            pod("p"),
            "[minimum memory usage per Pod is 1Gi.  No request is specified, maximum cpu usage per Pod is 1.  No limit is specified]",
        ),
    ] {
        let api = Api::new().await;
        api.create("limitranges", range(json!([limit]))).await.unwrap();
        let refused = api.create("pods", object).await.unwrap_err();
        assert_eq!((refused.code, refused.message), (403, format!("pods \"p\" is forbidden: {refusal}")), "{limit}");
    }
    let api = Api::new().await;
    let limits = json!([{"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}},
        {"type": "Pod", "max": {"cpu": "2"}}]);
    api.create("limitranges", range(limits)).await.unwrap();
    api.create("pods", two()).await.unwrap();
    api.patch("pods", "p", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
}

#[tokio::test]
async fn claims_have_bounds_too() {
    let api = Api::new().await;
    let limits = json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "10Gi"}}]);
    api.create("limitranges", range(limits)).await.unwrap();
    for (storage, why) in [
        ("500Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"),
        ("11Gi", "maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 11Gi"),
    ] {
        let refused = api.create("persistentvolumeclaims", claim(storage)).await.unwrap_err();
        assert_eq!(refused.message, format!("persistentvolumeclaims \"c\" is forbidden: {why}"));
    }
    api.create("persistentvolumeclaims", claim("2Gi")).await.unwrap();
    // No range, no bounds; and a range of another namespace is none.
    let gone = api.ask(Verb::Delete, "limitranges", "r", Options::default()).await;
    gone.unwrap();
    api.create("persistentvolumeclaims", with(claim("20Gi"), "/metadata/name", json!("d"))).await.unwrap();
}
