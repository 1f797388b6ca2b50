//! exec and attach: a process's streams as frames, with the kernel's backpressure, resize and exit code.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use podwright_runtime::{ContainerId, ExecSpec, JournalWriter, Streams, runtime::ExecSession};
use serde::Deserialize;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    Frames, Machine,
    ahead::{Ahead, Input, Waiting, ahead},
    receive, running, send,
};
use crate::machine::start::Inside;
use podwright_api::{
    Cause, Status,
    rpc::{ExecOptions, PodRef},
    stream::{CLOSE, Frame, RESIZE, STDERR, STDOUT},
};

const CHUNK: usize = 32 << 10;
/// Frames buffered for a slow reader before the process blocks.
const BACKLOG: usize = 4;
/// The capacity of a terminal's buffer, left when its process exits.
const TERMINAL: usize = 64 << 10;
/// The remaining output of an exited process is available at once.
const QUIET: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

/// Runs a command in a container.
///
/// # Errors
///
/// It cannot be run, or exited with a code other than 0.
pub async fn exec(machine: &Machine, frames: &mut Frames, pod: &PodRef, options: ExecOptions) -> Result<(), Status> {
    let id = running(machine, pod, &options.container).await?;
    let Inside { mut process, seccomp } = machine.inside(&id).await.map_err(Status::internal)?;
    process.set_args(Some(options.command.clone()));
    process.set_terminal(Some(options.tty));
    if options.tty {
        let env = process.env_mut().get_or_insert_default();
        if !env.iter().any(|v| v.starts_with("TERM=")) {
            env.push("TERM=xterm".to_owned());
        }
    }
    let spec = ExecSpec { process, seccomp, stdin: options.stdin, size: None };
    let mut heard = Heard::default();
    let journal = journal(machine, pod);
    let asked = tokio::select! {
        asked = machine.runtime.exec(&id, spec, &journal) => asked,
        // A container can delay the creation of a process indefinitely.
        () = hung_up(frames, &mut heard) => return Err(gone()),
    };
    let mut session = match asked {
        Ok(session) => session,
        Err(podwright_runtime::Error::Start { kind, message }) => {
            // Clients show only the exit code of the status: the reason is written where the command's own output would be.
            let channel = if options.tty { STDOUT } else { STDERR };
            let line = format!("{message}{}\n", if options.tty { "\r" } else { "" });
            send(frames, channel, Bytes::from(line)).await?;
            return Err(exit_status(kind.exit_code()));
        }
        Err(other) => return Err(Status::internal(other)),
    };
    let streams = std::mem::replace(&mut session.streams, Streams { stdin: None, stdout: None, stderr: None });
    join(frames, heard, streams, &options, Target::Exec(&session)).await?;
    let code = session.wait().await.map_err(Status::internal)?;
    if code == 0 { Ok(()) } else { Err(exit_status(code)) }
}

fn journal(machine: &Machine, pod: &PodRef) -> JournalWriter {
    let mut object = k8s_openapi::api::core::v1::Pod::default();
    object.metadata.uid = Some(pod.uid.clone());
    machine.journal(&object)
}

/// A non-zero exit, as in upstream's remotecommand v4.
fn exit_status(code: i32) -> Status {
    let message = format!("command terminated with non-zero exit code: exit status {code}");
    let cause = Cause { reason: "ExitCode".into(), message: code.to_string(), field: String::new() };
    Status::failure(500, "NonZeroExitCode", message).with_causes(vec![cause])
}

/// Attaches to a container's own process.
///
/// # Errors
///
/// The container is not running, or cannot be attached to.
pub async fn attach(machine: &Machine, frames: &mut Frames, pod: &PodRef, options: ExecOptions) -> Result<(), Status> {
    let id = running(machine, pod, &options.container).await?;
    let streams = machine.runtime.attach(&id, options.stdin).await.map_err(Status::internal)?;
    join(frames, Heard::default(), streams, &options, Target::Attach(machine, &id)).await
}

