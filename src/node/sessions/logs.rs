//! Container logs: CRI files across rotation and restarts, filtered, followed, with the reader's own speed.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{Frames, Machine, cri, send};
use crate::api::{
    Status,
    rpc::{LogOptions, PodRef},
    stream::STDOUT,
};
use podwright_runtime::ContainerState;

const CHUNK: usize = 64 << 10;
/// A follower looks for the container's end at least so often, should an event be lost.
const LOOK: Duration = Duration::from_secs(1);

/// What of a line is wanted, and how much in all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub left: Option<usize>,
}

impl Filter {
    pub fn of(options: &LogOptions, now: Timestamp) -> Result<Filter, Status> {
        let since = match (&options.since_time, options.since_seconds) {
            (Some(text), _) => Some(text.parse().map_err(|e| Status::bad_request(format!("sinceTime: {e}")))?),
            (None, Some(seconds)) => now.checked_sub(Duration::from_secs(seconds.max(0) as u64)).ok(),
            (None, None) => None,
        };
        let left = options.limit_bytes.map(|n| n.max(0) as usize);
        Ok(Filter { since, timestamps: options.timestamps, left })
    }

    pub fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    /// Appends what of `line` is wanted to `out`.
    pub fn take(&mut self, line: &[u8], out: &mut BytesMut) {
        let Some(line) = cri::parse(line) else { return };
        if let Some(since) = self.since
            && line.time.parse::<Timestamp>().is_ok_and(|t| t < since)
        {
            return;
        }
        let start = out.len();
        if self.timestamps {
            out.extend_from_slice(line.time.as_bytes());
            out.extend_from_slice(b" ");
        }
        out.extend_from_slice(line.content());
        if let Some(left) = &mut self.left {
            let taken = (out.len() - start).min(*left);
            out.truncate(start + taken);
            *left -= taken;
        }
    }
}

