//! What the chains of a hook do with a packet, rule by rule.

use std::net::IpAddr;

use serde_json::Value;

use super::evaluate::{Holds, State, Term, entry};
use super::facts::{Element, Facts, Hook, Part, Place, Question};
use super::{Cause, Step, words};
use crate::dataplane::{Direction, TABLE};

/// How deep chains may jump, as in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;
/// How many rules a packet may pass: chains with many jumps multiply.
const RULES: usize = 20_000;
/// How many steps, and conditions that are unknown, an answer holds.
const STEPS: usize = 256;
const UNCERTAIN: usize = 32;

/// What a chain has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Reject(String),
    /// Nothing.
    Through,
    /// The rules are too many to tell.
    TooMany,
}

/// What one rule does.
enum Does {
    Nothing,
    Ends(Verdict),
    Jump(String, bool),
    Return,
}

/// A packet on its way.
pub struct Traveller<'a> {
    pub facts: &'a Facts,
    pub state: State,
    pub steps: Vec<Step>,
    pub uncertain: Vec<String>,
    hook: String,
    /// By whose policies it is judged.
    judged: Option<(IpAddr, Direction)>,
    /// Its source is to be the node's.
    pub is_masqueraded: bool,
    left: usize,
}

type Asking<T> = Result<T, Question>;

