//! Sets of fields: trees of path elements, and set operations.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map, Value};

use super::element;
use crate::field_path;

/// A set of paths, without empty branches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set(BTreeMap<Box<str>, Node>);

/// A set's content at an element: whether a path ends there, and the longer paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub member: bool,
    pub below: Set,
}

impl Node {
    pub const LEAF: Node = Node { member: true, below: Set(BTreeMap::new()) };

    pub fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

static NOTHING: Set = Set(BTreeMap::new());

/// FieldsV1's notation for the path itself among its descendants.
const SELF: &str = ".";

impl Set {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it contains the path that ends at this element.
    pub fn has(&self, element: &str) -> bool {
        self.0.get(element).is_some_and(|node| node.member)
    }

    /// The paths that continue below this element.
    pub fn below(&self, element: &str) -> &Set {
        self.0.get(element).map_or(&NOTHING, |node| &node.below)
    }

    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(element, node)| (&**element, node))
    }

    /// Adds a node at an element, unless it is empty.
    pub fn put(&mut self, element: Box<str>, node: Node) {
        if node.is_empty() {
            return;
        }
        match self.0.entry(element) {
            Entry::Vacant(place) => drop(place.insert(node)),
            Entry::Occupied(mut into) => {
                let into = into.get_mut();
                into.member |= node.member;
                node.below.0.into_iter().for_each(|(element, node)| into.below.put(element, node));
            }
        }
    }

    /// Adds one path.
    pub fn insert(&mut self, path: impl IntoIterator<Item = Box<str>>) {
        let mut path = path.into_iter().peekable();
        let mut set = self;
        while let Some(element) = path.next() {
            let node = set.0.entry(element).or_default();
            if path.peek().is_none() {
                node.member = true;
            }
            set = &mut node.below;
        }
    }

    pub fn union(mut self, other: &Set) -> Set {
        for (element, node) in &other.0 {
            match self.0.get_mut(element) {
                None => drop(self.0.insert(element.clone(), node.clone())),
                Some(own) => {
                    own.member |= node.member;
                    own.below = std::mem::take(&mut own.below).union(&node.below);
                }
            }
        }
        self
    }

    pub fn intersection(&self, other: &Set) -> Set {
        self.combined(|element, node| {
            let theirs = other.0.get(element)?;
            Some(Node { member: node.member && theirs.member, below: node.below.intersection(&theirs.below) })
        })
    }

    pub fn difference(&self, other: &Set) -> Set {
        self.combined(|element, node| match other.0.get(element) {
            None => Some(node.clone()),
            Some(theirs) => {
                Some(Node { member: node.member && !theirs.member, below: node.below.difference(&theirs.below) })
            }
        })
    }

    /// The set of `of`'s results for each node.
    pub fn combined(&self, of: impl Fn(&str, &Node) -> Option<Node>) -> Set {
        let kept = self.0.iter().filter_map(|(element, node)| Some((element.clone(), of(element, node)?)));
        Set(kept.filter(|(_, node)| !node.is_empty()).collect())
    }

    /// The number of its paths.
    pub fn len(&self) -> usize {
        self.0.values().map(|node| usize::from(node.member) + node.below.len()).sum()
    }

    /// All its paths, for errors.
    pub fn paths(&self) -> Vec<String> {
        self.first_paths(usize::MAX)
    }

    /// Its first paths, for errors: long ones are truncated, as each path below a name repeats it.
    pub fn first_paths(&self, most: usize) -> Vec<String> {
        let mut all = Vec::new();
        self.collect("", most, &mut all);
        all
    }

    fn collect(&self, prefix: &str, most: usize, all: &mut Vec<String>) {
        for (element, node) in &self.0 {
            if all.len() >= most {
                return;
            }
            let path = field_path::element(prefix, &element::shown(element));
            all.extend(node.member.then(|| path.clone()));
            node.below.collect(&path, most, all);
        }
    }

    /// Parses FieldsV1. `None`: it is invalid.
    pub fn from_json(fields: &Value) -> Option<Set> {
        let mut set = Set::default();
        for (element, below) in fields.as_object()? {
            if element == SELF {
                continue;
            }
            if !matches!(element.get(..2), Some("f:" | "k:" | "v:" | "i:")) {
                return None;
            }
            let map = below.as_object()?;
            let node = Node { member: map.is_empty() || map.contains_key(SELF), below: Set::from_json(below)? };
            set.0.insert(element.as_str().into(), node);
        }
        Some(set)
    }

    /// FieldsV1.
    pub fn to_json(&self) -> Value {
        Value::Object(self.encoded(false))
    }

    fn encoded(&self, member: bool) -> Map<String, Value> {
        let mut out = Map::with_capacity(self.0.len() + 1);
        if member && !self.0.is_empty() {
            out.insert(SELF.to_owned(), Value::Object(Map::new()));
        }
        for (element, node) in &self.0 {
            out.insert(element.to_string(), Value::Object(node.below.encoded(node.member)));
        }
        out
    }
}
