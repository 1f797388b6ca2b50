//! Which headers a proxied request and its answer keep: what is for one connection, or proves to us who asks, goes no further, and
//! neither does what a browser would hold for this server's word about all of its paths.
//!
//! Cookies pass, as upstream has it: they are the backend's own, and mean nothing to this server. But they are for the backend's own
//! paths, whatever it says: other backends are behind the same origin.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Hop-by-hop headers (RFC 9110, section 7.6.1), in addition to those that `Connection` names.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];
/// Credentials and impersonation: for this server only. A backend could be this server itself, or could act as the user. (Upstream
/// removes each after reading it; `X-Remote-*` are a front proxy's.)
const CREDENTIALS: &[&str] = &["authorization"];
const CREDENTIAL_PREFIXES: &[&str] = &["impersonate-", "x-remote-"];
/// Headers by which an extension API server might serve another request than the authorized one; and those that only a front proxy
/// is trusted with: the request's source and its trace.
const REROUTING: &[&str] = &[
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-original-uri",
    "x-rewrite-url",
    "forwarded",
    "x-real-ip",
    "traceparent",
    "tracestate",
    "baggage",
];
const FORWARDED_PREFIXES: &[&str] = &["x-forwarded-"];
/// How browsers pass a bearer token: as a WebSocket subprotocol.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// What a browser takes from any answer and applies to its whole origin, which is this server's: to say it is not a backend's.
/// (Upstream takes the first kind away, and lets the others pass.) What concerns a page alone passes: its backend could do the same by
/// the page's content (Refresh, SourceMap, Link, Speculation-Rules, policies of documents, Reporting-Endpoints).
const OURS: &[&str] = &[
    // How it is reached, and by whose certificates.
    "alt-svc",
    "expect-ct",
    "public-key-pins",
    "public-key-pins-report-only",
    "strict-transport-security",
    // What is kept for it: caches, cookies, storage, dictionaries; how its pages are kept apart.
    "activate-storage-access",
    "clear-site-data",
    "origin-agent-cluster",
    "shared-storage-write",
    "set-cookie2",
    "use-as-dictionary",
    // Scripts that answer in its place.
    "service-worker-allowed",
    // Who is asked for credentials, and bound to it by them.
    "authentication-info",
    "idp-signin-status",
    "secure-session-challenge",
    "secure-session-registration",
    "set-login",
    "www-authenticate",
    // To whom it is told what is asked of it, and what each request tells.
    "accept-ch",
    "accept-ch-lifetime",
    "critical-ch",
    "nel",
    "observe-browsing-topics",
    "report-to",
    // Under which name it is in our own log.
    "audit-id",
];
/// Whose scripts may ask it; what is counted and auctioned in its name; and what browsers reserve to themselves, which may be any of
/// that (`Sec-Session-Registration`, `Sec-Private-State-Token`), but for the words of a WebSocket.
const OUR_PREFIXES: &[&str] = &["access-control-", "ad-auction-", "attribution-reporting-", "sec-"];
const WEBSOCKET_PREFIX: &str = "sec-websocket-";
/// Protocols that are HTTP again: what is asked within them would be authorized by nobody.
const HTTP_AGAIN: &[&str] = &["h2c", "http/", "tls/"];

