//! `IntOrString` values: a number, or a percentage of something.

use serde_json::Value;

/// How a fractional result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    Up,
    Down,
}

/// The number for `value`, given `total`: `25%` of 10, rounded up, is 3. `None` for other strings.
pub fn scaled(value: &Value, total: i64, round: Round) -> Option<i64> {
    if let Some(n) = value.as_i64() {
        return Some(n);
    }
    let parts = percent(value)?.saturating_mul(total);
    Some(match round {
        Round::Up => parts.div_euclid(100) + i64::from(parts.rem_euclid(100) != 0),
        Round::Down => parts.div_euclid(100),
    })
}

/// The number before the `%` sign.
pub fn percent(value: &Value) -> Option<i64> {
    let digits = value.as_str()?.strip_suffix('%')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}
