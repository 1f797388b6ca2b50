//! SPDY from a client's point of view.

use super::super::windows::{BUDGET, LEAST, OVERDRAFT, WINDOW};
use super::*;
use crate::fuzz::account;
use crate::limits::{Bodies, Limits};
use podwright_api::User;

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

/// Whoever still holds its streams, and whatever the client does.
#[tokio::test]
async fn a_connection_ends_with_its_session() {
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let mut session = Session::start(theirs, None, account());
    ours.write_all(&Client::new().syn(1, &[("streamType", "stdin")])).await.unwrap();
    let stream = session.accept().await.unwrap();
    drop(session);
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), ours.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "it goes on");
    drop(stream);
}

#[tokio::test]
async fn streams_are_opened_read_and_written() {
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let mut session = Session::start(theirs, None, account());
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
    let mut session = Session::start(theirs, None, account());
    let mut client = Client::new();
    let mut streams = Vec::new();
    for i in 0..8u32 {
        ours.write_all(&client.syn(1 + 2 * i, &[])).await.unwrap();
        streams.push(session.accept().await.unwrap());
    }
    // A stream's buffer would hold many times this number of messages, but not their bytes.
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
    // Nobody wants their input: it is dropped, and the session continues.
    let writers: Vec<_> = streams.into_iter().map(|stream| stream.split().1).collect();
    let drained = tokio::spawn(async move { while session.accept().await.is_some() {} });
    // First the rest of the frame that was cut above; then all pass.
    for _ in 0..64 {
        ours.write_all(&[0; FRAME]).await.expect("the session reads on");
    }
    drop((ours, writers));
    drained.await.unwrap();
}

/// The next frame for the client: its type and payload.
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
    let mut session = Session::start(theirs, None, account());
    let mut client = Client::new();
    let mut streams = Vec::new();
    for id in [1, 3] {
        ours.write_all(&client.syn(id, &[])).await.unwrap();
        streams.push(session.accept().await.unwrap());
        assert_eq!(told(&mut ours).await.0, SYN_REPLY);
    }
    let (other, _unread) = (streams.pop(), streams.pop());
    // The first one's buffer has some room left, and is not read; data for the other uses its own.
    ours.write_all(&data(1, 0, &[0; WINDOW / 2])).await.unwrap();
    for _ in 0..2 {
        ours.write_all(&data(3, 0, &[0; WINDOW])).await.unwrap();
    }
    let mut ping = control(PING, 0, 4);
    ping.put_u32(7);
    ours.write_all(&ping).await.unwrap();
    let wait = Duration::from_secs(60);
    assert!(tokio::time::timeout(wait, told(&mut ours)).await.is_err(), "it waits");
    drop(other);
    let pong = tokio::time::timeout(wait, told(&mut ours)).await.expect("the session goes on");
    assert_eq!(pong, (PING, 7u32.to_be_bytes().to_vec()));
}

