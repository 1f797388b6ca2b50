//! Request bodies: bounded reading; JSON, YAML and protobuf.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::Value;

use super::reply::HttpBody;
use crate::api::object::{MAX_NESTED, nests_within};
use crate::api::{Status, duplicates, protobuf, yaml};
use crate::server::limits::Taken;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Json,
    Yaml,
    Protobuf,
}

/// The largest body that is taken in, as upstream limits it.
pub const LIMIT: usize = 3 << 20;

/// Reads all of a body of at most `limit` bytes, within `patience`. `room` takes its bytes for as long as they are kept.
pub async fn read(body: HttpBody, limit: usize, patience: Duration, room: &mut Taken) -> Result<Bytes, Status> {
    let late = |_| {
        let why = format!("the body did not come within {} s", patience.as_secs_f32());
        Status::failure(408, "RequestTimeout", why)
    };
    tokio::time::timeout(patience, all(body, limit, room)).await.map_err(late)?
}

async fn all(mut body: HttpBody, limit: usize, room: &mut Taken) -> Result<Bytes, Status> {
    let too_large = || Status::failure(413, "RequestEntityTooLarge", format!("limit is {limit}"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|why| Status::bad_request(format!("the body cannot be read: {why}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > limit {
            return Err(too_large());
        }
        if !room.more(data.len()) {
            return Err(Status::too_many_requests("Too many bodies are being read, please try again later.", 1));
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// The value that a body holds.
pub fn parse(bytes: &[u8], form: Written) -> Result<Value, Status> {
    let value = value(bytes, form)?;
    // What is stored must be read again, as JSON.
    match nests_within(&value, MAX_NESTED) {
        true => Ok(value),
        false => Err(Status::bad_request(format!("the body is nested more than {MAX_NESTED} levels deep"))),
    }
}

fn value(bytes: &[u8], form: Written) -> Result<Value, Status> {
    match form {
        Written::Json => serde_json::from_slice(bytes).map_err(|why| unreadable("json parse", why)),
        Written::Protobuf => protobuf::decode(bytes).map_err(|why| unreadable("protobuf", why)),
        Written::Yaml => {
            let text = std::str::from_utf8(bytes).map_err(|why| unreadable("yaml parse", why))?;
            let mut documents = yaml::documents(text).map_err(|why| unreadable("yaml parse", why))?;
            match documents.len() {
                1 => Ok(documents.remove(0)),
                0 => Err(Status::bad_request("the body is empty")),
                n => Err(Status::bad_request(format!("the body holds {n} YAML documents; one is expected"))),
            }
        }
    }
}

/// The fields that a body names twice. (In YAML that is no document at all.)
pub fn duplicates(bytes: &[u8], form: Written) -> Vec<String> {
    match (form, std::str::from_utf8(bytes)) {
        (Written::Json, Ok(text)) => duplicates::fields(text),
        _ => Vec::new(),
    }
}

fn unreadable(what: &str, why: impl std::fmt::Display) -> Status {
    Status::bad_request(format!("the object provided is unrecognized: couldn't get version/kind; {what} error: {why}"))
}
