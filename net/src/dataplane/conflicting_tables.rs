//! Other programs' tables that would drop Pods' traffic: found and reported, never changed.
//!
//! A packet has to pass the chains of all tables: ours cannot speak for others. The first packets of connections from and to Pods
//! are followed through each base chain of others ([`packet`]), as far as what a rule matches is known of all of them; what a
//! rule may or may not match is passed over.
//!
//! The listing is read object by object: the types of the `nftables` crate are closed, and what they do not know in one rule of
//! anybody's must not hide the others.

mod packet;

use std::collections::HashMap;

use ipnet::IpNet;
use nftables::{
    schema::Chain,
    stmt::Statement,
    types::{NfChainPolicy, NfFamily, NfHook},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::base::TABLE;
use crate::{Family, NodeNetns, Result, netlink};
use packet::{Match, Packet};

/// So many are reported: whoever has more of them knows.
const MOST: usize = 32;
/// The longest name or rule that is shown, in characters.
const LONGEST: usize = 128;
/// How deep chains may jump, as in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;
/// So many rules are looked at for one packet: chains that jump to others many times multiply.
const RULES: usize = 100_000;

/// A chain outside our tables that Pods' packets do not survive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// `inet`
    pub family: &'static str,
    pub table: String,
    /// The base chain, whose hook sees the packet.
    pub chain: String,
    /// What drops it: `policy drop`, or a rule with the chain that it stands in.
    pub rule: String,
    /// The rule's, where it is one. It is another one whenever a program loads its rules again.
    pub handle: Option<u64>,
    /// All of it but the handle, in words: the same for the same tables.
    pub message: String,
}

/// Looks for base chains of others that drop the first packets of all connections from or to Pods of these ranges. Docker's,
/// firewalld's and ufw's are such.
pub fn conflicting_tables(netns: &NodeNetns, pod_ranges: &[IpNet], families: &[Family]) -> Result<Vec<Conflict>> {
    let list = |arguments: &[&str]| netlink::in_netns(netns.fd(), || netlink::nft_listing(arguments))?;
    // Rules are many where they are; most nodes have no such chain, and chains alone are few.
    if Listing::parse(&list(&["-j", "list", "chains"])?).chains.is_empty() {
        return Ok(Vec::new());
    }
    let listing = Listing::parse(&list(&["-j", "-t", "list", "ruleset"])?);
    Ok(listing.conflicts(pod_ranges, families))
}

/// A chain's place: family, table, name.
type Place = (&'static str, String, String);

/// What others have.
#[derive(Default)]
struct Listing {
    /// Base chains whose hook Pods' packets come by, in the order of the listing.
    chains: Vec<Chain<'static>>,
    rules: HashMap<Place, Vec<Rule>>,
}

/// What nft lists, each object as text.
#[derive(Deserialize)]
struct Objects<'a> {
    #[serde(borrow)]
    nftables: Vec<&'a RawValue>,
}

struct Rule {
    handle: u64,
    /// `None`: a statement of a type that is not known.
    statements: Vec<Option<Statement<'static>>>,
}

impl Listing {
    fn parse(json: &str) -> Listing {
        let mut listing = Listing::default();
        // As trees all at once they are many times as large.
        let all = serde_json::from_str::<Objects<'_>>(json).map(|all| all.nftables).unwrap_or_default();
        for entry in all {
            let mut entry: Value = serde_json::from_str(entry.get()).unwrap_or_default();
            if let Some(chain) = entry.get_mut("chain") {
                listing.chains.extend(base_chain(chain.take()));
            } else if let Some(rule) = entry.get_mut("rule") {
                let Some((place, rule)) = self::rule(rule) else { continue };
                listing.rules.entry(place).or_default().push(rule);
            }
        }
        listing
    }

    fn conflicts(&self, ranges: &[IpNet], families: &[Family]) -> Vec<Conflict> {
        let conflicts = self.chains.iter().filter_map(|chain| self.conflict(chain, ranges, families));
        conflicts.take(MOST).collect()
    }

