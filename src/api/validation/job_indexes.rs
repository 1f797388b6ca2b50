//! Sets of completion indexes in text form (`0-2,5`), and the success policy, which uses them.

use super::{At, Errors};

/// The longest text.
const LONGEST: usize = 64 * 1024;
const MAX_RULES: usize = 20;

/// Why a text is not a set of indexes, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum IndexesError {
    #[error("cannot convert string to integer for index: {0:?}")]
    NotANumber(String),
    /// Not below the number of completions.
    #[error("too large index: {0:?}")]
    TooLarge(String),
    #[error(
        "the fragment {0:?} violates the requirement that an index interval can have at most two parts separated by '-'"
    )]
    Parts(String),
    #[error("non-increasing order, previous: {previous}, current: {current}")]
    Order { previous: i64, current: i64 },
}

/// How many indexes a text contains, all below `completions`.
fn count(text: &str, completions: i64) -> Result<i64, IndexesError> {
    if text.is_empty() {
        return Ok(0);
    }
    let (mut total, mut before) = (0, None);
    for part in text.split(',') {
        let (first, last) = interval(part, completions)?;
        if let Some(before) = before.filter(|before| *before >= first) {
            return Err(IndexesError::Order { previous: before, current: first });
        }
        total += last - first + 1;
        before = Some(last);
    }
    Ok(total)
}

/// `5` or `0-2`
fn interval(part: &str, completions: i64) -> Result<(i64, i64), IndexesError> {
    let index = |text: &str| match text.parse::<i64>() {
        Err(_) => Err(IndexesError::NotANumber(text.to_owned())),
        Ok(index) if index >= completions => Err(IndexesError::TooLarge(text.to_owned())),
        Ok(index) => Ok(index),
    };
    let Some((first, last)) = part.split_once('-') else {
        let only = index(part)?;
        return Ok((only, only));
    };
    if last.contains('-') {
        return Err(IndexesError::Parts(part.to_owned()));
    }
    let (first, last) = (index(first)?, index(last)?);
    if first >= last { Err(IndexesError::Order { previous: first, current: last }) } else { Ok((first, last)) }
}

/// The rules for an indexed Job's success policy.
pub fn success_policy(policy: &At<'_>, completions: Option<i64>, errs: &mut Errors) {
    let rules = policy.get("rules");
    if rules.is_empty() {
        errs.required(&rules.path, "at least one rules must be specified when the successPolicy is specified");
    } else if rules.len() > MAX_RULES {
        return errs.too_many(&rules.path, rules.len(), MAX_RULES);
    }
    for rule in rules.items() {
        success_rule(&rule, completions, errs);
    }
}

fn success_rule(rule: &At<'_>, completions: Option<i64>, errs: &mut Errors) {
    let (wanted, indexes) = (rule.get("succeededCount"), rule.get("succeededIndexes"));
    if !wanted.is_set() && !indexes.is_set() {
        errs.required(&rule.path, "at least one of succeededCount or succeededIndexes must be specified");
    }
    errs.non_negative(&wanted);
    if indexes.len() > LONGEST {
        errs.too_long(&indexes.path, LONGEST);
    }
    // Without completions an indexed Job is refused anyway.
    let Some(completions) = completions else { return };
    let named = count(indexes.str(), completions);
    if let Err(why) = &named {
        errs.invalid_value(&indexes.path, indexes.value, format!("error parsing succeededIndexes: {why}"));
    }
    let Some(n) = wanted.int() else { return };
    let mut at_most = |most: i64, of: &str| {
        if n > most {
            errs.invalid(&wanted.path, n, format!("must be less than or equal to {most} (the number of {of})"));
        }
    };
    at_most(completions, "specified completions");
    if indexes.is_set() {
        at_most(named.unwrap_or(0), "indexes in the specified succeededIndexes field");
    }
}
