//! Regular expressions of manifests and schemas, in RE2's dialect: compiled once, bounded in size.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use regex::Regex;

mod re2;

/// How many bytes a compiled expression may take: the smallest that is enough is what it counts for. What takes more is refused.
const SIZES: [usize; 3] = [32 << 10, 256 << 10, 1 << 20];
/// The same for one that an evaluation makes of values: it is compiled once, and given up where it takes more.
const MADE: usize = 64 << 10;
/// What giving it up costs, in steps of an evaluation.
const REFUSED: u64 = 10_000;
/// What compiling the smallest costs.
const LEAST: u64 = 100;
/// For how many bytes that it compiles to, and for how many characters whose other cases are looked for, it is one step.
const BYTES_A_STEP: usize = 20;
const FOLDED_A_STEP: u64 = 2;
/// No longer expression compiles to what is allowed.
const LONGEST: usize = 64 << 10;
const LONGEST_MADE: usize = 4 << 10;
/// How many bytes those that are kept take; those that were made of values push no others out.
const KEPT: usize = 32 << 20;
const KEPT_MADE: usize = 8 << 20;

/// What an evaluation may pay for one expression that it makes: more where it has several sets in which cases do not count.
pub const DEAR: u64 = 100_000;

static COMPILED: LazyLock<Mutex<Kept<Compiled>>> = LazyLock::new(Default::default);
static OF_VALUES: LazyLock<Mutex<Kept<OfValues>>> = LazyLock::new(Default::default);

/// Why an expression is refused, as Go words it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatternError {
    #[error("error parsing regexp: the expression has more than {0} bytes")]
    TooLong(usize),
    /// What is wrong, and the part of the expression that it is about.
    #[error("error parsing regexp: {why}: `{part}`")]
    Syntax { why: &'static str, part: String },
    /// What it compiles to is larger than so many bytes.
    #[error("error parsing regexp: Compiled regex exceeds size limit of {0} bytes.")]
    TooLarge(usize),
    /// RE2 reads it, and the crate does not.
    #[error("error parsing regexp: {0}")]
    Unsupported(#[source] regex::Error),
}

/// What compiling an expression came to.
type Compiled = Result<Arc<Regex>, PatternError>;

/// The same for one that was made of values, and what it costs: that goes by the expression alone, not by whether it was compiled
/// before.
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

    /// Beyond so many bytes those before it are forgotten.
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

/// The expression. The search takes linear time, whatever the expression.
///
/// # Errors
/// RE2 does not read it, or it is too large, as it is written or compiled.
pub fn compiled(pattern: &str) -> Result<Arc<Regex>, PatternError> {
    let known = locked(&COMPILED).get(pattern);
    // Others' are looked up meanwhile.
    known.unwrap_or_else(|| {
        let (made, bytes) = build(pattern);
        locked(&COMPILED).keep(pattern, made.clone(), bytes, KEPT);
        made
    })
}

/// The expression where it is made of values: whoever writes them need not be trusted with more than a small one. What compiling it
/// takes is paid for with `pay`, for the most part before.
///
/// # Errors
/// It could not be paid for; or else, as [`compiled`], within narrower bounds.
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
        // What is wrong may quote all of it.
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

/// What was compiled last of the same text; else it is compiled.
pub fn known(pattern: &str) -> Result<Arc<Regex>, PatternError> {
    let made = locked(&OF_VALUES).get(pattern).and_then(|made| made.compiled.ok());
    made.map_or_else(|| compiled(pattern), Ok)
}

fn read(pattern: &str) -> Result<re2::Rewritten, PatternError> {
    re2::rewritten(pattern).map_err(|re2::Wrong(why, part)| PatternError::Syntax { why, part: part.to_owned() })
}

/// What an expression of the crate's compiles to, in so many bytes.
fn within(written: &str, size: usize) -> Compiled {
    match regex::RegexBuilder::new(written).size_limit(size).dfa_size_limit(size).build() {
        Ok(regex) => Ok(Arc::new(regex)),
        Err(regex::Error::CompiledTooBig(_)) => Err(PatternError::TooLarge(size)),
        Err(why) => Err(PatternError::Unsupported(why)),
    }
}

/// With how many bytes it counts for.
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

    /// What one that is made of values comes to, and what is paid for it.
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
        // Before anything is tried.
        let (long, cost) = paid(&"a".repeat(LONGEST_MADE + 1));
        let why = long.unwrap_err();
        assert_eq!(why, PatternError::TooLong(LONGEST_MADE));
        assert_eq!(why.to_string(), "error parsing regexp: the expression has more than 4096 bytes");
        assert_eq!(cost, 100 + 409);
        assert_eq!(compiled(&"a".repeat(LONGEST + 1)).unwrap_err(), PatternError::TooLong(LONGEST));
    }

    /// Nothing of what it compiles to shows how long that takes: each bracket is gone through character by character.
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

    /// What stands in a schema may be larger than what is made of values.
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