    fn conflict(&self, chain: &Chain<'static>, ranges: &[IpNet], families: &[Family]) -> Option<Conflict> {
        let place = (family_word(chain.family)?, chain.table.to_string(), chain.name.to_string());
        let policy = chain.policy.unwrap_or(NfChainPolicy::Accept);
        for (packet, what) in packets(chain.hook?) {
            for family in families.iter().filter(|family| sees(chain.family, **family)) {
                let of_family: Vec<IpNet> =
                    ranges.iter().filter(|range| Family::of_net(range) == *family).copied().collect();
                let packet = Packet { family: *family, pods: &of_family, ..packet };
                let mut left = RULES;
                let dropped = match self.end(&place, &packet, DEEPEST, &mut left) {
                    End::Dropped(rule, handle) => (rule, Some(handle)),
                    End::Through if policy == NfChainPolicy::Drop => ("policy drop".to_owned(), None),
                    End::Through | End::Accepted => continue,
                };
                return Some(conflict(&place, dropped, what));
            }
        }
        None
    }

    /// Where a packet's way through a chain ends.
    fn end(&self, place: &Place, packet: &Packet<'_>, depth: usize, left: &mut usize) -> End {
        for rule in self.rules.get(place).into_iter().flatten() {
            let Some(rest) = left.checked_sub(1) else { return End::Accepted };
            *left = rest;
            match rule.does(packet) {
                Does::Nothing => {}
                Does::Return => return End::Through,
                Does::Accept => return End::Accepted,
                Does::Drop => return End::Dropped(rule.words(&place.2), rule.handle),
                Does::Jump(target, comes_back) => {
                    let Some(depth) = depth.checked_sub(1) else { return End::Accepted };
                    let target = (place.0, place.1.clone(), target);
                    match self.end(&target, packet, depth, left) {
                        End::Through if comes_back => {}
                        end => return end,
                    }
                }
            }
        }
        End::Through
    }
}

enum End {
    /// By this rule, with this handle.
    Dropped(String, u64),
    Accepted,
    /// No rule ends it.
    Through,
}

/// What a rule does with a packet that it surely matches.
enum Does {
    Nothing,
    Return,
    Accept,
    Drop,
    /// To this chain, and whether back again.
    Jump(String, bool),
}

impl Rule {
    fn does(&self, packet: &Packet<'_>) -> Does {
        for statement in &self.statements {
            // What is not known may be a condition.
            let Some(statement) = statement else { return Does::Nothing };
            match statement {
                Statement::Match(condition) if packet.matches(condition) == Match::Always => {}
                Statement::XT(Some(xt)) => match (xt["type"].as_str(), xt["name"].as_str()) {
                    (Some("match"), Some("comment")) | (Some("target"), Some("LOG" | "NFLOG")) => {}
                    (Some("target"), Some("REJECT")) => return Does::Drop,
                    _ => return Does::Nothing,
                },
                Statement::Counter(_) | Statement::Log(_) | Statement::Mangle(_) | Statement::Notrack => {}
                Statement::Drop(_) | Statement::Reject(_) => return Does::Drop,
                // What gives it to somebody else is no drop.
                Statement::Accept(_) | Statement::Queue(_) => return Does::Accept,
                Statement::Return(_) => return Does::Return,
                Statement::Jump(to) => return Does::Jump(to.target.to_string(), true),
                Statement::Goto(to) => return Does::Jump(to.target.to_string(), false),
                _ => return Does::Nothing,
            }
        }
        Does::Nothing
    }

    /// `rule of chain X: ip saddr 10.0.0.0/8 drop`
    fn words(&self, chain: &str) -> String {
        let words: Vec<String> = self.statements.iter().flatten().filter_map(packet::words).collect();
        format!("rule of chain {}: {}", shown(chain), shown(&words.join(" ")))
    }
}

fn base_chain(chain: Value) -> Option<Chain<'static>> {
    let known = serde_json::from_value::<Chain<'static>>(chain);
    let known = known.inspect_err(|why| tracing::debug!(%why, "a chain of nftables is of a type that is not known"));
    let hooked = |chain: &Chain<'_>| chain.hook.is_some_and(|hook| packets(hook).next().is_some());
    known.ok().filter(|chain| hooked(chain) && family_word(chain.family).is_some_and(|f| !is_ours(f, &chain.table)))
}

