//! Fields that a JSON text names twice: a tree of values no longer shows them, and strict decoding refuses them.

use std::collections::HashSet;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The paths of all fields that are named twice, as upstream words them: `spec.containers[0].image`. A text that is no
/// JSON has none: it is refused elsewhere.
pub fn fields(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut json = serde_json::Deserializer::from_str(text);
    // What is found before an error counts for nothing, as the text is refused.
    let _ = Walk { path: String::new(), found: &mut found }.deserialize(&mut json);
    found
}

/// The same, of the value of one field of a JSON object.
pub fn fields_within(text: &str, name: &str) -> Vec<String> {
    let prefix = format!("{name}.");
    fields(text).into_iter().filter_map(|path| path.strip_prefix(&prefix).map(str::to_owned)).collect()
}

struct Walk<'a> {
    path: String,
    found: &'a mut Vec<String>,
}

impl Walk<'_> {
    fn below(&mut self, path: String) -> Walk<'_> {
        Walk { path, found: self.found }
    }

    fn field(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
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

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let path = self.field(&name);
            if !seen.insert(name) {
                self.found.push(path.clone());
            }
            map.next_value_seed(self.below(path))?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        for index in 0.. {
            let path = format!("{}[{index}]", self.path);
            if list.next_element_seed(self.below(path))?.is_none() {
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
    }
}
