//! Identity of items in two lists, and the order of a merged list.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use crate::schema::List;

/// The keys of a list's items; none: the items are plain values. The list's schema knows the keys' defaults.
#[derive(Clone, Copy)]
pub struct Keys<'a>(pub &'a [&'a str], pub Option<&'a List>);

impl<'a> Keys<'a> {
    /// The identity of an item.
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

    /// A key's value. A port's protocol may be missing, and defaults to TCP.
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

    /// An index of the list by keys.
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

/// A list with an index by keys, whose lookup cost does not depend on its length, which users choose.
pub struct Index<'v> {
    keys: Keys<'v>,
    list: &'v [Value],
    /// The first item with each key; empty if the list is so short that scanning it costs less.
    first: HashMap<Vec<&'v Value>, usize>,
}

impl Index<'_> {
    const FEW: usize = 8;

    /// The position of the first item with the same keys.
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

/// Sorts `merged`: the items in `wanted` by its order, the others by `before`'s order, interleaved.
pub fn arrange(merged: Vec<Value>, wanted: &[Value], before: &[Value], keys: Keys<'_>) -> Vec<Value> {
    let (before, wanted) = (keys.index(before), keys.index(wanted));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = merged.into_iter().partition(|item| wanted.has(item));
    named.sort_by_cached_key(|item| wanted.find(item));
    others.sort_by_cached_key(|item| before.find(item));
    weave(named, others, &before)
}

/// Interleaves named items, in their order, with the others by `before`'s order; a new item stays beside its neighbours among the
/// named ones, as upstream.
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
