//! Tables of other programs that would drop Pods' traffic: detected and reported, never changed.
//!
//! A packet must pass the chains of all tables: ours cannot override others. The first packets of connections from and to Pods are
//! traced through each foreign base chain ([`packet`]), as far as rules match all of them for certain; rules that may or may not
//! match are skipped. Sets used in rules are evaluated as they are at the moment.
//!
//! The listing is parsed object by object: the types of the `nftables` crate are closed, and an unknown construct in one rule must
//! not hide the others.

mod packet;

use std::collections::{BTreeSet, HashMap};

use ipnet::IpNet;
use nftables::{
    expr::Expression,
    schema::Chain,
    stmt::Statement,
    types::{NfChainPolicy, NfFamily, NfHook},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::table::TABLE;
use crate::{Error, Family, NodeNetns, Result, netlink};
use packet::{Match, Packet, Sets};

/// Maximum number of reported conflicts.
const MOST: usize = 32;
/// Maximum length of a shown name or rule, in characters.
const LONGEST: usize = 128;
/// Maximum depth of jumps, as in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;
/// Maximum rules evaluated per packet: chains with many jumps multiply.
const RULES: usize = 100_000;
/// Maximum number of sets read. Each is listed separately, with a size limit: contents of further and larger ones count as unknown.
const SETS: usize = 64;
const SET: usize = 4 << 20;

/// A chain outside our tables that drops Pods' packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// `inet`
    pub family: &'static str,
    pub table: String,
    /// The base chain, whose hook sees the packet.
    pub chain: String,
    /// What drops it: `policy drop`, or a rule with its chain.
    pub rule: String,
    /// The rule's handle. It changes whenever a program reloads its rules.
    pub handle: Option<u64>,
    /// A description without the handle: the same for the same tables.
    pub message: String,
}

/// Finds foreign base chains that drop the first packets of all connections from or to Pods of these ranges, such as those of
/// Docker, firewalld and ufw. Fails if the ruleset cannot be read: then nothing is known.
pub fn conflicting_tables(netns: &NodeNetns, pod_ranges: &[IpNet], families: &[Family]) -> Result<Vec<Conflict>> {
    let list = |arguments: &[&str], input: &str, most| {
        netlink::in_netns(netns.fd(), || netlink::nft_listing(arguments, input, most))?
    };
    // Rules may be many; most nodes have no such chain, and listing only chains is cheap.
    if Listing::parse(&list(&["-j", "list", "chains"], "", netlink::LISTING)?)?.chains.is_empty() {
        return Ok(Vec::new());
    }
    let mut listing = Listing::parse(&list(&["-j", "-t", "list", "ruleset"], "", netlink::LISTING)?)?;
    for (family, table, name) in listing.named_sets().into_iter().take(SETS) {
        // Names may be nft keywords, or whole commands.
        let set = json!({ "family": family, "table": table, "name": name });
        let ask = json!({ "nftables": [{ "list": { "set": set } }] }).to_string();
        if let Err(error) = list(&["-j", "-f", "-"], &ask, SET).and_then(|listed| listing.learn(&listed)) {
            tracing::debug!(%error, "failed to look into a set of another program");
        }
    }
    Ok(listing.conflicts(pod_ranges, families))
}

/// The place of a chain or set: family, table, name.
type Place = (&'static str, String, String);

/// The foreign ruleset.
#[derive(Default)]
struct Listing {
    /// Base chains on hooks that Pods' packets pass, in listing order.
    chains: Vec<Chain<'static>>,
    rules: HashMap<Place, Vec<Rule>>,
    /// Contents of the sets that were read.
    sets: HashMap<Place, Vec<Element>>,
}

/// `None`: of an unknown type.
type Element = Option<Expression<'static>>;

/// nft's listing, each object as text.
#[derive(Deserialize)]
struct Objects<'a> {
    #[serde(borrow)]
    nftables: Vec<&'a RawValue>,
}

struct Rule {
    handle: u64,
    /// `None`: a statement of an unknown type.
    statements: Vec<Option<Statement<'static>>>,
}

impl Listing {
    fn parse(json: &str) -> Result<Listing> {
        let mut listing = Listing::default();
        for entry in objects(json)? {
            let mut entry: Value = serde_json::from_str(entry.get()).unwrap_or_default();
            if let Some(chain) = entry.get_mut("chain") {
                listing.chains.extend(base_chain(chain.take()));
            } else if let Some(rule) = entry.get_mut("rule") {
                let Some((place, rule)) = self::rule(rule) else { continue };
                listing.rules.entry(place).or_default().push(rule);
            }
        }
        Ok(listing)
    }

