//! SPDY/3.1, as much of it as Kubernetes' streaming uses: streams that the client opens, headers, data, pings.
//!
//! The clients have no flow control: they send on all streams whatever the other end reads, and take no notice of windows. So each
//! stream has a window of its own here, of bytes that wait for its reader; who fills it holds up the connection, and with it the other
//! streams. Where those are others' (a port forward's), one that takes nothing for a while is reset, and the others go on.
//! <https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/>

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
/// RST_STREAM's reasons.
const PROTOCOL_ERROR: u32 = 1;
const REFUSED: u32 = 3;
const FLOW_CONTROL_ERROR: u32 = 7;

/// The largest frame and header block that are taken in, and how many streams may be open.
const MAX_FRAME: usize = 1 << 20;
const MAX_HEADERS: usize = 8 << 10;
const MAX_STREAMS: usize = 1000;
/// Frames that may wait for a slow connection.
const BACKLOG: usize = 16;
const PIECE: usize = 32 << 10;
/// How many bytes may wait for the readers of all streams of a session, and for one of them; any one frame may. What a frame takes of
/// its stream's at least bounds how many wait.
const BUDGET: usize = 2 << 20;
const WINDOW: usize = BUDGET / 8;
const LEAST: usize = 256;
/// A stream that is alone holds up those that do not exist yet: it may stall so many times longer.
const ALONE: u32 = 6;

/// The words that headers are compressed with, each behind its length, then a text; section 2.6.10.1.
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut out = Vec::with_capacity(1423);
    for word in WORDS.split(' ').map(|word| word.replace('_', " ")) {
        out.put_u32(word.len() as u32);
        out.put_slice(word.as_bytes());
    }
    out.put_slice(TAIL.as_bytes());
    out
});

const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
    content-length content-location content-md5 content-range content-type date etag expect expires from host if-match \
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma \
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
    user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie \
    keep-alive origin";
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug \
    Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
    charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The server's end of one connection.
pub struct Session {
    streams: mpsc::Receiver<Stream>,
    frames: mpsc::Sender<Bytes>,
    ended: watch::Receiver<bool>,
    written: tokio::task::JoinHandle<()>,
    reads: tokio::task::JoinHandle<()>,
}

/// A stream that the client has opened.
pub struct Stream {
    headers: Vec<(String, String)>,
    reader: Reader,
    writer: Writer,
}

pub struct Reader {
    pieces: mpsc::UnboundedReceiver<Piece>,
    /// Of the piece that was read last: until the next is wanted, it is on its way.
    taken: Option<Room>,
    reads: Arc<AtomicU64>,
    reset: CancellationToken,
}

/// Bytes of a stream, and what they take.
type Piece = (Bytes, Room);

/// Of the stream's window, and of the session's budget.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

pub struct Writer {
    id: u32,
    frames: mpsc::Sender<Bytes>,
}

impl Stream {
    /// A header's value, by its name in lower case; "" without it.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
    pub fn split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }
}

impl Reader {
    /// The next bytes; `None` when the client has finished the stream, or it was reset.
    pub async fn read(&mut self) -> Option<Bytes> {
        self.taken = None;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (bytes, taken) = tokio::select! {
            biased;
            () = self.reset.cancelled() => return None,
            piece = self.pieces.recv() => piece?,
        };
        self.taken = Some(taken);
        Some(bytes)
    }

    /// Cancelled when it was reset, because it took nothing: what comes of it is not all.
    pub fn reset(&self) -> CancellationToken {
        self.reset.clone()
    }
}

impl Writer {
    pub async fn write(&self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            self.frames.send(data(self.id, 0, &piece)).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        Ok(())
    }
    /// Says that nothing more comes.
    pub async fn finish(&self) {
        // A connection that is gone needs no end.
        let _ = self.frames.send(data(self.id, FIN, &[])).await;
    }
}

