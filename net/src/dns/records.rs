//! The cluster's names and how questions are answered from them. Pure.
//!
//! The names are specified by <https://github.com/kubernetes/dns/blob/master/docs/specification.md>; the caller assigns them: an
//! owner (a Service) provides its names and may replace or withdraw them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

/// One owner's records of a name. Names are lower case, fully qualified, without the final dot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub addresses: Vec<IpAddr>,
    /// The name is an alias; everything else is then ignored.
    pub cname: Option<String>,
    pub services: Vec<Srv>,
    /// The targets of a reverse name.
    pub pointers: Vec<String>,
}

/// One SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Srv {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub target: String,
}

/// The names of one owner.
pub type Names = BTreeMap<String, Entry>;

/// The supported record types of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    A,
    Aaaa,
    Srv,
    Ptr,
    Cname,
    Soa,
    Ns,
    Other,
}

/// One record of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Address(IpAddr),
    Srv(Srv),
    Ptr(String),
    Cname(String),
    Soa,
    Ns(String),
}

/// A record and the name it belongs to.
pub type Record = (String, Data);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not a name of this cluster: forward.
    Foreign,
    /// The name's own records, and additional ones that save the next question.
    Found {
        answers: Vec<(String, Data)>,
        additionals: Vec<(String, Data)>,
    },
    /// An alias to a name outside this cluster.
    Alias(String),
    /// The name exists, but has no records of this type.
    NoData,
    NoSuchName,
}

/// Limits of an answer: users who can write Services create names with any number of records, and what does not fit into the
/// message need not be looked up.
#[derive(Clone, Copy, Debug)]
pub struct AnswerLimits {
    /// Maximum number of records, including additional ones.
    pub most: usize,
    /// Rotates the addresses' order: spreads clients that use the first.
    pub turn: usize,
}

impl AnswerLimits {
    pub const ALL: AnswerLimits = AnswerLimits { most: usize::MAX, turn: 0 };
}

/// All names of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// `cluster.local`.
    domain: String,
    /// Addresses whose reverse names are answered only here.
    reverse: Vec<IpNet>,
    /// The addresses that serve this table, for `ns.dns.<domain>`.
    servers: Vec<IpAddr>,
    /// The entries of a name by owner: the reverse name of a Pod has one for each Service that selects it.
    names: HashMap<String, BTreeMap<Arc<str>, Arc<Names>>>,
    owners: HashMap<Arc<str>, Arc<Names>>,
    /// Names without records above names with them, and the number of those.
    inner: HashMap<String, usize>,
}

/// Maximum number of aliases followed inside the cluster.
const ALIASES: usize = 8;

impl Table {
    pub fn new(domain: &str, reverse: Vec<IpNet>, servers: Vec<IpAddr>) -> Table {
        let mut table = Table { domain: domain.to_owned(), reverse, servers, ..Table::default() };
        // These two exist in every cluster, even without Services and Pods.
        for name in ["svc", "pod"] {
            table.inner.insert(format!("{name}.{domain}"), 1);
        }
        table
    }

    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Replaces the names of an owner; an empty set withdraws it.
    pub fn set(&mut self, owner: &str, names: impl Into<Arc<Names>>) {
        let (owner, names): (Arc<str>, Arc<Names>) = (owner.into(), names.into());
        for name in self.owners.remove(&owner).unwrap_or_default().keys() {
            self.withdraw(name, &owner);
        }
        if names.is_empty() {
            return;
        }
        for name in names.keys() {
            for above in self.above(name) {
                *self.inner.entry(above).or_default() += 1;
            }
            self.names.entry(name.clone()).or_default().insert(owner.clone(), names.clone());
        }
        self.owners.insert(owner, names);
    }

    fn withdraw(&mut self, name: &str, owner: &Arc<str>) {
        for above in self.above(name) {
            if let Some(count) = self.inner.get_mut(&above) {
                *count -= 1;
                if *count == 0 {
                    self.inner.remove(&above);
                }
            }
        }
        if let Some(owners) = self.names.get_mut(name) {
            owners.remove(owner);
            if owners.is_empty() {
                self.names.remove(name);
            }
        }
    }

