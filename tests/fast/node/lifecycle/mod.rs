//! The function of one Pod: event by event for what has gone wrong once, and under events that a seed draws.
//!
//! `POD_SEED=n` repeats the run of this seed; a failure names its seed and prints the events.

mod volumes;
mod world;

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use podwright::node::{
    executor::{ActionError, ExecutorError, Pulled, Reason, Started},
    hooks::HookError,
    pod::{ActionResult, Busy, Effect, Eviction, PodEvent, PodState, Work, next},
    probes::{Kind, Verdict},
    resize::{Allocation, Allotment},
    status::Host,
};
use rand::RngExt;
use serde_json::{Value, json};

use super::{at, pod};
use world::World;

/// The number of random runs.
const RUNS: u64 = 400;
const EVENTS: usize = 120;

#[test]
fn whatever_happens_a_pod_keeps_its_promises() {
    let given = std::env::var("POD_SEED").ok().map(|seed| seed.parse::<u64>().expect("POD_SEED is a number"));
    let first = given.unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000));
    println!("POD_SEED={first}");
    let runs = if given.is_some() { 1 } else { RUNS };
    let (mut ran, mut restarted) = (0, 0);
    for seed in first..first + runs {
        let mut world = World::new(seed);
        for _ in 0..EVENTS {
            world.something_happens();
        }
        world.ends();
        ran += usize::from(world.starts > 0);
        restarted += usize::from(world.restarts > 0);
    }
    // What never comes to anything promises nothing.
    assert!(given.is_some() || ran as u64 > RUNS / 2 && restarted as u64 > RUNS / 4, "{ran} and {restarted} of {RUNS}");
}

/// A Pod with this spec, taken through some events.
struct Story {
    state: PodState,
    effects: Vec<Effect>,
}

impl Story {
    fn new(spec: Value) -> Story {
        let pod = Arc::new(pod(spec));
        let allotment = Allotment::new(&pod, Allocation::of(&pod));
        let state = PodState::new(pod, &allotment, Default::default(), Host::default(), at(0));
        let mut story = Story { state, effects: Vec::new() };
        story.at(0, PodEvent::Start);
        story
    }

    /// An event, and the immediate reaction to it.
    fn at(&mut self, second: i64, event: PodEvent) {
        let mut effects = Vec::new();
        for event in [event, PodEvent::Sync] {
            let (state, more) = next(self.state.clone(), event, at(second));
            self.state = state;
            effects.extend(more);
        }
        self.effects = effects;
    }

    fn done(&mut self, second: i64, result: ActionResult) {
        self.at(second, PodEvent::Done(result));
    }

    /// The actions begun by the last event, without status writes.
    fn begun(&self) -> Vec<String> {
        let word = |effect: &Effect| match effect {
            Effect::Begin(_, Work::WriteStatus { .. }) => None,
            Effect::Begin(_, Work::Pull { container, .. }) => Some(format!("pull {container}")),
            Effect::Begin(_, Work::Start { container, order }) => Some(format!("start {container} {}", order.restart)),
            Effect::Begin(_, Work::PostStart { container, .. }) => Some(format!("hook {container}")),
            Effect::Begin(_, Work::Stop { container, note, .. }) => Some(format!("stop {container} {note:?}")),
            Effect::Begin(_, Work::StartSandbox { .. }) => Some("start sandbox".to_owned()),
            Effect::Begin(_, Work::MountVolume { volume }) => Some(format!("mount {volume}")),
            Effect::Begin(_, Work::RefreshVolumes { volumes }) => Some(format!("refresh {}", volumes.join(" "))),
            Effect::Begin(_, work) => Some(format!("{work:?}")),
            Effect::CancelPull(container) => Some(format!("cancel {container}")),
            Effect::Shorten { container, deadline } => {
                Some(format!("shorten {container} to {}", deadline.duration_since(at(0)).as_secs()))
            }
            _ => None,
        };
        self.effects.iter().filter_map(word).collect()
    }

