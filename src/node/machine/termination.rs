//! What containers leave when they exit: exit codes and termination messages.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use futures::{StreamExt, stream::FuturesUnordered};
use podwright_runtime::{ContainerId, Event, Exit as RuntimeExit, Runtime, sys::shared};
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};

use crate::{
    disk, executor::RuntimeEvent, labels, logs::cri, pod::observed::Exit, status::truncate, translate::split_sandbox_id,
};

/// Maximum bytes read of a message.
pub const MESSAGE: usize = 4096;
/// Maximum bytes and lines of a log that replaces a message.
const LOG_BYTES: usize = 2048;
const LOG_LINES: usize = 80;

/// Forwards the runtime's events as [`RuntimeEvent`]s. For each exit the termination message is read: events of one Pod one by one,
/// to keep their order; those of several Pods concurrently, so that a Pod with constant exits or a slow disk delays no other.
pub fn forward(runtime: &Runtime, pods: PathBuf, sender: mpsc::UnboundedSender<RuntimeEvent>) {
    let (events, runtime) = (runtime.events(), runtime.clone());
    tokio::spawn(turns(events, sender, move |event| {
        let (runtime, pods) = (runtime.clone(), pods.clone());
        async move { runtime_event(&runtime, &pods, event).await }
    }));
}

async fn runtime_event(runtime: &Runtime, pods: &Path, event: Event) -> RuntimeEvent {
    match event {
        Event::ContainerExited { id, exit } => {
            let exit = self::exit(runtime, pods, &id, &exit).await;
            let (uid, _) = split_sandbox_id(&id.sandbox);
            RuntimeEvent::Exited { uid, container: id.name.clone(), id: id.to_string(), exit }
        }
        Event::SandboxGone { id } => {
            let (uid, attempt) = split_sandbox_id(&id);
            RuntimeEvent::SandboxGone { uid, attempt }
        }
    }
}

/// The Pod of an event.
fn pod_of(event: &Event) -> String {
    match event {
        Event::ContainerExited { id, .. } => split_sandbox_id(&id.sandbox).0,
        Event::SandboxGone { id } => split_sandbox_id(id).0,
    }
}

/// Handles one event per Pod at a time; until there are no more, or the receiver is dropped.
async fn turns<F: Future<Output = RuntimeEvent>>(
    mut events: broadcast::Receiver<Event>,
    sender: mpsc::UnboundedSender<RuntimeEvent>,
    look: impl Fn(Event) -> F,
) {
    // Pending events by Pod; a Pod being handled has an entry.
    let mut waiting: HashMap<String, VecDeque<Event>> = HashMap::new();
    let mut looking = FuturesUnordered::new();
    let look = |uid: String, event: Event| {
        let looked = look(event);
        async move { (uid, looked.await) }
    };
    loop {
        let event = tokio::select! {
            event = events.recv() => match event {
                Ok(event) => {
                    let uid = pod_of(&event);
                    match waiting.get_mut(&uid) {
                        Some(queue) => queue.push_back(event),
                        None => {
                            waiting.insert(uid.clone(), VecDeque::new());
                            looking.push(look(uid, event));
                        }
                    }
                    continue;
                }
                Err(RecvError::Lagged(_)) => RuntimeEvent::Lagged,
                Err(RecvError::Closed) => return,
            },
            Some((uid, event)) = looking.next() => {
                match waiting.get_mut(&uid).and_then(VecDeque::pop_front) {
                    Some(next) => looking.push(look(uid, next)),
                    None => drop(waiting.remove(&uid)),
                }
                event
            }
        };
        if sender.send(event).is_err() {
            return;
        }
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
    // Invariant: it does not panic. If it did, the container would have exited all the same.
    read.unwrap_or_else(|_| worded(exit, exit.message.clone()))
}

/// The same, given the container's labels.
pub fn convert(pods: &Path, id: &ContainerId, exit: &RuntimeExit, fallback: bool, log: Option<PathBuf>) -> Exit {
    let (uid, _) = split_sandbox_id(&id.sandbox);
    let file = pods.join(uid).join("containers").join(&id.name).join(format!("{}.termination", id.attempt));
    // As upstream: a read error replaces the message.
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

/// The last lines of a log, without the CRI format.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// One Pod's containers exit constantly, and reading their messages is slow.
    #[tokio::test(start_paused = true)]
    async fn a_pod_whose_containers_end_all_the_time_keeps_nobody_waiting() {
        let (events, receiver) = broadcast::channel(4096);
        let (sender, mut runtime_events) = mpsc::unbounded_channel();
        let gone = |uid: &str, attempt: u32| Event::SandboxGone { id: format!("{uid}_{attempt}") };
        for attempt in 0..1000 {
            events.send(gone("greedy", attempt)).unwrap();
        }
        events.send(gone("other", 0)).unwrap();
        let look = |event| async move {
            let Event::SandboxGone { id } = event else { panic!("only sandboxes go here") };
            let (uid, attempt) = split_sandbox_id(&id);
            tokio::time::sleep(Duration::from_secs(u64::from(uid == "greedy"))).await;
            RuntimeEvent::SandboxGone { uid, attempt }
        };
        let task = tokio::spawn(turns(receiver, sender, look));
        let mut order = Vec::new();
        while order.len() < 11 {
            let Some(RuntimeEvent::SandboxGone { uid, attempt }) = runtime_events.recv().await else {
                panic!("{order:?}")
            };
            order.push((uid, attempt));
        }
        task.abort();
        assert_eq!(order[0], ("other".to_owned(), 0));
        // Each Pod's own events stay in order.
        let own: Vec<u32> = order[1..].iter().map(|(_, attempt)| *attempt).collect();
        assert_eq!(own, (0..10).collect::<Vec<u32>>());
    }
}
