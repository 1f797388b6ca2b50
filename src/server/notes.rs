//! Additional output of a request: warnings for the client, annotations for the audit log.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Upstream's limits of warnings, in characters: in total, and for each if they exceed that.
const MOST_TOGETHER: usize = 4096;
const LONGEST_CUT: usize = 256;

/// Collected while a request runs.
#[derive(Default)]
pub(super) struct Notes(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a warning, without duplicates: a write may be evaluated several times.
    pub fn warn(&self, warning: impl Into<String>) {
        let (mut inner, warning) = (self.lock(), warning.into());
        if !inner.warnings.contains(&warning) {
            inner.warnings.push(warning);
        }
    }

    /// Adds an audit annotation. The first value of a key stays.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        self.lock().annotations.entry(key.into()).or_insert_with(|| value.into());
    }

    /// Takes out the warnings; if they are too long in total, each is truncated, and the last ones are dropped.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.lock().warnings);
        let length = |warning: &String| warning.chars().count();
        if warnings.iter().map(length).sum::<usize>() <= MOST_TOGETHER {
            return warnings;
        }
        let mut left = MOST_TOGETHER;
        warnings.retain_mut(|warning| {
            *warning = warning.chars().take(LONGEST_CUT.min(left)).collect();
            left -= length(warning);
            !warning.is_empty()
        });
        warnings
    }

    /// Takes out the annotations.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.lock().annotations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_cut_where_they_are_too_much() {
        let notes = Notes::default();
        notes.warn("é".repeat(3000));
        notes.warn("é".repeat(3000));
        assert_eq!(notes.warnings(), ["é".repeat(3000)], "the same is told once, and there is room for it");
        (0..100).for_each(|i| notes.warn(format!("{i:0300}")));
        let cut = notes.warnings();
        assert_eq!((cut.len(), cut[0].len()), (16, 256));
        assert!(notes.warnings().is_empty());
    }
}