/// A port forward: one connection into the Pod accepts nothing, another one is in use all the time.
#[tokio::test(start_paused = true)]
async fn who_takes_nothing_does_not_hold_up_others_for_long() {
    const STALL: Duration = Duration::from_secs(10);
    let (mut ours, theirs) = tokio::io::duplex(64 << 20);
    let mut session = Session::start(theirs, Some(STALL), account());
    let mut client = Client::new();
    let mut streams = Vec::new();
    for id in [1, 3] {
        ours.write_all(&client.syn(id, &[])).await.unwrap();
        streams.push(session.accept().await.unwrap());
        assert_eq!(told(&mut ours).await.0, SYN_REPLY);
    }
    let (mut used, _) = streams.pop().unwrap().split();
    let (mut stalled, _) = streams.pop().unwrap().split();
    let begun = tokio::time::Instant::now();
    // What fits its window blocks nobody, in large pieces or small ones.
    for _ in 0..WINDOW / LEAST / 2 {
        ours.write_all(&data(1, 0, b"x")).await.unwrap();
    }
    ours.write_all(&data(1, 0, &[0; WINDOW / 2])).await.unwrap();
    ours.write_all(&data(3, 0, b"at once")).await.unwrap();
    assert_eq!(used.read().await.unwrap(), "at once");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    for _ in 0..WINDOW / LEAST / 2 + 1 {
        stalled.read().await.unwrap();
    }
    // A slow one continues, and what is behind it does not wait for its reader.
    for _ in 0..4 {
        ours.write_all(&data(1, 0, &[0; WINDOW / 2])).await.unwrap();
    }
    ours.write_all(&data(3, 0, b"later")).await.unwrap();
    let later = tokio::time::timeout(STALL / 10, used.read()).await.expect("it is reached");
    assert_eq!(later.unwrap(), "later");
    for _ in 0..4 {
        assert_eq!(stalled.read().await.unwrap().len(), WINDOW / 2);
    }
    // One that accepts nothing at all is ended on both sides, and the other one continues.
    for _ in 0..OVERDRAFT / WINDOW + 5 {
        ours.write_all(&data(1, 0, &[0; WINDOW])).await.unwrap();
    }
    ours.write_all(&data(3, 0, b"after it")).await.unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(used.read().await.unwrap(), "after it");
    assert!((STALL..2 * STALL + STALL).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert!(stalled.reset().is_cancelled());
    assert!(stalled.read().await.is_none(), "and what is left is not taken for the whole");
    let (kind, payload) = told(&mut ours).await;
    assert_eq!((kind, payload), (RST_STREAM, [1u32.to_be_bytes(), FLOW_CONTROL_ERROR.to_be_bytes()].concat()));
}

/// Many that hold little each: then the one that holds most is ended.
#[tokio::test(start_paused = true)]
async fn many_that_take_nothing_do_not_hold_up_others_either() {
    let (mut ours, theirs) = tokio::io::duplex(64 << 20);
    let mut session = Session::start(theirs, Some(Duration::from_secs(10)), account());
    let mut client = Client::new();
    let mut readers = Vec::new();
    for n in 0..12u32 {
        ours.write_all(&client.syn(1 + 2 * n, &[])).await.unwrap();
        readers.push(session.accept().await.unwrap().split().0);
    }
    // Nobody reads from them; reset ones are dropped, as in a forward.
    for reader in readers.drain(1..) {
        tokio::spawn(async move { reader.reset().cancelled().await });
    }
    for n in 1..12u32 {
        ours.write_all(&data(1 + 2 * n, 0, &[0; WINDOW])).await.unwrap();
    }
    ours.write_all(&data(1, 0, b"x")).await.unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(120), readers[0].read()).await.unwrap().unwrap(), "x");
    assert!(!readers[0].reset().is_cancelled());
}

#[tokio::test]
async fn streams_and_headers_have_a_limit() {
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let mut session = Session::start(theirs, None, account());
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
    // A few bytes that decompress to many.
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
        let mut session = Session::start(theirs, None, account());
        ours.write_all(rubbish).await.unwrap();
        let ended = async {
            assert!(session.accept().await.is_none());
            session.closed().await;
        };
        tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the connection ends");
    }
}

/// A client that reads like Go's spdystream: one loop, which dispatches frames to five workers with queues of 50 frames, those of a
/// stream by its number, pings in turn; `stalled` is not read. `heard` reports what was read of each other stream.
async fn reads_as_go_does(
    mut from: impl AsyncRead + Unpin,
    to: mpsc::UnboundedSender<Bytes>,
    stalled: u32,
    heard: mpsc::UnboundedSender<(u32, usize)>,
) {
    const WORKERS: u32 = 5;
    let mut queues = Vec::new();
    for _ in 0..WORKERS {
        let (queue, mut work) = mpsc::channel::<(u32, Bytes, bool)>(50);
        let (to, heard) = (to.clone(), heard.clone());
        tokio::spawn(async move {
            while let Some((id, payload, is_ping)) = work.recv().await {
                match is_ping {
                    true => drop(to.send(ping(id))),
                    false if id == stalled => std::future::pending().await,
                    false => drop(heard.send((id, payload.len()))),
                }
            }
        });
        queues.push(queue);
    }
    let mut turn = 0;
    let mut head = [0u8; 8];
    while from.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
        from.read_exact(&mut payload).await.unwrap();
        let (first, payload) = (u32::from_be_bytes(head[..4].try_into().unwrap()), Bytes::from(payload));
        if first >> 31 == 0 {
            queues[(first % WORKERS) as usize].send((first, payload, false)).await.unwrap();
        } else if first as u16 == PING {
            queues[turn].send((payload.clone().get_u32(), payload, true)).await.unwrap();
            turn = (turn + 1) % WORKERS as usize;
        }
    }
}

