//! Sets of completion indexes in the text form of a Job's status: `0-2,5`.

use std::fmt;

/// A set of indexes: ranges from first to last, sorted, not adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// Parses the text form; invalid numbers and those beyond `completions` are dropped.
    pub fn parse(text: &str, completions: i32) -> Indexes {
        let span = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
            let last = last.min(completions - 1);
            (first <= last).then_some((first, last))
        };
        text.split(',').filter_map(span).collect()
    }

    pub fn union(&self, other: &Indexes) -> Indexes {
        self.0.iter().chain(&other.0).copied().collect()
    }

    /// The number of indexes.
    pub fn count(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, index: i32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// The number of indexes in both sets.
    pub fn common(&self, other: &Indexes) -> i32 {
        let (mut common, mut a, mut b) = (0, self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&(from, to)), Some(&&(first, last))) = (a.peek(), b.peek()) {
            common += (to.min(last) - from.max(first) + 1).max(0);
            if to <= last {
                a.next()
            } else {
                b.next()
            };
        }
        common
    }

    /// The first `most` indexes below `completions` that are not in the set.
    pub fn missing(&self, completions: i32, most: usize) -> Vec<i32> {
        let end = (completions, completions);
        let mut from = 0;
        let gaps = self.0.iter().chain(std::iter::once(&end)).flat_map(|(first, last)| {
            let gap = from..*first;
            from = last.saturating_add(1);
            gap
        });
        gaps.take_while(|index| *index < completions).take(most).collect()
    }
}

impl FromIterator<(i32, i32)> for Indexes {
    fn from_iter<I: IntoIterator<Item = (i32, i32)>>(spans: I) -> Indexes {
        let mut sorted: Vec<(i32, i32)> = spans.into_iter().collect();
        sorted.sort_unstable();
        let mut all: Vec<(i32, i32)> = Vec::new();
        for (first, last) in sorted {
            match all.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => all.push((first, last)),
            }
        }
        Indexes(all)
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Indexes {
        indexes.into_iter().map(|index| (index, index)).collect()
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}
