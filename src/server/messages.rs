//! What a WebSocket's client has begun to send: a message that is not finished lies in memory, so its bytes are on its user's
//! account, and its time is bounded as a body's is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::limits::Taken;

/// The account of one WebSocket's messages.
pub(super) struct Messages {
    frames: Frames,
    taken: Taken,
    /// What of it is for the message that is being read.
    counted: usize,
    /// The longest message that is taken in; a longer one is not kept.
    most: usize,
    /// A message has ended; it is worked on until more is read.
    ended: bool,
    /// It is not known where the frames begin.
    adrift: bool,
    patience: Duration,
    /// How long the client may still take for its message, and since when it is waited for.
    left: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Messages {
    pub fn new(taken: Taken, most: usize, patience: Duration) -> Messages {
        let (frames, counted, ended, adrift, waiting) = Default::default();
        Messages { frames, taken, counted, most, ended, adrift, patience, left: patience, waiting }
    }

    /// Counts the longest message for as long as it goes on: where frames begin is not known.
    pub fn adrift(&mut self) -> io::Result<()> {
        self.adrift = true;
        self.count(self.most)
    }

    /// More is to be read; an error: its user has no room for what has been begun, or it has given way.
    pub fn went_on(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pause();
        if self.adrift || bytes.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.ended) {
            self.clear();
        }
        self.ended = self.frames.read(bytes);
        let begun = usize::try_from(self.frames.message).unwrap_or(usize::MAX).min(self.most);
        if self.ended && begun > 0 {
            self.ended = false;
            self.clear();
        }
        if begun > self.counted { self.count(begun) } else { Ok(()) }
    }

    /// It is not read: that is not its client's fault.
    pub fn pause(&mut self) {
        if let Some((since, _)) = self.waiting.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }

    /// Resolves when it has taken too long, or has given way. To be asked while nothing comes.
    pub fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.ended) {
            self.clear();
        }
        if self.counted == 0 {
            return Poll::Pending;
        }
        if self.taken.poll_lost(context).is_ready() {
            return Poll::Ready(());
        }
        if self.adrift {
            return Poll::Pending;
        }
        let left = self.left;
        let (_, over) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
        over.as_mut().poll(context)
    }

    fn count(&mut self, bytes: usize) -> io::Result<()> {
        if !self.taken.more(bytes - self.counted) {
            tracing::debug!("a WebSocket is cut off: its user has too much in memory");
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.counted = bytes;
        Ok(())
    }

    fn clear(&mut self) {
        self.taken.clear();
        (self.counted, self.left, self.waiting) = (0, self.patience, None);
    }
}

/// Where a client is in its frames (RFC 6455, 5.2).
#[derive(Default)]
struct Frames {
    head: [u8; 14],
    of_head: usize,
    /// How much of the frame's payload is to come, and whether its message ends with it.
    left: u64,
    last: bool,
    /// What the frames of the message that is not finished are to carry.
    message: u64,
}

impl Frames {
    /// Takes what has come; whether a message has ended by it.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while let Some(byte) = bytes.first() {
            if self.left > 0 {
                let come = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= come as u64;
                bytes = &bytes[come..];
            } else {
                self.head[self.of_head] = *byte;
                self.of_head += 1;
                bytes = &bytes[1..];
                let Some(length) = self.length() else { continue };
                self.of_head = 0;
                self.left = length;
                let is_control = self.head[0] & 0x08 != 0;
                self.last = !is_control && self.head[0] & 0x80 != 0;
                self.message = self.message.saturating_add(if is_control { 0 } else { length });
            }
            if self.left == 0 && std::mem::take(&mut self.last) {
                self.message = 0;
                ended = true;
            }
        }
        ended
    }

    /// The length of the payload, once the head is whole.
    fn length(&self) -> Option<u64> {
        let [_, second, rest @ ..] = &self.head;
        let (short, mask) = (second & 0x7f, if second & 0x80 == 0 { 0 } else { 4 });
        let more = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let is_whole = self.of_head >= 2 + more + mask;
        let long = rest[..more].iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        is_whole.then_some(if more == 0 { short.into() } else { long })
    }
}

/// A stream that keeps the account.
pub(super) struct Followed<S> {
    stream: S,
    messages: Messages,
}

impl<S> Followed<S> {
    pub fn new(stream: S, messages: Messages) -> Followed<S> {
        Followed { stream, messages }
    }

    /// Cancelled when the connection has given way to others: who holds its messages and reads no more has to let them go.
    pub fn lost(&self) -> CancellationToken {
        self.messages.taken.lost()
    }
}