    /// All entries of a name.
    fn entries<'t>(&'t self, name: &str) -> impl Iterator<Item = &'t Entry> + Clone {
        let owners = self.names.get(name).into_iter().flat_map(BTreeMap::values);
        owners.filter_map(move |names| names.get(name))
    }

    /// The target of an alias.
    fn alias(&self, name: &str) -> Option<&String> {
        self.entries(name).find_map(|entry| entry.cname.as_ref())
    }

    /// The parents of `name`, up to the domain.
    fn above(&self, name: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut rest = name;
        while let Some((_, above)) = rest.split_once('.') {
            if above == self.domain || !above.ends_with(&self.domain) {
                break;
            }
            names.push(above.to_owned());
            rest = above;
        }
        names
    }

    /// Answers a question for `name`, in lower case and without the final dot.
    pub fn answer(&self, name: &str, question: Question) -> Answer {
        self.answer_in_part(name, question, AnswerLimits::ALL)
    }

    /// The same with limits.
    pub fn answer_in_part(&self, name: &str, question: Question, part: AnswerLimits) -> Answer {
        let below =
            name.strip_suffix(&self.domain).and_then(|n| if n.is_empty() { Some("") } else { n.strip_suffix('.') });
        match below {
            Some("") => self.apex(name, question),
            Some("ns.dns") => self.addresses(name, &self.servers, question),
            Some(below) => match pod_address(below) {
                Some(address) => self.addresses(name, &[address], question),
                None => self.own(name, question, part),
            },
            None => self.reverse(name, question, part),
        }
    }

    fn apex(&self, name: &str, question: Question) -> Answer {
        let server = format!("ns.dns.{}", self.domain);
        let (data, additionals) = match question {
            Question::Soa => (Data::Soa, Vec::new()),
            Question::Ns => {
                let addresses = self.servers.iter().map(|a| (server.clone(), Data::Address(*a))).collect();
                (Data::Ns(server), addresses)
            }
            _ => return Answer::NoData,
        };
        Answer::Found { answers: vec![(name.to_owned(), data)], additionals }
    }

    fn addresses(&self, name: &str, addresses: &[IpAddr], question: Question) -> Answer {
        let answers = addresses.iter().filter(|a| wants(question, a)).map(|a| (name.to_owned(), Data::Address(*a)));
        found(answers.collect(), Vec::new())
    }

    /// A name below the domain, following aliases.
    fn own(&self, name: &str, question: Question, part: AnswerLimits) -> Answer {
        let mut name = name.to_owned();
        let mut answers = Vec::new();
        for _ in 0..ALIASES {
            if !self.names.contains_key(&name) {
                return match (answers.is_empty(), self.inner.contains_key(&name)) {
                    (false, _) => Answer::Found { answers, additionals: Vec::new() },
                    (true, true) => Answer::NoData,
                    (true, false) => Answer::NoSuchName,
                };
            }
            match self.alias(&name) {
                Some(target) if question != Question::Cname => {
                    answers.push((name, Data::Cname(target.clone())));
                    name = target.clone();
                    if !is_below(&name, &self.domain) {
                        return if answers.len() == 1 {
                            Answer::Alias(name)
                        } else {
                            Answer::Found { answers, additionals: Vec::new() }
                        };
                    }
                }
                _ => {
                    let (own, additionals) = self.records(&name, question, part);
                    answers.extend(own);
                    return found(answers, additionals);
                }
            }
        }
        Answer::Found { answers, additionals: Vec::new() }
    }

    fn records(&self, name: &str, question: Question, part: AnswerLimits) -> (Vec<Record>, Vec<Record>) {
        let entries = self.entries(name);
        let own = |data: Data| (name.to_owned(), data);
        let mut additionals = Vec::new();
        let answers: Vec<Record> = match question {
            Question::A | Question::Aaaa => {
                let addresses = entries.flat_map(|entry| &entry.addresses).filter(|a| wants(question, a));
                let from = part.turn % addresses.clone().count().max(1);
                let turned = addresses.clone().skip(from).chain(addresses.take(from));
                turned.take(part.most).map(|a| own(Data::Address(*a))).collect()
            }
            Question::Srv => {
                let services = entries.flat_map(|entry| &entry.services).take(part.most);
                let answers: Vec<Record> = services.clone().map(|srv| own(Data::Srv(srv.clone()))).collect();
                // Many may have the same name: each is looked up once.
                let mut seen = HashSet::new();
                let targets = services.map(|srv| &srv.target).filter(|target| seen.insert(*target));
                let addresses = targets.flat_map(|target| {
                    let addresses = self.entries(target).flat_map(|entry| &entry.addresses);
                    addresses.map(move |a| (target.clone(), Data::Address(*a)))
                });
                additionals = addresses.take(part.most - answers.len()).collect();
                answers
            }
            Question::Ptr => {
                let pointers = entries.flat_map(|entry| &entry.pointers).take(part.most);
                pointers.map(|p| own(Data::Ptr(p.clone()))).collect()
            }
            Question::Cname => entries.filter_map(|entry| entry.cname.clone()).map(|c| own(Data::Cname(c))).collect(),
            Question::Soa | Question::Ns | Question::Other => Vec::new(),
        };
        (answers, additionals)
    }

    /// A reverse name: known ones are answered, unknown ones in our ranges do not exist.
    fn reverse(&self, name: &str, question: Question, part: AnswerLimits) -> Answer {
        if self.names.contains_key(name) {
            let (answers, additionals) = self.records(name, question, part);
            return found(answers, additionals);
        }
        match reverse_address(name) {
            Some(address) if self.reverse.iter().any(|net| net.contains(&address)) => Answer::NoSuchName,
            _ => Answer::Foreign,
        }
    }
}

