//! Kernel notifications about changes in a network namespace: links, addresses, routes, neighbours, settings.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use rtnetlink::sys::{Socket, protocols::NETLINK_ROUTE};

use super::in_netns;
use crate::message::{self, u32_at};
use crate::{Error, Result};

// linux/rtnetlink.h: enum rtnetlink_groups
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_NEIGH: u32 = 3;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;
const RTNLGRP_IPV4_NETCONF: u32 = 24;
const RTNLGRP_IPV6_NETCONF: u32 = 25;
const GROUPS: [u32; 8] = [
    RTNLGRP_LINK,
    RTNLGRP_NEIGH,
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_IPV4_NETCONF,
    RTNLGRP_IPV6_NETCONF,
];

/// Monitors one network namespace. It reports that something changed, not what.
pub struct Watch {
    socket: Socket,
}

impl Watch {
    /// Monitors the calling thread's network namespace.
    pub fn open() -> Result<Watch> {
        let failed = |e| Error::call("listen to rtnetlink", e);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind_auto().map_err(failed)?;
        GROUPS.iter().try_for_each(|group| socket.add_membership(*group)).map_err(failed)?;
        socket.set_non_blocking(true).map_err(failed)?;
        Ok(Watch { socket })
    }

    /// Monitors `netns`, from any thread.
    pub fn open_in(netns: BorrowedFd<'_>) -> Result<Watch> {
        in_netns(netns, Watch::open)?
    }

    /// Consumes all notifications; returns whether there were any. Of neighbours only those on links that `concerns` (by index)
    /// count: those of other machines change all the time.
    pub fn changed(&mut self, concerns: impl Fn(u32) -> bool) -> bool {
        let (mut changed, mut buffer) = (false, [0; 16 << 10]);
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) | Err(Errno::EAGAIN) => return changed,
                Ok(length) => {
                    let mut messages = message::messages(&buffer[..length]).peekable();
                    // One longer than the buffer cannot be parsed, and so counts.
                    changed |= messages.peek().is_none();
                    changed |= messages.any(|m| match m.kind {
                        // struct ndmsg has the index after its first word.
                        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => concerns(u32_at(m.payload, 4)),
                        _ => true,
                    });
                }
                Err(Errno::EINTR) => {}
                // ENOBUFS: notifications were lost.
                Err(_) => changed = true,
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
