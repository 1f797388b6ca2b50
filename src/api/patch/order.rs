//! Which items of two lists are the same thing, and in which order a merged list comes.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use crate::schema::List;

/// The keys that tell the items of a list apart; none: the items are plain values. The list's schema knows the defaults of
/// keys.
#[derive(Clone, Copy)]
pub struct Keys<'a>(pub &'a [&'a str], pub Option<&'a List>);

impl<'a> Keys<'a> {
    /// What tells an item apart.
    fn of<'v>(self, item: &'v Value) -> Vec<&'v Value>
    where
        'a: 'v,
    {
        match self.0 {
            [] => vec![item],
            keys => keys.iter().map(|key| self.part(item, key)).collect(),
        }
    }

    fn same(self, a: &Value, b: &Value) -> bool {
        match self.0 {
            [] => a == b,
            keys => keys.iter().all(|key| self.part(a, key) == self.part(b, key)),
        }
    }

    /// A key's value. The protocol of a port may be left out, and is TCP then.
    fn part<'v>(self, item: &'v Value, key: &str) -> &'v Value
    where
        'a: 'v,
    {
        static TCP: LazyLock<Value> = LazyLock::new(|| Value::from("TCP"));
        match &item[key] {
            Value::Null if key == "protocol" => &TCP,
            Value::Null => self.1.and_then(|list| list.default(key)).unwrap_or(&Value::Null),
            value => value,
        }
    }

    /// The list for look-ups by key.
    pub fn index<'v>(self, list: &'v [Value]) -> Index<'v>
    where
        'a: 'v,
    {
        let mut first = HashMap::new();
        if list.len() > Index::FEW {
            first.reserve(list.len());
            for (place, item) in list.iter().enumerate() {
                first.entry(self.of(item)).or_insert(place);
            }
        }
        Index { keys: self, list, first }
    }
}

/// A list whose items are found by their keys, at the same cost however long it is: who writes a list chooses its length.
pub struct Index<'v> {
    keys: Keys<'v>,
    list: &'v [Value],
    /// The first item with each key; empty where the list is so short that looking through it costs less.
    first: HashMap<Vec<&'v Value>, usize>,
}

impl Index<'_> {
    const FEW: usize = 8;

    /// The place of the first item with the keys of this one.
    pub fn find(&self, item: &Value) -> Option<usize> {
        match self.first.is_empty() {
            true => self.list.iter().position(|other| self.keys.same(other, item)),
            false => self.first.get(&self.keys.of(item)).copied(),
        }
    }

    pub fn has(&self, item: &Value) -> bool {
        self.find(item).is_some()
    }
}

/// Sorts `merged`: the items that `wanted` names in its order, the others in `before`'s order, the two woven together.
pub fn arrange(merged: Vec<Value>, wanted: &[Value], before: &[Value], keys: Keys<'_>) -> Vec<Value> {
    let (before, wanted) = (keys.index(before), keys.index(wanted));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = merged.into_iter().partition(|item| wanted.has(item));
    named.sort_by_cached_key(|item| wanted.find(item));
    others.sort_by_cached_key(|item| before.find(item));
    weave(named, others, &before)
}

/// Weaves the items that somebody names, in his order, with the others by `before`'s order; what is new stays beside its
/// neighbours among those that are named, as upstream has it.
pub fn weave(named: Vec<Value>, others: Vec<Value>, before: &Index<'_>) -> Vec<Value> {
    let place = |item: &Value| before.find(item);
    let mut out = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let first = match (named.peek(), others.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(n), Some(o)) => !matches!((place(n), place(o)), (Some(n), Some(o)) if o < n),
        };
        out.extend(if first { named.next() } else { others.next() });
    }
}
