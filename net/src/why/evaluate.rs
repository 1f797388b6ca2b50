//! The values of nft's expressions for one packet, and whether a condition holds.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::facts::{Element, Facts, Part, Place, Question};
use crate::Family;
use crate::dataplane::Protocol;

/// The shortest packet that opens a connection: shorter than each limit that a rule may set.
const LENGTH: u64 = 60;

/// A packet at some point of its way, and what conntrack has of its connection.
#[derive(Clone, Debug)]
pub struct State {
    pub family: Family,
    pub protocol: Protocol,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub port: u16,
    /// Before all translation.
    pub original: (IpAddr, IpAddr, u16),
    pub link_in: String,
    pub link_out: String,
    pub next_hop: Option<IpAddr>,
    pub connection_mark: u32,
    pub mark: u32,
    pub is_translated: bool,
    pub is_tracked: bool,
    /// The number that stands for each random one.
    pub pick: u32,
    pub choices: u32,
    /// What its own rules have put into sets.
    pub added: Vec<(Place, Vec<Part>)>,
}

/// The value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    Parts(Vec<Part>),
    /// The packet has no such field: no rule that names it holds.
    Absent,
    Unknown,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Yes,
    No,
    Maybe,
}

impl Holds {
    fn of(holds: bool) -> Holds {
        if holds { Holds::Yes } else { Holds::No }
    }

    fn not(self) -> Holds {
        match self {
            Holds::Yes => Holds::No,
            Holds::No => Holds::Yes,
            Holds::Maybe => Holds::Maybe,
        }
    }
}

type Asking<T> = Result<T, Question>;

fn number(number: impl Into<u64>) -> Term {
    Term::Parts(vec![Part::Number(number.into())])
}

fn text(text: &str) -> Term {
    Term::Parts(vec![Part::Text(text.to_owned())])
}

fn address(address: IpAddr) -> Term {
    Term::Parts(vec![Part::Address(address)])
}

/// A constant: a number, an address, a name.
fn constant(word: &str) -> Part {
    // nft 1.0.6 writes ports of conntrack as `0x50 [invalid type]`.
    let word = word.strip_suffix(" [invalid type]").unwrap_or(word);
    if let Some(hex) = word.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
        return Part::Number(hex);
    }
    let plain = word.parse().ok().map(Part::Number);
    plain.or_else(|| word.parse().ok().map(Part::Address)).unwrap_or_else(|| Part::Text(word.to_owned()))
}

fn masked(address: IpAddr, mask: IpAddr) -> Option<IpAddr> {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => Some(IpAddr::V4((address.to_bits() & mask.to_bits()).into())),
        (IpAddr::V6(address), IpAddr::V6(mask)) => Some(IpAddr::V6((address.to_bits() & mask.to_bits()).into())),
        _ => None,
    }
}

/// The single key of an object, and what it has there.
pub fn entry(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.iter().next().map(|(key, value)| (key.as_str(), value))
}

impl State {
    /// The value of an expression in a rule of a table.
    pub fn term(&mut self, facts: &Facts, at: &Place, expression: &Value) -> Asking<Term> {
        match expression {
            Value::Number(n) => return Ok(n.as_u64().map_or(Term::Unknown, number)),
            Value::Bool(b) => return Ok(number(*b)),
            Value::String(word) => return Ok(Term::Parts(vec![constant(word)])),
            _ => {}
        }
        let Some((kind, of)) = entry(expression) else { return Ok(Term::Unknown) };
        Ok(match kind {
            "payload" => self.payload(of),
            "meta" => self.meta(of["key"].as_str().unwrap_or_default()),
            "ct" => self.connection(of),
            "fib" => return self.fib(facts, of),
            "rt" if of["key"] == "nexthop" => address(self.next_hop.unwrap_or(self.destination)),
            // A first packet is no fragment.
            "exthdr" => number(false),
            "concat" => {
                let mut all = Vec::new();
                for part in of.as_array().into_iter().flatten() {
                    match self.term(facts, at, part)? {
                        Term::Parts(parts) => all.extend(parts),
                        other => return Ok(other),
                    }
                }
                Term::Parts(all)
            }
            "&" => return self.and(facts, at, of),
            "numgen" => {
                let among = of["mod"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1);
                self.choices = self.choices.max(among);
                number(self.pick % among)
            }
            "map" => match self.looked_up(facts, at, &of["key"], &of["data"])? {
                Some((_, Element::Present(value))) => plain(&value),
                Some((_, Element::Missing)) => Term::Absent,
                _ => Term::Unknown,
            },
            _ => Term::Unknown,
        })
    }

    /// The element of a named map for a key, and that key; `None`: the key has no value.
    pub fn looked_up(
        &mut self,
        facts: &Facts,
        at: &Place,
        key: &Value,
        map: &Value,
    ) -> Asking<Option<(Vec<Part>, Element)>> {
        let key = match self.term(facts, at, key)? {
            Term::Parts(key) => key,
            Term::Absent => return Ok(None),
            Term::Unknown => return Ok(Some((Vec::new(), Element::Unknown))),
        };
        let Some(name) = map.as_str().and_then(|name| name.strip_prefix('@')) else {
            return Ok(Some((key, Element::Unknown)));
        };
        let found = facts.element(at.beside(name), &key)?.clone();
        Ok(Some((key, found)))
    }

