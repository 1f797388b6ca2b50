//! `/containerLogs/NAMESPACE/POD/CONTAINER`: the output of a `log` session as a response body.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures::{SinkExt, StreamExt, stream};
use hyper::StatusCode;
use tokio_util::{codec::Framed, task::AbortOnDropHandle};

use super::http::{Answer, streamed, text};
use crate::{logs, machine::Machine, residents::Residents, spec::PodExt};
use podwright_api::{
    Status,
    rpc::{LogOptions, LogStream, PodRef},
    stream::{Frame, FrameCodec, STATUS, STDOUT},
};
use podwright_client::Stream;

const BUFFER: usize = 64 << 10;

/// Parses upstream's `PodLogOptions` from a query.
///
/// # Errors
///
/// The response to an invalid query, in upstream's words.
pub fn options(query: &[(String, String)], container: &str) -> Result<LogOptions, (StatusCode, String)> {
    let undecoded = || (StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#.to_owned());
    let first = |key: &str| query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    let flag = |key: &str| first(key).is_some_and(|on| !(on.eq_ignore_ascii_case("false") || on == "0"));
    let number = |key: &str| first(key).map(|text| text.parse::<i64>().map_err(|_| undecoded())).transpose();
    // Go's zero time means no limit.
    let since_time = first("sinceTime").filter(|text| !["", "null"].contains(text)).map(str::to_owned);
    if since_time.as_ref().is_some_and(|text| text.parse::<jiff::Timestamp>().is_err()) {
        return Err(undecoded());
    }
    // An older name of the parameter.
    let tail_lines = match first("tail") {
        Some("all") => None,
        Some(tail) if !tail.is_empty() => number("tail")?,
        _ => number("tailLines")?,
    };
    let stream = LogStream::named(first("stream").unwrap_or("All"));
    let log = LogOptions {
        container: container.to_owned(),
        follow: flag("follow"),
        previous: flag("previous"),
        since_seconds: number("sinceSeconds")?,
        since_time,
        timestamps: flag("timestamps"),
        tail_lines,
        limit_bytes: number("limitBytes")?,
        stream: stream.unwrap_or_default(),
    };
    let below = |number: Option<i64>, least: i64| number.is_some_and(|number| number < least);
    let both = log.since_seconds.is_some() && first("sinceTime").is_some();
    // Lines are counted before they are filtered by stream.
    let tail_of_one = log.stream.is_some() && log.tail_lines.is_some();
    if both
        || tail_of_one
        || stream.is_none()
        || below(log.tail_lines, 0)
        || below(log.since_seconds, 1)
        || below(log.limit_bytes, 1)
    {
        return Err((StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#.to_owned()));
    }
    Ok(log)
}

/// `path`: the part after `/containerLogs/`.
pub async fn serve(machine: &Arc<Machine>, residents: &Residents, path: &str, query: &[(String, String)]) -> Answer {
    let [namespace, name, container] = path.split('/').collect::<Vec<_>>()[..] else { return super::http::not_found() };
    let log = match options(query, container) {
        Ok(log) => log,
        Err((status, why)) => return text(status, why),
    };
    let Some(pod) = residents.named(namespace, name) else {
        return text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist"));
    };
    if pod.part(container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {container:?} not found in pod {name:?}"));
    }
    let pod = PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: pod.uid().to_owned() };
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let machine = machine.clone();
    let session = tokio::spawn(async move {
        let mut frames = Framed::new(Box::new(theirs) as Stream, FrameCodec);
        let ended = logs::serve::log(&machine, &mut frames, &pod, log).await;
        let status = ended.err().unwrap_or_else(Status::success);
        let payload = Bytes::from(serde_json::to_vec(&status).unwrap_or_default());
        // A client that hung up does not receive the status.
        frames.send(Frame { channel: STATUS, payload }).await.ok();
    });
    let session = AbortOnDropHandle::new(session);
    let mut frames = Framed::new(ours, FrameCodec);
    // Errors are reported before the first byte.
    let first = match frames.next().await {
        Some(Ok(Frame { channel: STDOUT, payload })) => payload,
        Some(Ok(Frame { channel: STATUS, payload })) => {
            return match serde_json::from_slice::<Status>(&payload) {
                Ok(status) if status.code >= 400 => text(StatusCode::BAD_REQUEST, status.message),
                _ => text(StatusCode::OK, ""),
            };
        }
        _ => return text(StatusCode::INTERNAL_SERVER_ERROR, "the log was not read"),
    };
    let rest = stream::unfold((frames, session), |(mut frames, session)| async move {
        let piece = match frames.next().await? {
            Ok(Frame { channel: STDOUT, payload }) => Ok(payload),
            Ok(Frame { channel: STATUS, payload }) => {
                let status: Status = serde_json::from_slice(&payload).ok()?;
                (status.code >= 400).then(|| Err(io::Error::other(status.message)))?
            }
            Ok(_) => return None,
            Err(why) => Err(why),
        };
        Some((piece, (frames, session)))
    });
    streamed("text/plain", stream::once(async { Ok(first) }).chain(rest))
}
