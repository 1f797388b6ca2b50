//! Volumes of a Pod: each is mounted, fails and is retried on its own; they are unmounted together.

use std::{sync::Arc, time::Duration};

use podwright::node::{
    executor::{ActionError, ExecutorError, Reason},
    pod::{ActionResult, Effect, PodEvent, PodState, PodVolumes, next},
    resize::{Allocation, Allotment},
    status::Host,
};
use serde_json::json;

use super::{
    super::{Known, at, pod, running},
    NAMES, Story, with_volumes,
};

impl Story {
    /// Everything but its volumes is ready.
    fn with_volumes(number: usize) -> Story {
        let mut story = Story::new(with_volumes(number));
        story.done(0, ActionResult::Sandbox(Ok(vec!["10.0.0.7".parse().unwrap()])));
        story.pulled(0);
        story
    }

    /// The time of the next look.
    fn wake(&self) -> Option<i64> {
        let wakes =
            self.effects.iter().rev().filter_map(|effect| if let Effect::Wake(at) = effect { *at } else { None });
        { wakes }.next().map(|wake| wake.duration_since(at(0)).as_millis() as i64)
    }
}

#[test]
fn a_volume_that_fails_is_tried_again_alone_and_containers_wait_for_it() {
    let story = Story::new(with_volumes(3));
    assert_eq!(story.begun(), ["mount first", "mount second", "mount third", "start sandbox", "pull a"]);
    let mut story = Story::with_volumes(3);
    assert_eq!(story.begun(), [""; 0], "nothing but they lacks");
    story.mounted(1, "second", false);
    assert_eq!((story.begun(), story.events(), story.wake()), (vec![], vec!["FailedMount"], Some(1500)));
    for name in ["first", "third"] {
        story.mounted(1, name, true);
        assert_eq!((story.begun(), story.events()), (vec![], vec![]));
    }
    // With a growing pause.
    for (second, pause) in [(2, 1000), (3, 2000), (5, 4000)] {
        story.at(second, PodEvent::Sync);
        assert_eq!(story.begun(), ["mount second"]);
        story.mounted(second, "second", false);
        assert_eq!((story.begun(), story.wake()), (vec![], Some(second * 1000 + pause)));
    }
    story.at(8, PodEvent::Sync);
    assert_eq!(story.begun(), [""; 0]);
    story.at(9, PodEvent::Sync);
    story.mounted(9, "second", true);
    assert_eq!((story.begun(), story.events()), (vec!["start a 0".to_owned()], vec![]));
}

#[test]
fn each_volume_has_a_back_off_of_its_own() {
    let mut story = Story::with_volumes(2);
    story.mounted(1, "first", false);
    story.at(2, PodEvent::Sync);
    assert_eq!(story.begun(), ["mount first"]);
    story.mounted(2, "first", false);
    story.mounted(2, "second", false);
    assert_eq!((story.events(), story.wake()), (vec!["FailedMount"], Some(2500)));
    let messages = story.effects.iter().filter_map(|effect| match effect {
        Effect::Record(record) => Some(record.message.as_str()),
        _ => None,
    });
    assert_eq!(messages.collect::<Vec<_>>(), ["second fails"]);
    // A second after the second failure, half of one after the first.
    for (millis, begun) in [(2_499, ""), (2_500, "mount second"), (2_999, ""), (3_000, "mount first")] {
        let now = at(0) + Duration::from_millis(millis);
        let (state, effects) = next(story.state.clone(), PodEvent::Sync, now);
        (story.state, story.effects) = (state, effects);
        assert_eq!(story.begun().join(" "), begun, "{millis}");
    }
    // Their sources have changed: the pause is over.
    story.mounted(4, "first", false);
    story.mounted(4, "second", false);
    story.at(4, PodEvent::Resync);
    assert_eq!(story.begun(), ["mount first", "mount second"]);
}