    fn payload(&self, of: &Value) -> Term {
        let (protocol, field) = (of["protocol"].as_str().unwrap_or(""), of["field"].as_str().unwrap_or(""));
        let ip = if self.family == Family::V4 { "ip" } else { "ip6" };
        match (protocol, field) {
            ("ip" | "ip6", _) if protocol != ip => Term::Absent,
            ("ip" | "ip6", "saddr") => address(self.source),
            ("ip" | "ip6", "daddr") => address(self.destination),
            ("ip", "frag-off") => number(0u64),
            ("tcp" | "udp" | "sctp", _) if protocol != self.protocol.name() => Term::Absent,
            ("tcp" | "udp" | "sctp" | "th", "dport") => number(self.port),
            ("tcp", "flags") => text("syn"),
            // The lower half of an IPv6 source, by which its clients are remembered.
            ("", "") if of["base"] == "nh" && of["offset"] == 128 && of["len"] == 64 && ip == "ip6" => {
                address(self.source)
            }
            ("icmp" | "icmpv6" | "udplite" | "dccp" | "esp" | "ah", _) => Term::Absent,
            _ => Term::Unknown,
        }
    }

    fn meta(&self, key: &str) -> Term {
        let v4 = self.family == Family::V4;
        match key {
            "iifname" | "iif" => text(&self.link_in),
            "oifname" | "oif" => text(&self.link_out),
            "l4proto" => text(self.protocol.name()),
            "length" => number(LENGTH),
            "mark" => number(self.mark),
            "nfproto" => text(if v4 { "ipv4" } else { "ipv6" }),
            "protocol" => text(if v4 { "ip" } else { "ip6" }),
            _ => Term::Unknown,
        }
    }

    /// The answers of a connection come from where it leads now.
    fn connection(&self, of: &Value) -> Term {
        let (key, direction) = (of["key"].as_str().unwrap_or(""), of["dir"].as_str().unwrap_or(""));
        let (source, destination, port) = self.original;
        match (key.rsplit(' ').next().unwrap_or(key), direction) {
            ("state", "") => text(if self.is_tracked { "new" } else { "untracked" }),
            _ if !self.is_tracked => Term::Absent,
            ("mark", "") => number(self.connection_mark),
            ("status", "") => text(if self.is_translated { "dnat" } else { "" }),
            ("direction", "") => text("original"),
            ("protocol", _) => text(self.protocol.name()),
            ("saddr", "original") => address(source),
            ("daddr", "original") => address(destination),
            ("proto-dst", "original") => number(port),
            ("saddr", "reply") => address(self.destination),
            ("proto-src", "reply") => number(self.port),
            _ => Term::Unknown,
        }
    }