impl<'a> Traveller<'a> {
    pub fn new(facts: &'a Facts, state: State) -> Traveller<'a> {
        Traveller {
            facts,
            state,
            steps: Vec::new(),
            uncertain: Vec::new(),
            hook: String::new(),
            judged: None,
            is_masqueraded: false,
            left: RULES,
        }
    }

    pub fn step(&mut self, step: Step) {
        if self.steps.len() < STEPS {
            self.steps.push(step);
        }
    }

    /// Passes all chains of a hook, in the order of their priorities. `None`: it goes on.
    pub fn pass(&mut self, hook: &str) -> Asking<Option<Verdict>> {
        hook.clone_into(&mut self.hook);
        let family = crate::dataplane::nft_family(self.state.family);
        let sees = |at: &&Hook| at.hook == hook && (at.place.family == family || at.place.family == "inet");
        let mut chains: Vec<&Hook> = self.facts.hooks()?.iter().filter(sees).collect();
        chains.sort_by_key(|chain| chain.priority);
        let mut is_bound = false;
        for chain in chains {
            // Whoever translates first has it.
            if chain.is_nat && is_bound {
                continue;
            }
            let before = (self.state.destination, self.state.port, self.is_masqueraded);
            self.judged = None;
            let verdict = match self.chain(&chain.place, DEEPEST)? {
                Verdict::Through if chain.drops => {
                    self.note(&chain.place, "policy".to_owned(), "drop".to_owned(), None);
                    Verdict::Drop
                }
                verdict => verdict,
            };
            is_bound |= chain.is_nat && before != (self.state.destination, self.state.port, self.is_masqueraded);
            if !matches!(verdict, Verdict::Accept | Verdict::Through) {
                return Ok(Some(verdict));
            }
        }
        Ok(None)
    }

    fn chain(&mut self, place: &Place, depth: usize) -> Asking<Verdict> {
        let facts = self.facts;
        for rule in facts.rules(place)?.unwrap_or_default() {
            let Some(left) = self.left.checked_sub(1) else { return Ok(Verdict::TooMany) };
            self.left = left;
            match self.rule(place, rule)? {
                Does::Nothing => {}
                Does::Return => return Ok(Verdict::Through),
                Does::Ends(verdict) => return Ok(verdict),
                Does::Jump(target, comes_back) => {
                    let Some(depth) = depth.checked_sub(1) else { return Ok(Verdict::TooMany) };
                    match self.chain(&place.beside(&target), depth)? {
                        Verdict::Through if comes_back => {}
                        verdict => return Ok(verdict),
                    }
                }
            }
        }
        Ok(Verdict::Through)
    }

    fn rule(&mut self, place: &Place, rule: &[Value]) -> Asking<Does> {
        for statement in rule {
            let (kind, of) = match statement {
                // nft has no JSON for statements that change maps: they decide nothing.
                Value::String(words) if words.starts_with("update @") || words.starts_with("delete @") => continue,
                other => entry(other).unwrap_or(("", &Value::Null)),
            };
            match kind {
                "match" => match self.state.holds(self.facts, place, of)? {
                    Holds::Yes => {}
                    Holds::No => return Ok(Does::Nothing),
                    Holds::Maybe => return Ok(self.passed_over(place, rule)),
                },
                "vmap" => return self.verdict_map(place, of),
                "mangle" => {
                    if !self.mangle(place, of)? {
                        return Ok(Does::Nothing);
                    }
                }
                "dnat" => match self.state.term(self.facts, place, &of["addr"])? {
                    Term::Parts(to) => return Ok(self.translate(place, &to, &of["port"])),
                    Term::Absent => return Ok(Does::Nothing),
                    Term::Unknown => return Ok(self.passed_over(place, rule)),
                },
                "masquerade" | "snat" => {
                    self.is_masqueraded = true;
                    self.note(place, words::rule(rule), kind.to_owned(), None);
                    return Ok(Does::Ends(Verdict::Accept));
                }
                "redirect" | "tproxy" | "queue" | "xt" => return Ok(self.passed_over(place, rule)),
                "set" => {
                    if !self.fill(place, of)? {
                        return Ok(Does::Nothing);
                    }
                }
                // This is the only packet: it is within each rate.
                "limit" if of["inv"] == true => return Ok(Does::Nothing),
                "limit" | "counter" | "log" | "quota" | "ct count" | "ct helper" | "ct timeout" => {}
                "notrack" => self.state.is_tracked = false,
                "accept" => return Ok(self.ends(place, rule, Verdict::Accept)),
                "drop" => return Ok(self.ends(place, rule, Verdict::Drop)),
                "reject" => {
                    let with = of["type"].as_str().unwrap_or("icmp");
                    // nft leaves out that only TCP is reset.
                    if with == "tcp reset" && self.state.protocol.name() != "tcp" {
                        return Ok(Does::Nothing);
                    }
                    let with = of["expr"].as_str().map_or_else(|| with.to_owned(), |code| format!("{with} {code}"));
                    return Ok(self.ends(place, rule, Verdict::Reject(with)));
                }
                "return" => return Ok(Does::Return),
                "jump" | "goto" => {
                    let target = of["target"].as_str().unwrap_or_default().to_owned();
                    return Ok(Does::Jump(target, kind == "jump"));
                }
                _ => return Ok(self.passed_over(place, rule)),
            }
        }
        Ok(Does::Nothing)
    }

    /// A rule of which it is unknown whether it holds.
    fn passed_over(&mut self, place: &Place, rule: &[Value]) -> Does {
        if self.uncertain.len() < UNCERTAIN {
            let Place { family, table, name } = place;
            self.uncertain.push(words::shown(&format!("{family} {table} {name}: {}", words::rule(rule))));
        }
        Does::Nothing
    }

    fn ends(&mut self, place: &Place, rule: &[Value], verdict: Verdict) -> Does {
        let found = match &verdict {
            Verdict::Accept => "accept".to_owned(),
            Verdict::Reject(with) => format!("reject with {with}"),
            _ => "drop".to_owned(),
        };
        let conditions: Vec<Value> =
            rule.iter().filter(|statement| statement.get("match").is_some()).cloned().collect();
        let cause = self.judged.map(|(address, direction)| {
            let chain = place.name.starts_with("policy-").then(|| place.name.clone());
            Cause::Policies { address, direction, chain }
        });
        let cause = cause.or_else(|| self.list());
        self.note(place, words::rule(&conditions), found, cause);
        Does::Ends(verdict)
    }

    fn list(&self) -> Option<Cause> {
        (self.state.connection_mark != 0).then_some(Cause::List(self.state.connection_mark))
    }

    fn verdict_map(&mut self, place: &Place, of: &Value) -> Asking<Does> {
        let Some((key, element)) = self.state.looked_up(self.facts, place, &of["key"], &of["data"])? else {
            return Ok(Does::Nothing);
        };
        let map = of["data"].as_str().unwrap_or("{ }");
        let lookup = format!("{} {map}", words::key(&key));
        let direction = match map {
            "@egress" => Some(Direction::Egress),
            "@ingress" => Some(Direction::Ingress),
            _ => None,
        };
        match (direction, key.as_slice()) {
            (Some(direction), [Part::Address(address)]) if place.table == TABLE => {
                self.judged = Some((*address, direction));
            }
            _ => {}
        }
        let cause = match self.judged {
            Some((address, direction)) => Some(Cause::Policies { address, direction, chain: None }),
            None => self.list(),
        };
        Ok(match element {
            Element::Missing => {
                if let Some((address, direction)) = self.judged.take() {
                    let cause = Cause::Unjudged { address, direction };
                    self.note(place, lookup, "no policies".to_owned(), Some(cause));
                }
                Does::Nothing
            }
            Element::Unknown => self.passed_over(place, &[serde_json::json!({ "vmap": of })]),
            Element::Present(verdict) => {
                let (kind, to) = entry(&verdict).unwrap_or(("", &Value::Null));
                let target = to["target"].as_str().unwrap_or_default().to_owned();
                self.note(place, lookup, format!("{kind} {target}").trim_end().to_owned(), cause);
                match kind {
                    "jump" | "goto" => Does::Jump(target, kind == "jump"),
                    "accept" => Does::Ends(Verdict::Accept),
                    "drop" => Does::Ends(Verdict::Drop),
                    "return" => Does::Return,
                    _ => Does::Nothing,
                }
            }
        })
    }

    /// `false`: the rule ends here.
    fn mangle(&mut self, place: &Place, of: &Value) -> Asking<bool> {
        let value = match self.state.term(self.facts, place, &of["value"])? {
            Term::Parts(value) => value,
            Term::Absent => return Ok(false),
            Term::Unknown => return Ok(true),
        };
        let [Part::Number(value)] = value.as_slice() else { return Ok(true) };
        let value = u32::try_from(*value).unwrap_or_default();
        if of["key"]["ct"]["key"] == "mark" {
            self.state.connection_mark = value;
            if let Some(map) = of["value"]["map"]["data"].as_str() {
                let key = match self.state.term(self.facts, place, &of["value"]["map"]["key"])? {
                    Term::Parts(key) => words::key(&key),
                    _ => String::new(),
                };
                self.note(place, format!("{key} {map}"), format!("{value:#x}"), self.list());
            }
        } else if of["key"]["meta"]["key"] == "mark" {
            self.state.mark = value;
        }
        Ok(true)
    }

    fn translate(&mut self, place: &Place, to: &[Part], port: &Value) -> Does {
        let port = match to {
            [_, Part::Number(port)] => u16::try_from(*port).ok(),
            _ => port.as_u64().and_then(|port| u16::try_from(port).ok()),
        };
        if let Some(Part::Address(address)) = to.first() {
            self.state.destination = *address;
        }
        self.state.port = port.unwrap_or(self.state.port);
        self.state.is_translated = true;
        let lookup = match self.state.choices {
            0 | 1 => "the only endpoint".to_owned(),
            n => format!("one of {n} endpoints"),
        };
        self.note(place, lookup, format!("dnat to {}", words::key(to)), self.list());
        Does::Ends(Verdict::Accept)
    }

    /// A packet puts something into a set; `false`: it is within its rate, and the rule ends here.
    fn fill(&mut self, place: &Place, of: &Value) -> Asking<bool> {
        let set = of["set"].as_str().and_then(|set| set.strip_prefix('@')).unwrap_or_default();
        let key = self.state.term(self.facts, place, &of["elem"])?;
        if let (Term::Parts(key), Some("add" | "update")) = (key, of["op"].as_str()) {
            self.state.added.push((place.beside(set), key));
        }
        let limits = of["stmt"].as_array().into_iter().flatten();
        Ok(!limits.into_iter().any(|statement| statement["limit"]["inv"] == true))
    }

    fn note(&mut self, place: &Place, lookup: String, found: String, cause: Option<Cause>) {
        let table = words::shown(&format!("{} {}", place.family, place.table));
        let (hook, chain) = (self.hook.clone(), words::shown(&place.name));
        let (lookup, found) = (words::shown(&lookup), words::shown(&found));
        self.step(Step { hook, table, chain, lookup, found, cause, ..Step::default() });
    }
}
