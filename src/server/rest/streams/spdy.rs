//! SPDY/3.1, as far as Kubernetes' streaming uses it: streams opened by the client, headers, data, pings.
//!
//! Clients have no flow control: they ignore windows, both as senders (see `windows`) and as readers (see `credit`).
//! <https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/>

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::windows::{Reader, Windows};
use crate::limits::{Account, Charge};
use credit::Outlet;

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

/// The largest frame and header block, and the most open streams.
const MAX_FRAME: usize = 1 << 20;
const MAX_HEADERS: usize = 8 << 10;
const MAX_STREAMS: usize = 1000;
/// Frames buffered for a slow connection.
const BACKLOG: usize = 16;
const PIECE: usize = 32 << 10;
/// The compression dictionary of headers: words with length prefixes, then a text; section 2.6.10.1.
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

/// The server's side of one connection.
pub struct Session {
    streams: mpsc::Receiver<Stream>,
    outlet: Outlet,
    ended: watch::Receiver<bool>,
    written: AbortOnDropHandle<()>,
    reads: AbortOnDropHandle<()>,
}

/// A stream opened by the client.
pub struct Stream {
    headers: Vec<(String, String)>,
    reader: Reader,
    writer: Writer,
}

pub struct Writer {
    id: u32,
    outlet: Outlet,
}

impl Stream {
    /// The value of a header, by its lower-case name; "" without it.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
    pub fn split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }
}

impl Writer {
    pub async fn write(&self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            self.outlet.data(self.id, data(self.id, 0, &piece)).await?;
        }
        Ok(())
    }
    /// Ends the stream's output.
    pub async fn finish(&self) {
        // The connection may be gone.
        let _ = self.outlet.data(self.id, data(self.id, FIN, &[])).await;
    }
}

