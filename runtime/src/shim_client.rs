//! The agent's connection to one shim: requests with answers, and events.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};

use crate::records::at;
use crate::{BIRTH, Cause, Error, Result};
use podwright_shim::handshake::{self, Secret};
use podwright_shim::protocol::{
    Answer, Call, Failure, FailureKind, Frame, Frames, MAX_FRAME, Message, Request, encode,
};
use podwright_shim::socket::short_path;
use podwright_sys::io;

type Reply = (std::result::Result<Answer, Failure>, Vec<OwnedFd>);

/// A live connection. It ends with the shim.
#[derive(Debug)]
pub struct ShimClient {
    sandbox: String,
    socket: UnixStream,
    /// Held while a frame is written: frames must not interleave. The rest of one whose requester was dropped goes before the next.
    writing: tokio::sync::Mutex<Vec<u8>>,
    /// The protocol version in use.
    version: u8,
    next: AtomicU64,
    waiting: Mutex<Waiting>,
    /// Whether requests may be sent: the shim has authenticated. Closed if it never will.
    trusted: watch::Receiver<bool>,
    /// It was disconnected because of an oversized event.
    missed: AtomicBool,
}

/// How long a shim may be silent. It never blocks: one that is silent for longer hangs, and is considered dead.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Time limit for an answer of a responsive shim: more than for a birth, which it limits itself.
const ANSWER: Duration = BIRTH.saturating_add(Duration::from_secs(30));

/// The same for a start, which may be requested before the birth.
const START: Duration = BIRTH.saturating_add(ANSWER);

/// Maximum descriptors waiting for their frame: those of one frame, and some of the next.
const MAX_HELD: usize = 4 * io::MAX_FDS;

/// The task that reads from a shim; dropping it closes the connection.
#[derive(Debug)]
pub struct Reader(tokio::task::JoinHandle<()>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Default)]
struct Waiting {
    replies: HashMap<u64, oneshot::Sender<Reply>>,
    execs: HashMap<u64, oneshot::Sender<i32>>,
    dead: bool,
}

/// Connects, waiting if the accept queue is full: a hanging shim does not accept.
async fn reach(folder: &Path) -> std::io::Result<StdStream> {
    const AGAIN: Duration = Duration::from_millis(20);
    let folder = File::open(folder)?;
    let address = SocketAddrUnix::new(short_path(&folder))?;
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match net::connect(&socket, &address) {
            Err(Errno::AGAIN) => tokio::time::sleep(AGAIN).await,
            done => return Ok(done.map(|()| socket.into())?),
        }
    }
}

impl ShimClient {
    /// Connects to the shim at `<folder>/s`. Its events go to `messages`, which closes when the shim is gone. `secret`: the shared
    /// secret, and whether this is the first connection; none for shims of old agents. `version`: of the protocol; a shim without
    /// it closes the connection. Errors: [`Error::Timeout`] if it does not accept within [`SILENCE`].
    pub async fn connect(
        sandbox: &str,
        folder: &Path,
        secret: Option<(Secret, bool)>,
        version: u8,
        messages: mpsc::UnboundedSender<Message>,
    ) -> Result<(Arc<ShimClient>, Reader)> {
        let stream = match tokio::time::timeout(SILENCE, reach(folder)).await {
            Ok(reached) => reached.map_err(at(folder))?,
            Err(_) => return Err(Error::Timeout(format!("the shim of sandbox {sandbox}"), SILENCE)),
        };
        ShimClient::over(stream, sandbox, secret, version, messages).map_err(at(folder))
    }

    fn over(
        mut stream: StdStream,
        sandbox: &str,
        secret: Option<(Secret, bool)>,
        version: u8,
        messages: mpsc::UnboundedSender<Message>,
    ) -> std::io::Result<(Arc<ShimClient>, Reader)> {
        let first = secret.as_ref().is_none_or(|(_, first)| *first);
        let greeting = secret.map(|(secret, first)| handshake::Agent::begin(secret, first)).transpose()?;
        let greeting = match greeting {
            Some((agent, opening)) => {
                // A new socket's buffer has room for it.
                stream.write_all(&opening)?;
                Some(Greeting { agent, first })
            }
            None => None,
        };
        let (trust, trusted) = watch::channel(first);
        let client = Arc::new(ShimClient {
            sandbox: sandbox.to_owned(),
            socket: UnixStream::from_std(stream)?,
            writing: tokio::sync::Mutex::default(),
            version,
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            trusted,
            missed: AtomicBool::new(false),
        });
        let reader = Reader(tokio::spawn(read_all(client.clone(), greeting, trust, messages)));
        Ok((client, reader))
    }

