//! What is to be told beside a request's answer: warnings for who asked, annotations for the audit log.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

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

    /// Warns who asked, of each thing once: a write may be decided on several times.
    pub fn warn(&self, warning: impl Into<String>) {
        let (mut inner, warning) = (self.lock(), warning.into());
        if !inner.warnings.contains(&warning) {
            inner.warnings.push(warning);
        }
    }

    /// Notes something for the audit log. The first word on a key stands.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        self.lock().annotations.entry(key.into()).or_insert_with(|| value.into());
    }

    /// Takes out the warnings.
    pub fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().warnings)
    }

    /// Takes out the annotations.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.lock().annotations)
    }
}
