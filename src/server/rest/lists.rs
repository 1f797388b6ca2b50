//! Encodes lists in the requested form, item by item: a list may have hundreds of megabytes, and other large requests get the
//! shared CPU between two turns.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::negotiate::{Form, Wanted};
use super::reply::{self, Reply};
use crate::large::give_way;
use podwright_api::request::List;
use podwright_api::{Status, yaml};

/// The bytes of items per turn.
const TURN: usize = 256 << 10;

/// A list with encoded items.
pub struct Listed {
    /// All but the items.
    pub head: Map<String, Value>,
    /// The field with the items.
    pub field: &'static str,
    /// In JSON.
    pub items: Vec<Bytes>,
}

/// A list as one JSON object, its items unchanged.
pub fn list(list: &List) -> Bytes {
    listed(list, list.items.clone()).json().into()
}

/// A list with converted items.
pub fn listed(list: &List, items: Vec<Bytes>) -> Listed {
    let mut metadata = json!({});
    // Results computed on each read have none.
    if !list.resource_version.is_empty() {
        metadata["resourceVersion"] = list.resource_version.as_str().into();
    }
    if !list.continue_token.is_empty() {
        metadata["continue"] = list.continue_token.as_str().into();
    }
    if let Some(remaining) = list.remaining_item_count {
        metadata["remainingItemCount"] = remaining.into();
    }
    let head =
        [("kind", list.kind.as_str().into()), ("apiVersion", list.api_version.as_str().into()), ("metadata", metadata)];
    let head = head.into_iter().map(|(name, value): (_, Value)| (name.to_owned(), value)).collect();
    Listed { head, field: "items", items }
}

/// Counts the bytes of a turn.
#[derive(Default)]
pub struct Yielder(usize);

impl Yielder {
    /// Adds to it; yields once it is enough.
    pub async fn done(&mut self, bytes: usize) {
        self.0 += bytes;
        if self.0 >= TURN {
            self.0 = 0;
            give_way().await;
        }
    }
}

/// Converts each item.
pub async fn each(items: &[Bytes], make: impl Fn(&Bytes) -> Result<Bytes, Status>) -> Result<Vec<Bytes>, Status> {
    let (mut made, mut yielder) = (Vec::with_capacity(items.len()), Yielder::default());
    for item in items {
        made.push(make(item)?);
        yielder.done(item.len()).await;
    }
    Ok(made)
}

impl Listed {
    /// The response.
    pub async fn reply(self, wanted: &Wanted) -> Result<Reply, Status> {
        let (bytes, media_type) = match wanted.form {
            Form::Json if wanted.pretty => (self.pretty().await, reply::JSON),
            Form::Json => {
                let mut json = self.json();
                json.extend_from_slice(reply::END);
                (json, reply::JSON)
            }
            Form::Yaml => (self.yaml().await?, "application/yaml"),
        };
        let compress = reply::is_compressed(bytes.len(), wanted);
        let bytes = if compress { zipped(bytes).await } else { bytes };
        Ok(reply::ready(200, bytes.into(), media_type, compress))
    }

    pub fn json(&self) -> Vec<u8> {
        let head = serde_json::to_string(&self.head).unwrap_or_default();
        let size: usize = self.items.iter().map(|item| item.len() + 1).sum();
        let mut out = Vec::with_capacity(head.len() + size + 16);
        // After the head's last member, before its closing brace.
        out.extend_from_slice(&head.as_bytes()[..head.len().saturating_sub(1)]);
        out.extend_from_slice(format!(",\"{}\":[", self.field).as_bytes());
        for (i, item) in self.items.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            out.extend_from_slice(item);
        }
        out.extend_from_slice(b"]}");
        out
    }

    async fn pretty(&self) -> Vec<u8> {
        let head = serde_json::to_string_pretty(&self.head).unwrap_or_default();
        let mut out = head.strip_suffix("\n}").unwrap_or(&head).as_bytes().to_vec();
        out.extend_from_slice(format!(",\n  \"{}\": [", self.field).as_bytes());
        let mut yielder = Yielder::default();
        for (i, item) in self.items.iter().enumerate() {
            let text = serde_json::to_string_pretty(&value(item)).unwrap_or_default();
            out.extend_from_slice(if i > 0 { b",\n    " } else { b"\n    " });
            // Line breaks within strings are escaped: these are all between values.
            out.extend_from_slice(text.replace('\n', "\n    ").as_bytes());
            yielder.done(item.len()).await;
        }
        out.extend_from_slice(if self.items.is_empty() { b"]\n}\n" } else { b"\n  ]\n}\n" });
        out
    }

    async fn yaml(&self) -> Result<Vec<u8>, Status> {
        let shown = |value: &Value| yaml::to_string(value).map_err(Status::internal);
        let (before, behind): (Map<_, _>, Map<_, _>) =
            self.head.clone().into_iter().partition(|(name, _)| name.as_str() < self.field);
        let part = |part: Map<String, Value>| if part.is_empty() { Ok(String::new()) } else { shown(&part.into()) };
        let mut out = part(before)?.into_bytes();
        out.extend_from_slice(self.field.as_bytes());
        out.extend_from_slice(if self.items.is_empty() { b": []\n" } else { b":\n" });
        let mut yielder = Yielder::default();
        for item in &self.items {
            for (i, line) in shown(&value(item))?.lines().enumerate() {
                match line.is_empty() {
                    true => {}
                    false => out.extend_from_slice(if i == 0 { b"- " } else { b"  " }),
                }
                out.extend_from_slice(line.as_bytes());
                out.push(b'\n');
            }
            yielder.done(item.len()).await;
        }
        out.extend_from_slice(part(behind)?.as_bytes());
        Ok(out)
    }
}

