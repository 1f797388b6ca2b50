//! Watches as chunked JSON lines.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::{future::BoxFuture, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::negotiate::Shape;
use super::reply::{self, BodyError, Reply};
use super::table::{self, Tabulator};
use crate::api::request::{EventKind, Origin};
use crate::api::{Status, User, WatchEvent};
use crate::server::{Server, Watch};

/// So many events go out in one chunk when they are there at once, unless they are larger than so many bytes.
const TOGETHER: usize = 128;
const CHUNK: usize = 32 << 10;

/// How the events of one watch are written.
struct Writer {
    server: Arc<Server>,
    user: User,
    events: Watch,
    shape: Shape,
    tabulator: Tabulator,
    /// A Table's columns are told once, and again when their definition asks for others.
    head_told: Option<Vec<String>>,
    waiting: Vec<WatchEvent>,
    /// Written and not sent: a large object, as all its watchers have it, and what is around it.
    ready: VecDeque<Bytes>,
    /// Comes when who watches is nobody any more: his token or certificate has ended.
    withdrawn: BoxFuture<'static, ()>,
    /// Ends with the watch.
    _origin: Arc<Origin>,
}

/// The answer that goes on until the watch ends or the client leaves. Who reads slowly is cut off by the cache.
pub fn reply(
    server: Arc<Server>,
    user: User,
    events: Watch,
    shape: Shape,
    tabulator: Tabulator,
    origin: Arc<Origin>,
    withdrawn: BoxFuture<'static, ()>,
) -> Reply {
    let waiting = Vec::with_capacity(TOGETHER);
    let ready = VecDeque::new();
    let head_told = None;
    let writer =
        Writer { server, user, events, shape, tabulator, head_told, waiting, ready, withdrawn, _origin: origin };
    let chunks = stream::unfold(writer, |mut writer| async move {
        let chunk = writer.next().await?;
        Some((Ok::<_, BodyError>(Frame::data(chunk)), writer))
    });
    reply::typed(StreamBody::new(chunks).boxed_unsync(), "application/json")
}

impl Writer {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        if self.waiting.is_empty() {
            tokio::select! {
                biased;
                () = &mut self.withdrawn => return None,
                _ = self.events.recv_many(&mut self.waiting, TOGETHER) => {}
            }
            // The next one is taken from the end.
            self.waiting.reverse();
        }
        let mut out = Vec::new();
        while out.len() < CHUNK
            && let Some(event) = self.waiting.pop()
        {
            let size = if self.shape == Shape::Whole { 0 } else { event.object.len() };
            let (server, user) = (self.server.clone(), self.user.clone());
            let (kind, object) = match server.large.run(&user, size, async { self.shaped(&event) }).await {
                Ok(object) => (event.kind, object),
                // What cannot be shown is told as an error.
                Err(status) => (EventKind::Error, Bytes::from(serde_json::to_vec(&status).unwrap_or_default())),
            };
            begin(&mut out, kind);
            if object.len() >= CHUNK {
                self.ready.extend([object, Bytes::from_static(END)]);
                break;
            }
            out.extend_from_slice(&object);
            out.extend_from_slice(END);
        }
        (!out.is_empty()).then(|| out.into())
    }

    fn shaped(&mut self, event: &WatchEvent) -> Result<Bytes, Status> {
        match (self.shape, event.kind) {
            (_, EventKind::Error) | (Shape::Whole, _) => Ok(event.object.clone()),
            (Shape::Metadata, _) => table::metadata_of(&event.object),
            (Shape::Table, _) => {
                let head = self.tabulator.kind.columns().iter().map(|column| column.name.to_string()).collect();
                let with_head = self.head_told.as_ref() != Some(&head);
                self.head_told = Some(head);
                self.tabulator.one(&event.object, with_head)
            }
        }
    }
}

/// What ends an event.
const END: &[u8] = b"}\n";

fn begin(out: &mut Vec<u8>, kind: EventKind) {
    let name = match kind {
        EventKind::Added => "ADDED",
        EventKind::Modified => "MODIFIED",
        EventKind::Deleted => "DELETED",
        EventKind::Bookmark => "BOOKMARK",
        EventKind::Error => "ERROR",
    };
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
}
