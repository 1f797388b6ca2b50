//! What answers hold, and for how long.

use super::super::rest::reply;
use super::*;

fn answers() -> Arc<Answers> {
    let limits = Limits { answers: 300, answers_of_one: 100, queue: 1, ..Limits::default() };
    Answers::new(&limits)
}

fn user(name: &str) -> User {
    User::new(name, Vec::<String>::new())
}

#[tokio::test(start_paused = true)]
async fn one_users_answers_leave_room_for_others() {
    let answers = answers();
    let (greedy, polite) = (user("greedy"), user("polite"));
    let huge = answers.enter(&greedy, 250).await.expect("one is let through, however large");
    let late = answers.enter(&greedy, 1).await.map(drop).unwrap_err();
    assert_eq!(late.code, 429, "nothing was sent in time");
    assert!(answers.try_enter(&polite, 60).is_none() && answers.try_enter(&User::system("root"), 900).is_some());
    let small = answers.enter(&polite, 50).await.unwrap();
    let mut first = std::pin::pin!(answers.enter(&greedy, 100));
    assert!(futures::poll!(first.as_mut()).is_pending());
    let begun = Instant::now();
    assert_eq!(answers.enter(&greedy, 1).await.map(drop).unwrap_err().code, 429, "his queue is full");
    assert_eq!(begun.elapsed(), Duration::ZERO, "he does not wait in it");
    drop(huge);
    let mut made = first.await.unwrap();
    made.shrink(150);
    assert_eq!(answers.lock().bytes, 150, "100 and 50");
    made.shrink(20);
    assert_eq!(answers.lock().bytes, 70, "what it does not need is free");
    drop((made, small));
    assert!(answers.lock().users.is_empty() && answers.lock().bytes == 0);
}

#[test]
fn an_answer_that_grows_has_any_length_while_it_is_alone() {
    let (answers, one, other) = (answers(), user("one"), user("other"));
    let mut room = answers.try_enter(&one, 0).unwrap();
    assert!(room.grow(&one, 80) && room.grow(&one, 120), "it is his only one");
    let mut second = answers.try_enter(&one, 0).unwrap();
    assert!(!second.grow(&one, 1), "he has too much");
    let theirs = answers.try_enter(&other, 90).unwrap();
    assert!(!room.grow(&one, 20), "there is no more for all");
    drop(theirs);
    assert!(room.grow(&one, 20) && answers.lock().bytes == 220);
    assert!(second.grow(&User::new("root", ["system:masters"]), 1 << 30));
    drop((room, second));
    assert!(answers.lock().bytes == 0 && answers.lock().users.is_empty());
}

