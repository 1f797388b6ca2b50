//! Clients of a WebSocket that ask for much at once: who reads is served, however many calls he has in flight; who does not is not
//! read from, and costs no more than so many messages.

use futures::stream::SplitSink;
use tokio::runtime::Handle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, coding};

use super::*;

type Socket = WebSocketStream<UnixStream>;

const TIMEOUT: Duration = Duration::from_secs(30);
const IN_FLIGHT: usize = 100;
const HEALTH: &str = r#"{"jsonrpc":"2.0","id":1,"method":"health","params":{"of":"livez"}}"#;
const NOTE: &str = r#"{"jsonrpc":"2.0","method":"health"}"#;

/// A WebSocket of somebody who may nothing.
async fn socket(served: &Served, user: &str) -> Socket {
    let mut request = "ws://x/rpc".into_client_request().unwrap();
    request.headers_mut().insert("impersonate-user", user.parse().unwrap());
    let stream = UnixStream::connect(&served.path).await.unwrap();
    tokio_tungstenite::client_async(request, stream).await.unwrap().0
}

/// Sends the same again and again, until nobody takes it; how many messages went.
async fn flood(to: &mut SplitSink<Socket, Message>, text: &str, most: usize) -> usize {
    for sent in 0..most {
        let sending = to.send(Message::text(text));
        if tokio::time::timeout(Duration::from_secs(1), sending).await.is_err() {
            // What was begun goes on with the next one.
            return sent;
        }
    }
    most
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_nothing_has_so_many_messages_in_memory_and_no_more() {
    const MOST: usize = 20_000;
    let ones = format!("[{}]", ["1"; IN_FLIGHT].join(","));
    for text in ["{}", "1", HEALTH, r#"{"jsonrpc":"2.0","id":1,"method":"nothing"}"#, &ones] {
        let served = Served::new().await;
        let (mut to, mut from) = socket(&served, "nob").await.split();
        let idle = tasks();
        let sent = flood(&mut to, text, MOST).await;
        assert!(sent < MOST, "{text:.30}: it takes messages without end");
        let more = tasks().saturating_sub(idle);
        assert!(more < IN_FLIGHT + 20, "{text:.30}: {more} tasks for {sent} messages that nobody reads the answers of");
        // Who reads at last has an answer to each.
        let rest = tokio::spawn(async move {
            to.flush().await.unwrap();
            to
        });
        for answer in 0..sent {
            let told = tokio::time::timeout(TIMEOUT, from.next()).await;
            assert!(matches!(told, Ok(Some(Ok(Message::Text(_))))), "{text:.30}: answer {answer} of {sent}: {told:?}");
        }
        drop(rest.await.unwrap());
    }
}

/// A refusal repeats what was asked for: it is on its user's account until it is sent, as an answer is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_refusals_that_nobody_reads_are_on_their_users_account() {
    let limits = Limits { answers_of_one: 64 << 10, ..Limits::default() };
    let served = Served::with(Config { limits, ..Config::default() }).await;
    let (mut to, mut from) = socket(&served, "nob").await.split();
    let params = json!({"resource": "configmaps", "namespace": "default", "name": "n".repeat(16 << 10)});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "get", "params": params}).to_string();
    let sent = flood(&mut to, &call, 2_000).await;
    let (again, rest) = (call.clone(), tokio::spawn(async move { to.flush().await.map(|()| to) }));
    let mut read = async || {
        let told = tokio::time::timeout(TIMEOUT, from.next()).await.expect("an answer comes").unwrap().unwrap();
        let told: Value = serde_json::from_str(told.to_text().unwrap()).unwrap();
        (told["error"]["code"].as_i64().unwrap(), told["error"]["message"].as_str().unwrap().to_owned())
    };
    let mut full = 0;
    for _ in 0..sent {
        let (code, message) = read().await;
        full += usize::from(code == 429 && message.starts_with("Too many answers"));
    }
    assert!(full > 0, "none of {sent} was without room");
    // Who reads is told what is wrong.
    let mut to = rest.await.unwrap().unwrap();
    // Room is given back a moment after what took it has been read.
    let ended = tokio::time::timeout(TIMEOUT, async {
        loop {
            to.send(Message::text(again.clone())).await.unwrap();
            match read().await {
                (429, _) => {}
                answer => return answer,
            }
        }
    });
    let (code, message) = ended.await.expect("there is room again");
    assert!(code == 403 && message.len() > 16 << 10, "{code} {}", message.len());
}