/// Reads from a stream whose messages are followed.
pub(super) fn poll_read<S: AsyncRead + Unpin>(
    stream: &mut S,
    messages: &mut Messages,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let before = buf.filled().len();
    let polled = Pin::new(stream).poll_read(cx, buf);
    match polled {
        Poll::Pending => messages.poll_over(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
        Poll::Ready(Ok(())) => Poll::Ready(messages.went_on(&buf.filled()[before..]).inspect_err(|_| {
            buf.set_filled(before);
        })),
        failed => failed,
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Followed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        poll_read(&mut this.stream, &mut this.messages, cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Followed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::{Bodies, Limits};
    use super::*;
    use crate::api::User;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PATIENCE: Duration = Duration::from_secs(60);
    const MOST: usize = 1000;

    fn frame(first: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![first];
        match length {
            0..126 => frame.push(0x80 | length as u8),
            126..0x10000 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([7; 4]);
        frame
    }

    fn whole(first: u8, length: usize) -> Vec<u8> {
        let mut bytes = frame(first, length);
        bytes.resize(bytes.len() + length, b'x');
        bytes
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let all = [
            whole(0x81, 5),
            whole(0x82, 200),
            whole(0x01, 70_000),
            // Between the frames of a message there may be a ping.
            whole(0x89, 100),
            whole(0x00, 0),
            whole(0x80, 3),
        ]
        .concat();
        for piece in [1, 2, 3, 7, 1000, all.len()] {
            let (mut frames, mut longest) = (Frames::default(), 0);
            let mut ended = 0;
            for bytes in all.chunks(piece) {
                ended += usize::from(frames.read(bytes));
                longest = longest.max(frames.message);
            }
            assert_eq!((frames.message, frames.left, frames.of_head), (0, 0, 0), "{piece}");
            if piece < 5 {
                assert_eq!((ended, longest), (3, 70_003), "{piece}");
            }
        }
        let mut frames = Frames::default();
        assert!(!frames.read(&[0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4]));
        assert_eq!(frames.message, u64::MAX);
    }

    fn bodies() -> Arc<Bodies> {
        Bodies::new(&Limits { bodies_of_one: 1500, ..Limits::default() })
    }

    fn free(bodies: &Arc<Bodies>, user: &User) -> usize {
        (0..=1500).rev().find(|bytes| bodies.of(user).more(*bytes)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_begun_counts_by_its_head_and_until_it_is_worked_on() {
        let (bodies, user) = (bodies(), User::new("a", Vec::<String>::new()));
        let (ours, mut client) = tokio::io::duplex(10_000);
        let mut stream = Followed::new(ours, Messages::new(bodies.of(&user), MOST, PATIENCE));
        let mut buffer = [0; 10_000];
        client.write_all(&frame(0x81, 800)).await.unwrap();
        let read = stream.read(&mut buffer).await.unwrap();
        assert_eq!((read, free(&bodies, &user)), (8, 700), "memory for it is made at once");
        client.write_all(&[b'x'; 800]).await.unwrap();
        let _ = stream.read(&mut buffer).await.unwrap();
        assert_eq!(free(&bodies, &user), 700, "it is worked on");
        let mut more = std::pin::pin!(stream.read(&mut buffer));
        assert!(futures::poll!(more.as_mut()).is_pending());
        assert_eq!(free(&bodies, &user), 1500);
        client.write_all(&whole(0x82, 300)).await.unwrap();
        assert!(more.await.is_ok() && free(&bodies, &user) == 1500, "what comes at once is nowhere kept");
        client.write_all(&frame(0x82, 1 << 30)).await.unwrap();
        let _ = stream.read(&mut buffer).await.unwrap();
        assert_eq!(free(&bodies, &user), 500, "more than the longest is not kept");
        let (ours, mut client) = tokio::io::duplex(10_000);
        let mut second = Followed::new(ours, Messages::new(bodies.of(&user), MOST, PATIENCE));
        client.write_all(&frame(0x82, 501)).await.unwrap();
        assert!(second.read(&mut buffer).await.is_err(), "he has no more room");
        drop((stream, second));
        assert_eq!(free(&bodies, &user), 1500);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_not_finished_in_time_ends_its_connection() {
        let (bodies, user) = (bodies(), User::new("a", Vec::<String>::new()));
        for (trickle, read_late) in [(false, false), (true, false), (false, true)] {
            let (ours, mut client) = tokio::io::duplex(10_000);
            let mut stream = Followed::new(ours, Messages::new(bodies.of(&user), MOST, PATIENCE));
            let mut buffer = [0; 100];
            client.write_all(&frame(0x81, 800)).await.unwrap();
            let _ = stream.read(&mut buffer).await.unwrap();
            let begun = Instant::now();
            if read_late {
                // As long as nobody reads, nobody waits for the client.
                tokio::time::sleep(PATIENCE * 3).await;
                client.write_all(&[b'x'; 800]).await.unwrap();
                for _ in 0..8 {
                    stream.read_exact(&mut buffer).await.unwrap();
                }
                assert!(tokio::time::timeout(PATIENCE * 3, stream.read(&mut buffer)).await.is_err(), "it may be idle");
                continue;
            }
            let sender = tokio::spawn(async move {
                while trickle && client.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(7)).await;
                }
                tokio::time::sleep(PATIENCE * 3).await;
            });
            while stream.read(&mut buffer).await.is_ok() {}
            assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
            sender.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_frames_begin_at_an_unknown_place_the_longest_counts() {
        let (bodies, user) = (bodies(), User::new("a", Vec::<String>::new()));
        let mut messages = Messages::new(bodies.of(&user), MOST, PATIENCE);
        messages.adrift().unwrap();
        messages.went_on(&whole(0x81, 5)).unwrap();
        assert_eq!(free(&bodies, &user), 500);
        assert!(Messages::new(bodies.of(&user), MOST, PATIENCE).adrift().is_err());
    }
}
