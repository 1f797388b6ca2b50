//! Tests of a connection to a shim that is slow, silent or full.

use std::time::Duration;

use tokio::io::AsyncReadExt;

use podwright_shim::socket::listen;

use super::*;
use podwright_shim::protocol::{ExecPlan, ProcessPlan, VERSION};

#[tokio::test]
async fn a_frame_whose_asker_goes_half_way_is_not_left_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path()).unwrap();
    let (messages, _heard) = mpsc::unbounded_channel();
    let (client, _reader) = ShimClient::connect("s", folder.path(), None, VERSION, messages).await.unwrap();
    let (shim, _) = listener.accept().unwrap();
    shim.set_nonblocking(true).unwrap();
    let mut shim = UnixStream::from_std(shim).unwrap();
    let cause = Cause::default();
    let signal = |key: String| client.ask(&cause, Call::Signal { key, signal: 0 }, &[]);
    // More than the socket's buffer, without a reader.
    for letter in ["a", "b"] {
        let asked = tokio::time::timeout(Duration::from_millis(50), signal(letter.repeat(2 << 20))).await;
        asked.expect_err("nobody answers");
    }
    assert!(client.waiting().replies.is_empty(), "nobody waits any more");
    let mut frames = Frames::default();
    let mut keys = Vec::new();
    let read = async {
        while keys.last().is_none_or(|(key, _)| *key != b'c') {
            assert!(shim.read_buf(&mut frames.bytes).await.unwrap() > 0);
            while let Some((request, _)) = frames.take::<Request>().unwrap() {
                let Call::Signal { key, .. } = request.call else { panic!("{request:?}") };
                keys.push((key.as_bytes()[0], key.len()));
            }
        }
    };
    let read = async { tokio::time::timeout(Duration::from_secs(10), read).await.expect("frames come whole") };
    tokio::select! {
        () = read => {}
        _ = signal("c".to_owned()) => panic!("nobody answers"),
    }
    assert_eq!(keys, [(b'a', 2 << 20), (b'c', 1)]);
}

/// A stopped shim does not accept, and the kernel lets connects block forever: ours time out.
#[tokio::test(start_paused = true)]
async fn a_shim_whose_queue_is_full_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let connect = || ShimClient::connect("s", folder.path(), None, VERSION, mpsc::unbounded_channel().0);
    let first = connect().await.unwrap();
    let begun = tokio::time::Instant::now();
    let second = connect().await;
    assert!(matches!(second, Err(Error::Timeout(_, after)) if after == SILENCE), "{second:?}");
    assert!(begun.elapsed() < 2 * SILENCE);
    // There is room as soon as one is accepted.
    let third = async {
        tokio::time::sleep(SILENCE / 2).await;
        listener.accept().unwrap()
    };
    let (third, _taken) = tokio::join!(connect(), third);
    third.unwrap();
    drop(first);
}

/// It is not sent to the shim, which would disconnect: other requests are answered as before.
#[tokio::test]
async fn what_is_too_long_for_a_shim_is_refused_and_the_connection_stays() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path()).unwrap();
    let (messages, _heard) = mpsc::unbounded_channel();
    let (client, _reader) = ShimClient::connect("s", folder.path(), None, VERSION, messages).await.unwrap();
    let (shim, _) = listener.accept().unwrap();
    shim.set_nonblocking(true).unwrap();
    let mut shim = UnixStream::from_std(shim).unwrap();
    let serve = async {
        let mut frames = Frames::default();
        while shim.read_buf(&mut frames.bytes).await.unwrap() > 0 {
            while let Some((request, _)) = frames.take::<Request>().expect("the agent speaks our protocol") {
                let reply = Message::Reply { id: request.id, result: Ok(Answer::Done) };
                tokio::io::AsyncWriteExt::write_all(&mut shim, &encode(&reply, 0, VERSION).unwrap()).await.unwrap();
            }
        }
    };
    let cause = Cause::default();
    // 6 MiB in a process, more than twice as much on the wire.
    let process = ProcessPlan { env: vec![format!("V={}", "\u{1}".repeat(100 << 10)); 60], ..Default::default() };
    let (stdin, stdout, stderr) = (false, false, false);
    let plan = ExecPlan { exec: 1, key: "a_0".into(), process, stdin, stdout, stderr, timeout_ms: None };
    let asks = async {
        let refused = client.ask(&cause, Call::Exec(Box::new(plan)), &[]).await;
        let why = "exec in container a_0: args and env: argument list too long: more than 8388608 bytes of JSON";
        assert!(matches!(&refused, Err(Error::Invalid(said)) if said == why), "{refused:?}");
        assert!(!client.is_dead() && client.waiting().replies.is_empty());
        client.ask(&cause, start(), &[]).await.expect("the shim answers others");
    };
    tokio::select! {
        () = asks => {}
        () = serve => panic!("the agent has hung up"),
    }
}

fn start() -> Call {
    Call::Start { key: "k".into() }
}