impl Session {
    /// `stall`: how long a stream may accept no data while it blocks others; `None`: forever, as all streams belong together.
    /// Unconsumed data from the client is charged to `account`; the connection ends when that must make room.
    pub fn start<T: AsyncRead + AsyncWrite + Send + 'static>(
        connection: T,
        stall: Option<Duration>,
        account: Arc<Account>,
    ) -> Session {
        let (from, to) = tokio::io::split(connection);
        let (frames, outgoing) = mpsc::channel(BACKLOG);
        let (accepted, streams) = mpsc::channel(BACKLOG);
        let (end, ended) = watch::channel(false);
        let written = AbortOnDropHandle::new(tokio::spawn(write_all(to, outgoing)));
        // Streams that belong together wait for each other anyway.
        let outlet = Outlet::new(frames, stall.is_some());
        let acceptor = Acceptor::new(outlet.clone(), accepted, stall, account.clone());
        let reads = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::select! {
                ended = acceptor.run(from) => {
                    if let Err(why) = ended {
                        tracing::debug!("a SPDY connection broke: {why}");
                    }
                }
                () = account.lost().cancelled() => tracing::debug!("a SPDY connection had to end for others"),
            }
            let _ = end.send(true);
        }));
        Session { streams, outlet, ended, written, reads }
    }

    /// The next stream; `None` when the client is gone.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.streams.recv().await
    }

    /// Resolves when the client is gone.
    pub async fn closed(&mut self) {
        // An error means the same.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }

    /// Sends GOAWAY and waits until everything is written.
    pub async fn end(self) {
        let mut goaway = control(GOAWAY, 0, 8);
        goaway.put_u64(0);
        let _ = self.outlet.control(goaway.freeze()).await;
        // Keeps reading from the client, so that it is not reset while it reads our last data.
        let mut ended = self.ended;
        let _ = tokio::time::timeout(Duration::from_secs(5), ended.wait_for(|ended| *ended)).await;
        self.reads.abort();
        let _ = self.reads.await;
        drop(self.outlet);
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

/// Reads frames and dispatches them to streams.
struct Acceptor {
    outlet: Outlet,
    accepted: mpsc::Sender<Stream>,
    windows: Windows,
    inflate: Decompress,
    deflate: Compress,
    account: Arc<Account>,
}

impl Acceptor {
    fn new(outlet: Outlet, accepted: mpsc::Sender<Stream>, stall: Option<Duration>, account: Arc<Account>) -> Acceptor {
        let mut deflate = Compress::new(Compression::fast(), true);
        // Without the dictionary headers are longer, but valid.
        let _ = deflate.set_dictionary(&DICTIONARY);
        let (windows, inflate) = (Windows::new(stall), Decompress::new(true));
        Acceptor { outlet, accepted, windows, inflate, deflate, account }
    }

    async fn run(mut self, mut from: impl AsyncRead + Unpin) -> io::Result<()> {
        loop {
            // There is no time limit between frames.
            let begun = match from.read_u8().await {
                Ok(begun) => begun,
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(why) => return Err(why),
            };
            let frame = tokio::time::timeout(self.account.patience, self.frame(begun, &mut from));
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "a frame that is not finished in time");
            let ((first, flags, payload), charge) = frame.await.map_err(late)??;
            let length = payload.len();
            if first & 0x8000_0000 == 0 {
                self.data(first, flags, payload, charge).await?;
                continue;
            }
            if (first >> 16) as u16 != VERSION {
                return Err(broken("a frame of another version".into()));
            }
            match first as u16 {
                SYN_STREAM => self.syn(flags, payload).await?,
                RST_STREAM if length >= 4 => self.windows.reset((&payload[..4]).get_u32()),
                PING => self.pong(payload).await?,
                GOAWAY => return Ok(()),
                // Settings, window updates, later headers: ignored.
                _ => {}
            }
        }
    }

    /// The rest of a frame after its first byte: its first word, its flags and its payload. Memory is allocated at once, so it is
    /// charged at once.
    async fn frame(&self, begun: u8, from: &mut (impl AsyncRead + Unpin)) -> io::Result<((u32, u8, Bytes), Charge)> {
        let mut head = [begun, 0, 0, 0, 0, 0, 0, 0];
        from.read_exact(&mut head[1..]).await?;
        let [first @ .., flags, high, middle, low] = head;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        if length > MAX_FRAME {
            return Err(broken(format!("a frame of {length} bytes")));
        }
        let charge = self.account.charge(length)?;
        let mut payload = BytesMut::zeroed(length);
        from.read_exact(&mut payload).await?;
        Ok(((u32::from_be_bytes(first), flags, payload.freeze()), charge))
    }

    async fn data(&mut self, id: u32, flags: u8, payload: Bytes, charge: Charge) -> io::Result<()> {
        // Any frame fits the budget: it has at most MAX_FRAME bytes.
        if !payload.is_empty() {
            let mut charge = Some(charge);
            while let Some(culprit) = self.windows.hand_over(id, &payload, &mut charge).await {
                self.outlet.control(reset(culprit, FLOW_CONTROL_ERROR)).await?;
            }
        }
        if flags & FIN != 0 {
            self.windows.finish(id);
        }
        self.windows.sweep(id);
        Ok(())
    }

    async fn syn(&mut self, flags: u8, mut payload: Bytes) -> io::Result<()> {
        if payload.len() < 10 {
            return Err(broken("a SYN_STREAM that is too short".into()));
        }
        let id = payload.get_u32() & 0x7fff_ffff;
        payload.advance(6);
        // The block must be decompressed in any case, as later ones depend on it.
        let headers = parse_headers(&self.inflate(&payload)?).ok_or_else(|| broken("headers that are none".into()))?;
        if self.windows.len() >= MAX_STREAMS || self.windows.contains(id) || id.is_multiple_of(2) {
            let why = if self.windows.len() >= MAX_STREAMS { REFUSED } else { PROTOCOL_ERROR };
            return self.outlet.control(reset(id, why)).await;
        }
        let block = self.deflate(&0u32.to_be_bytes())?;
        let mut reply = control(SYN_REPLY, 0, 4 + block.len());
        reply.put_u32(id);
        reply.put_slice(&block);
        self.outlet.reply(id, reply.freeze()).await?;
        let writer = Writer { id, outlet: self.outlet.clone() };
        let stream = Stream { headers, reader: self.windows.open(id, flags & FIN != 0), writer };
        self.accepted.send(stream).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// A client's ping, which has an odd number, is answered; one of ours has returned.
    async fn pong(&mut self, payload: Bytes) -> io::Result<()> {
        let Ok(id) = <[u8; 4]>::try_from(&payload[..]).map(u32::from_be_bytes) else { return Ok(()) };
        match id % 2 {
            0 => self.outlet.answered(id).await,
            _ => self.outlet.ping(ping(id)).await,
        }
    }

    /// Decompresses one block of headers; all blocks of a connection form one zlib stream.
    fn inflate(&mut self, mut block: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(1024);
        loop {
            if out.len() == out.capacity() {
                out.reserve(1024);
            }
            let (before, filled) = (self.inflate.total_in(), out.len());
            let ended = self.inflate.decompress_vec(block, &mut out, FlushDecompress::Sync);
            // The stream's totals only grow.
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

/// The names, in lower case, and values in a header block.
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

/// A control frame's header, with room for its payload.
fn control(kind: u16, flags: u8, length: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(8 + length);
    frame.put_u16(VERSION);
    frame.put_u16(kind);
    // Our frames are far smaller than 2^24 bytes.
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

fn ping(id: u32) -> Bytes {
    let mut frame = control(PING, 0, 4);
    frame.put_u32(id);
    frame.freeze()
}

fn reset(id: u32, why: u32) -> Bytes {
    let mut frame = control(RST_STREAM, 0, 8);
    frame.put_u32(id);
    frame.put_u32(why);
    frame.freeze()
}

mod credit;
#[cfg(test)]
mod tests;
