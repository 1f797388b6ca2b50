//! Metrics of work queues, under the names of upstream's `k8s.io/component-base/metrics/prometheus/workqueue`.

use std::sync::{LazyLock, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use prometheus_client::registry::Unit;
use tokio::time::Instant;

use podwright_api::instruments::{self, Fraction, exponential};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Named {
    name: &'static str,
}

/// The metrics of all queues, by name.
struct All {
    adds: Family<Named, Counter>,
    depth: Family<Named, Gauge>,
    waited: Family<Named, Histogram>,
    worked: Family<Named, Histogram>,
    retries: Family<Named, Counter>,
    unfinished: Family<Named, Fraction>,
    longest: Family<Named, Fraction>,
}

fn seconds() -> Histogram {
    Histogram::new(exponential(1e-8, 10.0, 10))
}

static ALL: LazyLock<All> = LazyLock::new(|| {
    let histograms = || Family::new_with_constructor(seconds as fn() -> Histogram);
    let all = All {
        adds: Family::default(),
        depth: Family::default(),
        waited: histograms(),
        worked: histograms(),
        retries: Family::default(),
        unfinished: Family::default(),
        longest: Family::default(),
    };
    instruments::declare(|registry| {
        registry.register("workqueue_adds", "Total number of adds handled by workqueue", all.adds.clone());
        registry.register("workqueue_depth", "Current depth of workqueue", all.depth.clone());
        let help = "How long in seconds an item stays in workqueue before being requested";
        registry.register_with_unit("workqueue_queue_duration", help, Unit::Seconds, all.waited.clone());
        let help = "How long in seconds processing an item from workqueue takes";
        registry.register_with_unit("workqueue_work_duration", help, Unit::Seconds, all.worked.clone());
        registry.register("workqueue_retries", "Total number of retries handled by workqueue", all.retries.clone());
        let help = "How many seconds of work is in progress and has not been observed by work_duration";
        registry.register_with_unit("workqueue_unfinished_work", help, Unit::Seconds, all.unfinished.clone());
        let help = "How many seconds the longest running processor for workqueue has been running";
        registry.register_with_unit("workqueue_longest_running_processor", help, Unit::Seconds, all.longest.clone());
    });
    instruments::before_exposition(refresh);
    all
});

/// Collects the start times of running work when metrics are exposed. False: the queue is gone.
type Look = Box<dyn Fn(&mut Vec<Instant>) -> bool + Send>;

static QUEUES: Mutex<Vec<(&'static str, Look)>> = Mutex::new(Vec::new());

fn refresh() {
    let now = Instant::now();
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut running: std::collections::BTreeMap<&'static str, Vec<Instant>> = std::collections::BTreeMap::new();
    queues.retain(|(name, look)| look(running.entry(name).or_default()));
    for (name, began) in running {
        let ages = began.iter().map(|began| now.duration_since(*began).as_secs_f64());
        ALL.unfinished.get_or_create(&Named { name }).set(ages.clone().sum());
        ALL.longest.get_or_create(&Named { name }).set(ages.fold(0.0, f64::max));
    }
}

/// The metrics of one queue.
#[derive(Clone)]
pub(super) struct QueueMetrics {
    pub adds: Counter,
    pub depth: Gauge,
    pub waited: Histogram,
    pub worked: Histogram,
    pub retries: Counter,
}

impl QueueMetrics {
    pub fn of(name: &'static str) -> QueueMetrics {
        let named = Named { name };
        QueueMetrics {
            adds: ALL.adds.get_or_create_owned(&named),
            depth: ALL.depth.get_or_create_owned(&named),
            waited: ALL.waited.get_or_create_owned(&named),
            worked: ALL.worked.get_or_create_owned(&named),
            retries: ALL.retries.get_or_create_owned(&named),
        }
    }

    /// Registers `look` for running work.
    pub fn watch(name: &'static str, look: impl Fn(&mut Vec<Instant>) -> bool + Send + 'static) {
        LazyLock::force(&ALL);
        QUEUES.lock().unwrap_or_else(PoisonError::into_inner).push((name, Box::new(look)));
    }
}