/// For requests answered at once, and for long ones.
#[tokio::test(start_paused = true)]
async fn a_shim_that_never_answers_is_hung_up_on() {
    for (call, limit) in [(Call::Signal { key: "k".into(), signal: 0 }, SILENCE), (start(), 2 * SILENCE)] {
        let folder = tempfile::tempdir().unwrap();
        let listener = listen(folder.path()).unwrap();
        let (messages, mut heard) = mpsc::unbounded_channel();
        let (client, _reader) = ShimClient::connect("s", folder.path(), None, VERSION, messages).await.unwrap();
        let _shim = listener.accept().unwrap();
        let (begun, cause) = (tokio::time::Instant::now(), Cause::default());
        let asked = tokio::time::timeout(10 * ANSWER, client.ask(&cause, call, &[])).await.expect("it gives up");
        assert!(matches!(asked, Err(Error::Timeout(..))), "{asked:?}");
        assert!(begun.elapsed() <= limit + Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(heard.recv().await.is_none(), "it counts as gone");
        assert!(client.is_dead() && client.waiting().replies.is_empty(), "nobody waits any more");
    }
}

/// A birth may take long: it is awaited as long as the shim answers other requests.
#[tokio::test(start_paused = true)]
async fn a_shim_that_is_busy_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path()).unwrap();
    let (messages, _heard) = mpsc::unbounded_channel();
    let (client, _reader) = ShimClient::connect("s", folder.path(), None, VERSION, messages).await.unwrap();
    let (shim, _) = listener.accept().unwrap();
    shim.set_nonblocking(true).unwrap();
    let mut shim = UnixStream::from_std(shim).unwrap();
    let answers = async {
        let mut frames = Frames::default();
        while shim.read_buf(&mut frames.bytes).await.unwrap() > 0 {
            while let Some((request, _)) = frames.take::<Request>().unwrap() {
                if matches!(request.call, Call::State) {
                    let reply = Message::Reply { id: request.id, result: Ok(Answer::Done) };
                    tokio::io::AsyncWriteExt::write_all(&mut shim, &encode(&reply, 0, VERSION).unwrap()).await.unwrap();
                }
            }
        }
    };
    let (begun, cause) = (tokio::time::Instant::now(), Cause::default());
    tokio::select! {
        asked = client.ask(&cause, start(), &[]) => {
            assert!(matches!(asked, Err(Error::Timeout(_, after)) if after == START), "{asked:?}");
        }
        () = answers => panic!("it is not hung up on"),
    }
    assert!(begun.elapsed() > BIRTH && !client.is_dead(), "a birth may take longer than others");
}

/// From a shim of another release, or a faulty one: the requester gets an error, and everything running goes on.
#[tokio::test]
async fn an_answer_that_is_too_long_is_an_error_of_that_call_alone() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path()).unwrap();
    let (messages, mut heard) = mpsc::unbounded_channel();
    let (client, _reader) = ShimClient::connect("s", folder.path(), None, VERSION, messages).await.unwrap();
    let (shim, _) = listener.accept().unwrap();
    shim.set_nonblocking(true).unwrap();
    let mut shim = UnixStream::from_std(shim).unwrap();
    // As encode does, without its bound.
    let frame = |message: &Message| {
        let text = serde_json::to_vec(message).unwrap();
        let length = (text.len() as u32).to_le_bytes();
        [&length[..], &[0, VERSION, 0, 0], &text].concat()
    };
    let long = "x".repeat(MAX_FRAME);
    let serve = async {
        let mut frames = Frames::default();
        while shim.read_buf(&mut frames.bytes).await.unwrap() > 0 {
            while let Some((request, _)) = frames.take::<Request>().unwrap() {
                let result = match request.call {
                    Call::State => Err(Failure { kind: FailureKind::Kernel, message: long.clone() }),
                    _ => Ok(Answer::Done),
                };
                for message in [Message::Reply { id: request.id, result }, Message::SandboxGone] {
                    tokio::io::AsyncWriteExt::write_all(&mut shim, &frame(&message)).await.unwrap();
                }
            }
        }
    };
    let asks = async {
        let cause = Cause::default();
        for _ in 0..2 {
            let refused = client.ask(&cause, Call::State, &[]).await;
            assert!(matches!(&refused, Err(Error::Kernel(why)) if why.contains("more than 8388608")), "{refused:?}");
            client.ask(&cause, start(), &[]).await.expect("the shim answers others");
        }
        assert!(!client.is_dead() && matches!(heard.recv().await, Some(Message::SandboxGone)));
    };
    tokio::select! {
        () = asks => {}
        () = serve => panic!("the agent has hung up"),
    }
    assert!(!client.has_missed());
    // An oversized event is not sent again.
    let unasked = frame(&Message::Exited { key: long.clone(), exit: exit() });
    tokio::io::AsyncWriteExt::write_all(&mut shim, &unasked).await.ok();
    while heard.recv().await.is_some() {}
    assert!(client.has_missed());
}

fn exit() -> crate::Exit {
    let (reason, message, finished) = (crate::ExitReason::Error, String::new(), jiff::Timestamp::UNIX_EPOCH);
    crate::Exit { code: 1, signal: 0, reason, message, finished }
}
