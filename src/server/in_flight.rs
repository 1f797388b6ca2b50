//! Unanswered JSON-RPC messages of a WebSocket: the library below makes a task of each message, however short, so they are counted,
//! and reading pauses at the limit.
//!
//! Each message is answered by one that is not an event, or is a notification (or a batch of them), which our layer of the library
//! reports (`calls`). So the number of unanswered messages is exact: those read, less answers written and notifications.

use tokio_util::sync::CancellationToken;

use super::frames::Frames;
use super::limits::BodyBytes;

/// The most unanswered messages of one connection, counting each call of a batch: the size of one batch.
pub(super) const MOST: usize = super::rpc::wire::MAX_BATCH as usize;
/// What each counts for on its user's account until it is answered: its task, its call, and an answer without room of its own.
pub(super) const EACH: usize = 4 << 10;
/// The beginning of a subscription's event; an answer has an id there, or is a list.
const EVENT: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":";

/// The account of one connection.
#[derive(Default)]
pub(super) struct InFlight {
    taken: Option<BodyBytes>,
    messages: usize,
    /// Calls of batches, beyond the first of each.
    calls: usize,
}

/// Why reading must wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Too many are unanswered.
    Answers,
    /// Its user has no room.
    Room,
}

impl InFlight {
    /// Starts counting. The token is cancelled when the connection must make room for others, and has to end.
    pub fn start(&mut self, taken: BodyBytes) -> CancellationToken {
        let lost = taken.lost();
        self.taken = Some(taken);
        lost
    }

    /// One more message was read.
    pub fn enter(&mut self) -> Result<(), Wait> {
        if self.messages > 0 && self.messages + self.calls >= MOST {
            return Err(Wait::Answers);
        }
        match self.taken.as_mut().is_none_or(|taken| taken.more(EACH)) {
            true => self.messages += 1,
            false => return Err(Wait::Room),
        }
        Ok(())
    }

    /// One message was answered, or never will be.
    pub fn answered(&mut self) {
        if let Some(left) = self.messages.checked_sub(1) {
            self.messages = left;
            self.taken.iter_mut().for_each(|taken| taken.less(EACH));
        }
    }

    /// Adds the calls of a batch that run one after the other, or removes them.
    pub fn batch(&mut self, calls: usize) {
        self.calls += calls.saturating_sub(1);
    }
    pub fn end_batch(&mut self, calls: usize) {
        self.calls -= calls.saturating_sub(1);
    }
}

/// What is written on the connection: the head of the upgrade response, then frames.
#[derive(Default)]
pub(super) struct Written {
    /// How much of the head's end the last bytes match; `None` after it.
    head: Option<usize>,
    frames: Option<Frames>,
}

impl Written {
    /// How many answers were written with these bytes.
    pub fn answers(&mut self, mut bytes: &[u8]) -> usize {
        const END: &[u8] = b"\r\n\r\n";
        let mut answers = 0;
        while let Some(byte) = bytes.first() {
            let Some(frames) = &mut self.frames else {
                let matched = self.head.unwrap_or(0);
                let matched = if END[matched] == *byte { matched + 1 } else { usize::from(*byte == END[0]) };
                (self.head, bytes) = (Some(matched), &bytes[1..]);
                if matched == END.len() {
                    self.frames = Some(Frames::default());
                }
                continue;
            };
            let (read, frame) = frames.read(bytes);
            bytes = &bytes[read..];
            answers += usize::from(frame.is_some_and(|frame| frame.ends) && !frames.starts_with(EVENT));
        }
        answers
    }

    /// Whether a frame may be written now.
    pub fn is_between(&self) -> bool {
        self.frames.is_some_and(|frames| frames.is_between())
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::{Bodies, Limits};
    use super::*;
    use podwright_api::User;

    #[test]
    fn answers_are_told_from_events_however_they_are_cut() {
        let frame = |text: &str| [&[0x81, text.len() as u8], text.as_bytes()].concat();
        let all = [
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n".to_vec(),
            frame(r#"{"jsonrpc":"2.0","id":1,"result":"method"}"#),
            frame(r#"{"jsonrpc":"2.0","method":"event","params":{"subscription":1,"result":{}}}"#),
            frame(r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#),
            vec![0x8a, 0],
            frame(r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}"#),
            vec![0x88, 2, 3, 232],
        ]
        .concat();
        for piece in [1, 2, 5, 30, all.len()] {
            let mut written = Written::default();
            let answers: usize = all.chunks(piece).map(|bytes| written.answers(bytes)).sum();
            assert_eq!((answers, written.is_between()), (3, true), "{piece}");
        }
    }

    #[test]
    fn so_many_are_unanswered_and_each_counts_for_its_user() {
        let bodies = Bodies::new(&Limits { bodies_of_one: (MOST + 1) * EACH, ..Limits::default() });
        let user = User::new("a", Vec::<String>::new());
        let flight = || {
            let mut flight = InFlight::default();
            flight.start(bodies.of(&user));
            flight
        };
        let (mut one, mut two) = (flight(), flight());
        assert!((0..MOST).all(|_| one.enter().is_ok()));
        assert_eq!(one.enter(), Err(Wait::Answers));
        assert_eq!((two.enter(), two.enter()), (Ok(()), Err(Wait::Room)), "on all his connections");
        one.answered();
        assert_eq!((two.enter(), one.enter()), (Ok(()), Err(Wait::Room)));
        two.answered();
        assert_eq!((one.enter(), one.enter()), (Ok(()), Err(Wait::Answers)));
        drop(one);
        two.batch(MOST);
        assert_eq!(two.enter(), Err(Wait::Answers), "a batch counts by its calls");
        two.end_batch(MOST);
        assert_eq!(two.enter(), Ok(()));
        drop(two);
        assert!(bodies.of(&user).more((MOST + 1) * EACH), "nothing is left behind");
    }
}
