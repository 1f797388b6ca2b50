//! SPDY/3.1, as much of it as Kubernetes' streaming uses: streams that the client opens, headers, data, pings.
//!
//! There is no flow control, as in the clients: a stream that is not read holds up the others of its connection.
//! <https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/>

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

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

/// The largest frame and header block that are taken in, and how many streams may be open.
const MAX_FRAME: usize = 1 << 20;
const MAX_HEADERS: usize = 8 << 10;
const MAX_STREAMS: usize = 1000;
/// Pieces that may wait for a stream's reader, and frames for a slow connection.
const BACKLOG: usize = 16;
const PIECE: usize = 32 << 10;
/// How many bytes may wait for the readers of all streams of a session; any one frame may.
const BUDGET: usize = MAX_FRAME;

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
    pieces: mpsc::Receiver<Piece>,
    /// Of the piece that was read last: until the next is wanted, it is on its way.
    taken: Option<OwnedSemaphorePermit>,
}

/// Bytes of a stream, and what they take of the session's budget.
type Piece = (Bytes, OwnedSemaphorePermit);

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
    /// The next bytes; `None` when the client has finished the stream.
    pub async fn read(&mut self) -> Option<Bytes> {
        self.taken = None;
        let (bytes, taken) = self.pieces.recv().await?;
        self.taken = Some(taken);
        Some(bytes)
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
    pub fn start<T: AsyncRead + AsyncWrite + Send + 'static>(connection: T) -> Session {
        let (from, to) = tokio::io::split(connection);
        let (frames, outgoing) = mpsc::channel(BACKLOG);
        let (accepted, streams) = mpsc::channel(BACKLOG);
        let (end, ended) = watch::channel(false);
        let written = tokio::spawn(write_all(to, outgoing));
        let acceptor = Acceptor::new(frames.clone(), accepted);
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
    open: HashMap<u32, mpsc::Sender<Piece>>,
    budget: Arc<Semaphore>,
    inflate: Decompress,
    deflate: Compress,
}

