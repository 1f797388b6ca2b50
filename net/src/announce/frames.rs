//! The frames of announcing, as bytes: ARP (RFC 826, RFC 5227), neighbour discovery (RFC 4861), and nodes' heartbeats. Pure.
//!
//! Everybody on the link writes what is read here: whatever is not exactly as expected is nothing.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// A link's hardware address.
pub type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const ETHERNET: usize = 14;
pub const ETH_P_ARP: u16 = 0x0806;
/// IEEE 802's first ethertype for local experiments, which no router forwards.
pub const ETH_P_HEARTBEAT: u16 = 0x88b5;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const TARGET_LINK_ADDRESS: u8 = 2;
/// No router has decremented it: the sender is on the link (RFC 4861, 7.1.1).
pub const ON_LINK: i32 = 255;

/// Somebody on the link asks whose an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub asker: Mac,
    /// Unspecified: it only wants to know whether somebody has the address (RFC 5227).
    pub from: Ipv4Addr,
    pub target: Ipv4Addr,
}

/// Reads an ARP request; `None` for any other frame.
pub fn arp_question(frame: &[u8]) -> Option<Question> {
    let (head, body) = (frame.get(..ETHERNET)?, frame.get(ETHERNET..ETHERNET + 28)?);
    // Ethernet and IPv4, with addresses of 6 and 4 bytes.
    let is_request = body[..8] == [0, 1, 8, 0, 6, 4, 0, REQUEST as u8] && head[12..] == ETH_P_ARP.to_be_bytes();
    let asker = Mac::try_from(&body[8..14]).ok()?;
    // An answer to a group would be heard by others than the asker.
    if !is_request || asker[0] & 1 != 0 || asker == [0; 6] {
        return None;
    }
    Some(Question { asker, from: v4(&body[14..18])?, target: v4(&body[24..28])? })
}

fn v4(bytes: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from)
}

/// The answer: the address is at `own`.
pub fn arp_answer(own: Mac, question: &Question) -> Vec<u8> {
    arp(own, question.asker, REPLY, question.target, (question.asker, question.from))
}

/// Tells the whole link that the address is at `own`: both forms, as some hosts heed the one and some the other.
pub fn arp_announcements(own: Mac, address: Ipv4Addr) -> [Vec<u8>; 2] {
    [
        arp(own, BROADCAST, REQUEST, address, ([0; 6], address)),
        arp(own, BROADCAST, REPLY, address, (BROADCAST, address)),
    ]
}

fn arp(own: Mac, to: Mac, operation: u16, address: Ipv4Addr, target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut frame = ethernet(own, to, ETH_P_ARP);
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(own);
    frame.extend(address.octets());
    frame.extend(target.0);
    frame.extend(target.1.octets());
    frame
}

fn ethernet(own: Mac, to: Mac, kind: u16) -> Vec<u8> {
    [&to[..], &own, &kind.to_be_bytes()].concat()
}

/// Reads the target of a neighbour solicitation (an ICMPv6 message whose checksum the kernel has verified, from a sender on the
/// link); `None` for anything else.
pub fn solicited(message: &[u8]) -> Option<Ipv6Addr> {
    let is_solicitation = message.first() == Some(&SOLICITATION) && message.get(1) == Some(&0);
    let target = <[u8; 16]>::try_from(message.get(8..24)?).ok().map(Ipv6Addr::from)?;
    (is_solicitation && !target.is_multicast()).then_some(target)
}

/// An advertisement of an address at `own`: the answer to somebody, or unsolicited, to all. The kernel fills in the checksum.
pub fn advertisement(own: Mac, address: Ipv6Addr, is_answer: bool) -> Vec<u8> {
    // Override (what neighbours have cached), and that it is an answer.
    let flags = 0x20 | if is_answer { 0x40 } else { 0 };
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    message.extend(address.octets());
    message.extend([TARGET_LINK_ADDRESS, 1]);
    message.extend(own);
    message
}

/// The group in which solicitations of an address are sent.
pub fn solicited_group(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// What a node says of itself on its links, several times a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Nodes of other clusters may be on the link.
    pub cluster: u64,
    pub name: String,
    /// How long it has been there.
    pub age: Duration,
    /// Whether it knows what is wanted now.
    pub connected: bool,
    /// It is the last one: the node announces nothing from now on.
    pub leaving: bool,
}

const MAGIC: &[u8] = b"podwright\x01";
const CONNECTED: u8 = 1;
const LEAVING: u8 = 2;
/// A DNS name's.
const LONGEST_NAME: usize = 253;

