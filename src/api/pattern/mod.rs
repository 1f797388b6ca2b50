//! Regular expressions in manifests and schemas, in RE2's dialect: compiled once, limited in size.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use regex::Regex;

mod re2;

/// The size limits for a compiled expression, in bytes: the smallest sufficient one is its accounted size. Larger ones are refused.
const SIZES: [usize; 3] = [32 << 10, 256 << 10, 1 << 20];
/// The limit for one built from values during an evaluation: it is compiled once, and refused if it is larger.
const MADE: usize = 64 << 10;
/// The cost of such a refusal, in steps of an evaluation.
const REFUSED: u64 = 10_000;
/// The minimum cost of compilation.
const LEAST: u64 = 100;
/// How many bytes of compiled size, and how many characters of case folding, cost one step.
const BYTES_A_STEP: usize = 20;
const FOLDED_A_STEP: u64 = 2;
/// A longer expression cannot compile within the limit.
const LONGEST: usize = 64 << 10;
const LONGEST_MADE: usize = 4 << 10;
/// The size of the cache; expressions built from values do not evict others.
const KEPT: usize = 32 << 20;
const KEPT_MADE: usize = 8 << 20;

/// The most that an evaluation may pay for one expression built from values: beyond the minimum if it has several case-insensitive
/// sets.
pub const DEAR: u64 = 100_000;

static COMPILED: LazyLock<Mutex<Kept<Compiled>>> = LazyLock::new(Default::default);
static OF_VALUES: LazyLock<Mutex<Kept<OfValues>>> = LazyLock::new(Default::default);

/// Why an expression is refused, in Go's words.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatternError {
    #[error("error parsing regexp: the expression has more than {0} bytes")]
    TooLong(usize),
    /// What is wrong, and the relevant part of the expression.
    #[error("error parsing regexp: {why}: `{part}`")]
    Syntax { why: &'static str, part: String },
    /// Its compiled size exceeds this many bytes.
    #[error("error parsing regexp: Compiled regex exceeds size limit of {0} bytes.")]
    TooLarge(usize),
    /// RE2 accepts it, but the crate does not.
    #[error("error parsing regexp: {0}")]
    Unsupported(#[source] regex::Error),
}

/// The result of compiling an expression.
type Compiled = Result<Arc<Regex>, PatternError>;

/// The same for one built from values, with its cost, which depends only on the expression, not on the cache.
#[derive(Clone)]
struct OfValues {
    compiled: Compiled,
    before: u64,
    after: u64,
}

struct Kept<T> {
    all: HashMap<Box<str>, (T, usize)>,
    bytes: usize,
}

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept { all: HashMap::new(), bytes: 0 }
    }
}

impl<T: Clone> Kept<T> {
    fn get(&self, pattern: &str) -> Option<T> {
        self.all.get(pattern).map(|(made, _)| made.clone())
    }

    /// Adds an entry; beyond `most` bytes the cache is emptied first.
    fn keep(&mut self, pattern: &str, made: T, bytes: usize, most: usize) {
        if self.bytes + bytes > most {
            *self = Kept::default();
        }
        self.bytes += bytes;
        if let Some((_, same)) = self.all.insert(pattern.into(), (made, bytes)) {
            self.bytes -= same;
        }
    }
}

fn locked<T>(kept: &Mutex<Kept<T>>) -> MutexGuard<'_, Kept<T>> {
    kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Compiles an expression. The search takes linear time for any expression.
///
/// # Errors
///
/// RE2 does not accept it, or it is too long or too large.
pub fn compiled(pattern: &str) -> Result<Arc<Regex>, PatternError> {
    let known = locked(&COMPILED).get(pattern);
    // Compiles without holding the lock.
    known.unwrap_or_else(|| {
        let (made, bytes) = build(pattern);
        locked(&COMPILED).keep(pattern, made.clone(), bytes, KEPT);
        made
    })
}

