//! The first packet of an SCTP association (RFC 9260), made by hand: not every kernel has SCTP, but all track and filter it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

const HEADER: usize = 12;
const INIT: usize = 20;

pub fn socket(of: IpAddr) -> io::Result<OwnedFd> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::RAW, flags, Some(ipproto::SCTP))?)
}

/// Asks for an association; `tag` tells which.
pub fn send(socket: &OwnedFd, from: u16, to: SocketAddr, tag: u32) -> io::Result<()> {
    let packet = init(from, to.port(), tag);
    rustix::net::sendto(socket, &packet, SendFlags::empty(), &SocketAddr::new(to.ip(), 0))?;
    Ok(())
}

/// The next one that has come: its tag, and the port that it is for.
pub fn receive(socket: impl AsFd, is_ipv4: bool) -> Option<(u32, u16)> {
    let mut buffer = [0; 256];
    // Others than asked for are passed over, until there is nothing more.
    while let Ok((count, _)) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()) {
        let packet = &buffer[..count];
        // An IPv4 raw socket gives the header too (raw(7)), whose length is in words of four bytes.
        let skipped = if is_ipv4 { packet.first().map_or(0, |byte| usize::from(byte & 0xf) * 4) } else { 0 };
        if let Some(packet) = packet.get(skipped..).filter(|it| it.len() >= HEADER + INIT && it[HEADER] == 1) {
            let tag = packet[HEADER + 4..HEADER + 8].try_into().expect("four bytes");
            return Some((u32::from_be_bytes(tag), u16::from_be_bytes([packet[2], packet[3]])));
        }
    }
    None
}

fn init(from: u16, port: u16, tag: u32) -> Vec<u8> {
    let mut packet = Vec::with_capacity(HEADER + INIT);
    packet.extend(from.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0; 8]); // no tag of theirs yet, and the checksum
    packet.extend([1, 0, 0, INIT as u8]);
    packet.extend(tag.to_be_bytes());
    packet.extend(0x1_0000_u32.to_be_bytes()); // the window
    packet.extend([0, 1, 0, 1]); // one stream each way
    packet.extend(tag.to_be_bytes());
    let sum = crc32c(&packet);
    packet[8..HEADER].copy_from_slice(&sum.to_le_bytes());
    packet
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1)))
    })
}

/// The check value of CRC-32C.
#[test]
fn the_checksum_is_that_of_sctp() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