impl Session {
    /// `stall`: for how long a stream may take nothing while it holds up others; `None`: for ever.
    pub fn start<T: AsyncRead + AsyncWrite + Send + 'static>(connection: T, stall: Option<Duration>) -> Session {
        let (from, to) = tokio::io::split(connection);
        let (frames, outgoing) = mpsc::channel(BACKLOG);
        let (accepted, streams) = mpsc::channel(BACKLOG);
        let (end, ended) = watch::channel(false);
        let written = tokio::spawn(write_all(to, outgoing));
        let acceptor = Acceptor::new(frames.clone(), accepted, stall);
        let reads = tokio::spawn(async move {
            if let Err(why) = acceptor.run(from).await {
                tracing::debug!("a SPDY connection broke: {why}");
            }
            let _ = end.send(true);
        });
        Session { streams, frames, ended, written, reads }
    }

    /// The next stream; `None` when the client has gone.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.streams.recv().await
    }

    /// Resolves when the client has gone.
    pub async fn closed(&mut self) {
        // An error means the same.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }

    /// Says goodbye and waits until all has been written.
    pub async fn end(self) {
        let mut goaway = control(GOAWAY, 0, 8);
        goaway.put_u64(0);
        let _ = self.frames.send(goaway.freeze()).await;
        // The reader hears what the client still says, so that it is not reset while it reads our last words.
        let mut ended = self.ended;
        let _ = tokio::time::timeout(Duration::from_secs(5), ended.wait_for(|ended| *ended)).await;
        self.reads.abort();
        let _ = self.reads.await;
        drop(self.frames);
        let _ = self.written.await;
    }
}