/// Compiles an expression built from values, whose authors may only use small ones. The cost is charged with `pay`, mostly in
/// advance.
///
/// # Errors
///
/// The charge failed; or as for [`compiled`], with lower limits.
pub fn of_values<E>(pattern: &str, mut pay: impl FnMut(u64) -> Result<(), E>) -> Result<Compiled, E> {
    pay(LEAST + pattern.len() as u64 / 10)?;
    if pattern.len() > LONGEST_MADE {
        return Ok(Err(PatternError::TooLong(LONGEST_MADE)));
    }
    let known = locked(&OF_VALUES).get(pattern);
    if let Some(OfValues { compiled, before, after }) = known {
        pay(before)?;
        pay(after)?;
        return Ok(compiled);
    }
    let (made, bytes) = match read(pattern) {
        // The error may quote all of it.
        Err(why) => (OfValues { compiled: Err(why), before: 0, after: 0 }, 2 * pattern.len()),
        Ok(written) => {
            let before = written.folded / FOLDED_A_STEP;
            pay(before)?;
            let compiled = within(&written.text, MADE);
            let after = match &compiled {
                Ok(_) => (written.bytes.min(MADE) / BYTES_A_STEP) as u64,
                Err(_) => REFUSED,
            };
            let bytes = if compiled.is_ok() { MADE } else { pattern.len() };
            (OfValues { compiled, before, after }, pattern.len() + bytes)
        }
    };
    let (compiled, after) = (made.compiled.clone(), made.after);
    locked(&OF_VALUES).keep(pattern, made, bytes, KEPT_MADE);
    pay(after)?;
    Ok(compiled)
}

/// The last compiled expression of the same text; otherwise compiles it.
pub fn known(pattern: &str) -> Result<Arc<Regex>, PatternError> {
    let made = locked(&OF_VALUES).get(pattern).and_then(|made| made.compiled.ok());
    made.map_or_else(|| compiled(pattern), Ok)
}

fn read(pattern: &str) -> Result<re2::Rewritten, PatternError> {
    re2::rewritten(pattern).map_err(|re2::Wrong(why, part)| PatternError::Syntax { why, part: part.to_owned() })
}

/// Compiles a crate expression within a size limit.
fn within(written: &str, size: usize) -> Compiled {
    match regex::RegexBuilder::new(written).size_limit(size).dfa_size_limit(size).build() {
        Ok(regex) => Ok(Arc::new(regex)),
        Err(regex::Error::CompiledTooBig(_)) => Err(PatternError::TooLarge(size)),
        Err(why) => Err(PatternError::Unsupported(why)),
    }
}