    fn events(&self) -> Vec<&str> {
        let records = self.effects.iter().filter_map(|effect| match effect {
            Effect::Record(record) => Some(record.reason.as_str()),
            _ => None,
        });
        records.collect()
    }

    /// Sandbox and volumes are ready, and the image of `a`.
    fn ready(spec: Value) -> Story {
        let mut story = Story::new(spec);
        assert_eq!(story.begun(), ["start sandbox", "pull a"]);
        story.done(1, ActionResult::Sandbox(Ok(vec!["10.0.0.7".parse().unwrap()])));
        story.pulled(1);
        story
    }

    fn mounted(&mut self, second: i64, volume: &str, well: bool) {
        let result = if well { Ok(()) } else { Err(ActionError::new(Reason::FailedMount, format!("{volume} fails"))) };
        self.done(second, ActionResult::VolumeMounted { volume: volume.to_owned(), result });
    }

    fn pulled(&mut self, second: i64) {
        let result = Ok(Pulled { id: "sha256:1".into(), pulled: None, size: 0 });
        self.done(second, ActionResult::Pulled { container: "a".into(), image: "i:1".into(), result });
    }

    fn started(&mut self, second: i64, id: &str, restart: u32) {
        let result = Ok(Started { id: id.to_owned(), at: at(second) });
        self.done(second, ActionResult::Started { container: "a".into(), restart, resources: None, result });
    }

    fn exited(&mut self, second: i64, id: &str, code: i32) {
        let exit = world::exit(code, at(second));
        self.at(second, PodEvent::Exited { container: "a".into(), id: id.to_owned(), exit });
    }
}

/// The names of volumes.
const NAMES: [&str; 6] = ["first", "second", "third", "fourth", "fifth", "sixth"];

/// One container with `number` volumes.
fn with_volumes(number: usize) -> Value {
    let names = &NAMES[..number];
    let mounts: Vec<Value> =
        names.iter().map(|name| json!({ "name": name, "mountPath": format!("/{name}") })).collect();
    let volumes: Vec<Value> = names.iter().map(|name| json!({ "name": name, "emptyDir": {} })).collect();
    json!({ "containers": [{ "name": "a", "image": "i:1", "volumeMounts": mounts }], "volumes": volumes })
}

fn one() -> Value {
    json!({ "containers": [{ "name": "a", "image": "i:1" }] })
}

fn hooked() -> Value {
    let hook = json!({ "postStart": { "httpGet": { "port": 80 } } });
    json!({ "containers": [{ "name": "a", "image": "i:1", "lifecycle": hook }] })
}

#[test]
fn a_pod_is_begun_run_and_removed() {
    let mut story = Story::ready(one());
    assert_eq!(story.begun(), ["start a 0"]);
    story.started(2, "x0", 0);
    assert_eq!((story.begun(), story.events()), (vec![], vec!["Created", "Started"]));
    assert!(story.state.observed.container("a").ready);
    story.at(5, PodEvent::Gone);
    assert_eq!(story.begun(), ["stop a None"]);
    let stopped = |story: &mut Story| {
        let exit = Some(world::exit(0, at(6)));
        story.done(6, ActionResult::Stopped { container: "a".into(), id: "x0".into(), result: Ok(exit) });
    };
    stopped(&mut story);
    assert_eq!(story.begun(), ["StopSandbox { attempt: 0 }"]);
    story.done(6, ActionResult::SandboxStopped(Ok(())));
    assert_eq!(story.begun(), ["Remove { attempt: 0 }"]);
    // It is retried, after a growing pause.
    for (second, pause) in [(6, 500), (7, 1000)] {
        story.done(second, ActionResult::Removed(Err(ExecutorError::Failed("busy".into()))));
        let wake = story.effects.iter().find_map(|e| if let Effect::Wake(at) = e { Some(*at) } else { None });
        let wake = wake.flatten().expect("it is tried again");
        assert_eq!(wake.duration_since(at(second)).as_millis(), pause);
        story.at(second + 1, PodEvent::Sync);
        assert_eq!(story.begun(), ["Remove { attempt: 0 }"]);
    }
    assert!(!story.state.is_over());
    story.done(9, ActionResult::Removed(Ok(())));
    assert!(story.state.is_over());
}