/// A Pod has room for a thousand claims that there are not: all their tries together are a few a second, and ever fewer.
#[test]
fn many_volumes_that_fail_share_a_pace() {
    let mut story = Story::with_volumes(6);
    let mut underway: Vec<String> = NAMES[..4].iter().map(|name| (*name).to_owned()).collect();
    let mut tries = Vec::new();
    for millis in (1_000..61_000).step_by(50) {
        let failed = underway.drain(..).map(|volume| {
            let result = Err(ActionError::new(Reason::FailedMount, "not there"));
            PodEvent::Done(ActionResult::VolumeMounted { volume, result })
        });
        // Their sources change all the time.
        for event in failed.collect::<Vec<_>>().into_iter().chain([PodEvent::Resync, PodEvent::Sync]) {
            let now = at(0) + Duration::from_millis(millis);
            let (state, effects) = next(story.state.clone(), event, now);
            (story.state, story.effects) = (state, effects);
            underway.extend(story.begun().iter().filter_map(|begun| begun.strip_prefix("mount ")).map(str::to_owned));
        }
        tries.extend(underway.iter().map(|volume| (millis, volume.clone())));
    }
    let late: Vec<_> = tries.iter().filter(|(millis, _)| *millis > 31_000).collect();
    assert!(late.len() <= 8, "{late:?}");
    let volumes: std::collections::BTreeSet<_> = late.iter().map(|(_, volume)| volume).collect();
    assert_eq!(volumes.len(), 6, "each has its turn");
    assert!(tries.len() > 20, "the first tries are near each other: {tries:?}");
}

#[test]
fn a_few_volumes_are_mounted_at_once() {
    let mut story = Story::new(with_volumes(6));
    let begun = ["mount first", "mount second", "mount third", "mount fourth", "start sandbox", "pull a"];
    assert_eq!(story.begun(), begun);
    story.mounted(1, "second", false);
    assert_eq!(story.begun(), ["mount fifth"]);
    story.mounted(1, "first", true);
    assert_eq!(story.begun(), ["mount sixth"]);
}

/// Upstream does not even mount one.
#[test]
fn nobody_waits_for_a_volume_that_no_container_has() {
    let mut spec = with_volumes(2);
    spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().pop();
    let mut story = Story::new(spec);
    story.done(0, ActionResult::Sandbox(Ok(vec!["10.0.0.7".parse().unwrap()])));
    story.pulled(0);
    story.mounted(1, "second", false);
    story.mounted(1, "first", true);
    assert_eq!(story.begun(), ["start a 0"]);
}

/// Each would be a mount of the node's, and a descriptor of the agent's. Upstream mounts none of them either.
#[test]
fn what_no_container_uses_is_mounted_when_one_does() {
    let mut spec = with_volumes(2);
    spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().remove(1);
    let mut story = Story::new(spec.clone());
    assert_eq!(story.begun(), ["mount first", "start sandbox", "pull a"]);
    story.done(0, ActionResult::Sandbox(Ok(vec!["10.0.0.7".parse().unwrap()])));
    story.pulled(0);
    story.mounted(1, "first", true);
    assert_eq!(story.begun(), ["start a 0"]);
    story.started(2, "x0", 0);
    let mount = json!({ "name": "second", "mountPath": "/second" });
    spec["ephemeralContainers"] = json!([{ "name": "debug", "image": "i:1", "volumeMounts": [mount] }]);
    let wanted = Arc::new(pod(spec));
    let allotment = Allotment::new(&wanted, Allocation::of(&wanted));
    story.at(3, PodEvent::Wanted(wanted, allotment));
    assert_eq!(story.begun(), ["mount second", "pull debug"]);
}

#[test]
fn only_volumes_that_are_mounted_are_brought_up_to_date() {
    let mut story = Story::with_volumes(3);
    story.mounted(1, "first", true);
    story.at(1, PodEvent::Resync);
    assert_eq!(story.begun(), ["refresh first"]);
    let failed = vec![ActionError::new(Reason::FailedMount, "first"), ActionError::new(Reason::FailedMount, "third")];
    story.done(2, ActionResult::VolumesRefreshed(failed));
    assert_eq!((story.begun(), story.events()), (vec![], vec!["FailedMount", "FailedMount"]));
}

#[test]
fn a_pod_that_is_deleted_while_a_volume_is_being_mounted_goes_with_all_of_them() {
    let mut story = Story::with_volumes(2);
    story.mounted(1, "first", true);
    story.at(2, PodEvent::Gone);
    assert_eq!(story.begun(), [""; 0], "one is being mounted");
    // Whatever its result.
    story.mounted(3, "second", false);
    assert_eq!(story.begun(), ["StopSandbox { attempt: 0 }"]);
    story.done(3, ActionResult::SandboxStopped(Ok(())));
    assert_eq!(story.begun(), ["Remove { attempt: 0 }"]);
    story.done(3, ActionResult::Removed(Ok(())));
    assert!(story.state.is_over());
}

