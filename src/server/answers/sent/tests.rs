//! Response bodies that are sent, and those that clients do not read.

use super::super::Answers;
use super::*;
use crate::limits::Limits;
use crate::rest::reply;
use podwright_api::User;

const STALLED: Duration = Duration::from_secs(60);

fn answers() -> Arc<Answers> {
    let limits = Limits { answers: 3 * PIECE, answers_of_one: 2 * PIECE, queue: 1, ..Limits::default() };
    Answers::new(&limits)
}

fn user(name: &str) -> User {
    User::new(name, Vec::<String>::new())
}

fn nothing() -> futures::stream::Pending<Result<Frame<Bytes>, BodyError>> {
    futures::stream::pending()
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
        // A slow client that reads gets everything.
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

    // Waiting for news is not slow.
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

/// A connection keeps what its client does not read, also of a response that is complete, or waits for news.
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
    // Another of its watches has no news.
    let mut quiet = sent(http_body_util::StreamBody::new(nothing()).boxed_unsync(), None, Some(patience.clone()));
    assert!(futures::poll!(std::pin::pin!(quiet.frame())).is_pending());
    more(&mut stuck, 1).await;
    tokio::time::sleep(stalled * 10).await;
    assert!(!end.is_cancelled(), "one that pauses leaves the others of its connection alone");
    more(&mut stuck, STUCK).await;
    tokio::time::sleep(stalled * 10).await;
    assert!(!end.is_cancelled());
    // Some are read at last.
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
    drop((stuck, quiet));
    tokio::time::sleep(stalled).await;
    assert_eq!((patience.stuck.load(Ordering::Relaxed), patience.open.load(Ordering::Relaxed)), (0, 0));

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

/// A response whose first piece the connection holds.
async fn left(answers: &Arc<Answers>, name: &str, bytes: usize, patience: &Patience) -> (HttpBody, Frame<Bytes>) {
    let room = Arc::new(answers.try_enter(&user(name), bytes).unwrap());
    let mut body = sent(reply::full(vec![b'x'; bytes]), Some(room), Some(patience.clone()));
    let piece = body.frame().await.unwrap().unwrap();
    (body, piece)
}

#[tokio::test(start_paused = true)]
async fn what_lies_at_a_connection_is_on_its_readers_account() {
    let (answers, end) = (answers(), CancellationToken::new());
    let patience = Patience::new(STALLED, end.clone());
    let _other = patience.open();
    let taken = || answers.lock().bytes;
    let (long, piece) = left(&answers, "a", PIECE + 100, &patience).await;
    tokio::time::sleep(STALLED + STALLED / 2).await;
    assert_eq!(taken(), PIECE, "of what is cut off the piece is left");
    drop(long);
    assert_eq!(taken(), PIECE);
    drop(piece);
    assert_eq!(taken(), 0);
    // One that is complete and gone.
    let (short, piece) = left(&answers, "a", 100, &patience).await;
    drop(short);
    assert_eq!(taken(), 100);
    drop(piece);
    assert_eq!(taken(), 0);
    // A streamed one has no room before it is left unread.
    let news = futures::stream::once(async { Ok::<_, BodyError>(Frame::data(Bytes::from_static(b"news"))) });
    let body = http_body_util::StreamBody::new(futures::StreamExt::chain(news, nothing())).boxed_unsync();
    let mut watch = sent(body, Some(Arc::new(answers.none_yet(&user("a")))), Some(patience.clone()));
    let piece = watch.frame().await.unwrap().unwrap();
    assert!(futures::poll!(std::pin::pin!(watch.frame())).is_pending() && taken() == 0);
    tokio::time::sleep(STALLED * 5).await;
    assert_eq!(taken(), 4);
    drop((watch, piece));
    assert!(taken() == 0 && answers.lock().users.is_empty() && !end.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_which_nothing_else_is_left_ends() {
    let (answers, end) = (answers(), CancellationToken::new());
    let patience = Patience::new(STALLED, end.clone());
    let other = patience.open();
    let stuck = [left(&answers, "a", 100, &patience).await, left(&answers, "a", 200, &patience).await];
    tokio::time::sleep(STALLED * 10).await;
    assert!(!end.is_cancelled(), "something is asked there");
    drop(other);
    for _ in 0..30 {
        // Occasional requests leave nothing else open in the meantime.
        tokio::time::sleep(STALLED / 3).await;
        drop(patience.open());
    }
    assert!(!end.is_cancelled(), "something was asked not long ago");
    tokio::time::sleep(STALLED * 3).await;
    assert!(end.is_cancelled());
    drop(stuck);
    assert_eq!(answers.lock().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_stuck_gives_way_when_its_room_is_wanted() {
    let answers = answers();
    let connection = || {
        let end = CancellationToken::new();
        (Patience::new(STALLED, end.clone()), end)
    };
    let (many, few) = (connection(), connection());
    let _others = [many.0.open(), few.0.open()];
    let mut much = left(&answers, "many", PIECE, &many.0).await;
    let more = left(&answers, "many", PIECE, &many.0).await;
    let little = left(&answers, "few", PIECE / 2, &few.0).await;
    assert!(answers.try_enter(&user("new"), PIECE).is_none() && !many.1.is_cancelled(), "it is under way");
    tokio::time::sleep(STALLED * 5).await;
    assert!(!many.1.is_cancelled() && !few.1.is_cancelled() && answers.try_enter(&user("new"), 100).is_some());
    assert!(answers.try_enter(&user("new"), PIECE).is_none());
    assert!(many.1.is_cancelled() && !few.1.is_cancelled(), "of him who has most");
    drop((much, more));
    let room = answers.try_enter(&user("new"), PIECE).expect("what he had is free");
    drop(room);
    assert!(answers.try_enter(&user("few"), 2 * PIECE).is_none());
    assert!(few.1.is_cancelled(), "who wants more than he may have gives way himself");
    drop(little);
    // What was read at last does not count.
    let (patience, end) = connection();
    let _other = patience.open();
    much = left(&answers, "many", PIECE, &patience).await;
    tokio::time::sleep(STALLED * 5).await;
    drop(much);
    let again = left(&answers, "many", 2 * PIECE, &patience).await;
    assert!(answers.try_enter(&user("many"), 1).is_none() && !end.is_cancelled());
    drop(again);
}

/// A client that reads much, and left one response unread somewhere, does not count as one that does not read.
#[tokio::test(start_paused = true)]
async fn of_two_the_one_gives_way_of_whom_more_is_stuck() {
    let limits = Limits { answers: 8 * PIECE, answers_of_one: 6 * PIECE, queue: 1, ..Limits::default() };
    let answers = Answers::new(&limits);
    let connection = || {
        let end = CancellationToken::new();
        (Patience::new(STALLED, end.clone()), end)
    };
    let (reads, left_alone) = (connection(), connection());
    let _others = [reads.0.open(), left_alone.0.open()];
    let little = left(&answers, "reads", PIECE / 2, &reads.0).await;
    let mut much = left(&answers, "leaves", PIECE, &left_alone.0).await;
    tokio::time::sleep(STALLED * 5).await;
    let under_way = answers.try_enter(&user("reads"), 5 * PIECE).expect("there is room for what he reads");
    assert!(answers.try_enter(&user("new"), 3 * PIECE).is_none());
    assert!(left_alone.1.is_cancelled() && !reads.1.is_cancelled());
    // What is read at last is no longer stuck, also while the rest of its connection exists.
    let another = connection();
    let _other = another.0.open();
    drop(much);
    much = left(&answers, "leaves", PIECE, &another.0).await;
    tokio::time::sleep(STALLED * 5).await;
    drop(much.1);
    assert!(answers.try_enter(&user("new"), 3 * PIECE).is_none());
    assert!(reads.1.is_cancelled() && !another.1.is_cancelled());
    drop((little, under_way, much.0));
    tokio::time::sleep(STALLED).await;
    assert!(answers.lock().bytes == 0 && answers.lock().users.is_empty());
}

/// A client that reads a piece at intervals, for as long as it gets some: HTTP/1, or HTTP/2.
fn reads(mut body: HttpBody, pause: Duration) -> tokio::task::JoinHandle<bool> {
    tokio::spawn(async move {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
            tokio::time::sleep(pause).await;
        }
        true
    })
}

#[tokio::test(start_paused = true)]
async fn what_is_read_too_slowly_gives_way_when_its_room_is_wanted() {
    const MUCH: usize = 1000 * PIECE;
    let limits = Limits { answers: MUCH, answers_of_one: MUCH / 2, queue: 1, ..Limits::default() };
    for of in [Patience::new, Patience::of_http1] {
        let answers = Answers::new(&limits);
        let begin = |name: &str, bytes: usize| {
            let end = CancellationToken::new();
            let room = Arc::new(answers.try_enter(&user(name), bytes).unwrap());
            let patience = of(STALLED, end.clone());
            let other = patience.open();
            (sent(reply::full(vec![b'x'; bytes]), Some(room), Some(patience)), end, other)
        };
        let (much, end, _other) = begin("slow", MUCH * 2);
        let much = reads(much, STALLED / 4);
        // A client that reads a piece a second keeps up, and gets the rest of the room.
        let (fast, fast_end, _another) = begin("fast", MUCH / 4);
        let fast = reads(fast, Duration::from_millis(900));
        tokio::time::sleep(STALLED / 2).await;
        assert!(answers.enter(&user("new"), PIECE).await.is_err(), "it is not under way for long");
        tokio::time::sleep(STALLED / 12).await;
        let begun = Instant::now();
        drop(answers.enter(&user("new"), PIECE).await.expect("who waits has it as soon as it is slow"));
        assert!(begun.elapsed() <= STALLED / 4);
        assert!(!much.await.unwrap() && !fast.is_finished() && !fast_end.is_cancelled());
        let by_kernel = of(STALLED, CancellationToken::new()).by_kernel;
        assert_eq!(end.is_cancelled(), by_kernel, "a connection of HTTP/2 goes on without it");
        assert!(fast.await.unwrap() && answers.lock().bytes == 0 && answers.lock().users.is_empty());

        // On a slow link everything arrives while nobody needs the room, and a fast one is not slow because of its past.
        let (slow, end, _other) = begin("slow", 48 * PIECE);
        let slow = reads(slow, Duration::from_secs(2));
        tokio::time::sleep(STALLED + Duration::from_secs(1)).await;
        assert_eq!(answers.lock().users["slow"].left, 48 * PIECE);
        drop(answers.try_enter(&user("new"), PIECE).expect("there is room beside it"));
        assert!(slow.await.unwrap() && !end.is_cancelled() && answers.lock().bytes == 0);
        let (mut read, end, _other) = begin("slow", 400 * PIECE);
        read.frame().await.unwrap().unwrap();
        tokio::time::sleep(STALLED - Duration::from_secs(1)).await;
        read.frame().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(answers.lock().users["slow"].left, 400 * PIECE);
        let read = reads(read, Duration::from_millis(500));
        tokio::time::sleep(STALLED).await;
        assert_eq!(answers.lock().users["slow"].left, 0);
        assert!(answers.try_enter(&user("new"), MUCH * 2).is_none() && read.await.unwrap() && !end.is_cancelled());
        tokio::time::sleep(STALLED).await;
        assert!(answers.lock().bytes == 0 && answers.lock().users.is_empty());
    }
}

/// A watch's backlog counts for its user, and ends with it.
#[tokio::test(start_paused = true)]
async fn what_is_told_bit_by_bit_and_read_too_slowly_gives_way_too() {
    let limits = Limits { answers: 100 * PIECE, answers_of_one: 50 * PIECE, queue: 1, ..Limits::default() };
    for of in [Patience::new, Patience::of_http1] {
        let (answers, end) = (Answers::new(&limits), CancellationToken::new());
        let behind = answers.charged(&user("slow"), vec![b'x'; 50 * PIECE].into()).unwrap();
        let news = futures::stream::repeat_with(move || {
            let _behind = &behind;
            Ok::<_, BodyError>(Frame::data(Bytes::from_static(&[b'x'; 100])))
        });
        let room = Some(Arc::new(answers.none_yet(&user("slow"))));
        let patience = of(STALLED, end.clone());
        let by_kernel = patience.by_kernel;
        let read = reads(sent(http_body_util::StreamBody::new(news).boxed_unsync(), room, Some(patience)), STALLED / 4);
        tokio::time::sleep(STALLED / 2).await;
        assert!(answers.enter(&user("new"), 51 * PIECE).await.is_err(), "it is not under way for long");
        tokio::time::sleep(STALLED / 12).await;
        drop(answers.enter(&user("new"), 51 * PIECE).await.expect("who waits has it as soon as it is slow"));
        assert!(!read.await.unwrap());
        assert_eq!(end.is_cancelled(), by_kernel);
    }
}

/// Where the kernel cuts off what stands still, nothing else does; a complete response leaves the connection alone.
#[tokio::test(start_paused = true)]
async fn over_http1_what_stands_still_has_its_time() {
    let (answers, end) = (answers(), CancellationToken::new());
    let patience = Patience::of_http1(STALLED, end.clone());
    let (mut long, piece) = left(&answers, "a", PIECE + 100, &patience).await;
    tokio::time::sleep(STALLED * 10).await;
    assert!(long.frame().await.unwrap().is_ok() && answers.lock().bytes == PIECE + 100);
    drop(long);
    tokio::time::sleep(STALLED * 10).await;
    assert!(!end.is_cancelled());
    // What is handed on is ended too when room is needed.
    assert!(answers.try_enter(&user("b"), answers.most).is_none() && end.is_cancelled());
    drop(piece);
    assert!(answers.lock().bytes == 0 && answers.lock().users.is_empty());
}
