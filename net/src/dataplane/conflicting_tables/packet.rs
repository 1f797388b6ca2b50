//! The known properties of first packets of Pods' connections, and whether a rule's condition holds for all of them.

use std::net::IpAddr;

use ipnet::IpNet;
use nftables::{
    expr::{Expression, Meta, MetaKey, NamedExpression, Payload, SetItem},
    stmt::{self, Operator, Statement},
};

use crate::Family;

/// The prefix of all Pods' links.
const LINKS: &str = "pw";

/// The first packets of connections from or to Pods.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    pub family: Family,
    /// The ranges of the node's Pods, only of this family; empty if unknown.
    pub pods: &'a [IpNet],
    /// It comes from a Pod; otherwise it goes to one.
    pub from_pod: bool,
}

/// The contents of a named set; `None`: unknown.
pub type Sets<'a> = &'a dyn Fn(&str) -> Option<&'a [Option<Expression<'static>>]>;

/// For which of the packets a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Always,
    Sometimes,
    Never,
}
use Match::{Always, Never, Sometimes};

impl Match {
    fn not(self) -> Match {
        match self {
            Always => Never,
            Never => Always,
            Sometimes => Sometimes,
        }
    }

    fn of(holds: bool) -> Match {
        if holds { Always } else { Never }
    }

    /// For alternative conditions.
    fn any(all: impl Iterator<Item = Match>) -> Match {
        all.fold(Never, |found, one| match (found, one) {
            (Always, _) | (_, Always) => Always,
            (Never, Never) => Never,
            _ => Sometimes,
        })
    }
}

impl Packet<'_> {
    pub fn matches(&self, condition: &stmt::Match<'_>, sets: Sets<'_>) -> Match {
        let Expression::Named(left) = &condition.left else { return Sometimes };
        if self.is_other_family(left) {
            return Never;
        }
        let one_of = |elements: &[Option<Expression<'_>>]| {
            Match::any(elements.iter().map(|one| one.as_ref().map_or(Sometimes, |one| self.equals(left, one))))
        };
        let found = match set_name(&condition.right) {
            Some(name) => sets(name).map_or(Sometimes, one_of),
            None => any_of(&condition.right, &|right| self.equals(left, right)),
        };
        match condition.op {
            Operator::EQ | Operator::IN => found,
            Operator::NEQ => found.not(),
            _ => Sometimes,
        }
    }

    /// A field of a header that the packet lacks never matches, whatever it is compared with.
    fn is_other_family(&self, left: &NamedExpression<'_>) -> bool {
        let NamedExpression::Payload(Payload::PayloadField(field)) = left else { return false };
        match self.family {
            Family::V4 => field.protocol == "ip6",
            Family::V6 => field.protocol == "ip",
        }
    }

    fn equals(&self, left: &NamedExpression<'_>, right: &Expression<'_>) -> Match {
        match left {
            NamedExpression::Payload(Payload::PayloadField(field)) => match (&*field.field, self.from_pod) {
                ("saddr", true) | ("daddr", false) if ["ip", "ip6"].contains(&&*field.protocol) => self.has_pods(right),
                _ => Sometimes,
            },
            NamedExpression::Meta(Meta { key }) => match (key, self.from_pod) {
                (MetaKey::Iifname | MetaKey::Iif, true) | (MetaKey::Oifname | MetaKey::Oif, false) => {
                    is_pods_link(right)
                }
                (MetaKey::Nfproto, _) => match right {
                    Expression::String(name) if name == "ipv4" => Match::of(self.family == Family::V4),
                    Expression::String(name) if name == "ipv6" => Match::of(self.family == Family::V6),
                    _ => Sometimes,
                },
                (MetaKey::Protocol, _) => match right {
                    Expression::String(name) if name == "ip" => Match::of(self.family == Family::V4),
                    Expression::String(name) if name == "ip6" => Match::of(self.family == Family::V6),
                    _ => Sometimes,
                },
                _ => Sometimes,
            },
            NamedExpression::CT(ct) if ct.key == "state" && ct.dir.is_none() => match right {
                Expression::String(name) if name == "new" => Always,
                Expression::String(name) if ["established", "related", "invalid", "untracked"].contains(&&**name) => {
                    Never
                }
                _ => Sometimes,
            },
            _ => Sometimes,
        }
    }

    /// Whether all addresses of the node's Pods are among these.
    fn has_pods(&self, right: &Expression<'_>) -> Match {
        let Some((first, last)) = bounds(right) else { return Sometimes };
        if self.pods.is_empty() {
            let all = IpAddr::is_unspecified(&first)
                && matches!(right, Expression::Named(NamedExpression::Prefix(p)) if p.len == 0);
            return if all { Always } else { Sometimes };
        }
        let inside = |range: &IpNet| first <= range.network() && range.broadcast() <= last;
        let beside = |range: &IpNet| range.broadcast() < first || last < range.network();
        match (self.pods.iter().all(inside), self.pods.iter().all(beside)) {
            (true, _) => Always,
            (_, true) => Never,
            _ => Sometimes,
        }
    }
}