#[test]
fn what_one_reply_answers_has_one_room() {
    let (answers, one) = (answers(), user("one"));
    let rooms = Rooms::default();
    rooms.add(answers.try_enter(&one, 0).unwrap());
    rooms.add(answers.try_enter(&one, 60).unwrap());
    rooms.add(answers.try_enter(&one, 40).unwrap());
    assert!(answers.try_enter(&one, 1).is_none(), "it counts while others are made");
    let room = rooms.of_reply(&answers, &one, 70).unwrap();
    assert!(answers.lock().bytes == 70 && answers.try_enter(&one, 31).is_none());
    drop(room);
    rooms.add(answers.try_enter(&one, 100).unwrap());
    assert!(rooms.of_reply(&answers, &one, 200).is_ok(), "what is around it");
    rooms.add(answers.try_enter(&one, 100).unwrap());
    assert_eq!(rooms.of_reply(&answers, &one, PIECE + 200).map(drop).unwrap_err().code, 429);
    drop(rooms);
    assert_eq!(answers.lock().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_out_in_pieces_and_is_dropped_when_it_is_left_unread() {
    let answers = answers();
    let stalled = Duration::from_secs(60);
    let room = || Some(Arc::new(answers.try_enter(&user("a"), 100).unwrap()));
    let taken = || answers.lock().bytes;
    let end = CancellationToken::new();
    let patience = |end: &CancellationToken| Some(Patience::new(stalled, end.clone()));
    let long = vec![b'x'; 3 * PIECE + 1];

    let mut read = sent(reply::full(long.clone()), room(), patience(&end));
    assert_eq!(read.size_hint().exact(), Some(long.len() as u64));
    let mut sizes = Vec::new();
    while let Some(frame) = read.frame().await {
        sizes.push(frame.unwrap().into_data().unwrap().len());
        // Who is slow, and reads, gets everything.
        tokio::time::sleep(stalled / 2).await;
    }
    assert_eq!((sizes, taken()), (vec![PIECE, PIECE, PIECE, 1], 0));

    let mut unread = sent(reply::full(long), room(), patience(&end));
    assert!(unread.frame().await.unwrap().is_ok() && taken() == 100);
    tokio::time::sleep(stalled + stalled / 2).await;
    assert_eq!(taken(), 0, "nothing is kept for him");
    assert!(unread.frame().await.unwrap().is_err(), "and he is told that it is not all");
    drop(unread);
    tokio::time::sleep(stalled * 2).await;
    assert!(!end.is_cancelled(), "his connection goes on once it is rid of it");

    // Who waits for news is not slow.
    let (news, coming) = tokio::sync::oneshot::channel::<()>();
    let frame = futures::stream::once(async {
        let _ = coming.await;
        Ok::<_, BodyError>(Frame::data(Bytes::from_static(b"news")))
    });
    let mut watch = sent(http_body_util::StreamBody::new(frame).boxed_unsync(), None, patience(&end));
    let mut next = std::pin::pin!(watch.frame());
    assert!(futures::poll!(next.as_mut()).is_pending());
    tokio::time::sleep(stalled * 5).await;
    news.send(()).unwrap();
    assert!(next.await.unwrap().is_ok());
    assert!(!end.is_cancelled());
}

/// A connection keeps what its client does not take, also of an answer that is whole, or waits for news.
#[tokio::test(start_paused = true)]
async fn a_connection_ends_that_is_not_rid_of_much_that_it_was_handed_and_goes_on_with_little() {
    let stalled = Duration::from_secs(60);
    let end = CancellationToken::new();
    let patience = Patience::new(stalled, end.clone());
    let watch = || {
        let news = futures::stream::once(async { Ok::<_, BodyError>(Frame::data(Bytes::from_static(b"news"))) });
        http_body_util::StreamBody::new(futures::StreamExt::chain(news, futures::stream::pending())).boxed_unsync()
    };
    let mut stuck = Vec::new();
    let more = async |stuck: &mut Vec<_>, wanted: usize| {
        while stuck.len() < wanted {
            let body = if stuck.len() % 2 == 0 { reply::full("short") } else { watch() };
            let mut body = sent(body, None, Some(patience.clone()));
            let piece = body.frame().await.unwrap().unwrap();
            let next = tokio::time::timeout(Duration::from_millis(1), body.frame()).await;
            stuck.push((piece, next.is_err().then_some(body)));
        }
    };
    more(&mut stuck, 1).await;
    tokio::time::sleep(stalled * 10).await;
    assert!(!end.is_cancelled(), "one that pauses leaves the others of its connection alone");
    more(&mut stuck, STUCK).await;
    tokio::time::sleep(stalled * 10).await;
    assert!(!end.is_cancelled());
    // Some are taken at last.
    stuck.truncate(4);
    tokio::time::sleep(stalled).await;
    more(&mut stuck, STUCK).await;
    tokio::time::sleep(stalled * 10).await;
    assert!(!end.is_cancelled(), "only those are counted that are there");
    more(&mut stuck, STUCK + 1).await;
    tokio::time::sleep(stalled / 2).await;
    assert!(!end.is_cancelled());
    tokio::time::sleep(stalled * 2).await;
    assert!(end.is_cancelled(), "they are too many");
    drop(stuck);
    tokio::time::sleep(stalled).await;
    assert_eq!(patience.stuck.load(Ordering::Relaxed), 0);

    let end = CancellationToken::new();
    let patience = Patience::new(stalled, end.clone());
    for _ in 0..=STUCK {
        let mut read = sent(reply::full("short"), None, Some(patience.clone()));
        drop(read.frame().await.unwrap().unwrap());
        drop(read);
    }
    tokio::time::sleep(stalled * 5).await;
    assert!(!end.is_cancelled(), "what was taken is no reason");
}