/// A hook may take longer than its container lives, and then says nothing of the next start.
#[test]
fn the_end_of_an_old_hook_is_not_that_of_a_new_start() {
    let mut story = Story::ready(hooked());
    story.started(2, "x0", 0);
    assert_eq!(story.begun(), ["hook a"]);
    story.exited(3, "x0", 1);
    assert_eq!(story.begun(), ["pull a"]);
    story.pulled(3);
    assert_eq!(story.begun(), ["start a 1"]);
    let result = Err(HookError::Status(503));
    story.done(4, ActionResult::PostStart { container: "a".into(), id: "x0".into(), result });
    assert_eq!((story.begun(), story.events()), (vec![], vec![]));
    assert_eq!(story.state.progress.container("a").busy, Busy::Starting);
}

/// The result of a hook that ran in a sandbox which is gone is not awaited.
#[test]
fn a_sandbox_that_dies_under_a_hook_is_made_anew() {
    let mut story = Story::ready(hooked());
    story.started(2, "x0", 0);
    story.at(3, PodEvent::SandboxGone { attempt: 0 });
    assert_eq!(story.begun(), ["RemoveSandbox { attempt: 0 }"]);
}

#[test]
fn an_end_that_is_told_before_its_start_counts() {
    let mut story = Story::ready(one());
    story.exited(2, "x0", 3);
    assert_eq!(story.begun(), [""; 0]);
    story.started(2, "x0", 0);
    assert_eq!(story.state.observed.container("a").exit().map(|exit| exit.code), Some(3));
    assert_eq!(story.begun(), ["pull a"]);
}

#[test]
fn a_pod_that_is_to_end_waits_for_no_image() {
    let mut story = Story::new(one());
    story.at(1, PodEvent::Gone);
    assert_eq!(story.begun(), ["cancel a"]);
    // Its end may have been on the way.
    story.pulled(1);
    assert_eq!(story.begun(), [""; 0]);
}

#[test]
fn a_pull_that_fails_is_backed_off_from() {
    let mut story = Story::new(one());
    let fails = |story: &mut Story, second| {
        let result = Err(ActionError::new(Reason::ErrImagePull, "no such host"));
        story.done(second, ActionResult::Pulled { container: "a".into(), image: "i:1".into(), result });
    };
    fails(&mut story, 1);
    assert_eq!((story.begun(), story.events()), (vec![], vec!["Failed", "Failed", "BackOff", "Failed"]));
    let waiting = |story: &Story| story.state.progress.container("a").waiting.as_ref().unwrap().reason.clone();
    assert_eq!(waiting(&story), "ImagePullBackOff");
    story.at(10, PodEvent::Sync);
    assert_eq!(story.begun(), [""; 0]);
    story.at(11, PodEvent::Sync);
    assert_eq!(story.begun(), ["pull a"]);
    fails(&mut story, 12);
    story.at(31, PodEvent::Sync);
    assert_eq!(story.begun(), [""; 0]);
    story.at(32, PodEvent::Sync);
    assert_eq!(story.begun(), ["pull a"]);
}

#[test]
fn less_grace_reaches_a_stop_that_is_under_way() {
    let mut story = Story::ready(one());
    story.started(2, "x0", 0);
    let bad = PodEvent::Probe { container: "a".into(), id: "x0".into(), kind: Kind::Liveness, verdict: Verdict::Bad };
    story.at(3, bad);
    assert_eq!(story.begun(), ["stop a None"]);
    let failure = podwright::node::pod::Failure { reason: "Evicted".into(), message: "too much".into() };
    story.at(4, PodEvent::Evict(Eviction { uid: "u1".into(), grace: 1, failure, disruption: true }));
    assert_eq!(story.begun(), ["shorten a to 5"]);
    assert!(story.state.intent.stop().is_some_and(|stop| stop.disruption && !stop.remove));
}

