//! Counts per source in a bounded table, their common budget, and the excess.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::conntrack::Worth;

/// How many entries of each [`Worth`].
pub type Tally = [usize; Worth::ALL.len()];

/// How many entries all Pods may have together: half of the table; less if others have much of it, but at least a quarter.
pub fn budget(others: usize, max: usize) -> usize {
    (max / 4 * 3).saturating_sub(others).clamp(max / 4, max / 2)
}

/// What each source must lose so that the total stays within the budget: nothing unless it is exceeded. A part of the budget is
/// freed, so that not everything is listed again at once.
pub fn excess(sources: &BTreeMap<IpAddr, Tally>, budget: usize) -> BTreeMap<IpAddr, Tally> {
    let counts: Vec<usize> = sources.values().map(|tally| tally.iter().sum()).collect();
    if counts.iter().sum::<usize>() <= budget {
        return BTreeMap::new();
    }
    let share = share(counts, budget - budget / 8);
    let excess = |tally: &Tally| {
        let mut left = tally.iter().sum::<usize>().saturating_sub(share);
        // In the order of worth.
        tally.map(|has| {
            let goes = has.min(left);
            left -= goes;
            goes
        })
    };
    let all = sources.iter().map(|(source, tally)| (*source, excess(tally)));
    all.filter(|(_, tally)| tally.iter().any(|goes| *goes > 0)).collect()
}

/// The largest share for which the total stays within the budget (max-min fairness).
fn share(mut counts: Vec<usize>, budget: usize) -> usize {
    counts.sort_unstable();
    let (mut left, mut sharing) = (budget, counts.len());
    for count in counts {
        let equal = left / sharing;
        if count > equal {
            return equal;
        }
        left -= count;
        sharing -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 244, 1, n])
    }

    #[test]
    fn shares_are_equal_parts_of_what_the_modest_leave() {
        assert_eq!(share(vec![10, 20, 30], 60), usize::MAX);
        assert_eq!(share(vec![10, 20, 31], 60), 30);
        assert_eq!(share(vec![5, 1000, 1000], 105), 50);
        assert_eq!(share(vec![1000], 100), 100);
        assert_eq!(share(vec![], 100), usize::MAX);
    }

    #[test]
    fn the_greedy_lose_what_has_ended_first_and_the_modest_nothing() {
        let sources = BTreeMap::from([(source(1), [0, 0, 0, 100]), (source(2), [300, 200, 200, 100])]);
        assert_eq!(excess(&sources, 900), BTreeMap::new());
        // 7/8 of 800 are 700: 100 for the first, 600 for the second.
        assert_eq!(excess(&sources, 800), BTreeMap::from([(source(2), [200, 0, 0, 0])]));
        assert_eq!(excess(&sources, 400), BTreeMap::from([(source(2), [300, 200, 50, 0])]));
    }

    #[test]
    fn pods_have_half_of_the_table_and_less_beside_others() {
        assert_eq!(budget(0, 1024), 512);
        assert_eq!(budget(400, 1024), 368);
        assert_eq!(budget(1024, 1024), 256);
    }

    proptest! {
        #[test]
        fn what_is_left_is_within_the_budget_and_fair(counts in prop::collection::vec(prop::array::uniform4(0usize..500), 0..40), budget in 8usize..4000) {
            let sources: BTreeMap<_, Tally> = counts.iter().enumerate().map(|(n, tally)| (source(n as u8), *tally)).collect();
            let excess = excess(&sources, budget);
            let of = |tally: &Tally| tally.iter().sum::<usize>();
            let left: BTreeMap<_, usize> =
                sources.iter().map(|(source, tally)| (*source, of(tally) - excess.get(source).map_or(0, of))).collect();
            prop_assert!(left.values().sum::<usize>() <= budget);
            // A source that loses something keeps at least as much as any that keeps everything.
            let most_kept = left.iter().filter(|(source, _)| !excess.contains_key(source)).map(|(_, left)| *left).max().unwrap_or(0);
            prop_assert!(excess.keys().all(|source| left[source] >= most_kept));
        }
    }
}
