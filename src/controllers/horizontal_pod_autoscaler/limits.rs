//! Limits on scaling: the bounds, recent recommendations, and the rate.
//!
//! Upstream: `pkg/controller/podautoscaler/horizontal.go`, `normalizeDesiredReplicas` and what it calls.

use std::time::Duration;

use jiff::Timestamp;

use super::spec::{Amount, Behavior, Rules, Select};
use podwright_api::selector::LabelSelector;

/// Without a behavior it may double, or scale up to this many.
const LEAST_LIMIT: i32 = 4;

/// What is remembered of one autoscaler. It is lost by a restart: then the current size counts as the first recommendation, so that
/// nothing is scaled down before a stabilization window has passed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The autoscaler's uid.
    pub uid: String,
    /// The selector of its target.
    pub selector: Option<LabelSelector>,
    /// Recommendations before stabilization.
    wishes: Vec<(Timestamp, i32)>,
    /// The sizes of scale-ups and scale-downs.
    ups: Vec<(Timestamp, i32)>,
    downs: Vec<(Timestamp, i32)>,
    /// When it was last scaled.
    last: Option<Timestamp>,
}

/// The result for a recommendation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    pub replicas: i32,
    /// Reason and message of `AbleToScale`.
    pub able: (&'static str, &'static str),
    /// Whether it is limited, and reason and message of `ScalingLimited`.
    pub limited: (bool, &'static str, &'static str),
}

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: (&str, &str) = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

/// A recommendation with its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    pub current: i32,
    pub wanted: i32,
    pub min: i32,
    pub max: i32,
    pub behavior: Option<&'a Behavior>,
    /// Without a behavior: how long a higher recommendation stays in effect.
    pub downscale_stabilization: Duration,
    pub now: Timestamp,
}

impl History {
    pub fn of(uid: &str) -> History {
        History { uid: uid.to_owned(), ..History::default() }
    }

