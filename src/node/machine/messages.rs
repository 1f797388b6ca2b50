//! What containers leave when they end: exit codes and last words (termination messages).

use std::{
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use podwright_runtime::{ContainerId, Event, Exit as RuntimeExit, Runtime, sys::shared};
use tokio::sync::{broadcast::error::RecvError, mpsc};

use crate::node::{disk, executor::Happening, labels, observed::Exit, sessions::cri, status::truncate};

/// Of a message, so many bytes are read.
pub const MESSAGE: usize = 4096;
/// Of a log that stands in for a message: so many bytes, so many lines.
const LOG_BYTES: usize = 2048;
const LOG_LINES: usize = 80;

/// The runtime's events as happenings. Each exit is looked up for its last words.
pub fn forward(runtime: &Runtime, pods: PathBuf) -> mpsc::UnboundedReceiver<Happening> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (mut events, runtime) = (runtime.events(), runtime.clone());
    tokio::spawn(async move {
        loop {
            let happening = match events.recv().await {
                Ok(Event::ContainerExited { id, exit }) => {
                    let exit = self::exit(&runtime, &pods, &id, &exit).await;
                    let (uid, _) = split(&id.sandbox);
                    Happening::Exited { uid, container: id.name.clone(), id: id.to_string(), exit }
                }
                Ok(Event::SandboxGone { id }) => {
                    let (uid, attempt) = split(&id);
                    Happening::SandboxGone { uid, attempt }
                }
                Err(RecvError::Lagged(_)) => Happening::Lagged,
                Err(RecvError::Closed) => return,
            };
            if sender.send(happening).is_err() {
                return;
            }
        }
    });
    receiver
}

/// `<uid>_<attempt>` taken apart.
pub fn split(sandbox: &str) -> (String, u32) {
    match sandbox.rsplit_once('_') {
        Some((uid, attempt)) => (uid.to_owned(), attempt.parse().unwrap_or(0)),
        None => (sandbox.to_owned(), 0),
    }
}

/// An exit with its termination message.
pub async fn exit(runtime: &Runtime, pods: &Path, id: &ContainerId, exit: &RuntimeExit) -> Exit {
    let sandbox = runtime.sandbox(&id.sandbox).await;
    let status = sandbox.as_ref().and_then(|s| s.containers.iter().find(|c| c.id == *id));
    let fallback = status.is_some_and(|s| s.labels.contains_key(labels::FALLBACK));
    let log = status.and_then(|s| s.log.as_ref()).map(|l| l.path.clone());
    let (pods, own, ended) = (pods.to_owned(), id.clone(), exit.clone());
    let read = disk::work(move || convert(&pods, &own, &ended, fallback, log)).await;
    // The invariant: it does not panic. Were it to, the container would have ended all the same.
    read.unwrap_or_else(|_| worded(exit, exit.message.clone()))
}

/// The same, where the container's labels are at hand.
pub fn convert(pods: &Path, id: &ContainerId, exit: &RuntimeExit, fallback: bool, log: Option<PathBuf>) -> Exit {
    let (uid, _) = split(&id.sandbox);
    let file = pods.join(uid).join("containers").join(&id.name).join(format!("{}.termination", id.attempt));
    // As upstream: what cannot be read is told in its place.
    let mut message = match shared::read(&file, MESSAGE) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        Err(e) => format!("Error on reading termination log {}: {e}", file.display()),
    };
    if message.is_empty() && fallback && exit.code != 0 {
        message = log.map(|log| tail(&log)).unwrap_or_default();
    }
    if message.is_empty() {
        message = exit.message.clone();
    }
    worded(exit, message)
}

fn worded(exit: &RuntimeExit, mut message: String) -> Exit {
    truncate(&mut message, MESSAGE);
    Exit {
        code: exit.code,
        reason: exit.reason.as_str().to_owned(),
        message: Some(message).filter(|m| !m.is_empty()),
        finished_at: exit.finished,
    }
}

/// The last lines of a log, without the CRI format around them.
fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = shared::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(64 << 10)))?;
        let mut bytes = Vec::new();
        file.take(64 << 10).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let lines: Vec<cri::Line<'_>> = bytes.split_inclusive(|b| *b == b'\n').filter_map(cri::parse).collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    let text: Vec<u8> = last.iter().flat_map(|line| line.content().to_vec()).collect();
    let from = text.len().saturating_sub(LOG_BYTES);
    String::from_utf8_lossy(&text[from..]).into_owned()
}