/// Agents and watchers: calls, watches, notifications and what is no call at all, sent as fast as they go, and read meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_is_served_however_many_calls_are_in_flight() {
    let served = Served::new().await;
    let (mut to, mut from) = {
        let request = "ws://x/rpc".into_client_request().unwrap();
        let stream = UnixStream::connect(&served.path).await.unwrap();
        tokio_tungstenite::client_async(request, stream).await.unwrap().0.split()
    };
    const ROUNDS: usize = 500;
    let watch = r#"{"jsonrpc":"2.0","id":1,"method":"watch","params":{"resource":"configmaps","namespace":"default"}}"#;
    let notes = format!("[{NOTE},{NOTE}]");
    let mixed = [(HEALTH, 1), (NOTE, 0), (watch, 1), ("{}", 1), (notes.as_str(), 0), ("", 1), (r#"[{"a":1},2]"#, 1)];
    let answered: usize = mixed.iter().map(|(_, answers)| answers * ROUNDS).sum();
    let texts: Vec<String> = mixed.iter().map(|(text, _)| (*text).to_owned()).collect();
    let sender = tokio::spawn(async move {
        for _ in 0..ROUNDS {
            for text in &texts {
                to.send(Message::text(text.clone())).await.unwrap();
            }
        }
        to
    });
    let (mut answers, mut events, mut made) = (0, 0, false);
    while answers < answered || events < ROUNDS {
        let told = tokio::time::timeout(TIMEOUT, from.next()).await;
        let Ok(Some(Ok(told))) = told else { panic!("after {answers} answers and {events} events: {told:?}") };
        match told.to_text().unwrap().contains(r#""method":"#) {
            true => events += 1,
            false => answers += 1,
        }
        if answers == answered && !made {
            made = true;
            served.api.create("configmaps", config_map("seen")).await.unwrap();
        }
    }
    assert_eq!((answers, events), (answered, ROUNDS));
    // Events are no answers: after all of them, no more is taken of who reads nothing.
    let (mut to, idle) = (sender.await.unwrap(), tasks());
    flood(&mut to, "{}", 20_000).await;
    let more = tasks().saturating_sub(idle);
    assert!(more < IN_FLIGHT + 20, "{more}");
}

/// An agent's own client, with a call for each of many Pods at once, on one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_has_a_call_for_each_of_its_pods() {
    let served = Served::new().await;
    served.api.create("configmaps", config_map("a")).await.unwrap();
    let calls = (0..1000).map(|_| served.client.call(request(Verb::Get, "configmaps", "a", None, Options::default())));
    let all = tokio::time::timeout(TIMEOUT, futures::future::join_all(calls)).await.expect("all are answered");
    assert!(all.iter().all(Result::is_ok), "{:?}", all.iter().find(|one| one.is_err()));
}

/// What one user asks on all his connections has one account; what he has no room for waits, and others are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_not_answered_are_on_their_users_account() {
    const ROOM: usize = 150;
    let limits = Limits { bodies_of_one: ROOM * 4096, ..Limits::default() };
    let served = Served::with(Config { limits, ..Config::default() }).await;
    let mut sockets = Vec::new();
    let idle = tasks();
    for _ in 0..4 {
        let (mut to, from) = socket(&served, "nob").await.split();
        flood(&mut to, "{}", 20_000).await;
        sockets.push((to, from));
    }
    let more = tasks().saturating_sub(idle);
    assert!(more < ROOM + 60, "{more} tasks");
    let mut other = socket(&served, "other").await;
    other.send(Message::text(HEALTH)).await.unwrap();
    assert!(tokio::time::timeout(TIMEOUT, other.next()).await.is_ok());
    // Who reads at last goes on, also on the connections that had no room.
    let all = sockets.iter_mut().map(async |(to, from)| {
        let sent = async {
            let _ = to.flush().await;
            to.send(Message::text(HEALTH)).await
        };
        let read = async { while from.next().await.unwrap().unwrap().to_text().unwrap().contains("\"id\":null") {} };
        tokio::join!(sent, read).0
    });
    let all = tokio::time::timeout(TIMEOUT, futures::future::join_all(all)).await.expect("they go on");
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_carry_nothing_and_messages_too_long_end_their_connection() {
    let served = Served::new().await;
    let frame = |opcode: coding::OpCode, payload: &[u8], last: bool| {
        Message::Frame(Frame::message(payload.to_vec(), opcode, last))
    };
    let (begun, goes_on) = (coding::OpCode::Data(coding::Data::Text), coding::OpCode::Data(coding::Data::Continue));
    for (what, first, again, code) in [
        ("pings", vec![], Message::Ping("x".into()), 1008),
        ("empty fragments", vec![frame(begun, b"", false)], frame(goes_on, b"", false), 1008),
        ("fragments of a byte", vec![frame(begun, b"{", false)], frame(goes_on, b" ", false), 1008),
        ("a long message", vec![], frame(begun, &[b' '; (4 << 20) + 1], true), 1009),
        ("fragments", vec![frame(begun, b"", false)], frame(goes_on, &[b' '; 200], false), 1009),
    ] {
        let (mut to, mut from) = socket(&served, "nob").await.split();
        let sender = tokio::spawn(async move {
            for message in first.into_iter().chain(std::iter::repeat_n(again, 50_000)) {
                if to.send(message).await.is_err() {
                    break;
                }
            }
        });
        let told = loop {
            match tokio::time::timeout(TIMEOUT, from.next()).await.unwrap_or_else(|_| panic!("{what} go on")) {
                Some(Ok(Message::Pong(_))) => {}
                Some(Ok(Message::Close(told))) => break told,
                other => panic!("{what}: {other:?}"),
            }
        };
        assert_eq!(told.map(|told| u16::from(told.code)), Some(code), "{what}");
        drop(from);
        sender.await.unwrap();
    }
}

/// Its frames would begin nobody knows where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_is_the_first_request_of_its_connection() {
    let served = Served::new().await;
    let mut stream = UnixStream::connect(&served.path).await.unwrap();
    let upgrade = "GET /rpc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    for (ask, answer) in [("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "200"), (upgrade, "400")] {
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut told = String::new();
        while !told.contains(&format!("HTTP/1.1 {answer}")) {
            let mut piece = [0; 4096];
            let read = tokio::time::timeout(TIMEOUT, stream.read(&mut piece)).await.unwrap().unwrap();
            assert!(read > 0, "{told}");
            told.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }
}