impl Heartbeat {
    pub fn frame(&self, own: Mac) -> Vec<u8> {
        let mut frame = ethernet(own, BROADCAST, ETH_P_HEARTBEAT);
        let name = &self.name.as_bytes()[..self.name.len().min(LONGEST_NAME)];
        let flags = if self.connected { CONNECTED } else { 0 } | if self.leaving { LEAVING } else { 0 };
        let age = u32::try_from(self.age.as_millis()).unwrap_or(u32::MAX);
        frame.extend(MAGIC);
        frame.extend(self.cluster.to_be_bytes());
        frame.extend(age.to_be_bytes());
        // The invariant: a name was cut to what a byte counts.
        frame.extend([flags, name.len() as u8]);
        frame.extend(name);
        frame
    }

    /// Reads one; `None` for any other frame.
    pub fn read(frame: &[u8]) -> Option<Heartbeat> {
        let body = frame.get(ETHERNET..)?.strip_prefix(MAGIC)?;
        let cluster = u64::from_be_bytes(body.get(..8)?.try_into().ok()?);
        let age = u32::from_be_bytes(body.get(8..12)?.try_into().ok()?);
        let (flags, length) = (*body.get(12)?, usize::from(*body.get(13)?));
        let name =
            std::str::from_utf8(body.get(14..14 + length)?).ok().filter(|_| (1..=LONGEST_NAME).contains(&length))?;
        Some(Heartbeat {
            cluster,
            name: name.to_owned(),
            age: Duration::from_millis(age.into()),
            connected: flags & CONNECTED != 0,
            leaving: flags & LEAVING != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const ASKER: Mac = [2, 0, 0, 0, 0, 9];

    #[test]
    fn a_question_is_answered_to_who_has_asked() {
        let (from, target) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 9));
        let asked = arp(ASKER, BROADCAST, REQUEST, from, ([0; 6], target));
        let question = arp_question(&asked).unwrap();
        assert_eq!(question, Question { asker: ASKER, from, target });
        let answer = arp_answer(OWN, &question);
        assert_eq!((&answer[..6], &answer[6..12]), (&ASKER[..], &OWN[..]));
        assert_eq!(answer[20..22], [0, 2]);
        assert_eq!((&answer[22..28], &answer[28..32]), (&OWN[..], &target.octets()[..]));
        assert_eq!((&answer[32..38], &answer[38..42]), (&ASKER[..], &from.octets()[..]));
        // No question: an answer, one by a group, a cut one, another protocol.
        assert_eq!(arp_question(&answer), None);
        assert_eq!(arp_question(&arp([3, 0, 0, 0, 0, 9], BROADCAST, REQUEST, from, ([0; 6], target))), None);
        assert_eq!(arp_question(&asked[..41]), None);
        let other = [&asked[..12], &[8, 0], &asked[14..]].concat();
        assert_eq!(arp_question(&other), None);
    }

    #[test]
    fn a_solicitation_is_answered_with_the_links_address() {
        let address: Ipv6Addr = "2001:db8::1:2345".parse().unwrap();
        let asked = [&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..], &address.octets()].concat();
        assert_eq!(solicited(&asked), Some(address));
        assert_eq!(solicited(&asked[..23]), None);
        let answer = advertisement(OWN, address, true);
        assert_eq!((answer[0], answer[4], answer.len()), (136, 0x60, 32));
        assert_eq!((&answer[8..24], &answer[26..]), (&address.octets()[..], &OWN[..]));
        assert_eq!(advertisement(OWN, address, false)[4], 0x20);
        assert_eq!(solicited(&answer), None);
        assert_eq!(solicited_group(address).to_string(), "ff02::1:ff01:2345");
    }

    proptest! {
        #[test]
        fn a_heartbeat_is_read_as_it_was_written(cluster: u64, name in "[a-z0-9.]{1,253}", age: u32, connected: bool, leaving: bool) {
            let beat = Heartbeat { cluster, name, age: Duration::from_millis(age.into()), connected, leaving };
            let frame = beat.frame(OWN);
            prop_assert_eq!(Heartbeat::read(&frame), Some(beat));
            // Short frames are filled up on the way.
            let padded = [frame.clone(), vec![0; 20]].concat();
            prop_assert_eq!(Heartbeat::read(&padded), Heartbeat::read(&frame));
            prop_assert_eq!(Heartbeat::read(&frame[..frame.len() - 1]), None);
        }

        #[test]
        fn whatever_comes_is_read_without_harm(bytes: Vec<u8>, at in 0usize..60, byte: u8) {
            let _ = (arp_question(&bytes), solicited(&bytes), Heartbeat::read(&bytes));
            let name = "n1".to_owned();
            let beat = Heartbeat { cluster: 1, name, age: Duration::ZERO, connected: true, leaving: false };
            let mut frame = beat.frame(OWN);
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
            let _ = (Heartbeat::read(&frame), arp_question(&frame));
        }
    }
}
