//! In-place resize: what is allocated, what is planned, in which order cgroups are written, and a hollow node that does it.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Event, Pod, ResourceRequirements};
use podwright::{
    api::{Request, Verb, request::PatchType},
    node::{
        admission::Allocatable,
        observed::{Busy, Container, Observed, Step},
        plan::{Action, plan},
        resize::{self, Allocation, Change, Of, Pending, Progress, judge, overdrawn, precedence, writes},
        spec::PodExt,
        status::{Host, status},
    },
};
use podwright_runtime::Resources;
use serde_json::{Value, json};

use super::{at, ended, hollow, pod, ready, running};
use hollow::{Cluster, spec, until};

fn resources(cpu: &str, memory: &str) -> ResourceRequirements {
    let amounts = json!({ "cpu": cpu, "memory": memory });
    serde_json::from_value(json!({ "requests": amounts, "limits": amounts })).unwrap()
}

/// The container `a` that is resized in place, and `b` that is restarted for memory.
fn two(cpu: &str, memory: &str) -> Value {
    let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    json!({ "restartPolicy": "OnFailure", "containers": [
        { "name": "a", "image": "i:1", "resources": resources(cpu, memory) },
        { "name": "b", "image": "i:1", "resources": resources(cpu, memory), "resizePolicy": policy },
    ] })
}

fn with(container: Container, resources: ResourceRequirements) -> Container {
    let mut container = container;
    container.attempt.as_mut().unwrap().resources = Some(resources);
    container
}

/// Both run with these resources, and a resize is under way.
fn seen(cpu: &str, memory: &str) -> Observed {
    let mut seen = ready();
    for name in ["a", "b"] {
        seen.containers.insert(name.to_owned(), with(running(), resources(cpu, memory)));
    }
    seen.resize.progress = Some(Progress { generation: Some(2), ..Progress::default() });
    seen
}

fn short(pod: &Pod, seen: &Observed) -> Vec<String> {
    let words = |action: &Action| match action {
        Action::Stop(stop) => format!("stop {}{}: {}", stop.container, if stop.renew { " anew" } else { "" }, stop.why),
        Action::Resize(names) => format!("resize {}", names.join(" ")),
        Action::Start(name) => format!("start {name}"),
        Action::Pull(name) => format!("pull {name}"),
        other => format!("{other:?}"),
    };
    plan(pod, seen, at(9)).actions.iter().map(words).collect()
}

#[test]
fn what_restarts_stops_first_and_starts_last() {
    let nothing = Vec::<String>::new();
    let bigger = pod(two("2", "2Mi"));
    let mut seen = seen("1", "1Mi");
    assert_eq!(short(&bigger, &seen), ["stop b anew: Container b resize requires restart"]);
    let stopping = Busy::Stopping { deadline: at(39) };
    (seen.container_mut("b").busy, seen.container_mut("b").renewing) = (stopping, true);
    assert_eq!(short(&bigger, &seen), nothing, "the others wait until it has stopped");
    // It ends well, and is started anew all the same, with no back-off.
    *seen.container_mut("b") = Container { renewing: true, ..with(ended(0), resources("1", "1Mi")) };
    seen.container_mut("b").backoff.raise(at(4), at(4));
    assert_eq!(short(&bigger, &seen), ["resize a"], "no start before what is allocated is written");
    seen.resize.busy = true;
    seen.resize.progress.as_mut().unwrap().step = Step::Doing;
    assert_eq!(short(&bigger, &seen), nothing);
    seen.resize.busy = false;
    seen.resize.progress.as_mut().unwrap().step = Step::Done;
    seen.container_mut("a").attempt.as_mut().unwrap().resources = Some(resources("2", "2Mi"));
    assert_eq!(short(&bigger, &seen), ["start b"]);
    *seen.container_mut("b") = with(running(), resources("2000m", "2048Ki"));
    assert_eq!(short(&bigger, &seen), ["Resized"]);
    seen.resize.progress = None;
    assert_eq!(short(&bigger, &seen), nothing);
}