impl Acceptor {
    fn new(frames: mpsc::Sender<Bytes>, accepted: mpsc::Sender<Stream>) -> Acceptor {
        let mut deflate = Compress::new(Compression::fast(), true);
        // Without the dictionary the headers would be longer, but as good.
        let _ = deflate.set_dictionary(&DICTIONARY);
        let (open, budget) = (HashMap::new(), Arc::new(Semaphore::new(BUDGET)));
        Acceptor { frames, accepted, open, budget, inflate: Decompress::new(true), deflate }
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
        let gone = match self.open.get(&id) {
            Some(reader) if !payload.is_empty() && !reader.is_closed() => {
                // A frame has at most MAX_FRAME bytes, which fit both.
                let room = self.budget.clone().acquire_many_owned(payload.len() as u32);
                let taken = tokio::select! {
                    // The semaphore is never closed.
                    taken = room => taken.map_err(io::Error::other)?,
                    () = reader.closed() => {
                        self.open.remove(&id);
                        return Ok(());
                    }
                };
                reader.send((payload, taken)).await.is_err()
            }
            Some(reader) => reader.is_closed(),
            _ => false,
        };
        if gone || flags & FIN != 0 {
            self.open.remove(&id);
        }
        Ok(())
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
        let (sender, reader) = mpsc::channel(BACKLOG);
        if flags & FIN == 0 {
            self.open.insert(id, sender);
        }
        let block = self.deflate(&0u32.to_be_bytes())?;
        let mut reply = control(SYN_REPLY, 0, 4 + block.len());
        reply.put_u32(id);
        reply.put_slice(&block);
        self.send(reply.freeze()).await?;
        let writer = Writer { id, frames: self.frames.clone() };
        let stream = Stream { headers, reader: Reader { pieces: reader, taken: None }, writer };
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
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_the_one_that_clients_have() {
        assert_eq!(DICTIONARY.len(), 1423);
        let (mut a, mut b) = (1u32, 0u32);
        for byte in DICTIONARY.iter() {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!(b << 16 | a, 0xe3c6_a7c2, "its Adler-32, by which a zlib stream names it");
    }

    /// A client: one zlib stream for all its headers.
    struct Client(Compress);

    impl Client {
        fn new() -> Client {
            let mut deflate = Compress::new(Compression::best(), true);
            deflate.set_dictionary(&DICTIONARY).unwrap();
            Client(deflate)
        }
        fn syn(&mut self, id: u32, headers: &[(&str, &str)]) -> Bytes {
            let mut block = BytesMut::new();
            block.put_u32(headers.len() as u32);
            for text in headers.iter().flat_map(|(name, value)| [name, value]) {
                block.put_u32(text.len() as u32);
                block.put_slice(text.as_bytes());
            }
            let mut out = Vec::with_capacity(4096);
            self.0.compress_vec(&block, &mut out, FlushCompress::Sync).unwrap();
            let mut frame = control(SYN_STREAM, 0, 10 + out.len());
            frame.put_u32(id);
            frame.put_slice(&[0; 6]);
            frame.put_slice(&out);
            frame.freeze()
        }
    }

    #[tokio::test]
    async fn streams_are_opened_read_and_written() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let mut session = Session::start(theirs);
        let mut client = Client::new();
        for (id, of) in [(1, "error"), (3, "stdin")] {
            ours.write_all(&client.syn(id, &[("streamType", of), ("port", "80")])).await.unwrap();
            let stream = session.accept().await.unwrap();
            assert_eq!((stream.header("streamtype"), stream.header("port")), (of, "80"));
            let (mut reader, writer) = stream.split();
            ours.write_all(&data(id, 0, b"in")).await.unwrap();
            ours.write_all(&data(id, FIN, &[])).await.unwrap();
            assert_eq!(reader.read().await.unwrap(), "in");
            assert!(reader.read().await.is_none());
            writer.write(Bytes::from_static(b"out")).await.unwrap();
            writer.finish().await;
            let mut reply = [0u8; 8];
            ours.read_exact(&mut reply).await.unwrap();
            assert_eq!(reply[..4], [0x80, 3, 0, 2], "a SYN_REPLY");
            let length = u32::from_be_bytes([0, reply[5], reply[6], reply[7]]) as usize;
            ours.read_exact(&mut vec![0; length]).await.unwrap();
            let mut answer = [0u8; 19];
            ours.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer[8..11], b"out");
            assert_eq!(answer[15], FIN);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_unread_is_bounded_by_its_bytes() {
        const FRAME: usize = 64 << 10;
        let (mut ours, theirs) = tokio::io::duplex(FRAME);
        let mut session = Session::start(theirs);
        let mut client = Client::new();
        let mut streams = Vec::new();
        for i in 0..8u32 {
            ours.write_all(&client.syn(1 + 2 * i, &[])).await.unwrap();
            streams.push(session.accept().await.unwrap());
        }
        // What a stream's reader may have waiting for it by number fits many times; by bytes not.
        let mut sent = 0;
        let more = async |ours: &mut tokio::io::DuplexStream, sent: &mut usize| {
            loop {
                let frame = data(1 + 2 * (*sent % 8) as u32, 0, &[0; FRAME]);
                let wait = Duration::from_secs(1);
                if tokio::time::timeout(wait, ours.write_all(&frame)).await.is_err() {
                    return;
                }
                *sent += 1;
                assert!(*sent < 64, "it takes everything");
            }
        };
        more(&mut ours, &mut sent).await;
        assert!((BUDGET / FRAME..=BUDGET / FRAME + 3).contains(&sent), "{sent} frames");
        // Nobody wants the input of any of them: what comes is dropped, and the session goes on.
        let writers: Vec<_> = streams.into_iter().map(|stream| stream.split().1).collect();
        let drained = tokio::spawn(async move { while session.accept().await.is_some() {} });
        // The rest of the frame that was cut above is wanted first; then all go through.
        for _ in 0..64 {
            ours.write_all(&[0; FRAME]).await.expect("the session reads on");
        }
        drop((ours, writers));
        drained.await.unwrap();
    }

    /// The next frame that the client gets: its type, and its payload.
    async fn told(ours: &mut tokio::io::DuplexStream) -> (u16, Vec<u8>) {
        let mut head = [0u8; 8];
        ours.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
        ours.read_exact(&mut payload).await.unwrap();
        (u16::from_be_bytes([head[2], head[3]]), payload)
    }

    #[tokio::test(start_paused = true)]
    async fn who_wants_no_more_input_holds_nobody_up() {
        let (mut ours, theirs) = tokio::io::duplex(4 * BUDGET);
        let mut session = Session::start(theirs);
        let mut client = Client::new();
        let mut streams = Vec::new();
        for id in [1, 3] {
            ours.write_all(&client.syn(id, &[])).await.unwrap();
            streams.push(session.accept().await.unwrap());
            assert_eq!(told(&mut ours).await.0, SYN_REPLY);
        }
        let (other, _unread) = (streams.pop(), streams.pop());
        // The first one's reader has all the room there is, and reads nothing; what comes for the other waits for some.
        ours.write_all(&data(1, 0, &[0; BUDGET])).await.unwrap();
        ours.write_all(&data(3, 0, &[0; BUDGET])).await.unwrap();
        let mut ping = control(PING, 0, 4);
        ping.put_u32(7);
        ours.write_all(&ping).await.unwrap();
        let wait = Duration::from_secs(60);
        assert!(tokio::time::timeout(wait, told(&mut ours)).await.is_err(), "it waits");
        drop(other);
        let pong = tokio::time::timeout(wait, told(&mut ours)).await.expect("the session goes on");
        assert_eq!(pong, (PING, 7u32.to_be_bytes().to_vec()));
    }

    #[tokio::test]
    async fn streams_and_headers_have_a_limit() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let mut session = Session::start(theirs);
        let mut client = Client::new();
        let mut streams = Vec::new();
        for n in 0..MAX_STREAMS as u32 {
            ours.write_all(&client.syn(1 + 2 * n, &[])).await.unwrap();
            streams.push(session.accept().await.unwrap());
            assert_eq!(told(&mut ours).await.0, SYN_REPLY);
        }
        let last = 1 + 2 * MAX_STREAMS as u32;
        ours.write_all(&client.syn(last, &[])).await.unwrap();
        let (kind, payload) = told(&mut ours).await;
        assert_eq!((kind, payload), (RST_STREAM, [last.to_be_bytes(), REFUSED.to_be_bytes()].concat()));
        // A few bytes that say many.
        ours.write_all(&client.syn(last, &[("a", &"x".repeat(2 * MAX_HEADERS))])).await.unwrap();
        let closed = tokio::time::timeout(Duration::from_secs(30), session.closed()).await;
        assert!(closed.is_ok(), "headers of {} bytes are taken in", 2 * MAX_HEADERS);
    }

    #[tokio::test]
    async fn rubbish_ends_the_connection_and_nothing_else() {
        for rubbish in
            [&[0x80, 3, 0, 1, 0, 0, 0, 2, 1, 2][..], &[0x80, 9, 0, 1, 0, 0, 0, 0], &[0, 0, 0, 1, 0, 0xff, 0xff, 0xff]]
        {
            let (mut ours, theirs) = tokio::io::duplex(1 << 16);
            let mut session = Session::start(theirs);
            ours.write_all(rubbish).await.unwrap();
            let ended = async {
                assert!(session.accept().await.is_none());
                session.closed().await;
            };
            tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the connection ends");
        }
    }
}
