//! Parts of RE2's syntax: names of sets, ranges, repetitions.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{LazyLock, Mutex};

use super::MOST_REPEATS;

/// The Perl classes, as members of a bracket.
const PERL: &[(char, &str)] = &[('d', "0-9"), ('s', r"\t\n\x0C\r\x20"), ('w', "0-9A-Za-z_")];

/// Categories and scripts that were found to exist: at most as many as there are.
static KNOWN: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Default::default);

/// Whether it is the name of a category or script, or one of the few others.
pub(super) fn is_known(of: &str, name: &str) -> bool {
    match of {
        "" => matches!(name, "any" | "ascii" | "assigned"),
        of => {
            let whole = format!(r"\p{{{of}{name}}}");
            let known = || KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // Compiling it is the test. Missing ones are not cached: the expression is refused.
            let is_known = known().contains(&whole);
            let is_there = is_known || regex::Regex::new(&whole).is_ok();
            if is_there && !is_known {
                known().insert(whole);
            }
            is_there
        }
    }
}

/// The members of `\d`, `\W` and the like.
pub(super) fn perl(c: char) -> Option<String> {
    let (_, members) = PERL.iter().find(|(name, _)| name.eq_ignore_ascii_case(&c))?;
    Some(if c.is_ascii_uppercase() { format!("[^{members}]") } else { (*members).to_owned() })
}

/// A range of characters, without surrogates.
pub(super) fn range(low: u32, high: u32, to: &mut String) {
    for (low, high) in [(low, high.min(0xD7FF)), (low.max(0xE000), high)] {
        if low <= high {
            let _ = write!(to, r"\x{{{low:X}}}-\x{{{high:X}}}");
        }
    }
}

/// `{2}`, `{2,}`, `{2,3}` and the rest; `None`: it is none of them, and literal. The numbers are `None` if they are too large or
/// reversed.
#[allow(clippy::type_complexity)]
pub(super) fn times(text: &str) -> Option<(Option<(u32, Option<u32>)>, &str)> {
    let number = |text: &str| -> Option<(u32, usize)> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        if digits == 0 || (digits > 1 && text.starts_with('0')) {
            return None;
        }
        Some((text[..digits].parse().unwrap_or(u32::MAX), digits))
    };
    let rest = text.strip_prefix('{')?;
    let (least, digits) = number(rest)?;
    let mut rest = &rest[digits..];
    let mut most = Some(least);
    if let Some(after) = rest.strip_prefix(',') {
        rest = after;
        most = None;
        if !rest.starts_with('}') {
            let (given, digits) = number(rest)?;
            most = Some(given);
            rest = &rest[digits..];
        }
    }
    let after = rest.strip_prefix('}')?;
    let fine = least <= MOST_REPEATS && most.is_none_or(|most| most <= MOST_REPEATS && least <= most);
    Some((fine.then_some((least, most)), after))
}
