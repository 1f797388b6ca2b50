//! Sessions with a node: frames in both directions, and a final `Status`.

use std::{io, process::ExitCode, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_util::codec::Framed;

use super::{Outcome, Session, error::Failure, out, terminal};
use podwright_api::{
    Request, Status,
    request::Body,
    stream::{CLOSE, Frame, FrameCodec, RESIZE, STATUS, STDERR, STDIN, STDOUT},
};
use podwright_client::Stream;

/// The container that a session is with, and what of it is passed on.
#[derive(clap::Args)]
pub struct SessionArgs {
    /// POD or TYPE/NAME
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Container name; if omitted, the default container or the first one in the Pod
    #[arg(long, short = 'c', value_name = "NAME")]
    pub container: Option<String>,
    /// Pass stdin to the container
    #[arg(long, short = 'i')]
    pub stdin: bool,
    /// Stdin is a TTY
    #[arg(long, short = 't')]
    pub tty: bool,
    /// Only print output from the remote session
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

pub type Frames = Framed<Stream, FrameCodec>;

const CHUNK: usize = 64 << 10;
/// Frames buffered for a slow node.
const BACKLOG: usize = 4;

/// The input of a session. An error ends it without a half-close, which would make a truncated input look complete.
pub type Input = mpsc::Receiver<io::Result<Frame>>;

/// Requests a session and dials it. Reports the chosen container like kubectl.
pub async fn open(session: &Session, request: Request) -> Result<Frames, Status> {
    let response = session.client.call(request).await?;
    response.warnings.iter().for_each(|warning| errln!("{warning}"));
    match response.body {
        Body::Stream { id } => Ok(Framed::new(session.client.dial(&id).await?, FrameCodec)),
        _ => Err(Status::internal("the server did not answer with a stream")),
    }
}

/// Sends `input`, passes received data to `each` (channel, bytes), and returns the session's status.
pub async fn exchange(frames: Frames, input: Input, mut each: impl FnMut(u8, &[u8])) -> Result<Status, Failure> {
    let each = |channel: u8, payload: &[u8]| {
        each(channel, payload);
        Ok(())
    };
    exchange_until(frames, input, each).await
}

/// The same until `each` has enough.
pub async fn exchange_until(
    frames: Frames,
    mut input: Input,
    mut each: impl FnMut(u8, &[u8]) -> Result<(), Failure>,
) -> Result<Status, Failure> {
    let (mut sink, mut source) = frames.split();
    let upward = async {
        while let Some(frame) = input.recv().await {
            // A node that no longer reads still has to report why.
            if sink.send(frame?).await.is_err() {
                break;
            }
        }
        std::future::pending::<io::Result<Status>>().await
    };
    let downward = async {
        while let Some(frame) = source.next().await {
            let Frame { channel, payload } = frame?;
            match channel {
                STATUS => return Ok(serde_json::from_slice(&payload).map_err(Status::internal)?),
                CLOSE => {}
                channel => each(channel, &payload)?,
            }
        }
        Err(Failure::usage("the connection to the node was lost"))
    };
    tokio::select! {
        broken = upward => Ok(broken?),
        ended = downward => ended,
    }
}

/// A session without input.
pub fn no_input() -> Input {
    mpsc::channel(1).1
}

/// Input from a reader, with its end.
pub fn reader(mut reader: impl AsyncRead + Unpin + Send + 'static) -> Input {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(async move { feed(&mut reader, &sender).await });
    receiver
}

async fn feed(reader: &mut (impl AsyncRead + Unpin), sender: &mpsc::Sender<io::Result<Frame>>) {
    let mut buffer = BytesMut::with_capacity(CHUNK);
    loop {
        buffer.reserve(CHUNK);
        let frame = match reader.read_buf(&mut buffer).await {
            Ok(0) => Ok(Frame { channel: CLOSE, payload: Bytes::from_static(&[STDIN]) }),
            Ok(_) => Ok(Frame { channel: STDIN, payload: buffer.split().freeze() }),
            Err(error) => Err(error),
        };
        let last = !matches!(&frame, Ok(frame) if frame.channel == STDIN);
        if sender.send(frame).await.is_err() || last {
            return;
        }
    }
}

/// The memory limit for data from a node before it is processed: the node determines its amount.
pub struct Room(usize);

/// The most bytes of a response.
const MOST: usize = 64 << 20;
/// The time limit for a node's response.
const LONGEST: Duration = Duration::from_secs(120);

impl Default for Room {
    fn default() -> Room {
        Room(MOST)
    }
}

impl Room {
    pub fn take(&mut self, bytes: usize) -> Result<(), Failure> {
        let left = self.0.checked_sub(bytes);
        self.0 = left.ok_or_else(|| Failure::usage(format!("the node sends more than {MOST} bytes")))?;
        Ok(())
    }

    /// Returns what is not kept after all.
    pub fn give_back(&mut self, bytes: usize) {
        self.0 += bytes;
    }
}

/// Waits for a quick response.
pub async fn in_time<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Failure::usage(format!("the node has not answered within {} seconds", LONGEST.as_secs()));
    tokio::time::timeout(LONGEST, answer).await.map_err(late)?
}

/// The complete standard output of a session without input.
pub async fn collect(frames: Frames) -> Result<Vec<u8>, Failure> {
    let (mut bytes, mut room) = (Vec::new(), Room::default());
    let exchanged = exchange_until(frames, no_input(), |channel, payload| {
        if channel == STDOUT {
            room.take(payload.len())?;
            bytes.extend_from_slice(payload);
        }
        Ok(())
    });
    succeeded(in_time(exchanged).await?)?;
    Ok(bytes)
}

/// Converts a `Status` to a result.
pub fn succeeded(status: Status) -> Result<(), Failure> {
    if status.status == "Success" { Ok(()) } else { Err(status.into()) }
}

/// Which of the caller's standard streams a session uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    pub stdin: bool,
    pub tty: bool,
}

