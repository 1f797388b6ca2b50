//! Kubernetes' IP, CIDR and URL libraries.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::Param::{Named, Text};
use super::{Function, Out, Param, global, member, text, texts, through};
use crate::api::cel::{Error, Value};

const IP: Param = Named("net.IP");
const CIDR: Param = Named("net.CIDR");
const URL: Param = Named("kubernetes.URL");

pub fn rows() -> Vec<Function> {
    vec![
        global("ip", &[Text], Out::Named("net.IP"), |v, _| {
            address(text(v, 0)).map(Value::Ip).ok_or_else(|| {
                Error::new(format!("IP Address {:?} parse error during conversion from string", text(v, 0)))
            })
        }),
        global("isIP", &[Text], Out::Bool, |v, _| Ok(Value::Bool(address(text(v, 0)).is_some()))),
        global("ip.isCanonical", &[Text], Out::Bool, |v, _| match address(text(v, 0)) {
            Some(ip) => Ok(Value::Bool(ip.to_string() == text(v, 0))),
            None => Err(Error::new(format!("IP Address {:?} parse error during conversion from string", text(v, 0)))),
        }),
        member("family", &[IP], Out::Int, |v, _| Ok(Value::Int(if of(v).is_ipv4() { 4 } else { 6 }))),
        member("isUnspecified", &[IP], Out::Bool, |v, _| Ok(Value::Bool(of(v).is_unspecified()))),
        member("isLoopback", &[IP], Out::Bool, |v, _| Ok(Value::Bool(of(v).is_loopback()))),
        member("isLinkLocalMulticast", &[IP], Out::Bool, |v, _| Ok(Value::Bool(is_link_local_multicast(of(v))))),
        member("isLinkLocalUnicast", &[IP], Out::Bool, |v, _| Ok(Value::Bool(is_link_local(of(v))))),
        member("isGlobalUnicast", &[IP], Out::Bool, |v, _| Ok(Value::Bool(is_global(of(v))))),
        global("cidr", &[Text], Out::Named("net.CIDR"), |v, _| {
            network(text(v, 0)).map(Value::Cidr).ok_or_else(|| {
                Error::new(format!("network address parse error during conversion from string: {:?}", text(v, 0)))
            })
        }),
        global("isCIDR", &[Text], Out::Bool, |v, _| Ok(Value::Bool(network(text(v, 0)).is_some()))),
        member("containsIP", &[CIDR, IP], Out::Bool, |v, _| match (&v[0], &v[1]) {
            (Value::Cidr(net), Value::Ip(ip)) => Ok(Value::Bool(net.contains(ip))),
            _ => Err(Error::no_such_overload()),
        }),
        member("containsIP", &[CIDR, Text], Out::Bool, |v, _| match (&v[0], address(text(v, 1))) {
            (Value::Cidr(net), Some(ip)) => Ok(Value::Bool(net.contains(&ip))),
            _ => Err(Error::new(format!("IP Address {:?} parse error during conversion from string", text(v, 1)))),
        }),
        member("containsCIDR", &[CIDR, CIDR], Out::Bool, |v, _| match (&v[0], &v[1]) {
            (Value::Cidr(net), Value::Cidr(inner)) => Ok(Value::Bool(net.contains(inner))),
            _ => Err(Error::no_such_overload()),
        }),
        member("containsCIDR", &[CIDR, Text], Out::Bool, |v, _| match (&v[0], network(text(v, 1))) {
            (Value::Cidr(net), Some(inner)) => Ok(Value::Bool(net.contains(&inner))),
            _ => {
                Err(Error::new(format!("network address parse error during conversion from string: {:?}", text(v, 1))))
            }
        }),
        member("ip", &[CIDR], Out::Named("net.IP"), |v, _| net(v).map(|net| Value::Ip(net.addr()))),
        member("masked", &[CIDR], Out::Named("net.CIDR"), |v, _| net(v).map(|net| Value::Cidr(net.trunc()))),
        member("prefixLength", &[CIDR], Out::Int, |v, _| net(v).map(|net| Value::Int(net.prefix_len().into()))),
        global("url", &[Text], Out::Named("kubernetes.URL"), |v, b| {
            b.charge(through(text(v, 0)))?;
            let invalid = || {
                Error::new(format!(
                    "URL parse error during conversion from string: parse {:?}: invalid URI for request",
                    text(v, 0)
                ))
            };
            Url::parse(text(v, 0)).map(|url| Value::Url(url.into())).ok_or_else(invalid)
        }),
        global("isURL", &[Text], Out::Bool, |v, b| {
            b.charge(through(text(v, 0)))?;
            Ok(Value::Bool(Url::parse(text(v, 0)).is_some()))
        }),
        member("getScheme", &[URL], Out::Text, |v, _| url(v, |url| url.scheme.as_str().into())),
        member("getHost", &[URL], Out::Text, |v, _| url(v, |url| url.host.as_str().into())),
        member("getHostname", &[URL], Out::Text, |v, _| url(v, |url| url.split().0.into())),
        member("getPort", &[URL], Out::Text, |v, _| url(v, |url| url.split().1.into())),
        member("getEscapedPath", &[URL], Out::Text, |v, _| url(v, |url| url.path.as_str().into())),
        member("getQuery", &[URL], Out::Dyn, |v, _| {
            url(v, |url| Value::map(url.query().into_iter().map(|(key, all)| (Arc::from(key), texts(all)))))
        }),
    ]
}

