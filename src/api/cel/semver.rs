//! Semantic versions: <https://semver.org>.

use std::cmp::Ordering;

/// A version; builds do not count in comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    pub numbers: [u64; 3],
    pre: Vec<String>,
}

impl Semver {
    /// `normalize`: a leading `v`, missing numbers and leading zeros are forgiven.
    pub fn parse(text: &str, normalize: bool) -> Option<Semver> {
        let text = if normalize { text.strip_prefix('v').unwrap_or(text) } else { text };
        let (version, build) = text.split_once('+').map_or((text, None), |(version, build)| (version, Some(build)));
        let (core, pre) = version.split_once('-').map_or((version, None), |(core, pre)| (core, Some(pre)));
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if build.is_some_and(|build| !build.split('.').all(is_part)) {
            return None;
        }
        let mut parts: Vec<&str> = core.split('.').collect();
        while normalize && parts.len() < 3 {
            parts.push("0");
        }
        let number = |part: &str| {
            let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            (plain && (normalize || part == "0" || !part.starts_with('0'))).then(|| part.parse().ok()).flatten()
        };
        let [major, minor, patch] = parts.as_slice() else { return None };
        let pre: Vec<String> = pre.into_iter().flat_map(|pre| pre.split('.')).map(str::to_owned).collect();
        let well_formed =
            |part: &String| is_part(part) && (part.parse::<u64>().is_err() || part == "0" || !part.starts_with('0'));
        let numbers = [number(major)?, number(minor)?, number(patch)?];
        pre.iter().all(well_formed).then_some(Semver { numbers, pre })
    }
}

impl Ord for Semver {
    fn cmp(&self, other: &Semver) -> Ordering {
        let part = |(a, b): (&String, &String)| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            _ => a.cmp(b),
        };
        let pre = match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => {
                let each = self.pre.iter().zip(&other.pre).map(part).find(|order| order.is_ne());
                each.unwrap_or(self.pre.len().cmp(&other.pre.len()))
            }
        };
        self.numbers.cmp(&other.numbers).then(pre)
    }
}

impl PartialOrd for Semver {
    fn partial_cmp(&self, other: &Semver) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
