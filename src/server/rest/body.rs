//! Request bodies: bounded reading; JSON, YAML and protobuf.

use std::fmt::Display;
use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::negotiate::Written;
use super::reply::HttpBody;
use crate::answers::PIECE;
use crate::limits::BodyBytes;
use podwright_api::object::check_nesting;
use podwright_api::schema::decode::go_value;
use podwright_api::{Status, duplicates, protobuf, yaml};

/// The largest body, upstream's limit.
pub const LIMIT: usize = 3 << 20;

/// A body that has started takes room from others: after the first piece, each further one must come within this time.
const PACE: Duration = Duration::from_secs(10);

/// Reads a body of at most `limit` bytes, within `patience`. `room` accounts for its bytes as long as they are kept.
pub(crate) async fn read(
    body: HttpBody,
    limit: usize,
    patience: Duration,
    room: &mut BodyBytes,
) -> Result<Bytes, Status> {
    let late = |_| late(format!("the body did not come within {} s", patience.as_secs_f32()));
    let read = tokio::time::timeout(patience, all(body, limit, room)).await.map_err(late)?;
    room.whole();
    read
}

fn late(why: String) -> Status {
    Status::failure(408, "RequestTimeout", why)
}

async fn all(mut body: HttpBody, limit: usize, room: &mut BodyBytes) -> Result<Bytes, Status> {
    let too_large = || Status::failure(413, "RequestEntityTooLarge", format!("limit is {limit}"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let too_many = || Status::too_many_requests("Too many bodies are being read, please try again later.", 1);
    let (mut read, mut due, mut piece) = (BytesMut::new(), Instant::now() + PACE, PIECE);
    loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = poll_fn(|context| room.poll_lost(context)) => return Err(too_many()),
            () = sleep_until(due), if read.len() >= PIECE => {
                return Err(late(format!("less than {PIECE} bytes of the body came within {} s", PACE.as_secs())));
            }
        };
        let Some(frame) = frame else { return Ok(read.freeze()) };
        let frame = frame.map_err(|why| Status::bad_request(format!("the body cannot be read: {why}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > limit {
            return Err(too_large());
        }
        if !room.more(data.len()) {
            return Err(too_many());
        }
        read.extend_from_slice(&data);
        if read.len() >= piece {
            (due, piece) = (Instant::now() + PACE, read.len() + PIECE);
        }
    }
}

/// What a body must be.
#[derive(Clone, Copy, Debug)]
pub enum Meant<'a> {
    /// An object of this kind.
    Object(&'a str),
    Patch,
}

/// Parses a body into a value.
pub fn parse(bytes: &[u8], form: Written, meant: Meant<'_>) -> Result<Value, Status> {
    let value = value(bytes, form).and_then(|value| match meant {
        Meant::Object(_) if form != Written::Yaml => of_a_kind(value),
        _ => Ok(value),
    });
    let value = value.map_err(|why| meant.refuse(bytes, &why))?;
    check_nesting(&value)?;
    Ok(value)
}

/// The value, or an error with what was read and what is wrong.
fn value(bytes: &[u8], form: Written) -> Result<Value, Unread> {
    match form {
        Written::Json => serde_json::from_slice(bytes).map_err(|why| match why.is_eof() {
            true => Unread::json("unexpected end of JSON input"),
            false => Unread::json(why),
        }),
        Written::Protobuf => protobuf::decode(bytes).map_err(|why| Unread::of("protobuf error", why)),
        Written::Yaml => {
            let yaml = |why: &dyn Display| Unread::of("error converting YAML to JSON", format!("yaml: {why}"));
            let text = std::str::from_utf8(bytes).map_err(|why| yaml(&why))?;
            let mut documents = yaml::documents(text).map_err(|why| yaml(&why))?;
            match documents.len() {
                1 => Ok(documents.remove(0)),
                0 => Err(yaml(&"there is no document")),
                n => Err(yaml(&format!("there are {n} documents; one is expected"))),
            }
        }
    }
}

/// An object with a kind.
fn of_a_kind(value: Value) -> Result<Value, Unread> {
    let wrong = match &value {
        Value::Object(map) => {
            let field = ["apiVersion", "kind"].into_iter().find_map(|field| match map.get(field) {
                None | Some(Value::Null | Value::String(_)) => None,
                Some(other) => Some((field, other)),
            });
            field.map(|(field, other)| {
                format!("json: cannot unmarshal {} into Go struct field .{field} of type string", go_value(other))
            })
        }
        other => Some(format!(
            "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; \
             Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            go_value(other)
        )),
    };
    wrong.map_or(Ok(value), |why| Err(Unread::json(why)))
}

/// Fields that occur twice. (YAML with duplicates does not parse at all.)
pub fn duplicates(bytes: &[u8], form: Written) -> Vec<String> {
    match (form, std::str::from_utf8(bytes)) {
        (Written::Json, Ok(text)) => duplicates::fields(text),
        _ => Vec::new(),
    }
}

/// Why a body could not be parsed.
struct Unread {
    what: &'static str,
    why: String,
}

impl Unread {
    fn of(what: &'static str, why: impl Display) -> Unread {
        Unread { what, why: why.to_string() }
    }
    fn json(why: impl Display) -> Unread {
        Unread::of("couldn't get version/kind; json parse error", why)
    }
}

impl Meant<'_> {
    fn refuse(self, bytes: &[u8], Unread { what, why }: &Unread) -> Status {
        Status::bad_request(match self {
            Meant::Patch => format!("error decoding patch: {why}"),
            Meant::Object(kind) => {
                let shown = summary(bytes);
                format!("the object provided is unrecognized (must be of type {kind}): {what}: {why} ({shown})")
            }
        })
    }
}

/// The beginning of a body, for error messages; upstream's `summarizeData`.
fn summary(bytes: &[u8]) -> String {
    let (begin, more) = (&bytes[..bytes.len().min(SHOWN)], if bytes.len() > SHOWN { " ..." } else { "" });
    match begin.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(begin).into_owned() + more,
        Some(_) => begin.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + more,
    }
}

/// How many bytes of a body are quoted.
const SHOWN: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Bodies, Limits};
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use podwright_api::User;

    /// `count` pieces of `bytes` bytes, each after `every`.
    fn pieces(count: usize, bytes: usize, every: Duration) -> HttpBody {
        let frames = stream::unfold(0, move |sent| async move {
            tokio::time::sleep(every).await;
            (sent < count).then(|| (Ok(Frame::data(Bytes::from(vec![b'x'; bytes]))), sent + 1))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_room_comes_at_a_pace() {
        let bodies = Bodies::new(&Limits::default());
        let (user, patience) = (User::new("a", Vec::<String>::new()), Duration::from_secs(60));
        for (count, bytes, every, code) in [
            (4, 1000, 11, None),
            (7, PIECE, 7, None),
            (50, PIECE / 8, 1, None),
            (50, PIECE / 16, 1, Some(408)),
            (3, PIECE, 11, Some(408)),
            (7, 1000, 11, Some(408)),
        ] {
            let mut room = bodies.of(&user);
            let body = pieces(count, bytes, Duration::from_secs(every));
            let read = read(body, LIMIT, patience, &mut room).await;
            assert_eq!(read.as_ref().err().map(|why| why.code), code, "{count} {bytes} {every}: {read:?}");
        }
    }
}
