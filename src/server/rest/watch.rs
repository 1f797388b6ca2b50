//! Watches as chunked JSON lines.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::time::{Instant, sleep_until};

use super::metrics::{Running, Told};
use super::negotiate::Shape;
use super::reply::{self, BodyError, Reply};
use super::table::{self, Include, Tabulator};
use crate::cache::row;
use crate::ends::Ended;
use crate::{Server, Watch};
use podwright_api::request::{EventKind, Origin};
use podwright_api::{Status, User, WatchEvent};

/// The most events per chunk when available at once, unless they exceed this many bytes.
const TOGETHER: usize = 128;
const CHUNK: usize = 32 << 10;
/// The approximate CPU cost of a chunk of any size. All watches together should use at most one CPU for chunks: with a thousand of
/// them each sends one every 20 ms, and events in between are batched. That is faster than a chunk per event; a few watches never
/// wait.
const COST: Duration = Duration::from_micros(20);
/// The longest wait, and the shortest worth waiting.
const LONGEST: Duration = Duration::from_millis(50);
const SHORTEST: Duration = Duration::from_millis(2);
/// How many chunks go out at once after silence.
const BURST: u32 = 16;

/// The encoder of one watch's events.
struct Writer {
    server: Arc<Server>,
    user: User,
    events: Watch,
    shape: Shape,
    tabulator: Tabulator,
    /// A Table's columns are sent once, and again when the definition changes them.
    head_told: Option<Vec<String>>,
    waiting: Vec<WatchEvent>,
    /// Encoded but not sent: a large object, shared by all its watchers, and what surrounds it.
    ready: VecDeque<Bytes>,
    ongoing: Ongoing,
}

/// Held while a watch lasts.
pub struct Ongoing {
    /// Resolves when the credentials end.
    pub withdrawn: Ended,
    pub pace: Pace,
    /// Counts the events.
    pub told: Told,
    pub _running: Running,
    pub _origin: Arc<Origin>,
}

/// The response, which lasts until the watch ends or the client leaves. The cache cuts off slow readers.
pub fn reply(
    server: Arc<Server>,
    user: User,
    events: Watch,
    shape: Shape,
    tabulator: Tabulator,
    ongoing: Ongoing,
) -> Reply {
    let waiting = Vec::with_capacity(TOGETHER);
    let ready = VecDeque::new();
    let head_told = None;
    let writer = Writer { server, user, events, shape, tabulator, head_told, waiting, ready, ongoing };
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
                () = &mut self.ongoing.withdrawn => return None,
                _ = self.events.recv_many(&mut self.waiting, TOGETHER) => {}
            }
            let few = self.waiting.len() < TOGETHER
                && self.waiting.iter().map(|event| event.object.len()).sum::<usize>() < CHUNK;
            if let Some(turn) = self.ongoing.pace.next(Instant::now()).filter(|_| few && !self.waiting.is_empty()) {
                tokio::select! {
                    biased;
                    () = &mut self.ongoing.withdrawn => return None,
                    () = sleep_until(turn) => {}
                }
                while self.waiting.len() < TOGETHER
                    && let Ok(event) = self.events.try_recv()
                {
                    self.waiting.push(event);
                }
            }
            self.ongoing.told.events(self.waiting.iter().map(|event| event.object.len()));
            // The next one is taken from the end.
            self.waiting.reverse();
        }
        let mut out = Vec::new();
        while out.len() < CHUNK
            && let Some(event) = self.waiting.pop()
        {
            let (kind, object) = match self.shown(&event).await {
                Ok(object) => (event.kind, object),
                // What cannot be converted is sent as an error.
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

    /// An event's object in the requested representation, shared by all watches with the same.
    async fn shown(&mut self, event: &WatchEvent) -> Result<Bytes, Status> {
        if event.kind == EventKind::Error || self.shape == Shape::Whole {
            return Ok(event.object.clone());
        }
        let head = self.tabulator.kind.columns().iter().map(|column| column.name.to_string()).collect();
        let with_head = self.shape == Shape::Table && self.head_told.as_ref() != Some(&head);
        if with_head {
            self.head_told = Some(head);
        }
        let (server, object) = (&self.server, &event.object);
        let tabulator = Tabulator { now: server.env.now(), ..self.tabulator };
        let by = (row(tabulator.kind), which(self.shape, tabulator.include, with_head));
        let shaped = || match self.shape {
            Shape::Whole => Ok(object.clone()),
            Shape::Metadata => table::metadata_of(object),
            Shape::Table => tabulator.one(object, with_head),
        };
        let work = async { server.shown.get_or(object, by, shaped, Bytes::len) };
        // The connection polls this, not a measured request.
        server.limiters.cpu.measured(&self.user, server.large.run(&self.user, object.len(), work)).await
    }
}

/// Identifies a representation of an object of a kind; 0 is another version of it.
fn which(shape: Shape, include: Include, with_head: bool) -> u8 {
    let include = match include {
        Include::Nothing => 2,
        Include::Metadata => 4,
        Include::Object => 6,
    };
    match shape {
        Shape::Whole | Shape::Metadata => 1,
        Shape::Table => include + u8::from(with_head),
    }
}

/// When the chunks of one watch are sent (GCRA, as for ATM cells).
pub struct Pace {
    /// Its reference count is the number of watches, plus one.
    watches: Arc<()>,
    /// When a whole burst may be sent again.
    whole: Instant,
}

impl Pace {
    pub fn new(watches: Arc<()>) -> Pace {
        Pace { watches, whole: Instant::now() }
    }

    /// When the next chunk may be sent, which is available now; `None`: at once.
    fn next(&mut self, now: Instant) -> Option<Instant> {
        let watches = u32::try_from(Arc::strong_count(&self.watches)).unwrap_or(u32::MAX);
        let each = COST.saturating_mul(watches).min(LONGEST);
        if each < SHORTEST {
            return None;
        }
        self.whole = self.whole.max(now) + each;
        let turn = self.whole.checked_sub(each * BURST)?;
        (turn > now).then_some(turn)
    }
}

/// The end of an event.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_watches_get_their_bursts_at_once_and_a_stream_in_its_turns() {
        let (start, watches) = (Instant::now() + Duration::from_secs(3600), Arc::new(()));
        let mut pace = Pace { watches: watches.clone(), whole: start };
        for _ in 0..10 * BURST {
            assert_eq!(pace.next(start), None, "a few watches never wait");
        }
        let _others = vec![watches; 999];
        let each = Duration::from_millis(20);
        for _ in 0..BURST {
            assert_eq!(pace.next(start), None);
        }
        assert_eq!(pace.next(start), Some(start + each));
        assert_eq!(pace.next(start + each), Some(start + 2 * each));
        // After silence the burst is available again.
        let later = start + each * (BURST + 2);
        for _ in 0..BURST {
            assert_eq!(pace.next(later), None);
        }
        assert_eq!(pace.next(later), Some(later + each));
    }
}
