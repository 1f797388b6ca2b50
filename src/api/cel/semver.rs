//! Semantic versions as in upstream's CEL library: the crate's, with its tolerance for non-strict ones.

use std::borrow::Cow;

pub use semver::Version as Semver;
use semver::{BuildMetadata, Prerelease};

/// Parses a version, without its build, which is irrelevant in comparisons. `normalize` accepts a leading `v`, missing numbers and
/// leading zeros.
pub fn parse(text: &str, normalize: bool) -> Option<Semver> {
    let text = if normalize { Cow::Owned(normalized(text)?) } else { Cow::Borrowed(text) };
    let version = Semver::parse(&text).ok().filter(|version| has_numbers(&version.pre))?;
    Some(Semver { build: BuildMetadata::EMPTY, ..version })
}

/// Upstream's `normalizeAndParse`; `None`: a short version cannot have a pre-release or build.
fn normalized(text: &str) -> Option<String> {
    let mut parts: Vec<&str> = text.strip_prefix('v').unwrap_or(text).splitn(3, '.').map(without_zeros).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return None;
    }
    parts.resize(3, "0");
    Some(parts.join("."))
}

/// `007-a` becomes `7-a`, `00-a` becomes `0-a`.
fn without_zeros(part: &str) -> &str {
    let zeros = part.bytes().take_while(|b| *b == b'0').count();
    let digit_follows = part[zeros..].starts_with(|c: char| c.is_ascii_digit());
    &part[if digit_follows { zeros } else { zeros.saturating_sub(1) }..]
}

/// Whether the numbers of a pre-release fit upstream's 64 bits.
fn has_numbers(pre: &Prerelease) -> bool {
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    pre.is_empty() || pre.split('.').filter(is_number).all(|part| part.parse::<u64>().is_ok())
}
