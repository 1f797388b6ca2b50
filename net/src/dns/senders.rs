//! Sends answers by UDP: with separate sockets for each link that questions arrive on, so that no client can block others' answers.
//!
//! A datagram is charged to its sending socket until it is received or dropped, and a socket with too many of them cannot send. A
//! process that administers a Pod's network may keep datagrams forever, in a queue that is never emptied. The link belongs to that
//! Pod alone, as does the socket that fills up.
//!
//! A second socket on the port would need SO_REUSEPORT, which any root program in the node's network could use as well. So answers
//! are sent as raw packets, through sockets without a port. Without permission for such a socket (CAP_NET_RAW) the one on the port
//! is used, and a warning about the consequences is logged at startup.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, sendto};
use tokio::net::UdpSocket;

use crate::netlink;
use crate::{NodeNetns, Result};

/// Maximum open sockets, for more links than a node has Pods. Beyond it the least recently used one is closed.
const MOST: usize = 1024;
/// Number of sockets shared by the clients of one link, one per client. A Pod's link has one client; another link has many, and one
/// of them may claim to be a Pod.
const OF_LINK: u64 = 16;
const PROTOCOL: u8 = 17;
const HOPS: u8 = 64;
/// The size of a UDP header.
const HEADER: usize = 8;

/// The sockets of one DNS address.
pub struct Senders {
    netns: NodeNetns,
    from: SocketAddr,
    /// By link index and client hash, each with the number of its last use.
    open: HashMap<(u32, u64), (Arc<Sender>, u64)>,
    uses: u64,
    /// The only socket, if no others can be opened.
    only: Option<Arc<Sender>>,
}

/// The socket of a client, of some, or of all.
pub struct Sender {
    socket: Socket,
    from: SocketAddr,
}

enum Socket {
    /// Accepts raw packets.
    Packets(OwnedFd),
    /// The one on the port.
    Datagrams(Arc<UdpSocket>),
}

impl Senders {
    /// `on_port` is the socket for questions. Fails if no socket can send answers.
    pub async fn open(netns: NodeNetns, on_port: &Arc<UdpSocket>, from: SocketAddr) -> Result<Senders> {
        let mut senders = Senders { netns, from, open: HashMap::new(), uses: 0, only: None };
        match senders.socket().await {
            Ok(_) => {}
            Err(error) if matches!(error.errno(), Some(libc::EPERM | libc::EACCES)) => {
                tracing::warn!(
                    %error,
                    "without CAP_NET_RAW the cluster DNS on {from} answers all clients by one socket: \
                     a Pod that never takes its answers can hold up those of others"
                );
                let socket = Socket::Datagrams(on_port.clone());
                senders.only = Some(Arc::new(Sender { socket, from }));
            }
            Err(error) => return Err(error),
        }
        Ok(senders)
    }

    async fn socket(&self) -> Result<OwnedFd> {
        let address = self.from.ip();
        self.netns.run(move || netlink::packet_socket(address)).await?
    }

    /// The socket for the answers of a client on this link.
    pub async fn of(&mut self, link: u32, client: IpAddr) -> Result<Arc<Sender>> {
        if let Some(only) = &self.only {
            return Ok(only.clone());
        }
        self.uses += 1;
        // By an unpredictable hash.
        let key = (link, self.open.hasher().hash_one(client) % OF_LINK);
        if let Some((sender, used)) = self.open.get_mut(&key) {
            *used = self.uses;
            return Ok(sender.clone());
        }
        let socket = Socket::Packets(self.socket().await?);
        if self.open.len() >= MOST
            && let Some(silent) = self.open.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key)
        {
            self.open.remove(&silent);
        }
        let sender = Arc::new(Sender { socket, from: self.from });
        self.open.insert(key, (sender.clone(), self.uses));
        Ok(sender)
    }
}