    /// Sends a request, and waits for the answer. Errors: [`Error::ShimGone`], [`Error::Timeout`], or the shim's error. A silent
    /// shim is disconnected: it then counts as gone, and its processes are killed.
    pub async fn ask(&self, cause: &Cause, call: Call, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>)> {
        let late = |after| Err(Error::Timeout(format!("the shim of sandbox {}", self.sandbox), after));
        let takes_time =
            matches!(call, Call::Sandbox(_) | Call::Create(_) | Call::Start { .. } | Call::Exec(_) | Call::Shutdown);
        let silent = async {
            tokio::time::sleep(SILENCE).await;
            // Others are answered at once.
            while takes_time && self.speaks(cause).await {
                tokio::time::sleep(SILENCE).await;
            }
        };
        let patience = if matches!(call, Call::Start { .. }) { START } else { ANSWER };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        tokio::select! {
            answer = self.ask_as(id, cause, call, fds) => answer,
            () = silent => {
                tracing::warn!("the shim of sandbox {} does not answer", self.sandbox);
                let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
                late(SILENCE)
            }
            () = tokio::time::sleep(patience) => late(patience),
        }
    }

    /// Whether the shim responds at all.
    async fn speaks(&self, cause: &Cause) -> bool {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        tokio::time::timeout(SILENCE, self.ask_as(id, cause, Call::State, &[])).await.is_ok()
    }

    async fn ask_as(
        &self,
        id: u64,
        cause: &Cause,
        call: Call,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>)> {
        let request = Request { id, cause: cause.clone(), call };
        let frame = encode(&request, fds.len(), self.version)
            .map_err(|e| Error::Invalid(format!("{}: {e}", request.call.subject())))?;
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.dead {
                return Err(self.gone());
            }
            waiting.replies.insert(id, tell);
        }
        let _awaited = Awaited { client: self, id };
        self.trusted.clone().wait_for(|trusted| *trusted).await.map_err(|_| self.gone())?;
        self.write(&frame, fds).await.map_err(|_| self.gone())?;
        let (result, fds) = told.await.map_err(|_| self.gone())?;
        Ok((result.map_err(|f| error_of(f, &self.sandbox))?, fds))
    }

    /// Registers for the exit code of an exec about to be requested.
    pub fn expect_exec(&self, exec: u64) -> oneshot::Receiver<i32> {
        let (tell, told) = oneshot::channel();
        let mut waiting = self.waiting();
        if !waiting.dead {
            waiting.execs.insert(exec, tell);
        }
        told
    }

    pub fn forget_exec(&self, exec: u64) {
        self.waiting().execs.remove(&exec);
    }

    /// Whether the shim has authenticated.
    pub fn is_trusted(&self) -> bool {
        *self.trusted.borrow()
    }

    pub fn is_dead(&self) -> bool {
        self.waiting().dead
    }

    /// Whether it has sent an oversized event. Its state must be queried over another connection.
    pub fn has_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    pub fn gone(&self) -> Error {
        Error::ShimGone(self.sandbox.clone())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a frame. If dropped midway, the rest of the frame is sent before the next one.
    async fn write(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let mut rest = self.writing.lock().await;
        self.write_rest(&mut rest).await?;
        let sent = self.write_some(frame, fds).await?;
        rest.extend_from_slice(&frame[sent..]);
        self.write_rest(&mut rest).await
    }

    async fn write_rest(&self, rest: &mut Vec<u8>) -> std::io::Result<()> {
        while !rest.is_empty() {
            let sent = self.write_some(rest, &[]).await?;
            rest.drain(..sent);
        }
        Ok(())
    }

    async fn write_some(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
        loop {
            match self.socket.try_io(Interest::WRITABLE, || io::send(self.socket.as_fd(), bytes, fds)) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.socket.writable().await?,
                sent => return sent,
            }
        }
    }
}

/// A reply being waited for; a later one is dropped, with its descriptors.
struct Awaited<'a> {
    client: &'a ShimClient,
    id: u64,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.client.waiting().replies.remove(&self.id);
    }
}

