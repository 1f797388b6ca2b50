//! Container logs: CRI files across rotation and restarts, filtered, followed, with the reader's own speed.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Frames, Machine, cri, send};
use crate::api::{
    Status,
    rpc::{LogOptions, LogStream, PodRef},
    stream::STDOUT,
};
use podwright_runtime::{ContainerState, sys::shared};

const CHUNK: usize = 64 << 10;
/// A follower looks for the container's end at least so often, should an event be lost.
const LOOK: Duration = Duration::from_secs(1);
/// No line of the shim's is longer: 16 KiB of the container's own, with its time and tag.
const LONGEST: usize = 64 << 10;

/// What of a line is wanted, and how much in all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub left: Option<usize>,
    /// `None`: all of them.
    pub stream: Option<LogStream>,
    /// What was shown last goes on: no time stands within a line.
    goes_on: bool,
}

impl Filter {
    pub fn of(options: &LogOptions, now: Timestamp) -> Result<Filter, Status> {
        let since = match (&options.since_time, options.since_seconds) {
            (Some(text), _) => Some(text.parse().map_err(|e| Status::bad_request(format!("sinceTime: {e}")))?),
            (None, Some(seconds)) => now.checked_sub(Duration::from_secs(seconds.max(0) as u64)).ok(),
            (None, None) => None,
        };
        let left = options.limit_bytes.map(|n| n.max(0) as usize);
        Ok(Filter { since, timestamps: options.timestamps, left, stream: options.stream, goes_on: false })
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
        if self.stream.is_some_and(|stream| stream.mark() != line.stream) {
            return;
        }
        let start = out.len();
        if self.timestamps && !std::mem::replace(&mut self.goes_on, line.partial) {
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
    rotated.into_iter().map(|(_, path)| path).chain(is_file(log).then(|| log.to_owned())).collect()
}

/// The plain files beside a path.
fn siblings(path: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = path.parent().and_then(|p| fs::read_dir(p).ok());
    folder.into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| is_file(path))
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Opens a log for reading. The shim alone is to write there, but a Pod that was given the host's log folder can put other
/// things in its place.
fn open(path: &Path) -> io::Result<File> {
    shared::open(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// A container's log folder, held open: what is read below [`Folder::path`] is in it, whatever becomes of its name.
pub struct Folder(OwnedFd);

impl Folder {
    /// `below` is `<namespace>_<name>_<uid>/<container>`; neither may be a link.
    pub fn open(logs: &Path, below: &Path) -> io::Result<Folder> {
        const FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
        let root = rustix::fs::open(logs, FLAGS, Mode::empty())?;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Folder(rustix::fs::openat2(root, below, FLAGS, Mode::empty(), inside)?))
    }

    /// Good for as long as it is held.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
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
        return Ok((last, files.get(last).map_or(Ok(0), |f| fs::symlink_metadata(f).map(|m| m.len()))?));
    }
    let mut wanted = lines;
    for (index, path) in files.iter().enumerate().rev() {
        let mut file = open(path)?;
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
    let waiting = || {
        let why = format!("container \"{container}\" in pod \"{}\" is waiting to start: ContainerCreating", pod.name);
        Status::bad_request(why)
    };
    let logs = &machine.places.logs;
    // The invariant: a Pod's log folder is below the node's.
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
    let filter = Filter::of(&options, machine.env.now())?;
    let follow = options.follow && !options.previous;
    let mut reader = Reader::open(&log, options.tail_lines.map(|n| n.max(0) as u64)).map_err(Status::internal)?;
    let mut changes = if follow { watch(&folder).ok() } else { None };
    let mut follower = Follower::new(filter);
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

/// Makes lines of what is read, and shows those that are wanted.
pub struct Follower {
    filter: Filter,
    /// The start of a line whose end has not been written yet.
    rest: BytesMut,
    /// The line is longer than any that the shim writes: it is left out.
    overlong: bool,
}

impl Follower {
    pub fn new(filter: Filter) -> Follower {
        Follower { filter, rest: BytesMut::new(), overlong: false }
    }

    /// Takes in what comes next; what of it is to be shown.
    pub fn take(&mut self, mut bytes: &[u8]) -> Option<Bytes> {
        let mut out = BytesMut::new();
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (line, after) = bytes.split_at(end + 1);
            bytes = after;
            self.rest.extend_from_slice(line);
            if !std::mem::take(&mut self.overlong) {
                self.filter.take(&self.rest, &mut out);
            }
            self.rest.clear();
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > LONGEST {
            self.overlong = true;
            self.rest.clear();
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
        let mut file = open(path)?;
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
            let inode = |path: &PathBuf| fs::symlink_metadata(path).map(|m| m.ino()).ok();
            let at = files.iter().position(|path| inode(path) == Some(self.inode));
            // A file that was rotated away entirely is followed by the oldest that is left.
            let Some(next) = files.get(at.map_or(0, |at| at + 1)) else { return Ok(None) };
            self.file = open(next)?;
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
