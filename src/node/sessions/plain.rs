//! A session's frames as a plain byte stream, for protocols on top of it.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::Frames;
use podwright_api::{
    Status,
    stream::{CLOSE, Frame, STDIN, STDOUT},
};

const BUFFER: usize = 64 << 10;

/// Runs `serve` on STDIN and STDOUT, until it ends or the caller is gone.
///
/// # Errors
///
/// None: a caller whose stream breaks is gone.
pub async fn carry<F: Future<Output = ()>>(
    frames: &mut Frames,
    serve: impl FnOnce(DuplexStream) -> F,
) -> Result<(), Status> {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (mut from, mut to) = tokio::io::split(ours);
    let (mut sink, mut source) = frames.split();
    let down = async {
        while let Some(Ok(frame)) = source.next().await {
            match frame.channel {
                STDIN if to.write_all(&frame.payload).await.is_err() => break,
                CLOSE if frame.payload.first() == Some(&STDIN) => break,
                _ => {}
            }
        }
    };
    let up = async {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let payload = Bytes::copy_from_slice(&buffer[..count]);
            if sink.send(Frame { channel: STDOUT, payload }).await.is_err() {
                return;
            }
        }
    };
    let serve = serve(theirs);
    tokio::pin!(serve, up);
    tokio::select! {
        // The caller has finished or is gone: no response is expected.
        () = down => {}
        () = &mut up => {}
        // Output already written is still sent.
        () = &mut serve => up.await,
    }
    Ok(())
}