impl Sender {
    /// Sends an answer, or nothing if the client's socket is full: UDP clients retry. Returns whether it fits the link: the kernel
    /// does not fragment raw packets.
    pub fn send(&self, answer: &[u8], client: SocketAddr) -> bool {
        let send = |socket: &dyn AsRawFd, bytes: &[u8], to: SocketAddr| {
            sendto(socket.as_raw_fd(), bytes, &SockaddrStorage::from(to), MsgFlags::MSG_DONTWAIT)
        };
        let sent = match &self.socket {
            Socket::Packets(socket) => {
                let Some(packet) = packet(self.from, client, answer) else { return true };
                // The packet contains the port.
                let mut to = client;
                to.set_port(0);
                send(socket, &packet, to)
            }
            Socket::Datagrams(socket) => send(socket, answer, client),
        };
        sent != Err(Errno::EMSGSIZE)
    }
}

/// A datagram with its headers; `None` if it is too long, or the families differ. The kernel fills in the rest of IPv4's: its id
/// and checksum.
fn packet(from: SocketAddr, to: SocketAddr, data: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(HEADER + data.len()).ok()?;
    let mut packet = Vec::with_capacity(40 + usize::from(length));
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([0x45, 0]);
            packet.extend(length.checked_add(20)?.to_be_bytes());
            packet.extend([0, 0, 0, 0, HOPS, PROTOCOL, 0, 0]);
            [source.octets(), destination.octets()].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend([PROTOCOL, HOPS]);
            [source.octets(), destination.octets()].concat()
        }
        _ => return None,
    };
    packet.extend(&addresses);
    let start = packet.len();
    for word in [from.port(), to.port(), length, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(data);
    let sum = folded(&addresses) + u32::from(PROTOCOL) + u32::from(length) + folded(&packet[start..]);
    // 0 means no checksum.
    let checksum = match !(folded(&sum.to_be_bytes()) as u16) {
        0 => u16::MAX,
        checksum => checksum,
    };
    packet[start + 6..start + HEADER].copy_from_slice(&checksum.to_be_bytes());
    Some(packet)
}

/// The sum of the 16-bit words with carries added, below 2^16.
fn folded(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| (u32::from(pair[0]) << 8) + u32::from(pair.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).fold(0, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn a_packet_says_from_whom_to_whom_and_that_it_is_whole() {
        let packet = packet(at("10.96.0.10:53"), at("10.244.1.2:40000"), b"abc").unwrap();
        let expected = [
            &[0x45, 0, 0, 31, 0, 0, 0, 0, 64, 17, 0, 0, 10, 96, 0, 10, 10, 244, 1, 2][..],
            // 0a60 + 000a + 0af4 + 0102 + 0011 + 000b + 0035 + 9c40 + 000b + 6162 + 6300 = 1775e; 775e + 1 = 775f, and not 88a0
            &[0, 53, 0x9c, 0x40, 0, 11, 0x88, 0xa0, b'a', b'b', b'c'],
        ];
        assert_eq!(packet, expected.concat());
        let packet = super::packet(at("[fd00:96::a]:53"), at("[fd00:244:1::2]:40000"), b"abc").unwrap();
        assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 11, 17, 64]);
        assert_eq!(packet[40..46], [0, 53, 0x9c, 0x40, 0, 11]);
        assert_eq!(folded(&packet[8..]) + 17 + 11, 0xffff, "the sum of all with the checksum");
    }

    #[test]
    fn a_checksum_is_never_none() {
        let (from, to) = (at("10.96.0.10:53"), at("10.244.1.2:40000"));
        let sum = |data: &[u8]| u16::from_be_bytes(packet(from, to, data).unwrap()[26..28].try_into().unwrap());
        // Adding this yields ffff.
        let rest = sum(&[0, 0]);
        assert_eq!(sum(&rest.to_be_bytes()), u16::MAX);
        assert!(packet(from, to, &[0; 65_508]).is_none());
        assert!(packet(from, at("[fd00:244:1::2]:40000"), b"abc").is_none());
    }
}
