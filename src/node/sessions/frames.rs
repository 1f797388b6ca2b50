//! The frames of a session's stream.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use podwright_api::{
    Status,
    stream::{Frame, FrameCodec, MAX_PAYLOAD},
};
use podwright_client::Stream;
use tokio_util::codec::Framed;

/// A session's stream.
pub type Frames = Framed<Stream, FrameCodec>;

/// Sends bytes in as many frames as needed; waits while the other end is slow.
///
/// # Errors
///
/// The other end is closed.
pub async fn send(frames: &mut Frames, channel: u8, mut bytes: Bytes) -> Result<(), Status> {
    while !bytes.is_empty() {
        let payload = bytes.split_to(bytes.len().min(MAX_PAYLOAD));
        frames.send(Frame { channel, payload }).await.map_err(Status::internal)?;
    }
    Ok(())
}

/// The next frame; `None` when the other end is closed.
pub async fn receive(frames: &mut futures::stream::SplitStream<Frames>) -> Option<Frame> {
    frames.next().await?.ok()
}
