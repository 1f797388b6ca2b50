//! The whole control plane in one thread, on a paused clock: servers, store, controllers, schedulers, and hollow nodes.
//!
//! `whole.rs` draws operations from a seed and does them to a cluster, then waits until it is at rest again, thousands of
//! times; the other tests do one thing. At every write, and at rest, the table in `invariants/` is checked. A failure
//! names its seed and tells the operations. The seed determines the run, write by write (`seeds.rs`):
//!
//! - `SIMULATION_SEED=n`: the run of this seed;
//! - `SIMULATION_RUNS=n`: so many runs, of this seed and those that follow (otherwise as many as fit in [`SECONDS`]).

mod budgets;
mod claims;
mod cluster;
mod history;
mod invariants;
mod jobs;
mod leaders;
mod machines;
mod nodes;
mod operations;
mod past;
mod planes;
mod rough;
mod scalings;
mod seeds;
mod sets;
mod stories;
mod usage;
mod whole;
mod wishes;
mod workloads;
mod world;
mod zones;

use std::time::Duration;

use rand::RngExt;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// How long a cluster may take to come to rest: an eviction takes its 300 s of tolerance after 50 s of silence.
const REST: Duration = Duration::from_secs(1800);
/// How long runs are begun, where nobody says how many.
const SECONDS: Duration = Duration::from_secs(40);

fn run(test: impl Future<Output = ()>) {
    // `RUST_LOG=podwright=debug` tells what is refused and why.
    let levels = std::env::var("RUST_LOG").unwrap_or_default().parse::<Targets>().unwrap_or_default();
    let log = tracing_subscriber::fmt::layer().with_test_writer();
    tracing_subscriber::registry().with(levels).with(log).try_init().ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(test);
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// The seed of the first run: one that nobody knows, unless somebody says.
fn first_seed() -> u64 {
    let seed = number("SIMULATION_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    println!("SIMULATION_SEED={seed}");
    seed
}