async fn write_all(mut to: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Bytes>) {
    while let Some(frame) = frames.recv().await {
        if to.write_all(&frame).await.is_err() {
            return;
        }
        if frames.is_empty() && to.flush().await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Reads frames and hands them to their streams.
struct Acceptor {
    frames: mpsc::Sender<Bytes>,
    accepted: mpsc::Sender<Stream>,
    /// The streams that the client has not finished.
    open: HashMap<u32, Open>,
    stall: Option<Duration>,
    budget: Arc<Semaphore>,
    inflate: Decompress,
    deflate: Compress,
}

/// A stream as the connection's reader knows it.
struct Open {
    pieces: mpsc::UnboundedSender<Piece>,
    window: Arc<Semaphore>,
    /// How many times its own reader came for more.
    reads: Arc<AtomicU64>,
    reset: CancellationToken,
}

impl Open {
    fn held(&self) -> usize {
        WINDOW.saturating_sub(self.window.available_permits())
    }
}

impl Acceptor {
    fn new(frames: mpsc::Sender<Bytes>, accepted: mpsc::Sender<Stream>, stall: Option<Duration>) -> Acceptor {
        let mut deflate = Compress::new(Compression::fast(), true);
        // Without the dictionary the headers would be longer, but as good.
        let _ = deflate.set_dictionary(&DICTIONARY);
        let (open, budget) = (HashMap::new(), Arc::new(Semaphore::new(BUDGET)));
        Acceptor { frames, accepted, open, stall, budget, inflate: Decompress::new(true), deflate }
    }

    async fn run(mut self, mut from: impl AsyncRead + Unpin) -> io::Result<()> {
        loop {
            let mut head = [0u8; 8];
            match from.read_exact(&mut head).await {
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(why) => return Err(why),
            }
            let (first, rest) = (u32::from_be_bytes([head[0], head[1], head[2], head[3]]), &head[4..]);
            let flags = rest[0];
            let length = u32::from_be_bytes([0, rest[1], rest[2], rest[3]]) as usize;
            if length > MAX_FRAME {
                return Err(broken(format!("a frame of {length} bytes")));
            }
            let mut payload = BytesMut::zeroed(length);
            from.read_exact(&mut payload).await?;
            let payload = payload.freeze();
            if first & 0x8000_0000 == 0 {
                self.data(first, flags, payload).await?;
                continue;
            }
            if (first >> 16) as u16 != VERSION {
                return Err(broken("a frame of another version".into()));
            }
            match first as u16 {
                SYN_STREAM => self.syn(flags, payload).await?,
                RST_STREAM if length >= 4 => drop(self.open.remove(&(&payload[..4]).get_u32())),
                PING => self.pong(payload).await?,
                GOAWAY => return Ok(()),
                // Settings, window updates, later headers: nothing follows from them here.
                _ => {}
            }
        }
    }

    async fn data(&mut self, id: u32, flags: u8, payload: Bytes) -> io::Result<()> {
        if !payload.is_empty() {
            self.hand_over(id, payload).await?;
        }
        if flags & FIN != 0 || self.open.get(&id).is_some_and(|open| open.pieces.is_closed()) {
            self.open.remove(&id);
        }
        Ok(())
    }

    /// Puts bytes into a stream's window; waits until there is room, or nobody wants them any more.
    async fn hand_over(&mut self, id: u32, payload: Bytes) -> io::Result<()> {
        loop {
            let Some(open) = self.open.get(&id) else { return Ok(()) };
            let room = async {
                // Any frame fits both: it has at most MAX_FRAME bytes.
                let own = payload.len().clamp(LEAST, WINDOW) as u32;
                let own = open.window.clone().acquire_many_owned(own).await.map_err(io::Error::other)?;
                let all = self.budget.clone().acquire_many_owned(payload.len() as u32).await;
                io::Result::Ok((own, all.map_err(io::Error::other)?))
            };
            let before = || self.open.iter().map(|(id, open)| (*id, open.reads.load(Ordering::Relaxed))).collect();
            let stalled = async {
                let Some(stall) = self.stall else { return std::future::pending().await };
                let before: HashMap<u32, u64> = before();
                tokio::time::sleep(if self.open.len() > 1 { stall } else { stall * ALONE }).await;
                before
            };
            let before = tokio::select! {
                biased;
                room = room => {
                    // A reader that has gone wants nothing.
                    let _ = open.pieces.send((payload, room?));
                    return Ok(());
                }
                () = open.pieces.closed() => return Ok(()),
                before = stalled => before,
            };
            let own = open.held() + payload.len().min(WINDOW) > WINDOW;
            let most = || self.open.iter().max_by_key(|(_, open)| open.held()).map(|(id, _)| *id);
            let Some(culprit) = (if own { Some(id) } else { most() }) else { continue };
            let reads = self.open.get(&culprit).map(|open| open.reads.load(Ordering::Relaxed));
            if reads == before.get(&culprit).copied()
                && let Some(culprit_open) = self.open.remove(&culprit)
            {
                tracing::debug!("stream {culprit} of a SPDY connection takes nothing: it is reset");
                culprit_open.reset.cancel();
                self.send(reset(culprit, FLOW_CONTROL_ERROR)).await?;
            }
        }
    }

    async fn syn(&mut self, flags: u8, mut payload: Bytes) -> io::Result<()> {
        if payload.len() < 10 {
            return Err(broken("a SYN_STREAM that is too short".into()));
        }
        let id = payload.get_u32() & 0x7fff_ffff;
        payload.advance(6);
        // The block is to be read in any case: what follows is compressed with it.
        let headers = parse_headers(&self.inflate(&payload)?).ok_or_else(|| broken("headers that are none".into()))?;
        if self.open.len() >= MAX_STREAMS || self.open.contains_key(&id) || id % 2 == 0 {
            let why = if self.open.len() >= MAX_STREAMS { REFUSED } else { PROTOCOL_ERROR };
            return self.send(reset(id, why)).await;
        }
        let (sender, pieces) = mpsc::unbounded_channel();
        let (reads, reset) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        if flags & FIN == 0 {
            let (window, reads, reset) = (Arc::new(Semaphore::new(WINDOW)), reads.clone(), reset.clone());
            self.open.insert(id, Open { pieces: sender, window, reads, reset });
        }
        let block = self.deflate(&0u32.to_be_bytes())?;
        let mut reply = control(SYN_REPLY, 0, 4 + block.len());
        reply.put_u32(id);
        reply.put_slice(&block);
        self.send(reply.freeze()).await?;
        let writer = Writer { id, frames: self.frames.clone() };
        let stream = Stream { headers, reader: Reader { pieces, taken: None, reads, reset }, writer };
        self.accepted.send(stream).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// A ping of the client, which has an odd number, comes back to it.
    async fn pong(&mut self, payload: Bytes) -> io::Result<()> {
        if payload.len() != 4 || payload[3] % 2 == 0 {
            return Ok(());
        }
        let mut pong = control(PING, 0, 4);
        pong.put_slice(&payload);
        self.send(pong.freeze()).await
    }

    async fn send(&self, frame: Bytes) -> io::Result<()> {
        self.frames.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// One block of headers; all of a connection are one zlib stream.
    fn inflate(&mut self, mut block: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(1024);
        loop {
            if out.len() == out.capacity() {
                out.reserve(1024);
            }
            let (before, filled) = (self.inflate.total_in(), out.len());
            let ended = self.inflate.decompress_vec(block, &mut out, FlushDecompress::Sync);
            // The stream's totals never go back.
            block = &block[(self.inflate.total_in() - before) as usize..];
            match ended {
                Err(why) if why.needs_dictionary().is_some() => {
                    self.inflate.set_dictionary(&DICTIONARY).map_err(io::Error::other)?;
                }
                Err(why) => return Err(io::Error::other(why)),
                Ok(_) if block.is_empty() && out.len() < out.capacity() => return Ok(out),
                Ok(_) if out.len() > MAX_HEADERS => return Err(broken("headers that are too long".into())),
                Ok(_) if out.len() == filled && out.len() < out.capacity() => return Err(broken("cut headers".into())),
                Ok(_) => {}
            }
        }
    }

    fn deflate(&mut self, mut block: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(block.len() + 64);
        loop {
            let before = self.deflate.total_in();
            self.deflate.compress_vec(block, &mut out, FlushCompress::Sync).map_err(io::Error::other)?;
            block = &block[(self.deflate.total_in() - before) as usize..];
            if block.is_empty() && out.len() < out.capacity() {
                return Ok(out);
            }
            out.reserve(64);
        }
    }
}

fn broken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The names, in lower case, and values of a block of headers.
fn parse_headers(mut block: &[u8]) -> Option<Vec<(String, String)>> {
    fn text(block: &mut &[u8]) -> Option<String> {
        let length = block.try_get_u32().ok()? as usize;
        if length > block.len() {
            return None;
        }
        let (text, rest) = block.split_at(length);
        *block = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }
    let count = block.try_get_u32().ok()?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = text(&mut block)?;
        headers.push((name.to_ascii_lowercase(), text(&mut block)?));
    }
    Some(headers)
}

/// A control frame's head, with room for its payload.
fn control(kind: u16, flags: u8, length: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(8 + length);
    frame.put_u16(VERSION);
    frame.put_u16(kind);
    // Frames of ours are far below 2^24 bytes.
    frame.put_u32(u32::from(flags) << 24 | length as u32);
    frame
}

fn data(id: u32, flags: u8, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(8 + payload.len());
    frame.put_u32(id);
    frame.put_u32(u32::from(flags) << 24 | payload.len() as u32);
    frame.put_slice(payload);
    frame.freeze()
}

fn reset(id: u32, why: u32) -> Bytes {
    let mut frame = control(RST_STREAM, 0, 8);
    frame.put_u32(id);
    frame.put_u32(why);
    frame.freeze()
}

#[cfg(test)]
mod tests;
