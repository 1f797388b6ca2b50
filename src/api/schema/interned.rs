//! Names with static lifetime: shared by kinds defined at run time and the built-in rows.
//!
//! Each distinct name is kept once, so this is bounded by the names ever used; code that creates rows checks [`held`] first, and
//! stops at a limit.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

static STRINGS: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Default::default);
static LISTS: LazyLock<Mutex<HashSet<&'static [&'static str]>>> = LazyLock::new(Default::default);
static HELD: AtomicUsize = AtomicUsize::new(0);

/// How many bytes are interned.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

pub fn string(text: &str) -> &'static str {
    let mut all = STRINGS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = all.get(text) {
        return known;
    }
    HELD.fetch_add(text.len(), Ordering::Relaxed);
    let kept: &'static str = Box::leak(text.into());
    all.insert(kept);
    kept
}

pub fn list(texts: &[String]) -> &'static [&'static str] {
    let strings: Vec<&'static str> = texts.iter().map(|text| string(text)).collect();
    let mut all = LISTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = all.get(strings.as_slice()) {
        return known;
    }
    HELD.fetch_add(size_of_val(strings.as_slice()), Ordering::Relaxed);
    let kept: &'static [&'static str] = Box::leak(strings.into());
    all.insert(kept);
    kept
}