fn found(answers: Vec<Record>, additionals: Vec<Record>) -> Answer {
    if answers.is_empty() { Answer::NoData } else { Answer::Found { answers, additionals } }
}

fn wants(question: Question, address: &IpAddr) -> bool {
    match question {
        Question::A => address.is_ipv4(),
        Question::Aaaa => address.is_ipv6(),
        _ => false,
    }
}

fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The address in `10-1-2-3.<namespace>.pod` (or `fd00--1.<namespace>.pod`), which exists for every Pod.
fn pod_address(below: &str) -> Option<IpAddr> {
    let (label, namespace) = below.strip_suffix(".pod")?.split_once('.')?;
    if namespace.contains('.') {
        return None;
    }
    let v4 = || label.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::from);
    let v6 = || label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::from);
    v4().or_else(v6)
}

/// The reverse name of an address: `7.0.96.10.in-addr.arpa`.
pub fn reverse_name(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(a) => {
            let [a, b, c, d] = a.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(a) => {
            let nibbles = a.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.map(|n| format!("{n:x}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

fn reverse_address(name: &str) -> Option<IpAddr> {
    if let Some(v4) = name.strip_suffix(".in-addr.arpa") {
        let octets: Vec<&str> = v4.rsplit('.').collect();
        return octets.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::from);
    }
    let nibbles: Vec<&str> = name.strip_suffix(".ip6.arpa")?.rsplit('.').collect();
    if nibbles.len() != 32 || nibbles.iter().any(|n| n.len() != 1) {
        return None;
    }
    u128::from_str_radix(&nibbles.concat(), 16).ok().map(|n| Ipv6Addr::from_bits(n).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn table() -> Table {
        let mut table = Table::new("cluster.local", vec!["10.96.0.0/16".parse().unwrap()], vec![ip("10.96.0.10")]);
        let web = "web.default.svc.cluster.local".to_owned();
        let srv = Srv { priority: 0, weight: 100, port: 80, target: web.clone() };
        table.set(
            "default/web",
            Names::from([
                (web.clone(), Entry { addresses: vec![ip("10.96.0.7"), ip("fd00::7")], ..Entry::default() }),
                (format!("_http._tcp.{web}"), Entry { services: vec![srv], ..Entry::default() }),
                (reverse_name(&ip("10.96.0.7")), Entry { pointers: vec![web.clone()], ..Entry::default() }),
            ]),
        );
        let alias = |to: &str| Entry { cname: Some(to.to_owned()), ..Entry::default() };
        table.set("default/out", Names::from([("out.default.svc.cluster.local".into(), alias("example.org"))]));
        table.set("default/in", Names::from([("in.default.svc.cluster.local".into(), alias(&web))]));
        table.set(
            "default/loop",
            Names::from([("loop.default.svc.cluster.local".into(), alias("loop.default.svc.cluster.local"))]),
        );
        table
    }

    fn data(answer: Answer) -> Vec<Data> {
        match answer {
            Answer::Found { answers, .. } => answers.into_iter().map(|(_, data)| data).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_and_their_types() {
        let table = table();
        let ask = |name: &str, question| table.answer(&format!("{name}.cluster.local"), question);
        assert_eq!(data(ask("web.default.svc", Question::A)), [Data::Address(ip("10.96.0.7"))]);
        assert_eq!(data(ask("web.default.svc", Question::Aaaa)), [Data::Address(ip("fd00::7"))]);
        assert_eq!(ask("web.default.svc", Question::Srv), Answer::NoData);
        assert_eq!(ask("nothing.default.svc", Question::A), Answer::NoSuchName);
        let Answer::Found { answers, additionals } = ask("_http._tcp.web.default.svc", Question::Srv) else { panic!() };
        assert!(matches!(&answers[0].1, Data::Srv(s) if s.port == 80));
        assert_eq!(additionals.len(), 2);
        for inner in ["default.svc", "svc", "pod", "_tcp.web.default.svc"] {
            assert_eq!(ask(inner, Question::A), Answer::NoData, "{inner}");
        }
        assert_eq!(data(table.answer("cluster.local", Question::Soa)), [Data::Soa]);
        assert_eq!(table.answer("cluster.local", Question::A), Answer::NoData);
        assert_eq!(data(ask("ns.dns", Question::A)), [Data::Address(ip("10.96.0.10"))]);
    }

    #[test]
    fn pods_by_their_address() {
        let table = table();
        let ask = |name: &str, question| table.answer(&format!("{name}.cluster.local"), question);
        assert_eq!(data(ask("10-244-1-5.default.pod", Question::A)), [Data::Address(ip("10.244.1.5"))]);
        assert_eq!(data(ask("fd00-244--5.default.pod", Question::Aaaa)), [Data::Address(ip("fd00:244::5"))]);
        assert_eq!(ask("10-244-1-5.default.pod", Question::Aaaa), Answer::NoData);
        assert_eq!(ask("10-244-1-500.default.pod", Question::A), Answer::NoSuchName);
    }

    #[test]
    fn aliases() {
        let table = table();
        let ask = |name: &str| table.answer(&format!("{name}.default.svc.cluster.local"), Question::A);
        assert_eq!(ask("out"), Answer::Alias("example.org".to_owned()));
        assert_eq!(data(ask("in")).len(), 2);
        assert_eq!(data(ask("loop")).len(), ALIASES);
    }

    #[test]
    fn reverse_names() {
        let table = table();
        assert_eq!(
            data(table.answer("7.0.96.10.in-addr.arpa", Question::Ptr)),
            [Data::Ptr("web.default.svc.cluster.local".into())]
        );
        assert_eq!(table.answer("8.0.96.10.in-addr.arpa", Question::Ptr), Answer::NoSuchName);
        assert_eq!(table.answer("8.8.8.8.in-addr.arpa", Question::Ptr), Answer::Foreign);
        let v6 = ip("fd00::7");
        assert_eq!(reverse_address(&reverse_name(&v6)), Some(v6));
    }

    #[test]
    fn foreign_names_are_not_ours() {
        let table = table();
        for name in ["example.org", "notcluster.local", "local", "", "xcluster.local"] {
            assert_eq!(table.answer(name, Question::A), Answer::Foreign, "{name}");
        }
    }

    #[test]
    fn of_a_name_with_many_records_only_what_is_wanted_is_looked_at() {
        let mut table = Table::new("cluster.local", vec![], vec![]);
        let base = "all.default.svc.cluster.local".to_owned();
        let (own, port) = (format!("one.{base}"), format!("_p._tcp.{base}"));
        let addresses: Vec<IpAddr> = (0..100).map(|n| ip(&format!("10.1.0.{n}"))).collect();
        let srv = |port| Srv { priority: 0, weight: 1, port, target: own.clone() };
        table.set(
            "default/all",
            Names::from([
                (base.clone(), Entry { addresses: addresses.clone(), ..Entry::default() }),
                (own.clone(), Entry { addresses: addresses.clone(), ..Entry::default() }),
                (port.clone(), Entry { services: (0..100).map(srv).collect(), ..Entry::default() }),
            ]),
        );
        let reverse = reverse_name(&addresses[0]);
        for n in 0..1000 {
            let pointers = vec![format!("one.h{n}.default.svc.cluster.local")];
            table.set(
                &format!("default/h{n}"),
                Names::from([(reverse.clone(), Entry { pointers, ..Entry::default() })]),
            );
        }
        let ask = |name: &str, question, most, turn| match table.answer_in_part(
            name,
            question,
            AnswerLimits { most, turn },
        ) {
            Answer::Found { answers, additionals } => (answers, additionals),
            other => panic!("{other:?}"),
        };
        for (name, question, all) in
            [(&base, Question::A, 100), (&port, Question::Srv, 100), (&reverse, Question::Ptr, 1000)]
        {
            assert_eq!(ask(name, question, 7, 0).0.len(), 7);
            assert_eq!(ask(name, question, usize::MAX, 0).0.len(), all);
        }
        let (answers, additionals) = ask(&port, Question::Srv, 150, 0);
        assert_eq!(
            (answers.len(), additionals.len()),
            (100, 50),
            "each target's addresses once, and no more than wanted"
        );
        assert_eq!(ask(&port, Question::Srv, usize::MAX, 0).1.len(), 100);
        let first = |turn| ask(&base, Question::A, 3, turn).0.remove(0).1;
        assert_eq!(
            [first(0), first(99), first(100)].map(|data| data == Data::Address(addresses[0])),
            [true, false, true]
        );
        assert_eq!(ask(&base, Question::A, 3, 99).0[1].1, Data::Address(addresses[0]), "it goes on at the first");
    }

    #[test]
    fn withdrawn_owners_leave_nothing() {
        let mut table = table();
        for owner in ["default/web", "default/out", "default/in", "default/loop", "default/unknown"] {
            table.set(owner, Names::new());
        }
        assert!(table.names.is_empty() && table.owners.is_empty());
        assert_eq!(table.inner.len(), 2);
        assert_eq!(table.answer("default.svc.cluster.local", Question::A), Answer::NoSuchName);
    }
}