/// Nobody counts it any more, and its manifest may ask for a grace of years; so may who has deleted it before.
#[test]
fn a_pod_that_was_deleted_by_force_has_a_moment_left() {
    let mut spec = one();
    spec["terminationGracePeriodSeconds"] = 1_000_000_000.into();
    for is_deleted in [false, true] {
        let mut story = Story::ready(spec.clone());
        story.started(2, "x0", 0);
        if is_deleted {
            let mut pod = Pod::clone(&story.state.wanted.pod);
            pod.metadata.deletion_timestamp = Some(Time(at(3)));
            pod.metadata.deletion_grace_period_seconds = Some(1_000_000_000);
            pod.metadata.resource_version = Some("9".into());
            let allotment = Allotment::new(&pod, Allocation::of(&pod));
            story.at(3, PodEvent::Wanted(Arc::new(pod), allotment));
            assert_eq!(story.begun(), ["stop a None"]);
        }
        story.at(4, PodEvent::Gone);
        assert_eq!(story.begun(), [if is_deleted { "shorten a to 6" } else { "stop a None" }]);
        assert_eq!(story.state.intent.stop().map(|stop| stop.deadline), Some(at(6)));
    }
}

/// Its phase has been told, and is the last one.
#[test]
fn a_pod_that_has_done_its_work_is_not_evicted() {
    let mut story = Story::ready(json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "i:1" }] }));
    story.started(2, "x0", 0);
    story.exited(3, "x0", 0);
    assert_eq!(story.begun(), ["StopSandbox { attempt: 0 }"]);
    story.done(3, ActionResult::SandboxStopped(Ok(())));
    assert_eq!(story.begun(), ["ReleaseVolumes"]);
    let failure = podwright::node::pod::Failure { reason: "Evicted".into(), message: "too much".into() };
    story.at(4, PodEvent::Evict(Eviction { uid: "u1".into(), grace: 1, failure, disruption: true }));
    assert_eq!(story.events(), [""; 0]);
    assert!(story.state.intent.stop().is_some_and(|stop| stop.failure.is_none()));
}

/// Both may be heard before anything is planned.
#[test]
fn an_eviction_behind_an_end_comes_too_late() {
    let mut story = Story::ready(json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "i:1" }] }));
    story.started(2, "x0", 0);
    let exit = world::exit(0, at(3));
    story.state = next(story.state.clone(), PodEvent::Exited { container: "a".into(), id: "x0".into(), exit }, at(3)).0;
    let failure = podwright::node::pod::Failure { reason: "Evicted".into(), message: "too much".into() };
    story.at(3, PodEvent::Evict(Eviction { uid: "u1".into(), grace: 1, failure, disruption: true }));
    assert_eq!(story.events(), [""; 0]);
    assert!(story.state.intent.stop().is_some_and(|stop| stop.failure.is_none()));
}

/// A pause whose end is now hours ahead is over.
#[test]
fn a_clock_that_is_set_back_holds_up_no_stop() {
    let mut story = Story::ready(one());
    story.started(9_000, "x0", 0);
    story.at(9_001, PodEvent::Gone);
    let fails = |story: &mut Story, second| {
        let result = Err(ExecutorError::Failed("busy".into()));
        story.done(second, ActionResult::Stopped { container: "a".into(), id: "x0".into(), result });
    };
    fails(&mut story, 9_002);
    assert_eq!(story.begun(), [""; 0]);
    story.at(10, PodEvent::Sync);
    assert_eq!(story.begun(), ["stop a None"]);
}

