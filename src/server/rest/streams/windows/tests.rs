//! Windows against clients that ignore the readers, with a paused clock.

use super::*;

const STALL: Duration = Duration::from_secs(2);
/// The size that clients send.
const PIECE: usize = 32 << 10;

fn piece() -> Bytes {
    Bytes::from_static(&[0; PIECE])
}

/// One stream that is not read and another one in use. `behind`: the data ahead of each message of the other one, in the client and
/// in transit. Returns how long each of those took until the first was reset, and when that was.
async fn beside_a_flood(windows: &mut Windows, behind: usize) -> (Vec<Duration>, Duration) {
    let (_deaf, mut used) = (windows.open(3, false), windows.open(7, false));
    let (begun, mut waits) = (Instant::now(), Vec::new());
    loop {
        let asked = Instant::now();
        for _ in 0..behind / PIECE {
            if let Some(culprit) = windows.hand_over(3, &piece(), &mut None).await {
                assert_eq!(culprit, 3);
                return (waits, begun.elapsed());
            }
        }
        assert_eq!(windows.hand_over(7, &Bytes::from_static(b"ask"), &mut None).await, None);
        assert_eq!(used.read().await.unwrap(), "ask");
        waits.push(asked.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_behind_a_stream_that_nobody_reads_is_reached_at_once() {
    let mut windows = Windows::new(Some(STALL));
    let (waits, until) = beside_a_flood(&mut windows, 2 << 20).await;
    let longest = waits.iter().max().unwrap();
    assert!(*longest < STALL / 10, "{waits:?}");
    assert!(waits.len() > 10 && (STALL..STALL + STALL / 10).contains(&until), "{} after {until:?}", waits.len());
    assert_eq!(windows.len(), 1, "the other one goes on");
}

#[tokio::test(start_paused = true)]
async fn all_that_waits_is_bounded_and_one_that_reads_is_never_reset() {
    let mut windows = Windows::new(Some(STALL));
    let (mut slow, _other) = (windows.open(3, false), windows.open(7, false));
    let (begun, mut sent, mut taken) = (Instant::now(), 0, 0);
    let mut next = begun + STALL / 2;
    while begun.elapsed() < 20 * STALL {
        if let Ok(culprit) = tokio::time::timeout_at(next, windows.hand_over(3, &piece(), &mut None)).await {
            assert_eq!(culprit, None);
            sent += PIECE;
        }
        // It is read occasionally.
        if Instant::now() >= next {
            slow.read().await.unwrap();
            (taken, next) = (taken + PIECE, next + STALL / 2);
        }
        assert!(sent - taken <= OVERDRAFT + WINDOW + PIECE, "{sent} of which {taken}");
    }
    assert!(sent > OVERDRAFT && taken > 10 * PIECE, "{sent} of which {taken}");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_alone_is_held_up_by_itself() {
    let mut windows = Windows::new(Some(STALL));
    let (_deaf, begun, mut sent) = (windows.open(3, false), Instant::now(), 0);
    while windows.hand_over(3, &piece(), &mut None).await.is_none() {
        sent += PIECE;
        assert!(sent <= WINDOW, "nothing is kept for it");
    }
    assert!((STALL * ALONE..STALL * (ALONE + 1)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// Finished streams can hold all of the budget. They are reset, not the one that is read.
#[tokio::test(start_paused = true)]
async fn those_that_are_finished_and_never_read_go_before_others() {
    let mut windows = Windows::new(Some(STALL));
    let mut used = windows.open(1, false);
    for id in 1..=(BUDGET / WINDOW) as u32 {
        let deaf = windows.open(2 * id + 1, false);
        assert_eq!(windows.hand_over(2 * id + 1, &Bytes::from_static(&[0; WINDOW]), &mut None).await, None);
        windows.finish(2 * id + 1);
        tokio::spawn(async move { deaf.reset().cancelled().await });
    }
    // As in a port forward with another open connection.
    let _another = windows.open(101, false);
    let begun = Instant::now();
    let culprit = loop {
        if let Some(culprit) = windows.hand_over(1, &piece(), &mut None).await {
            break culprit;
        }
        used.read().await.unwrap();
        assert!(begun.elapsed() < 2 * STALL, "nobody goes");
    };
    assert_ne!(culprit, 1);
}