fn error_of(failure: Failure, sandbox: &str) -> Error {
    match failure.kind {
        FailureKind::NotFound => Error::NotFound(failure.message),
        FailureKind::Conflict => Error::Conflict(failure.message),
        FailureKind::Start(kind) => Error::Start { kind, message: failure.message },
        FailureKind::Kernel => Error::Kernel(format!("sandbox {sandbox}: {}", failure.message)),
    }
}

/// A handshake in progress. On the first connection the agent has started the shim, and need not wait for its proof.
#[derive(Debug)]
struct Greeting {
    agent: handshake::Agent,
    first: bool,
}

/// The request id of a message that begins like this.
fn answered(beginning: &[u8]) -> Option<u64> {
    let id = beginning.strip_prefix(br#"{"Reply":{"id":"#)?;
    let digits = id.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&id[..digits]).ok()?.parse().ok()
}

/// Reads until the shim is gone, then wakes all waiters.
async fn read_all(
    client: Arc<ShimClient>,
    mut greeting: Option<Greeting>,
    trust: watch::Sender<bool>,
    messages: mpsc::UnboundedSender<Message>,
) {
    let mut frames = Frames::default();
    let mut buffer = vec![0u8; 16 << 10];
    'alive: loop {
        let receive = || io::receive(client.socket.as_fd(), &mut buffer, &mut frames.fds);
        match client.socket.try_io(Interest::READABLE, receive) {
            Ok(0) => break,
            Ok(n) => frames.bytes.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if client.socket.readable().await.is_err() {
                    break;
                }
                continue;
            }
            Err(_) => break,
        }
        if frames.fds.len() > MAX_HELD {
            tracing::error!(sandbox = client.sandbox, "the shim sent descriptors without a frame");
            break;
        }
        if let Err(e) = client.greet(&mut greeting, &mut frames, &trust).await {
            tracing::error!(sandbox = client.sandbox, "{e}");
            break;
        }
        while greeting.is_none() {
            match frames.take_known::<Message>() {
                Ok(Some(Frame::Whole(message, fds))) => client.dispatch(message, fds, &messages),
                Ok(Some(Frame::TooLong(beginning, length))) => {
                    if !client.refuse(&beginning, length) {
                        break 'alive;
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    tracing::error!(sandbox = client.sandbox, "the shim violated the protocol: {e}");
                    break 'alive;
                }
            }
        }
    }
    // A disconnected peer must not wait for what never comes.
    let _ = rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both);
    let mut waiting = client.waiting();
    *waiting = Waiting { dead: true, ..Waiting::default() };
}

impl ShimClient {
    /// Checks the shim's proof once received, and sends ours if it waits for that.
    async fn greet(
        &self,
        greeting: &mut Option<Greeting>,
        frames: &mut Frames,
        trust: &watch::Sender<bool>,
    ) -> std::io::Result<()> {
        let Some(Greeting { agent, first }) = &greeting else { return Ok(()) };
        let Some(theirs) = frames.bytes.first_chunk() else { return Ok(()) };
        let ours = agent.answer(theirs)?;
        if !first {
            self.write(&ours, &[]).await?;
        }
        frames.bytes.drain(..handshake::LENGTH);
        *greeting = None;
        trust.send_replace(true);
        Ok(())
    }

    /// An oversized answer fails its request only. An oversized event cannot be requested again: returns `false`, and records it as
    /// missed.
    fn refuse(&self, beginning: &[u8], length: usize) -> bool {
        let Some(id) = answered(beginning) else {
            tracing::error!(
                sandbox = self.sandbox,
                "the shim sent a frame of {length} bytes: the maximum is {MAX_FRAME}"
            );
            self.missed.store(true, Ordering::Relaxed);
            return false;
        };
        let why = format!("an answer of {length} bytes: more than {MAX_FRAME}");
        tracing::error!(sandbox = self.sandbox, "{why}");
        let waiting = self.waiting().replies.remove(&id);
        waiting.map(|tell| tell.send((Err(Failure::new(FailureKind::Kernel, why)), Vec::new())));
        true
    }

    fn dispatch(&self, message: Message, fds: Vec<OwnedFd>, messages: &mpsc::UnboundedSender<Message>) {
        match message {
            Message::Reply { id, result } => {
                let waiting = self.waiting().replies.remove(&id);
                waiting.map(|tell| tell.send((result, fds)));
            }
            Message::ExecExited { exec, code } => {
                let waiting = self.waiting().execs.remove(&exec);
                waiting.map(|tell| tell.send(code));
            }
            other => drop(messages.send(other)),
        }
    }
}

#[cfg(test)]
mod tests;
