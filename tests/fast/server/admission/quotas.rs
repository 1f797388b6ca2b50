//! Quotas: what they charge for, what they refuse, and that they are never exceeded.

use std::sync::Arc;
use std::time::Duration;

use podwright::api::{Env, Object, Options, Verb};
use podwright::client::{Informers, local};
use podwright::controllers;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::custom::{DEFINITIONS, definition, spec, widget};
use super::{Api, pod, with};

fn quota(name: &str, hard: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard}})
}

fn zeros(hard: &Value) -> Value {
    // The Service `kubernetes` is there already.
    let used = |key: &str| if key.ends_with("services") { "1" } else { "0" };
    hard.as_object().unwrap().keys().map(|key| (key.clone(), Value::from(used(key)))).collect()
}

impl Api {
    /// A quota of which nothing is used yet, as the controller says.
    async fn quota(&self, object: Value) {
        let (name, hard) = (object["metadata"]["name"].as_str().unwrap().to_owned(), object["spec"]["hard"].clone());
        self.create("resourcequotas", object).await.unwrap();
        let status = json!({"status": {"hard": hard, "used": zeros(&hard)}});
        self.sub(Verb::Patch, "resourcequotas", &name, "status", status).await.unwrap();
    }

    async fn used(&self, name: &str) -> Value {
        self.get("resourcequotas", name).await.unwrap().0["status"]["used"].clone()
    }
}

fn sized(name: &str, cpu: &str, limit: &str) -> Value {
    let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": limit}});
    with(pod(name), "/spec/containers/0/resources", resources)
}

#[tokio::test]
async fn writes_are_charged_for_and_refused_beyond_the_quota() {
    let api = Api::new().await;
    api.quota(quota("q", json!({"pods": "2", "requests.cpu": "1", "limits.cpu": "2", "count/pods": "5"}))).await;
    let silent = api.create("pods", pod("a")).await.unwrap_err();
    assert_eq!(
        silent.message,
        "pods \"a\" is forbidden: failed quota: q: must specify limits.cpu for: c; requests.cpu for: c"
    );
    api.create("pods", sized("a", "600m", "1")).await.unwrap();
    assert_eq!(api.used("q").await, json!({"count/pods": "1", "limits.cpu": "1", "pods": "1", "requests.cpu": "600m"}));
    let refused = api.create("pods", sized("b", "500m", "1500m")).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (
            403,
            "pods \"b\" is forbidden: exceeded quota: q, requested: limits.cpu=1500m,requests.cpu=500m, used: \
             limits.cpu=1,requests.cpu=600m, limited: limits.cpu=2,requests.cpu=1"
        )
    );
    // What is refused, or only tried, costs nothing.
    let dry = Options { dry_run: true, ..Options::default() };
    api.0.handle(super::request(Verb::Create, "pods", "", Some(sized("b", "100m", "1")), dry)).await.unwrap();
    assert!(api.create("pods", sized("a", "100m", "100m")).await.unwrap_err().is_already_exists());
    assert_eq!(api.used("q").await["pods"], "1");
    api.create("pods", sized("b", "400m", "1")).await.unwrap();
    let refused = api.create("pods", sized("c", "0", "0")).await.unwrap_err();
    assert_eq!(
        refused.message,
        "pods \"c\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
    );
}

/// A node makes them in any namespace.
#[tokio::test]
async fn mirror_pods_use_nothing_of_a_quota() {
    let api = Api::new().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let node = api.create("nodes", node).await.unwrap();
    api.quota(quota("q", json!({"pods": "1", "count/pods": "1", "limits.cpu": "1"}))).await;
    for name in ["a", "b", "c"] {
        api.create("pods", super::super::mirror(name, &node)).await.unwrap();
    }
    assert_eq!(api.used("q").await, json!({"count/pods": "0", "limits.cpu": "0", "pods": "0"}));
    api.create("pods", sized("own", "1", "1")).await.unwrap();
    // A count is the same.
    let used = json!({"status": {"used": {"count/pods": "1", "limits.cpu": "1", "pods": "1"}}});
    api.sub(Verb::Patch, "resourcequotas", "q", "status", used).await.unwrap();
}