    /// Starts with the current size, unless there is a history.
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.wishes.is_empty() {
            self.wishes.push((now, current));
        }
    }

    /// Applies a recommendation as far as allowed, and remembers it.
    pub fn follow(&mut self, wish: &Wish<'_>) -> Verdict {
        let (stable, able) = match wish.behavior {
            None => self.highest(wish),
            Some(behavior) => self.between(wish, behavior),
        };
        let able = if stable == wish.wanted { READY } else { able };
        self.remember(wish);
        let (replicas, (reason, message)) = match wish.behavior {
            None => within(wish, stable),
            Some(behavior) => self.paced(wish, behavior, stable),
        };
        Verdict { replicas, able, limited: (replicas != stable, reason, message) }
    }

    /// The highest recommendation of the window.
    fn highest(&self, wish: &Wish<'_>) -> (i32, (&'static str, &'static str)) {
        let since = earlier(wish.now, wish.downscale_stabilization);
        let recent = self.wishes.iter().filter(|(at, _)| *at >= since).map(|(_, wanted)| *wanted);
        (recent.fold(wish.wanted, i32::max), DOWN_STABILIZED)
    }

    /// The current size, changed no further than all recommendations in a direction's window agree on.
    fn between(&self, wish: &Wish<'_>, behavior: &Behavior) -> (i32, (&'static str, &'static str)) {
        let recent = |window: Duration| {
            let since = earlier(wish.now, window);
            self.wishes.iter().filter(move |(at, _)| *at > since).map(|(_, wanted)| *wanted)
        };
        let up = recent(behavior.up.window).fold(wish.wanted, i32::min);
        let down = recent(behavior.down.window).fold(wish.wanted, i32::max);
        let why = if wish.wanted >= wish.current { UP_STABILIZED } else { DOWN_STABILIZED };
        (wish.current.max(up).min(down), why)
    }

    fn remember(&mut self, wish: &Wish<'_>) {
        let window = wish.behavior.map_or(wish.downscale_stabilization, |b| b.up.window.max(b.down.window));
        let since = earlier(wish.now, window);
        self.wishes.retain(|(at, _)| *at >= since);
        self.wishes.push((wish.now, wish.wanted));
    }

    /// Limited by the bounds and the rate.
    fn paced(&self, wish: &Wish<'_>, behavior: &Behavior, stable: i32) -> (i32, (&'static str, &'static str)) {
        if stable > wish.current {
            let limit = self.limit(wish, &behavior.up, Direction::Up).max(wish.current);
            let (most, why) = if wish.max > limit { (limit, UP_LIMIT) } else { (wish.max, TOO_MANY) };
            if stable > most {
                return (most, why);
            }
        } else if stable < wish.current {
            let limit = self.limit(wish, &behavior.down, Direction::Down).min(wish.current);
            let (least, why) = if wish.min < limit { (limit, DOWN_LIMIT) } else { (wish.min, TOO_FEW) };
            if stable < least {
                return (least, why);
            }
        }
        (stable, WITHIN)
    }

    /// The limit of the policies.
    fn limit(&self, wish: &Wish<'_>, rules: &Rules, direction: Direction) -> i32 {
        let allowed = rules.policies.iter().map(|policy| {
            let since = earlier(wish.now, policy.period);
            let changed = |events: &[(Timestamp, i32)]| {
                events.iter().filter(|(at, _)| *at > since).fold(0i32, |sum, (_, by)| sum.saturating_add(*by))
            };
            // The size when the period began.
            let start = wish.current.saturating_sub(changed(&self.ups)).saturating_add(changed(&self.downs));
            let share = |percent: i32| f64::from(percent) / 100.0;
            match (direction, policy.amount) {
                (Direction::Up, Amount::Pods(count)) => start.saturating_add(count),
                // Rounded up: otherwise a small number would never grow.
                (Direction::Up, Amount::Percent(percent)) => (f64::from(start) * (1.0 + share(percent))).ceil() as i32,
                (Direction::Down, Amount::Pods(count)) => start.saturating_sub(count),
                (Direction::Down, Amount::Percent(percent)) => (f64::from(start) * (1.0 - share(percent))) as i32,
            }
        });
        let found = match (rules.select, direction) {
            (Select::Disabled, _) => None,
            (Select::Max, Direction::Up) | (Select::Min, Direction::Down) => allowed.max(),
            (Select::Min, Direction::Up) | (Select::Max, Direction::Down) => allowed.min(),
        };
        found.unwrap_or(wish.current)
    }

    /// Records a scaling.
    pub fn scaled(&mut self, behavior: Option<&Behavior>, from: i32, to: i32, now: Timestamp) {
        self.last = Some(now);
        // Without a behavior it is not needed.
        let Some(behavior) = behavior else { return };
        let (events, rules, by) = match to > from {
            true => (&mut self.ups, &behavior.up, to.saturating_sub(from)),
            false => (&mut self.downs, &behavior.down, from.saturating_sub(to)),
        };
        let since = earlier(now, rules.longest());
        events.retain(|(at, _)| *at >= since);
        events.push((now, by));
    }

    /// Reverts the last `scaled`, which failed.
    pub fn not_scaled(&mut self) {
        if let Some(last) = self.last.take() {
            self.ups.retain(|(at, _)| *at != last);
            self.downs.retain(|(at, _)| *at != last);
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// Limited by the bounds; without a behavior only more than doubling is too fast.
fn within(wish: &Wish<'_>, stable: i32) -> (i32, (&'static str, &'static str)) {
    let limit = wish.current.saturating_mul(2).max(LEAST_LIMIT);
    let (most, why) = if wish.max > limit { (limit, UP_LIMIT) } else { (wish.max, TOO_MANY) };
    match stable {
        stable if stable < wish.min => (wish.min, TOO_FEW),
        stable if stable > most => (most, why),
        stable => (stable, WITHIN),
    }
}

fn earlier(now: Timestamp, by: Duration) -> Timestamp {
    now.checked_sub(by).unwrap_or(Timestamp::MIN)
}