/// The named set, if it is one.
pub fn set_name<'a>(right: &'a Expression<'_>) -> Option<&'a str> {
    match right {
        Expression::String(name) => name.strip_prefix('@'),
        _ => None,
    }
}

/// The result for some element of a set, or for the single value.
fn any_of(right: &Expression<'_>, holds: &dyn Fn(&Expression<'_>) -> Match) -> Match {
    match right {
        Expression::Named(NamedExpression::Set(items)) => Match::any(items.iter().map(|item| match item {
            SetItem::Element(element) => holds(element),
            _ => Sometimes,
        })),
        Expression::List(items) => Match::any(items.iter().map(holds)),
        one => holds(one),
    }
}

fn is_pods_link(right: &Expression<'_>) -> Match {
    let Expression::String(name) = right else { return Sometimes };
    match name.strip_suffix('*') {
        Some(start) if LINKS.starts_with(start) => Always,
        _ if name.starts_with(LINKS) => Sometimes,
        _ => Never,
    }
}

/// The first and the last address.
fn bounds(right: &Expression<'_>) -> Option<(IpAddr, IpAddr)> {
    match right {
        Expression::String(_) => address(right).map(|at| (at, at)),
        Expression::Range(range) => Some((address(&range.range[0])?, address(&range.range[1])?)),
        Expression::Named(NamedExpression::Prefix(prefix)) => {
            let net = IpNet::new(address(&prefix.addr)?, u8::try_from(prefix.len).ok()?).ok()?;
            Some((net.network(), net.broadcast()))
        }
        _ => None,
    }
}

fn address(text: &Expression<'_>) -> Option<IpAddr> {
    match text {
        Expression::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Conditions and verdicts, approximately in nft syntax; without counters and logging.
pub fn words(statement: &Statement<'_>) -> Option<String> {
    match statement {
        Statement::Match(condition) => {
            let op = match condition.op {
                Operator::NEQ => "!= ",
                _ => "",
            };
            Some(format!("{} {op}{}", value(&condition.left), value(&condition.right)))
        }
        Statement::Drop(_) => Some("drop".to_owned()),
        Statement::Reject(_) => Some("reject".to_owned()),
        Statement::XT(Some(xt)) if xt["name"] == "REJECT" => Some("reject".to_owned()),
        _ => None,
    }
}

fn value(expression: &Expression<'_>) -> String {
    let braced = |items: Vec<String>| format!("{{ {} }}", items.join(", "));
    match expression {
        Expression::String(text) => text.to_string(),
        Expression::Number(number) => number.to_string(),
        Expression::List(items) => braced(items.iter().map(value).collect()),
        Expression::Range(range) => format!("{}-{}", value(&range.range[0]), value(&range.range[1])),
        Expression::Named(NamedExpression::Prefix(prefix)) => format!("{}/{}", value(&prefix.addr), prefix.len),
        Expression::Named(NamedExpression::Set(items)) => {
            let item = |item: &SetItem<'_>| match item {
                SetItem::Element(element) => value(element),
                _ => "...".to_owned(),
            };
            braced(items.iter().map(item).collect())
        }
        Expression::Named(NamedExpression::Payload(Payload::PayloadField(field))) => {
            format!("{} {}", field.protocol, field.field)
        }
        Expression::Named(NamedExpression::Meta(Meta { key })) => {
            serde_json::to_value(key).ok().and_then(|key| key.as_str().map(str::to_owned)).unwrap_or_default()
        }
        Expression::Named(NamedExpression::CT(ct)) => format!("ct {}", ct.key),
        _ => "...".to_owned(),
    }
}
