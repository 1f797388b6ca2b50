//! Where a pull may be directed: a registry chooses its redirects and token servers, and the node has network access that others
//! lack.
//!
//! A name without loopback in it must not make the node speak to its own loopback or to a link-local address (cloud metadata),
//! neither by a redirect, nor by the realm of a challenge, nor by a DNS answer; a registry on loopback leads to none of its neighbours
//! there, but to its own host and port. And nothing but TLS is spoken to anybody but
//! loopback. Credentials do not follow a redirect that leads to another host or port ([`http`](super::http)); addresses of layers elsewhere
//! (`urls`, CVE-2020-15157) are not used at all.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use url::Url;

/// So much of a URL reaches the Pod's status and events.
const MAX_SHOWN: usize = 200;

/// The registry of a name, and what it may direct to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Guard {
    /// Without a port.
    host: String,
    port: Option<u16>,
    /// On this host's loopback, without TLS.
    loopback: bool,
    /// Hosts of proxies that requests may use: chosen by the operator.
    proxies: Vec<String>,
}

impl Guard {
    pub(super) fn new(registry: &str, loopback: bool) -> Guard {
        let scheme = if loopback { "http" } else { "https" };
        // An invalid URL is rejected when it is requested.
        let root = Url::parse(&format!("{scheme}://{registry}/")).ok();
        let (host, port) = root.as_ref().map(place).unwrap_or_default();
        // Loopback is never accessed through a proxy.
        let proxies = if loopback { Vec::new() } else { proxies(|name| std::env::var(name).ok()) };
        Guard { host: host.to_owned(), port, loopback, proxies }
    }

    /// Whether this registry may direct us to a URL; host names are checked when resolved. Fails with the reason.
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        let (host, _) = place(url);
        // The worst problem is reported first.
        if let Ok(ip) = host.parse() {
            self.check_address(host, ip)?;
        }
        if url.scheme() != "https" && !(url.scheme() == "http" && self.loopback && host == self.host) {
            return Err(format!("{} is not https", shown(url)));
        }
        if self.loopback && host == self.host && !self.is_own(url) {
            let why = format!("registry {} must not lead to other ports of the node itself", self.host);
            return Err(format!("{}: {why}", shown(url)));
        }
        // Its address is not checked, so only the operator may name it.
        if self.proxies.iter().any(|proxy| proxy == host) && host != self.host {
            return Err(format!("{} is the node's proxy: registry {} must not lead to it", shown(url), self.host));
        }
        Ok(())
    }

    /// Whether a URL is the registry's own, not one it directed us to.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        place(url) == (&self.host, self.port)
    }

    fn check_address(&self, host: &str, ip: IpAddr) -> Result<(), String> {
        let may_be_loopback = host == self.host;
        match plain(ip) {
            ip if is_nobodys(ip) => Err(format!("{host} is {ip}: no registry's address")),
            ip if ip.is_loopback() && !may_be_loopback => {
                Err(format!("{host} is {ip}: registry {} must not lead to the node itself", self.host))
            }
            _ => Ok(()),
        }
    }

    /// Whether the registry is on this host's loopback.
    pub(super) fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// The addresses of a host. Names become addresses here alone, so that what was looked at is what is connected to. Errors: it
    /// has none, or one where the registry must not lead to.
    pub(super) async fn addresses(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
        // Where a request goes through a proxy, that is what is looked up; what goes past it (`NO_PROXY`) is looked at.
        if !self.proxies.iter().any(|proxy| proxy == host) {
            let checked = found.iter().try_for_each(|a| self.check_address(host, a.ip()));
            checked.map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?;
        }
        Ok(found)
    }
}

/// A URL's host, without brackets, and port.
fn place(url: &Url) -> (&str, Option<u16>) {
    (url.host_str().unwrap_or_default().trim_matches(['[', ']']), url.port_or_known_default())
}

/// A URL possibly chosen by a registry, for an error: its beginning, without secrets.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Fails only if the URL cannot have them.
    let _ = (url.set_username(""), url.set_password(None));
    // A URL is ASCII without control characters.
    let text = url.as_str();
    match text.get(..MAX_SHOWN) {
        Some(start) if text.len() > MAX_SHOWN => format!("{start}..."),
        _ => text.to_owned(),
    }
}

/// Extracts the IPv4 address from one that embeds it (mapped, compatible, NAT64's 64:ff9b::/96). Must agree with the server's
/// `names::plain_ip`; both are tested against `tests/special_addresses.txt`.
fn plain(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let [.., a, b, c, d] = v6.octets();
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Ipv4Addr::new(a, b, c, d).into(),
        [0, 0, 0, 0, 0, 0, ..] if !v6.is_unspecified() && !v6.is_loopback() => Ipv4Addr::new(a, b, c, d).into(),
        _ => ip,
    }
}

/// Link-local, unspecified (on Linux all of 0.0.0.0/8 is this machine), multicast, broadcast.
fn is_nobodys(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.octets()[0] == 0 || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast(),
    }
}

