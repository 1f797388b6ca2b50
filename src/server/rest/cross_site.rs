//! Refuses WebSockets from pages of other sites.
//!
//! A browser opens a WebSocket to any host for any page, with its user's client certificate for that host, and no response header
//! can forbid it; the only hint is the page's `Origin`. Upstream ignores it (the handshakes of `wsstream` and of port-forward's
//! tunnel accept every origin): any page visited with a client certificate in the browser may exec into the user's Pods there. Here
//! a WebSocket is accepted, as by gorilla/websocket's rule,
//! - without `Origin`: kubectl, client-go and other programs send none;
//! - with the `Origin` of the host and port that the request names: libraries that imitate browsers, and pages served from here;
//! - with an origin on the browser's own machine, if a proxy forwarded it (`X-Forwarded-For`, which no page can set): dashboards
//!   through `kubectl proxy`, which has the credential itself and names this server as the host.
//!
//! This applies to every WebSocket with any credential: sessions, the proxy to Pods, Services and nodes, and JSON-RPC. Other
//! upgrades (SPDY, streams) and JSON-RPC's content type are not available to pages.

use std::net::IpAddr;

use hyper::header::{self, HeaderMap};
use hyper::{Request, Uri};

use super::streams;
use podwright_api::Status;

/// Refuses a WebSocket from a page of another site, with 403.
pub fn refuse<B>(request: &Request<B>) -> Result<(), Status> {
    let (headers, uri) = (request.headers(), request.uri());
    if !streams::wants_upgrade(headers, "websocket") || is_taken(headers, uri) {
        return Ok(());
    }
    let origin = headers.get(header::ORIGIN).map(|origin| String::from_utf8_lossy(origin.as_bytes()).into_owned());
    let why = format!("a WebSocket of origin {:?} is refused: it is not this host", origin.unwrap_or_default());
    Err(Status::failure(403, "Forbidden", why))
}

fn is_taken(headers: &HeaderMap, uri: &Uri) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).into_iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else { return !headers.contains_key(header::ORIGIN) };
    // "null" and invalid origins match no host.
    let Some(origin) = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()) else { return false };
    let (Some(scheme), Some(host)) = (origin.scheme_str(), origin.host()) else { return false };
    if headers.contains_key("x-forwarded-for") && is_own_machine(host) {
        return true;
    }
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse().ok());
    let Some(named) = named.or_else(|| uri.authority().cloned()) else { return false };
    let default = if scheme == "http" { 80 } else { 443 };
    let port = |port: Option<u16>| port.unwrap_or(default);
    named.host().eq_ignore_ascii_case(host) && port(named.port_u16()) == port(origin.port_u16())
}

/// Whether this host is the browser's own machine.
fn is_own_machine(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().uri("/rpc").header("connection", "Upgrade").header("upgrade", "websocket");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        refuse(&request.body(()).unwrap()).is_ok()
    }

    #[test]
    fn no_origin_and_the_same_host_are_taken_and_others_not() {
        let host = ("host", "api.example:6443");
        assert!(taken(&[host]));
        for origin in ["https://api.example:6443", "https://API.example:6443", "http://api.example:6443"] {
            assert!(taken(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(taken(&[("host", "api.example"), ("origin", "https://api.example")]));
        assert!(taken(&[("host", "api.example:443"), ("origin", "https://api.example")]));
        assert!(taken(&[("host", "[::1]:6443"), ("origin", "https://[::1]:6443")]));
        for origin in [
            "https://evil.example",
            "https://api.example",
            "https://api.example:6444",
            "https://api.example:6443.evil.example",
            "https://api.example@evil.example:6443",
            "https://localhost:6443",
            "http://127.0.0.1:8001",
            "null",
            "file://",
            "",
            "api.example:6443",
        ] {
            assert!(!taken(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(!taken(&[host, ("origin", "https://api.example:6443"), ("origin", "https://evil.example")]));
        assert!(!taken(&[("origin", "https://evil.example")]));
    }

    #[test]
    fn a_proxy_on_the_browsers_own_machine_passes_on_its_pages() {
        let by = |origin| taken(&[("host", "api:6443"), ("x-forwarded-for", "127.0.0.1"), ("origin", origin)]);
        assert!(by("http://localhost:8001") && by("http://127.0.0.1:8001") && by("http://[::1]:8001"));
        assert!(!by("http://localhost.evil.example:8001") && !by("https://evil.example") && !by("null"));
    }

    #[test]
    fn what_is_no_websocket_is_not_looked_at() {
        let request = Request::builder().uri("/").header("origin", "https://evil.example").body(()).unwrap();
        assert!(refuse(&request).is_ok());
    }
}
