//! In-place resize: what is allocated, what is planned, and in which order cgroups are written.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use podwright::node::{
    admission::Allocatable,
    plan::{Action, plan},
    pod::{Busy, Container, ResizeProgress, Step},
    resize::{self, Allocation, Change, Of, Pending, judge, overdrawn, precedence, writes},
    spec::PodExt,
    status::{Host, status},
};
use podwright_runtime::Resources;
use serde_json::{Value, json};

use super::{Known, Part, at, ended, pod, ready, running};

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
fn seen(cpu: &str, memory: &str) -> Known {
    let mut seen = ready();
    for name in ["a", "b"] {
        seen.put(name, with(running(), resources(cpu, memory)));
    }
    seen.progress.resize.progress = Some(ResizeProgress { generation: Some(2), ..ResizeProgress::default() });
    seen
}

/// The step that the resize has come to.
fn step(seen: &mut Known, step: Step) {
    seen.progress.resize.progress.as_mut().unwrap().step = step;
}

fn short(pod: &Pod, seen: &Known) -> Vec<String> {
    let words = |action: &Action| match action {
        Action::Stop(stop) => format!("stop {}{}: {}", stop.container, if stop.renew { " anew" } else { "" }, stop.why),
        Action::Resize(names) => format!("resize {}", names.join(" ")),
        Action::Start(name) => format!("start {name}"),
        Action::Pull(name) => format!("pull {name}"),
        other => format!("{other:?}"),
    };
    plan(pod, seen.inputs(), at(9)).actions.iter().map(words).collect()
}

#[test]
fn what_restarts_stops_first_and_starts_last() {
    let nothing = Vec::<String>::new();
    let bigger = pod(two("2", "2Mi"));
    let mut seen = seen("1", "1Mi");
    assert_eq!(short(&bigger, &seen), ["stop b anew: Container b resize requires restart"]);
    let stopping = Busy::Stopping { deadline: at(39) };
    (seen.progress("b").busy, seen.progress("b").renewing) = (stopping, true);
    assert_eq!(short(&bigger, &seen), nothing, "the others wait until it has stopped");
    // It ends well, and is started anew all the same, with no back-off.
    seen.put("b", Part::from(with(ended(0), resources("1", "1Mi"))).renewing().backed_off(4));
    assert_eq!(short(&bigger, &seen), ["resize a"], "no start before what is allocated is written");
    seen.progress.resize.busy = true;
    step(&mut seen, Step::Doing { tries: 0 });
    assert_eq!(short(&bigger, &seen), nothing);
    seen.progress.resize.busy = false;
    step(&mut seen, Step::Done);
    seen.seen("a").attempt.as_mut().unwrap().resources = Some(resources("2", "2Mi"));
    assert_eq!(short(&bigger, &seen), ["start b"]);
    seen.put("b", with(running(), resources("2000m", "2048Ki")));
    assert_eq!(short(&bigger, &seen), ["Resized"]);
    seen.progress.resize.progress = None;
    assert_eq!(short(&bigger, &seen), nothing);
}

/// A container that was to be restarted, and has not ended, goes on when nothing requires the restart any more.
#[test]
fn what_was_to_start_anew_is_kept_when_its_resize_is_taken_back() {
    let mut seen = seen("1", "1Mi");
    seen.progress("b").renewing = true;
    assert_eq!(short(&pod(two("1", "2Mi")), &seen), ["stop b anew: Container b resize requires restart"]);
    let same = pod(two("1", "1Mi"));
    assert_eq!(short(&same, &seen)[0], "Keep(\"b\")");
    seen.progress("b").busy = Busy::Stopping { deadline: at(39) };
    assert_eq!(short(&same, &seen), Vec::<String>::new(), "it has been told to end");
}

#[test]
fn a_resize_is_planned_where_it_can_be_done() {
    let more_cpu = pod(two("2", "1Mi"));
    let mut seen = seen("1", "1Mi");
    assert_eq!(short(&more_cpu, &seen), ["resize a b"], "a change of CPU alone restarts nothing");
    step(&mut seen, Step::Failed { tries: 1, retry_at: at(20) });
    assert_eq!(short(&more_cpu, &seen), Vec::<String>::new());
    assert_eq!(plan(&more_cpu, seen.inputs(), at(9)).wake, Some(at(20)));
    step(&mut seen, Step::Failed { tries: 1, retry_at: at(9) });
    assert_eq!(short(&more_cpu, &seen), ["resize a b"]);
    seen.progress("a").busy = Busy::Starting;
    assert_eq!(short(&more_cpu, &seen), Vec::<String>::new(), "it starts with what was allocated before, perhaps");
    // What nobody knows is not changed; the Pod's own cgroup is, once.
    seen.progress("a").busy = Busy::Idle;
    step(&mut seen, Step::Undone);
    for name in ["a", "b"] {
        seen.seen(name).attempt.as_mut().unwrap().resources = None;
    }
    assert_eq!(short(&more_cpu, &seen), ["resize "]);
    step(&mut seen, Step::Done);
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
    let node = Allocatable { cpu_millis: 4000, memory: 1 << 30, storage: 0, pods: 2, descriptors: 1024 };
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
    seen.put("b", with(ended(1), resources("1", "1Mi")));
    seen.progress.resize.pending =
        Some(Pending { reason: "Deferred".into(), message: "no room".into(), generation: Some(3) });
    let tell = |seen: &Known, pod: &Pod, now: i64| {
        serde_json::to_value(status(pod, seen.inputs(), &Host::default(), at(now))).unwrap()
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
    seen.progress.resize.pending = None;
    seen.progress.resize.progress.as_mut().unwrap().error = Some("too little".into());
    (progress["reason"], progress["message"]) = ("Error".into(), "too little".into());
    assert_eq!(conditions(&tell(&seen, &known, 20)), [progress]);
    seen.progress.resize.progress = None;
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