/// The hosts of the proxies that the environment names.
fn proxies(variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    const VARIABLES: [&str; 6] = ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
    let host = |value: String| {
        let url = if value.contains("://") { value } else { format!("http://{value}") };
        // Lower case also if the scheme is not one of the web's, such as socks5.
        Some(Url::parse(&url).ok()?.host_str()?.trim_matches(['[', ']']).to_ascii_lowercase())
    };
    VARIABLES.iter().filter_map(|name| host(variable(name)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_url_its_beginning_is_shown_and_no_secret() {
        let show = |url: &str| shown(&Url::parse(url).unwrap());
        assert_eq!(show("https://me:word@cdn.example/blob?signature=x#y"), "https://cdn.example/blob");
        let long = format!("http://192.0.2.200/{}", "r".repeat(390_000));
        assert_eq!(show(&long), format!("{}...", &long[..200]));
        let told = Guard::new("127.0.0.1:5000", true).check(&Url::parse(&long).unwrap()).unwrap_err();
        assert!(told.len() < 300 && told.ends_with("... is not https"), "{}", told.len());
    }

    #[test]
    fn nobody_is_led_to_the_node_itself() {
        let public = Guard::new("registry.example:5000", false);
        let local = Guard::new("127.0.0.1:5000", true);
        for (url, from_public, from_local) in [
            ("https://cdn.example/x", true, true),
            ("https://10.0.0.1/x", true, true),
            ("http://cdn.example/x", false, false),
            ("http://10.0.0.1/x", false, false),
            ("http://localhost.example/x", false, false),
            ("http://127.0.0.1:5000/x", false, true),
            ("https://127.0.0.1:5000/x", false, true),
            ("http://2130706433:5000/x", false, true),
            ("http://127.0.0.1:5001/x", false, false),
            ("http://127.0.0.1/x", false, false),
            ("http://localhost:5000/x", false, false),
            ("http://127.0.0.2:5000/x", false, false),
            ("http://[::1]:5000/x", false, false),
            ("https://127.0.0.1/x", false, false),
            ("https://127.8.8.8:5000/x", false, false),
            ("https://[::1]:5000/x", false, false),
            ("https://[::ffff:127.0.0.1]:5000/x", false, false),
            ("https://2130706433/x", false, false),
            ("https://0x7f.1/x", false, false),
            ("https://169.254.169.254/latest/meta-data", false, false),
            ("https://[fe80::1]/x", false, false),
            ("https://0.0.0.0/x", false, false),
            ("ftp://cdn.example/x", false, false),
            ("file:///etc/shadow", false, false),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(public.check(&url).is_ok(), from_public, "{url}");
            assert_eq!(local.check(&url).is_ok(), from_local, "{url}");
        }
        // The operator's own names may resolve to the node.
        let mine = Guard::new("node.example:5000", false);
        assert!(mine.check_address("node.example", [127, 0, 0, 1].into()).is_ok());
        assert!(mine.check_address("node.example", [169, 254, 0, 1].into()).is_err());
        assert!(mine.check_address("other.example", [127, 0, 0, 1].into()).is_err());
        let sixth = Guard::new("[0:0::1]:5000", true);
        assert_eq!((sixth.host.as_str(), sixth.port), ("::1", Some(5000)));
        let own = Url::parse("https://registry.example/v2/").unwrap();
        assert!(Guard::new("registry.example", false).is_own(&own) && !public.is_own(&own));
    }

    /// The server's table (`src/server/dial.rs`): both must decide alike.
    #[test]
    fn an_address_is_judged_by_where_it_leads_however_it_is_written() {
        let (public, local) = (Guard::new("registry.example", false), Guard::new("127.0.0.1:5000", true));
        for line in include_str!("../../../tests/special_addresses.txt").lines().filter(|line| !line.starts_with('#')) {
            let (address, class) = line.split_once(' ').unwrap();
            let may = |guard: &Guard, host| guard.check_address(host, address.parse().unwrap()).is_ok();
            let expected = match class {
                "plain" => (true, true),
                "loopback" => (false, true),
                "nobody" => (false, false),
                other => panic!("{address} is {other}"),
            };
            assert_eq!((may(&public, "elsewhere"), may(&local, "127.0.0.1")), expected, "{address}");
            assert_eq!(may(&local, "elsewhere"), expected.0, "{address}");
        }
    }

    #[tokio::test]
    async fn names_are_looked_at_when_they_are_resolved() {
        let resolve = |guard: Guard| async move { guard.addresses("localhost").await.map(|found| found.len()) };
        let public = |proxy: &[&str]| Guard {
            proxies: proxy.iter().map(|host| (*host).to_owned()).collect(),
            ..Guard::new("registry.example", false)
        };
        assert!(resolve(public(&[])).await.is_err());
        // A proxy is configured, but bypassed.
        assert!(resolve(public(&["proxy.example"])).await.is_err());
        // It is the proxy itself; it was not chosen by a registry.
        assert!(resolve(public(&["localhost"])).await.is_ok());
        assert!(public(&["localhost"]).check(&Url::parse("https://localhost:6443/").unwrap()).is_err());
        assert!(resolve(Guard::new("localhost:5000", true)).await.unwrap() > 0);
        assert!(resolve(Guard::new("127.0.0.1:5000", true)).await.is_err());
    }

    #[test]
    fn proxies_are_read_as_they_are_written() {
        for (value, host) in [
            ("http://proxy.example:3128", Some("proxy.example")),
            ("http://user:word@Proxy.Example:3128/", Some("proxy.example")),
            ("socks5://Proxy.Example", Some("proxy.example")),
            ("proxy.example:3128", Some("proxy.example")),
            ("http://[::1]:3128", Some("::1")),
            ("", None),
        ] {
            let found = proxies(|name| (name == "HTTPS_PROXY").then(|| value.to_owned()));
            assert_eq!(found.first().map(String::as_str), host, "{value}");
        }
    }
}
