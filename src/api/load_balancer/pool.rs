//! A pool of addresses: ranges of both families, without overlaps, and the first free address in it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::validation::names::special_ip;

/// The most ranges of a pool: each is looked at for each address that is given out.
const MOST: usize = 256;

/// Why a pool is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("expected nodes, none, or addresses, as 192.0.2.0/24,198.51.100.10-198.51.100.20,2001:db8::/64")]
    Empty,
    #[error("{0}: expected an address, a CIDR, or two addresses as FIRST-LAST")]
    Malformed(String),
    #[error("{0}: the first address is behind the last")]
    Backwards(String),
    #[error("{0}: an address of the pool {1}")]
    Special(String, &'static str),
    #[error("{0} overlaps {1}")]
    Overlapping(String, String),
    #[error("at most {MOST} ranges, not {0}")]
    TooMany(usize),
}

/// Addresses of one family, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: IpAddr,
    last: IpAddr,
}

impl Range {
    /// All addresses of a network.
    pub fn of_net(net: &IpNet) -> Range {
        Range { first: net.network(), last: net.broadcast() }
    }

    pub fn contains(&self, address: &IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.first <= *address && *address <= self.last
    }

    pub fn overlaps(&self, other: &Range) -> bool {
        self.first.is_ipv4() == other.first.is_ipv4() && self.first <= other.last && other.first <= self.last
    }

    /// The first and the last address are no machine's in a network that is on a link (RFC 1122, 3.2.1.3; RFC 4291, 2.6.1: the
    /// first one is that of its routers), so a CIDR is without them. Two addresses, or one, are both meant.
    fn of_cidr(net: &IpNet) -> Range {
        let all = Range::of_net(net);
        if net.prefix_len() + 1 >= net.max_prefix_len() {
            return all;
        }
        let first = next(all.first).unwrap_or(all.first);
        match net {
            IpNet::V4(_) => Range { first, last: before(all.last) },
            IpNet::V6(_) => Range { first, ..all },
        }
    }

    /// The first address at or behind `from` that is neither taken nor in one of the ranges.
    fn free(&self, from: IpAddr, taken: &BTreeSet<IpAddr>, kept: &[Range]) -> Option<IpAddr> {
        let mut address = from.max(self.first);
        while address <= self.last {
            let skip = match kept.iter().find(|range| range.contains(&address)) {
                Some(range) => range.last,
                None if taken.contains(&address) => address,
                None => return Some(address),
            };
            address = next(skip)?;
        }
        None
    }
}

impl FromStr for Range {
    type Err = PoolError;

    /// Reads an address, a CIDR or `FIRST-LAST`. Fails for anything else, and for addresses that are no machine's.
    fn from_str(text: &str) -> Result<Range, PoolError> {
        let malformed = || PoolError::Malformed(text.to_owned());
        let address = |part: &str| part.trim().parse::<IpAddr>().map_err(|_| malformed());
        let range = match (text.split_once('/'), text.split_once('-')) {
            (Some(_), _) => Range::of_cidr(&text.parse::<IpNet>().map_err(|_| malformed())?.trunc()),
            (None, Some((first, last))) => Range { first: address(first)?, last: address(last)? },
            (None, None) => Range { first: address(text)?, last: address(text)? },
        };
        if range.first.is_ipv4() != range.last.is_ipv4() {
            return Err(malformed());
        }
        if range.first > range.last {
            return Err(PoolError::Backwards(text.to_owned()));
        }
        match special(&range) {
            Some(why) => Err(PoolError::Special(text.to_owned(), why)),
            None => Ok(range),
        }
    }
}

/// Why not all of a range may be addresses of Services.
fn special(range: &Range) -> Option<&'static str> {
    const NONE: &[(&str, &str)] = &[
        ("0.0.0.0/8", "may not be unspecified (0.0.0.0 or ::)"),
        ("127.0.0.0/8", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        ("169.254.0.0/16", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        ("224.0.0.0/3", "may not be in the multicast or reserved range (224.0.0.0/3, ff00::/8)"),
        ("::/96", "may not be unspecified, loopback or IPv4-compatible (::/96)"),
        ("::ffff:0:0/96", "may not be an IPv4-mapped IPv6 address"),
        ("64:ff9b::/96", "may not be an IPv4 address that is translated (64:ff9b::/96)"),
        ("fe80::/10", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        ("ff00::/8", "may not be in the multicast or reserved range (224.0.0.0/3, ff00::/8)"),
    ];
    let overlaps = |(net, _): &&(&str, &str)| net.parse::<IpNet>().is_ok_and(|net| Range::of_net(&net).overlaps(range));
    NONE.iter()
        .find(overlaps)
        .map(|(_, why)| *why)
        .or_else(|| special_ip(range.first).or_else(|| special_ip(range.last)))
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// The addresses that Services may have, in the order in which they are given out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool(Vec<Range>);

impl Pool {
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }

    /// A network that has addresses of the pool.
    pub fn overlapping<'a>(&self, nets: impl IntoIterator<Item = &'a IpNet>) -> Option<&'a IpNet> {
        nets.into_iter().find(|net| self.overlaps(&Range::of_net(net)))
    }

    pub fn overlaps(&self, other: &Range) -> bool {
        self.0.iter().any(|range| range.overlaps(other))
    }

    /// Whether it has addresses of the family at all.
    pub fn has_family(&self, is_v4: bool) -> bool {
        self.0.iter().any(|range| range.first.is_ipv4() == is_v4)
    }

    /// The first address of a family that is neither taken nor in the `kept` ranges; those before `cursor` are known to be none. The
    /// cursor moves to what is found, so that all searches of a plan together pass each address once.
    pub fn free(&self, is_v4: bool, cursor: &mut Cursor, taken: &BTreeSet<IpAddr>, kept: &[Range]) -> Option<IpAddr> {
        for (number, range) in self.0.iter().enumerate().skip(cursor.range) {
            let from = cursor.address.filter(|_| number == cursor.range).unwrap_or(range.first);
            if range.first.is_ipv4() == is_v4
                && let Some(address) = range.free(from, taken, kept)
            {
                *cursor = Cursor { range: number, address: Some(address) };
                return Some(address);
            }
        }
        *cursor = Cursor { range: self.0.len(), address: None };
        None
    }
}