fn rule(rule: &mut Value) -> Option<(Place, Rule)> {
    let family = serde_json::from_value(rule.get_mut("family")?.take()).ok().and_then(family_word)?;
    let (table, chain) = (rule["table"].as_str()?.to_owned(), rule["chain"].as_str()?.to_owned());
    if is_ours(family, &table) {
        return None;
    }
    let statements = rule.get_mut("expr")?.as_array_mut()?.iter_mut();
    let statements = statements.map(|statement| serde_json::from_value(statement.take()).ok()).collect();
    Some(((family, table, chain), Rule { handle: rule["handle"].as_u64().unwrap_or_default(), statements }))
}

fn is_ours(family: &str, table: &str) -> bool {
    table == TABLE && ["ip", "ip6"].contains(&family)
}

/// Pods' packets that come by a hook, and what they are.
fn packets(hook: NfHook) -> impl Iterator<Item = (Packet<'static>, &'static str)> {
    let kinds: &[(bool, &str)] = match hook {
        NfHook::Prerouting => &[(true, "traffic from Pods")],
        NfHook::Forward => &[(true, "traffic from Pods"), (false, "traffic to Pods")],
        NfHook::Input => &[(true, "traffic from Pods to this node (DNS included)")],
        NfHook::Output => &[(false, "traffic from this node to Pods (probes included)")],
        NfHook::Postrouting => &[(false, "traffic to Pods")],
        _ => &[],
    };
    let packet = |from_pod| Packet { family: Family::V4, pods: &[], from_pod };
    kinds.iter().map(move |(from_pod, what)| (packet(*from_pod), *what))
}

fn conflict((family, table, chain): &Place, (rule, handle): (String, Option<u64>), what: &str) -> Conflict {
    let (family, table, chain) = (*family, shown(table), shown(chain));
    let owner = match &*table {
        "firewalld" => "firewalld's",
        "filter" => "a table that Docker and ufw use:",
        _ => "another program's",
    };
    let message = format!("{owner} table {family} {table}, chain {chain}, drops {what}: {rule}");
    Conflict { family, table, chain, rule, handle, message }
}

/// The families whose packets the hooks of a node's network see.
fn family_word(family: NfFamily) -> Option<&'static str> {
    match family {
        NfFamily::IP => Some("ip"),
        NfFamily::IP6 => Some("ip6"),
        NfFamily::INet => Some("inet"),
        // Links of Pods are on no bridge, and what is no IP is no traffic of Pods.
        NfFamily::ARP | NfFamily::Bridge | NfFamily::NetDev => None,
    }
}

fn sees(table: NfFamily, family: Family) -> bool {
    match table {
        NfFamily::INet => true,
        NfFamily::IP => family == Family::V4,
        NfFamily::IP6 => family == Family::V6,
        NfFamily::ARP | NfFamily::Bridge | NfFamily::NetDev => false,
    }
}

