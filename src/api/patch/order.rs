//! Which items of two lists are the same thing, and in which order a merged list comes.

use std::sync::LazyLock;

use serde_json::Value;

use crate::api::schema::List;

/// The keys that tell the items of a list apart; none: the items are plain values. The list's schema knows the defaults of
/// keys.
#[derive(Clone, Copy)]
pub struct Keys<'a>(pub &'a [&'a str], pub Option<&'a List>);

impl Keys<'_> {
    pub fn same(self, a: &Value, b: &Value) -> bool {
        if self.0.is_empty() {
            return a == b;
        }
        self.0.iter().all(|key| self.part(a, key) == self.part(b, key))
    }
    /// A key's value. The protocol of a port may be left out, and is TCP then.
    fn part<'v>(&'v self, item: &'v Value, key: &str) -> &'v Value {
        static TCP: LazyLock<Value> = LazyLock::new(|| Value::from("TCP"));
        match &item[key] {
            Value::Null if key == "protocol" => &TCP,
            Value::Null => self.1.and_then(|list| list.default(key)).unwrap_or(&Value::Null),
            value => value,
        }
    }
    pub fn find(self, list: &[Value], item: &Value) -> Option<usize> {
        list.iter().position(|other| self.same(other, item))
    }
}

/// Sorts `merged`: the items that `wanted` names in its order, the others in `before`'s order, the two woven together by
/// `before`'s order; what is new stays beside its neighbours in `wanted`, as upstream has it.
pub fn arrange(merged: Vec<Value>, wanted: &[Value], before: &[Value], keys: Keys<'_>) -> Vec<Value> {
    let place = |item: &Value| keys.find(before, item);
    let rank = |item: &Value| keys.find(wanted, item);
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = merged.into_iter().partition(|i| rank(i).is_some());
    named.sort_by_key(rank);
    others.sort_by_key(place);
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