/// Keeps what the backend may see.
pub fn to_backend(headers: &mut HeaderMap) {
    without_hops(headers);
    without(headers, CREDENTIALS, CREDENTIAL_PREFIXES);
    if let Some(protocols) = without_bearer(headers) {
        headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
        // Parts of a valid header value are valid.
        if let Some(value) = HeaderValue::from_str(&protocols).ok().filter(|_| !protocols.is_empty()) {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
}

/// Keeps what an extension API server may see, after `to_backend`.
pub fn to_extension(headers: &mut HeaderMap) {
    without(headers, REROUTING, FORWARDED_PREFIXES);
}

/// Removes headers by name and by prefix. Where headers become variables (CGI, WSGI), `_` and `-` are equivalent.
fn without(headers: &mut HeaderMap, names: &[&str], prefixes: &[&str]) {
    let is_named = |name: &&HeaderName| {
        let name = name.as_str().replace('_', "-");
        let has_prefix = prefixes.iter().any(|prefix| name.starts_with(prefix));
        names.contains(&name.as_str()) || has_prefix && !name.starts_with(WEBSOCKET_PREFIX)
    };
    let named: Vec<HeaderName> = headers.keys().filter(is_named).cloned().collect();
    named.iter().for_each(|name| drop(headers.remove(name)));
}

/// Which paths of this server are a backend's.
pub struct Mount<'a> {
    /// What the backend does not see of them.
    pub hidden: &'a str,
    /// All of them begin with this.
    pub own: &'a str,
}

/// Leaves what the client may see.
pub fn from_backend(headers: &mut HeaderMap, mount: &Mount<'_>) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // Content-Length is ignored then, and may be wrong.
        headers.remove(header::CONTENT_LENGTH);
    }
    without_hops(headers);
    without(headers, OURS, OUR_PREFIXES);
    let cookies: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).into_iter().cloned().collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies.iter().filter_map(|cookie| cookie_within(mount, cookie.as_bytes())) {
        headers.append(header::SET_COOKIE, cookie);
    }
}
/// The protocol that a request wants its connection switched to, if a backend may be asked for it.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let named = super::words(headers, "connection").iter().any(|word| word.eq_ignore_ascii_case("upgrade"));
    let mut wanted = headers.get_all(header::UPGRADE).into_iter();
    let (one, more) = (wanted.next()?, wanted.next());
    let text = one.to_str().ok()?.trim().to_ascii_lowercase();
    let again = HTTP_AGAIN.iter().any(|protocol| text.starts_with(protocol));
    (named && more.is_none() && !again && !text.is_empty() && !text.contains(',')).then(|| one.clone())
}

/// Whether a backend has upgraded to the requested protocol.
pub fn is_switched_to(headers: &HeaderMap, wanted: &HeaderValue) -> bool {
    let mut told = headers.get_all(header::UPGRADE).into_iter();
    let same = |told: &HeaderValue| told.as_bytes().trim_ascii().eq_ignore_ascii_case(wanted.as_bytes().trim_ascii());
    told.next().is_some_and(same) && told.next().is_none()
}

impl Mount<'_> {
    /// The path of a cookie that a backend wants at this one of its own.
    fn path(&self, of_backend: &str) -> String {
        let path = format!("{}{of_backend}", self.hidden);
        let is_own = path.strip_prefix(self.own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_own { path } else { self.own.to_owned() }
    }
}

/// A cookie that no other host and no other path gets to see. One without a path is for all of its backend's.
fn cookie_within(mount: &Mount<'_>, cookie: &[u8]) -> Option<HeaderValue> {
    let mut path = None;
    let mut kept: Vec<&[u8]> = Vec::new();
    for (n, part) in cookie.split(|byte| *byte == b';').enumerate() {
        let text = std::str::from_utf8(part).unwrap_or_default();
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        match name.trim() {
            name if n > 0 && name.eq_ignore_ascii_case("domain") => {}
            name if n > 0 && name.eq_ignore_ascii_case("path") => path = Some(value.trim()),
            _ => kept.push(part),
        }
    }
    let mut cookie = kept.join(&b';');
    cookie.extend_from_slice(b"; Path=");
    match path.filter(|path| path.starts_with('/')) {
        Some(path) => cookie.extend_from_slice(mount.path(path).as_bytes()),
        // The default is the request's folder, which may be above the backend's own paths.
        None => cookie.extend_from_slice(mount.own.as_bytes()),
    }
    HeaderValue::from_bytes(&cookie).ok()
}

fn without_hops(headers: &mut HeaderMap) {
    let named: Vec<String> = super::words(headers, "connection").into_iter().map(str::to_owned).collect();
    named.iter().map(String::as_str).chain(HOP_BY_HOP.iter().copied()).for_each(|name| drop(headers.remove(name)));
}