/// Somebody's text as part of a line: the kernel takes any bytes as a name.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The conflicts of a table `inet t` whose chain `base` has these rules, as `chain: rule`, with the handle of the rule: its number.
    fn found(hook: &str, policy: &str, rules: &[Value]) -> Vec<String> {
        let chain = json!({"chain": {"family": "inet", "table": "t", "name": "base", "hook": hook, "policy": policy}});
        let rule = |(at, (chain, expr)): (usize, (&str, &Value))| json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": at, "expr": expr}});
        let places = rules.iter().map(|rule| match rule {
            Value::Object(_) => ("other", &rule["other"]),
            _ => ("base", rule),
        });
        let all: Vec<Value> = std::iter::once(chain).chain(places.enumerate().map(rule)).collect();
        let ranges = ["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()];
        let listing = Listing::parse(&json!({ "nftables": all }).to_string());
        let handle = |c: &Conflict| c.handle.map(|handle| format!(" ({handle})")).unwrap_or_default();
        let words = |c: Conflict| format!("{}: {}{}", c.chain, c.rule, handle(&c));
        listing.conflicts(&ranges, &Family::ALL).into_iter().map(words).collect()
    }

    fn saddr(op: &str, right: &Value) -> Value {
        json!({"match": {"op": op, "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": right}})
    }

    fn meta(key: &str, right: &Value) -> Value {
        json!({"match": {"op": "==", "left": {"meta": {"key": key}}, "right": right}})
    }

    fn state(op: &str, right: &Value) -> Value {
        json!({"match": {"op": op, "left": {"ct": {"key": "state"}}, "right": right}})
    }

    #[test]
    fn dropping_policies_of_others_are_found() {
        let listing = r#"{"nftables": [{"metainfo": {}},
            {"chain": {"family": "netdev", "table": "x", "name": "in", "hook": "ingress", "dev": ["a", "b"], "policy": "drop"}},
            {"chain": {"family": "bridge", "table": "x", "name": "fwd", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "x", "name": "later", "type": "unheard-of", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 1, "type": "filter", "hook": "forward",
                       "prio": 0, "policy": "drop"}},
            {"chain": {"family": "inet", "table": "firewalld", "name": "filter_INPUT", "hook": "input", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "accept"}},
            {"chain": {"family": "ip", "table": "podwright", "name": "forward", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "inet", "table": "podwright", "name": "forward", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip6", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}}]}"#;
        let found = Listing::parse(listing).conflicts(&[], &[Family::V4]);
        let found: Vec<String> = found.iter().map(|c| format!("{} {} {}", c.family, c.table, c.chain)).collect();
        assert_eq!(found, ["ip filter FORWARD", "inet firewalld filter_INPUT", "inet podwright forward"]);
        assert_eq!(Listing::parse("not json").conflicts(&[], &Family::ALL), []);
    }

    #[test]
    fn rules_that_drop_all_of_pods_packets_are_found() {
        let drop = json!({"drop": null});
        let net = |addr: &str, len: u8| json!({"prefix": {"addr": addr, "len": len}});
        for (words, expr) in [
            ("drop", json!([{"counter": {"packets": 0, "bytes": 0}}, {"log": {"prefix": "x"}}, drop])),
            ("reject", json!([{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}])),
            ("ip saddr 10.0.0.0/8 drop", json!([saddr("==", &net("10.0.0.0", 8)), drop])),
            ("ip saddr != 192.168.0.0/16 drop", json!([saddr("!=", &net("192.168.0.0", 16)), drop])),
            (
                "ip saddr 10.0.0.0-10.255.255.255 drop",
                json!([saddr("==", &json!({"range": ["10.0.0.0", "10.255.255.255"]})), drop]),
            ),
            (
                "ip saddr { 1.2.3.4, 10.244.0.0/16 } drop",
                json!([saddr("==", &json!({"set": ["1.2.3.4", net("10.244.0.0", 16)]})), drop]),
            ),
            ("iifname pw* drop", json!([meta("iifname", &json!("pw*")), drop])),
            ("nfproto ipv6 drop", json!([meta("nfproto", &json!("ipv6")), drop])),
            ("ct state new drop", json!([state("in", &json!("new")), drop])),
            (
                "ct state != { established, related } drop",
                json!([state("!=", &json!({"set": ["established", "related"]})), drop]),
            ),
            (
                "reject",
                json!([{"xt": {"type": "match", "name": "comment"}}, {"xt": {"type": "target", "name": "REJECT"}}]),
            ),
        ] {
            let wanted = format!("base: rule of chain base: {words} (0)");
            assert_eq!(found("forward", "accept", &[expr.clone()]), [wanted], "{expr}");
        }
    }

    #[test]
    fn rules_that_may_match_others_alone_are_none() {
        let drop = json!({"drop": null});
        for condition in [
            saddr("==", &json!("10.244.1.7")),
            saddr("==", &json!({"prefix": {"addr": "192.168.0.0", "len": 16}})),
            saddr("!=", &json!({"prefix": {"addr": "10.0.0.0", "len": 8}})),
            saddr("==", &json!("@blocked")),
            meta("iifname", &json!("docker0")),
            meta("iifname", &json!("pw1f2e3d4c5b6a")),
            meta("oifname", &json!("eth0")),
            meta("mark", &json!(7)),
            state("in", &json!("invalid")),
            json!({"limit": {"rate": 1, "burst": 5, "per": "second"}}),
            json!({"xt": {"type": "match", "name": "conntrack"}}),
            json!({"unheard-of": {}}),
            json!({"vmap": {"key": {"meta": {"key": "mark"}}, "data": {"set": [[1, {"drop": null}]]}}}),
        ] {
            assert_eq!(found("forward", "accept", &[json!([condition, drop])]), [""; 0], "{condition}");
        }
    }

    #[test]
    fn what_an_earlier_rule_accepts_is_not_dropped_by_a_later_one_or_the_policy() {
        let (drop, accept) = (json!([{"drop": null}]), json!({"accept": null}));
        let pods = [json!([meta("iifname", &json!("pw*")), accept]), json!([meta("oifname", &json!("p*")), accept])];
        assert_eq!(found("forward", "drop", &pods), [""; 0]);
        assert_eq!(found("forward", "drop", &[pods[0].clone()]), ["base: policy drop"], "what goes to Pods is");
        assert_eq!(found("input", "drop", &[pods[0].clone(), drop.clone()]), [""; 0]);
        assert_eq!(found("output", "drop", &[pods[1].clone(), drop.clone()]), [""; 0]);
        let others = json!([state("==", &json!({"set": ["established", "related"]})), accept]);
        assert_eq!(found("forward", "accept", &[others, drop]), ["base: rule of chain base: drop (1)"]);
        assert_eq!(found("ingress", "drop", &[]), [""; 0]);
    }

    #[test]
    fn chains_are_followed_and_no_circle_is_walked_for_ever() {
        let to = |verb: &str| json!([{ verb: {"target": "other"} }]);
        let (drop, back) = (json!([{"drop": null}]), json!([{"return": null}]));
        let in_other = |expr: &Value| json!({ "other": expr });
        let dropped = ["base: rule of chain other: drop (1)"];
        assert_eq!(found("forward", "accept", &[to("jump"), in_other(&drop)]), dropped);
        assert_eq!(found("forward", "accept", &[to("goto"), in_other(&drop)]), dropped);
        assert_eq!(found("forward", "accept", &[to("goto"), in_other(&back), drop.clone()]), [""; 0]);
        let after = ["base: rule of chain base: drop (2)"];
        assert_eq!(found("forward", "accept", &[to("jump"), in_other(&back), drop]), after);
        // The kernel refuses circles; what is read might have one.
        let circle = vec![in_other(&to("jump")); 64];
        assert_eq!(found("forward", "drop", &[vec![to("jump")], circle].concat()), [""; 0]);
    }

    #[test]
    fn rules_that_are_loaded_again_are_the_same_conflict() {
        let of = |handle: u64| {
            let chain = json!({"family": "ip", "table": "t", "name": "c", "hook": "forward", "policy": "accept"});
            let rule = json!({"family": "ip", "table": "t", "chain": "c", "handle": handle, "expr": [{"drop": null}]});
            let listed = json!({"nftables": [{"chain": chain}, {"rule": rule}]}).to_string();
            Listing::parse(&listed).conflicts(&[], &[Family::V4]).remove(0)
        };
        let (before, after) = (of(4), of(9));
        assert_eq!((before.handle, after.handle, before.message), (Some(4), Some(9), after.message));
    }

    #[test]
    fn names_are_shown_as_one_line_of_text() {
        let chain = json!({"chain": {"family": "ip", "table": "a\u{1b}[2J\nb", "name": "x".repeat(300), "hook": "forward", "policy": "drop"}});
        let found = Listing::parse(&json!({ "nftables": [chain] }).to_string()).conflicts(&[], &Family::ALL);
        assert_eq!((found[0].table.as_str(), found[0].chain.len()), ("a\u{fffd}[2J\u{fffd}b", LONGEST + 3));
        assert!(!found[0].message.contains(char::is_control) && found[0].message.len() < 400, "{found:?}");
    }
}
