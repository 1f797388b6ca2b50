//! Durations within a decision, under upstream's names: of each extension point, and for one decision in ten of each plugin
//! (`pkg/scheduler/framework/runtime`).
//!
//! A decision runs on a single thread, which records whether its plugins are timed. Filters are timed on the first few nodes only,
//! so that a large cluster costs no more.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{family::Family, histogram::Histogram};

use super::point::Point;
use podwright_api::instruments::{self, Maker, exponential};

/// One of this many decisions is sampled.
const ONE_IN: u64 = 10;
/// On how many nodes each filter plugin is timed.
pub const NODES: usize = 8;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfPoint {
    extension_point: &'static str,
    status: &'static str,
    profile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfPlugin {
    plugin: &'static str,
    extension_point: &'static str,
    status: &'static str,
}

struct Times {
    points: Family<OfPoint, Histogram>,
    plugins: Family<OfPlugin, Histogram>,
}

static TIMES: LazyLock<Times> = LazyLock::new(|| {
    instruments::declare(|registry| {
        let mut make = Maker(registry);
        Times {
            points: make.seconds(
                "scheduler_framework_extension_point_duration",
                "Latency for running all plugins of a specific extension point",
                || Histogram::new(exponential(0.0001, 2.0, 12)),
            ),
            plugins: make.seconds(
                "scheduler_plugin_execution_duration",
                "Duration for running a plugin at a specific extension point",
                || Histogram::new(exponential(0.00001, 1.5, 20)),
            ),
        }
    })
});

thread_local! {
    static SAMPLED: Cell<bool> = const { Cell::new(false) };
}

/// Makes a decision, timing its plugins if it is sampled.
pub fn decision<T>(work: impl FnOnce() -> T) -> T {
    static MADE: AtomicU64 = AtomicU64::new(0);
    /// Runs also on a panic.
    struct Over(bool);
    impl Drop for Over {
        fn drop(&mut self) {
            SAMPLED.set(self.0);
        }
    }
    let _over = Over(SAMPLED.replace(MADE.fetch_add(1, Ordering::Relaxed).is_multiple_of(ONE_IN)));
    work()
}

/// Runs all plugins of an extension point; `status` is derived from the result.
pub fn point<T>(point: Point, profile: &str, work: impl FnOnce() -> T, status: impl FnOnce(&T) -> &'static str) -> T {
    let began = Instant::now();
    let done = work();
    took(point, profile, status(&done), began.elapsed());
    done
}

/// Records an extension point that does not end where it starts.
pub fn took(point: Point, profile: &str, status: &'static str, time: Duration) {
    let labels = OfPoint { extension_point: point.name(), status, profile: profile.to_owned() };
    TIMES.points.get_or_create(&labels).observe(time.as_secs_f64());
}

/// Runs one plugin.
pub fn plugin<T>(
    plugin: &'static str,
    point: Point,
    work: impl FnOnce() -> T,
    status: impl FnOnce(&T) -> &'static str,
) -> T {
    if !SAMPLED.get() {
        return work();
    }
    let began = Instant::now();
    let done = work();
    let labels = OfPlugin { plugin, extension_point: point.name(), status: status(&done) };
    TIMES.plugins.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
    done
}

/// Upstream's label for success.
pub fn success<T>(_: &T) -> &'static str {
    "Success"
}

pub fn or_error<T, E>(done: &Result<T, E>) -> &'static str {
    if done.is_ok() { "Success" } else { "Error" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ten_decisions_one_has_its_plugins_timed() {
        let timed = |sampled: bool| {
            let labels = OfPlugin { plugin: "Test", extension_point: "Filter", status: "Success" };
            let _ = TIMES.plugins.get_or_create(&labels);
            plugin("Test", Point::Filter, || SAMPLED.get() == sampled, success)
        };
        assert!(timed(false), "outside of a decision nothing is");
        // Other threads of this process may be sampled meanwhile.
        let count = (0..1000).filter(|_| decision(|| SAMPLED.get())).count();
        assert!((1..=500).contains(&count), "{count}");
        assert!(!SAMPLED.get());
        let text = {
            let mut text = String::new();
            let mut registry = prometheus_client::registry::Registry::default();
            registry.register("plugins", "", TIMES.plugins.clone());
            registry.register("points", "", TIMES.points.clone());
            point(Point::PreBind, "a-profile", || Err::<(), ()>(()), or_error).unwrap_err();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        assert!(
            text.contains("points_count{extension_point=\"PreBind\",status=\"Error\",profile=\"a-profile\"} 1"),
            "{text}"
        );
    }
}