#[test]
fn a_pod_that_has_done_its_work_has_its_volumes_unmounted_at_once() {
    let mut spec = with_volumes(2);
    spec["restartPolicy"] = "Never".into();
    let mut story = Story::new(spec);
    story.done(0, ActionResult::Sandbox(Ok(vec!["10.0.0.7".parse().unwrap()])));
    story.pulled(0);
    NAMES[..2].iter().for_each(|name| story.mounted(1, name, true));
    story.started(2, "x0", 0);
    story.exited(3, "x0", 0);
    story.done(3, ActionResult::SandboxStopped(Ok(())));
    assert_eq!((story.begun(), story.state.has_ended()), (vec!["ReleaseVolumes".to_owned()], false));
    assert_eq!(story.state.progress.volumes, PodVolumes::Unmounting);
    story.done(3, ActionResult::VolumesReleased(Ok(())));
    assert_eq!((story.begun(), story.state.has_ended()), (vec![], true));
}

/// A Pod whose one container has ended, and whose volumes are being released: they are not.
fn not_released() -> Story {
    let mut story = Story::ready(json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "i:1" }] }));
    story.started(2, "x0", 0);
    story.exited(3, "x0", 0);
    story.done(3, ActionResult::SandboxStopped(Ok(())));
    assert_eq!(story.begun(), ["ReleaseVolumes"]);
    story.done(4, ActionResult::VolumesReleased(Err(ExecutorError::Failed("busy".into()))));
    story
}

/// As long as its object stays nobody else asks for what it keeps, such as the ids of its users.
#[test]
fn what_a_pod_that_has_ended_does_not_give_back_is_asked_for_again_and_again() {
    let mut story = not_released();
    let failed = |story: &mut Story, second| {
        story.done(second, ActionResult::VolumesReleased(Err(ExecutorError::Failed("busy".into()))));
        assert_eq!(story.begun(), [""; 0]);
    };
    // It has ended all the same.
    assert!(story.state.has_ended());
    let mut last = 4;
    for pause in [1, 1, 2, 4, 8, 16, 32, 64, 122, 122] {
        let due = last + pause;
        if pause > 1 {
            story.at(due - 1, PodEvent::Sync);
            assert_eq!(story.begun(), [""; 0], "{pause}");
        }
        story.at(due, PodEvent::Sync);
        assert_eq!((story.begun(), story.state.has_ended()), (vec!["ReleaseVolumes".to_owned()], true));
        failed(&mut story, due);
        last = due;
    }
    story.at(last + 122, PodEvent::Sync);
    story.done(last + 122, ActionResult::VolumesReleased(Ok(())));
    story.at(last + 1000, PodEvent::Sync);
    assert_eq!((story.begun(), story.state.has_ended()), (vec![], true));
}

/// What is left of it keeps the ids of the Pod's users, so that these are not given back before it has gone.
#[test]
fn a_sandbox_that_could_not_be_stopped_is_stopped_again_and_then_all_is_given_back() {
    let failed = || Err(ExecutorError::Failed("busy".into()));
    let mut story = Story::ready(json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "i:1" }] }));
    story.started(2, "x0", 0);
    story.exited(3, "x0", 0);
    assert_eq!(story.begun(), ["StopSandbox { attempt: 0 }"]);
    story.done(3, ActionResult::SandboxStopped(failed()));
    // It has ended all the same, and its volumes go.
    assert_eq!(story.begun(), ["ReleaseVolumes"]);
    story.done(3, ActionResult::VolumesReleased(failed()));
    assert_eq!((story.begun(), story.state.has_ended()), (vec![], true));
    for second in [4, 6] {
        story.at(second, PodEvent::Sync);
        assert_eq!((story.begun(), story.state.has_ended()), (vec!["StopSandbox { attempt: 0 }".to_owned()], true));
        story.done(second, ActionResult::SandboxStopped(failed()));
        assert_eq!(story.begun(), ["ReleaseVolumes"]);
        story.done(second, ActionResult::VolumesReleased(failed()));
        assert_eq!(story.begun(), [""; 0]);
    }
    // Both are due again at the tenth second at the latest.
    story.at(7, PodEvent::Sync);
    assert_eq!(story.begun(), [""; 0]);
    story.at(10, PodEvent::Sync);
    assert_eq!(story.begun(), ["StopSandbox { attempt: 0 }"]);
    story.done(10, ActionResult::SandboxStopped(failed()));
    story.done(10, ActionResult::VolumesReleased(failed()));
    story.at(14, PodEvent::Sync);
    story.done(14, ActionResult::SandboxStopped(Ok(())));
    assert_eq!(story.begun(), ["ReleaseVolumes"], "it waits no longer");
    story.done(14, ActionResult::VolumesReleased(Ok(())));
    story.at(1000, PodEvent::Sync);
    assert_eq!((story.begun(), story.state.has_ended()), (vec![], true));
}

