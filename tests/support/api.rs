//! One JSON-RPC call over the node's socket, without a client library: a test must know whether a response arrived.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};

/// Why a call returned no object.
#[derive(Debug)]
pub enum CallError {
    /// The server refused; nothing was done.
    Refused { code: i64, message: String },
    /// No complete response: it may have been done or not.
    Lost(String),
}

/// The object returned by `method`.
pub fn call(socket: &Path, method: &str, params: Value) -> Result<Value, CallError> {
    let answer = exchange(socket, method, params).map_err(CallError::Lost)?;
    let error = &answer["error"];
    if error.is_null() {
        return Ok(answer["result"]["object"].clone());
    }
    Err(CallError::Refused { code: error["code"].as_i64().unwrap_or(0), message: error["message"].to_string() })
}

fn exchange(socket: &Path, method: &str, params: Value) -> Result<Value, String> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let mut stream = UnixStream::connect(socket).map_err(|e| format!("connect: {e}"))?;
    // A response this late will never come: a test must not wait forever.
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(|e| e.to_string())?;
    let head = format!(
        "POST /rpc HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut answer = Vec::new();
    stream.write_all((head + &body).as_bytes()).map_err(|e| format!("write: {e}"))?;
    stream.read_to_end(&mut answer).map_err(|e| format!("read: {e}"))?;
    let text = String::from_utf8(answer).map_err(|e| e.to_string())?;
    let (_, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no whole answer: {text:?}"))?;
    serde_json::from_str(body).map_err(|e| format!("{e}: {body:?}"))
}
