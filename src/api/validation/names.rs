//! The syntax of names, labels, ports and paths. Each function returns upstream's messages; none: it is valid.

/// Empty or one sentence, for callers to collect.
type Messages = Vec<String>;

fn is_lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_dns_label(s: &str) -> bool {
    let b = s.as_bytes();
    matches!((b.first(), b.last()), (Some(f), Some(l)) if is_lower(*f) && is_lower(*l))
        && b.iter().all(|c| is_lower(*c) || *c == b'-')
}

pub fn max_length(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// A DNS-1123 label: `my-name`.
pub fn dns1123_label(s: &str) -> Messages {
    let mut out = Vec::new();
    if s.len() > 63 {
        out.push(max_length(63));
    }
    if !is_dns_label(s) {
        out.push(DNS1123_LABEL.to_owned());
    }
    out
}

const DNS1123_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// A DNS-1123 subdomain: `example.com`.
pub fn dns1123_subdomain(s: &str) -> Messages {
    let mut out = Vec::new();
    if s.len() > 253 {
        out.push(max_length(253));
    }
    if !is_subdomain(s) {
        out.push(DNS1123_SUBDOMAIN.to_owned());
    }
    out
}

fn is_subdomain(s: &str) -> bool {
    s.split('.').all(is_dns_label)
}

const DNS1123_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
    '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// A DNS-1035 label, which starts with a letter: a Service's name.
pub fn dns1035_label(s: &str) -> Messages {
    let mut out = Vec::new();
    if s.len() > 63 {
        out.push(max_length(63));
    }
    if !is_dns_label(s) || !s.as_bytes()[0].is_ascii_lowercase() {
        out.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
             is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    out
}

fn is_qualified_part(s: &str) -> bool {
    let b = s.as_bytes();
    matches!((b.first(), b.last()), (Some(f), Some(l)) if f.is_ascii_alphanumeric() && l.is_ascii_alphanumeric())
        && b.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// `name` or `example.com/name`: keys of labels and annotations, finalizers, conditions.
pub fn qualified_name(s: &str) -> Messages {
    let mut out = Vec::new();
    let name = match s.split_once('/') {
        Some((prefix, name)) if !name.contains('/') => {
            if prefix.is_empty() {
                out.push(format!("prefix part {}", "must be non-empty"));
            } else {
                out.extend(dns1123_subdomain(prefix).into_iter().map(|m| format!("prefix part {m}")));
            }
            name
        }
        Some(_) => {
            out.push(format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                QUALIFIED
            ));
            return out;
        }
        None => s,
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        out.push(format!("name part {}", max_length(63)));
    }
    if !is_qualified_part(name) {
        out.push(format!("name part {QUALIFIED}"));
    }
    out
}

/// The value of a label.
pub fn label_value(s: &str) -> Messages {
    let mut out = Vec::new();
    if s.len() > 63 {
        out.push(max_length(63));
    }
    if !s.is_empty() && !is_qualified_part(s) {
        out.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start \
             and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    out
}

/// An IANA service name: a named port.
pub fn port_name(s: &str) -> Messages {
    let mut out = Vec::new();
    if s.len() > 15 {
        out.push(max_length(15));
    }
    if !s.bytes().all(|b| is_lower(b) || b == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !s.bytes().any(|b| b.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if s.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if s.starts_with('-') || s.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

pub fn port_number(port: i64) -> Messages {
    if (1..=65535).contains(&port) { Vec::new() } else { vec![between(1, 65535)] }
}

pub fn between(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// The name of an environment variable, as relaxed in 1.32: printable ASCII except `=`.
pub fn env_var_name(s: &str) -> Messages {
    if s.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if s.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// The key of a ConfigMap or Secret.
pub fn config_key(s: &str) -> Messages {
    let mut out = Vec::new();
    if s.len() > 253 {
        out.push(max_length(253));
    }
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        out.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME', \
              or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match s {
        "." | ".." => out.push(format!("must not be '{s}'")),
        _ if s.starts_with("..") => out.push("must not start with '..'".to_owned()),
        _ => {}
    }
    out
}

/// A name that is one segment of a URL path.
pub fn path_segment(s: &str) -> Messages {
    if matches!(s, "." | "..") {
        return vec![format!("may not be '{s}'")];
    }
    ["/", "%"].iter().filter(|c| s.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

pub fn ip(s: &str) -> Messages {
    if s.parse::<std::net::IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

/// As in upstream's strict validation: an IPv4 address must be written as such.
pub fn unmapped_ip(s: &str) -> Messages {
    let ip = s.parse().ok();
    match ip.and_then(|ip: std::net::Ipv6Addr| ip.to_ipv4_mapped()) {
        Some(_) => vec!["must not be an IPv4-mapped IPv6 address".to_owned()],
        None => Vec::new(),
    }
}

/// The IPv4 address embedded in an IPv6 one: mapped, compatible, or NAT64 (RFC 6052).
pub fn plain_ip(ip: std::net::IpAddr) -> std::net::IpAddr {
    let std::net::IpAddr::V6(v6) = ip else { return ip };
    let embedded = |[.., high, low]: [u16; 8]| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        std::net::IpAddr::V4(std::net::Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        all @ ([0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..]) => embedded(all),
        all @ [0, 0, 0, 0, 0, 0, ..]
            if v6 != std::net::Ipv6Addr::UNSPECIFIED && v6 != std::net::Ipv6Addr::LOCALHOST =>
        {
            embedded(all)
        }
        _ => ip,
    }
}

/// Why an address must not receive traffic: upstream's `ValidateEndpointIP`.
pub fn special_ip(ip: std::net::IpAddr) -> Option<&'static str> {
    // `::ffff:127.0.0.1` is equivalent to `127.0.0.1`.
    let ip = plain_ip(ip);
    let link_local = match ip {
        std::net::IpAddr::V4(ip) => ip.is_link_local(),
        std::net::IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    match ip {
        // Linux treats all of 0.0.0.0/8 as this machine.
        std::net::IpAddr::V4(ip) if ip.octets()[0] == 0 => Some("may not be unspecified (0.0.0.0 or ::)"),
        ip if ip.is_unspecified() => Some("may not be unspecified (0.0.0.0 or ::)"),
        ip if ip.is_loopback() => Some("may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        _ if link_local => Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        std::net::IpAddr::V4(ip) if ip.is_broadcast() => Some("may not be the broadcast address (255.255.255.255)"),
        ip if ip.is_multicast() => Some("may not be in the multicast range (224.0.0.0/4, ff00::/10)"),
        _ => None,
    }
}

pub fn cidr(s: &str) -> Messages {
    if s.parse::<ipnet::IpNet>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()]
    }
}

/// `example.com/name`: a field's controller or manager.
pub fn domain_prefixed_path(s: &str) -> Messages {
    if s.is_empty() {
        return vec!["Required value".to_owned()];
    }
    match s.split_once('/') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            let mut out: Messages = dns1123_subdomain(host).into_iter().map(|m| format!("prefix part {m}")).collect();
            if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~:@!$&'()*+,;=%".contains(&b)) {
                out.push("Invalid path".to_owned());
            }
            out
        }
        _ => vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned()],
    }
}

/// `*.example.com`
pub fn wildcard_subdomain(s: &str) -> Messages {
    let rest = s.strip_prefix("*.");
    match rest {
        Some(rest) if is_subdomain(rest) && s.len() <= 253 => Vec::new(),
        _ => vec![
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of \
             lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', \
             regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        ],
    }
}

/// A domain of at least three parts: the name of a webhook.
pub fn fully_qualified(s: &str) -> Messages {
    let mut out = Vec::new();
    if s.is_empty() {
        return vec!["Required value".to_owned()];
    }
    out.extend(dns1123_subdomain(s));
    if s.split('.').count() < 3 {
        out.push("should be a domain with at least three segments separated by dots".to_owned());
    }
    out
}

/// The URL of a webhook.
pub fn https_url(s: &str) -> Messages {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut out = Vec::new();
    let Some((scheme, rest)) = s.split_once("://") else {
        return vec![format!("url must be a valid URL: {s:?}{FORM}")];
    };
    if scheme != "https" {
        out.push(format!("'https' is the only allowed URL scheme{FORM}"));
    }
    let host = rest.split(['/', '?', '#']).next().unwrap_or("");
    if host.is_empty() {
        out.push(format!("host must be specified{FORM}"));
    }
    if host.contains('@') {
        out.push(format!("user information is not permitted in the URL{FORM}"));
    }
    if rest.contains('#') {
        out.push(format!("fragments are not permitted in the URL{FORM}"));
    }
    if rest.contains('?') {
        out.push(format!("query parameters are not permitted in the URL{FORM}"));
    }
    out
}
