//! The scheduler's metrics, under upstream's names (`pkg/scheduler/metrics`).

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use prometheus_client::registry::Unit;

use podwright_api::instruments::{self, exponential};

/// The result of an attempt to schedule a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl Outcome {
    /// Upstream's label value.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Scheduled => "scheduled",
            Outcome::Unschedulable => "unschedulable",
            Outcome::Error => "error",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Attempt {
    profile: String,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Waiting {
    queue: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Incoming {
    queue: &'static str,
    event: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Tries {
    attempts: &'static str,
}

/// All metrics; the functions below document them.
pub struct Metrics {
    attempts: Family<Attempt, Counter>,
    durations: Family<Attempt, Histogram>,
    algorithm: Histogram,
    pending: Family<Waiting, Gauge>,
    incoming: Family<Incoming, Counter>,
    tries: Histogram,
    sli: Family<Tries, Histogram>,
    preemptions: Counter,
    victims: Histogram,
}

fn milliseconds() -> Histogram {
    Histogram::new(exponential(0.001, 2.0, 15))
}

fn long() -> Histogram {
    Histogram::new(exponential(0.01, 2.0, 20))
}

/// Shared by all schedulers of this process.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        attempts: Family::default(),
        durations: Family::new_with_constructor(milliseconds as fn() -> Histogram),
        algorithm: milliseconds(),
        pending: Family::default(),
        incoming: Family::default(),
        tries: Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0]),
        sli: Family::new_with_constructor(long as fn() -> Histogram),
        preemptions: Counter::default(),
        victims: Histogram::new(exponential(1.0, 2.0, 7)),
    };
    instruments::declare(|registry| {
        let help = "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, \
            while 'error' means an internal scheduler problem";
        registry.register("scheduler_schedule_attempts", help, metrics.attempts.clone());
        let help = "Scheduling attempt latency in seconds (scheduling algorithm + binding)";
        let durations = metrics.durations.clone();
        registry.register_with_unit("scheduler_scheduling_attempt_duration", help, Unit::Seconds, durations);
        let help = "Scheduling algorithm latency in seconds";
        let algorithm = metrics.algorithm.clone();
        registry.register_with_unit("scheduler_scheduling_algorithm_duration", help, Unit::Seconds, algorithm);
        let help = "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means \
            number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler \
            attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never \
            attempted to schedule because they are gated";
        registry.register("scheduler_pending_pods", help, metrics.pending.clone());
        let help = "Number of pods added to scheduling queues by event and queue type";
        registry.register("scheduler_queue_incoming_pods", help, metrics.incoming.clone());
        let help = "Number of attempts to successfully schedule a pod";
        registry.register("scheduler_pod_scheduling_attempts", help, metrics.tries.clone());
        let help = "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue";
        let sli = metrics.sli.clone();
        registry.register_with_unit("scheduler_pod_scheduling_sli_duration", help, Unit::Seconds, sli);
        let help = "Total preemption attempts in the cluster till now";
        registry.register("scheduler_preemption_attempts", help, metrics.preemptions.clone());
        registry.register(
            "scheduler_preemption_victims",
            "Number of selected preemption victims",
            metrics.victims.clone(),
        );
    });
    metrics
});

impl Metrics {
    /// A decision was made.
    pub fn decided(&self, took: Duration) {
        self.algorithm.observe(took.as_secs_f64());
    }

    /// An attempt ended, `took` after its start.
    pub fn attempted(&self, profile: &str, outcome: Outcome, took: Duration) {
        let result = outcome.name();
        let attempt = Attempt { profile: profile.to_owned(), result };
        self.attempts.get_or_create(&attempt).inc();
        self.durations.get_or_create(&attempt).observe(took.as_secs_f64());
    }

    /// A Pod was scheduled, after this many attempts and this long in the queue.
    pub fn scheduled(&self, tries: u32, after: Duration) {
        self.tries.observe(f64::from(tries));
        // As upstream, which counts up to 15 individually.
        const SINGLY: [&str; 17] =
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16+"];
        let attempts = SINGLY[usize::try_from(tries).unwrap_or(usize::MAX).min(SINGLY.len() - 1)];
        self.sli.get_or_create(&Tries { attempts }).observe(after.as_secs_f64());
    }

    /// A Pod entered a part of the queue (`by` is 1), or left it (-1).
    pub fn pending(&self, queue: &'static str, by: i64) {
        self.pending.get_or_create(&Waiting { queue }).inc_by(by);
    }

    /// Why a Pod entered a part of the queue.
    pub fn incoming(&self, queue: &'static str, event: &'static str) {
        self.incoming.get_or_create(&Incoming { queue, event }).inc();
    }

    /// This many Pods are preempted for another one.
    pub fn preempted(&self, victims: usize) {
        self.preemptions.inc();
        self.victims.observe(victims as f64);
    }
}
