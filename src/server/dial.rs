//! Outgoing connections: one table of the addresses that each purpose may reach; the check applies to the address that is dialled.
//!
//! A name is resolved here, once, and the connection uses an address of that answer: a name that resolves differently a moment
//! later changes nothing (CVE-2020-8562). No user of this module follows redirects (CVE-2020-8561).

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpStream;

use super::lookups;
use podwright_api::validation::names::plain_ip;

/// How long a connection may take; upstream's.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why the server connects, and so who chose the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The proxy to Pods, Services and nodes: users and nodes write their addresses.
    Proxy,
    /// A webhook behind a Service: chosen by whoever may write the Service's endpoints or external name.
    WebhookService,
    /// An extension API server, which is behind a Service as well.
    Extension,
    /// A webhook's `url`: only administrators configure webhooks, and upstream documents the server's own machine as a place for
    /// them. It is reached over TLS only, with a certificate that the configuration trusts.
    WebhookUrl,
    /// The OpenID Connect issuer from the server's flags, and the key URL in its metadata; over TLS only.
    Issuer,
}

/// Special ranges of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Unspecified,
    Loopback,
    /// Cloud metadata services, among others.
    LinkLocal,
    Multicast,
    Broadcast,
}

/// The special addresses that each purpose may reach. All others are allowed.
const PERMITTED: &[(Purpose, &[Class])] = &[
    (Purpose::Proxy, &[]),
    (Purpose::WebhookService, &[]),
    (Purpose::Extension, &[]),
    (Purpose::WebhookUrl, &[Class::Loopback]),
    (Purpose::Issuer, &[Class::Loopback]),
];

impl Purpose {
    /// Whose names are looked up.
    fn word(self) -> &'static str {
        match self {
            Purpose::Proxy => "proxy",
            Purpose::WebhookService => "webhook service",
            Purpose::Extension => "extension",
            Purpose::WebhookUrl => "webhook",
            Purpose::Issuer => "issuer",
        }
    }
}

impl Class {
    fn of(ip: IpAddr) -> Option<Class> {
        let (link_local, broadcast) = match plain_ip(ip) {
            IpAddr::V4(ip) => (ip.is_link_local(), ip.is_broadcast()),
            IpAddr::V6(ip) => (ip.is_unicast_link_local(), false),
        };
        match plain_ip(ip) {
            // Linux treats all of 0.0.0.0/8 as this machine.
            IpAddr::V4(ip) if ip.octets()[0] == 0 => Some(Class::Unspecified),
            ip if ip.is_unspecified() => Some(Class::Unspecified),
            ip if ip.is_loopback() => Some(Class::Loopback),
            ip if ip.is_multicast() => Some(Class::Multicast),
            _ if link_local => Some(Class::LinkLocal),
            _ if broadcast => Some(Class::Broadcast),
            _ => None,
        }
    }
}

/// Upstream's `IsProxyableIP`, in its words.
pub(super) fn permitted(purpose: Purpose, ip: IpAddr) -> anyhow::Result<()> {
    let Some(class) = Class::of(ip) else { return Ok(()) };
    let row = PERMITTED.iter().find(|(row, _)| *row == purpose);
    if row.is_some_and(|(_, classes)| classes.contains(&class)) {
        return Ok(());
    }
    bail!("address not allowed")
}

/// Connects from the server's own network to a host, at the first permitted address that answers.
pub(super) async fn connect(purpose: Purpose, host: &str, port: u16) -> anyhow::Result<TcpStream> {
    let connecting = async {
        let found = lookups::addresses(purpose.word(), host).await?;
        let mut refused = None;
        for ip in found.iter().copied() {
            match permitted(purpose, ip) {
                Ok(()) => match TcpStream::connect((ip, port)).await {
                    Ok(stream) => return Ok(stream),
                    Err(why) => refused = Some(why.into()),
                },
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        Err(refused.unwrap_or_else(|| anyhow::anyhow!("no such host")))
    };
    let connected = tokio::time::timeout(TIMEOUT, connecting).await;
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    connected.context("i/o timeout").flatten().with_context(|| format!("dial tcp {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Purpose; 5] =
        [Purpose::Proxy, Purpose::WebhookService, Purpose::Extension, Purpose::WebhookUrl, Purpose::Issuer];

    #[test]
    fn what_is_not_of_the_cluster_is_dialled_for_nobody_and_loopback_for_the_operator_alone() {
        let own = [Purpose::WebhookUrl, Purpose::Issuer];
        for line in include_str!("../../tests/special_addresses.txt").lines().filter(|line| !line.starts_with('#')) {
            let (address, class) = line.split_once(' ').unwrap();
            let by = match class {
                "plain" => &ALL[..],
                "loopback" => &own,
                "nobody" => &[],
                other => panic!("{address} is {other}"),
            };
            for purpose in ALL {
                let allowed = permitted(purpose, address.parse().unwrap()).is_ok();
                assert_eq!(allowed, by.contains(&purpose), "{address} for {purpose:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let listener = tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(connect(Purpose::WebhookUrl, "localhost", port).await.is_ok());
        for host in ["localhost", "127.0.0.1", "127.1", "0.0.0.0", "::ffff:127.0.0.1", "2130706433", "0x7f000001"] {
            for purpose in [Purpose::Proxy, Purpose::WebhookService, Purpose::Extension] {
                let why = connect(purpose, host, port).await.map(drop).unwrap_err();
                let why = format!("{why:#}");
                assert!(why.contains("address not allowed") || why.contains("failed to lookup"), "{host}: {why}");
            }
        }
        let reached = tokio::time::timeout(Duration::from_millis(50), async {
            // The permitted one.
            listener.accept().await.unwrap();
            listener.accept().await.map(drop)
        });
        assert!(reached.await.is_err(), "somebody was let through");
    }
}