/// How far a search in a pool has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    range: usize,
    address: Option<IpAddr>,
}

impl FromStr for Pool {
    type Err = PoolError;

    /// Reads ranges separated by commas. Fails if there are none or too many, one is no range, or two overlap.
    fn from_str(text: &str) -> Result<Pool, PoolError> {
        let count = text.split(',').count();
        if count > MOST {
            return Err(PoolError::TooMany(count));
        }
        if text.trim().is_empty() {
            return Err(PoolError::Empty);
        }
        let mut pool = Pool::default();
        for part in text.split(',').map(str::trim) {
            let range: Range = part.parse()?;
            if let Some(other) = pool.0.iter().find(|other| other.overlaps(&range)) {
                return Err(PoolError::Overlapping(part.to_owned(), other.to_string()));
            }
            pool.0.push(range);
        }
        Ok(pool)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(Range::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => u32::from(address).checked_add(1).map(|n| IpAddr::V4(n.into())),
        IpAddr::V6(address) => u128::from(address).checked_add(1).map(|n| IpAddr::V6(n.into())),
    }
}

/// The address before one that is not its family's first.
fn before(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).saturating_sub(1).into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).saturating_sub(1).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_pool_is_ranges_of_all_kinds() {
        let pool: Pool = "192.0.2.0/24, 198.51.100.10-198.51.100.20,2001:db8::/64,203.0.113.9".parse().unwrap();
        assert_eq!(
            pool.to_string(),
            "192.0.2.1-192.0.2.254,198.51.100.10-198.51.100.20,2001:db8::1-2001:db8::ffff:ffff:ffff:ffff,203.0.113.9"
        );
        assert!(pool.contains(&ip("192.0.2.254")) && !pool.contains(&ip("192.0.2.255")));
        assert_eq!("192.0.2.6/31".parse::<Pool>().unwrap().to_string(), "192.0.2.6-192.0.2.7");
        assert_eq!("192.0.2.7/24".parse::<Pool>().unwrap().to_string(), "192.0.2.1-192.0.2.254");
        assert_eq!("nodes".parse::<LoadBalancing>(), Ok(LoadBalancing::Nodes));
        assert_eq!("none".parse::<LoadBalancing>(), Ok(LoadBalancing::Off));
    }

    use super::super::LoadBalancing;

    #[test]
    fn what_is_no_pool_is_refused_with_its_reason() {
        for (text, why) in [
            ("", "expected nodes, none, or addresses"),
            ("node", "node: expected an address, a CIDR"),
            ("192.0.2.0/33", "192.0.2.0/33: expected an address"),
            ("192.0.2.9-192.0.2.1", "192.0.2.9-192.0.2.1: the first address is behind the last"),
            ("192.0.2.9-2001:db8::1", "expected an address"),
            ("192.0.2.0/24,192.0.2.7", "192.0.2.7 overlaps 192.0.2.1-192.0.2.254"),
            ("0.0.0.0/0", "an address of the pool may not be"),
            ("126.0.0.0-128.0.0.0", "may not be in the loopback range"),
            ("223.0.0.0-225.0.0.0", "may not be in the multicast"),
            ("::/0", "an address of the pool may not be"),
            ("fe80::1", "may not be in the link-local range"),
            ("::ffff:192.0.2.1", "may not be an IPv4-mapped"),
        ] {
            let error = text.parse::<Pool>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let many: Vec<String> = (0..257).map(|n| format!("10.0.{}.{}", n / 200, n % 200)).collect();
        assert_eq!(many.join(",").parse::<Pool>(), Err(PoolError::TooMany(257)));
    }

    #[test]
    fn the_first_free_address_is_found_past_what_is_taken_and_kept() {
        let pool: Pool = "192.0.2.0/29,2001:db8::/64,198.51.100.1-198.51.100.2".parse().unwrap();
        let kept = [Range::of_net(&"192.0.2.0/30".parse().unwrap())];
        let (mut taken, mut cursor, mut given) = (BTreeSet::from([ip("192.0.2.5")]), Cursor::default(), Vec::new());
        while let Some(address) = pool.free(true, &mut cursor, &taken, &kept) {
            taken.insert(address);
            given.push(address.to_string());
        }
        assert_eq!(given, ["192.0.2.4", "192.0.2.6", "198.51.100.1", "198.51.100.2"]);
        assert_eq!(pool.free(true, &mut cursor, &BTreeSet::new(), &[]), None, "the cursor is at the end");
        let wide = pool.free(false, &mut Cursor::default(), &taken, &[]);
        assert_eq!(wide, Some(ip("2001:db8::1")));
    }
}
