//! Counts the objects of a network namespace without reading all of them.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv};
use rtnetlink::sys::{Socket, protocols::NETLINK_ROUTE};

use super::{Acknowledged, Answer, RECEIVE_BUFFER, acknowledged, in_netns};
use crate::message::{self, Writer};
use crate::{Error, Result};

/// The counted kinds, and the length of their fixed headers: `struct ifinfomsg`, `ifaddrmsg`, `rtmsg`, `ndmsg`.
const KINDS: [(&str, u16, usize); 4] = [
    ("links", libc::RTM_GETLINK, 16),
    ("addresses", libc::RTM_GETADDR, 8),
    ("routes", libc::RTM_GETROUTE, 12),
    ("neighbours", libc::RTM_GETNEIGH, 12),
];

/// Whether a namespace has more than `most` links, addresses, routes or neighbours. Reads in pieces, only until that is known: its
/// administrator may have created millions.
pub fn has_more_than(netns: BorrowedFd<'_>, most: usize) -> Result<bool> {
    // Closing it discards the rest of the last dump.
    let socket = in_netns(netns, || Socket::new(NETLINK_ROUTE))?;
    let socket = socket.map_err(|e| Error::call("socket(AF_NETLINK, NETLINK_ROUTE)", e))?;
    let mut buffer = vec![0; RECEIVE_BUFFER];
    for kind in KINDS {
        if counts_more_than(&socket, kind, most, &mut buffer)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn counts_more_than(
    socket: &Socket,
    (what, kind, header): (&str, u16, usize),
    most: usize,
    buffer: &mut [u8],
) -> Result<bool> {
    let mut request = Writer::new();
    // All families.
    request.message(kind, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, &vec![0; header]);
    let failed = |e| Error::call(format!("count {what}"), e);
    socket.send(&request.finish(1).0, 0).map_err(failed)?;
    let mut counted = 0;
    loop {
        let length = match recv(socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            Ok(length) => length,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(e) => return Err(failed(e.into())),
        };
        for found in message::messages(&buffer[..length]) {
            match acknowledged(&Answer { kind: found.kind, payload: found.payload.to_vec() }) {
                Acknowledged::Ack(done) | Acknowledged::Done(done) => return done.map(|()| false).map_err(failed),
                Acknowledged::Data => counted += 1,
            }
        }
        if counted > most {
            return Ok(true);
        }
    }
}