/// The files of one attempt's log, oldest first: `0.log.4` .. `0.log.1`, `0.log`.
pub fn files(log: &Path) -> Vec<PathBuf> {
    let name = log.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut rotated: Vec<(u32, PathBuf)> = siblings(log)
        .filter_map(|path| {
            let number = path.file_name()?.to_str()?.strip_prefix(&name)?.strip_prefix('.')?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    rotated.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    rotated.into_iter().map(|(_, path)| path).chain(log.exists().then(|| log.to_owned())).collect()
}

fn siblings(path: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = path.parent().and_then(|p| fs::read_dir(p).ok());
    folder.into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The newest attempt that a container's log folder knows.
pub fn newest_attempt(folder: &Path) -> Option<u32> {
    let number = |path: PathBuf| path.file_name()?.to_str()?.strip_suffix(".log")?.parse::<u32>().ok();
    siblings(&folder.join("x")).filter_map(number).max()
}

/// Where the last `lines` lines begin: the index of a file and an offset in it.
pub fn tail(files: &[PathBuf], lines: u64) -> io::Result<(usize, u64)> {
    if lines == 0 {
        let last = files.len().saturating_sub(1);
        return Ok((last, files.get(last).map_or(Ok(0), |f| fs::metadata(f).map(|m| m.len()))?));
    }
    let mut wanted = lines;
    for (index, path) in files.iter().enumerate().rev() {
        let mut file = File::open(path)?;
        let mut end = file.metadata()?.len();
        // The newline that ends the very last line ends no line before it.
        let mut first = true;
        let mut buffer = vec![0; CHUNK];
        while end > 0 {
            let start = end.saturating_sub(CHUNK as u64);
            let piece = &mut buffer[..(end - start) as usize];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(piece)?;
            for (at, byte) in piece.iter().enumerate().rev() {
                if *byte != b'\n' || std::mem::take(&mut first) {
                    continue;
                }
                wanted -= 1;
                if wanted == 0 {
                    return Ok((index, start + at as u64 + 1));
                }
            }
            end = start;
        }
        if !first {
            wanted -= 1;
        }
        if wanted == 0 {
            return Ok((index, 0));
        }
    }
    Ok((0, 0))
}

/// Serves one `log` session.
pub async fn serve(machine: &Machine, frames: &mut Frames, pod: &PodRef, options: LogOptions) -> Result<(), Status> {
    let mut object = Pod::default();
    object.metadata.namespace = Some(pod.namespace.clone());
    object.metadata.name = Some(pod.name.clone());
    object.metadata.uid = Some(pod.uid.clone());
    let container = &options.container;
    let folder = machine.log_dir(&object).join(container);
    let waiting = || {
        let why = format!("container \"{container}\" in pod \"{}\" is waiting to start: ContainerCreating", pod.name);
        Status::bad_request(why)
    };
    let newest = newest_attempt(&folder).ok_or_else(waiting)?;
    let attempt = match options.previous {
        false => newest,
        true => newest.checked_sub(1).filter(|n| folder.join(format!("{n}.log")).exists()).ok_or_else(|| {
            Status::bad_request(format!(
                "previous terminated container \"{container}\" in pod \"{}\" not found",
                pod.name
            ))
        })?,
    };
    let log = folder.join(format!("{attempt}.log"));
    let filter = Filter::of(&options, machine.env.now())?;
    let follow = options.follow && !options.previous;
    let mut reader = Reader::open(&log, options.tail_lines.map(|n| n.max(0) as u64)).map_err(Status::internal)?;
    let mut changes = if follow { watch(&folder).ok() } else { None };
    let mut follower = Follower { filter, rest: BytesMut::new() };
    loop {
        // Looked at before reading: what is written before the end is read after it.
        let running = follow && is_running(machine, &pod.uid, container, attempt).await;
        while let Some(bytes) = reader.read().map_err(Status::internal)? {
            if let Some(out) = follower.take(&bytes) {
                send(frames, STDOUT, out).await?;
            }
            if follower.filter.is_full() {
                return Ok(());
            }
        }
        if !running {
            return Ok(());
        }
        tokio::select! {
            () = changed(&mut changes) => {}
            () = tokio::time::sleep(LOOK) => {}
            frame = frames.next() => if !matches!(frame, Some(Ok(_))) { return Ok(()) },
        }
    }
}

struct Follower {
    filter: Filter,
    /// The start of a line whose end has not been written yet.
    rest: BytesMut,
}

impl Follower {
    fn take(&mut self, bytes: &[u8]) -> Option<Bytes> {
        self.rest.extend_from_slice(bytes);
        let mut out = BytesMut::new();
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line = self.rest.split_to(end + 1);
            self.filter.take(&line, &mut out);
        }
        (!out.is_empty()).then(|| out.freeze())
    }
}

/// Reads an attempt's files one after the other; goes on where the writer rotates.
struct Reader {
    log: PathBuf,
    file: File,
    inode: u64,
    buffer: Vec<u8>,
}

impl Reader {
    fn open(log: &Path, last: Option<u64>) -> io::Result<Reader> {
        let files = files(log);
        let (index, offset) = match last {
            Some(lines) => tail(&files, lines)?,
            None => (0, 0),
        };
        let path = files.get(index).ok_or(io::ErrorKind::NotFound)?;
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        let inode = file.metadata()?.ino();
        Ok(Reader { log: log.to_owned(), file, inode, buffer: vec![0; CHUNK] })
    }

    /// The next bytes; `None`: all that is written has been read.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let count = self.file.read(&mut self.buffer)?;
            if count > 0 {
                return Ok(Some(self.buffer[..count].to_vec()));
            }
            let files = files(&self.log);
            let inode = |path: &PathBuf| fs::metadata(path).map(|m| m.ino()).ok();
            let at = files.iter().position(|path| inode(path) == Some(self.inode));
            // A file that was rotated away entirely is followed by the oldest that is left.
            let Some(next) = files.get(at.map_or(0, |at| at + 1)) else { return Ok(None) };
            self.file = File::open(next)?;
            self.inode = self.file.metadata()?.ino();
        }
    }
}

async fn is_running(machine: &Machine, uid: &str, container: &str, attempt: u32) -> bool {
    let Some(sandbox) = super::sandbox_of(machine, uid).await else { return false };
    let is_it = |c: &&podwright_runtime::ContainerStatus| c.id.name == container && c.id.attempt == attempt;
    sandbox.containers.iter().find(is_it).is_some_and(|c| c.state != ContainerState::Exited)
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