    /// Adds the contents of sets from a listing.
    fn learn(&mut self, json: &str) -> Result<()> {
        for entry in objects(json)? {
            let mut entry: Value = serde_json::from_str(entry.get()).unwrap_or_default();
            self.sets.extend(entry.get_mut("set").and_then(set));
        }
        Ok(())
    }

    /// The sets used in rules.
    fn named_sets(&self) -> BTreeSet<Place> {
        let named = self.rules.iter().flat_map(|((family, table, _), rules)| {
            let statements = rules.iter().flat_map(|rule| rule.statements.iter().flatten());
            let names = statements.filter_map(|statement| match statement {
                Statement::Match(condition) => packet::set_name(&condition.right),
                _ => None,
            });
            names.map(move |name| (*family, table.clone(), name.to_owned()))
        });
        named.collect()
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

    /// The fate of a packet in a chain.
    fn end(&self, place: &Place, packet: &Packet<'_>, depth: usize, left: &mut usize) -> End {
        let sets = |name: &str| self.sets.get(&(place.0, place.1.clone(), name.to_owned())).map(Vec::as_slice);
        for rule in self.rules.get(place).into_iter().flatten() {
            let Some(rest) = left.checked_sub(1) else { return End::Accepted };
            *left = rest;
            match rule.does(packet, &sets) {
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
    /// Not decided by any rule.
    Through,
}

/// The effect of a rule on a packet that certainly matches.
enum Does {
    Nothing,
    Return,
    Accept,
    Drop,
    /// To this chain, and whether it returns.
    Jump(String, bool),
}

impl Rule {
    fn does(&self, packet: &Packet<'_>, sets: Sets<'_>) -> Does {
        for statement in &self.statements {
            // An unknown statement may be a condition.
            let Some(statement) = statement else { return Does::Nothing };
            match statement {
                Statement::Match(condition) if packet.matches(condition, sets) == Match::Always => {}
                Statement::XT(Some(xt)) => match (xt["type"].as_str(), xt["name"].as_str()) {
                    (Some("match"), Some("comment")) | (Some("target"), Some("LOG" | "NFLOG")) => {}
                    (Some("target"), Some("REJECT")) => return Does::Drop,
                    _ => return Does::Nothing,
                },
                Statement::Counter(_) | Statement::Log(_) | Statement::Mangle(_) | Statement::Notrack => {}
                Statement::Drop(_) | Statement::Reject(_) => return Does::Drop,
                // Passing it to userspace is not a drop.
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

/// The listed objects. Fully parsed, they would need many times the memory.
fn objects(json: &str) -> Result<Vec<&RawValue>> {
    let listed = serde_json::from_str::<Objects<'_>>(json);
    // Without the cause: it may quote others' data.
    listed.map(|listed| listed.nftables).map_err(|_| Error::Nft("what it lists cannot be read".to_owned()))
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

/// The contents of a set; an element with more than its value has that in `elem`.
fn set(set: &mut Value) -> Option<(Place, Vec<Element>)> {
    let family = serde_json::from_value(set.get_mut("family")?.take()).ok().and_then(family_word)?;
    let place = (family, set["table"].as_str()?.to_owned(), set["name"].as_str()?.to_owned());
    let element = |element: &mut Value| {
        let value = match element.pointer_mut("/elem/val") {
            Some(value) => value.take(),
            None => element.take(),
        };
        serde_json::from_value(value).ok()
    };
    let elements = set.get_mut("elem").and_then(Value::as_array_mut);
    Some((place, elements.into_iter().flatten().map(element).collect()))
}

fn is_ours(family: &str, table: &str) -> bool {
    table == TABLE && ["ip", "ip6"].contains(&family)
}

/// Pods' packets that pass a hook, with descriptions.
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

/// The families whose packets a node's network hooks see.
fn family_word(family: NfFamily) -> Option<&'static str> {
    match family {
        NfFamily::IP => Some("ip"),
        NfFamily::IP6 => Some("ip6"),
        NfFamily::INet => Some("inet"),
        // Pods' links are not on a bridge, and non-IP packets are not Pods' traffic.
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

/// Foreign text as part of a line: the kernel accepts any bytes as a name.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests;
