//! Converts responses of extension API servers to the pipeline's: objects, lists, statuses, events.

use std::fmt;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::large::values_of;
use podwright_api::request::{Body, EventKind, List};
use podwright_api::{Object, Response, Status, Verb};

/// The most objects in a list.
const MOST_ITEMS: usize = 100_000;
/// How much of a response that is no Status is quoted.
const SHOWN: usize = 1024;
/// The most warnings that are copied, and their length.
const MOST_WARNINGS: usize = 16;
const LONGEST_WARNING: usize = 1024;

/// A watch event.
#[derive(Deserialize)]
pub struct Event {
    #[serde(rename = "type")]
    pub kind: EventKind,
    pub object: Box<RawValue>,
}

/// The type fields of a response.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Shape {
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireList {
    kind: String,
    api_version: String,
    metadata: Meta,
    #[serde(deserialize_with = "items")]
    items: Vec<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: String,
    remaining_item_count: Option<u64>,
}

/// Bounds the items, each of which takes memory of its own. Go writes an empty list as `null`.
fn items<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Box<RawValue>>, D::Error> {
    struct Items;
    impl<'de> Visitor<'de> for Items {
        type Value = Vec<Box<RawValue>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = all.next_element()? {
                if items.len() == MOST_ITEMS {
                    return Err(A::Error::custom(format!("it has more than {MOST_ITEMS} items")));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    from.deserialize_any(Items)
}

pub fn bytes(raw: Box<RawValue>) -> Bytes {
    Bytes::from(String::from(Box::<str>::from(raw)).into_bytes())
}

/// What an answer is to a request of this verb.
pub fn response(verb: Verb, code: StatusCode, body: Bytes, most: usize) -> Result<Body, Status> {
    if !code.is_success() {
        return Err(failure(code, &body));
    }
    // What was not expected is quoted, and may be all of it.
    let broken = |why: serde_json::Error| {
        let mut why = format!("the answer of an extension API server: {why}");
        why.truncate(why.floor_char_boundary(SHOWN));
        Status::internal(why)
    };
    // A list of fields in their order would do for an object, too.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(broken(serde_json::Error::custom("it is no object")));
    }
    if verb == Verb::List {
        let list: WireList = serde_json::from_slice(&body).map_err(broken)?;
        list.items.iter().try_for_each(|item| bounded(item.get().as_bytes(), most))?;
        return Ok(Body::List(List {
            kind: list.kind,
            api_version: list.api_version,
            resource_version: list.metadata.resource_version,
            continue_token: list.metadata.continue_token,
            remaining_item_count: list.metadata.remaining_item_count,
            items: list.items.into_iter().map(bytes).collect(),
        }));
    }
    match serde_json::from_slice::<WireList>(&body) {
        // The list of what was deleted.
        Ok(list) if verb == Verb::DeleteCollection => {
            list.items.iter().try_for_each(|item| bounded(item.get().as_bytes(), most))?;
        }
        _ => bounded(&body, most)?,
    }
    match serde_json::from_slice::<Shape>(&body).map_err(broken)?.kind.as_str() {
        "Status" => Ok(Body::Status(serde_json::from_slice(&body).map_err(broken)?)),
        _ => Ok(Body::Object { bytes: body, created: code == StatusCode::CREATED }),
    }
}

/// What is read as a whole, by whomever, becomes so many values at most: these take hundreds of bytes each, and JSON has one in three.
///
/// # Errors
/// It becomes more.
pub fn bounded(json: &[u8], most: usize) -> Result<(), Status> {
    match json.len() > most && values_of(json) > most {
        true => Err(Status::internal(format!("an object of an extension API server has more than {most} values"))),
        false => Ok(()),
    }
}

/// Why something is refused: the Status that says so, or what else there is.
pub fn failure(code: StatusCode, body: &[u8]) -> Status {
    /// More has no Status that was meant.
    const MOST: usize = 10_000;
    match bounded(body, MOST).map(|()| serde_json::from_slice::<Status>(body)) {
        Ok(Ok(status)) if status.kind == "Status" && status.status == "Failure" => {
            Status { code: code.as_u16(), ..status }
        }
        _ => {
            let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
            let reason = match code {
                StatusCode::NOT_FOUND => "NotFound",
                StatusCode::UNAUTHORIZED => "Unauthorized",
                StatusCode::FORBIDDEN => "Forbidden",
                StatusCode::CONFLICT => "Conflict",
                StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
                StatusCode::GATEWAY_TIMEOUT => "Timeout",
                StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
                code if code.is_server_error() => "InternalError",
                _ => "Unknown",
            };
            Status::failure(code.as_u16(), reason, shown.trim())
        }
    }
}

/// The object in a response.
pub fn object(response: &Response) -> Result<Object, Status> {
    match &response.body {
        Body::Object { bytes, .. } => Object::from_slice(bytes),
        _ => Err(Status::internal("an extension API server has answered with no object")),
    }
}

/// The texts of `Warning` headers: `299 - "unknown field \"spec.x\""`.
pub fn warnings<'a>(headers: impl Iterator<Item = &'a str>) -> Vec<String> {
    let text = |line: &str| {
        let quoted = line.strip_prefix("299 ")?.split_once(' ')?.1.trim().strip_prefix('"')?.strip_suffix('"')?;
        (quoted.len() <= LONGEST_WARNING).then(|| quoted.replace("\\\"", "\"").replace("\\\\", "\\"))
    };
    headers.filter_map(text).take(MOST_WARNINGS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(verb: Verb, code: u16, body: &str) -> Result<Body, Status> {
        response(verb, StatusCode::from_u16(code).unwrap(), Bytes::from(body.to_owned()), 1_000)
    }

    #[test]
    fn answers_are_what_they_say_they_are() {
        let Ok(Body::Object { created: true, bytes }) = read(Verb::Create, 201, r#"{"kind":"Thing"}"#) else {
            panic!()
        };
        assert_eq!(bytes, r#"{"kind":"Thing"}"#);
        let Ok(Body::Status(status)) = read(Verb::Delete, 200, r#"{"kind":"Status","status":"Success"}"#) else {
            panic!()
        };
        assert_eq!(status.status, "Success");
        let text = r#"{"kind":"ThingList","metadata":{"resourceVersion":"7","continue":"c"},"items":[{"a":1},{}]}"#;
        let Ok(Body::List(list)) = read(Verb::List, 200, text) else { panic!() };
        assert_eq!((list.kind.as_str(), list.resource_version.as_str(), list.items.len()), ("ThingList", "7", 2));
        let Ok(Body::List(list)) = read(Verb::List, 200, r#"{"items":null}"#) else { panic!() };
        assert!(list.items.is_empty());
        for odd in ["", "[]", "7", "{\"items\":{}}", "{\"items\":[", "<html>"] {
            assert_eq!(read(Verb::List, 200, odd).unwrap_err().code, 500, "{odd}");
        }
        let many = format!("{{\"items\":[{}{{}}]}}", "{},".repeat(MOST_ITEMS));
        assert!(read(Verb::List, 200, &many).unwrap_err().message.contains("more than 100000 items"));
    }

    /// Each of them may be as large as an object; together they may be as much as a list.
    #[test]
    fn what_was_deleted_is_a_list_and_weighed_as_one() {
        let object = format!("{{\"values\":[{}0]}}", "0,".repeat(600));
        let list = format!("{{\"kind\":\"ThingList\",\"items\":[{object},{object}]}}");
        let Ok(Body::Object { bytes, .. }) = read(Verb::DeleteCollection, 200, &list) else { panic!("it is refused") };
        assert_eq!(bytes, list);
        assert!(read(Verb::Get, 200, &list).is_err(), "it is no object");
        let large = format!("{{\"items\":[{{\"values\":[{}0]}}]}}", "0,".repeat(1_200));
        assert!(read(Verb::DeleteCollection, 200, &large).is_err());
    }

    #[test]
    fn failures_are_told_as_statuses() {
        let told =
            r#"{"kind":"Status","status":"Failure","reason":"AlreadyExists","message":"it is there","code":200}"#;
        let status = read(Verb::Create, 409, told).unwrap_err();
        assert_eq!(
            (status.code, status.reason.as_str(), status.message.as_str()),
            (409, "AlreadyExists", "it is there")
        );
        let status = read(Verb::Get, 404, "404 page not found\n").unwrap_err();
        assert!(status.is_not_found());
        assert_eq!(status.message, "404 page not found");
        assert_eq!(read(Verb::Get, 500, &"x".repeat(1 << 20)).unwrap_err().message.len(), SHOWN);
        assert_eq!(read(Verb::Get, 418, r#"{"kind":"Status","status":"Success"}"#).unwrap_err().reason, "Unknown");
    }

    #[test]
    fn what_becomes_many_values_is_not_read() {
        let many = |item: &str, count: usize| vec![item; count].join(",");
        for (count, is_fine) in [(900, true), (1_010, false)] {
            let of = |item: &str| format!(r#"{{"kind":"Thing","a":[{}]}}"#, many(item, count - 5));
            assert_eq!(read(Verb::Get, 200, &of("0")).is_ok(), is_fine, "{count}");
            let list = format!(r#"{{"items":[{0},{0}]}}"#, of("0"));
            assert_eq!(read(Verb::List, 200, &list).is_ok(), is_fine, "{count} in each of them");
        }
        assert!(
            read(Verb::Get, 200, &format!(r#"{{"a":[{}]}}"#, many("{}", 400))).is_err(),
            "an object counts for two"
        );
        let quoted = read(Verb::List, 200, &format!(r#"{{"metadata":"{}"}}"#, "é".repeat(5_000))).unwrap_err();
        assert!(quoted.message.len() <= SHOWN + 100, "{quoted:?}");
        let text = format!(r#"{{"a":"{}"}}"#, ",".repeat(5_000));
        assert!(read(Verb::Get, 200, &text).is_ok(), "a text is one");
        let causes =
            format!(r#"{{"kind":"Status","status":"Failure","details":{{"causes":[{}]}}}}"#, many("{}", 10_000));
        let told = read(Verb::Get, 409, &causes).unwrap_err();
        assert!(told.details.is_none_or(|details| details.causes.is_empty()) && told.message.len() <= SHOWN);
    }

    #[test]
    fn warnings_are_read_from_their_headers() {
        let lines = ["299 - \"unknown field \\\"spec.x\\\"\"", "199 - \"no\"", "299 -", "nonsense"];
        assert_eq!(warnings(lines.into_iter()), ["unknown field \"spec.x\""]);
        let many = vec!["299 - \"a\""; 100];
        assert_eq!(warnings(many.into_iter()).len(), MOST_WARNINGS);
    }
}
