//! The agent's connection to one shim: requests with their answers, and what the shim tells by itself.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::plan::{Answer, Call, Failure, FailureKind, Frames, Message, Request, encode};
use crate::sys::io;
use crate::{Cause, Error, Result};

type Reply = (std::result::Result<Answer, Failure>, Vec<OwnedFd>);

/// A live connection. It is dead when the shim is.
#[derive(Debug)]
pub struct Link {
    sandbox: String,
    socket: UnixStream,
    /// Held while a frame is written: frames do not mix.
    writing: tokio::sync::Mutex<()>,
    next: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// The task that reads from a shim; dropping it lets go of the connection.
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

/// The socket's path can be longer than a socket address: so it is named through its folder's descriptor.
fn short_path(folder: &File) -> std::path::PathBuf {
    io_path(folder.as_raw_fd())
}

fn io_path(fd: i32) -> std::path::PathBuf {
    format!("/proc/self/fd/{fd}/s").into()
}

/// Listens at `<folder>/s`; an old socket there is replaced.
pub fn listen(folder: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(folder.join("s")) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    UnixListener::bind(short_path(&File::open(folder)?))
}

impl Link {
    /// Connects to the shim that listens at `<folder>/s`. What it tells by itself goes to `messages`, which closes when
    /// the shim is gone.
    pub fn connect(
        sandbox: &str,
        folder: &Path,
        messages: mpsc::UnboundedSender<Message>,
    ) -> std::io::Result<(Arc<Link>, Reader)> {
        let stream = StdStream::connect(short_path(&File::open(folder)?))?;
        stream.set_nonblocking(true)?;
        let link = Arc::new(Link {
            sandbox: sandbox.to_owned(),
            socket: UnixStream::from_std(stream)?,
            writing: tokio::sync::Mutex::new(()),
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
        });
        let reader = Reader(tokio::spawn(read_all(link.clone(), messages)));
        Ok((link, reader))
    }

    /// Asks, and waits for the answer. Errors: [`Error::ShimGone`], or what the shim says.
    pub async fn ask(&self, cause: &Cause, call: Call, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>)> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = encode(&Request { id, cause: cause.clone(), call }, fds.len())
            .map_err(|e| Error::Invalid(format!("request: {e}")))?;
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.dead {
                return Err(self.gone());
            }
            waiting.replies.insert(id, tell);
        }
        self.write(&frame, fds).await.map_err(|_| self.gone())?;
        let (result, fds) = told.await.map_err(|_| self.gone())?;
        Ok((result.map_err(|f| error_of(f, &self.sandbox))?, fds))
    }

    /// Registers for the exit code of an exec that is about to be asked for.
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

    pub fn is_dead(&self) -> bool {
        self.waiting().dead
    }

    pub fn gone(&self) -> Error {
        Error::ShimGone(self.sandbox.clone())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let _turn = self.writing.lock().await;
        let mut sent = 0;
        while sent < frame.len() {
            let attached = if sent == 0 { fds } else { &[] };
            let send = || io::send(self.socket.as_fd(), &frame[sent..], attached);
            match self.socket.try_io(Interest::WRITABLE, send) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.socket.writable().await?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
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

/// Reads until the shim is gone, then wakes everyone who waits.
async fn read_all(link: Arc<Link>, messages: mpsc::UnboundedSender<Message>) {
    let mut frames = Frames::default();
    let mut buffer = vec![0u8; 16 << 10];
    'alive: loop {
        let receive = || io::receive(link.socket.as_fd(), &mut buffer, &mut frames.fds);
        match link.socket.try_io(Interest::READABLE, receive) {
            Ok(0) => break,
            Ok(n) => frames.bytes.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if link.socket.readable().await.is_err() {
                    break;
                }
                continue;
            }
            Err(_) => break,
        }
        loop {
            match frames.next::<Message>() {
                Ok(Some((message, fds))) => link.dispatch(message, fds, &messages),
                Ok(None) => break,
                Err(e) => {
                    tracing::error!(sandbox = link.sandbox, "a shim that does not speak our protocol: {e}");
                    break 'alive;
                }
            }
        }
    }
    let mut waiting = link.waiting();
    *waiting = Waiting { dead: true, ..Waiting::default() };
}

impl Link {
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
