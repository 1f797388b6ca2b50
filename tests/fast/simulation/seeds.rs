//! A seed is a whole run: the same writes in the same order, whatever the process, its hashes and its threads.

use super::{history::Line, random};

/// What two runs wrote up to where they part, and a little further.
fn parting(one: &[Line], two: &[Line]) -> Option<String> {
    let at = (0..one.len().max(two.len())).find(|n| one.get(*n) != two.get(*n))?;
    let told =
        |lines: &[Line]| lines.iter().skip(at.saturating_sub(2)).take(4).map(Line::to_string).collect::<Vec<_>>();
    Some(format!("they part at write {at}: {:#?}\nbut {:#?}", told(one), told(two)))
}

#[test]
fn a_seed_gives_the_same_history_again() {
    for seed in 0..3 {
        let (one, two) = (random(seed, 3), random(seed, 3));
        assert!(one.len() > 100, "{} writes", one.len());
        assert_eq!(parting(&one, &two), None, "SIMULATION_SEED={seed}");
    }
}