/// Two connections into a Pod that sends endlessly; the first one's client reads nothing. `tunnelled`: inside a WebSocket.
async fn one_that_nobody_reads_leaves_the_other_at_full_speed(tunnelled: bool) {
    use super::super::websocket;
    const WANTED: usize = 32 << 20;
    let (client, server) = tokio::io::duplex(64 << 10);
    let server: Box<dyn Both> = match tunnelled {
        false => Box::new(server),
        true => Box::new(websocket::tunnel(websocket::socket(server, crate::fuzz::messages()).await)),
    };
    let client: Box<dyn Both> = match tunnelled {
        false => Box::new(client),
        // The server's tunnel works from either end, except for masking.
        true => Box::new(masked(client).await),
    };
    let mut session = Session::start(server, Some(Duration::from_secs(2)), account());
    let (from, mut to) = tokio::io::split(client);
    let (answers, mut answered) = mpsc::unbounded_channel::<Bytes>();
    let (heard, mut hears) = mpsc::unbounded_channel();
    let mut made = Client::new();
    for id in [3, 7] {
        answers.send(made.syn(id, &[])).unwrap();
    }
    tokio::spawn(async move {
        while let Some(frame) = answered.recv().await {
            to.write_all(&frame).await.unwrap();
            to.flush().await.unwrap();
        }
    });
    tokio::spawn(reads_as_go_does(from, answers, 3, heard));
    let mut readers = Vec::new();
    for _ in 0..2 {
        let (reader, writer) = session.accept().await.unwrap().split();
        readers.push(reader);
        tokio::spawn(async move { while writer.write(Bytes::from_static(&[0; PIECE])).await.is_ok() {} });
    }
    let all = async {
        let mut of_other = 0;
        while of_other < WANTED {
            let (id, count) = hears.recv().await.unwrap();
            assert_eq!(id, 7);
            of_other += count;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all).await.expect("the other stream goes on");
}

trait Both: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

/// The client's end of a tunnel.
async fn masked(connection: tokio::io::DuplexStream) -> tokio::io::DuplexStream {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::{Message, protocol::Role};
    let socket = tokio_tungstenite::WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (mut sink, mut source) = socket.split();
    let (mut from, mut to) = tokio::io::split(ours);
    tokio::spawn(async move {
        while let Some(Ok(message)) = source.next().await {
            to.write_all(&message.into_data()).await.unwrap();
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            sink.send(Message::Binary(Bytes::copy_from_slice(&buffer[..count]))).await.unwrap();
        }
    });
    theirs
}

/// A closing client resets the stream, even after finishing its own direction: a Pod that sends endlessly must be stopped.
#[tokio::test]
async fn a_client_that_resets_a_stream_ends_both_directions() {
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let mut session = Session::start(theirs, Some(Duration::from_secs(2)), account());
    let mut client = Client::new();
    for (id, finished) in [(1, false), (3, true)] {
        ours.write_all(&client.syn(id, &[])).await.unwrap();
        let (reader, _writer) = session.accept().await.unwrap().split();
        if finished {
            ours.write_all(&data(id, FIN, &[])).await.unwrap();
        }
        ours.write_all(&reset(id, 5)).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(30), reader.reset().cancelled_owned()).await;
        assert!(ended.is_ok(), "stream {id} goes on");
    }
}

#[tokio::test]
async fn what_nobody_reads_leaves_the_others_at_full_speed() {
    one_that_nobody_reads_leaves_the_other_at_full_speed(false).await;
}

#[tokio::test]
async fn and_so_it_does_in_a_tunnel() {
    one_that_nobody_reads_leaves_the_other_at_full_speed(true).await;
}

