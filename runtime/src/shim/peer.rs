//! One connection from an agent: a handshake, then frames in, frames out, without blocking.
//!
//! A peer's input is ignored until it has proven to be the agent (see [`crate::handshake`]), and nothing is sent to it. One that
//! sends garbage, hoards descriptors or does not read is dropped; unauthenticated ones that stall make room for others.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::handshake;
use crate::protocol::{Answer, Failure, FailureKind, Frames, Message, Request, encode};
use podwright_sys::io::{self, PollFd};

use super::Shim;
use super::container::Requester;

/// With more unread answers an agent is considered dead.
const MAX_WAITING: usize = 256;
/// Maximum connections: an agent has one, and its successor another.
const MAX_PEERS: usize = 8;
/// Maximum descriptors waiting for their frame: those of one frame, and some of the next.
const MAX_HELD: usize = 4 * io::MAX_FDS;

pub struct Peer {
    socket: OwnedFd,
    greeting: handshake::Shim,
    pub frames: Frames,
    out: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Bytes of the first frame of `out` sent so far.
    sent: usize,
}

impl Peer {
    pub fn new(socket: OwnedFd) -> Peer {
        Peer { socket, greeting: handshake::Shim::New, frames: Frames::default(), out: VecDeque::new(), sent: 0 }
    }

    pub fn interest(&self) -> PollFd {
        let out = if self.out.is_empty() { 0 } else { libc::POLLOUT };
        PollFd::new(self.socket.as_fd(), libc::POLLIN | out)
    }

    pub fn idle(&self) -> bool {
        self.out.is_empty() || !self.is_proven()
    }

    pub fn is_proven(&self) -> bool {
        self.greeting == handshake::Shim::Proven
    }

    /// Handles received handshake bytes; `false` if the peer is not the agent.
    fn greet(&mut self, secret: &mut Option<handshake::Secret>) -> bool {
        while !self.is_proven() {
            // The first frame may arrive together with the handshake, with descriptors; the handshake itself has none.
            let Some(theirs) = self.frames.bytes.first_chunk() else { return self.frames.fds.is_empty() };
            match self.greeting.take(theirs, secret) {
                Ok(ours) => self.out.extend(ours.map(|bytes| (bytes.to_vec(), Vec::new()))),
                Err(_) => return false,
            }
            self.frames.bytes.drain(..handshake::LENGTH);
        }
        self.flush()
    }

    /// Reads available input; `false` when the agent is gone.
    pub fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match io::receive(self.socket.as_fd(), buffer, &mut self.frames.fds) {
            Ok(0) => false,
            Ok(n) => {
                self.frames.bytes.extend_from_slice(&buffer[..n]);
                // The buffer is kept, and the input may contain environments. (Freed memory is overwritten.)
                buffer[..n].fill(0);
                self.frames.fds.len() <= MAX_HELD
            }
            Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// Queues a frame and sends as much as the socket accepts; `false` when the agent is gone. An oversized answer is replaced by
    /// an error, without descriptors: an unanswered agent would consider the shim dead.
    pub fn send(&mut self, message: &Message, mut fds: Vec<OwnedFd>) -> bool {
        let version = self.frames.version;
        let encoded = encode(message, fds.len(), version).or_else(|why| {
            let Message::Reply { id, .. } = message else { return Err(why) };
            fds.clear();
            encode(&Message::Reply { id: *id, result: Err(Failure::new(FailureKind::Kernel, why)) }, 0, version)
        });
        let Ok(frame) = encoded else { return true };
        self.out.push_back((frame, fds));
        self.out.len() < MAX_WAITING && self.flush()
    }

    pub fn flush(&mut self) -> bool {
        while let Some((frame, fds)) = self.out.front() {
            let attached: Vec<BorrowedFd<'_>> = match self.sent {
                0 => fds.iter().map(|fd| fd.as_fd()).collect(),
                _ => Vec::new(),
            };
            match io::send(self.socket.as_fd(), &frame[self.sent..], &attached) {
                Ok(n) => self.sent += n,
                Err(e) => return e.kind() == std::io::ErrorKind::WouldBlock,
            }
            if self.sent == frame.len() {
                self.sent = 0;
                self.out.pop_front();
            }
        }
        true
    }
}