/// Removing it stops it, too.
#[test]
fn a_pod_whose_sandbox_cannot_be_stopped_is_removed_all_the_same() {
    let mut story = Story::ready(json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "i:1" }] }));
    story.started(2, "x0", 0);
    story.exited(3, "x0", 0);
    story.done(3, ActionResult::SandboxStopped(Err(ExecutorError::Failed("busy".into()))));
    story.done(3, ActionResult::VolumesReleased(Ok(())));
    story.at(4, PodEvent::Sync);
    assert_eq!(story.begun(), ["StopSandbox { attempt: 0 }"]);
    story.at(4, PodEvent::Gone);
    assert_eq!(story.begun(), [""; 0], "it is being stopped");
    story.done(5, ActionResult::SandboxStopped(Err(ExecutorError::Failed("busy".into()))));
    assert_eq!(story.begun(), ["Remove { attempt: 0 }"]);
}

#[test]
fn a_pod_is_removed_when_it_is_not_being_released() {
    let mut story = not_released();
    story.at(5, PodEvent::Sync);
    assert_eq!(story.begun(), ["ReleaseVolumes"]);
    story.at(6, PodEvent::Gone);
    assert_eq!(story.begun(), [""; 0]);
    story.done(7, ActionResult::VolumesReleased(Err(ExecutorError::Failed("busy".into()))));
    assert_eq!(story.begun(), ["Remove { attempt: 0 }"]);
}

/// It may write what its Pod's volumes show when nothing is to be there any more.
#[test]
fn a_pod_ends_when_its_volumes_are_not_being_refreshed() {
    for is_deleted in [true, false] {
        let mut spec = with_volumes(1);
        spec["restartPolicy"] = "Never".into();
        let mut story = Story::new(spec);
        story.done(0, ActionResult::Sandbox(Ok(vec!["10.0.0.7".parse().unwrap()])));
        story.pulled(0);
        story.mounted(1, "first", true);
        story.started(2, "x0", 0);
        story.at(3, PodEvent::Resync);
        assert_eq!(story.begun(), ["refresh first"]);
        if is_deleted {
            story.at(4, PodEvent::Gone);
            assert_eq!(story.begun(), ["stop a None"]);
        }
        story.exited(4, "x0", 0);
        if is_deleted {
            story.done(4, ActionResult::Stopped { container: "a".into(), id: "x0".into(), result: Ok(None) });
        }
        // Another change makes it no longer.
        story.at(5, PodEvent::Resync);
        assert_eq!((story.begun(), story.state.has_ended()), (vec![], false));
        story.done(6, ActionResult::VolumesRefreshed(Vec::new()));
        assert_eq!(story.begun(), ["StopSandbox { attempt: 0 }"]);
        story.done(6, ActionResult::SandboxStopped(Ok(())));
        assert_eq!(story.begun(), [if is_deleted { "Remove { attempt: 0 }" } else { "ReleaseVolumes" }]);
    }
}

/// Mounting what is there already costs little, and finishes what was half done.
#[test]
fn an_agent_that_finds_a_pod_mounts_all_its_volumes_again_and_keeps_its_containers() {
    let pod = Arc::new(pod(with_volumes(2)));
    let allotment = Allotment::new(&pod, Allocation::of(&pod));
    let Known { intent, seen, progress } = Known::with(&[("a", running())]);
    let state = PodState::new(pod, &allotment, (intent, seen, progress), Host::default(), at(0));
    let mut story = Story { state, effects: Vec::new() };
    story.at(0, PodEvent::Start);
    assert_eq!(story.begun(), ["mount first", "mount second"]);
    story.mounted(1, "first", true);
    story.mounted(1, "second", true);
    assert_eq!(story.begun(), [""; 0]);
    assert!(story.state.observed.container("a").is_running());
}