/// When the Pod ends an established connection of a port forward, it ends for the client, even if the worker of its error stream is
/// blocked by then.
#[tokio::test]
async fn a_connection_ends_whose_errors_are_read_behind_what_nobody_reads() {
    use super::super::forward::{Ports, by_streams};
    use futures::{FutureExt, SinkExt};
    use podwright_api::stream::{Frame, FrameCodec, STDOUT};
    use tokio_util::codec::Framed;
    const UNREAD: u32 = 3;
    // The error stream has the same worker as the unread one.
    const ERRORS: u32 = 13;
    const BYTES: u32 = 15;
    let (client, server) = tokio::io::duplex(64 << 10);
    let (end, ended) = watch::channel(false);
    let ports = Ports::by(move |port| {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (mut pod, mut ended) = (Framed::new(theirs, FrameCodec), ended.clone());
        tokio::spawn(async move {
            let said = |payload| Frame { channel: STDOUT, payload: Bytes::from_static(payload) };
            let bytes: &'static [u8] = if port == 80 { b"hello" } else { &[0; PIECE] };
            while pod.send(said(bytes)).await.is_ok() && port != 80 {}
            ended.wait_for(|ended| *ended).await.unwrap();
        });
        std::future::ready(Ok(Framed::new(ours, FrameCodec))).boxed()
    });
    tokio::spawn(by_streams(
        Session::start(server, Some(Duration::from_secs(2)), account()),
        std::sync::Arc::new(ports),
    ));
    let (from, mut to) = tokio::io::split(client);
    let (answers, mut answered) = mpsc::unbounded_channel::<Bytes>();
    let (heard, mut hears) = mpsc::unbounded_channel();
    let mut made = Client::new();
    let mut begin = |port: &str, errors: u32, bytes: u32| {
        for (id, of) in [(errors, "error"), (bytes, "data")] {
            answers.send(made.syn(id, &[("streamtype", of), ("port", port), ("requestid", port)])).unwrap();
        }
    };
    begin("80", ERRORS, BYTES);
    tokio::spawn(async move {
        while let Some(frame) = answered.recv().await {
            to.write_all(&frame).await.unwrap();
        }
    });
    tokio::spawn(reads_as_go_does(from, answers.clone(), UNREAD, heard));
    let mut hears = async |mut wanted: Vec<(u32, usize)>| {
        while !wanted.is_empty() {
            let next = tokio::time::timeout(Duration::from_secs(30), hears.recv()).await;
            let next = next.unwrap_or_else(|_| panic!("{wanted:?} never come")).unwrap();
            wanted.retain(|it| *it != next);
        }
    };
    // The end of the error stream as well.
    hears(vec![(BYTES, 5), (ERRORS, 0)]).await;
    begin("81", 1, UNREAD);
    hears(vec![(1, 0)]).await;
    end.send(true).unwrap();
    hears(vec![(BYTES, 0)]).await;
}

/// Accounts with this limit per user.
fn accounts(of_one: usize) -> impl Fn(&str) -> Arc<Account> {
    let limits =
        Limits { bodies: 2 * of_one, bodies_of_one: of_one, body: Duration::from_secs(60), ..Limits::default() };
    let bodies = Bodies::new(&limits);
    move |name: &str| Account::new(bodies.of(&User::new(name, Vec::<String>::new())), limits.body)
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_begun_is_on_its_users_account_and_ends_in_time() {
    const LONG: usize = 1000;
    let of = accounts(2 * LONG);
    let mut all = Vec::new();
    for _ in 0..2 {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let session = Session::start(theirs, None, of("a"));
        let head = data(1, 0, &[0; LONG]);
        ours.write_all(&head[..20]).await.unwrap();
        all.push((ours, session));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(of("a").charge(1).is_err(), "memory for them is made by their heads");
    let (mut third, theirs) = tokio::io::duplex(1 << 16);
    let mut session = Session::start(theirs, None, of("a"));
    third.write_all(&data(1, 0, b"x")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(1), session.closed()).await.expect("he has no more room");
    tokio::time::sleep(Duration::from_secs(30)).await;
    for (ours, session) in &mut all {
        assert!(futures::poll!(std::pin::pin!(session.closed())).is_pending());
        // Trickling does not extend the time.
        ours.write_all(&[0; 7]).await.unwrap();
    }
    for (_, session) in &mut all {
        tokio::time::timeout(Duration::from_secs(31), session.closed()).await.expect("it is cut");
    }
    assert!(of("a").charge(2 * LONG).is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_taken_is_on_the_account_until_it_gives_way() {
    const LONG: usize = 1000;
    let of = accounts(3 * LONG);
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let mut session = Session::start(theirs, None, of("a"));
    let mut client = Client::new();
    ours.write_all(&client.syn(1, &[])).await.unwrap();
    let (mut reader, _writer) = session.accept().await.unwrap().split();
    for _ in 0..3 {
        ours.write_all(&data(1, 0, &[0; LONG])).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(of("a").charge(1).is_err());
    assert_eq!(reader.read().await.unwrap().len(), LONG);
    assert!(of("a").charge(1).is_err(), "it is on its way");
    assert!(reader.read().await.is_some() && of("a").charge(LONG).is_ok(), "one is taken");
    ours.write_all(&data(1, 0, &[0; LONG])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (b, c) = (of("b").charge(2 * LONG).unwrap(), of("c").charge(LONG).unwrap());
    assert!(tokio::time::timeout(Duration::from_secs(1), session.closed()).await.is_err());
    let _more = of("c").charge(LONG).unwrap();
    tokio::time::timeout(Duration::from_secs(1), session.closed()).await.expect("who has most gives way");
    drop((b, c));
}
