//! The sysctls of a node's namespace: written when it is created, and kept.

use podwright_journal::JournalWriter;

use super::{NetworkConfig, families};
use crate::netlink;
use crate::{Family, Result};

/// Timeout in seconds for idle half-closed connections: kube-proxy's hour (`tcpCloseWaitTimeout`). The kernel's minute is too short
/// for servers that answer after the end of the request, and a forgotten connection is reset.
const HALF_CLOSED: (&str, &str) = ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600");

/// The inputs for the settings of a node's namespace.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    isolated: bool,
    with_v6: bool,
}

impl Settings {
    pub fn of(config: &NetworkConfig) -> Settings {
        Settings { isolated: config.isolated, with_v6: families(config).contains(&Family::V6) }
    }

    /// Forwarding, without redirects.
    fn wanted(self) -> Vec<(&'static str, &'static str)> {
        // A redirect is sent if the link or `all` enables it.
        let mut wanted = vec![("net/ipv4/ip_forward", "1"), ("net/ipv4/conf/all/send_redirects", "0")];
        if self.isolated {
            // A new namespace starts with the machine's values. The larger of `all` and the link's own value counts, and 2 is the
            // loose check, 1 the strict one.
            wanted.push(("net/ipv4/conf/all/rp_filter", "0"));
        }
        if self.with_v6 {
            wanted.push(("net/ipv6/conf/all/forwarding", "1"));
        }
        wanted
    }

    /// Writes all; call it on the namespace's thread.
    pub fn apply(self) -> Result<()> {
        self.wanted().into_iter().try_for_each(write)
    }

    /// Writes those that differ; call it on the namespace's thread. Returns the old values, in words.
    pub fn mend(self) -> Result<Vec<String>> {
        let mut mended = Vec::new();
        for (name, value) in self.wanted() {
            let has = netlink::read_sysctl(name)?;
            if has != value {
                write((name, value))?;
                mended.push(format!("sysctl {name}, which was {has}"));
            }
        }
        Ok(mended)
    }
}

/// Sets kube-proxy's timeout for half-closed connections; call it on the namespace's thread, once conntrack is active.
pub fn keep_half_closed() -> Result<()> {
    write(HALF_CLOSED)
}

fn write((name, value): (&str, &str)) -> Result<()> {
    netlink::sysctl(&JournalWriter::none(), name, value)
}