/// The subprotocols without bearer tokens; `None` if there are none of these.
fn without_bearer(headers: &HeaderMap) -> Option<String> {
    let all = super::words(headers, "sec-websocket-protocol");
    let is_token = |word: &&str| word.starts_with(BEARER_PROTOCOL);
    all.iter().any(is_token).then(|| all.into_iter().filter(|word| !is_token(word)).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let parsed = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        lines.iter().map(parsed).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn an_extension_server_is_told_by_nobody_else_what_is_asked_and_from_where() {
        let mut headers = map(&[
            ("X-HTTP-Method-Override", "DELETE"),
            ("X_HTTP_Method_Override", "DELETE"),
            ("X-Original-URL", "/a"),
            ("X-Rewrite-URL", "/a"),
            ("X-Forwarded-For", "10.0.0.1"),
            ("X-Forwarded_Host", "a"),
            ("Forwarded", "for=10.0.0.1"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("tracestate", "a=b"),
            ("baggage", "a=b"),
            ("X-Forward", "a"),
            ("Accept", "*/*"),
        ]);
        to_extension(&mut headers);
        assert_eq!(names(&headers), ["accept", "x-forward"]);
    }

    #[test]
    fn a_backend_sees_neither_credentials_nor_what_is_of_one_connection() {
        let mut headers = map(&[
            ("Authorization", "Bearer x"),
            ("Proxy-Authorization", "Basic x"),
            ("Impersonate-User", "admin"),
            ("Impersonate-Group", "system:masters"),
            ("Impersonate-Uid", "1"),
            ("Impersonate-Extra-scopes", "all"),
            ("X-Remote-User", "admin"),
            ("X-Remote-Group", "system:masters"),
            ("X-Remote-Extra-a", "b"),
            ("X_Remote_Group", "system:masters"),
            ("X-Remote_User", "admin"),
            ("Impersonate_User", "admin"),
            ("Connection", "close, X-Hop"),
            ("Connection", "Upgrade"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Connection", "keep-alive"),
            ("TE", "trailers"),
            ("Trailer", "x"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "websocket"),
            ("HTTP2-Settings", "AAMAAABk"),
            ("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io"),
            ("Cookie", "of=the backend"),
            ("Accept", "*/*"),
        ]);
        to_backend(&mut headers);
        assert_eq!(names(&headers), ["accept", "cookie", "sec-websocket-protocol"]);
        assert_eq!(headers["sec-websocket-protocol"], "v4.channel.k8s.io");
        let mut alone = map(&[("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io.c2VjcmV0")]);
        to_backend(&mut alone);
        assert!(alone.is_empty());
    }

    const MOUNT: Mount<'_> = Mount { hidden: "/api/v1/pods/a/proxy", own: "/api/v1/pods/a/proxy" };

    #[test]
    fn a_client_sees_nothing_that_only_this_server_may_say() {
        let mut headers = map(&[
            ("Connection", "X-Hop"),
            ("X-Hop", "1"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Length", "3"),
            ("Access-Control-Allow-Origin", "*"),
            ("Access-Control-Allow-Private-Network", "true"),
            ("Audit-Id", "forged"),
            ("Alt-Svc", "h2=\"evil.example.com:443\""),
            ("Clear-Site-Data", "\"*\""),
            ("Service-Worker-Allowed", "/"),
            ("WWW-Authenticate", "Basic realm=\"kubernetes\""),
            ("Strict-Transport-Security", "max-age=31536000; includeSubDomains"),
            ("Public-Key-Pins", "pin-sha256=\"x\"; max-age=1"),
            ("NEL", "{}"),
            ("Report-To", "{}"),
            ("Set-Cookie2", "a=b"),
            ("Activate-Storage-Access", "load"),
            ("Shared-Storage-Write", "clear"),
            ("Sec-Session-Registration", "(ES256);path=\"/\""),
            ("Sec-Private-State-Token", "x"),
            ("Attribution-Reporting-Register-Source", "{}"),
            ("Ad-Auction-Allowed", "true"),
            ("Observe-Browsing-Topics", "?1"),
            ("Accept_CH", "Sec-CH-UA"),
            ("Refresh", "0; url=/a"),
            ("SourceMap", "a.js.map"),
            ("Sec-WebSocket-Accept", "x"),
            ("X-Total-Count", "1"),
            ("Content-Type", "text/plain"),
            ("Content-Security-Policy", "sandbox"),
            ("ETag", "\"1\""),
            ("Location", "/a"),
            ("Set-Cookie", "a=b"),
            ("Warning", "299 - \"x\""),
        ]);
        from_backend(&mut headers, &MOUNT);
        let passed = [
            "content-security-policy",
            "content-type",
            "etag",
            "location",
            "refresh",
            "sec-websocket-accept",
            "set-cookie",
            "sourcemap",
            "warning",
            "x-total-count",
        ];
        assert_eq!(names(&headers), passed);
    }

    #[test]
    fn a_cookie_is_for_its_backends_paths() {
        let within = |mount: &Mount<'_>, cookie: &str| {
            let mut headers = map(&[("Set-Cookie", cookie), ("Set-Cookie", "other=1")]);
            from_backend(&mut headers, mount);
            let all: Vec<_> = headers.get_all(header::SET_COOKIE).into_iter().collect();
            assert_eq!(all[1].to_str().unwrap(), format!("other=1; Path={}", mount.own));
            all[0].to_str().unwrap().to_owned()
        };
        let own = |cookie: &str| within(&MOUNT, cookie);
        assert_eq!(own("a=b; Secure; HttpOnly"), "a=b; Secure; HttpOnly; Path=/api/v1/pods/a/proxy");
        assert_eq!(own("a=b; Path=/; Secure"), "a=b; Secure; Path=/api/v1/pods/a/proxy/");
        assert_eq!(own("a=b; path = /x;DOMAIN=example.com"), "a=b; Path=/api/v1/pods/a/proxy/x");
        assert_eq!(own("path=/; Path=/x; Path=/y"), "path=/; Path=/api/v1/pods/a/proxy/y", "the first is its name");
        assert_eq!(own("a=b; Path=x"), "a=b; Path=/api/v1/pods/a/proxy", "all of them");
        let extension = Mount { hidden: "", own: "/apis/ext.example.com/v1" };
        for (wanted, had) in [
            ("/", "/apis/ext.example.com/v1"),
            ("/apis/ext.example.com/v1/things", "/apis/ext.example.com/v1/things"),
            ("/apis/ext.example.com/v11", "/apis/ext.example.com/v1"),
        ] {
            assert_eq!(within(&extension, &format!("a=b; Path={wanted}")), format!("a=b; Path={had}"));
        }
    }

    #[test]
    fn only_an_upgrade_that_is_asked_for_and_is_no_http_is_passed_on() {
        let wanted = |lines: &[(&str, &str)]| upgrade(&map(lines)).is_some();
        assert!(wanted(&[("Connection", "keep-alive, Upgrade"), ("Upgrade", "websocket")]));
        assert!(!wanted(&[("Upgrade", "websocket")]), "Connection does not name it");
        assert!(!wanted(&[("Connection", "Upgrade")]));
        for protocol in ["h2c", "HTTP/2.0", "TLS/1.0", "websocket, h2c", ""] {
            assert!(!wanted(&[("Connection", "Upgrade"), ("Upgrade", protocol)]), "{protocol}");
        }
        assert!(!wanted(&[("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Upgrade", "h2c")]));
        let websocket = HeaderValue::from_static("websocket");
        assert!(is_switched_to(&map(&[("Upgrade", "WebSocket")]), &websocket));
        assert!(!is_switched_to(&map(&[("Upgrade", "h2c")]), &websocket));
        assert!(!is_switched_to(&map(&[]), &websocket));
    }
}
