//! Controllers that run beside a server, on a clock that advances when all tasks are idle.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Event, Pod};
use podwright::api::instruments::{self, Format};
use podwright::api::{Env, Object, Options, Request, Status, User, Verb, request::Body, request::PatchType};
use podwright::client::{Client, Delta, Informer, Informers, local};
use podwright::controllers;
use podwright::server::{Config, Server};
use podwright::store::Memory;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use super::at;

pub struct World {
    pub server: Arc<Server>,
    env: Env,
    client: Client,
}

impl World {
    pub async fn new() -> World {
        let env = Env::simulated(at(0), 1);
        let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
        let client = local::client(server.clone(), "controllers");
        World { server, env, client }
    }

    /// Runs controllers with empty caches, until they are stopped.
    pub fn start(&self) -> CancellationToken {
        self.start_with(controllers::Config::default())
    }

    pub fn start_with(&self, config: controllers::Config) -> CancellationToken {
        let stop = CancellationToken::new();
        let (client, env, stopped) = (self.client.clone(), self.env.clone(), stop.clone());
        tokio::spawn(async move {
            let informers = Informers::start(client.clone());
            controllers::run(client, env, informers, config, stopped).await;
        });
        stop
    }

    pub async fn ask(
        &self,
        verb: Verb,
        resource: &str,
        key: (&str, &str),
        body: Option<Value>,
    ) -> Result<Object, Status> {
        self.ask_with(verb, resource, key, body, Options::default()).await
    }

    async fn ask_with(
        &self,
        verb: Verb,
        resource: &str,
        (namespace, name): (&str, &str),
        body: Option<Value>,
        options: Options,
    ) -> Result<Object, Status> {
        self.ask_whole(verb, resource, (namespace, name), None, body, options).await
    }

    /// Calls a verb on a subresource.
    pub async fn ask_of(&self, verb: Verb, resource: &str, key: (&str, &str), subresource: &str, body: Value) {
        self.ask_whole(verb, resource, key, Some(subresource.into()), Some(body), Options::default()).await.unwrap();
    }

    async fn ask_whole(
        &self,
        verb: Verb,
        resource: &str,
        (namespace, name): (&str, &str),
        subresource: Option<String>,
        body: Option<Value>,
        options: Options,
    ) -> Result<Object, Status> {
        let given = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
        let options = Options { patch_type: Some(PatchType::Merge), ..options };
        let user = User::system("test");
        let (namespace, name) = (given(namespace), given(name));
        let request = Request {
            verb,
            resource: resource.into(),
            namespace,
            name,
            subresource,
            body,
            options,
            user,
            ..Request::default()
        };
        match self.server.handle(request).await?.body {
            Body::Object { bytes, .. } => Object::from_slice(&bytes),
            _ => Ok(Object(Value::Null)),
        }
    }

    pub async fn create(&self, resource: &str, namespace: &str, body: Value) -> Object {
        self.ask(Verb::Create, resource, (namespace, ""), Some(body)).await.unwrap()
    }

    pub async fn delete(&self, resource: &str, key: (&str, &str), policy: &str) {
        let options = Options { propagation_policy: Some(policy.into()), ..Options::default() };
        self.ask_with(Verb::Delete, resource, key, None, options).await.unwrap();
    }

