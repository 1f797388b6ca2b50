//! The node's own addresses: which ones it has, and that some link has each, `lo` if no other one does.
//!
//! A network manager takes the addresses of a link away with its carrier (systemd-networkd does, unless `IgnoreCarrierLoss=` is
//! set). The node is still the same one: its address is the source of what it sends to its Pods, what Pods on its network are
//! reached at, and where host ports and the server answer; and the kernel removes each route that has it as its source. So `lo`
//! has it meanwhile, and no longer than that.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::made::Made;
use super::{NetworkConfig, families};
use crate::links::Links;
use crate::{Error, Family, Result};

/// The addresses of a node without any: documentation ranges (RFC 5737, RFC 3849), which are not routed.
const ISOLATED_V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const ISOLATED_V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// What became of the node's addresses.
pub(super) struct Presence {
    /// What the node has put on `lo`.
    pub made: Made,
    /// Those that another link than `lo` has, or had.
    on_links: BTreeSet<IpAddr>,
    /// Those of them that none has now.
    away: BTreeSet<IpAddr>,
}

/// What is to change about the node's addresses on `lo`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    add: Vec<IpAddr>,
    remove: Vec<IpAddr>,
}

impl Presence {
    pub fn new(made: Made) -> Presence {
        Presence { made, on_links: BTreeSet::new(), away: BTreeSet::new() }
    }

    /// Whether an address of a link has gone, so that other machines are not reached by it.
    pub fn is_away(&self) -> bool {
        !self.away.is_empty()
    }

    /// Gives `lo` those of the node's addresses that no link has, and takes from it those that another link has again; what has
    /// changed, in words.
    ///
    /// # Errors
    ///
    /// The kernel does not list addresses, or refuses one.
    pub fn keep(&mut self, own: &[IpAddr], links: &mut Links) -> Result<Vec<String>> {
        let Changes { add, remove } = self.compare(own, &links.addresses()?);
        // Without a record of it, it would stay behind when the node is removed; without the address, Pods would be cut off.
        if let Err(error) = self.made.note(&add, []) {
            tracing::warn!(%error, "failed to record an address of lo");
        }
        for address in &add {
            links.add_address("lo", &IpNet::from(*address))?;
        }
        for address in &remove {
            links.remove_address("lo", &IpNet::from(*address))?;
        }
        if let Err(error) = self.made.forget(&remove) {
            tracing::warn!(%error, "failed to record that an address of lo has gone");
        }
        let added = add.iter().map(|address| format!("address {address} dev lo, which no link had"));
        let removed = remove.iter().map(|address| format!("address {address} dev lo, which another link has"));
        Ok(added.chain(removed).collect())
    }

    /// The decision, from what links (by their indexes) have. An address that somebody else has put on `lo` is theirs.
    fn compare(&mut self, own: &[IpAddr], has: &[(u32, IpNet)]) -> Changes {
        let mut changes = Changes::default();
        let made: BTreeSet<IpAddr> = self.made.addresses().collect();
        for address in own {
            let of =
                |is_lo: bool| has.iter().any(|(on, net)| net.addr() == *address && Links::is_loopback(*on) == is_lo);
            let (on_lo, on_link) = (of(true), of(false));
            if !on_lo && !on_link {
                changes.add.push(*address);
            } else if on_lo && on_link && made.contains(address) {
                changes.remove.push(*address);
            }
            if on_link {
                self.on_links.insert(*address);
                self.away.remove(address);
            } else if self.on_links.contains(address) {
                self.away.insert(*address);
            }
        }
        changes
    }
}