#[tokio::test]
async fn a_quota_that_was_not_counted_yet_lets_nothing_in() {
    let api = Api::new().await;
    api.create("resourcequotas", quota("q", json!({"configmaps": "5", "count/secrets": "1"}))).await.unwrap();
    let refused = api.create("configmaps", super::super::config_map("a")).await.unwrap_err();
    let why = "status unknown for quota: q, resources: configmaps";
    assert_eq!(refused.message, format!("configmaps \"a\" is forbidden: {why}"));
    api.create("pods", pod("p")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_once_no_more_get_in_than_one_after_the_other() {
    let api = Arc::new(Api::new().await);
    api.quota(quota("few", json!({"pods": "10"}))).await;
    api.quota(quota("more", json!({"count/pods": "20"}))).await;
    let all = (0..60).map(|i| {
        let api = api.clone();
        tokio::spawn(async move { api.create("pods", pod(&format!("p{i}"))).await })
    });
    let mut made = 0;
    for one in all.collect::<Vec<_>>() {
        match one.await.unwrap() {
            Ok(_) => made += 1,
            Err(status) => assert!(status.message.contains("exceeded quota: few"), "{status}"),
        }
    }
    assert_eq!(made, 10);
    assert_eq!(api.list("pods", Options::default()).await.unwrap().items.len(), 10);
    assert_eq!((api.used("few").await, api.used("more").await), (json!({"pods": "10"}), json!({"count/pods": "10"})));
}

#[tokio::test]
async fn each_kind_is_charged_for_what_it_is() {
    let api = Api::new().await;
    let hard = json!({
        "services": "9", "services.nodeports": "3", "services.loadbalancers": "1", "count/services": "9", "secrets": "1",
        "count/deployments.apps": "1", "persistentvolumeclaims": "9", "requests.storage": "10Gi",
        "fast.storageclass.storage.k8s.io/requests.storage": "2Gi", "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
        "requests.example.com/gpu": "2", "requests.memory": "1Gi", "hugepages-2Mi": "8Mi",
    });
    api.quota(quota("q", hard)).await;
    let service = |name: &str, of_type: &str, ports: usize| {
        let ports: Vec<Value> = (1..=ports).map(|n| json!({"name": format!("p{n}"), "port": n})).collect();
        super::super::service(name, json!({"type": of_type, "ports": ports}))
    };
    let claim = |name: &str, class: &str, storage: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}, "storageClassName": class}})
    };
    api.create("services", service("a", "ClusterIP", 5)).await.unwrap();
    api.create("services", service("b", "NodePort", 2)).await.unwrap();
    let refused = api.create("services", service("c", "LoadBalancer", 2)).await.unwrap_err();
    assert!(
        refused
            .message
            .ends_with("requested: services.nodeports=2, used: services.nodeports=2, limited: services.nodeports=3"),
        "{refused}"
    );
    // A change is charged for by the difference.
    let refused = api.patch("services", "a", json!({"spec": {"type": "NodePort"}})).await.unwrap_err();
    assert!(refused.message.contains("exceeded quota: q, requested: services.nodeports=5"), "{refused}");
    api.patch("services", "b", json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
    api.create("services", service("c", "LoadBalancer", 2)).await.unwrap();
    let used = api.used("q").await;
    let of = |name: &str| used[name].as_str().unwrap().to_owned();
    assert_eq!(
        [of("services"), of("services.nodeports"), of("services.loadbalancers"), of("count/services")],
        ["4", "2", "1", "4"]
    );

    api.create("persistentvolumeclaims", claim("a", "slow", "8Gi")).await.unwrap();
    for (class, storage, why) in [
        ("slow", "3Gi", "requested: requests.storage=3Gi, used: requests.storage=8Gi, limited: requests.storage=10Gi"),
        ("fast", "3Gi", "requested: fast.storageclass.storage.k8s.io/requests.storage=3Gi,requests.storage=3Gi"),
    ] {
        let refused = api.create("persistentvolumeclaims", claim("b", class, storage)).await.unwrap_err();
        assert!(refused.message.contains(why), "{refused}");
    }
    api.create("persistentvolumeclaims", claim("b", "fast", "1Gi")).await.unwrap();
    let refused = api.create("persistentvolumeclaims", claim("c", "fast", "1Gi")).await.unwrap_err();
    assert!(refused.message.contains("fast.storageclass.storage.k8s.io/persistentvolumeclaims=1, used"), "{refused}");

    let deployment = |name: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
            "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
            "containers": [{"name": "c", "image": "x:1"}]}}}})
    };
    api.create("deployments", deployment("a")).await.unwrap();
    let refused = api.create("deployments", deployment("b")).await.unwrap_err();
    let why = "exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=1, limited: count/deployments.apps=1";
    assert_eq!(refused.message, format!("deployments.apps \"b\" is forbidden: {why}"));

    let resources = json!({"requests": {"memory": "1Gi", "example.com/gpu": "3"}, "limits": {"example.com/gpu": "3"}});
    let refused = api.create("pods", with(pod("p"), "/spec/containers/0/resources", resources)).await.unwrap_err();
    assert!(refused.message.contains("requested: requests.example.com/gpu=3"), "{refused}");
}

