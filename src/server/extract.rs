//! Extracts labels and selectable fields from an object's bytes, without parsing the rest into a tree.

use std::fmt;

use jiff::Timestamp;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use podwright_api::{Kind, Object};

/// Label names and values, compact, ordered by name.
#[derive(Debug, Default)]
pub(super) struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    fn of(mut all: Vec<(Box<str>, Box<str>)>) -> Labels {
        all.sort_unstable();
        Labels(all.into())
    }

    /// The value of a label, by binary search.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.find(|key| key.cmp(name))
    }

    fn find(&self, mut compare: impl FnMut(&str) -> std::cmp::Ordering) -> Option<&str> {
        let at = self.0.binary_search_by(|(key, _)| compare(key)).ok()?;
        Some(&*self.0[at].1)
    }
}

const LABELS: [&str; 2] = ["metadata", "labels"];

/// Kept for some kinds besides labels and fields, as token authentication needs it for each request: an account's identity, and
/// whether the object that a token is bound to still exists.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub uid: Box<str>,
    pub deleted: Option<Timestamp>,
}

/// These kinds, of the core group, and where their facts are.
const WITH_FACTS: [&str; 4] = ["ServiceAccount", "Pod", "Secret", "Node"];
const FACTS: [[&str; 2]; 2] = [["metadata", "uid"], ["metadata", "deletionTimestamp"]];

/// What is extracted from a kind's objects.
pub(super) struct Extractor {
    /// The path of each of `Kind::indexed`, in that order.
    paths: Vec<Vec<&'static str>>,
    /// Their default values.
    unset: Vec<Box<str>>,
    /// Fields whose empty value is replaced by another's, each with that other.
    instead: Vec<(usize, usize)>,
    has_facts: bool,
}

impl Extractor {
    pub fn of(kind: &Kind) -> Extractor {
        let nothing = Object(Value::Null);
        let place = |wanted: &str| kind.indexed().iter().position(|path| *path == wanted);
        Extractor {
            instead: kind.indexed().iter().filter_map(|path| place(path).zip(place(kind.instead_of(path)?))).collect(),
            paths: kind.indexed().iter().map(|path| kind.field_path(path).split('.').collect()).collect(),
            unset: kind.indexed().iter().map(|path| kind.field(&nothing, path).into()).collect(),
            has_facts: WITH_FACTS.contains(&kind.built_in()),
        }
    }

    /// An object's labels, its selectable fields in the kind's order, and its facts.
    pub fn extract(&self, bytes: &[u8]) -> (Labels, Box<[Box<str>]>, Facts) {
        let all = self.paths.len();
        let facts: &[[&str; 2]] = if self.has_facts { &FACTS } else { &[] };
        let mut found = Found { labels: Vec::new(), fields: vec![None; all + facts.len()] };
        let paths = self.paths.iter().map(Vec::as_slice).chain(facts.iter().map(<[_; 2]>::as_slice));
        let fields = paths.enumerate().map(|(i, path)| Wanted { path, into: Into::Field(i) });
        let wanted: Vec<_> = fields.chain([Wanted { path: &LABELS, into: Into::Labels }]).collect();
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        // Stored objects always parse; in anything else nothing is found.
        let _ = Walk { wanted: &wanted, found: &mut found }.deserialize(&mut deserializer);
        for (field, other) in &self.instead {
            if found.fields[*field].as_deref().is_none_or(str::is_empty) {
                found.fields[*field] = found.fields[*other].clone();
            }
        }
        let mut told = found.fields.split_off(all).into_iter();
        let uid = told.next().flatten().unwrap_or_default();
        let deleted = told.next().flatten().and_then(|at| at.parse().ok());
        let fields = found.fields.into_iter().zip(&self.unset).map(|(value, unset)| value.unwrap_or(unset.clone()));
        (Labels::of(found.labels), fields.collect(), Facts { uid, deleted })
    }
}

struct Found {
    labels: Vec<(Box<str>, Box<str>)>,
    fields: Vec<Option<Box<str>>>,
}

/// What is wanted at this depth: the rest of its path, and where it goes.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    path: &'a [&'a str],
    into: Into,
}

#[derive(Clone, Copy)]
enum Into {
    Field(usize),
    Labels,
}