impl Ends {
    /// The available ones: a terminal requires `-i`, and an interactive user.
    pub fn wanted(stdin: bool, tty: bool) -> Ends {
        if tty && stdin && !terminal::is_interactive() {
            errln!("Unable to use a TTY - input is not a terminal or the right kind of file");
        }
        Ends { stdin, tty: tty && stdin && terminal::is_interactive() }
    }
}

/// Connects the caller's standard streams, and the terminal in raw mode, to a session until it ends.
pub async fn join(frames: Frames, ends: Ends) -> Result<Status, Failure> {
    let _raw = if ends.tty { Some(terminal::Raw::enter()?) } else { None };
    let (sender, input) = mpsc::channel(BACKLOG);
    if ends.tty {
        tokio::spawn(follow_size(sender.clone()));
    }
    if ends.stdin {
        tokio::spawn(async move { feed(&mut tokio::io::stdin(), &sender).await });
    }
    let show = |channel, payload: &[u8]| match channel {
        STDOUT => out::bytes(payload),
        // Errors cannot be reported anywhere.
        STDERR => drop(io::Write::write_all(&mut io::stderr(), payload)),
        _ => {}
    };
    let (mut terminate, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        ended = exchange(frames, input, show) => ended,
        // The terminal must be restored before the process ends.
        _ = terminate.recv() => Err(Failure::Said(143)),
        _ = hangup.recv() => Err(Failure::Said(129)),
    }
}

/// Sends the terminal's size now and whenever it changes.
async fn follow_size(sender: mpsc::Sender<io::Result<Frame>>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    while let Some(size) = terminal::size() {
        let frame = Frame { channel: RESIZE, payload: Bytes::from(size) };
        if sender.send(Ok(frame)).await.is_err() || changes.recv().await.is_none() {
            return;
        }
    }
}

/// Exits like the command: with its exit code, reported like kubectl.
pub fn exit(status: Status) -> Outcome {
    if status.reason != "NonZeroExitCode" {
        return succeeded(status).map(|()| ExitCode::SUCCESS);
    }
    let causes = status.details.iter().flat_map(|d| &d.causes);
    let code = causes.filter(|c| c.reason == "ExitCode").find_map(|c| c.message.parse::<u8>().ok()).unwrap_or(1);
    errln!("command terminated with exit code {code}");
    Err(Failure::Said(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_says_neither_too_much_nor_for_too_long() {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let answered = tokio::spawn(collect(Framed::new(Box::new(ours), FrameCodec)));
        let mut node = Framed::new(theirs, FrameCodec);
        let mut sent = 0;
        while node.send(Frame { channel: STDOUT, payload: Bytes::from(vec![b'x'; CHUNK]) }).await.is_ok() {
            sent += CHUNK;
            assert!(sent < 2 * MOST, "it goes on listening");
        }
        let Err(Failure::Client(why)) = answered.await.unwrap() else { panic!("it takes all") };
        assert_eq!(why, "the node sends more than 67108864 bytes");

        let (ours, _silent) = tokio::io::duplex(1024);
        let Err(Failure::Client(why)) = collect(Framed::new(Box::new(ours), FrameCodec)).await else { panic!() };
        assert_eq!(why, "the node has not answered within 120 seconds");
    }
}