#[test]
fn a_resize_is_planned_where_it_can_be_done() {
    let more_cpu = pod(two("2", "1Mi"));
    let mut seen = seen("1", "1Mi");
    assert_eq!(short(&more_cpu, &seen), ["resize a b"], "a change of CPU alone restarts nothing");
    seen.resize.progress.as_mut().unwrap().step = Step::Failed { tries: 1, retry_at: at(20) };
    assert_eq!(short(&more_cpu, &seen), Vec::<String>::new());
    assert_eq!(plan(&more_cpu, &seen, at(9)).wake, Some(at(20)));
    seen.resize.progress.as_mut().unwrap().step = Step::Failed { tries: 1, retry_at: at(9) };
    assert_eq!(short(&more_cpu, &seen), ["resize a b"]);
    seen.container_mut("a").busy = Busy::Starting;
    assert_eq!(short(&more_cpu, &seen), Vec::<String>::new(), "it starts with what was allocated before, perhaps");
    // What nobody knows is not changed; the Pod's own cgroup is, once.
    seen.container_mut("a").busy = Busy::Idle;
    seen.resize.progress.as_mut().unwrap().step = Step::Undone;
    for name in ["a", "b"] {
        seen.container_mut(name).attempt.as_mut().unwrap().resources = None;
    }
    assert_eq!(short(&more_cpu, &seen), ["resize "]);
    seen.resize.progress.as_mut().unwrap().step = Step::Done;
    assert_eq!(short(&more_cpu, &seen), ["Resized"]);
}

/// CPU weight, CPU quota, memory; 0: none.
fn settings((weight, quota, memory): (u64, u64, u64)) -> Resources {
    let some = |n: u64| Some(n).filter(|n| *n > 0);
    Resources { cpu_weight: Some(weight), cpu_quota_us: some(quota), memory_max: some(memory), ..Resources::default() }
}

#[test]
fn parents_grow_first_and_shrink_last() {
    type Set = (u64, u64, u64);
    let order = |own: (Set, Set), containers: &[(Set, Set)]| -> Vec<String> {
        let change = |(now, new): (Set, Set)| Change { now: settings(now), new: settings(new) };
        let named = containers.iter().enumerate().map(|(i, c)| (format!("c{i}"), change(*c)));
        let all = writes(&change(own), &named.collect::<Vec<_>>());
        let words = |w: &resize::Write| {
            let r = &w.resources;
            let set = [("w", r.cpu_weight), ("q", r.cpu_quota_us), ("m", r.memory_max)];
            let set: String = set.iter().filter_map(|(name, n)| n.map(|n| format!(" {name}{n}"))).collect();
            format!("{}{set}", w.container.as_deref().unwrap_or("pod"))
        };
        all.iter().map(words).collect()
    };
    let none = Vec::<String>::new();
    assert_eq!(order(((1, 1, 1), (1, 1, 1)), &[((1, 1, 1), (1, 1, 1))]), none);
    let up = order(((1, 10, 100), (2, 20, 200)), &[((1, 10, 100), (2, 20, 200))]);
    assert_eq!(up, ["pod m200", "c0 m200", "pod q20", "pod w2", "c0 w2 q20"]);
    let down = order(((2, 20, 200), (1, 10, 100)), &[((2, 20, 200), (1, 10, 100))]);
    assert_eq!(down, ["c0 m100", "pod m100", "c0 w1 q10", "pod w1", "pod q10"]);
    let both = order(((3, 30, 300), (3, 30, 400)), &[((1, 20, 100), (2, 25, 300)), ((2, 10, 200), (1, 5, 100))]);
    assert_eq!(both, ["pod m400", "c1 m100", "c0 m300", "c1 w1 q5", "c0 w2 q25"]);
    // A limit that was not there is the first time that there is less.
    let limited = order(((1, 0, 0), (1, 10, 100)), &[((1, 0, 0), (1, 10, 100))]);
    assert_eq!(limited, ["c0 m100", "pod m100", "c0 w1 q10", "pod q10"]);
    let request = order(((2, 0, 0), (1, 0, 0)), &[((1, 0, 0), (2, 0, 0)), ((3, 0, 0), (1, 0, 0))]);
    assert_eq!(request, ["c1 w1", "c0 w2", "pod w1"]);
}

#[test]
fn no_memory_limit_falls_below_what_is_used() {
    let change = |now: u64, new: u64| Change { now: settings((1, 0, now)), new: settings((1, 0, new)) };
    let (same, less, limited) = (change(100, 100), change(100, 50), change(0, 50));
    assert_eq!(overdrawn((&same, Some(90)), &[("a", &less, Some(49)), ("b", &same, Some(100))]), None);
    assert_eq!(overdrawn((&less, None), &[("a", &less, None)]), None, "where nothing limits memory");
    assert_eq!(
        overdrawn((&same, Some(90)), &[("a", &limited, Some(50))]).unwrap(),
        "cannot decrease memory limits: attempting to set container \"a\" memory limit (50) below current usage (50)"
    );
    assert_eq!(
        overdrawn((&less, Some(90)), &[("a", &less, Some(60))]).unwrap(),
        "cannot decrease memory limits: [attempting to set pod memory limit (50) below current usage (90), attempting \
         to set container \"a\" memory limit (50) below current usage (60)]"
    );
}