#[tokio::test]
async fn scopes_say_which_pods_count() {
    let scoped = |name: &str, scope: Value| {
        let mut quota = quota(name, json!({"pods": "1"}));
        quota["spec"].as_object_mut().unwrap().extend(scope.as_object().unwrap().clone());
        quota
    };
    let burst = |name: &str| sized(name, "1m", "2m");
    let deadline = |name: &str| with(pod(name), "/spec/activeDeadlineSeconds", 60.into());
    let high = |name: &str| with(pod(name), "/spec/priorityClassName", "high".into());
    let selector = |operator: &str, values: Value| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}});
    let in_high = || selector("In", json!(["high"]));
    for (scope, inside, outside) in [
        (json!({"scopes": ["BestEffort"]}), pod("p"), burst("q")),
        (json!({"scopes": ["NotBestEffort"]}), burst("p"), pod("q")),
        (json!({"scopes": ["Terminating"]}), deadline("p"), pod("q")),
        (json!({"scopes": ["NotTerminating"]}), pod("p"), deadline("q")),
        (json!({"scopes": ["Terminating", "BestEffort"]}), deadline("p"), pod("q")),
        (in_high(), high("p"), pod("q")),
        (selector("NotIn", json!(["low"])), high("p"), with(pod("q"), "/spec/priorityClassName", "low".into())),
        (selector("Exists", json!([])), high("p"), pod("q")),
        (selector("DoesNotExist", json!([])), pod("p"), high("q")),
        (
            json!({"scopes": ["CrossNamespacePodAffinity"]}),
            with(
                pod("p"),
                "/spec/affinity",
                json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "x", "namespaces": ["a"], "labelSelector": {}}]}}),
            ),
            pod("q"),
        ),
    ] {
        let api = Api::new().await;
        for class in ["high", "low"] {
            let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": class}, "value": 1});
            api.create("priorityclasses", class).await.unwrap();
        }
        api.quota(scoped("q", scope.clone())).await;
        api.create("pods", outside.clone()).await.unwrap();
        assert_eq!(api.used("q").await["pods"], "0", "{scope}");
        api.create("pods", inside.clone()).await.unwrap();
        assert_eq!(api.used("q").await["pods"], "1", "{scope}");
        let more = with(inside, "/metadata/name", "more".into());
        assert!(api.create("pods", more).await.unwrap_err().message.contains("exceeded quota: q"), "{scope}");
    }
}

#[tokio::test]
async fn nobody_says_that_less_is_used_than_is() {
    let api = Api::new().await;
    api.quota(quota("q", json!({"pods": "2", "configmaps": "9"}))).await;
    api.create("pods", pod("a")).await.unwrap();
    let lie = json!({"status": {"used": {"pods": "0"}}});
    let refused = api.sub(Verb::Patch, "resourcequotas", "q", "status", lie).await.unwrap_err();
    assert!(refused.is_conflict() && refused.message.contains("1 of pods is used by now"), "{refused}");
    api.delete("pods", "a", Options::default()).await.unwrap();
    api.sub(Verb::Patch, "resourcequotas", "q", "status", json!({"status": {"used": {"pods": "0"}}})).await.unwrap();
    assert_eq!(api.used("q").await["pods"], "0");
}

