//! Answers from the kernel. Nothing is sent and nothing changes but what is known.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::evaluate::{Holds, equals};
use super::facts::{Element, Fact, Facts, Hook, Part, Place, Question};
use super::{Entry, Packet, Walk, walk};
use crate::dataplane::{self, TABLE};
use crate::links;
use crate::netlink::{self, Route, Socket};
use crate::{Error, NodeNetns, Result};

/// How many questions one packet may raise: others' tables may lead anywhere.
const QUESTIONS: usize = 2_000;
/// How many bytes of rules, and of a set, are read at a time.
const MOST: usize = 16 << 20;
/// How many of a table of ours: with more it is read chain by chain.
const TABLES: usize = 4 << 20;
/// How many endpoints of a Service are followed.
const ENDPOINTS: u32 = 16;

/// The ways of a packet through the node of this namespace: one for each endpoint that may be chosen.
///
/// # Errors
///
/// The kernel cannot be asked, or there is too much to ask.
pub fn read(netns: &NodeNetns, packet: &Packet, entry: &Entry) -> Result<Vec<Walk>> {
    let mut reader = Reader {
        netns,
        socket: Socket::open_in(netns.fd())?,
        route: Route::open_in(netns.fd())?,
        chains: BTreeSet::new(),
        whole: BTreeSet::new(),
        asked: 0,
    };
    let mut facts = Facts::default();
    let first = reader.follow(&mut facts, packet, entry, 0)?;
    let choices = first.choices.min(ENDPOINTS);
    let mut walks = vec![first];
    for pick in 1..choices {
        walks.push(reader.follow(&mut facts, packet, entry, pick)?);
    }
    Ok(walks)
}

struct Reader<'a> {
    netns: &'a NodeNetns,
    socket: Socket,
    route: Route,
    /// All chains that there are.
    chains: BTreeSet<Place>,
    /// The families whose table of ours was read as a whole, or is too large for that.
    whole: BTreeSet<String>,
    asked: usize,
}

impl Reader<'_> {
    fn follow(&mut self, facts: &mut Facts, packet: &Packet, entry: &Entry, pick: u32) -> Result<Walk> {
        loop {
            match walk(facts, packet, entry, pick) {
                Ok(walk) => return Ok(walk),
                Err(_) if self.asked >= QUESTIONS => {
                    return Err(Error::Nft("the rules of this machine are too many to follow a packet".to_owned()));
                }
                Err(question) => {
                    self.asked += 1;
                    self.answer(question, facts)?;
                }
            }
        }
    }

    fn answer(&mut self, question: Question, facts: &mut Facts) -> Result<()> {
        let fact = match &question {
            Question::Hooks => Fact::Hooks(self.hooks()?),
            Question::Rules(place) => return self.rules(place, facts),
            Question::Element(set, key) => Fact::Element(self.element(set, key)?),
            Question::Route { from, link, to } => {
                Fact::Route(links::way(&mut self.route, *from, link.as_deref(), *to)?)
            }
        };
        facts.learn(question, fact);
        Ok(())
    }

    fn hooks(&mut self) -> Result<Vec<Hook>> {
        let listed = self.nft(&["-j", "list", "chains"], "", netlink::LISTING)?;
        let mut hooks = Vec::new();
        for chain in objects(&listed, "chain") {
            let Some(place) = place(&chain, "name") else { continue };
            if let (Some(hook), Some(priority)) = (chain["hook"].as_str(), chain["prio"].as_i64()) {
                hooks.push(Hook {
                    place: place.clone(),
                    hook: hook.to_owned(),
                    priority,
                    is_nat: chain["type"] == "nat",
                    drops: chain["policy"] == "drop",
                });
            }
            self.chains.insert(place);
        }
        Ok(hooks)
    }

    /// Reads a chain; the first one of a table of ours with all others there, unless these are very many.
    fn rules(&mut self, asked: &Place, facts: &mut Facts) -> Result<()> {
        let Place { family, table, name } = asked;
        if !self.chains.contains(asked) {
            facts.learn(Question::Rules(asked.clone()), Fact::Rules(None));
            return Ok(());
        }
        if table == TABLE && self.whole.insert(family.clone()) {
            let ask = json!({"list": {"table": {"family": family, "name": table}}});
            if let Ok(listed) = self.nft(&["-j", "-t", "-f", "-"], &one(&ask), TABLES) {
                let beside = |place: &&Place| place.family == *family && place.table == *table;
                learn(&listed, self.chains.iter().filter(beside).cloned(), facts);
                return Ok(());
            }
        }
        // One at a time: nft 1.0.6 finds only the last of several.
        let ask = json!({"list": {"chain": {"family": family, "table": table, "name": name}}});
        let listed = self.nft(&["-j", "-t", "-f", "-"], &one(&ask), MOST)?;
        learn(&listed, [asked.clone()].into_iter(), facts);
        Ok(())
    }

    /// An element of ours is asked for by its key: the cost depends on neither Services nor policies.
    fn element(&mut self, set: &Place, key: &[Part]) -> Result<Element> {
        if set.table == TABLE && !dataplane::is_interval(&set.name) {
            return dataplane::element_at(&mut self.socket, &set.family, &set.name, key);
        }
        let ask = json!({"family": set.family, "table": set.table, "name": set.name});
        let ask = one(&json!({"list": {"set": ask}}));
        let Ok(listed) = self.nft(&["-j", "-f", "-"], &ask, MOST) else { return Ok(Element::Unknown) };
        let mut found = Element::Missing;
        for set in objects(&listed, "set") {
            for element in set["elem"].as_array().into_iter().flatten() {
                match equals(key, element) {
                    Holds::Yes => return Ok(Element::Present(Value::Null)),
                    Holds::Maybe => found = Element::Unknown,
                    Holds::No => {}
                }
            }
        }
        Ok(found)
    }

    fn nft(&self, arguments: &[&str], input: &str, most: usize) -> Result<String> {
        netlink::in_netns(self.netns.fd(), || netlink::nft_listing(arguments, input, most))?
    }
}

/// A command for `nft -j`.
fn one(command: &Value) -> String {
    json!({ "nftables": [command] }).to_string()
}

/// Learns the rules of these chains from a listing of all of them.
fn learn(listed: &str, chains: impl Iterator<Item = Place>, facts: &mut Facts) {
    let mut rules: BTreeMap<Place, Vec<Vec<Value>>> = chains.map(|place| (place, Vec::new())).collect();
    for mut rule in objects(listed, "rule") {
        let Some(chain) = place(&rule, "chain").and_then(|place| rules.get_mut(&place)) else { continue };
        let Value::Array(statements) = rule["expr"].take() else { continue };
        chain.push(statements);
    }
    for (place, rules) in rules {
        facts.learn(Question::Rules(place), Fact::Rules(Some(rules)));
    }
}

/// The objects of a kind in what `nft -j` has listed: one document for each command.
fn objects(listed: &str, kind: &str) -> Vec<Value> {
    let documents = serde_json::Deserializer::from_str(listed).into_iter::<Value>();
    let mut objects = Vec::new();
    for mut document in documents.map_while(std::result::Result::ok) {
        let all = document["nftables"].as_array_mut().map(std::mem::take).unwrap_or_default();
        objects.extend(all.into_iter().filter_map(|mut entry| entry.get_mut(kind).map(Value::take)));
    }
    objects
}

fn place(object: &Value, name: &str) -> Option<Place> {
    Some(Place::new(object["family"].as_str()?, object["table"].as_str()?, object[name].as_str()?))
}
