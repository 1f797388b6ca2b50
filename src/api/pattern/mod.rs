//! Regular expressions of manifests and schemas, in RE2's dialect: compiled once, bounded in size.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use regex::Regex;

mod re2;

/// How many bytes a compiled expression may take, and what compiling it costs then, in steps of an evaluation; what takes
/// more is refused.
const SIZES: [(usize, u64); 3] = [(32 << 10, 100), (256 << 10, 2_000), (1 << 20, 10_000)];
/// What has to be tried to find that an expression is too large.
const REFUSED: u64 = 20_000;
/// No longer expression compiles to what is allowed.
const LONGEST: usize = 64 << 10;
/// How many bytes those that are kept take.
const KEPT: usize = 32 << 20;

static COMPILED: LazyLock<Mutex<Kept>> = LazyLock::new(Default::default);

/// Why an expression is refused, as Go words it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatternError {
    #[error("error parsing regexp: the expression has more than {} bytes", LONGEST)]
    TooLong,
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
#[derive(Clone)]
pub struct Compiled {
    /// Or what is wrong with it.
    pub regex: Result<Arc<Regex>, PatternError>,
    /// In steps of an evaluation: it goes by the expression alone, not by whether it was compiled before.
    pub cost: u64,
    bytes: usize,
}

#[derive(Default)]
struct Kept {
    all: HashMap<Box<str>, Compiled>,
    bytes: usize,
}

/// The expression. The search takes linear time, whatever the expression.
///
/// # Errors
/// RE2 does not read it, or it is too large, as it is written or compiled.
pub fn compiled(pattern: &str) -> Result<Arc<Regex>, PatternError> {
    compile(pattern).regex
}

/// The same, and what it costs.
pub fn compile(pattern: &str) -> Compiled {
    let lock = || COMPILED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = lock().all.get(pattern) {
        return known.clone();
    }
    // Others' are looked up meanwhile.
    let made = build(pattern);
    let mut kept = lock();
    if kept.bytes + made.bytes > KEPT {
        *kept = Kept::default();
    }
    kept.bytes += made.bytes;
    if let Some(same) = kept.all.insert(pattern.into(), made.clone()) {
        kept.bytes -= same.bytes;
    }
    made
}

fn build(pattern: &str) -> Compiled {
    let refused =
        |why: PatternError, cost: u64| Compiled { bytes: pattern.len() + why.to_string().len(), regex: Err(why), cost };
    if pattern.len() > LONGEST {
        return refused(PatternError::TooLong, pattern.len() as u64 / 10);
    }
    let tried = SIZES[0].1 + pattern.len() as u64 / 10;
    let written = match re2::rewritten(pattern) {
        Ok(written) => written,
        Err(re2::Wrong(why, part)) => return refused(PatternError::Syntax { why, part: part.to_owned() }, tried),
    };
    let mut last = 0;
    for (size, cost) in SIZES {
        match regex::RegexBuilder::new(&written).size_limit(size).dfa_size_limit(size).build() {
            Ok(regex) => return Compiled { regex: Ok(Arc::new(regex)), cost, bytes: pattern.len() + size },
            Err(regex::Error::CompiledTooBig(_)) => last = size,
            Err(why) => return refused(PatternError::Unsupported(why), tried),
        }
    }
    refused(PatternError::TooLarge(last), REFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_expression_costs_goes_by_what_it_compiles_to() {
        let cost = |pattern: &str| (compile(pattern).regex.is_ok(), compile(pattern).cost);
        assert_eq!(cost("^[a-z]([-a-z0-9]*[a-z0-9])?$"), (true, 100));
        assert_eq!(cost("^[a-z]([-a-z0-9]*[a-z0-9])?$"), (true, 100), "once compiled it costs the same");
        assert_eq!(cost("("), (false, 100));
        assert_eq!(cost(r"\pL{1000}"), (false, REFUSED));
        let (large, cost) = cost(r"(\pL{8}){2}");
        assert!(large && cost > 100, "{cost}");
        // Before anything is tried.
        let long = compile(&"a".repeat(LONGEST + 1));
        let why = long.regex.unwrap_err();
        assert_eq!(why, PatternError::TooLong);
        assert_eq!(why.to_string(), "error parsing regexp: the expression has more than 65536 bytes");
        assert_eq!(long.cost, 6553);
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

    #[test]
    fn those_that_are_kept_have_a_bound() {
        for n in 0..2_000 {
            compile(&format!("{n}[a-z]+"));
        }
        let kept = COMPILED.lock().unwrap();
        let bytes: usize = kept.all.values().map(|made| made.bytes).sum();
        assert!(bytes <= KEPT && kept.all.len() > 100, "{} of {bytes} bytes", kept.all.len());
    }
}
