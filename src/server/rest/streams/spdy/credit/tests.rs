//! Credit against a client that reads like Go's spdystream: one loop, five workers, queues of 50 frames.

use std::collections::VecDeque;

use super::*;

/// What is queued for a worker.
#[derive(Clone, Copy, PartialEq)]
enum Waits {
    Bytes(u32),
    Ping(u32),
}

#[derive(Default)]
struct Client {
    queues: [VecDeque<Waits>; WORKERS],
    turn: usize,
    most: usize,
}

impl Client {
    fn bytes(&mut self, stream: u32) {
        self.put(stream as usize % WORKERS, Waits::Bytes(stream));
    }
    fn pings(&mut self, ids: Vec<u32>) {
        for id in ids {
            self.put(self.turn, Waits::Ping(id));
            self.turn = (self.turn + 1) % WORKERS;
        }
    }
    fn put(&mut self, worker: usize, what: Waits) {
        self.queues[worker].push_back(what);
        self.most = self.most.max(self.queues[worker].len());
    }
    /// All workers read what they can; `stalled` streams are not read. Returns their ping replies, and how many data frames they
    /// read.
    fn reads(&mut self, stalled: &[u32]) -> (Vec<u32>, usize) {
        let (mut answers, mut read) = (Vec::new(), 0);
        for queue in &mut self.queues {
            while let Some(what) = queue.front() {
                match what {
                    Waits::Bytes(stream) if stalled.contains(stream) => break,
                    Waits::Bytes(_) => read += 1,
                    Waits::Ping(id) => answers.push(*id),
                }
                queue.pop_front();
            }
        }
        (answers, read)
    }
}

/// Sends frames on all streams while there is room, for `rounds` rounds; returns how many were read.
fn send(credit: &mut Credit, client: &mut Client, streams: &[u32], stalled: &[u32], rounds: usize) -> usize {
    let mut all = 0;
    for _ in 0..rounds {
        for stream in streams {
            if credit.has_room(*stream) {
                credit.sent(*stream);
                client.bytes(*stream);
                client.pings(credit.round());
            }
        }
        let (answers, read) = client.reads(stalled);
        all += read;
        for id in answers {
            credit.answered(id);
            client.pings(credit.round());
        }
    }
    all
}

#[test]
fn a_stream_that_nobody_reads_never_stops_the_clients_loop() {
    let (mut credit, mut client) = (Credit::default(), Client::default());
    // Data streams of connections as kubectl numbers them; the first one is blocked.
    let read = send(&mut credit, &mut client, &[3, 7, 11], &[3], 10_000);
    assert!(client.most < 50, "{} frames wait for one worker", client.most);
    assert_eq!(read, 20_000, "and the others have never waited");
    // Replies that cannot wait are dropped before they fill the queue.
    for _ in 0..100 {
        if !credit.is_full(3) {
            credit.sent(3);
            client.bytes(3);
        }
    }
    assert!(client.most < 50, "{} frames wait for one worker", client.most);
    // Its reader resumes: everything is read, and it continues like the others.
    let behind = client.queues[3].iter().filter(|waits| matches!(waits, Waits::Bytes(_))).count();
    let read = send(&mut credit, &mut client, &[3, 7, 11], &[], 1000);
    assert!(read > 2900 + behind, "{read}");
    // The same if it blocks again.
    assert_eq!(send(&mut credit, &mut client, &[3, 7, 11], &[3], 1000), 2000);
    assert!(client.most < 50, "{} frames wait for one worker", client.most);
}

#[test]
fn two_that_stand_at_once_leave_the_others_alone() {
    let (mut credit, mut client) = (Credit::default(), Client::default());
    assert_eq!(send(&mut credit, &mut client, &[3, 7, 11, 19], &[3, 7], 5000), 10_000);
    assert!(client.most < 50, "{} frames wait for one worker", client.most);
}

#[test]
fn who_never_answers_a_ping_is_not_waited_for_and_answers_that_are_none_say_nothing() {
    let mut credit = Credit::default();
    while credit.has_room(3) {
        credit.sent(3);
        credit.round();
    }
    for id in [0, 1, 1 << 31, u32::MAX] {
        credit.answered(id);
    }
    assert!(!credit.has_room(3) && credit.has_room(7));
    credit.gives_up();
    assert!(credit.has_room(3));
}

#[tokio::test(start_paused = true)]
async fn replies_that_nobody_has_asked_after_are_asked_after() {
    let (frames, mut outgoing) = mpsc::channel(1024);
    let outlet = Outlet::new(frames, true);
    let client = outlet.clone();
    let answers = tokio::spawn(async move {
        let mut heard = 0;
        while let Some(mut frame) = outgoing.recv().await {
            // A reply or data first, then pings of 12 bytes.
            heard += usize::from(frame.starts_with(b"x"));
            let pings = frame.split_off(usize::from(frame.starts_with(b"x")));
            for ping in pings.chunks(12) {
                client.answered(u32::from_be_bytes(ping[8..].try_into().unwrap())).await.unwrap();
            }
            if heard == 220 {
                return;
            }
        }
    });
    for _ in 0..200 {
        outlet.reply(3, Bytes::from_static(b"x")).await.unwrap();
    }
    let begun = tokio::time::Instant::now();
    for _ in 0..20 {
        outlet.data(3, Bytes::from_static(b"x")).await.unwrap();
    }
    assert!(begun.elapsed() < FIRST, "{:?}", begun.elapsed());
    answers.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_without_pings_waits_for_a_moment_once() {
    let (frames, mut outgoing) = mpsc::channel(4);
    let outlet = Outlet::new(frames, true);
    let drained = tokio::spawn(async move { while outgoing.recv().await.is_some() {} });
    let begun = tokio::time::Instant::now();
    for _ in 0..1000 {
        outlet.data(3, Bytes::from_static(b"x")).await.unwrap();
    }
    assert!((FIRST..2 * FIRST).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    drop(outlet);
    drained.await.unwrap();
}
