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

/// What compiling an expression came to.
#[derive(Clone)]
pub struct Compiled {
    /// Or what is wrong with it.
    pub regex: Result<Arc<Regex>, String>,
    /// In steps of an evaluation: it goes by the expression alone, not by whether it was compiled before.
    pub cost: u64,
    bytes: usize,
}

#[derive(Default)]
struct Kept {
    all: HashMap<Box<str>, Compiled>,
    bytes: usize,
}

/// The expression, or what is wrong with it. The search takes linear time, whatever the expression.
pub fn compiled(pattern: &str) -> Result<Arc<Regex>, String> {
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
    let refused = |why: String, cost: u64| Compiled {
        bytes: pattern.len() + why.len(),
        regex: Err(format!("error parsing regexp: {why}")),
        cost,
    };
    if pattern.len() > LONGEST {
        return refused(format!("the expression has more than {LONGEST} bytes"), pattern.len() as u64 / 10);
    }
    let written = match re2::rewritten(pattern) {
        Ok(written) => written,
        Err(why) => return refused(why.to_string(), SIZES[0].1 + pattern.len() as u64 / 10),
    };
    let mut last = String::new();
    for (size, cost) in SIZES {
        match regex::RegexBuilder::new(&written).size_limit(size).dfa_size_limit(size).build() {
            Ok(regex) => return Compiled { regex: Ok(Arc::new(regex)), cost, bytes: pattern.len() + size },
            Err(regex::Error::CompiledTooBig(_)) => {
                last = format!("Compiled regex exceeds size limit of {size} bytes.")
            }
            Err(why) => return refused(why.to_string(), SIZES[0].1 + pattern.len() as u64 / 10),
        }
    }
    refused(last, REFUSED)
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
        assert_eq!(long.regex.map(drop), Err("error parsing regexp: the expression has more than 65536 bytes".into()));
        assert_eq!(long.cost, 6553);
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
