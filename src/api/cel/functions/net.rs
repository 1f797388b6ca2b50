//! Kubernetes' IP, CIDR and URL libraries.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::Param::{Named, Text};
use super::{Function, Out, Param, global, member, text, texts};
use crate::cel::url::Url;
use crate::cel::{Error, Value};

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
        global("url", &[Text], Out::Named("kubernetes.URL"), |v, _| {
            let invalid = || {
                Error::new(format!(
                    "URL parse error during conversion from string: parse {:?}: invalid URI for request",
                    text(v, 0)
                ))
            };
            Url::parse(text(v, 0)).map(|url| Value::Url(url.into())).ok_or_else(invalid)
        }),
        global("isURL", &[Text], Out::Bool, |v, _| Ok(Value::Bool(Url::parse(text(v, 0)).is_some()))),
        member("getScheme", &[URL], Out::Text, |v, _| url(v, |url| url.scheme.as_str().into())),
        member("getHost", &[URL], Out::Text, |v, _| url(v, |url| url.host.as_str().into())),
        member("getHostname", &[URL], Out::Text, |v, _| url(v, |url| url.split().0.into())),
        member("getPort", &[URL], Out::Text, |v, _| url(v, |url| url.split().1.into())),
        member("getEscapedPath", &[URL], Out::Text, |v, _| url(v, |url| url.path.as_str().into())),
        member("getQuery", &[URL], Out::Dyn, |v, b| {
            url(v, |url| b.charge(url.pairs() as u64))??;
            url(v, |url| Value::map(url.query().into_iter().map(|(key, all)| (Arc::from(key), texts(all)))))
        }),
    ]
}

/// Parses an address like upstream: no zone, no IPv4 within IPv6.
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

fn url<T>(values: &[Value], part: impl FnOnce(&Url) -> T) -> Result<T, Error> {
    match &values[0] {
        Value::Url(url) => Ok(part(url)),
        _ => Err(Error::no_such_overload()),
    }
}