    /// Waits until an object satisfies the condition; `None` stands for a deleted one.
    pub async fn until(&self, resource: &str, key: (&str, &str), is_so: impl Fn(Option<&Object>) -> bool) {
        let mut last = None;
        for _ in 0..12_000 {
            last = self.ask(Verb::Get, resource, key, None).await.ok();
            if is_so(last.as_ref()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{resource} {key:?} stays {last:?}");
    }

    /// The events of a namespace with this reason.
    pub async fn events(&self, namespace: &str, reason: &str) -> Vec<Event> {
        let all = self.client.list::<Event>(Some(namespace), Options::default()).await.unwrap().items;
        all.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
    }

    /// Changes of all Pods, from the beginning.
    pub fn pods(&self) -> (Informer<Pod>, UnboundedReceiver<Delta<Pod>>) {
        let pods = Informer::builder(self.client.clone()).start();
        let changes = pods.subscribe();
        (pods, changes)
    }

    /// Seconds since the beginning.
    pub fn seconds(&self) -> f64 {
        self.env.now().duration_since(at(0)).as_secs_f64()
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// A ConfigMap as an owner reference.
fn owner(of: &Object) -> Value {
    json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": of.name(), "uid": of.uid(), "blockOwnerDeletion": true}])
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut pod["spec"], &spec);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_taint_of_a_persons_is_tolerated_so_long_whoever_counts() {
    let world = World::new().await;
    let first = world.start();
    world.create("nodes", "", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).await;
    let tolerations =
        json!([{"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]);
    world.create("pods", "default", pod("p", json!({"nodeName": "n", "tolerations": tolerations}))).await;
    let taints = json!({"spec": {"taints": [{"key": "maintenance", "effect": "NoExecute"}]}});
    world.ask(Verb::Patch, "nodes", ("", "n"), Some(taints)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    first.cancel();
    world.start();
    world.until("pods", ("default", "p"), |pod| pod.is_none_or(Object::is_terminating)).await;
    assert!((29.0..35.0).contains(&world.seconds()), "after {} s", world.seconds());
}

#[tokio::test(start_paused = true)]
async fn quotas_are_not_counted_for_each_pod_that_goes() {
    const PODS: usize = 300;
    let world = World::new().await;
    world.start();
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1000"}}});
    world.create("resourcequotas", "default", quota).await;
    let used = |number: usize| {
        move |quota: Option<&Object>| quota.unwrap().0["status"]["used"]["pods"] == number.to_string().as_str()
    };
    let key = ("default", "q");
    world.until("resourcequotas", key, used(0)).await;
    for n in 0..PODS {
        world.create("pods", "default", pod(&format!("p{n}"), json!({}))).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.until("resourcequotas", key, used(PODS)).await;
    let informers = Informers::start(world.client.clone());
    informers.synced().await;
    let mut changes = informers.resource_quotas.subscribe();
    changes.recv().await.expect("the quota as it is");
    for n in 0..PODS {
        world.delete("pods", ("default", &format!("p{n}")), "Background").await;
        // All others get their turns, and no time passes.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    world.until("resourcequotas", key, used(0)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut counts = 0;
    while changes.try_recv().is_ok() {
        counts += 1;
    }
    assert!((1..10).contains(&counts), "counted {counts} times for {PODS} Pods");
}

#[tokio::test(start_paused = true)]
async fn objects_that_own_each_other_go_in_the_foreground() {
    let world = World::new().await;
    world.start();
    let first = world.create("configmaps", "default", map("a")).await;
    let mut second = map("b");
    second["metadata"]["ownerReferences"] = owner(&first);
    let second = world.create("configmaps", "default", second).await;
    let closed = json!({"metadata": {"ownerReferences": owner(&second)}});
    world.ask(Verb::Patch, "configmaps", ("default", "a"), Some(closed)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.delete("configmaps", ("default", "a"), "Foreground").await;
    world.until("configmaps", ("default", "a"), |map| map.is_none()).await;
    world.until("configmaps", ("default", "b"), |map| map.is_none()).await;
}

/// Held by a finalizer, it names an owner of a kind that the tenant may name, with the uid of an object beyond the tenant's reach.
#[tokio::test(start_paused = true)]
async fn who_names_the_uid_of_what_is_not_his_does_not_keep_it() {
    let world = World::new().await;
    world.start();
    let role =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "wide"}});
    let role = world.create("clusterroles", "", role).await;
    let mut held = map("held");
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    held["metadata"]["ownerReferences"] = owner(&role);
    world.create("configmaps", "default", held).await;
    // An object without such an owner is collected, as it would be without the finalizer.
    world.until("configmaps", ("default", "held"), |map| map.is_some_and(Object::is_terminating)).await;
    world.delete("clusterroles", ("", "wide"), "Foreground").await;
    world.until("clusterroles", ("", "wide"), |role| role.is_none()).await;
    world.until("configmaps", ("default", "held"), |map| map.is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_another_namespace_is_told_of() {
    let world = World::new().await;
    world.start();
    world.create("namespaces", "", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})).await;
    let far = world.create("configmaps", "lab", map("far")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut near = map("near");
    near["metadata"]["ownerReferences"] = owner(&far);
    world.create("configmaps", "default", near).await;
    let mut role =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "wide"}});
    role["metadata"]["ownerReferences"] = owner(&far);
    world.create("clusterroles", "", role).await;
    world.until("configmaps", ("default", "near"), |map| map.is_none()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.until("clusterroles", ("", "wide"), |role| role.is_some()).await;
    let events = world.events("default", "OwnerRefInvalidNamespace").await;
    let mut told: Vec<String> = events
        .iter()
        .map(|event| {
            let about = &event.involved_object;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            format!("{} {}: {}", text(&event.type_), text(&about.kind), text(&event.message))
        })
        .collect();
    told.sort();
    told.dedup();
    let message = |namespace: &str| {
        let uid = far.uid();
        format!(
            "ownerRef [v1/ConfigMap, namespace: {namespace}, name: far, uid: {uid}] does not exist in namespace {namespace:?}"
        )
    };
    let expected =
        [format!("Warning ClusterRole: {}", message("")), format!("Warning ConfigMap: {}", message("default"))];
    assert_eq!(told, expected);
}

/// A webhook or a policy may forbid it: the namespace's condition reports that, until it is over.
#[tokio::test(start_paused = true)]
async fn what_keeps_a_namespace_from_being_emptied_is_told() {
    let world = World::new().await;
    world.start();
    let group = "admissionregistration.k8s.io/v1";
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]});
    let policy = json!({"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "keep"},
        "spec": {"matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "oldObject.metadata.name != 'kept'", "message": "it is kept"}]}});
    let binding = json!({"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "keep"},
        "spec": {"policyName": "keep", "validationActions": ["Deny"]}});
    world.create("validatingadmissionpolicies.admissionregistration.k8s.io", "", policy).await;
    world.create("validatingadmissionpolicybindings.admissionregistration.k8s.io", "", binding).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}});
    world.create("namespaces", "", namespace).await;
    world.create("configmaps", "lab", map("kept")).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    world.create("secrets", "lab", secret).await;
    world.delete("namespaces", ("", "lab"), "Background").await;
    let failure = |namespace: Option<&Object>| {
        let conditions = namespace?.0["status"]["conditions"].as_array()?.clone();
        conditions.into_iter().find(|condition| condition["type"] == "NamespaceDeletionContentFailure")
    };
    let why = "Failed to delete all resource types, 1 remaining: configmaps \"kept\" is forbidden: \
               ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: it is kept";
    world
        .until("namespaces", ("", "lab"), |namespace| {
            failure(namespace).is_some_and(|it| {
                it["status"] == "True" && it["reason"] == "ContentDeletionFailed" && it["message"] == why
            })
        })
        .await;
    // The rest is deleted all the same.
    world.until("secrets", ("lab", "s"), |secret| secret.is_none()).await;
    // Held by a finalizer it is being deleted, which no longer counts as a failure.
    let held = json!({"metadata": {"finalizers": ["a.b/c"]}});
    world.ask(Verb::Patch, "configmaps", ("lab", "kept"), Some(held)).await.unwrap();
    let policies = "validatingadmissionpolicies.admissionregistration.k8s.io";
    world.delete(policies, ("", "keep"), "Background").await;
    world
        .until("namespaces", ("", "lab"), |namespace| failure(namespace).is_some_and(|it| it["status"] == "False"))
        .await;
    let free = json!({"metadata": {"finalizers": null}});
    world.ask(Verb::Patch, "configmaps", ("lab", "kept"), Some(free)).await.unwrap();
    world.until("namespaces", ("", "lab"), |namespace| namespace.is_none()).await;
    // Its queue has metrics under upstream's names, with the retries.
    let text = instruments::expose(&Registry::default(), "", Format::Text);
    for series in [
        "workqueue_adds_total",
        "workqueue_depth",
        "workqueue_queue_duration_seconds_count",
        "workqueue_work_duration_seconds_count",
        "workqueue_retries_total",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
    ] {
        let of = format!("{series}{{name=\"namespace-controller\"}} ");
        let figure =
            text.lines().find_map(|line| line.strip_prefix(of.as_str())).unwrap_or_else(|| panic!("{of}: {text}"));
        assert!(figure != "0" || !series.ends_with("_total"), "{of}{figure}");
    }
}

/// Each wants the maximum number of Pods, and there is no node.
#[tokio::test(start_paused = true)]
async fn where_many_pods_wait_for_a_node_more_come_slowly() {
    let world = World::new().await;
    let stop = world.start_with(controllers::Config { crowd: 30, ..controllers::Config::default() });
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let many = 2_000_000_000;
    let selector = json!({"matchLabels": {"a": "b"}});
    let mut of_job = template.clone();
    of_job["spec"]["restartPolicy"] = "Never".into();
    for (resource, kind, api_version, spec) in [
        ("jobs.batch", "Job", "batch/v1", json!({"parallelism": many, "completions": many, "template": of_job})),
        (
            "replicasets.apps",
            "ReplicaSet",
            "apps/v1",
            json!({"replicas": many, "selector": selector, "template": template}),
        ),
        (
            "deployments.apps",
            "Deployment",
            "apps/v1",
            json!({"replicas": many, "selector": selector, "template": template}),
        ),
        (
            "statefulsets.apps",
            "StatefulSet",
            "apps/v1",
            json!({"replicas": many, "serviceName": "s",
            "podManagementPolicy": "Parallel", "selector": selector, "template": template}),
        ),
    ] {
        let namespace = kind.to_lowercase();
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        world.create("namespaces", "", made).await;
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec});
        world.create(resource, &namespace, object).await;
    }
    let count = async || {
        let mut counts = Vec::new();
        for namespace in ["job", "replicaset", "deployment", "statefulset"] {
            let request = Request {
                verb: Verb::List,
                resource: "pods".into(),
                namespace: Some(namespace.into()),
                user: User::system("test"),
                ..Request::default()
            };
            match world.server.handle(request).await.unwrap().body {
                Body::List(list) => counts.push(list.items.len()),
                other => panic!("{other:?}"),
            }
        }
        counts
    };
    tokio::time::sleep(Duration::from_secs(10)).await;
    let first = count().await;
    assert!(first.iter().all(|pods| (50..=110).contains(pods)), "{first:?}");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let then = count().await;
    for (first, then) in first.iter().zip(&then) {
        assert!((50..=130).contains(&(then - first)), "{first} and then {then}: they go on, at their pace");
    }
    stop.cancel();
}
