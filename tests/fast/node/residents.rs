//! Which Pod of the node an API object means: its annotations are not trusted.

use std::{path::Path, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use podwright::{
    api::rpc::PodRef,
    node::{residents::Residents, spec::PodExt, static_pods},
};
use serde_json::{Value, json};

/// An object as stored by the server.
fn object(namespace: &str, name: &str, uid: &str, metadata: Value) -> Arc<Pod> {
    let mut pod = json!({"metadata": metadata, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}});
    for (field, value) in [("namespace", namespace), ("name", name), ("uid", uid), ("resourceVersion", "7")] {
        pod["metadata"][field] = value.into();
    }
    serde_json::from_value(pod).unwrap()
}

fn named(namespace: &str, name: &str, uid: &str) -> PodRef {
    PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() }
}

fn static_pod() -> Arc<Pod> {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: web, annotations: {kubernetes.io/config.mirror: x}},
        spec: {containers: [{name: c, image: 'i:1'}]}}";
    Arc::new(static_pods::read(text, Path::new("/etc/pods/web.yaml"), "n1").unwrap().remove(0))
}

#[test]
fn an_object_means_the_pod_of_its_namespace_name_and_uid() {
    let residents = Residents::default();
    let victim = object("b", "victim", "u-b", json!({}));
    let claims = json!({"annotations": {
        "kubernetes.io/config.mirror": "u-b", "kubernetes.io/config.hash": "u-b", "kubernetes.io/config.source": "file",
    }});
    let liar = object("a", "liar", "u-a", claims);
    [&victim, &liar].into_iter().for_each(|pod| residents.put(pod.clone()));
    assert!(!liar.is_static() && !liar.is_mirror());
    for (object, expected) in [
        (named("b", "victim", "u-b"), Some("u-b")),
        (named("a", "liar", "u-a"), Some("u-a")),
        (named("a", "liar", "u-b"), None),
        (named("a", "victim", "u-b"), None),
        (named("b", "liar", "u-b"), None),
        (named("b", "victim", "../u-b"), None),
        (named("b", "victim", ""), None),
    ] {
        assert_eq!(residents.find(&object).as_deref().map(PodExt::uid), expected, "{object:?}");
    }
    assert_eq!((residents.api_uid("u-a").as_deref(), residents.api_uid("u-x")), (Some("u-a"), None));
    residents.remove("u-b");
    assert!(residents.find(&named("b", "victim", "u-b")).is_none());
}

#[test]
fn a_static_pod_is_found_by_the_mirror_that_shows_it_alone() {
    let (residents, pod) = (Residents::default(), static_pod());
    assert!(pod.is_static() && !pod.is_mirror());
    residents.put(pod.clone());
    let own = |uid: &str| named("default", "web-n1", uid);
    assert!(residents.find(&own(pod.uid())).is_none(), "the API does not know this uid");
    assert_eq!(residents.api_uid(pod.uid()), None);
    residents.shows("u-mirror", pod.uid());
    assert_eq!(residents.find(&own("u-mirror")).unwrap().uid(), pod.uid());
    assert!(residents.find(&named("a", "web-n1", "u-mirror")).is_none());
    assert_eq!(residents.api_uid(pod.uid()).as_deref(), Some("u-mirror"));
    // What shows an object of the API shows nothing.
    residents.put(object("b", "victim", "u-b", json!({})));
    residents.shows("u-liar", "u-b");
    assert!(residents.find(&named("b", "victim", "u-liar")).is_none());
    residents.shows_no_more("u-mirror");
    assert!(residents.find(&own("u-mirror")).is_none());
}

/// Whoever asks as soon as an agent is connected waits until it knows what an earlier one has left, and is not told that it is gone.
#[tokio::test(start_paused = true)]
async fn a_pod_is_looked_for_when_an_agent_that_has_just_begun_knows_its_pods() {
    let residents = Arc::new(Residents::default());
    let ask = |uid: &'static str| {
        let residents = residents.clone();
        async move { residents.sought(&named("b", "web", uid)).await.map(|pod| pod.uid().to_owned()) }
    };
    let (mine, others) = (tokio::spawn(ask("u-b")), tokio::spawn(ask("u-x")));
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(!mine.is_finished() && !others.is_finished());
    residents.put(object("b", "web", "u-b", json!({})));
    residents.recovered();
    assert_eq!(mine.await.unwrap().as_deref(), Ok("u-b"));
    let why = others.await.unwrap().unwrap_err();
    assert_eq!((why.code, why.message.as_str()), (404, "pods \"web\" not found"));
    assert_eq!(ask("u-x").await.unwrap_err().code, 404);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_come_to_know_its_pods_says_so() {
    let residents = Residents::default();
    let begun = tokio::time::Instant::now();
    let why = residents.sought(&named("b", "web", "u-b")).await.unwrap_err();
    assert!(why.code == 503 && why.message.contains("try again"), "{why}");
    assert_eq!(begun.elapsed().as_secs(), 20);
}

#[test]
fn a_mirror_is_owned_by_its_node() {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": true});
    let with = |change: fn(&mut Value)| {
        let mut owners = json!([owner.clone()]);
        change(&mut owners);
        let annotations = json!({"kubernetes.io/config.mirror": "hash"});
        object("a", "m", "u", json!({"annotations": annotations, "ownerReferences": owners})).is_mirror()
    };
    assert!(with(|_| ()));
    for change in [
        (|o| *o = json!([])) as fn(&mut Value),
        |o| o[0]["name"] = "n2".into(),
        |o| o[0]["kind"] = "Pod".into(),
        |o| o[0]["controller"] = false.into(),
        |o| o[0]["apiVersion"] = "example.com/v1".into(),
    ] {
        assert!(!with(change));
    }
    let unannotated = object("a", "m", "u", json!({"ownerReferences": [owner]}));
    assert!(!unannotated.is_mirror());
}

#[test]
fn a_static_pod_refers_to_nothing_of_the_api() {
    let read = |spec: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
        pod["spec"]["containers"] = json!([{"name": "c", "image": "i:1"}]);
        let read = static_pods::read(&pod.to_string(), Path::new("/etc/pods/web.json"), "n1");
        read.map(drop).map_err(|why| why.to_string())
    };
    assert_eq!(read(json!({})), Ok(()));
    for (spec, what) in [
        (json!({"serviceAccountName": "robot"}), "serviceaccounts"),
        (json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}), "secrets"),
        (json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "s"}}]}), "persistentvolumeclaims"),
    ] {
        assert_eq!(read(spec), Err(format!("static pods may not reference {what}")));
    }
}
