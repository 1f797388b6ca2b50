//! What to do next, state by state.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podwright::node::{
    backoff::{Backoff, FIRST, LONGEST},
    executor::{ActionError, Reason},
    plan::{self, Action, PodActions, ended as is_over},
    pod::{
        Busy, Container, Failure, Inputs, Intent, SandboxState, Step, Stop, Unhealthy,
        start::{self, order},
    },
    spec::PodExt,
};
use serde_json::json;

use super::{Known, Part, at, ended, image, pod, running};

/// The actions in short.
fn short(plan: &PodActions) -> Vec<String> {
    let words = |action: &Action| match action {
        Action::Pull(name) => format!("pull {name}"),
        Action::Start(name) => format!("start {name}"),
        Action::Stop(stop) => format!("stop {} at {}", stop.container, stop.deadline.as_second() - 1_000_000),
        Action::BackOff { container, .. } => format!("back off {container}"),
        Action::Fail(failure) => format!("fail {}", failure.reason),
        other => format!("{other:?}"),
    };
    plan.actions.iter().map(words).collect()
}

fn seen<C: Clone + Into<Part>>(containers: &[(&str, C)]) -> Known {
    Known::with(containers)
}

/// The plan for a Pod that is to run.
fn plan(pod: &Pod, seen: &Known, now: Timestamp) -> PodActions {
    ending(pod, &Intent::Run, seen, now)
}

/// The plan for one with this intent.
fn ending(pod: &Pod, intent: &Intent, seen: &Known, now: Timestamp) -> PodActions {
    plan::plan(pod, Inputs { intent, ..seen.inputs() }, now)
}

fn fetched() -> Container {
    Container { image: image(), ..Container::default() }
}

fn two(policy: &str) -> serde_json::Value {
    json!({ "restartPolicy": policy, "containers": [{ "name": "a", "image": "i:1" }, { "name": "b", "image": "i:1" }] })
}

#[test]
fn a_new_pod_gets_everything_at_once() {
    let now = plan(&pod(two("Always")), &Known::default(), at(0));
    assert_eq!(short(&now), ["StartSandbox", "pull a", "pull b"]);
}

#[test]
fn containers_start_one_after_the_other() {
    let pod = pod(two("Always"));
    let mut seen = seen(&[("a", fetched()), ("b", fetched())]);
    assert_eq!(short(&plan(&pod, &seen, at(1))), ["start a"]);
    seen.progress("a").busy = Busy::Starting;
    assert_eq!(short(&plan(&pod, &seen, at(1))), Vec::<String>::new());
    seen.put("a", running());
    assert_eq!(short(&plan(&pod, &seen, at(1))), ["start b"]);
}

#[test]
fn restart_policies() {
    for (policy, code, expected) in [
        ("Always", 0, "start a"),
        ("Always", 1, "start a"),
        ("OnFailure", 0, ""),
        ("OnFailure", 1, "start a"),
        ("Never", 0, ""),
        ("Never", 1, ""),
    ] {
        let seen = seen(&[("a", ended(code)), ("b", running())]);
        let got = short(&plan(&pod(two(policy)), &seen, at(6)));
        assert_eq!(got.join(","), expected, "{policy} after {code}");
    }
}

#[test]
fn a_pod_whose_containers_are_done_is_finished() {
    let done = seen(&[("a", ended(0)), ("b", ended(0))]);
    assert_eq!(short(&plan(&pod(two("OnFailure")), &done, at(6))), ["Finish"]);
    let failed = seen(&[("a", ended(0)), ("b", ended(1))]);
    assert_eq!(short(&plan(&pod(two("Never")), &failed, at(6))), ["Finish"]);
}

#[test]
fn restart_rules_outweigh_the_policy() {
    let rules = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    let spec = json!({ "restartPolicy": "Never", "containers": [
        { "name": "a", "image": "i:1", "restartPolicy": "Never", "restartPolicyRules": rules },
    ]});
    assert_eq!(short(&plan(&pod(spec.clone()), &seen(&[("a", ended(42))]), at(6))), ["start a"]);
    assert_eq!(short(&plan(&pod(spec), &seen(&[("a", ended(1))]), at(6))), ["Finish"]);
}

