//! Request bodies: bounded reading; JSON, YAML and protobuf.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::reply::HttpBody;
use crate::api::{Status, duplicates, protobuf, yaml};

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Json,
    Yaml,
    Protobuf,
}

/// The largest body that is taken in, as upstream limits it.
pub const LIMIT: usize = 3 << 20;
/// How long a client may take to send it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads all of a body.
pub async fn read(body: HttpBody) -> Result<bytes::Bytes, Status> {
    let late = |_| Status::timeout(format!("the body did not come within {} s", PATIENCE.as_secs()));
    match tokio::time::timeout(PATIENCE, Limited::new(body, LIMIT).collect()).await.map_err(late)? {
        Ok(all) => Ok(all.to_bytes()),
        Err(why) if why.is::<LengthLimitError>() => {
            Err(Status::failure(413, "RequestEntityTooLarge", format!("limit is {LIMIT}")))
        }
        Err(why) => Err(Status::bad_request(format!("the body cannot be read: {why}"))),
    }
}

/// The value that a body holds.
pub fn parse(bytes: &[u8], form: Written) -> Result<Value, Status> {
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