fn gone() -> Status {
    Status::bad_request("the caller has hung up")
}

/// Input received for a process that is not created yet, or reads nothing.
struct Heard {
    ahead: Ahead,
    waiting: mpsc::UnboundedReceiver<Waiting>,
    /// The next frame, without room yet.
    slot: Option<Frame>,
    /// The latest size of the caller's terminal.
    size: Option<Frame>,
}

impl Default for Heard {
    fn default() -> Heard {
        let (ahead, waiting) = ahead();
        Heard { ahead, waiting, slot: None, size: None }
    }
}

/// An empty frame; sending it fails if the caller has gone.
fn nothing() -> Frame {
    Frame { channel: CLOSE, payload: Bytes::new() }
}

/// Waits for the caller's hangup, buffering its input.
async fn hung_up(frames: &mut Frames, heard: &mut Heard) {
    let Heard { ahead, slot, size, .. } = heard;
    loop {
        if slot.is_none() {
            match frames.next().await {
                Some(Ok(frame)) => *slot = Some(frame),
                _ => return,
            }
        }
        tokio::select! {
            other = ahead.keep(slot) => {
                if let Some(frame) = other.filter(|frame| frame.channel == RESIZE) {
                    *size = Some(frame);
                }
            }
            () = ahead.beat() => if frames.send(nothing()).await.is_err() { return },
        }
    }
}

/// The owner of the streams and the terminal.
enum Target<'a> {
    Exec(&'a ExecSession),
    Attach(&'a Machine, &'a ContainerId),
}

impl Target<'_> {
    async fn resize(&self, size: (u16, u16)) {
        let result = match self {
            Target::Exec(session) => session.resize(size),
            Target::Attach(machine, id) => machine.runtime.resize(id, size).await,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a terminal was not resized");
        }
    }
}

/// Copies both ways until the process has exited or closed its output, or the caller has gone. No task is left behind: others may
/// hold the other ends of the streams indefinitely.
async fn join(
    frames: &mut Frames,
    heard: Heard,
    streams: Streams,
    options: &ExecOptions,
    target: Target<'_>,
) -> Result<(), Status> {
    let (sender, mut output) = mpsc::channel::<Frame>(BACKLOG);
    let (over, mut pumps) = (CancellationToken::new(), JoinSet::new());
    let wanted = [(STDOUT, streams.stdout, options.stdout), (STDERR, streams.stderr, options.stderr)];
    for (channel, fd, wanted) in wanted {
        let Some(fd) = fd else { continue };
        let fd = watched(fd, Interest::READABLE).map_err(Status::internal)?;
        let pump = Pump { fd, channel, wanted, terminal: options.tty, sender: sender.clone(), over: over.clone() };
        pumps.spawn(async move {
            if let Err(error) = pump.run().await {
                tracing::debug!(%error, "a process's output broke off");
            }
        });
    }
    drop(sender);
    let mut stdin = match streams.stdin {
        Some(fd) => Some(watched(fd, Interest::WRITABLE).map_err(Status::internal)?),
        None => None,
    };
    let (mut sink, mut source) = take(frames).split();
    let Heard { ahead, mut waiting, mut slot, size } = heard;
    let forward = async {
        loop {
            let frame = tokio::select! {
                frame = output.recv() => frame,
                () = ahead.beat() => Some(nothing()),
            };
            let Some(frame) = frame else { return true };
            if sink.send(frame).await.is_err() {
                return false;
            }
        }
    };
    let end = async {
        if let Target::Exec(session) = &target {
            // Without its shim it is dead as well.
            session.wait().await.ok();
            over.cancel();
        }
    };
    let resize = async |frame: Frame| {
        if let Ok(Size { width, height }) = serde_json::from_slice(&frame.payload) {
            target.resize((width, height)).await;
        }
    };
    // Keeps reading while the process does not read its input, to notice the caller's hangup.
    let feed = async {
        if let Some(size) = size {
            resize(size).await;
        }
        loop {
            if let Some(frame) = ahead.keep(&mut slot).await.filter(|frame| frame.channel == RESIZE) {
                resize(frame).await;
            }
            let Some(frame) = receive(&mut source).await else { return };
            slot = Some(frame);
        }
    };
    let pour = async {
        while let Some(next) = waiting.recv().await {
            let Some(fd) = &stdin else { continue };
            let over = match &next.input {
                Input::Piece(bytes) => write_all(fd, bytes).await.is_err(),
                Input::End => {
                    if options.tty {
                        // A terminal has no half-close: its line discipline treats ^D as end of input.
                        write_all(fd, b"\x04").await.ok();
                    }
                    true
                }
            };
            if over {
                stdin = None;
            }
        }
        std::future::pending::<()>().await
    };
    let finished = async {
        tokio::pin!(forward, end);
        tokio::select! {
            heard = &mut forward => {
                if heard {
                    end.await;
                }
                heard
            }
            () = &mut end => forward.await,
        }
    };
    let heard = tokio::select! {
        heard = finished => heard,
        () = feed => false,
        () = pour => false,
    };
    if !heard {
        return Err(gone());
    }
    // Both halves came from one `Framed`.
    *frames = sink.reunite(source).map_err(Status::internal)?;
    Ok(())
}