fn asking(name: &str, cpu: &str, memory: &str) -> Pod {
    let requests = json!({ "requests": { "cpu": cpu, "memory": memory } });
    let mut pod = pod(json!({ "containers": [{ "name": "c", "image": "i", "resources": requests }] }));
    (pod.metadata.name, pod.metadata.uid) = (Some(name.into()), Some(name.into()));
    pod.metadata.generation = Some(3);
    pod
}

#[test]
fn a_wish_fits_or_waits_or_never_fits() {
    let node = Allocatable { cpu_millis: 4000, memory: 1 << 30, storage: 0, pods: 2 };
    let other = [Arc::new(asking("other", "3", "1Mi"))];
    let verdict = |cpu: &str, memory: &str| judge(&asking("p", cpu, memory), &other, &node);
    assert_eq!(verdict("1", "1Mi"), Ok(()));
    let refused = |reason: &str, message: &str| {
        Err(Pending { reason: reason.into(), message: message.into(), generation: Some(3) })
    };
    let why = "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000";
    assert_eq!(verdict("2", "1Mi"), refused("Deferred", why));
    let why = "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000";
    assert_eq!(verdict("5", "1Mi"), refused("Infeasible", why));
    let why = "Node didn't have enough capacity: memory, requested: 2147483648, capacity: 1073741824";
    assert_eq!(verdict("5", "2Gi"), refused("Infeasible", why));
    let mut fixed = asking("p", "1", "1Mi");
    fixed.metadata.annotations = Some([("kubernetes.io/config.source".into(), "file".into())].into());
    let why = "In-place resize of static-pods is not supported";
    assert_eq!(judge(&fixed, &other, &node), refused("Infeasible", why));
}

#[test]
fn who_is_granted_first() {
    let small = asking("small", "1", "1Mi");
    let wish = |name: &str, cpu: &str, priority: i32, limited: bool, since: Option<i64>| {
        let mut pod = asking(name, cpu, "1Mi");
        let spec = pod.spec.as_mut().unwrap();
        spec.priority = Some(priority);
        if limited {
            let resources = spec.containers[0].resources.as_mut().unwrap();
            resources.limits = resources.requests.clone();
        }
        let status = since.map(|since| {
            json!({ "conditions": [{ "type": "PodResizePending", "status": "True",
            "lastTransitionTime": at(since).to_string() }] })
        });
        pod.status = status.map(|status| serde_json::from_value(status).unwrap());
        pod
    };
    let mut all = [
        wish("new", "2", 0, false, None),
        wish("late", "2", 0, false, Some(5)),
        wish("early", "2", 0, false, Some(1)),
        wish("certain", "2", 0, true, Some(9)),
        wish("high", "2", 7, false, Some(9)),
        wish("less", "500m", 0, false, Some(9)),
    ];
    all.sort_by_cached_key(|pod| precedence(pod, &small));
    assert_eq!(all.each_ref().map(|pod| pod.name()), ["less", "high", "certain", "early", "late", "new"]);
}

#[test]
fn what_is_allocated_stands_for_the_wish() {
    let (old, new) = (pod(two("1", "1Mi")), Arc::new(pod(two("2", "2Mi"))));
    let allocated = Allocation::of(&old);
    assert!(
        allocated.satisfies(&old) && allocated.satisfies(&pod(two("1000m", "1024Ki"))) && !allocated.satisfies(&new)
    );
    assert_eq!(allocated.overlay(new.clone()).spec, old.spec);
    let same = Allocation::of(&new).overlay(new.clone());
    assert!(Arc::ptr_eq(&same, &new));
    // A node that has lost all goes by what it told last.
    let mut told = (*new).clone();
    let given = resources("1", "1Mi");
    let one = |name: &str| {
        json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "resources": given, "allocatedResources": given.requests })
    };
    told.status = serde_json::from_value(json!({ "containerStatuses": [one("a"), one("b")] })).unwrap();
    assert_eq!(Allocation::recalled(&told), allocated);
    assert_eq!(Allocation::recalled(&new), Allocation::of(&new));
}

