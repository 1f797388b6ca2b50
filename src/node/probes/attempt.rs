//! One attempt of a probe: its read limit and its CPU cost.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use podwright_api::bounded::Bound;
use podwright_runtime::sys::own::thread_time;

/// Limit for everything read of a server's response, including interim responses, redirects, pings, and the TLS handshake: no valid
/// head is longer, and less of a body is used.
const MAX_READ: usize = 256 << 10;

pub struct Attempt {
    pub bound: Bound,
    pub cost: Cost,
}

impl Default for Attempt {
    fn default() -> Attempt {
        Attempt { bound: Bound::new(MAX_READ), cost: Cost::default() }
    }
}

/// The CPU time of several tasks, in nanoseconds. Cheap to clone.
#[derive(Clone, Default)]
pub struct Cost(Arc<AtomicU64>);

impl Cost {
    /// Runs a task and counts its CPU time here.
    pub async fn of<F: Future>(self, task: F) -> F::Output {
        let mut task = pin!(task);
        poll_fn(|context| {
            let begun = thread_time();
            let polled = task.as_mut().poll(context);
            self.add(thread_time().saturating_sub(begun));
            polled
        })
        .await
    }

    pub fn add(&self, took: Duration) {
        self.0.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    pub fn so_far(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_costs_what_it_computes_and_nothing_while_it_waits() {
        let cost = Cost::default();
        cost.clone().of(tokio::time::sleep(Duration::from_millis(50))).await;
        assert!(cost.so_far() < Duration::from_millis(20), "{:?}", cost.so_far());
        let busy = async {
            let begun = thread_time();
            while thread_time() - begun < Duration::from_millis(30) {}
        };
        cost.clone().of(busy).await;
        assert!(cost.so_far() >= Duration::from_millis(30), "{:?}", cost.so_far());
    }
}