/// Access to one image does not imply access to another.
#[test]
fn an_image_that_was_changed_before_the_start_is_looked_for_anew() {
    let changed = pod(json!({ "containers": [{ "name": "a", "image": "i:2" }] }));
    let mut seen = seen(&[("a", fetched())]);
    assert_eq!(short(&plan(&changed, &seen, at(1))), ["pull a"]);
    // So is one that may have been deleted since; the wait before the next attempt stays.
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    for (reason, then) in [(Reason::CreateContainerError, "pull a"), (Reason::CreateContainerConfigError, "start a")] {
        seen.put("a", fetched());
        start::failed(seen.halves(), "a", 0, &ActionError::new(reason, "x"), at(1));
        assert_eq!(short(&plan(&pod, &seen, at(2))), Vec::<String>::new(), "{reason}");
        assert_eq!(short(&plan(&pod, &seen, at(20))), [then], "{reason}");
    }
}

#[test]
fn a_crash_loop_waits_and_says_so_once() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    let mut seen = seen(&[("a", Part::from(ended(1)).backed_off(4))]);
    let first = plan(&pod, &seen, at(6));
    assert_eq!(first.wake, Some(at(15)));
    let [Action::BackOff { message, .. }] = &first.actions[..] else { panic!("{first:?}") };
    assert_eq!(message, "back-off 10s restarting failed container=a pod=web_default(u1)");
    seen.progress("a").waiting = Some(Failure { reason: "CrashLoopBackOff".into(), message: message.clone() });
    assert_eq!(short(&plan(&pod, &seen, at(7))), Vec::<String>::new());
    assert_eq!(short(&plan(&pod, &seen, at(15))), ["start a"]);
}

#[test]
fn backoff_doubles_to_its_limit_and_is_forgotten() {
    let mut backoff = Backoff::default();
    assert_eq!(backoff.until(at(0), at(0)), None);
    let mut delays = Vec::new();
    for second in 0..7 {
        backoff.raise(at(second), at(second));
        delays.push(backoff.delay().as_secs());
    }
    assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(backoff.until(at(7), at(8)), Some(at(307)));
    assert_eq!(Backoff::from_label(&backoff.to_label()), backoff);
    assert_eq!(Backoff::from_label("nonsense"), Backoff::default());
    // More than twice the longest delay without trouble.
    assert_eq!(backoff.until(at(608), at(608)), None);
    backoff.raise(at(608), at(608));
    assert_eq!((backoff.delay(), LONGEST), (FIRST, Duration::from_secs(300)));
}

#[test]
fn a_backoff_from_a_time_to_come_makes_nobody_wait_for_that() {
    let mut backoff = Backoff::default();
    for second in [90_000, 90_001] {
        backoff.raise(at(second), at(second));
    }
    assert_eq!(backoff.until(at(90_002), at(90_003)), Some(at(90_022)));
    assert_eq!(backoff.until(at(90_002), at(10)), None, "the clock was set back meanwhile");
    assert_eq!(backoff.until(at(20), at(21)), None, "and before its next end");
    backoff.raise(at(20), at(21));
    assert_eq!(backoff.delay(), FIRST);
}

fn with_init() -> serde_json::Value {
    json!({ "restartPolicy": "Always",
        "initContainers": [
            { "name": "first", "image": "i:1" },
            { "name": "side", "image": "i:1", "restartPolicy": "Always" },
            { "name": "second", "image": "i:1" },
        ],
        "containers": [{ "name": "main", "image": "i:1" }] })
}

#[test]
fn init_containers_run_in_order_and_sidecars_gate() {
    let pod = pod(with_init());
    let mut starting = running();
    starting.started = false;
    let steps: &[(&[(&str, Container)], &[&str])] = &[
        (&[("first", fetched())], &["start first"]),
        (&[("first", running())], &[]),
        (&[("first", ended(0)), ("side", fetched())], &["start side"]),
        (&[("first", ended(0)), ("side", starting)], &[]),
        (&[("first", ended(0)), ("side", running()), ("second", fetched())], &["start second"]),
        (&[("first", ended(0)), ("side", running()), ("second", ended(0)), ("main", fetched())], &["start main"]),
        // A sidecar that ends later is started again and holds nothing up.
        (&[("first", ended(0)), ("side", ended(0)), ("second", ended(0)), ("main", running())], &["start side"]),
    ];
    for (containers, expected) in steps {
        assert_eq!(short(&plan(&pod, &seen(containers), at(6))), *expected, "{containers:?}");
    }
}

#[test]
fn a_failed_init_container_is_run_again_unless_never() {
    let failed = seen(&[("first", ended(1))]);
    assert_eq!(short(&plan(&pod(with_init()), &failed, at(6))), ["start first"]);
    let mut spec = with_init();
    spec["restartPolicy"] = json!("Never");
    assert_eq!(short(&plan(&pod(spec), &failed, at(6))), ["Finish"]);
}

