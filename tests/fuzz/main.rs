//! `./dev fuzz`: feeds every target inputs that reach new code, by libFuzzer, which works with stable Rust.
//!
//! Why libFuzzer: it is steered by coverage (the compiler's counters need no nightly without the sanitizers, and safe Rust
//! has little for those to find), watches time and memory, and keeps the input that failed. `bolero`'s and proptest's
//! engines on stable are blind; `libafl` is a kit to build such an engine from. JSON inputs are also mutated as trees.

#![no_main]

mod drive;
mod mutate;
mod targets;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use targets::Run;

fuzz_target!(init: drive::begin(), |data: &[u8]| drive::target().execute(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let changed = match (&drive::target().run, seed % 2) {
        (Run::Json(_), 0) => mutate::json(&data[..size], seed),
        _ => None,
    };
    match changed {
        Some(changed) if changed.len() <= max_size => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});
