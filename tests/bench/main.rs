//! `./dev bench`: the design's budgets, measured on a release build, beside a peer where one is installed.
//!
//! Every figure is printed with its budget. Nothing here fails: a figure that falls short is to be read, not to be hidden.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod dataplane;
mod idle;
mod pods;
mod sizes;

/// One benchmark: its name on the command line, and what it does.
const BENCHES: &[(&str, fn())] = &[
    ("ready", idle::ready),
    ("start", pods::start),
    ("journal", pods::journal),
    ("thirty", pods::thirty),
    ("memory", pods::memory),
    ("idle", idle::idle),
    ("api", api::writes),
    ("endpoint", dataplane::endpoint),
    ("sizes", sizes::binaries),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    for (name, bench) in BENCHES {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            bench();
        }
    }
}

/// One line of the report.
fn report(what: &str, figure: impl std::fmt::Display, budget: &str) {
    println!("{what:<58} {figure:<34} budget: {budget}");
}

/// The value below which a share of the sorted values lies.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}
