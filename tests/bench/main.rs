//! `./dev bench`: the design's budgets, measured on a release build, beside a peer where one is installed.
//!
//! Every figure is printed with its budget and whether it is met. Nothing here fails: a missed budget is reported, not hidden.
//! Figures depend on the machine's other work, so its load is printed too.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod dataplane;
mod idle;
mod network;
mod nodes;
mod podman;
mod pods;
mod policies;
mod rest;
mod rollout;
mod scheduler;
mod sizes;
mod store;

/// One benchmark: its name on the command line, and its function.
const BENCHES: &[(&str, fn())] = &[
    ("ready", idle::ready),
    ("start", pods::start),
    ("user-namespaces", pods::user_namespaces),
    ("journal", pods::journal),
    ("thirty", pods::thirty),
    ("memory", pods::memory),
    ("idle", idle::idle),
    ("podman", podman::thirty),
    ("store", store::writes),
    ("api", api::writes),
    ("requests", rest::requests),
    ("watchers", rest::watchers),
    ("stored", rest::stored),
    ("scheduler", scheduler::speed),
    ("rollout", rollout::deployment),
    ("endpoint", dataplane::endpoint),
    ("routes", network::routes),
    ("vxlan", network::vxlan),
    ("failover", network::failover),
    ("join", nodes::join),
    ("agents", nodes::agents),
    ("rolling", nodes::rolling),
    ("policies", policies::changes),
    ("sizes", sizes::binaries),
];

fn main() {
    // Cargo itself adds `--bench`.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let names = || BENCHES.iter().map(|(name, _)| *name).collect::<Vec<&str>>().join(" ");
    if wanted.iter().any(|w| w == "--help" || w == "-h") {
        println!("usage: ./dev bench [NAME...]\nbenchmarks, all by default: {}", names());
        return;
    }
    if let Some(unknown) = wanted.iter().find(|w| !BENCHES.iter().any(|(name, _)| name == w)) {
        eprintln!("there is no benchmark {unknown:?}; there are: {}", names());
        std::process::exit(2);
    }
    for (name, bench) in BENCHES {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            println!("-- {name} (load {})", load());
            bench();
        }
    }
}

/// The tasks running or waiting for a CPU in the last minute, and the number of CPUs.
fn load() -> String {
    let averages = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} on {cpus} CPUs", averages.split(' ').next().unwrap_or("?"))
}

/// One line of the report.
fn report(what: &str, figure: impl std::fmt::Display, budget: &str, met: bool) {
    let verdict = if met { "met" } else { "MISSED" };
    println!("{what:<52} {figure:<38} budget: {budget:<36} {verdict}");
}

/// A peer's figure, or other information, without a budget.
fn beside(what: &str, figure: impl std::fmt::Display) {
    println!("  {what:<50} {figure}");
}

/// The value at this quantile of the sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}