#[test]
fn unhealthy_and_changed_containers_are_stopped() {
    let pod = pod(json!({ "terminationGracePeriodSeconds": 7, "containers": [{ "name": "a", "image": "i:2" }] }));
    let mut sick = running();
    let changed = plan(&pod, &seen(&[("a", sick.clone())]), at(10));
    assert_eq!(short(&changed), ["stop a at 17"]);
    let [Action::Stop(stop)] = &changed.actions[..] else { panic!() };
    assert_eq!(stop.why, "Container a definition changed, will be restarted");
    sick.unhealthy = Some(Unhealthy { why: "failed liveness probe".into(), grace: Some(3) });
    let unhealthy = plan(&pod, &seen(&[("a", sick.clone())]), at(10));
    assert_eq!(short(&unhealthy), ["stop a at 13"]);
    let stopping = Part::from(sick).busy(Busy::Stopping { deadline: at(13) });
    assert_eq!(short(&plan(&pod, &seen(&[("a", stopping)]), at(11))), Vec::<String>::new());
}

/// A Pod that is to be removed by then.
fn removed_by(deadline: i64) -> Intent {
    Intent::Stop(Stop { deadline: at(deadline), grace: 30, failure: None, remove: true, disruption: false })
}

#[test]
fn sidecars_end_after_the_others_in_reverse_order() {
    let pod = pod(json!({
        "initContainers": [
            { "name": "s1", "image": "i:1", "restartPolicy": "Always" },
            { "name": "s2", "image": "i:1", "restartPolicy": "Always" },
        ],
        "containers": [{ "name": "a", "image": "i:1" }, { "name": "b", "image": "i:1" }] }));
    let all = |a, b, s2, s1| seen(&[("a", a), ("b", b), ("s2", s2), ("s1", s1)]);
    let plan = |seen: &Known, now: i64| short(&ending(&pod, &removed_by(30), seen, at(now)));
    let at_first = all(running(), running(), running(), running());
    assert_eq!(plan(&at_first, 1), ["stop b at 30", "stop a at 30"]);
    let one_left = all(running(), ended(0), running(), running());
    assert_eq!(plan(&one_left, 2), ["stop a at 30"]);
    let mains_gone = all(ended(0), ended(0), running(), running());
    assert_eq!(plan(&mains_gone, 3), ["stop s2 at 30"]);
    let last = all(ended(0), ended(0), ended(0), running());
    assert_eq!(plan(&last, 4), ["stop s1 at 30"]);
    // After the grace period nothing waits any more; a sidecar gets two seconds at least.
    let late = all(running(), ended(0), running(), running());
    assert_eq!(plan(&late, 30), ["stop a at 30", "stop s2 at 32", "stop s1 at 32"]);
}

#[test]
fn a_shorter_grace_overtakes_a_longer_one() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    let seen = seen(&[("a", Part::from(running()).busy(Busy::Stopping { deadline: at(30) }))]);
    assert_eq!(short(&ending(&pod, &removed_by(30), &seen, at(1))), Vec::<String>::new());
    assert_eq!(short(&ending(&pod, &removed_by(5), &seen, at(1))), ["stop a at 5"]);
}

#[test]
fn the_end_is_sandbox_then_everything() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    let (mut intent, mut seen) = (removed_by(30), seen(&[("a", ended(0))]));
    let plan = |intent: &Intent, seen: &Known, now: i64| ending(&pod, intent, seen, at(now));
    let is_over = |intent: &Intent, seen: &Known| is_over(&pod.parts(), Inputs { intent, ..seen.inputs() });
    assert_eq!(short(&plan(&intent, &seen, 6)), ["StopSandbox"]);
    assert!(!is_over(&intent, &seen));
    seen.seen.sandbox.state = SandboxState::Stopped;
    assert!(is_over(&intent, &seen));
    assert_eq!(short(&plan(&intent, &seen, 6)), ["Remove"]);
    seen.progress.removal = Step::Failed { tries: 1, retry_at: at(9) };
    assert_eq!(plan(&intent, &seen, 6), PodActions { actions: vec![], wake: Some(at(9)) });
    assert_eq!(short(&plan(&intent, &seen, 9)), ["Remove"]);
    seen.progress.removal = Step::Done;
    assert_eq!(short(&plan(&intent, &seen, 9)), Vec::<String>::new());
    let Intent::Stop(stop) = &mut intent else { panic!() };
    stop.remove = false;
    assert_eq!(short(&plan(&intent, &seen, 9)), ["ReleaseVolumes"]);
}

