//! Regular expressions of manifests and schemas: compiled once, bounded in size.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use regex::Regex;

/// A compiled expression may take so many bytes, and so many are kept.
const MAX_SIZE: usize = 1 << 20;
const KEPT: usize = 512;

static COMPILED: LazyLock<Mutex<HashMap<Box<str>, Arc<Regex>>>> = LazyLock::new(Default::default);

/// The expression, or what is wrong with it. The search takes linear time, whatever the expression.
pub fn compiled(pattern: &str) -> Result<Arc<Regex>, String> {
    let lock = || COMPILED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = lock().get(pattern) {
        return Ok(known.clone());
    }
    // Others' are looked up meanwhile.
    let built = regex::RegexBuilder::new(pattern).size_limit(MAX_SIZE).dfa_size_limit(MAX_SIZE).build();
    let regex = Arc::new(built.map_err(|why| format!("error parsing regexp: {why}"))?);
    let mut all = lock();
    if all.len() >= KEPT {
        all.clear();
    }
    all.insert(pattern.into(), regex.clone());
    Ok(regex)
}