impl Shim {
    /// Accepts a connection from root.
    pub(super) fn welcome(&mut self, socket: OwnedFd) {
        if !io::peer_uid(socket.as_fd()).is_ok_and(|uid| uid == 0) {
            return;
        }
        if self.peers.len() >= MAX_PEERS {
            // Ids ascend: the first is the oldest.
            let Some(id) = self.peers.iter().find(|(_, p)| !p.is_proven()).map(|(id, _)| *id) else { return };
            self.peers.remove(&id);
        }
        self.next_peer += 1;
        self.peers.insert(self.next_peer, Peer::new(socket));
    }

    /// Reads from one agent and handles its requests.
    pub(super) fn serve(&mut self, id: u64, fd: &PollFd) {
        self.serve_by(id, fd, Shim::handle);
    }

    /// Reads from one agent and passes its requests to `handle`.
    pub(super) fn serve_by(
        &mut self,
        id: u64,
        fd: &PollFd,
        mut handle: impl FnMut(&mut Shim, u64, Request, Vec<OwnedFd>),
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let mut alive = peer.flush();
        if fd.readable() {
            alive &= peer.receive(&mut self.buffer);
        }
        alive &= peer.greet(&mut self.secret);
        while let Some(peer) = self.peers.get_mut(&id).filter(|p| p.is_proven()) {
            match peer.frames.take() {
                Ok(Some((request, fds))) => handle(self, id, request, fds),
                Ok(None) => break,
                Err(_) => {
                    alive = false;
                    break;
                }
            }
        }
        if !alive {
            self.peers.remove(&id);
        }
    }

    pub(super) fn reply(&mut self, to: Requester, result: Result<Answer, Failure>, fds: &[OwnedFd]) {
        let fds = fds.iter().filter_map(|fd| fd.try_clone().ok()).collect();
        self.send(to.peer, &Message::Reply { id: to.id, result }, fds);
    }

    pub(super) fn broadcast(&mut self, message: &Message) {
        for id in self.peers.iter().filter(|(_, p)| p.is_proven()).map(|(id, _)| *id).collect::<Vec<_>>() {
            self.send(id, message, Vec::new());
        }
    }

    fn send(&mut self, id: u64, message: &Message, fds: Vec<OwnedFd>) {
        if let Some(peer) = self.peers.get_mut(&id)
            && !peer.send(message, fds)
        {
            self.peers.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::protocol::{Call, OLDEST, VERSION};

    /// An agent older than its shim (after a downgrade) understands the answers.
    #[test]
    fn each_agent_is_answered_in_the_version_that_it_speaks() {
        for version in [OLDEST, VERSION] {
            let (agent, shim) = UnixStream::pair().unwrap();
            let mut peer = Peer::new(shim.into());
            let request = Request { id: 1, cause: Default::default(), call: Call::State };
            peer.frames.bytes = encode(&request, 0, version).unwrap();
            assert!(peer.frames.take::<Request>().unwrap().is_some());
            assert!(peer.send(&Message::SandboxGone, Vec::new()));
            let mut head = [0; 8];
            (&agent).read_exact(&mut head).unwrap();
            assert_eq!(head[5], version);
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_told_to_be() {
        let (agent, shim) = UnixStream::pair().unwrap();
        let mut peer = Peer::new(shim.into());
        let long = Failure { kind: FailureKind::NotFound, message: "x".repeat(crate::protocol::MAX_FRAME) };
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(peer.send(&Message::Reply { id: 7, result: Err(long) }, vec![null.into()]));
        let mut bytes = vec![0; 1 << 10];
        let read = (&agent).read(&mut bytes).unwrap();
        bytes.truncate(read);
        let (told, _) = Frames { bytes, ..Frames::default() }.take::<Message>().unwrap().unwrap();
        let Message::Reply { id: 7, result: Err(why) } = told else { panic!("{told:?}") };
        assert!(why.message.contains("8388608"), "{why:?}");
    }
}
