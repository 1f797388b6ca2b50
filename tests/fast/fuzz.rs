//! The fuzz targets themselves: their seeds are valid input, and slightly truncated or mutated ones cause no finding.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

#[path = "../fuzz/targets/mod.rs"]
mod targets;

/// Per seed; `FUZZ_TURNS` overrides it, where there is no time to build for `./dev fuzz`.
const TURNS: usize = 30;

fn bent(seed: &[u8], rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.random()),
            2 if at < bytes.len() => bytes[at] = rng.random(),
            _ => drop(bytes.splice(at..(at + 3).min(bytes.len()), *b"\xff\0-")),
        }
    }
    bytes
}

#[test]
fn every_target_takes_its_seeds_and_what_is_near_them() {
    let turns = std::env::var("FUZZ_TURNS").map_or(TURNS, |turns| turns.parse().expect("a number"));
    let mut names = std::collections::BTreeSet::new();
    for target in targets::all() {
        assert!(names.insert(target.name), "{} is there twice", target.name);
        let mut rng = StdRng::seed_from_u64(7);
        for seed in target.seeds() {
            target.execute(&seed);
            for _ in 0..turns {
                target.execute(&bent(&seed, &mut rng));
            }
        }
    }
}
