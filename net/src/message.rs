//! Netlink messages as bytes: a writer for requests and a reader for responses, shared by nf_tables and ctnetlink.
//!
//! Why not `netlink-packet-netfilter` (0.4.0), which was tried in full: a change of one endpoint costs the same 0.5 ms, but a load
//! of 5,000 Services takes 20 ms more of the processor (each element is a tree of vectors, measured once for every level it is
//! nested in), and the binary gains 270 kB, for 230 lines less here and in [`crate::dataplane`].

use std::net::IpAddr;

/// Length of `struct nlmsghdr`.
pub const HEADER: usize = 16;

/// A request of one or more netlink messages, written in order.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    message: usize,
}

/// An open nested attribute; `Writer::close` sets its length.
#[must_use]
pub struct Nest(usize);

impl Writer {
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Starts a message: `kind` with `flags`, and its fixed header (`struct ifinfomsg`, `nfgenmsg`, ...).
    pub fn message(&mut self, kind: u16, flags: u16, header: &[u8]) -> &mut Writer {
        self.finish_message();
        self.message = self.bytes.len();
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(header);
        self.pad();
        self
    }

    /// Requests an acknowledgement of the current message.
    pub fn acknowledge(&mut self) {
        let at = self.message + 6;
        if let Some(flags) = self.bytes.get_mut(at..at + 2) {
            let asked = u16::from_ne_bytes([flags[0], flags[1]]) | libc::NLM_F_ACK as u16;
            flags.copy_from_slice(&asked.to_ne_bytes());
        }
    }

    /// An attribute of raw bytes.
    pub fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Writer {
        // Attribute lengths are 16 bits; the callers' values are addresses, names and numbers.
        debug_assert!(value.len() + 4 <= usize::from(u16::MAX));
        self.bytes.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }
    /// A number in network order.
    pub fn be32(&mut self, kind: u16, value: u32) -> &mut Writer {
        self.attr(kind, &value.to_be_bytes())
    }
    /// A string with its final NUL.
    pub fn str(&mut self, kind: u16, value: &str) -> &mut Writer {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }
    /// Opens a nested attribute.
    pub fn open(&mut self, kind: u16) -> Nest {
        let nest = Nest(self.bytes.len());
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&(kind | libc::NLA_F_NESTED as u16).to_ne_bytes());
        nest
    }
    /// Closes a nested attribute.
    pub fn close(&mut self, nest: Nest) -> &mut Writer {
        let length = (self.bytes.len() - nest.0) as u16;
        self.bytes[nest.0..nest.0 + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// The bytes written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The finished bytes with messages numbered from `first`; also the number of the last.
    pub fn finish(mut self, first: u32) -> (Vec<u8>, u32) {
        self.finish_message();
        let (mut at, mut seq) = (0, first);
        let mut last = first;
        while at + HEADER <= self.bytes.len() {
            self.bytes[at + 8..at + 12].copy_from_slice(&seq.to_ne_bytes());
            last = seq;
            seq = seq.wrapping_add(1);
            at += align(u32_at(&self.bytes, at) as usize);
        }
        (self.bytes, last)
    }

    fn finish_message(&mut self) {
        if self.bytes.len() > self.message {
            let length = (self.bytes.len() - self.message) as u32;
            self.bytes[self.message..self.message + 4].copy_from_slice(&length.to_ne_bytes());
        }
    }
    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

/// One received message.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub seq: u32,
    pub payload: &'a [u8],
}

/// Splits a received datagram into its messages; stops at the first malformed one.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.len() < HEADER {
            return None;
        }
        let length = u32_at(rest, 0) as usize;
        if length < HEADER || length > rest.len() {
            return None;
        }
        let message = Message {
            kind: u16::from_ne_bytes([rest[4], rest[5]]),
            flags: u16::from_ne_bytes([rest[6], rest[7]]),
            seq: u32_at(rest, 8),
            payload: &rest[HEADER..length],
        };
        rest = &rest[align(length).min(rest.len())..];
        Some(message)
    })
}

/// The attributes of a payload or of a nested attribute: `(kind, value)`; stops at the first malformed one.
pub fn attributes(payload: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.len() < 4 {
            return None;
        }
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        if length < 4 || length > rest.len() {
            return None;
        }
        let kind = u16::from_ne_bytes([rest[2], rest[3]]) & !((libc::NLA_F_NESTED | libc::NLA_F_NET_BYTEORDER) as u16);
        let value = &rest[4..length];
        rest = &rest[align(length).min(rest.len())..];
        Some((kind, value))
    })
}

/// The first attribute of a kind.
pub fn attribute(payload: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(payload).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// An address of 4 or 16 bytes.
pub fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The host-order number at `at`; 0 where the bytes end before.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn align(length: usize) -> usize {
    (length + 3) & !3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut w = Writer::new();
        w.message(7, 1, &[1, 2, 3, 4]).str(3, "eth0");
        let nest = w.open(9);
        w.be32(1, 77);
        w.close(nest);
        w.message(8, 0, &[]).attr(2, &[5]);
        let (bytes, last) = w.finish(41);
        assert_eq!(last, 42);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all[0].kind, all[0].seq, all[1].kind, all[1].seq), (7, 41, 8, 42));
        let body = &all[0].payload[4..];
        assert_eq!(attribute(body, 3), Some(&b"eth0\0"[..]));
        assert_eq!(u32_at(attribute(attribute(body, 9).unwrap(), 1).unwrap(), 0), 77u32.to_be());
        assert_eq!(attribute(all[1].payload, 2), Some(&[5u8][..]));
    }

    #[test]
    fn garbage_ends_the_reading() {
        for garbage in [&[0u8; 3][..], &[255; 40], &[8, 0, 0, 0, 1, 2, 3, 4], &[0; 64]] {
            assert_eq!(messages(garbage).count(), 0);
            assert!(attributes(garbage).count() <= 1);
        }
    }
}
