//! Statuses, conditions and reasons.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use podwright::node::{
    pod::{Busy, Container, Failure, Intent, SandboxState, Stop},
    qos,
    restore_status::recall,
    status::{Host, status},
};
use serde_json::{Value, json};

use super::{Known, Part, at, ended, pod, running};
use crate::work::grows_with_its_lists;

fn of(pod: &Pod, known: &Known) -> PodStatus {
    status(pod, known.inputs(), &Host { addresses: vec!["192.0.2.1".parse().unwrap()] }, at(9))
}

fn seen<C: Clone + Into<Part>>(containers: &[(&str, C)]) -> Known {
    Known::with(containers)
}

fn stopped(containers: &[(&str, Container)]) -> Known {
    let stop = Stop { deadline: at(9), grace: 0, failure: None, remove: false, disruption: false };
    let mut known = seen(containers);
    known.intent = Intent::Stop(stop);
    known.seen.sandbox.state = SandboxState::Stopped;
    known
}

#[test]
fn phases() {
    let with = |policy: &str| {
        let containers = json!([{ "name": "a", "image": "i:1" }, { "name": "b", "image": "i:1" }]);
        pod(json!({ "restartPolicy": policy, "containers": containers }))
    };
    let cases: &[(&str, &str, Known)] = &[
        ("Pending", "Always", Known::default()),
        ("Pending", "Always", seen(&[("a", running())])),
        ("Running", "Always", seen(&[("a", running()), ("b", running())])),
        ("Running", "Always", seen(&[("a", ended(1)), ("b", ended(1))])),
        ("Running", "OnFailure", seen(&[("a", ended(0)), ("b", running())])),
        ("Running", "OnFailure", seen(&[("a", ended(0)), ("b", ended(1))])),
        ("Succeeded", "OnFailure", seen(&[("a", ended(0)), ("b", ended(0))])),
        ("Failed", "Never", seen(&[("a", ended(0)), ("b", ended(1))])),
        ("Failed", "Always", stopped(&[("a", ended(0)), ("b", ended(137))])),
        ("Succeeded", "Always", stopped(&[("a", ended(0)), ("b", ended(0))])),
    ];
    for (expected, policy, seen) in cases {
        assert_eq!(of(&with(policy), seen).phase.as_deref(), Some(*expected), "{policy} {seen:?}");
    }
}

#[test]
fn a_terminal_phase_stays() {
    let mut pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    pod.status = Some(PodStatus { phase: Some("Succeeded".into()), ..PodStatus::default() });
    assert_eq!(of(&pod, &seen(&[("a", running())])).phase.as_deref(), Some("Succeeded"));
}

fn condition(status: &PodStatus, kind: &str) -> Value {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == kind).expect(kind);
    json!([found.status, found.reason, found.message])
}

#[test]
fn conditions_are_worded_as_upstream() {
    let spec = json!({
        "readinessGates": [{ "conditionType": "x/gate" }],
        "initContainers": [{ "name": "i", "image": "i:1" }],
        "containers": [{ "name": "a", "image": "i:1" }, { "name": "b", "image": "i:1" }] });
    let mut pod = pod(spec);
    let early = of(&pod, &super::ready());
    let words = json!(["False", "ContainersNotInitialized", "containers with incomplete status: [i]"]);
    assert_eq!(condition(&early, "Initialized"), words);
    let words = json!(["False", "ContainersNotReady", "containers with unready status: [a b]"]);
    assert_eq!(condition(&early, "ContainersReady"), words);
    assert_eq!(condition(&early, "Ready"), words);
    assert_eq!(condition(&early, "PodReadyToStartContainers"), json!(["True", null, null]));
    assert_eq!(condition(&early, "PodScheduled"), json!(["True", null, null]));

    let all = seen(&[("i", ended(0)), ("a", running()), ("b", running())]);
    let gated = of(&pod, &all);
    assert_eq!(condition(&gated, "Initialized"), json!(["True", null, null]));
    assert_eq!(condition(&gated, "ContainersReady"), json!(["True", null, null]));
    let words = "corresponding condition of pod readiness gate \"x/gate\" does not exist.";
    assert_eq!(condition(&gated, "Ready"), json!(["False", "ReadinessGatesNotReady", words]));

    // Another owner's condition stays, and opens the gate; the time of transition is the old one's where nothing turned.
    let mut status = gated;
    let mut conditions = status.conditions.take().unwrap();
    conditions.push(serde_json::from_value(json!({ "type": "x/gate", "status": "True" })).unwrap());
    status.conditions = Some(conditions);
    pod.status = Some(status);
    let host = Host::default();
    let later = podwright::node::status::status(&pod, all.inputs(), &host, at(100));
    assert_eq!(condition(&later, "Ready"), json!(["True", null, null]));
    assert_eq!(condition(&later, "x/gate"), json!(["True", null, null]));
    let since = |kind: &str| {
        let found = later.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap();
        found.last_transition_time.clone().unwrap().0
    };
    assert_eq!((since("Initialized"), since("Ready")), (at(9), at(100)));
}

