//! rtnetlink on the calling thread: the `rtnetlink` crate's handle, whose connection is driven by the caller.
//!
//! The kernel answers a route request synchronously. So a [`Route`] needs no task or reactor: a Pod's requests follow each other
//! without changing threads (12 us each), and those that block in the kernel (removing a link: 20 ms) only delay the caller.

use std::cell::Cell;
use std::fmt::Arguments;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::BufMut;
use futures::FutureExt;
use podwright_journal::JournalWriter;
use rtnetlink::Handle;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::proto::Connection;
use rtnetlink::sys::{AsyncSocket, Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::in_netns;
use crate::{Error, Result};

/// Links, addresses, neighbours and routes of the network namespace in which it was opened.
pub struct Route {
    handle: Handle,
    connection: Connection<RouteNetlinkMessage, Immediate>,
    journal: JournalWriter,
}

impl Route {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Route> {
        let socket = Immediate::new(NETLINK_ROUTE).map_err(|e| Error::call("socket(AF_NETLINK, NETLINK_ROUTE)", e))?;
        let (connection, handle, _unsolicited) = rtnetlink::from_socket(socket);
        Ok(Route { handle, connection, journal: JournalWriter::none() })
    }

    /// Opens a socket inside `netns`, from any thread.
    pub fn open_in(netns: BorrowedFd<'_>) -> Result<Route> {
        in_netns(netns, Route::open)?
    }

    /// Records later requests in this journal.
    pub fn set_journal(&mut self, journal: JournalWriter) {
        self.journal = journal;
    }

    /// Sends one request and waits for its response. `what` describes the call and its arguments, for the journal and for errors.
    pub fn call<T, F>(&mut self, what: Arguments<'_>, request: impl FnOnce(&Handle) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, rtnetlink::Error>>,
    {
        let answer = request(&self.handle);
        let connection = &mut self.connection;
        let act = || drive(connection, answer).map_err(|e| Error::call(what.to_string(), e));
        self.journal.call("netlink", |a| a.format(what), act)
    }
}

/// Polls both until the response is there. If neither makes progress, it never comes: the request was not sent, or the response is
/// malformed.
fn drive<T>(
    connection: &mut Connection<RouteNetlinkMessage, Immediate>,
    answer: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> io::Result<T> {
    let moved = Arc::new(Moved::default());
    let waker = Waker::from(moved.clone());
    let mut context = Context::from_waker(&waker);
    let mut answer = pin!(answer);
    loop {
        match answer.as_mut().poll(&mut context) {
            Poll::Ready(Err(rtnetlink::Error::NetlinkError(refusal))) => return Err(refusal.to_io()),
            Poll::Ready(result) => return result.map_err(io::Error::other),
            Poll::Pending => {}
        }
        let closed = connection.poll_unpin(&mut context).is_ready();
        if closed || !moved.0.swap(false, Ordering::Relaxed) {
            let unsent = connection.socket_mut().unsent.take();
            return Err(unsent.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no answer that parses")));
        }
    }
}

/// Whether anything was woken since the last check.
#[derive(Default)]
struct Moved(AtomicBool);

impl Wake for Moved {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A socket that blocks while sending and never while receiving: once a request is sent, its response is there.
struct Immediate {
    socket: Socket,
    /// Why the last request was not sent; otherwise the connection would end with the socket's error.
    unsent: Cell<Option<io::Error>>,
}

impl Immediate {
    fn sent(&self, context: &mut Context<'_>, bytes: &[u8], sent: io::Result<usize>) -> Poll<io::Result<usize>> {
        match sent {
            Ok(_) => context.waker().wake_by_ref(),
            Err(e) => self.unsent.set(Some(e)),
        }
        Poll::Ready(Ok(bytes.len()))
    }
}

impl AsyncSocket for Immediate {
    fn socket_ref(&self) -> &Socket {
        &self.socket
    }
    fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }
    fn new(protocol: isize) -> io::Result<Immediate> {
        Ok(Immediate { socket: Socket::new(protocol)?, unsent: Cell::default() })
    }
    fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.sent(context, bytes, self.socket.send(bytes, 0))
    }
    fn poll_send_to(&self, context: &mut Context<'_>, bytes: &[u8], to: &SocketAddr) -> Poll<io::Result<usize>> {
        self.sent(context, bytes, self.socket.send_to(bytes, to, 0))
    }
    fn poll_recv<B: BufMut>(&self, _: &mut Context<'_>, buffer: &mut B) -> Poll<io::Result<()>> {
        if_there(self.socket.recv(buffer, libc::MSG_DONTWAIT).map(drop))
    }
    fn poll_recv_from<B: BufMut>(&self, _: &mut Context<'_>, buffer: &mut B) -> Poll<io::Result<SocketAddr>> {
        if_there(self.socket.recv_from(buffer, libc::MSG_DONTWAIT).map(|(_, from)| from))
    }
    fn poll_recv_from_full(&self, _: &mut Context<'_>) -> Poll<io::Result<(Vec<u8>, SocketAddr)>> {
        let mut buffer = Vec::with_capacity(64 << 10);
        if_there(self.socket.recv_from(&mut buffer, libc::MSG_DONTWAIT)).map_ok(|(_, from)| (buffer, from))
    }
}

fn if_there<T>(received: io::Result<T>) -> Poll<io::Result<T>> {
    match received {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}
