//! Tests of the accounting of unread answers.

use super::super::answers::Answers;
use super::*;
use crate::limits::{Bodies, CpuScheduler, Limits};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STALLED: Duration = Duration::from_secs(60);

fn metered() -> (Arc<Unread>, Metered<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(1000);
    let unread = Unread::new(STALLED);
    let bodies = Bodies::new(&Limits::default());
    unread.lock().before = Before::WholeHead;
    let share = CpuScheduler::new(&Limits::default()).share(&user());
    unread.start(Messages::new(bodies.of(&user()), REQUESTS, STALLED), bodies.of(&user()), share);
    (unread.clone(), Metered::new(ours, unread), theirs)
}

fn user() -> User {
    User::new("a", Vec::<String>::new())
}

fn answers(answers_of_one: usize) -> Arc<Answers> {
    Answers::new(&Limits { answers_of_one, ..Limits::default() })
}

#[tokio::test(start_paused = true)]
async fn an_answer_keeps_its_room_until_it_is_written() {
    let (answers, user) = (answers(100), user());
    let (unread, mut stream, mut client) = metered();
    unread.answer(60, answers.try_enter(&user, 60).unwrap());
    unread.answer(40, answers.try_enter(&user, 40).unwrap());
    assert!(answers.try_enter(&user, 1).is_none());
    stream.write_all(&[0; 62]).await.unwrap();
    assert!(answers.try_enter(&user, 60).is_some() && answers.try_enter(&user, 61).is_none());
    stream.write_all(&[0; 40]).await.unwrap();
    assert!(answers.try_enter(&user, 100).is_some());
    unread.answer(70, answers.try_enter(&user, 70).unwrap());
    drop(stream);
    assert!(answers.try_enter(&user, 100).is_some(), "what nobody takes any more has no room");
    client.read_exact(&mut [0; 102]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn events_wait_behind_what_is_not_read_and_end_with_the_connection() {
    let ((unread, mut stream, _client), answers, user) = (metered(), answers(1), user());
    assert!(unread.event(64 << 20, &answers, &user).await, "one is let through, however large");
    assert!(stream.write(&[0; 1000]).await.is_ok());
    let mut write = std::pin::pin!(stream.write(&[0; 1000]));
    assert!(futures::poll!(write.as_mut()).is_pending());
    let mut second = std::pin::pin!(unread.event(1, &answers, &user));
    assert!(tokio::time::timeout(STALLED / 2, second.as_mut()).await.is_err());
    assert_eq!(write.await.unwrap_err().kind(), io::ErrorKind::TimedOut, "who does not read is cut off");
    drop(stream);
    assert!(!second.await);
}

#[tokio::test(start_paused = true)]
async fn who_reads_slowly_is_served_and_who_takes_too_little_is_not() {
    for (portion, served) in [(1000, true), (100, false)] {
        let (_unread, mut stream, mut client) = metered();
        let reader = tokio::spawn(async move {
            let mut piece = vec![0; portion];
            while client.read_exact(&mut piece).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        let written = stream.write_all(&[0; 4 * PIECE]).await;
        assert_eq!(written.is_ok(), served, "{written:?}");
        drop(stream);
        reader.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_is_not_read_from() {
    let (_unread, stream, client) = metered();
    let (mut reads, mut writes) = tokio::io::split(stream);
    // A writer of messages flushes them.
    let writer = tokio::spawn(async move {
        writes.write_all(&[0; 4 * PIECE]).await?;
        writes.flush().await
    });
    let reader = tokio::spawn(async move {
        let mut piece = vec![0; PIECE];
        while reads.read(&mut piece).await.is_ok_and(|read| read > 0) {}
    });
    let (mut from, mut to) = tokio::io::split(client);
    let message = crate::frames::tests::whole(0x82, REQUESTS);
    let sender = tokio::spawn(async move { to.write_all(&message.repeat(2)).await });
    tokio::time::sleep(STALLED / 2).await;
    assert!(!sender.is_finished(), "it takes requests without end");
    let mut all = vec![0; 4 * PIECE];
    from.read_exact(&mut all).await.unwrap();
    assert!(writer.await.unwrap().is_ok());
    sender.await.unwrap().expect("it goes on");
    drop(from);
    reader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_never_written_is_forgiven() {
    let ((unread, _stream, _client), answers, user) = (metered(), answers(1), user());
    assert!(unread.event(EVENTS as usize * 2, &answers, &user).await);
    let began = Instant::now();
    assert!(unread.event(1, &answers, &user).await && began.elapsed() >= MOVED);
}

#[tokio::test(start_paused = true)]
async fn what_a_batch_has_answered_keeps_its_room_as_long_as_the_batch_takes() {
    let ((unread, _stream, _client), answers, user) = (metered(), answers(100), user());
    let work = unread.work(1);
    unread.answer(100, answers.try_enter(&user, 100).unwrap());
    tokio::time::sleep(MOVED * 3).await;
    unread.answer(1, answers.try_enter(&User::new("b", Vec::<String>::new()), 1).unwrap());
    assert!(answers.try_enter(&user, 1).is_none());
    drop(work);
    tokio::time::sleep(MOVED).await;
    assert!(unread.event(1, &answers, &user).await && answers.try_enter(&user, 100).is_some());
}

#[tokio::test(start_paused = true)]
async fn events_that_are_not_read_take_the_room_of_their_user_on_all_his_connections() {
    let (answers, user) = (answers(1 << 20), user());
    let waits = async |unread: &Unread, bytes: usize, user: &User| {
        tokio::time::timeout(Duration::from_secs(1), unread.event(bytes, &answers, user)).await.is_err()
    };
    let mut connections = Vec::new();
    for _ in 0..8 {
        let (unread, mut stream, client) = metered();
        assert!(!waits(&unread, PIECE, &user).await, "a piece is kept as for REST");
        assert!(stream.write(&[0; 1000]).await.is_ok());
        assert!(futures::poll!(std::pin::pin!(stream.write(&[0; 1000]))).is_pending());
        connections.push((unread, stream, client));
    }
    let mut let_through = 0;
    for (unread, ..) in &connections {
        while !waits(unread, PIECE, &user).await {
            let_through += 1;
        }
    }
    assert_eq!(let_through, 16, "together no more than one user has");
    let (unread, mut stream, mut client) = metered();
    assert!(!waits(&unread, 1000, &user).await, "a small one is always let through");
    assert!(!waits(&unread, 2 * PIECE, &User::new("b", Vec::<String>::new())).await, "and another user's");
    let mut large = std::pin::pin!(unread.event(2 * PIECE, &answers, &user));
    assert!(futures::poll!(large.as_mut()).is_pending());
    // Another connection ends, and this one has read everything.
    drop(connections.remove(0));
    let all = vec![0; 2 * PIECE + 1000];
    let mut taken = all.clone();
    let (written, read) = tokio::join!(stream.write_all(&all), client.read_exact(&mut taken));
    assert!(written.is_ok() && read.is_ok() && large.await);
}

#[tokio::test(start_paused = true)]
async fn what_is_read_too_slowly_gives_way_when_its_room_is_wanted() {
    const BYTES: usize = 80 * PIECE;
    let limits = Limits { answers: 2 * BYTES, answers_of_one: 2 * BYTES, queue: 1, ..Limits::default() };
    for (is_event, pause, is_slow) in [(false, 100, true), (true, 100, true), (false, 12, false), (true, 12, false)] {
        let (answers, user, new) = (Answers::new(&limits), user(), User::new("b", Vec::<String>::new()));
        let (unread, mut stream, mut client) = metered();
        let oversight = unread.clone();
        let given_way = tokio::spawn(async move {
            oversight.gives_way().await;
            oversight.cut();
        });
        // Earlier reading gives no credit.
        tokio::time::sleep(STALLED * 3).await;
        match is_event {
            true => assert!(unread.event(BYTES, &answers, &user).await),
            false => unread.answer(BYTES, answers.try_enter(&user, BYTES).unwrap()),
        }
        let writer = tokio::spawn(async move { stream.write_all(&vec![0; BYTES]).await });
        let reader = tokio::spawn(async move {
            while client.read_exact(&mut [0; 1000]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        });
        tokio::time::sleep(STALLED / 2).await;
        assert!(answers.enter(&new, 3 * BYTES / 2).await.is_err(), "it is not under way for long");
        tokio::time::sleep(STALLED / 6).await;
        assert!(!given_way.is_finished());
        let begun = Instant::now();
        drop(answers.enter(&new, 3 * BYTES / 2).await.expect("who waits has it"));
        assert!(begun.elapsed() <= STALLED / 4);
        assert_eq!(
            (writer.await.unwrap().is_ok(), given_way.is_finished()),
            (!is_slow, is_slow),
            "{is_event}, {pause} ms"
        );
        drop((reader, given_way));
        assert!(answers.try_enter(&new, 2 * BYTES).is_some());
    }
}

/// A slow client stays slow for later data as well, until it has read everything.
#[tokio::test(start_paused = true)]
async fn what_was_left_unread_is_no_reason_once_it_is_read() {
    const MUCH: usize = 40 * PIECE;
    let limits = Limits { answers: 100 * PIECE, answers_of_one: 100 * PIECE, queue: 1, ..Limits::default() };
    let (answers, user, new) = (Answers::new(&limits), user(), User::new("b", Vec::<String>::new()));
    let (unread, mut stream, mut client) = metered();
    let oversight = unread.clone();
    let given_way = tokio::spawn(async move { oversight.gives_way().await });
    tokio::spawn(async move { while client.read_exact(&mut [0; 1000]).await.is_ok() {} });
    let _batch = unread.work(1);
    unread.answer(MUCH, answers.try_enter(&user, MUCH).unwrap());
    tokio::time::sleep(STALLED + Duration::from_secs(1)).await;
    stream.write_all(&vec![0; MUCH]).await.unwrap();
    unread.answer(MUCH, answers.try_enter(&user, MUCH).unwrap());
    assert!(answers.try_enter(&new, 100 * PIECE).is_none());
    tokio::time::sleep(STALLED / 2).await;
    assert!(!given_way.is_finished(), "this has just begun");
    tokio::time::sleep(STALLED).await;
    let late = 30 * PIECE;
    unread.answer(late, answers.try_enter(&user, late).unwrap());
    stream.write_all(&vec![0; MUCH]).await.unwrap();
    assert!(!given_way.is_finished(), "nobody has wanted it");
    assert!(answers.try_enter(&new, 100 * PIECE).is_none());
    tokio::time::timeout(Duration::from_secs(1), given_way).await.expect("what came late is left unread too").unwrap();
}

/// A waiting event has no room yet, and ends with its watch's backlog.
#[tokio::test(start_paused = true)]
async fn a_slow_connection_whose_events_wait_gives_way() {
    let limits = Limits { answers: 100 * PIECE, answers_of_one: 70 * PIECE, queue: 1, ..Limits::default() };
    let (answers, user, new) = (Answers::new(&limits), user(), User::new("b", Vec::<String>::new()));
    let (unread, _stream, _client) = metered();
    let oversight = unread.clone();
    let given_way = tokio::spawn(async move { oversight.gives_way().await });
    let _behind = answers.charged(&user, vec![0; 60 * PIECE].into()).unwrap();
    let _others = answers.try_enter(&new, 35 * PIECE).unwrap();
    let _batch = unread.work(1);
    assert!(unread.event(PIECE, &answers, &user).await, "a piece is kept as for REST");
    let waits = unread.event(10 * PIECE, &answers, &user);
    assert!(tokio::time::timeout(STALLED - Duration::from_secs(1), waits).await.is_err() && !given_way.is_finished());
    let waits = unread.event(10 * PIECE, &answers, &user);
    assert!(tokio::time::timeout(STALLED, waits).await.is_err());
    assert!(given_way.is_finished(), "it is left unread");
}

#[test]
fn frames_begin_where_the_head_of_one_request_ends() {
    for (read, whole) in [
        (vec!["GET /rpc HTTP/1.1\r\nHost: x\r\n\r\n"], true),
        (vec!["GET /rpc HTTP/1.1\r\nHost: x\r", "\n\r", "\n"], true),
        (vec!["GET /rpc HTTP/1.1\nHost: x\n\n"], true),
        (vec!["GET /rpc HTTP/1.1\r\nHost: x\r\n"], false),
        (vec!["GET /rpc HTTP/1.1\r\n\r\nx\r\n\r\n"], false),
        (vec!["GET /rpc HTTP/1.1\r\n\r\n", "\r\n\r\n"], false),
    ] {
        let mut before = Before::Head(0);
        read.iter().for_each(|bytes| before.read(bytes.as_bytes()));
        assert_eq!(before == Before::WholeHead, whole, "{read:?}");
    }
}