/// Waits until a quota has used what it should.
async fn until(api: &Api, wanted: Value) {
    let mut used = Value::Null;
    for _ in 0..500 {
        used = api.get("resourcequotas", "q").await.unwrap().0["status"].clone();
        if used == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{used} is not {wanted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controller_counts_what_is_there_and_takes_off_what_goes() {
    let api = Api::new().await;
    let (client, env, stop) = (local::client(api.0.clone(), "test"), Env::system(), CancellationToken::new());
    let informers = Informers::start(client.clone());
    let running = tokio::spawn(controllers::run(client, env, informers, controllers::Config::default(), stop.clone()));
    api.create("pods", sized("early", "1", "1")).await.unwrap();
    api.create("configmaps", super::super::config_map("early")).await.unwrap();
    let hard = json!({"configmaps": "5", "limits.cpu": "10", "pods": "3", "secrets": "2"});
    api.create("resourcequotas", quota("q", hard.clone())).await.unwrap();
    let status = |configmaps: &str, cpu: &str, pods: &str| json!({"hard": hard, "used": {"configmaps": configmaps, "limits.cpu": cpu, "pods": pods, "secrets": "0"}});
    until(&api, status("1", "1", "1")).await;
    for name in ["a", "b"] {
        api.create("pods", sized(name, "2", "2")).await.unwrap();
    }
    until(&api, status("1", "5", "3")).await;
    assert_eq!(api.create("pods", sized("c", "1", "1")).await.unwrap_err().code, 403);
    api.delete("pods", "a", Options::default()).await.unwrap();
    api.delete("configmaps", "early", Options::default()).await.unwrap();
    until(&api, status("0", "3", "2")).await;
    // One that is resized uses what it had until its node has taken it off.
    let has = |cpu: &str| json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "resources": {"limits": {"cpu": cpu}}}]}});
    api.sub(Verb::Patch, "pods", "b", "status", has("2")).await.unwrap();
    let resources = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "5"}});
    let container = |resources: &Value| json!({"spec": {"containers": [{"name": "c", "image": "busybox:1", "resources": resources}]}});
    api.sub(Verb::Patch, "pods", "b", "resize", container(&resources)).await.unwrap();
    until(&api, status("0", "6", "2")).await;
    api.sub(Verb::Patch, "pods", "b", "status", has("5")).await.unwrap();
    let resources = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}});
    api.sub(Verb::Patch, "pods", "b", "resize", container(&resources)).await.unwrap();
    until(&api, status("0", "6", "2")).await;
    api.sub(Verb::Patch, "pods", "b", "status", has("2")).await.unwrap();
    until(&api, status("0", "3", "2")).await;
    // One that has ended takes nothing any more.
    api.sub(Verb::Patch, "pods", "b", "status", json!({"status": {"phase": "Succeeded"}})).await.unwrap();
    until(&api, status("0", "1", "1")).await;
    let wish: Object = api.patch("resourcequotas", "q", json!({"spec": {"hard": {"pods": "7"}}})).await.unwrap();
    let hard = wish.0["spec"]["hard"].clone();
    until(&api, json!({"hard": hard, "used": {"configmaps": "0", "limits.cpu": "1", "pods": "1", "secrets": "0"}}))
        .await;
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_count_from_the_moment_they_are_defined() {
    let api = Api::new().await;
    let (client, env, stop) = (local::client(api.0.clone(), "test"), Env::system(), CancellationToken::new());
    let informers = Informers::start(client.clone());
    let running = tokio::spawn(controllers::run(client, env, informers, controllers::Config::default(), stop.clone()));
    // The quota is there before what it is about.
    let hard = json!({"configmaps": "5", "count/widgets.example.com": "2"});
    api.create("resourcequotas", quota("q", hard.clone())).await.unwrap();
    let status = |widgets: &str, maps: &str| json!({"hard": hard, "used": {"configmaps": maps, "count/widgets.example.com": widgets}});
    until(&api, status("0", "0")).await;
    let mut two = definition(spec(json!({"size": {"type": "integer"}})));
    let mut older = two["spec"]["versions"][0].clone();
    (older["name"], older["storage"]) = ("v1beta1".into(), false.into());
    two["spec"]["versions"].as_array_mut().unwrap().push(older);
    api.define(two.clone()).await;

    api.create("widgets", widget("a", json!({}))).await.unwrap();
    let mut older = widget("b", json!({}));
    older["apiVersion"] = "example.com/v1beta1".into();
    api.create("widgets.v1beta1.example.com", older).await.unwrap();
    let refused = api.create("widgets", widget("c", json!({}))).await.unwrap_err();
    let amounts = "requested: count/widgets.example.com=1, used: count/widgets.example.com=2, limited: count/widgets.example.com=2";
    assert_eq!(refused.message, format!("widgets.example.com \"c\" is forbidden: exceeded quota: q, {amounts}"));
    // A count of all brings out the same: that of the ConfigMap makes one.
    api.create("configmaps", super::super::config_map("m")).await.unwrap();
    api.delete("configmaps", "m", Options::default()).await.unwrap();
    until(&api, status("2", "0")).await;
    let lie = json!({"status": {"used": {"count/widgets.example.com": "1"}}});
    let refused = api.sub(Verb::Patch, "resourcequotas", "q", "status", lie).await.unwrap_err();
    assert!(refused.message.contains("2 of count/widgets.example.com is used by now"), "{refused}");

    api.delete("widgets", "a", Options::default()).await.unwrap();
    until(&api, status("1", "0")).await;
    api.create("widgets", widget("c", json!({}))).await.unwrap();
    until(&api, status("2", "0")).await;
    // They go with their definition, and may come again with it.
    api.delete(DEFINITIONS, "widgets.example.com", Options::default()).await.unwrap();
    until(&api, status("0", "0")).await;
    while api.get(DEFINITIONS, "widgets.example.com").await.is_ok() {
        tokio::task::yield_now().await;
    }
    api.define(two).await;
    api.create("widgets", widget("a", json!({}))).await.unwrap();
    until(&api, status("1", "0")).await;

    // A new quota counts what is there; one with a scope counts Pods or claims alone.
    let mut second = quota("q", json!({"count/widgets.example.com": "1"}));
    api.delete("resourcequotas", "q", Options::default()).await.unwrap();
    api.create("resourcequotas", second.clone()).await.unwrap();
    let hard = second["spec"]["hard"].clone();
    until(&api, json!({"hard": hard, "used": {"count/widgets.example.com": "1"}})).await;
    second["metadata"]["name"] = "scoped".into();
    second["spec"] = json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]});
    api.create("resourcequotas", second).await.unwrap();
    stop.cancel();
    running.await.unwrap();
}