struct Walk<'a> {
    wanted: &'a [Wanted<'a>],
    found: &'a mut Found,
}

impl Walk<'_> {
    fn scalar(self, value: &str) {
        for wanted in self.wanted.iter().filter(|w| w.path.is_empty()) {
            if let Into::Field(i) = wanted.into {
                self.found.fields[i] = Some(value.into());
            }
        }
    }
}

/// Reads a key; returns what is wanted below it.
struct Step<'a>(&'a [Wanted<'a>]);

impl<'de, 'a> DeserializeSeed<'de> for Step<'a> {
    type Value = Vec<Wanted<'a>>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Step<'a> {
    type Value = Vec<Wanted<'a>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        let below = self.0.iter().filter(|wanted| wanted.path.first() == Some(&key));
        Ok(below.map(|wanted| Wanted { path: &wanted.path[1..], into: wanted.into }).collect())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.wanted.iter().any(|w| w.path.is_empty() && matches!(w.into, Into::Labels)) {
            while let Some((key, value)) = map.next_entry::<Box<str>, Value>()? {
                if let Value::String(value) = value {
                    self.found.labels.push((key, value.into()));
                }
            }
            return Ok(());
        }
        while let Some(below) = map.next_key_seed(Step(self.wanted))? {
            match below.is_empty() {
                true => drop(map.next_value::<IgnoredAny>()?),
                false => map.next_value_seed(Walk { wanted: &below, found: self.found })?,
            }
        }
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.scalar(value);
        Ok(())
    }
    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.scalar(if value { "true" } else { "false" });
        Ok(())
    }
    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.scalar(&value.to_string());
        Ok(())
    }
    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.scalar(&value.to_string());
        Ok(())
    }
    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.scalar(&value.to_string());
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_api::kinds;
    use serde_json::json;

    #[test]
    fn what_is_extracted_is_what_the_kind_says() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "1", "b\n": "\"2"}},
            "spec": {"nodeName": "n\\1", "hostNetwork": true, "containers": [{"nodeName": "no"}], "nodeNameX": {"a": 1}},
            "status": {"phase": "Running", "podIP": null}});
        let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"},
            "source": {"component": "x"}, "reason": "r"});
        let empty = json!({});
        for (kind, value) in [("pods", pod.clone()), ("events", event), ("pods", empty), ("nodes", pod)] {
            let kind = kinds::lookup(kind).unwrap();
            let object = Object(value);
            let (labels, fields, _) = Extractor::of(kind).extract(&object.to_vec());
            let wanted: Vec<Box<str>> = kind.selectable.iter().map(|path| kind.field(&object, path).into()).collect();
            assert_eq!(*fields, *wanted, "{object:?}");
            assert_eq!(labels.0.len(), object.labels().map_or(0, |l| l.len()));
            assert!(labels.0.iter().all(|(k, v)| object.label(k) == Some(v) && labels.get(k) == Some(v)));
        }
    }

    #[test]
    fn what_each_request_asks_for_is_kept() {
        let metadata = json!({"uid": "u", "deletionTimestamp": "1970-01-01T00:00:09Z", "name": "x"});
        let object = Object(json!({"metadata": metadata, "secrets": [{"uid": "no"}]}));
        for kind in ["serviceaccounts", "pods", "secrets", "nodes"] {
            let (.., facts) = Extractor::of(kinds::lookup(kind).unwrap()).extract(&object.to_vec());
            assert_eq!((&*facts.uid, facts.deleted), ("u", object.deletion_timestamp()), "{kind}");
        }
        assert!(object.deletion_timestamp().is_some());
    }

    #[test]
    fn a_label_is_found_among_many_with_few_comparisons() {
        let names = (0..50_000).map(|i| (format!("n{}", i * 7919 % 50_000), json!(i.to_string())));
        let object = Object(json!({"metadata": {"labels": names.collect::<serde_json::Map<_, _>>()}}));
        let (labels, ..) = Extractor::of(kinds::lookup("configmaps").unwrap()).extract(&object.to_vec());
        for name in ["n0", "n7919", "n49999", "z"] {
            let mut compared = 0;
            let found = labels.find(|key| {
                compared += 1;
                key.cmp(name)
            });
            assert_eq!(found, object.label(name));
            assert!(compared <= 20, "{name}: {compared} comparisons");
        }
    }
}
