//! Memory held by responses.

use tokio::time::Instant;

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
    assert!(answers.try_enter(&polite, 80).is_none() && answers.try_enter(&User::system("root"), 900).is_some());
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

/// Of 300, one user counts for at most 225.
#[test]
fn one_users_answers_never_take_all_of_the_room() {
    let (answers, one, other) = (answers(), user("one"), user("other"));
    let mut huge = answers.try_enter(&one, 1000).expect("one is let through, however large");
    let theirs = answers.try_enter(&other, 75).expect("somebody else finds room");
    assert!(answers.try_enter(&user("third"), 1).is_none() && answers.try_enter(&one, 1).is_none());
    huge.shrink(200);
    assert_eq!(answers.lock().bytes, 275, "what does not count is free first");
    drop(theirs);
    let mut grows = answers.try_enter(&other, 75).unwrap();
    assert!(grows.grow(&other, 25) && !grows.grow(&other, 1), "of all there is no more");
    drop(huge);
    assert!(grows.grow(&other, 1000) && answers.try_enter(&one, 75).is_some() && answers.try_enter(&one, 76).is_none());
    drop(grows);
    assert!(answers.lock().users.is_empty() && answers.lock().bytes == 0);
}
