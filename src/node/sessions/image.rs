//! Operations on the node's images. Archives arrive on STDIN; progress and results are JSON lines on STDOUT.

use std::{io, sync::Arc};

use bytes::{Buf, Bytes};
use futures::{SinkExt, StreamExt};
use podwright_runtime::image::{Auth, Grant, Image, ImageError, ImportOptions, Progress, PullEvent};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Frames, Machine, receive};
use crate::machine::images::layers_in_use;
use podwright_api::{
    Status,
    rpc::ImageOptions,
    stream::{CLOSE, Frame, STDIN, STDOUT},
};

/// Frames of an archive buffered for the disk.
const BACKLOG: usize = 16;

/// Serves one `image` session.
///
/// # Errors
///
/// As of the store, or the caller's stream broke.
pub async fn serve(machine: &Machine, frames: &mut Frames, options: ImageOptions) -> Result<(), Status> {
    let store = machine.images.clone();
    let (sink, source) = super::exec::take(frames).split();
    let mut sink = sink;
    let (lines, mut news) = mpsc::unbounded_channel::<Value>();
    let work = async {
        match options {
            ImageOptions::Import { name } => {
                let tar = archive(source);
                let import = move || store.import(tar, &name, &ImportOptions::default());
                let image = blocking(import).await?;
                tell(&lines, &described(&image));
            }
            ImageOptions::Load => {
                let archive = archive(source);
                for image in blocking(move || store.load(archive, None)).await? {
                    tell(&lines, &described(&image));
                }
            }
            ImageOptions::Pull { name, username, password } => {
                let auth = match (username, password) {
                    (Some(username), Some(password)) => Auth::Basic { username, password },
                    _ => Auth::Anonymous,
                };
                let progress = lines.clone();
                let progress: Progress = Arc::new(move |event| tell(&progress, &progress_line(event)));
                let image = store.pull(&name, &auth, Some(progress)).await.map_err(refused)?;
                // What the operator pulls by hand is available to all Pods, as what is imported.
                let granted = image.clone();
                blocking(move || store.grant(&granted, &name, &Grant::Anyone)).await?;
                tell(&lines, &described(&image));
            }
            ImageOptions::List => {
                for info in blocking(move || store.list()).await? {
                    tell(&lines, &info);
                }
            }
            ImageOptions::Remove { name } => {
                let _turn = machine.image_gc.turn().await;
                let in_use = layers_in_use(&machine.runtime, &machine.images).await;
                let removed = blocking(move || store.remove(&name, &in_use)).await?;
                machine.image_gc.may_be(!removed.in_use.is_empty());
                tell(&lines, &removed);
            }
        }
        drop(lines);
        Ok(())
    };
    let report = async {
        while let Some(line) = news.recv().await {
            let payload = Bytes::from(format!("{line}\n"));
            if sink.send(Frame { channel: STDOUT, payload }).await.is_err() {
                break;
            }
        }
    };
    let (result, ()) = tokio::join!(work, report);
    machine.image_gc.may_be(result.is_err());
    let status: Status = match result {
        Ok(()) => Status::success(),
        Err(status) => status,
    };
    super::exec::finish(sink, status).await;
    Ok(())
}

fn tell(lines: &mpsc::UnboundedSender<Value>, line: &impl Serialize) {
    // The reader may have gone; the operation continues.
    lines.send(serde_json::to_value(line).unwrap_or_default()).ok();
}

fn described(image: &Image) -> Value {
    json!({
        "image": {
            "id": image.id, "digest": image.digest, "names": image.names,
            "repo_digests": image.repo_digests, "size": image.size,
        }
    })
}

fn progress_line(event: PullEvent) -> Value {
    match event {
        PullEvent::Resolved { digest, layers, bytes } => {
            json!({ "resolved": { "digest": digest, "layers": layers, "bytes": bytes } })
        }
        PullEvent::Downloading { digest, done, total } => {
            json!({ "downloading": { "digest": digest, "done": done, "total": total } })
        }
        PullEvent::Unpacked { digest } => json!({ "unpacked": { "digest": digest } }),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(Status::internal)?.map_err(refused)
}

fn refused(error: ImageError) -> Status {
    let message = error.to_string();
    match error {
        ImageError::NotFound(_) => Status::failure(404, "NotFound", message),
        ImageError::Unauthorized(_) => Status::failure(401, "Unauthorized", message),
        ImageError::InvalidName { .. } | ImageError::Invalid(_) | ImageError::Unsupported(_) => {
            Status::bad_request(message)
        }
        ImageError::Network(_) => Status::unavailable(message),
        _ => Status::internal(message),
    }
}

/// STDIN as a blocking reader; the bounded channel passes a slow disk's backpressure to the sender.
fn archive(mut source: futures::stream::SplitStream<Frames>) -> impl io::Read + Send + 'static {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(BACKLOG);
    tokio::spawn(async move {
        loop {
            let item = match receive(&mut source).await {
                Some(frame) if frame.channel == STDIN => Ok(frame.payload),
                Some(frame) if frame.channel == CLOSE && frame.payload.first() == Some(&STDIN) => break,
                Some(_) => continue,
                None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            };
            let broken = item.is_err();
            if sender.send(item).await.is_err() || broken {
                break;
            }
        }
    });
    Archive { receiver, current: Bytes::new() }
}

struct Archive {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl io::Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                Some(bytes) => self.current = bytes?,
                None => return Ok(0),
            }
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