#[test]
fn container_states() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    let state = |seen: &Known| {
        let status = of(&pod, seen);
        let a = status.container_statuses.unwrap().remove(0);
        let value = serde_json::to_value(&a).unwrap();
        let one = |state: &Value| {
            let (kind, body) = state.as_object().unwrap().iter().next().map(|(k, v)| (k.clone(), v.clone()))?;
            Some(format!("{kind} {}", body["reason"].as_str().unwrap_or_default()).trim().to_owned())
        };
        (one(&value["state"]), one(&value["lastState"]), a.ready, a.restart_count)
    };
    let is = |s: &str| Some(s.to_owned());
    assert_eq!(state(&super::ready()), (is("waiting ContainerCreating"), None, false, 0));
    assert_eq!(state(&seen(&[("a", running())])), (is("running"), None, true, 0));
    assert_eq!(state(&seen(&[("a", ended(0))])), (is("terminated Completed"), None, false, 0));
    let looping = Part::from(ended(1)).waiting("CrashLoopBackOff", "back-off");
    assert_eq!(state(&seen(&[("a", looping)])), (is("waiting CrashLoopBackOff"), is("terminated Error"), false, 0));
    let mut again = running();
    again.attempt.as_mut().unwrap().restart = 1;
    again.last = ended(1).attempt;
    assert_eq!(state(&seen(&[("a", again)])), (is("running"), is("terminated Error"), true, 1));
    let pulling = Part::default().busy(Busy::Pulling).waiting("ErrImagePull", "");
    assert_eq!(state(&seen(&[("a", pulling)])).0, is("waiting ErrImagePull"));
    assert_eq!(state(&stopped(&[])).0, is("terminated ContainerStatusUnknown"));
}

#[test]
fn what_an_init_container_kept_from_running_still_waits() {
    let one = |name: &str| json!({ "name": name, "image": "i:1" });
    let pod = pod(json!({ "initContainers": [one("i"), one("j"), one("k")], "containers": [one("a")] }));
    let reasons = |seen: &Known| -> Vec<String> {
        let status = of(&pod, seen);
        let all = status.init_container_statuses.into_iter().chain(status.container_statuses).flatten();
        let state = |c| serde_json::to_value(&c).unwrap()["state"].clone();
        all.map(state)
            .map(|s| s.as_object().unwrap().values().next().unwrap()["reason"].as_str().unwrap().to_owned())
            .collect()
    };
    let (lost, waits) = ("ContainerStatusUnknown", "PodInitializing");
    assert_eq!(reasons(&stopped(&[("i", ended(0)), ("j", ended(1))])), ["Completed", "Error", waits, waits]);
    // What comes before one that ran has been lost; so has what comes after all of them.
    let all = [("j", ended(0)), ("k", ended(0))];
    assert_eq!(reasons(&stopped(&all)), [lost, "Completed", "Completed", lost]);
}

#[test]
fn a_pod_that_failed_as_a_whole_says_why() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    let mut seen = stopped(&[]);
    let Intent::Stop(stop) = &mut seen.intent else { panic!() };
    stop.failure = Some(Failure { reason: "OutOfcpu".into(), message: "too little".into() });
    let status = of(&pod, &seen);
    let told = (status.phase.as_deref(), status.reason.as_deref(), status.message.as_deref());
    assert_eq!(told, (Some("Failed"), Some("OutOfcpu"), Some("too little")));
}

