//! How far and how fast a recommendation for replicas is followed.

use std::time::Duration;

use podwright::controllers::horizontal_pod_autoscaler::{Behavior, History, Verdict, Wish};
use serde_json::{Value, json};

use super::{super::at, read};

/// An autoscaler over time. It begins, at 0, with `current` replicas.
struct Story {
    history: History,
    behavior: Option<Behavior>,
    bounds: (i32, i32),
    current: i32,
}

impl Story {
    fn of(current: i32, bounds: (i32, i32), behavior: Value) -> Story {
        let behavior = read(json!({ "behavior": behavior })).behavior;
        let mut history = History::default();
        history.begin(current, at(0));
        Story { history, behavior, bounds, current }
    }

    fn wish(&mut self, second: i64, wanted: i32) -> Verdict {
        self.history.follow(&Wish {
            current: self.current,
            wanted,
            min: self.bounds.0,
            max: self.bounds.1,
            behavior: self.behavior.as_ref(),
            downscale_stabilization: Duration::from_secs(300),
            now: at(second),
        })
    }

    /// Recommends, and scales as the verdict says; returns the replicas then, and the reason of `ScalingLimited`.
    fn scale(&mut self, second: i64, wanted: i32) -> (i32, &'static str) {
        let Verdict { replicas, limited: (_, reason, _), .. } = self.wish(second, wanted);
        if replicas != self.current {
            self.history.scaled(self.behavior.as_ref(), self.current, replicas, at(second));
        }
        self.current = replicas;
        (replicas, reason)
    }
}

/// Rules for one direction, without stabilization.
fn rules(select: &str, policies: &[(&str, i32, u32)]) -> Value {
    let policies: Vec<Value> = policies
        .iter()
        .map(|(kind, value, period)| json!({ "type": kind, "value": value, "periodSeconds": period }))
        .collect();
    json!({ "selectPolicy": select, "stabilizationWindowSeconds": 0, "policies": policies })
}

fn up(select: &str, policies: &[(&str, i32, u32)]) -> Value {
    json!({ "scaleUp": rules(select, policies), "scaleDown": rules("Max", &[("Percent", 100, 15)]) })
}

fn down(select: &str, policies: &[(&str, i32, u32)]) -> Value {
    json!({ "scaleUp": rules("Max", &[("Percent", 100, 15)]), "scaleDown": rules(select, policies) })
}

#[test]
fn without_a_behavior_it_may_double() {
    for (current, wanted, bounds, replicas, limited, reason) in [
        (3, 5, (1, 10), 5, false, "DesiredWithinRange"),
        (3, 20, (1, 100), 6, true, "ScaleUpLimit"),
        (1, 10, (1, 10), 4, true, "ScaleUpLimit"),
        (5, 11, (1, 8), 8, true, "TooManyReplicas"),
        (2, 1, (2, 10), 2, false, "DesiredWithinRange"),
        (3, 3, (1, 10), 3, false, "DesiredWithinRange"),
    ] {
        let verdict = Story::of(current, bounds, json!(null)).wish(15, wanted);
        let (is_limited, why, _) = verdict.limited;
        assert_eq!((verdict.replicas, is_limited, why), (replicas, limited, reason), "{current} to {wanted}");
    }
    let mut story = Story::of(5, (2, 10), json!(null));
    assert_eq!(story.scale(301, 0), (2, "TooFewReplicas"));
}

#[test]
fn the_highest_wish_of_five_minutes_holds() {
    let mut story = Story::of(10, (1, 20), json!(null));
    for (second, wanted, replicas, reason) in [
        (15, 3, 10, "ScaleDownStabilized"),
        (30, 12, 12, "ReadyForNewScale"),
        (45, 3, 12, "ScaleDownStabilized"),
        (300, 4, 12, "ScaleDownStabilized"),
        (330, 4, 12, "ScaleDownStabilized"),
        (331, 4, 4, "ReadyForNewScale"),
    ] {
        let verdict = story.wish(second, wanted);
        assert_eq!((verdict.replicas, verdict.able.0), (replicas, reason), "after {second} s");
        story.current = verdict.replicas;
    }
}

#[test]
fn a_window_of_its_own_for_each_direction() {
    let mut behavior = up("Max", &[("Percent", 1000, 15)]);
    behavior["scaleUp"]["stabilizationWindowSeconds"] = 60.into();
    behavior["scaleDown"]["stabilizationWindowSeconds"] = 120.into();
    let mut story = Story::of(3, (1, 100), behavior);
    for (second, wanted, replicas, reason) in [
        (15, 8, 3, "ScaleUpStabilized"),
        (30, 6, 3, "ScaleUpStabilized"),
        (45, 9, 3, "ScaleUpStabilized"),
        // The first 3 is forgotten: the lowest of 8, 6, 9 and 7.
        (60, 7, 6, "ScaleUpStabilized"),
        (75, 2, 6, "ScaleDownStabilized"),
        (90, 2, 6, "ScaleDownStabilized"),
        // Recommendations too old for scaling up still count for scaling down.
        (140, 2, 6, "ScaleDownStabilized"),
        (164, 2, 6, "ScaleDownStabilized"),
        // The 9 at 45 and the 8 at 15 are forgotten; the 7 at 60 would be more than the current replicas.
        (180, 2, 2, "ReadyForNewScale"),
    ] {
        let verdict = story.wish(second, wanted);
        assert_eq!((verdict.replicas, verdict.able.0), (replicas, reason), "after {second} s");
        story.current = verdict.replicas;
    }
}

