//! HTTP responses: objects, lists and errors as bodies, with their status codes, headers and encodings.

use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response as HttpResponse, StatusCode};
use serde_json::Value;

use super::negotiate::{Form, Wanted};
use podwright_api::{Status, yaml};

/// The error of a body that breaks off. (The compiler cannot prove futures with a boxed error type `Send`.)
pub type BodyError = std::io::Error;
pub type HttpBody = UnsyncBoxBody<Bytes, BodyError>;
pub type Reply = HttpResponse<HttpBody>;

/// Responses from this size on are compressed if the client accepts it; upstream's threshold.
const COMPRESS_FROM: usize = 128 << 10;

pub const JSON: &str = "application/json";

/// A complete body.
pub fn full(bytes: impl Into<Bytes>) -> HttpBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn with_code(mut reply: Reply, code: u16) -> Reply {
    // Codes come from `Status`, whose numbers are HTTP's; an invalid one from a node becomes 500.
    *reply.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply
}

/// Forbids browsers to guess another content type: names and proxied bodies are user-controlled.
pub fn as_it_says(reply: &mut Reply) {
    reply.headers_mut().entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
}

/// The response to a HEAD: that of a GET with its length, but without the body.
pub fn without_body(reply: &mut Reply) {
    if let Some(length) = hyper::body::Body::size_hint(reply.body()).exact() {
        reply.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    *reply.body_mut() = full("");
}

/// A plain text response.
pub fn text(code: StatusCode, text: impl Into<Bytes>) -> Reply {
    let mut reply = typed(full(text), "text/plain; charset=utf-8");
    *reply.status_mut() = code;
    reply
}

/// Upstream's 404 response: a text, not a `Status`.
pub fn not_found() -> Reply {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// A document's ETag.
pub fn tag(hash: &str) -> String {
    format!("\"{hash}\"")
}

/// Whether the client has this content already: `If-None-Match`.
pub fn has(headers: &HeaderMap, hash: &str) -> bool {
    let tag = tag(hash);
    let named = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut each = named.flat_map(|value| value.split(',')).map(str::trim);
    each.any(|value| value == "*" || value.strip_prefix("W/").unwrap_or(value) == tag)
}

/// Adds an ETag to a response.
pub fn tagged(mut reply: Reply, hash: &str) -> Reply {
    if let Ok(tag) = tag(hash).parse() {
        reply.headers_mut().insert(header::ETAG, tag);
    }
    reply
}

/// The 304 response.
pub fn not_modified() -> Reply {
    let mut reply = HttpResponse::new(full(""));
    *reply.status_mut() = StatusCode::NOT_MODIFIED;
    reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    reply
}

pub fn typed(body: HttpBody, media_type: &'static str) -> Reply {
    let mut reply = HttpResponse::new(body);
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

/// JSON bytes in the requested form.
pub fn json(code: u16, bytes: Bytes, wanted: &Wanted) -> Reply {
    let (bytes, media_type) = match wanted.form {
        Form::Json if wanted.pretty => (pretty(&bytes), JSON),
        Form::Json if !is_compressed(bytes.len(), wanted) => return line(code, bytes, JSON),
        Form::Json => ([&bytes, END].concat().into(), JSON),
        Form::Yaml => (to_yaml(&bytes), "application/yaml"),
    };
    let compress = is_compressed(bytes.len(), wanted);
    let bytes = if compress { gzip(&bytes) } else { bytes };
    ready(code, bytes, media_type, compress)
}

/// Upstream's JSON encoder ends each value with this: programs read line by line.
pub const END: &[u8] = b"\n";

/// Bytes followed by a newline. They may be long and shared, so they are not copied.
pub fn line(code: u16, bytes: Bytes, media_type: &'static str) -> Reply {
    let mut reply = ready(code, Bytes::new(), media_type, false);
    *reply.body_mut() = Line { rest: Some(bytes), end: true }.map_err(|never| match never {}).boxed_unsync();
    reply
}

struct Line {
    rest: Option<Bytes>,
    end: bool,
}

impl Body for Line {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.rest.take() {
            Some(bytes) => Some(bytes),
            None => std::mem::take(&mut self.end).then(|| Bytes::from_static(END)),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }
    fn is_end_stream(&self) -> bool {
        !self.end
    }
    fn size_hint(&self) -> SizeHint {
        let length = self.rest.as_ref().map_or(0, Bytes::len) + if self.end { END.len() } else { 0 };
        // A length in memory fits 64 bits.
        SizeHint::with_exact(length as u64)
    }
}

/// Whether a response of this size is compressed.
pub fn is_compressed(bytes: usize, wanted: &Wanted) -> bool {
    wanted.gzip && bytes >= COMPRESS_FROM
}

/// Bytes in their final form.
pub fn ready(code: u16, bytes: Bytes, media_type: &'static str, compressed: bool) -> Reply {
    let mut reply = with_code(typed(full(bytes), media_type), code);
    let headers = reply.headers_mut();
    if compressed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    reply
}

/// A value, which always encodes.
pub fn value(code: u16, value: &Value, wanted: &Wanted) -> Reply {
    json(code, Bytes::from(value.to_string()), wanted)
}

fn pretty(bytes: &[u8]) -> Bytes {
    let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let mut text = serde_json::to_string_pretty(&value).unwrap_or_default();
    text.push('\n');
    text.into()
}

fn to_yaml(bytes: &[u8]) -> Bytes {
    let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    match yaml::to_string(&value) {
        Ok(text) => text.into(),
        // Every JSON value has a YAML form; if not, JSON is YAML too.
        Err(_) => Bytes::copy_from_slice(bytes),
    }
}

pub fn gzip(bytes: &[u8]) -> Bytes {
    let mut zip = Zip::new(bytes.len());
    zip.add(bytes);
    zip.finish().into()
}

/// Incremental compression.
pub struct Zip(GzEncoder<Vec<u8>>);

impl Zip {
    /// For about this many bytes.
    pub fn new(bytes: usize) -> Zip {
        Zip(GzEncoder::new(Vec::with_capacity(bytes / 4), Compression::fast()))
    }
    pub fn add(&mut self, bytes: &[u8]) {
        // Writing to a Vec cannot fail.
        let _ = self.0.write_all(bytes);
    }
    pub fn finish(self) -> Vec<u8> {
        self.0.finish().unwrap_or_default()
    }
}

/// A `Status` as the response. Errors are JSON even if YAML was requested.
pub fn status(status: &Status, wanted: &Wanted) -> Reply {
    // A Status always encodes: it consists of strings and numbers.
    let bytes = serde_json::to_vec(status).unwrap_or_default();
    let wanted = Wanted { gzip: false, ..*wanted };
    let mut reply = json(status.http_code(), bytes.into(), &wanted);
    warn(&mut reply, &status.warnings);
    let retry = status.details.as_ref().and_then(|details| details.retry_after_seconds);
    if let Some(seconds) = retry {
        reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

/// Upstream's Warning headers: `299 - "text"`.
pub fn warn(reply: &mut Reply, warnings: &[String]) {
    for warning in warnings {
        let mut quoted = String::with_capacity(warning.len() + 8);
        for c in warning.chars().filter(|c| !c.is_control()) {
            if matches!(c, '"' | '\\') {
                quoted.push('\\');
            }
            quoted.push(c);
        }
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            reply.headers_mut().append(header::WARNING, value);
        }
    }
}
