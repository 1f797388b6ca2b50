//! The first message of a TLS handshake (ClientHello), read completely before it is processed.
//!
//! A client may split it into as many records as it has bytes, each in a packet of its own, and reassembly inspects everything
//! received each time. Here that is only a few lengths, and the complete message is then handed on at once.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The longest message that is accepted, and its most records. (Common clients send at most 2 KiB in one record.)
const LONGEST: usize = 16 << 10;
const RECORDS: usize = 32;
/// How much is read at once.
const PIECE: usize = 4 << 10;

/// The header lengths of a record and of a message: RFC 8446, 5.1 and 4.
const HEADER: usize = 5;
const HANDSHAKE: u8 = 22;
const MESSAGE: usize = 4;
const CLIENT_HELLO: u8 = 1;

/// A stream whose beginning has been read.
pub(super) struct Begun<S> {
    read: Vec<u8>,
    taken: usize,
    stream: S,
}

/// Reads the message; fails if it is invalid or too long.
pub(super) async fn read<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<Begun<S>> {
    let mut read = Vec::with_capacity(PIECE);
    while !is_whole(&read)? {
        if (&mut stream).take(PIECE as u64).read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Begun { read, taken: 0, stream })
}

/// Whether the message is complete.
fn is_whole(mut read: &[u8]) -> io::Result<bool> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    // The message header, collected from the records so far.
    let mut message = [0; MESSAGE];
    let mut have = 0;
    for _ in 0..RECORDS {
        if read.first().is_some_and(|kind| *kind != HANDSHAKE) {
            return refused("it does not begin with a handshake");
        }
        let Some((header, rest)) = read.split_at_checked(HEADER) else { return Ok(false) };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 {
            return refused("a record of the handshake is empty");
        }
        let part = &rest[..length.min(rest.len())];
        for (to, from) in message.iter_mut().skip(have).zip(part) {
            *to = *from;
        }
        have += part.len();
        if have > 0 && message[0] != CLIENT_HELLO {
            return refused("it does not begin with a ClientHello");
        }
        if have >= MESSAGE {
            let wanted = MESSAGE + u32::from_be_bytes([0, message[1], message[2], message[3]]) as usize;
            match wanted {
                _ if wanted > LONGEST => return refused("its ClientHello is too long"),
                _ if have >= wanted => return Ok(true),
                _ => {}
            }
        }
        if part.len() < length {
            return Ok(false);
        }
        read = &rest[length..];
    }
    refused("its ClientHello is in too many records")
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Begun { read, taken, stream } = &mut *self;
        let left = &read[*taken..];
        if left.is_empty() {
            return Pin::new(stream).poll_read(cx, buf);
        }
        let part = &left[..left.len().min(buf.remaining())];
        buf.put_slice(part);
        *taken += part.len();
        if *taken == read.len() {
            (*read, *taken) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
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
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// A message of this length, in records of this length.
    fn hello(length: usize, of_record: usize) -> Vec<u8> {
        let mut message = vec![7; length];
        message[..MESSAGE].copy_from_slice(&((length - MESSAGE) as u32 | 1 << 24).to_be_bytes());
        let record = |part: &[u8]| [&[HANDSHAKE, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat();
        message.chunks(of_record).flat_map(record).collect()
    }

    async fn begun(sent: &[u8]) -> io::Result<Begun<&[u8]>> {
        read(sent).await
    }

    #[tokio::test]
    async fn it_is_whole_in_however_many_pieces_it_comes_and_nothing_is_lost() {
        let sent = [hello(500, 20), b"and more".to_vec()].concat();
        let (mut client, server) = tokio::io::duplex(1);
        let all = sent.clone();
        tokio::spawn(async move { client.write_all(&all).await });
        let mut received = Vec::new();
        read(server).await.unwrap().read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
        for end in 0..hello(500, 20).len() {
            assert!(!is_whole(&sent[..end]).unwrap(), "{end}");
        }
        // Its own length may be split as well.
        assert!(begun(&hello(32, 1)).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_too_long_or_in_too_many_records_or_something_else_is_refused() {
        assert!(begun(&hello(LONGEST, LONGEST)).await.is_ok());
        for (sent, why) in [
            (hello(LONGEST + 1, LONGEST)[..HEADER + MESSAGE].to_vec(), "too long"),
            (hello(33, 1), "too many records"),
            ([&[HANDSHAKE, 3, 1, 0, 0][..], &hello(32, 32)].concat(), "is empty"),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "begin with a handshake"),
            (vec![HANDSHAKE, 3, 1, 0, 9, 2], "begin with a ClientHello"),
            (hello(100, 100)[..50].to_vec(), "unexpected end of file"),
        ] {
            let refused = begun(&sent).await.map(drop).unwrap_err().to_string();
            assert!(refused.contains(why), "{why}: {refused}");
        }
    }
}