    fn fib(&self, facts: &Facts, of: &Value) -> Asking<Term> {
        let flags: Vec<&str> = of["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let of_source = flags.contains(&"saddr");
        let route = facts.route(None, None, if of_source { self.source } else { self.destination })?;
        Ok(match (of["result"].as_str(), flags.as_slice()) {
            (Some("type"), ["saddr" | "daddr"]) => text(route.as_ref().map_or("unreachable", |route| route.kind)),
            (Some("oif"), ["saddr", "iif"]) => {
                number(route.as_ref().is_ok_and(|route| route.kind == "unicast" && route.link == self.link_in))
            }
            _ => Term::Unknown,
        })
    }

    fn and(&mut self, facts: &Facts, at: &Place, of: &Value) -> Asking<Term> {
        let (left, right) = (&of[0], &of[1]);
        if left["ct"]["key"] == "status" {
            return Ok(match right.as_str() {
                Some("dnat") if self.is_translated => text("dnat"),
                // Nothing of a first packet's connection is confirmed yet.
                Some("dnat" | "confirmed" | "seen-reply" | "assured") => number(0u64),
                _ => Term::Unknown,
            });
        }
        if left["payload"]["field"] == "flags" {
            return Ok(self.payload(&left["payload"]));
        }
        let (left, right) = (self.term(facts, at, left)?, self.term(facts, at, right)?);
        let (Term::Parts(left), Term::Parts(right)) = (left, right) else { return Ok(Term::Unknown) };
        Ok(match (left.as_slice(), right.as_slice()) {
            ([Part::Address(left)], [Part::Address(mask)]) => masked(*left, *mask).map_or(Term::Unknown, address),
            ([Part::Number(left)], [Part::Number(right)]) => number(left & right),
            _ => Term::Unknown,
        })
    }

    /// Whether a condition holds.
    pub fn holds(&mut self, facts: &Facts, at: &Place, condition: &Value) -> Asking<Holds> {
        let left = match self.term(facts, at, &condition["left"])? {
            Term::Parts(left) => left,
            Term::Absent => return Ok(Holds::No),
            Term::Unknown => return Ok(Holds::Maybe),
        };
        let right = &condition["right"];
        Ok(match condition["op"].as_str() {
            Some("==" | "in") => self.is_among(facts, at, &left, right)?,
            Some("!=") => self.is_among(facts, at, &left, right)?.not(),
            Some(op) => match (left.as_slice(), self.term(facts, at, right)?) {
                ([Part::Number(left)], Term::Parts(right)) => match (op, right.as_slice()) {
                    (">", [Part::Number(right)]) => Holds::of(left > right),
                    ("<", [Part::Number(right)]) => Holds::of(left < right),
                    (">=", [Part::Number(right)]) => Holds::of(left >= right),
                    ("<=", [Part::Number(right)]) => Holds::of(left <= right),
                    _ => Holds::Maybe,
                },
                _ => Holds::Maybe,
            },
            None => Holds::Maybe,
        })
    }

    fn is_among(&self, facts: &Facts, at: &Place, left: &[Part], right: &Value) -> Asking<Holds> {
        if let Some(name) = right.as_str().and_then(|name| name.strip_prefix('@')) {
            let set = at.beside(name);
            if self.added.iter().any(|(of, key)| *of == set && key == left) {
                return Ok(Holds::Yes);
            }
            return Ok(match facts.element(set, left)? {
                Element::Missing => Holds::No,
                Element::Present(_) => Holds::Yes,
                Element::Unknown => Holds::Maybe,
            });
        }
        let items = right.as_array().or_else(|| right["set"].as_array());
        let Some(items) = items else { return Ok(equals(left, right)) };
        let all: Vec<Holds> = items.iter().map(|item| equals(left, item)).collect();
        Ok(match all.contains(&Holds::Yes) {
            true => Holds::Yes,
            false if all.contains(&Holds::Maybe) => Holds::Maybe,
            false => Holds::No,
        })
    }
}

/// The value of a map's element.
fn plain(value: &Value) -> Term {
    let values = value["concat"].as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let part = |value: &Value| match value {
        Value::Number(n) => n.as_u64().map(Part::Number),
        Value::String(word) => Some(constant(word)),
        _ => None,
    };
    values.iter().map(part).collect::<Option<Vec<Part>>>().map_or(Term::Unknown, Term::Parts)
}

/// Whether a value is, or is within, what is written at the right: a constant, a prefix, a range.
pub fn equals(left: &[Part], right: &Value) -> Holds {
    if let Some(value) = right.pointer("/elem/val") {
        return equals(left, value);
    }
    if let Some(all) = right["concat"].as_array() {
        let each = left.iter().zip(all).map(|(left, right)| equals(std::slice::from_ref(left), right));
        let each: Vec<Holds> = each.collect();
        return match each.contains(&Holds::No) || all.len() != left.len() {
            true => Holds::No,
            false if each.contains(&Holds::Maybe) => Holds::Maybe,
            false => Holds::Yes,
        };
    }
    let [left] = left else { return Holds::Maybe };
    if let (Part::Address(left), Some(prefix)) = (left, right.get("prefix")) {
        let net = prefix["addr"].as_str().and_then(|addr| addr.parse().ok());
        let length = prefix["len"].as_u64().and_then(|len| u8::try_from(len).ok());
        let net = net.zip(length).and_then(|(addr, length)| IpNet::new(addr, length).ok());
        return net.map_or(Holds::Maybe, |net| Holds::of(net.contains(left)));
    }
    if let Some([first, last]) = right["range"].as_array().map(Vec::as_slice) {
        let (Term::Parts(first), Term::Parts(last)) = (plain(first), plain(last)) else { return Holds::Maybe };
        return match (first.as_slice(), left, last.as_slice()) {
            ([Part::Number(first)], Part::Number(left), [Part::Number(last)]) => {
                Holds::of((first..=last).contains(&left))
            }
            ([Part::Address(first)], Part::Address(left), [Part::Address(last)]) => {
                Holds::of((first..=last).contains(&left))
            }
            _ => Holds::Maybe,
        };
    }
    if let (Part::Text(left), Some(start)) = (left, right.as_str().and_then(|right| right.strip_suffix('*'))) {
        return Holds::of(left.starts_with(start));
    }
    let right = match right {
        Value::Bool(right) => Term::Parts(vec![Part::Number(u64::from(*right))]),
        right => plain(right),
    };
    match (left, right) {
        (_, Term::Absent | Term::Unknown) => Holds::Maybe,
        (left, Term::Parts(right)) => match (left, right.as_slice()) {
            (Part::Text(left), [Part::Text(right)]) => Holds::of(left == right),
            (Part::Number(left), [Part::Number(right)]) => Holds::of(left == right),
            (Part::Address(left), [Part::Address(right)]) => Holds::of(left == right),
            // A flag that is not set.
            (Part::Number(0), [Part::Text(_)]) => Holds::No,
            (Part::Text(name), [Part::Number(number)]) => Protocol::ALL
                .iter()
                .find(|protocol| protocol.name() == name)
                .map_or(Holds::Maybe, |protocol| Holds::of(u64::from(protocol.number()) == *number)),
            _ => Holds::Maybe,
        },
    }
}