/// Takes the frames out, to be split; leaves a disconnected stream behind.
pub fn take(frames: &mut Frames) -> Frames {
    let nothing: podwright_client::Stream = Box::new(tokio::io::join(tokio::io::empty(), tokio::io::sink()));
    std::mem::replace(frames, Frames::new(nothing, podwright_api::stream::FrameCodec))
}

/// Sends the last frame of a session whose frames were taken.
pub async fn finish(mut sink: futures::stream::SplitSink<Frames, Frame>, status: Status) {
    let payload = Bytes::from(serde_json::to_vec(&status).unwrap_or_default());
    // A client that hung up does not receive the status.
    sink.send(Frame { channel: podwright_api::stream::STATUS, payload }).await.ok();
    sink.close().await.ok();
}

/// The safe constructor is deprecated for types whose descriptor could change; that of an `OwnedFd` cannot.
#[expect(deprecated)]
fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}

/// One output of a process, on its way to the caller.
struct Pump {
    fd: AsyncFd<OwnedFd>,
    channel: u8,
    /// Unwanted bytes are read and dropped, so that the process does not block.
    wanted: bool,
    terminal: bool,
    sender: mpsc::Sender<Frame>,
    /// The process has exited: only its remaining output is left.
    over: CancellationToken,
}

impl Pump {
    /// Reads until the end; after the process has exited, only what it left: its background processes may keep the stream open.
    async fn run(self) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut left = None;
        while left != Some(0) {
            let room = left.unwrap_or(CHUNK).min(CHUNK);
            let read =
                self.fd.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd.as_fd(), &mut buffer[..room])?));
            let read = match left {
                Some(_) => match tokio::time::timeout(QUIET, read).await {
                    Ok(read) => read,
                    // Another reader consumed it, or there was less.
                    Err(_) => return Ok(()),
                },
                None => tokio::select! {
                    biased;
                    () = self.over.cancelled() => {
                        left = Some(self.left()?);
                        continue;
                    }
                    read = read => read,
                },
            };
            let count = match read {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                // A terminal reports that its other side is closed.
                Err(e) if e.raw_os_error() == Some(nix::libc::EIO) => return Ok(()),
                Err(e) => return Err(e),
            };
            left = left.map(|left| left - count);
            if !self.wanted {
                continue;
            }
            let payload = Bytes::copy_from_slice(&buffer[..count]);
            if self.sender.send(Frame { channel: self.channel, payload }).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// How much is left to read after the process has exited. A terminal does not know how much it will still pass on.
    fn left(&self) -> io::Result<usize> {
        match self.terminal {
            true => Ok(TERMINAL),
            false => Ok(rustix::io::ioctl_fionread(self.fd.get_ref())? as usize),
        }
    }
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = fd.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd.as_fd(), bytes)?)).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}