/// Items are valid JSON.
fn value(item: &[u8]) -> Value {
    serde_json::from_slice(item).unwrap_or_default()
}

/// The same, compressed.
async fn zipped(bytes: Vec<u8>) -> Vec<u8> {
    let mut zip = reply::Zip::new(bytes.len());
    let mut yielder = Yielder::default();
    for chunk in bytes.chunks(TURN) {
        zip.add(chunk);
        // Compressing takes as long as a conversion.
        yielder.done(chunk.len()).await;
    }
    zip.finish()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use serde_json::json;

    use super::*;

    fn listed(field: &'static str, items: &[Value]) -> (Listed, Value) {
        let head = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}});
        let mut whole = head.clone();
        whole[field] = items.into();
        let items = items.iter().map(|item| item.to_string().into()).collect();
        (Listed { head: head.as_object().unwrap().clone(), field, items }, whole)
    }

    #[tokio::test]
    async fn a_list_by_pieces_is_the_list() {
        let texts = json!({
            "b": {"block": "a\n\n  b\n \nc\n", "kept": "a\n\n\n", "cut": "a\nb", "blank": "\n a\n",
            "tail": "a\n  ", "tab": "\ta\n\tb\n"},
            "a": ["x: y", "- z", "", " ", "null", "1", {"l": [[1, [2]], {"k": []}]}], "n": null, "e": {}, "f": "# no",
            "long": "word ".repeat(100), "quote": "it's \"so\"\r\n", "é": "ü\n\u{85}ö\n",
        });
        for items in [vec![], vec![json!({})], vec![texts.clone(), json!({"z": texts}), json!({"a": 1.5, "b": false})]]
        {
            for field in ["items", "rows"] {
                let (listed, whole) = listed(field, &items);
                let sorted = yaml::to_string(&whole).unwrap();
                assert_eq!(String::from_utf8(listed.yaml().await.unwrap()).unwrap(), sorted);
                let pretty = serde_json::to_string_pretty(&whole).unwrap() + "\n";
                assert_eq!(String::from_utf8(listed.pretty().await).unwrap(), pretty);
                assert_eq!(String::from_utf8(listed.json()).unwrap(), whole.to_string());
            }
        }
    }

    #[tokio::test]
    async fn a_large_list_is_many_turns() {
        let item = json!({"kind": "ConfigMap", "data": {"a": "x".repeat(100 << 10), "b": 1}});
        let (list, _) = listed("items", &vec![item; 40]);
        for form in [Form::Yaml, Form::Json] {
            let wanted = Wanted { form, pretty: true, ..Wanted::PLAIN };
            let list = Listed { head: list.head.clone(), field: list.field, items: list.items.clone() };
            let mut work = pin!(list.reply(&wanted));
            let mut turns = 0;
            let reply = poll_fn(|context| {
                turns += 1;
                work.as_mut().poll(context)
            });
            reply.await.unwrap();
            assert!(turns > 10, "{turns} turns");
        }
        let all = list.items.clone();
        let mut work = pin!(each(&all, |item| Ok(item.clone())));
        let waits = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_pending()));
        assert!(waits.await, "what is made of its items is too");
    }
}