#[test]
fn limits_are_recalled_with_the_requests_that_they_came_with() {
    let wish = pod(two("3", "3Mi"));
    // What was allocated to `a` and to `b`, and what each of them had, when the node lost all: `(requests, had)` by number.
    let recalled = |a: (&str, &str), b: (&str, &str)| {
        let sizes = |n: &str| resources(n, &format!("{n}Mi"));
        let one = |name: &str, (requests, had): (&str, &str)| {
            json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": sizes(had), "allocatedResources": sizes(requests).requests })
        };
        let mut told = wish.clone();
        told.status = serde_json::from_value(json!({ "containerStatuses": [one("a", a), one("b", b)] })).unwrap();
        Allocation::recalled(&told)
    };
    let all = |n: &str| Allocation::of(&pod(two(n, &format!("{n}Mi"))));
    // The wish was granted, and only a part of it had come to the containers.
    assert_eq!(recalled(("3", "2"), ("3", "3")), all("3"));
    // It was not, and another one was under way: of that one the limits are not known.
    assert_eq!(recalled(("2", "1"), ("2", "1")), all("1"));
    assert_eq!(recalled(("2", "2"), ("2", "2")), all("2"));
    // A wish is granted as a whole, so not for `b` alone, whose requests are those of the wish by chance.
    assert_eq!(recalled(("2", "2"), ("3", "2")).overlay(Arc::new(wish.clone())).spec, pod(two("2", "2Mi")).spec);
}

#[test]
fn the_status_tells_what_is_allocated_and_what_runs() {
    let pod = pod(two("2", "2Mi"));
    let mut seen = seen("1", "1Mi");
    *seen.container_mut("b") = with(ended(1), resources("1", "1Mi"));
    seen.resize.pending = Some(Pending { reason: "Deferred".into(), message: "no room".into(), generation: Some(3) });
    let tell = |seen: &Observed, pod: &Pod, now: i64| {
        serde_json::to_value(status(pod, seen, &Host::default(), at(now))).unwrap()
    };
    let told = tell(&seen, &pod, 9);
    let of = |i: usize, field: &str| told["containerStatuses"][i][field].clone();
    let (old, new) = (json!(resources("1", "1Mi")), json!(resources("2", "2Mi")));
    assert_eq!([of(0, "resources"), of(0, "allocatedResources")], [old.clone(), new["requests"].clone()]);
    assert_eq!([of(1, "resources"), of(1, "allocatedResources")], [new.clone(), new["requests"].clone()]);
    let conditions = |told: &Value| -> Vec<Value> {
        let all = told["conditions"].as_array().unwrap().iter();
        all.filter(|c| c["type"].as_str().unwrap().contains("Resize")).cloned().collect()
    };
    let condition = |kind: &str, generation: i64| {
        json!({ "type": kind, "status": "True", "observedGeneration": generation,
            "lastTransitionTime": at(9).to_string() })
    };
    let mut pending = condition("PodResizePending", 3);
    (pending["reason"], pending["message"]) = ("Deferred".into(), "no room".into());
    let mut progress = condition("PodResizeInProgress", 2);
    assert_eq!(conditions(&told), [pending, progress.clone()]);
    // Its time stays while it stays; and it goes.
    let mut known = pod.clone();
    known.status = serde_json::from_value(told).unwrap();
    seen.resize.pending = None;
    seen.resize.progress.as_mut().unwrap().error = Some("too little".into());
    (progress["reason"], progress["message"]) = ("Error".into(), "too little".into());
    assert_eq!(conditions(&tell(&seen, &known, 20)), [progress]);
    seen.resize.progress = None;
    assert!(conditions(&tell(&seen, &known, 20)).is_empty());
}

#[test]
fn events_tell_the_resources_as_upstream_does() {
    let amounts = "{\"limits\":{\"cpu\":\"1\",\"memory\":\"1Mi\"},\"requests\":{\"cpu\":\"1\",\"memory\":\"1Mi\"}}";
    let containers = format!("[{{\"name\":\"a\",\"resources\":{amounts}}},{{\"name\":\"b\",\"resources\":{amounts}}}]");
    let pod = pod(two("1", "1Mi"));
    let completed = resize::message("completed", &pod, Some(4), None);
    assert_eq!(completed, format!("Pod resize completed: {{\"containers\":{containers},\"generation\":4}}"));
    let error = resize::message("Deferred", &pod, Some(4), Some("no room"));
    let rest = "\"generation\":4,\"error\":\"no room\"";
    assert_eq!(error, format!("Pod resize Deferred: {{\"containers\":{containers},{rest}}}"));
    assert_eq!(resize::written(&resources("1", "1Mi"), &resources("2", "2Mi"), Of::Memory), resources("1", "2Mi"));
}

impl Cluster {
    async fn resize(&self, name: &str, resources: Value) {
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