#[test]
fn the_window_down_is_five_minutes_where_none_is_given() {
    let spec = read(
        json!({ "behavior": { "scaleUp": rules("Max", &[("Pods", 1, 15)]), "scaleDown": { "selectPolicy": "Max" } } }),
    );
    let behavior = spec.behavior.unwrap();
    assert_eq!((behavior.up.window.as_secs(), behavior.down.window.as_secs()), (0, 300));
}

#[test]
fn policies_bound_one_step() {
    let both = [("Pods", 4, 60), ("Percent", 100, 60)];
    let fine = [("Pods", 5, 60), ("Percent", 10, 60)];
    for (why, behavior, current, wanted, replicas, reason) in [
        ("up by the most", up("Max", &both), 3, 20, 7, "ScaleUpLimit"),
        ("up by the least", up("Min", &both), 3, 20, 6, "ScaleUpLimit"),
        ("not up at all", up("Disabled", &both), 3, 20, 3, "ScaleUpLimit"),
        ("up within the policies", up("Max", &both), 3, 6, 6, "DesiredWithinRange"),
        ("up to the most there may be", up("Max", &both), 98, 150, 100, "TooManyReplicas"),
        ("up by a share, rounded up", up("Max", &[("Percent", 10, 60)]), 1, 9, 2, "ScaleUpLimit"),
        ("down by the most", down("Max", &fine), 80, 10, 72, "ScaleDownLimit"),
        ("down by the least", down("Min", &fine), 80, 10, 75, "ScaleDownLimit"),
        ("not down at all", down("Disabled", &fine), 80, 10, 80, "ScaleDownLimit"),
        ("down within the policies", down("Max", &fine), 80, 74, 74, "DesiredWithinRange"),
        ("down to the least there may be", down("Max", &[("Pods", 50, 60)]), 20, 1, 2, "TooFewReplicas"),
        ("down by a share, rounded down", down("Max", &[("Percent", 10, 60)]), 72, 1, 64, "ScaleDownLimit"),
    ] {
        assert_eq!(Story::of(current, (2, 100), behavior).scale(15, wanted), (replicas, reason), "{why}");
    }
}

#[test]
fn policies_bound_a_whole_period() {
    let mut story = Story::of(3, (1, 100), up("Max", &[("Pods", 4, 60)]));
    assert_eq!(story.scale(15, 50), (7, "ScaleUpLimit"));
    assert_eq!(story.scale(30, 50), (7, "ScaleUpLimit"), "it has had its four");
    assert_eq!(story.scale(74, 50).0, 7);
    assert_eq!(story.scale(75, 50).0, 11);
    let mut story = Story::of(80, (1, 100), down("Max", &[("Percent", 10, 60)]));
    let steps: Vec<i32> = [15, 30, 75, 90, 135].map(|second| story.scale(second, 1).0).into();
    assert_eq!(steps, [72, 72, 64, 64, 57]);
    // Changes in the other direction within the period count as well: from 9 it went up to 13, so 9 - 3 is the lower bound.
    let behavior =
        json!({ "scaleUp": rules("Max", &[("Pods", 4, 60)]), "scaleDown": rules("Max", &[("Pods", 3, 60)]) });
    let mut story = Story::of(9, (1, 100), behavior);
    assert_eq!(story.scale(15, 50).0, 13);
    assert_eq!(story.scale(30, 1).0, 6);
}

#[test]
fn each_policy_has_a_period_of_its_own() {
    let mut story = Story::of(3, (1, 100), up("Max", &[("Pods", 4, 60), ("Pods", 3, 15)]));
    let steps: Vec<i32> = [15, 20, 30, 45].map(|second| story.scale(second, 50).0).into();
    assert_eq!(steps, [7, 7, 10, 13]);
}

#[test]
fn new_policies_turn_nothing_back() {
    let behavior = |behavior| read(json!({ "behavior": behavior })).behavior;
    let mut story = Story::of(3, (1, 100), up("Max", &[("Pods", 6, 60)]));
    assert_eq!(story.scale(15, 50).0, 9);
    story.behavior = behavior(up("Max", &[("Pods", 4, 60)]));
    assert_eq!(story.scale(30, 50), (9, "ScaleUpLimit"), "not to the 7 that it would have come to");
    let mut story = Story::of(80, (1, 100), down("Max", &[("Pods", 10, 60)]));
    assert_eq!(story.scale(15, 1).0, 70);
    story.behavior = behavior(down("Max", &[("Pods", 5, 60)]));
    assert_eq!(story.scale(30, 1), (70, "ScaleDownLimit"), "nor to 75");
}

#[test]
fn what_has_failed_does_not_count() {
    let mut story = Story::of(3, (1, 100), up("Max", &[("Pods", 4, 60)]));
    assert_eq!(story.wish(15, 50).replicas, 7);
    story.history.scaled(story.behavior.as_ref(), 3, 7, at(15));
    story.history.not_scaled();
    assert_eq!(story.wish(30, 50).replicas, 7, "still from 3");
}
