//! Duplicate fields in JSON: a tree of values no longer shows them, and strict decoding refuses them.

use std::{borrow::Cow, collections::HashSet};

use crate::field_path;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// How many are reported, upstream's limit.
const MAX_DUPLICATES: usize = 100;

/// The paths of duplicate fields, in upstream's format: `spec.containers[0].image`. Invalid JSON has none: it is refused elsewhere.
pub fn fields(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut json = serde_json::Deserializer::from_str(text);
    // Results before an error are irrelevant, as the text is refused.
    let _ = Walk { at: &PathNode::Root, found: &mut found }.deserialize(&mut json);
    found
}

/// The same for the value of one field of a JSON object.
pub fn fields_within(text: &str, name: &str) -> Vec<String> {
    let prefix = format!("{name}.");
    fields(text).into_iter().filter_map(|path| path.strip_prefix(&prefix).map(str::to_owned)).collect()
}

/// The current path, on the stack: every write is walked, but a path is hardly ever needed.
enum PathNode<'a> {
    Root,
    Field(&'a PathNode<'a>, &'a str),
    Index(&'a PathNode<'a>, usize),
}

impl PathNode<'_> {
    /// Long parts are truncated.
    fn path(&self) -> String {
        match self {
            PathNode::Root => String::new(),
            PathNode::Field(up, name) => field_path::field(&up.path(), name),
            PathNode::Index(up, index) => field_path::index(&up.path(), *index),
        }
    }
}

/// The names in a map so far: most maps have few.
#[derive(Default)]
struct Seen<'de> {
    few: Vec<Cow<'de, str>>,
    more: HashSet<Cow<'de, str>>,
}

impl<'de> Seen<'de> {
    const FEW: usize = 16;

    fn has(&self, name: &str) -> bool {
        self.few.iter().any(|seen| *seen == name) || !self.more.is_empty() && self.more.contains(name)
    }

    fn add(&mut self, name: Cow<'de, str>) {
        match self.few.len() < Seen::FEW {
            true => self.few.push(name),
            false => drop(self.more.insert(name)),
        }
    }
}

/// A name borrowed from the text, if it has no escapes.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

struct Walk<'a> {
    at: &'a PathNode<'a>,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = Seen::default();
        while let Some(name) = map.next_key_seed(Name)? {
            let here = PathNode::Field(self.at, &name);
            let again = seen.has(&name);
            if again && self.found.len() < MAX_DUPLICATES {
                self.found.push(here.path());
            }
            map.next_value_seed(Walk { at: &here, found: self.found })?;
            if !again {
                seen.add(name);
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for index in 0.. {
            let here = PathNode::Index(self.at, index);
            if list.next_element_seed(Walk { at: &here, found: self.found })?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::fields_within;

    #[test]
    fn fields_named_twice_are_found_where_they_stand() {
        let text = r#"{"name": "a", "body": {"kind": "Pod", "kind": "Pod", "spec": {"containers": [{"image": "a"},
            {"image": "b", "image": "c", "env": [{"n": 1.5, "n": null}]}], "x": {}, "x": {"y": 1, "y": [true]}}}}"#;
        let expected = ["kind", "spec.containers[1].image", "spec.containers[1].env[0].n", "spec.x", "spec.x.y"];
        assert_eq!(fields_within(text, "body"), expected);
        assert!(fields_within(r#"{"body": {"a": {"x": 1}, "b": {"x": 1}}}"#, "body").is_empty());
        assert!(fields_within("{", "body").is_empty());
        let many: String = (0..40).chain([39]).map(|n| format!("\"\\u0061{n}\": 1,")).collect();
        assert_eq!(super::fields(&format!("{{{many} \"a3\": 1}}")), ["a39", "a3"]);
        // A long name is reported once per path, truncated.
        let twice: String = (0..100).map(|n| format!("\"k{n}\": 1, \"k{n}\": 1,")).collect();
        let told = super::fields(&format!("{{\"{}\": {{{twice} \"z\": 1}}}}", "x".repeat(100_000)));
        assert!(
            told.len() == 100 && told.iter().all(|path| path.len() < 300 && path.starts_with("xxx")),
            "{:?}",
            told[0]
        );
    }
}