/// So is every other wait, and an end gets its grace once more at most.
#[test]
fn a_clock_that_is_set_back_holds_up_nothing() {
    let trouble = |reason| ActionError::new(reason, "no luck");
    let mut story = Story::new(with_volumes(1));
    story.mounted(9_000, "first", false);
    story.done(9_000, ActionResult::Sandbox(Err(trouble(Reason::FailedCreatePodSandBox))));
    let pulled = Err(trouble(Reason::InvalidImageName));
    story.done(9_000, ActionResult::Pulled { container: "a".into(), image: "i:1".into(), result: pulled });
    assert_eq!(story.begun(), [""; 0]);
    story.at(10, PodEvent::Sync);
    assert_eq!(story.begun(), ["mount first", "start sandbox", "pull a"]);

    let mut story = Story::ready(one());
    for (second, restart) in [(9_000, 0), (9_020, 1)] {
        let id = format!("x{restart}");
        story.started(second, &id, restart);
        story.exited(second + 1, &id, 1);
        story.pulled(second + 1);
    }
    assert_eq!(story.begun(), [""; 0], "it waits for the second time");
    story.at(10, PodEvent::Sync);
    assert_eq!(story.begun(), ["start a 2"]);

    let mut story = Story::ready(one());
    story.started(9_000, "x0", 0);
    story.at(9_001, PodEvent::Gone);
    assert_eq!(story.begun(), ["stop a None"]);
    story.at(10, PodEvent::Sync);
    assert_eq!(story.begun(), ["shorten a to 12"], "2 s is its grace");
    assert_eq!(story.state.leaves(), Some(at(12)));
    story.at(11, PodEvent::Sync);
    assert_eq!((story.begun(), story.state.leaves()), (Vec::new(), Some(at(12))));
}

/// Retries do not spin.
#[test]
fn a_stop_that_fails_is_tried_again_after_a_second() {
    let mut story = Story::ready(one());
    story.started(2, "x0", 0);
    story.at(5, PodEvent::Gone);
    assert_eq!(story.begun(), ["stop a None"]);
    let result = Err(ExecutorError::Failed("it is stuck".into()));
    story.done(6, ActionResult::Stopped { container: "a".into(), id: "x0".into(), result });
    assert_eq!(story.begun(), [""; 0]);
    let wakes = |effect: &Effect| matches!(effect, Effect::Wake(Some(wake)) if *wake == at(7));
    assert!(story.effects.iter().any(wakes), "{:?}", story.effects);
    story.at(7, PodEvent::Sync);
    assert_eq!(story.begun(), ["stop a None"]);
}

/// What is left of it would be nobody's, once another one counts as the Pod's.
#[test]
fn a_sandbox_that_cannot_be_removed_is_not_replaced() {
    let mut story = Story::ready(one());
    story.started(1, "x0", 0);
    story.at(2, PodEvent::SandboxGone { attempt: 0 });
    assert_eq!(
        (story.begun(), story.events()),
        (vec!["RemoveSandbox { attempt: 0 }".to_owned()], vec!["SandboxChanged"])
    );
    story.done(3, ActionResult::SandboxRemoved(Err(ExecutorError::Failed("busy".into()))));
    assert_eq!((story.begun(), story.events()), (vec![], vec!["FailedKillPod"]));
    story.at(4, PodEvent::Sync);
    assert_eq!((story.begun(), story.events()), (vec!["RemoveSandbox { attempt: 0 }".to_owned()], vec![]));
    story.done(5, ActionResult::SandboxRemoved(Err(ExecutorError::Failed("busy".into()))));
    assert_eq!(story.begun(), [""; 0], "not at once");
    // Also the end of its Pod removes this one.
    let mut ended = Story { state: story.state.clone(), effects: Vec::new() };
    ended.at(5, PodEvent::Gone);
    assert_eq!(ended.begun(), ["Remove { attempt: 0 }"]);
    story.at(7, PodEvent::Sync);
    story.done(8, ActionResult::SandboxRemoved(Ok(())));
    assert_eq!((story.begun(), story.state.observed.sandbox.attempt), (vec!["start sandbox".to_owned()], 1));
    assert_eq!(story.state.progress.sandbox.renewal, podwright::node::pod::Step::Undone);
}
