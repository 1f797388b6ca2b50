//! The memory in which the node reassembles fragments, sized so that no Pod can fill it.
//!
//! Conntrack reassembles everything that passes the node, within a limit of the network namespace (`ipfrag_high_thresh`, 4 MiB by
//! default). Incomplete datagrams stay for `ipfrag_time` (30 s), and since Linux 4.17 none are evicted for others: 1,700 first
//! halves suffice to fill it. So the limit is raised here, the time shortened, and each Pod's link is rate-limited
//! ([`super::base`]), so that one Pod always uses less than half of the memory.

use podwright_journal::JournalWriter;

use crate::{NodeNetns, Result, netlink};

/// Fragments that a Pod may send per second, 50 Mb/s of them; and in a burst, some 40 datagrams of maximum size.
pub const PACE: &str = "4096";
pub const BURST: &str = "2048";
/// The maximum packet size of a Pod's link: the MTU of every veth. A longer "fragment" is sent by asking the kernel to split it
/// (PACKET_VNET_HDR), and uses memory according to its length.
pub const POD_MTU: &str = "1500";

/// The limit: 4096 * 2 s + 2048 fragments, each 2.5 KiB with the kernel's overhead, are 25 MiB.
const ROOM: u64 = 64 << 20;
/// How long incomplete datagrams are kept, in seconds: fragments arrive together.
const TIMEOUT_SECS: u64 = 2;

/// `(sysctl, value, whether a larger value is kept)`; those of IPv6 belong to conntrack.
const SETTINGS: [(&str, u64, bool); 4] = [
    ("net/ipv4/ipfrag_high_thresh", ROOM, true),
    ("net/ipv4/ipfrag_time", TIMEOUT_SECS, false),
    ("net/netfilter/nf_conntrack_frag6_high_thresh", ROOM, true),
    ("net/netfilter/nf_conntrack_frag6_timeout", TIMEOUT_SECS, false),
];

/// Sets a namespace's limit and time, unless they are better already. A kernel without IPv6 lacks its settings. Fails if they
/// cannot be written.
pub fn give_room(netns: &NodeNetns) -> Result<()> {
    netlink::in_netns(netns.fd(), || -> Result<()> {
        for (name, ours, larger) in SETTINGS {
            let Ok(now) = netlink::read_sysctl(name) else { continue };
            let now: u64 = now.parse().unwrap_or_default();
            let good = if larger { now >= ours } else { (1..=ours).contains(&now) };
            if !good {
                netlink::sysctl(&JournalWriter::none(), name, &ours.to_string())?;
            }
        }
        Ok(())
    })?
}