#[test]
fn a_dead_sandbox_is_made_anew_when_nothing_runs_in_it() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    let mut seen = seen(&[("a", running())]);
    seen.seen.lose_sandbox(at(5));
    assert_eq!(seen.seen.container("a").exit().unwrap().code, 137);
    let got = short(&plan(&pod, &seen, at(6)));
    assert_eq!(got, ["RenewSandbox"]);
    seen.progress.sandbox.renewal = Step::Failed { tries: 1, retry_at: at(9) };
    assert_eq!(plan(&pod, &seen, at(6)), PodActions { actions: vec![], wake: Some(at(9)) });
    assert_eq!(short(&plan(&pod, &seen, at(9))), ["RenewSandbox"]);
    seen.seen.renew_sandbox();
    assert_eq!(seen.seen.sandbox.attempt, 1);
    assert_eq!(short(&plan(&pod, &seen, at(6))), ["StartSandbox"]);
    assert_eq!(seen.seen.container("a").next_restart(), 1);
}

#[test]
fn too_long_is_failed() {
    let pod = pod(json!({ "activeDeadlineSeconds": 60, "containers": [{ "name": "a", "image": "i:1" }] }));
    let seen = seen(&[("a", running())]);
    assert_eq!(plan(&pod, &seen, at(59)).wake, Some(at(60)));
    assert_eq!(short(&plan(&pod, &seen, at(60))), ["fail DeadlineExceeded"]);
}

/// A Pod held up by its init container, with a container to debug it.
fn debugged(target: Option<&str>) -> serde_json::Value {
    let mut debugger = json!({ "name": "d", "image": "i:1" });
    debugger["targetContainerName"] = json!(target);
    json!({ "restartPolicy": "OnFailure", "initContainers": [{ "name": "i", "image": "i:1" }],
        "containers": [{ "name": "a", "image": "i:1" }], "ephemeralContainers": [debugger] })
}

#[test]
fn an_ephemeral_container_starts_before_the_others_and_once() {
    let pod = pod(debugged(None));
    let held_up = seen(&[("i", running()), ("d", fetched())]);
    assert_eq!(short(&plan(&pod, &held_up, at(1))), ["start d"]);
    let begun = seen(&[("i", ended(0)), ("a", running())]);
    assert_eq!(short(&plan(&pod, &begun, at(6))), ["pull d"]);
    for code in [0, 1] {
        let ended_for_good = seen(&[("i", ended(0)), ("a", running()), ("d", ended(code))]);
        assert_eq!(short(&plan(&pod, &ended_for_good, at(6))), Vec::<String>::new());
    }
    // The Pod does not wait for it.
    let done = seen(&[("i", ended(0)), ("a", ended(0)), ("d", running())]);
    assert_eq!(short(&plan(&pod, &done, at(6))), ["Finish"]);
    assert_eq!(short(&ending(&pod, &removed_by(30), &done, at(6))), ["stop d at 30"]);
}

#[test]
fn an_ephemeral_container_needs_the_one_whose_processes_it_shall_see() {
    let pod = pod(debugged(Some("a")));
    let mut waits = seen(&[("i", running()), ("d", fetched())]);
    let order = |waits: &Known, name: &str| order(&pod, &waits.seen, &waits.progress, name);
    let trouble = order(&waits, "d").expect_err("the target does not run");
    assert_eq!(
        (trouble.reason.as_str(), trouble.message.as_str()),
        ("CreateContainerConfigError", "unable to find target container \"a\"")
    );
    waits.put("a", running());
    let target = order(&waits, "d").expect("the target runs").target;
    assert_eq!(target, Some(("a".to_owned(), waits.seen.container("a").attempt.as_ref().unwrap().restart)));
    assert_eq!(order(&waits, "a").expect("it has none").target, None);
}

/// Stopped for another image or other resources, it starts anew at once; a start that fails counts as any other's does.
#[test]
fn a_new_start_that_fails_is_backed_off_from() {
    let pod = pod(two("Always"));
    let renewed = Part::from(ended(0)).renewing().backed_off(0);
    let mut seen = seen(&[("a", renewed), ("b", running().into())]);
    assert_eq!(short(&plan(&pod, &seen, at(6))), ["start a"]);
    let trouble = ActionError::new(Reason::StartError, "no such file");
    start::failed(seen.halves(), "a", 1, &trouble, at(7));
    let next = plan(&pod, &seen, at(8));
    assert_eq!((short(&next), next.wake), (vec!["back off a".to_owned()], Some(at(17))));
}
