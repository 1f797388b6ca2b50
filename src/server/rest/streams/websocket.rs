//! WebSockets: the handshake, and a WebSocket as a plain stream of bytes.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use hyper::header::{self, HeaderMap};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{BUFFER, Upgraded, switching};
use crate::api::Status;
use crate::server::rest::reply::Reply;

/// The largest message that is taken in.
const MAX_MESSAGE: usize = 1 << 20;

pub type Socket<S = Upgraded> = WebSocketStream<S>;

/// The answer that opens a WebSocket with this subprotocol, "" for none.
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

/// The server's end of an upgraded connection.
pub async fn socket<S: AsyncRead + AsyncWrite + Unpin>(upgraded: S) -> Socket<S> {
    let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(upgraded, Role::Server, Some(config)).await
}

/// The bytes of a message; `None` for those that carry none, an error at the socket's end.
pub fn payload(message: Option<Result<Message, Error>>) -> Result<Option<Bytes>, ()> {
    match message {
        Some(Ok(Message::Binary(bytes))) => Ok(Some(bytes)),
        Some(Ok(Message::Text(text))) => Ok(Some(text.into())),
        Some(Ok(Message::Close(_))) | None => Err(()),
        Some(Ok(_)) => Ok(None),
        Some(Err(why)) => {
            tracing::debug!("a WebSocket broke: {why}");
            Err(())
        }
    }
}

/// Ends a socket as one that has done its work.
pub async fn close(sink: &mut (impl futures::Sink<Message, Error = Error> + Unpin)) {
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    // Who has gone need not be told.
    let _ = sink.send(Message::Close(Some(frame))).await;
    let _ = sink.close().await;
}

/// A socket whose binary messages are the pieces of one stream of bytes, as that stream.
pub fn tunnel(socket: Socket) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
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
        tokio::join!(up, down);
    });
    theirs
}
