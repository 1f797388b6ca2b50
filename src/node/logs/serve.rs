//! A session that shows a log, and follows it at the reader's speed.

use std::{
    io,
    path::Path,
    sync::LazyLock,
    time::{Duration, Instant},
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use k8s_openapi::api::core::v1::Pod;

use super::{
    files::{Folder, is_file, newest_attempt},
    lines::{Filter, Follower},
    read::{Piece, Scan},
};
use crate::{
    disk,
    fair_semaphore::FairSemaphore,
    machine::Machine,
    sessions::frames::{Frames, send},
};
use podwright_api::{
    Status,
    rpc::{LogOptions, PodRef},
    stream::STDOUT,
};

/// A follower checks for the container's exit at least this often, in case an event was lost.
const LOOK: Duration = Duration::from_secs(1);
/// A follower checks for new output at most this often: each line may cause an event.
const PACE: Duration = Duration::from_millis(20);

/// Logs may be written faster than they are read, even if no line matches. One reader per namespace reads a piece at a time, then
/// its namespace pauses for as long as that took; all readers together get half of the CPUs.
static READING: LazyLock<FairSemaphore> = LazyLock::new(|| {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    FairSemaphore::new((cpus / 2).max(1))
});

/// The shortest pause: timers are no finer.
const BRIEF: Duration = Duration::from_millis(1);

/// Serves one `log` session.
///
/// # Errors
///
/// The log does not exist, cannot be read, or the options are invalid.
pub async fn log(machine: &Machine, frames: &mut Frames, pod: &PodRef, options: LogOptions) -> Result<(), Status> {
    let mut object = Pod::default();
    object.metadata.namespace = Some(pod.namespace.clone());
    object.metadata.name = Some(pod.name.clone());
    object.metadata.uid = Some(pod.uid.clone());
    let container = &options.container;
    let waiting = || {
        let why = format!("container \"{container}\" in pod \"{}\" is waiting to start: ContainerCreating", pod.name);
        Status::bad_request(why)
    };
    let logs = &machine.places.logs;
    // Invariant: a Pod's log folder is below the node's.
    let of_pod = machine.log_dir(&object);
    let below = of_pod.strip_prefix(logs).map_err(Status::internal)?.join(container);
    let pinned = match Folder::open(logs, &below) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(waiting()),
        other => other.map_err(|e| Status::internal(format!("the logs of container {container}: {e}")))?,
    };
    let folder = pinned.path();
    let newest = newest_attempt(&folder).ok_or_else(waiting)?;
    let attempt = match options.previous {
        false => newest,
        true => newest.checked_sub(1).filter(|n| is_file(&folder.join(format!("{n}.log")))).ok_or_else(|| {
            Status::bad_request(format!(
                "previous terminated container \"{container}\" in pod \"{}\" not found",
                pod.name
            ))
        })?,
    };
    let log = folder.join(format!("{attempt}.log"));
    let follower = Follower::new(Filter::of(&options, machine.env.now())?);
    let follow = options.follow && !options.previous;
    let last = options.tail_lines.map(|n| n.max(0) as u64);
    let mut changes = if follow { watch(&folder).ok() } else { None };
    let namespace = &pod.namespace;
    let writer = match machine.newest_sandbox(&pod.uid).await.filter(|_| follow) {
        Some(sandbox) => {
            sandbox.containers.into_iter().map(|c| c.id).find(|id| id.name == *container && id.attempt == attempt)
        }
        None => None,
    };
    let mut scan = in_turn(namespace, move || Scan::open(&log, last, follow, follower)).await?;
    loop {
        // Checked before reading, so that everything written before the exit is read after it.
        let (looked, running) = (Instant::now(), writer.as_ref().is_some_and(|id| machine.runtime.is_alive(id)));
        loop {
            let read = in_turn(namespace, move || scan.piece().map(|piece| (piece, scan)));
            // A client that does not follow may already have finished sending.
            let Some(read) = (if follow { while_there(frames, read).await } else { Some(read.await) }) else {
                return Ok(());
            };
            let piece;
            (piece, scan) = read?;
            match piece {
                Piece::Shown(out) => send(frames, STDOUT, out).await?,
                Piece::Passed => {}
                Piece::End => break,
            }
        }
        if !running || scan.is_full() {
            return Ok(());
        }
        let news = async {
            changed(&mut changes).await;
            tokio::time::sleep(PACE.saturating_sub(looked.elapsed())).await;
        };
        tokio::select! {
            () = news => {}
            () = tokio::time::sleep(LOOK) => {}
            frame = frames.next() => if !matches!(frame, Some(Ok(_))) { return Ok(()) },
        }
    }
}

/// Runs `read` when it is the namespace's turn.
async fn in_turn<T: Send + 'static>(
    namespace: &str,
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let turn = READING.take(namespace).await;
    // The turn lasts as long as the work, even if the client leaves.
    let work = move || {
        let begin = Instant::now();
        let read = read();
        match begin.elapsed() {
            brief if brief < BRIEF => drop(turn),
            long => FairSemaphore::rest(turn, long),
        }
        read
    };
    disk::work(work).await.map_err(Status::internal)?.map_err(Status::internal)
}

/// Runs `act` while the client is connected; `None`: it left.
async fn while_there<T>(frames: &mut Frames, act: impl Future<Output = T>) -> Option<T> {
    let mut act = std::pin::pin!(act);
    loop {
        tokio::select! {
            done = &mut act => return Some(done),
            frame = frames.next() => if !matches!(frame, Some(Ok(_))) { return None },
        }
    }
}

type Changes = inotify::EventStream<Vec<u8>>;

fn watch(folder: &Path) -> io::Result<Changes> {
    let inotify = Inotify::init()?;
    inotify
        .watches()
        .add(folder, WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE)?;
    inotify.into_event_stream(vec![0; 4096])
}

async fn changed(changes: &mut Option<Changes>) {
    match changes {
        Some(changes) => {
            changes.next().await;
        }
        None => std::future::pending().await,
    }
}
