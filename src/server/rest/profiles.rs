//! `/debug/pprof/`, as in Go's `net/http/pprof`, for `go tool pprof`.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_DISPOSITION, HeaderValue, LOCATION};

use super::query::Query;
use super::reply::{self, Reply};
use crate::Server;

const INDEX: &str = "/debug/pprof/";
/// The default and maximum duration of a profile.
const USUAL: u64 = 30;
const LONGEST: u64 = 300;
const ARGUMENTS: &str = "/proc/self/cmdline";

/// The available profiles, with their descriptions in the index. (Go's others are about its own scheduler.)
const PROFILES: [(&str, &str); 3] = [
    ("cmdline", "The command line invocation of the current program"),
    (
        "heap",
        "A sampling of memory allocations of live objects: all since the start with _RJEM_MALLOC_CONF=prof_active:true in \
         the environment of the process, else those made during the seconds GET parameter.",
    ),
    ("profile", "CPU profile. You can specify the duration in the seconds GET parameter."),
];

/// `name`: `None` for the index. Nothing is served with `--profiling=false`.
pub async fn answer(server: &Server, path: &str, name: Option<&str>, query: &Query) -> Reply {
    let Some(profiler) = &server.config.profiler else { return reply::not_found() };
    let time = time(query);
    let profile = match (name, time) {
        (None, _) if !path.ends_with('/') => return redirect(),
        (None, _) => return reply::typed(reply::full(index()), "text/html; charset=utf-8"),
        (Some("cmdline"), _) => return command_line(),
        (Some("profile" | "heap"), None) => {
            return refused(StatusCode::BAD_REQUEST, &format!("a profile takes {LONGEST} seconds at most"));
        }
        (Some("profile"), Some(time)) => profiler.cpu(time).await,
        (Some("heap"), Some(time)) => profiler.heap(time).await,
        (Some(_), _) => return refused(StatusCode::NOT_FOUND, "Unknown profile"),
    };
    match profile {
        Ok(bytes) => {
            let mut reply = reply::typed(reply::full(bytes), "application/octet-stream");
            let file = match name {
                Some("heap") => "attachment; filename=\"heap\"",
                _ => "attachment; filename=\"profile\"",
            };
            reply.headers_mut().insert(CONTENT_DISPOSITION, HeaderValue::from_static(file));
            reply
        }
        Err(why) => refused(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
    }
}

/// The requested duration; Go's default if it is not a number above 0. `None`: too long.
fn time(query: &Query) -> Option<Duration> {
    let seconds = query.first("seconds").and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    Some(seconds.unwrap_or(USUAL)).filter(|seconds| *seconds <= LONGEST).map(Duration::from_secs)
}

fn redirect() -> Reply {
    let mut reply = reply::text(StatusCode::FOUND, "");
    reply.headers_mut().insert(LOCATION, HeaderValue::from_static(INDEX));
    reply
}

fn refused(code: StatusCode, why: &str) -> Reply {
    let mut reply = reply::text(code, format!("{why}\n"));
    // Go's tools recognize an error response by this.
    reply.headers_mut().insert("x-go-pprof", HeaderValue::from_static("1"));
    reply
}

/// The arguments, separated by zero bytes; hidden ones stay hidden.
fn command_line() -> Reply {
    match std::fs::read(ARGUMENTS) {
        Ok(mut bytes) => {
            bytes.pop_if(|last| *last == 0);
            reply::text(StatusCode::OK, bytes)
        }
        Err(why) => refused(StatusCode::INTERNAL_SERVER_ERROR, &format!("{ARGUMENTS}: {why}")),
    }
}

fn index() -> String {
    let rows: String =
        PROFILES.iter().map(|(name, about)| format!("<li><a href='{name}'>{name}</a>: {about}</li>\n")).collect();
    format!("<html>\n<head>\n<title>{INDEX}</title>\n</head>\n<body>\n{INDEX}\n<ul>\n{rows}</ul>\n</body>\n</html>\n")
}
