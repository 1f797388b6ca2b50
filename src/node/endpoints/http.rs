//! The paths of the node's endpoints, and the format of their responses. Pure.

use std::io;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Method, Response, StatusCode, body::Frame, header};

pub type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// What a path means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'p> {
    Metrics,
    Cadvisor,
    Resource,
    Probes,
    Summary,
    Pods,
    RunningPods,
    /// All checks, or a single one.
    Health(&'p str),
    Configz,
    /// The path after `/containerLogs/`.
    Logs(&'p str),
    /// Running commands in a container is only offered through the API server, which authorizes the user.
    Disabled,
}

/// Paths, their metric labels, and what they mean.
const PATHS: [(&str, &str, Route<'static>); 9] = [
    ("/metrics", "metrics", Route::Metrics),
    ("/metrics/cadvisor", "metrics/cadvisor", Route::Cadvisor),
    ("/metrics/resource", "metrics/resource", Route::Resource),
    ("/metrics/probes", "metrics/probes", Route::Probes),
    ("/stats/summary", "stats", Route::Summary),
    ("/pods", "pods", Route::Pods),
    ("/runningpods", "runningpods", Route::RunningPods),
    ("/healthz", "healthz", Route::Health("")),
    ("/configz", "configz", Route::Configz),
];
const DISABLED: [&str; 5] = ["run", "exec", "attach", "portForward", "debug"];

/// The route and metric label of a path; a trailing slash makes no difference.
pub fn place(path: &str) -> Option<(Route<'_>, &'static str)> {
    let whole = path.strip_suffix('/').unwrap_or(path);
    if let Some((_, counted, place)) = PATHS.iter().find(|(known, ..)| *known == whole) {
        return Some((*place, *counted));
    }
    let (first, rest) = path.strip_prefix('/')?.split_once('/')?;
    match (first, rest.trim_end_matches('/')) {
        ("healthz", check @ ("ping" | "log" | "syncloop")) => Some((Route::Health(check), "healthz")),
        ("containerLogs", rest) => Some((Route::Logs(rest), "containerLogs")),
        (first, _) => DISABLED.iter().find(|disabled| **disabled == first).map(|disabled| (Route::Disabled, *disabled)),
    }
}

/// The metric label of a request's method.
pub fn counted(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// A check's name and result.
pub type Checked = (&'static str, Result<(), String>);

/// The response to `/healthz`, or to one of its checks.
pub fn health(checks: &[Checked], only: &str, verbose: bool) -> Answer {
    let asked: Vec<&Checked> = checks.iter().filter(|(name, _)| only.is_empty() || *name == only).collect();
    let good = asked.iter().all(|(_, result)| result.is_ok());
    let mut report = String::new();
    for (name, result) in asked {
        match result {
            Ok(()) => report += &format!("[+]{name} ok\n"),
            Err(why) => report += &format!("[-]{name} failed: {why}\n"),
        }
    }
    match (good, verbose && only.is_empty()) {
        (true, false) => text(StatusCode::OK, "ok"),
        (true, true) => text(StatusCode::OK, format!("{report}healthz check passed\n")),
        (false, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{report}healthz check failed\n")),
    }
}

pub fn text(status: StatusCode, words: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", words)
}

pub fn answer(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    with(status, media_type, body)
}

pub fn streamed(media_type: &'static str, pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Answer {
    with(StatusCode::OK, media_type, StreamBody::new(pieces.map(|piece| piece.map(Frame::data))).boxed_unsync())
}

fn with(status: StatusCode, media_type: &'static str, body: UnsyncBoxBody<Bytes, io::Error>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    answer
}

pub fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// The response to a method that the path does not support.
pub fn not_allowed() -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET"));
    answer
}