/// The node's addresses: the configured ones, added to `lo` if they are on no link; else the existing ones.
pub(super) fn node_addresses(config: &NetworkConfig, links: &mut Links, made: &mut Made) -> Result<Vec<IpAddr>> {
    let families = families(config);
    let present = links.addresses()?;
    let kept = kept(config, made, &present);
    let wanted = match (config.addresses.is_empty(), config.isolated) {
        (true, true) if config.netns.is_some() => match links.first_addresses() {
            Err(Error::NoAddress) if !kept.is_empty() => kept.clone(),
            found => found?,
        },
        (false, _) => config.addresses.clone(),
        (true, false) => match links.default_sources()? {
            none if none.is_empty() => kept.clone(),
            found => found,
        },
        (true, true) => [ISOLATED_V4, ISOLATED_V6].into_iter().filter(|a| families.contains(&Family::of(a))).collect(),
    };
    if let Some(address) = config.dns.iter().find(|address| wanted.contains(address)) {
        return Err(Error::DnsOnNode(*address));
    }
    if config.netns.is_some() {
        let on_links: Vec<IpNet> = links.uplinks()?.into_iter().flat_map(|link| link.addresses).collect();
        let is_there = |address: &IpAddr| on_links.iter().any(|net| net.addr() == *address) || kept.contains(address);
        let elsewhere = wanted.iter().find(|address| !is_there(address));
        return elsewhere.map_or(Ok(wanted.clone()), |address| Err(Error::NotOnLink(*address)));
    }
    let present: BTreeSet<IpAddr> = present.into_iter().map(|(_, net)| net.addr()).collect();
    let missing: Vec<IpAddr> = wanted.iter().filter(|a| !present.contains(a)).copied().collect();
    made.note(&missing, [])?;
    for address in &missing {
        links.add_address("lo", &IpNet::from(*address))?;
    }
    Ok(wanted)
}

/// Those of the node's addresses that a link has, or has lost, with its prefix.
pub(super) fn networks(own: &[IpAddr], links: &mut Links, made: &Made) -> Result<Vec<IpNet>> {
    let on_links: Vec<IpNet> = links.uplinks()?.into_iter().flat_map(|link| link.addresses).collect();
    let known = |address: &IpAddr| {
        let lost = || made.networks().filter(|_| made.addresses().any(|kept| kept == *address));
        let of = |net: &IpNet| net.addr() == *address;
        on_links.iter().copied().find(of).or_else(|| lost().find(of))
    };
    Ok(own.iter().filter_map(known).collect())
}

/// The addresses that an earlier agent has kept on `lo` for links that had lost them, at most one a family.
fn kept(config: &NetworkConfig, made: &Made, present: &[(u32, IpNet)]) -> Vec<IpAddr> {
    let ranges: Vec<IpNet> = config.service_ranges.iter().copied().chain(made.routes()).collect();
    let mut kept: Vec<IpAddr> = Vec::new();
    for address in made.addresses() {
        let is_on_lo = present.iter().any(|(index, net)| Links::is_loopback(*index) && net.addr() == address);
        let is_of_services = config.dns.contains(&address) || ranges.iter().any(|range| range.contains(&address));
        let is_second = kept.iter().any(|has| Family::of(has) == Family::of(&address));
        if is_on_lo && !is_of_services && !is_second {
            kept.push(address);
        }
    }
    kept
}

/// The routes of Service addresses over `lo`, each with its source.
pub(super) fn service_routes(config: &NetworkConfig, addresses: &[IpAddr]) -> Vec<(IpNet, Option<IpAddr>)> {
    let source = |range: &IpNet| addresses.iter().find(|a| Family::of(a) == Family::of_net(range)).copied();
    config.service_ranges.iter().map(|range| (range.trunc(), source(range))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lo_has_an_address_as_long_as_no_other_link_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut presence = Presence::new(Made::open(folder.path()));
        let own: IpAddr = "192.168.50.1".parse().unwrap();
        let (on_link, on_lo): ((u32, IpNet), (u32, IpNet)) =
            ((2, "192.168.50.1/24".parse().unwrap()), (1, "192.168.50.1/32".parse().unwrap()));
        let add = || Changes { add: vec![own], remove: Vec::new() };
        let none = Changes::default;
        // Of a node that is on no link it is not away.
        assert_eq!((presence.compare(&[own], &[]), presence.is_away()), (add(), false));
        assert_eq!((presence.compare(&[own], &[on_lo]), presence.is_away()), (none(), false));
        // One that somebody else has put there is theirs.
        assert_eq!(presence.compare(&[own], &[on_lo, on_link]), none());
        assert_eq!((presence.compare(&[own], &[]), presence.is_away()), (add(), true));
        presence.made.note([&own], []).unwrap();
        assert_eq!((presence.compare(&[own], &[on_lo]), presence.is_away()), (none(), true));
        let remove = Changes { add: Vec::new(), remove: vec![own] };
        assert_eq!((presence.compare(&[own], &[on_link, on_lo]), presence.is_away()), (remove, false));
        presence.made.forget(&[own]).unwrap();
        assert_eq!(presence.compare(&[own], &[on_link, on_lo]), none());
        assert_eq!(Made::open(folder.path()).addresses().count(), 0);
    }
}
