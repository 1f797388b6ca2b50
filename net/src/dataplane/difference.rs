//! What a change does to elements.

use std::collections::BTreeMap;

use super::elements::{ElementKey, Value};

/// Elements to delete and to add.
#[derive(Debug, Default)]
pub struct Difference {
    pub delete: BTreeMap<ElementKey, Value>,
    pub add: BTreeMap<ElementKey, Value>,
}

impl Difference {
    /// From what there was to what there is to be.
    pub fn between(&mut self, before: &BTreeMap<ElementKey, Value>, after: &BTreeMap<ElementKey, Value>) {
        let gone = before.iter().filter(|(key, value)| after.get(*key) != Some(value));
        self.delete.extend(gone.map(|(key, value)| (*key, *value)));
        let new = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
        self.add.extend(new.map(|(key, value)| (*key, *value)));
    }
}