/// Also returns its accounted size.
fn build(pattern: &str) -> (Compiled, usize) {
    let refused = |why: PatternError| {
        let bytes = pattern.len() + why.to_string().len();
        (Err(why), bytes)
    };
    if pattern.len() > LONGEST {
        return refused(PatternError::TooLong(LONGEST));
    }
    let written = match read(pattern) {
        Ok(written) => written.text,
        Err(why) => return refused(why),
    };
    let mut last = 0;
    for size in SIZES {
        match within(&written, size) {
            Ok(regex) => return (Ok(regex), pattern.len() + size),
            Err(PatternError::TooLarge(_)) => last = size,
            Err(why) => return refused(why),
        }
    }
    refused(PatternError::TooLarge(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for one built from values, and its charge.
    fn paid(pattern: &str) -> (Compiled, u64) {
        let mut sum = 0;
        let made = of_values(pattern, |cost| {
            sum += cost;
            Ok::<(), ()>(())
        });
        (made.unwrap(), sum)
    }

    #[test]
    fn what_an_expression_costs_goes_by_what_it_compiles_to() {
        let cost = |pattern: &str| {
            let (made, cost) = paid(pattern);
            (made.is_ok(), cost)
        };
        let small = cost("^[a-z]([-a-z0-9]*[a-z0-9])?$");
        assert!(small.0 && (100..120).contains(&small.1), "{small:?}");
        assert_eq!(cost("^[a-z]([-a-z0-9]*[a-z0-9])?$"), small, "once compiled it costs the same");
        assert_eq!(cost("("), (false, 100));
        assert_eq!(cost(r"\pL{1000}"), (false, REFUSED + 100));
        let large = cost(r"^[\pL\pN]+$");
        assert!(large.0 && large.1 > 1_000, "{large:?}");
        // Before compilation.
        let (long, cost) = paid(&"a".repeat(LONGEST_MADE + 1));
        let why = long.unwrap_err();
        assert_eq!(why, PatternError::TooLong(LONGEST_MADE));
        assert_eq!(why.to_string(), "error parsing regexp: the expression has more than 4096 bytes");
        assert_eq!(cost, 100 + 409);
        assert_eq!(compiled(&"a".repeat(LONGEST + 1)).unwrap_err(), PatternError::TooLong(LONGEST));
    }

    /// The compiled size does not show the time: case folding traverses each bracket character by character.
    #[test]
    fn letters_whose_cases_do_not_count_are_paid_for_before_they_are_looked_through() {
        let wide = |count: usize| format!("(?i){}", r"[\x{0}-\x{10FFFF}]".repeat(count));
        let (made, cost) = paid(&wide(1));
        assert!(made.is_ok() && cost > 60_000, "{cost}");
        let mut left = 1_000_000_u64;
        let pay = |cost| {
            left = left.checked_sub(cost).ok_or("spent")?;
            Ok::<(), &str>(())
        };
        let begun = std::time::Instant::now();
        assert_eq!(of_values(&wide(20), pay).unwrap_err(), "spent");
        for pattern in
            [wide(3_000), format!("(?i){}", r"[\Dx]".repeat(10_000)), format!("(?i){}", r"\p{any}".repeat(9_000))]
        {
            assert!(matches!(compiled(&pattern), Err(PatternError::Syntax { why: "expression too large", .. })));
        }
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
        assert_eq!(paid("(?i)bearer [a-z]+").1 / 100, 1, "ordinary ones cost little");
    }

    #[test]
    fn why_an_expression_is_refused_can_be_told_apart() {
        let why = compiled("a(b").unwrap_err();
        assert_eq!(why, PatternError::Syntax { why: "missing closing )", part: "a(b".to_owned() });
        assert_eq!(why.to_string(), "error parsing regexp: missing closing ): `a(b`");
        let why = compiled(r"\pL{1000}").unwrap_err();
        assert_eq!(why, PatternError::TooLarge(1 << 20));
        assert_eq!(why.to_string(), "error parsing regexp: Compiled regex exceeds size limit of 1048576 bytes.");
    }

    /// A schema's expression may be larger than one built from values.
    #[test]
    fn one_that_is_made_of_values_is_compiled_in_narrower_bounds() {
        let large = r"(\pL{8}){2}";
        assert_eq!(paid(large).0.unwrap_err(), PatternError::TooLarge(MADE));
        assert!(compiled(large).is_ok() && known(large).is_ok());
        assert_eq!(paid(large).0.unwrap_err(), PatternError::TooLarge(MADE));
    }

    #[test]
    fn those_that_are_kept_have_a_bound() {
        for n in 0..2_000 {
            compiled(&format!("{n}[a-z]+")).unwrap();
            paid(&format!("{n}[a-z]+")).0.unwrap();
        }
        let kept = locked(&COMPILED);
        let bytes: usize = kept.all.values().map(|(_, bytes)| bytes).sum();
        assert!(bytes <= KEPT && kept.all.len() > 100, "{} of {bytes} bytes", kept.all.len());
        let kept = locked(&OF_VALUES);
        let bytes: usize = kept.all.values().map(|(_, bytes)| bytes).sum();
        assert!(bytes <= KEPT_MADE && kept.all.len() > 50, "{} of {bytes} bytes", kept.all.len());
    }
}
