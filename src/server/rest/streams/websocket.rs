//! WebSockets: the handshake, and a WebSocket as a plain stream of bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use hyper::header::{self, HeaderMap};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{BUFFER, LAST_WORDS, Upgraded, switching};
use crate::messages::{Followed, Messages};
use crate::rest::reply::Reply;
use podwright_api::Status;

/// The largest accepted message.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// Its messages are charged to an account.
pub(crate) type Socket<S = Upgraded> = WebSocketStream<Followed<S>>;

/// The framing of channel messages, by subprotocol: the first byte is the channel's number; or its digit, followed by base64 text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    pub base64: bool,
}

impl Framing {
    pub fn of(protocol: &str) -> Framing {
        Framing { base64: protocol.split('.').any(|word| word == "base64") }
    }

    /// A message of one channel.
    pub fn message(self, channel: u8, payload: &[u8]) -> Message {
        if self.base64 {
            return Message::text(format!("{}{}", char::from(b'0'.wrapping_add(channel)), STANDARD.encode(payload)));
        }
        let mut message = BytesMut::with_capacity(payload.len() + 1);
        message.put_u8(channel);
        message.put_slice(payload);
        Message::Binary(message.freeze())
    }

    /// A message without a channel.
    pub fn whole(self, payload: Bytes) -> Message {
        if self.base64 { Message::text(STANDARD.encode(payload)) } else { Message::Binary(payload) }
    }

    /// The channel and payload; `None` if malformed.
    pub fn split(self, mut message: Bytes) -> Option<(u8, Bytes)> {
        if message.is_empty() {
            return None;
        }
        let first = message.split_to(1)[0];
        match self.base64 {
            true => Some((first.checked_sub(b'0')?, STANDARD.decode(&message).ok()?.into())),
            false => Some((first, message)),
        }
    }
}

/// The response that accepts a WebSocket with this subprotocol, "" for none.
pub fn accept(headers: &HeaderMap, protocol: &str) -> Result<Reply, Status> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let key = text(header::SEC_WEBSOCKET_KEY.as_str());
    if text(header::SEC_WEBSOCKET_VERSION.as_str()) != "13" || key.is_empty() {
        return Err(Status::bad_request("a WebSocket of version 13 with a key is needed"));
    }
    let accept = derive_accept_key(key.as_bytes());
    let mut headers = vec![("sec-websocket-accept", accept.as_str())];
    if !protocol.is_empty() {
        headers.push(("sec-websocket-protocol", protocol));
    }
    Ok(switching("websocket", &headers))
}

/// The server's side of an upgraded connection.
pub(crate) async fn socket<S: AsyncRead + AsyncWrite + Unpin>(upgraded: S, messages: Messages) -> Socket<S> {
    let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(Followed::new(upgraded, messages), Role::Server, Some(config)).await
}

/// The bytes of a message; `None` for those that carry none, an error at the socket's end. They are a copy: the message is a slice of
/// the buffer that it was read into, and keeps that whole.
pub fn payload(message: Option<Result<Message, Error>>) -> Result<Option<Bytes>, ()> {
    match message {
        Some(Ok(Message::Binary(bytes))) => Ok(Some(Bytes::copy_from_slice(&bytes))),
        Some(Ok(Message::Text(text))) => Ok(Some(Bytes::copy_from_slice(text.as_bytes()))),
        Some(Ok(Message::Close(_))) | None => Err(()),
        Some(Ok(_)) => Ok(None),
        Some(Err(why)) => {
            tracing::debug!("a WebSocket broke: {why}");
            Err(())
        }
    }
}

/// Closes a socket normally.
pub async fn close(sink: &mut (impl futures::Sink<Message, Error = Error> + Unpin)) {
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    // The client may be gone.
    let _ = sink.send(Message::Close(Some(frame))).await;
    let _ = sink.close().await;
}

/// Treats the binary messages of a socket as one byte stream.
pub(crate) fn tunnel<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(socket: Socket<S>) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let lost = socket.get_ref().lost();
    tokio::spawn(async move {
        let (mut sink, mut source) = socket.split();
        let (mut from, mut to) = tokio::io::split(ours);
        let up = async {
            while let Ok(bytes) = payload(source.next().await) {
                if to.write_all(&bytes.unwrap_or_default()).await.is_err() {
                    break;
                }
            }
            let _ = to.shutdown().await;
        };
        let down = async {
            let mut buffer = vec![0; BUFFER];
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                if sink.send(Message::Binary(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
                    return;
                }
            }
            close(&mut sink).await;
        };
        let whole = async {
            tokio::pin!(up, down);
            tokio::select! {
                () = &mut up => down.await,
                // Best effort.
                () = &mut down => drop(tokio::time::timeout(LAST_WORDS, up).await),
            }
        };
        tokio::select! {
            () = whole => {}
            () = lost.cancelled() => {}
        }
    });
    theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_nothing_of_the_buffer_that_it_was_read_into() {
        let mut buffer = BytesMut::with_capacity(1 << 16);
        buffer.put_slice(b"\0x and what came behind it");
        let message = Message::Binary(buffer.split_to(2).freeze());
        let kept = payload(Some(Ok(message))).unwrap().unwrap();
        assert_eq!(Framing::default().split(kept.clone()), Some((0, Bytes::from_static(b"x"))));
        buffer.clear();
        assert!(buffer.try_reclaim(1 << 16), "the whole buffer is free again, while the message is there");
    }
}
