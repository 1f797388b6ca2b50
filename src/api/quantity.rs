//! Quantities (`100m`, `1.5Gi`, `12e6`): exact parsing, arithmetic, comparison and upstream's canonical form.
//!
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// The canonical format of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `n u m "" k M G T P E`
    #[default]
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`
    BinarySi,
    /// `e3`, `E6`
    DecimalExponent,
}

/// A fixed-point number with nine decimals, as precise as upstream's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    /// The value times 10^9. Parsing caps it at 2^63-1 units, as upstream does.
    nanos: i128,
    pub format: Format,
}

const NANO: i128 = 1_000_000_000;
/// Upstream caps what exceeds an int64.
const CAP: i128 = i64::MAX as i128 * NANO;

/// Why a quantity is invalid, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
    #[error("unable to parse numeric part of quantity")]
    Number,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    /// From whole units: bytes, cores.
    pub fn from_units(units: i64, format: Format) -> Quantity {
        Quantity { nanos: i128::from(units) * NANO, format }
    }
    /// From thousandths: millicores.
    pub fn from_millis(millis: i64) -> Quantity {
        Quantity { nanos: i128::from(millis) * 1_000_000, format: Format::DecimalSi }
    }
    /// From billionths: nanocores.
    pub fn from_nanos(nanos: u64) -> Quantity {
        Quantity { nanos: nanos.into(), format: Format::DecimalSi }
    }
    /// Whole units (bytes, cores), rounded up, as upstream's `Value()`.
    pub fn value(&self) -> i64 {
        clamp(ceil_div(self.nanos, NANO))
    }
    /// Thousandths (millicores), rounded up, as upstream's `MilliValue()`.
    pub fn millis(&self) -> i64 {
        clamp(ceil_div(self.nanos, 1_000_000))
    }
    /// The nearest double.
    pub fn approximately(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }
    /// Whether it has no fraction of a unit.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }
    /// Parses a JSON value: a string or a number.
    pub fn from_json(value: &serde_json::Value) -> Option<Quantity> {
        match value {
            serde_json::Value::String(s) => s.parse().ok(),
            serde_json::Value::Number(n) => n.to_string().parse().ok(),
            _ => None,
        }
    }
}

fn clamp(n: i128) -> i64 {
    n.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Division rounding away from zero, as upstream scales.
fn ceil_div(a: i128, b: i128) -> i128 {
    let (q, r) = (a / b, a % b);
    if r == 0 { q } else { q + a.signum() }
}

impl std::ops::Add for Quantity {
    type Output = Quantity;
    /// The sum keeps the format of the left side, unless that is zero.
    fn add(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}
impl std::ops::AddAssign for Quantity {
    fn add_assign(&mut self, other: Quantity) {
        *self = *self + other;
    }
}
impl std::ops::Sub for Quantity {
    type Output = Quantity;
    fn sub(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}
impl std::ops::SubAssign for Quantity {
    fn sub_assign(&mut self, other: Quantity) {
        *self = *self - other;
    }
}
impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(iter: I) -> Quantity {
        iter.fold(Quantity::ZERO, |a, b| a + b)
    }
}
impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let negative = text.starts_with('-');
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::Format);
        }
        let (base, exponent, format) = scale(suffix)?;
        let nanos = to_nanos(whole, fraction, base, exponent).min(CAP);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
    }
}

/// The factor of a suffix: base and exponent.
fn scale(suffix: &str) -> Result<(i128, i32, Format), QuantityError> {
    use Format::{BinarySi, DecimalExponent, DecimalSi};
    let found = match suffix {
        "" => (10, 0, DecimalSi),
        "n" => (10, -9, DecimalSi),
        "u" => (10, -6, DecimalSi),
        "m" => (10, -3, DecimalSi),
        "k" => (10, 3, DecimalSi),
        "M" => (10, 6, DecimalSi),
        "G" => (10, 9, DecimalSi),
        "T" => (10, 12, DecimalSi),
        "P" => (10, 15, DecimalSi),
        "E" => (10, 18, DecimalSi),
        "Ki" => (1024, 1, BinarySi),
        "Mi" => (1024, 2, BinarySi),
        "Gi" => (1024, 3, BinarySi),
        "Ti" => (1024, 4, BinarySi),
        "Pi" => (1024, 5, BinarySi),
        "Ei" => (1024, 6, BinarySi),
        other => {
            let regular = |c: char| c.is_ascii_digit() || "eEinumkKMGTP+-".contains(c);
            let exponent = other.strip_prefix(['e', 'E']).and_then(|n| n.parse::<i32>().ok());
            match exponent {
                Some(n) => (10, n, DecimalExponent),
                None if other.chars().all(regular) => return Err(QuantityError::Suffix),
                None => return Err(QuantityError::Format),
            }
        }
    };
    Ok(found)
}

/// The number in units of 10^-9, rounded up, capped well above `CAP`.
fn to_nanos(whole: &str, fraction: &str, base: i128, exponent: i32) -> i128 {
    const ENOUGH: i128 = CAP * 2;
    let fraction = fraction.trim_end_matches('0');
    // All digits as one integer, and its power of ten.
    let mut digits: i128 = 0;
    let mut point = 9 - i64::try_from(fraction.len()).unwrap_or(i64::MAX / 2);
    let mut lost = false;
    for c in whole.bytes().chain(fraction.bytes()) {
        if digits < ENOUGH {
            digits = digits * 10 + i128::from(c - b'0');
        } else {
            // More than 37 digits only matter for rounding.
            point += 1;
            lost |= c != b'0';
        }
    }
    if base == 1024 {
        for _ in 0..exponent {
            digits = digits.saturating_mul(1024);
        }
    } else {
        point += i64::from(exponent);
    }
    while point > 0 && digits != 0 && digits < ENOUGH {
        digits *= 10;
        point -= 1;
    }
    while point < 0 && digits != 0 {
        lost |= digits % 10 != 0;
        digits /= 10;
        point += 1;
    }
    digits.saturating_add(i128::from(lost))
}

impl fmt::Display for Quantity {
    /// Canonical: no fraction, the largest suffix without loss of precision.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY: &[&str] = &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        const DECIMAL: &[&str] = &["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        // Below 1024 and for fractions, binary quantities are written as decimal ones.
        let binary = self.format == Format::BinarySi && self.is_whole() && self.nanos.abs() >= 1024 * NANO;
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if binary {
            let (mut n, mut step) = (self.nanos / NANO, 0);
            while n % 1024 == 0 && step + 1 < BINARY.len() {
                n /= 1024;
                step += 1;
            }
            return write!(f, "{n}{}", BINARY[step]);
        }
        let (mut n, mut step) = (self.nanos, 0);
        while n % 1000 == 0 && step + 1 < DECIMAL.len() {
            n /= 1000;
            step += 1;
        }
        match (self.format, step as i32 * 3 - 9) {
            (Format::DecimalExponent, 0) => write!(f, "{n}"),
            (Format::DecimalExponent, exponent) => write!(f, "{n}e{exponent}"),
            _ => write!(f, "{n}{}", DECIMAL[step]),
        }
    }
}
