//! Blocks of addresses with exceptions as ranges: in order, none overlapping another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use podwright_net::{Family, IpNet};

/// Addresses from and to.
pub type Range = (IpAddr, IpAddr);

/// A block without its exceptions. What an exception has outside of the block, or in the other family, is none of it.
pub fn block(cidr: IpNet, except: &[IpNet]) -> Vec<Range> {
    let (family, first, last) = bounds(&cidr);
    let mut holes: Vec<(u128, u128)> =
        except.iter().map(bounds).filter(|(of, ..)| *of == family).map(|(_, first, last)| (first, last)).collect();
    holes.sort_unstable();
    let (mut left, mut next) = (Vec::new(), Some(first));
    for (hole, end) in holes {
        let Some(from) = next.filter(|from| *from <= last) else { break };
        if hole > last || end < from {
            continue;
        }
        if hole > from {
            left.push((family, from, hole - 1));
        }
        next = end.checked_add(1);
    }
    if let Some(from) = next.filter(|from| *from <= last) {
        left.push((family, from, last));
    }
    left.into_iter().map(range).collect()
}

/// All that is in any of them.
pub fn union(ranges: impl IntoIterator<Item = Range>) -> Vec<Range> {
    let mut all: Vec<(Family, u128, u128)> =
        ranges.into_iter().map(|(first, last)| (Family::of(&first), bits(first), bits(last))).collect();
    all.sort_unstable();
    let mut merged: Vec<(Family, u128, u128)> = Vec::new();
    for (family, first, last) in all {
        match merged.last_mut() {
            Some((of, _, end)) if *of == family && end.checked_add(1).is_none_or(|next| first <= next) => {
                *end = last.max(*end);
            }
            _ => merged.push((family, first, last)),
        }
    }
    merged.into_iter().map(range).collect()
}

/// The same of ports.
pub fn union_of_ports(ports: impl IntoIterator<Item = (u16, u16)>) -> Vec<(u16, u16)> {
    let mut all: Vec<(u16, u16)> = ports.into_iter().collect();
    all.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in all {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn bounds(net: &IpNet) -> (Family, u128, u128) {
    (Family::of_net(net), bits(net.network()), bits(net.broadcast()))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The numbers are those of addresses of the family.
fn range((family, first, last): (Family, u128, u128)) -> Range {
    let address = |bits: u128| match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    };
    (address(first), address(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ranges: &[Range]) -> Vec<String> {
        ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect()
    }

    fn of(cidr: &str, except: &[&str]) -> Vec<String> {
        let except: Vec<IpNet> = except.iter().map(|net| net.parse().unwrap()).collect();
        text(&block(cidr.parse().unwrap(), &except))
    }

    #[test]
    fn a_block_is_what_its_exceptions_leave() {
        assert_eq!(of("10.0.0.0/8", &[]), ["10.0.0.0-10.255.255.255"]);
        assert_eq!(of("10.0.0.7/8", &["10.0.0.0/9"]), ["10.128.0.0-10.255.255.255"]);
        assert_eq!(of("10.0.0.0/24", &["10.0.0.128/25"]), ["10.0.0.0-10.0.0.127"]);
        let both = ["10.0.0.9/32", "10.0.0.8/31", "10.0.0.64/26", "10.0.0.72/32"];
        assert_eq!(of("10.0.0.0/24", &both), ["10.0.0.0-10.0.0.7", "10.0.0.10-10.0.0.63", "10.0.0.128-10.0.0.255"]);
        assert_eq!(of("10.0.0.0/24", &["10.0.0.0/25", "10.0.0.128/25"]), [""; 0]);
        assert_eq!(of("10.0.0.0/24", &["10.0.0.0/24", "fd00::/8", "11.0.0.0/8"]), [""; 0]);
        assert_eq!(of("0.0.0.0/0", &["255.255.255.255/32"]), ["0.0.0.0-255.255.255.254"]);
        assert_eq!(of("::/0", &["8000::/1"]), ["::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]);
        assert_eq!(of("::/0", &["::/0"]), [""; 0]);
        assert_eq!(of("::/0", &[]), ["::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]);
    }

    #[test]
    fn what_one_block_excepts_another_one_may_have() {
        let all = |blocks: &[(&str, &[&str])]| {
            let ranges = blocks.iter().flat_map(|(cidr, except)| {
                let except: Vec<IpNet> = except.iter().map(|net| net.parse().unwrap()).collect();
                block(cidr.parse().unwrap(), &except)
            });
            text(&union(ranges))
        };
        assert_eq!(
            all(&[("10.0.0.0/24", &["10.0.0.128/25"]), ("10.0.0.192/26", &[])]),
            ["10.0.0.0-10.0.0.127", "10.0.0.192-10.0.0.255"]
        );
        assert_eq!(
            all(&[("10.0.0.0/25", &[]), ("10.0.0.128/25", &[]), ("::/1", &[]), ("8000::/1", &[])]),
            ["10.0.0.0-10.0.0.255", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]
        );
        assert_eq!(union_of_ports([(80, 90), (443, 443), (91, 91), (85, 88), (0, 3)]), [(0, 3), (80, 91), (443, 443)]);
        assert_eq!(union_of_ports([(65_535, 65_535), (1, 65_535)]), [(1, 65_535)]);
    }
}