/// An address as upstream takes it: no zone, no IPv4 within IPv6.
fn address(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    let mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    (!mapped).then_some(ip)
}

fn network(text: &str) -> Option<IpNet> {
    let (ip, _) = text.split_once('/')?;
    address(ip)?;
    text.parse().ok()
}

fn of(values: &[Value]) -> IpAddr {
    match &values[0] {
        Value::Ip(ip) => *ip,
        _ => IpAddr::from([0, 0, 0, 0]),
    }
}

fn net(values: &[Value]) -> Result<IpNet, Error> {
    match &values[0] {
        Value::Cidr(net) => Ok(*net),
        _ => Err(Error::no_such_overload()),
    }
}

fn is_link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_global(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local(ip))
}

/// A URL with a scheme, or an absolute path; its parts as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    /// With its port.
    host: String,
    path: String,
    query: String,
}

impl Url {
    pub fn parse(text: &str) -> Option<Url> {
        if text.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return None;
        }
        let (rest, query) = text.split_once('?').unwrap_or((text, ""));
        let (scheme, rest) = match rest.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) {
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
            None if rest.starts_with('/') => (String::new(), rest),
            None => return None,
        };
        let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(rest) => rest.find('/').map_or((rest, ""), |at| rest.split_at(at)),
            None if rest.starts_with('/') => ("", rest),
            None => return None,
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let bad_port = |port: &str| !port.bytes().all(|b| b.is_ascii_digit());
        let port = host.rsplit_once(':').filter(|(before, _)| !before.starts_with('[') || before.ends_with(']'));
        if port.is_some_and(|(_, port)| bad_port(port)) || host.contains(['<', '>', '"', '{', '}', '^', '`', '|', '\\'])
        {
            return None;
        }
        let escaped = |text: &str| {
            let parts = text.split('%').skip(1);
            { parts }.all(|part| part.len() >= 2 && part.bytes().take(2).all(|b| b.is_ascii_hexdigit()))
        };
        (escaped(path) && escaped(host)).then(|| Url {
            scheme,
            host: host.into(),
            path: path.into(),
            query: query.into(),
        })
    }

    /// The host's name, without brackets, and its port.
    fn split(&self) -> (&str, &str) {
        let (name, port) = match self.host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((name, port)) => (name, port),
            None => (self.host.as_str(), ""),
        };
        (name.trim_start_matches('[').trim_end_matches(']'), port)
    }

    fn query(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            all.entry(unescaped(key)).or_default().push(unescaped(value));
        }
        all
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digits = (byte == b'%').then(|| bytes.clone().take(2).collect::<Vec<u8>>());
        let decoded = digits.and_then(|two| u8::from_str_radix(std::str::from_utf8(&two).ok()?, 16).ok());
        match (byte, decoded) {
            (_, Some(decoded)) => {
                out.push(decoded);
                bytes.nth(1);
            }
            (b'+', None) => out.push(b' '),
            (other, None) => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn url(values: &[Value], part: impl Fn(&Url) -> Value) -> Result<Value, Error> {
    match &values[0] {
        Value::Url(url) => Ok(part(url)),
        _ => Err(Error::no_such_overload()),
    }
}
