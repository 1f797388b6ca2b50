//! Probe results, and verdicts by their thresholds. Pure.

use k8s_openapi::api::core::v1::{Container, Probe};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Startup => "startup",
            Kind::Liveness => "liveness",
            Kind::Readiness => "readiness",
        }
    }
    pub(super) fn title(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }
}

/// The conclusion of a probe after applying its thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Bad,
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    Success,
    /// A success with a warning (a redirect to another host).
    Warning(String),
    Failure(String),
}

/// The container's probe of this kind.
pub fn spec(container: &Container, kind: Kind) -> Option<&Probe> {
    match kind {
        Kind::Startup => container.startup_probe.as_ref(),
        Kind::Liveness => container.liveness_probe.as_ref(),
        Kind::Readiness => container.readiness_probe.as_ref(),
    }
}

/// Counts consecutive results against the thresholds.
#[derive(Clone, Debug)]
pub struct Counter {
    success_threshold: u32,
    failure_threshold: u32,
    last: Option<Verdict>,
    run: u32,
}

impl Counter {
    pub fn new(probe: &Probe) -> Counter {
        let at_least_one = |n: Option<i32>, default: i32| n.unwrap_or(default).max(1) as u32;
        Counter {
            success_threshold: at_least_one(probe.success_threshold, 1),
            failure_threshold: at_least_one(probe.failure_threshold, 3),
            last: None,
            run: 0,
        }
    }

    /// The verdict after one more result; `None` while no threshold is reached.
    pub fn count(&mut self, finding: &Finding) -> Option<Verdict> {
        let now = if matches!(finding, Finding::Failure(_)) { Verdict::Bad } else { Verdict::Good };
        self.run = if self.last == Some(now) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(now);
        let needed = if now == Verdict::Good { self.success_threshold } else { self.failure_threshold };
        (self.run >= needed).then_some(now)
    }
}