#[test]
fn termination_messages_are_limited() {
    let containers: Vec<Value> = (0..4).map(|n| json!({ "name": format!("c{n}"), "image": "i:1" })).collect();
    let pod = pod(json!({ "restartPolicy": "Never", "containers": containers }));
    let mut long = ended(1);
    long.attempt.as_mut().unwrap().exit.as_mut().unwrap().message = Some("ä".repeat(4000));
    let names = ["c0", "c1", "c2", "c3"];
    let seen = seen(&names.map(|n| (n, long.clone())));
    let status = of(&pod, &seen);
    let lengths: Vec<usize> = status
        .container_statuses
        .unwrap()
        .iter()
        .map(|c| c.state.as_ref().unwrap().terminated.as_ref().unwrap().message.as_ref().unwrap().len())
        .collect();
    assert_eq!(lengths, [3072; 4]);
}

#[test]
fn qos_classes_and_what_follows() {
    let with = |resources: Value| pod(json!({ "containers": [{ "name": "a", "resources": resources }] }));
    let both = json!({ "cpu": "1", "memory": "1Gi" });
    for (resources, class, oom) in [
        (json!({}), "BestEffort", 1000),
        (json!({ "limits": both }), "Guaranteed", -997),
        (json!({ "limits": both, "requests": both }), "Guaranteed", -997),
        (json!({ "limits": both, "requests": { "cpu": "500m", "memory": "1Gi" } }), "Burstable", 875),
        (json!({ "requests": { "memory": "4Gi" } }), "Burstable", 500),
        (json!({ "requests": { "cpu": "1" } }), "Burstable", 999),
        (json!({ "limits": { "cpu": "1" } }), "Burstable", 999),
    ] {
        let pod = with(resources);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let got = (qos::class(&pod).as_str(), qos::oom_score_adj(&pod, container, 8 << 30));
        assert_eq!(got, (class, oom), "{container:?}");
    }
    // What the Pod as a whole names stands above its containers, and what names nothing does not; server and node say the same.
    for (whole, class) in [
        (json!({}), "Burstable"),
        (json!({ "requests": {} }), "Burstable"),
        (json!({ "requests": {}, "limits": {} }), "Burstable"),
        (json!({ "limits": { "hugepages-2Mi": "2Mi" } }), "Burstable"),
        (json!({ "limits": both }), "Guaranteed"),
        (json!({ "requests": { "memory": "1Gi" } }), "Burstable"),
    ] {
        let containers = json!([{ "name": "a", "resources": { "requests": { "memory": "60Mi" } } }]);
        let spec = json!({ "containers": containers, "resources": whole });
        let server = podwright::api::pod::qos_class(&spec);
        assert_eq!((server, qos::class(&pod(spec.clone())).as_str()), (class, class), "{spec}");
    }
    assert_eq!([0, 100, 1000, 256_000].map(qos::cpu_weight), [1, 4, 39, 10_000]);
    assert_eq!([0, 1, 500].map(qos::cpu_quota), [None, Some(1000), Some(50_000)]);
}

#[test]
fn an_ephemeral_container_has_a_state_and_decides_nothing() {
    let pod = pod(json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "i:1" }],
        "ephemeralContainers": [{ "name": "d", "image": "i:1" }] }));
    let one = |container: Container| {
        let status = of(&pod, &seen(&[("a", running()), ("d", container)]));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(condition(&status, "Ready")[0], "True");
        let list = status.ephemeral_container_statuses.unwrap();
        assert_eq!((list.len(), list[0].ready, list[0].started), (1, false, None));
        serde_json::to_value(list[0].state.as_ref().unwrap()).unwrap()
    };
    assert_eq!(one(Container::default())["waiting"]["reason"], "ContainerCreating");
    assert!(one(running())["running"]["startedAt"].is_string());
    assert_eq!(one(ended(3))["terminated"]["exitCode"], 3);
}

#[test]
fn the_status_of_a_pod_takes_as_much_work_as_it_has_containers() {
    let one = |name: String| json!({ "name": name, "image": "i:1" });
    let with = |n: usize| {
        let many = |list: &str| (0..n).map(|i| one(format!("{list}{i}"))).collect::<Vec<_>>();
        pod(json!({ "initContainers": many("i"), "containers": many("c"), "activeDeadlineSeconds": 4 }))
    };
    let (few, many) = (with(500), with(8000));
    let cases = [("runs", super::ready()), ("has ended", stopped(&[])), ("a part of it", stopped(&[("i3", ended(0))]))];
    for (what, seen) in &cases {
        grows_with_its_lists(what, &few, &many, |pod| of(pod, seen));
    }
    let waits = |pod: &Pod| Pod { status: Some(of(pod, &stopped(&[]))), ..pod.clone() };
    grows_with_its_lists("remembered", &waits(&few), &waits(&many), |pod| recall(pod, at(9)));
}
