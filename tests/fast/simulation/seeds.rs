//! A seed is a whole run: the same writes in the same order, whatever the process, its hashes and its threads.

use std::{
    fmt::Write,
    process::{Command, Stdio},
};

use sha2::{Digest, Sha256};

use super::{history::Line, number, whole::history_of};

/// What two runs wrote where they part, and a little before and after.
fn parting(one: &[Line], two: &[Line]) -> Option<String> {
    let at = (0..one.len().max(two.len())).find(|n| one.get(*n) != two.get(*n))?;
    let told =
        |lines: &[Line]| lines.iter().skip(at.saturating_sub(2)).take(4).map(Line::to_string).collect::<Vec<_>>();
    Some(format!("they part at write {at}: {:#?}\nbut {:#?}", told(one), told(two)))
}

#[test]
fn a_seed_gives_the_same_history_again() {
    for seed in 0..2 {
        let (one, two) = (history_of(seed), history_of(seed));
        assert!(one.len() > 50, "{} writes", one.len());
        assert_eq!(parting(&one, &two), None, "SIMULATION_SEED={seed}");
    }
}

/// One digest for all writes.
fn digest(lines: &[Line]) -> String {
    let mut all = Sha256::new();
    for line in lines {
        all.update(line.to_string());
        all.update([0]);
    }
    all.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes what is written");
        text
    })
}

fn told(seed: u64) -> String {
    format!("digest of {seed}: {}", digest(&history_of(seed)))
}

/// These seeds are compared.
const SEEDS: std::ops::Range<u64> = 2..7;

/// What the test below asks another process for.
#[test]
fn digest_of_seeds() {
    if number("SIMULATION_DIGEST").is_some() {
        SEEDS.for_each(|seed| println!("{}", told(seed)));
    }
}

/// Each process hashes in its own way, and each machine has a zone of its own.
#[test]
fn a_seed_gives_the_same_history_in_another_process() {
    let mut other = Command::new(std::env::current_exe().expect("this program"));
    let (_, module) = module_path!().split_once("::").expect("it is in a crate");
    let name = format!("{module}::digest_of_seeds");
    other.args(["--exact", &name, "--nocapture"]).env("SIMULATION_DIGEST", "1").env("TZ", "XYZ-5:43");
    let other = other.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mine: Vec<String> = SEEDS.map(told).collect();
    let output = other.wait_with_output().expect("it ends");
    let theirs = String::from_utf8_lossy(&output.stdout);
    for mine in mine {
        assert!(theirs.contains(&mine), "{mine} is not in {theirs} {}", String::from_utf8_lossy(&output.stderr));
    }
}
