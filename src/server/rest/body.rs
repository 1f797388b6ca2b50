//! Request bodies: bounded reading, JSON and YAML.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::negotiate::Form;
use super::reply::HttpBody;
use crate::api::{Status, yaml};

/// The largest body that is taken in, as upstream limits it.
pub const LIMIT: usize = 3 << 20;

/// Reads all of a body.
pub async fn read(body: HttpBody) -> Result<bytes::Bytes, Status> {
    match Limited::new(body, LIMIT).collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(why) if why.is::<LengthLimitError>() => {
            Err(Status::failure(413, "RequestEntityTooLarge", format!("limit is {LIMIT}")))
        }
        Err(why) => Err(Status::bad_request(format!("the body cannot be read: {why}"))),
    }
}

/// The value that a body holds.
pub fn parse(bytes: &[u8], form: Form) -> Result<Value, Status> {
    match form {
        Form::Json => serde_json::from_slice(bytes).map_err(|why| unreadable("json parse", why)),
        Form::Yaml => {
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

fn unreadable(what: &str, why: impl std::fmt::Display) -> Status {
    Status::bad_request(format!("the object provided is unrecognized: couldn't get version/kind; {what} error: {why}"))
}
