//! Packets through rules as `nft -j` lists them.

use serde_json::{Value, json};

use super::facts::{Fact, Hook};
use super::*;

const POD: &str = "10.244.0.2";
const OTHER: &str = "10.244.0.3";
const VIP: &str = "10.96.0.7";

/// A kernel with one table of ours, and what it is asked.
#[derive(Default)]
struct Kernel {
    hooks: Vec<Hook>,
    chains: Vec<(&'static str, Vec<Vec<Value>>)>,
    elements: Vec<(&'static str, Vec<Part>, Value)>,
    routes: Vec<(&'static str, Route)>,
    asked: Vec<Question>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn place(name: &str) -> Place {
    Place::new("ip", "podwright", name)
}

fn route(kind: &'static str, link: &str) -> Route {
    Route { kind, link: link.to_owned(), next_hop: None, source: Some(ip("192.0.2.1")) }
}

impl Kernel {
    fn new() -> Kernel {
        let routes = vec![
            (POD, route("unicast", "pw000000000002")),
            (OTHER, route("unicast", "pw000000000003")),
            (VIP, route("unicast", "lo")),
        ];
        Kernel { routes, ..Kernel::default() }
    }

    fn base(mut self, name: &'static str, hook: &str, priority: i64, rules: Vec<Vec<Value>>) -> Kernel {
        let is_nat = name.starts_with("nat");
        self.hooks.push(Hook { place: place(name), hook: hook.to_owned(), priority, is_nat, drops: false });
        self.chain(name, rules)
    }

    fn chain(mut self, name: &'static str, rules: Vec<Vec<Value>>) -> Kernel {
        self.chains.push((name, rules));
        self
    }

    fn element(mut self, set: &'static str, key: Vec<Part>, value: Value) -> Kernel {
        self.elements.push((set, key, value));
        self
    }

    fn answer(&self, question: &Question) -> Fact {
        match question {
            Question::Hooks => Fact::Hooks(self.hooks.clone()),
            Question::Rules(of) => {
                let rules = self.chains.iter().find(|(name, _)| *of == place(name));
                Fact::Rules(rules.map(|(_, rules)| rules.clone()))
            }
            Question::Element(set, key) => {
                let found = self.elements.iter().find(|(name, has, _)| *set == place(name) && has == key);
                Fact::Element(found.map_or(Element::Missing, |(.., value)| Element::Present(value.clone())))
            }
            Question::Route { to, .. } => {
                let route = self.routes.iter().find(|(of, _)| ip(of) == *to);
                Fact::Route(route.map(|(_, route)| route.clone()).ok_or_else(|| "no route".to_owned()))
            }
        }
    }

    fn walk(&mut self, to: &str, protocol: Protocol, pick: u32) -> Walk {
        let mut facts = Facts::default();
        let packet = Packet { protocol, source: Some(ip(POD)), destination: ip(to), port: 80 };
        for _ in 0..100 {
            match walk(&facts, &packet, &Entry::Link("pw000000000002".to_owned()), pick) {
                Ok(walk) => return walk,
                Err(question) => {
                    let fact = self.answer(&question);
                    self.asked.push(question.clone());
                    facts.learn(question, fact);
                }
            }
        }
        panic!("it asks on and on: {:?}", self.asked)
    }
}

fn of_connection(key: &str, direction: &str) -> Value {
    json!({"ct": {"key": key, "dir": direction}})
}

fn matches(op: &str, left: Value, right: Value) -> Value {
    json!({"match": {"op": op, "left": left, "right": right}})
}

fn goto(target: &str) -> Value {
    json!({"goto": {"target": target}})
}

fn drop_it() -> Value {
    json!({"drop": null})
}

/// A policy by which the Pod may open connections to a group, on ports.
fn judged() -> Kernel {
    let vmap = json!({"vmap": {"key": of_connection("ip saddr", "original"), "data": "@egress"}});
    let group = matches("==", of_connection("ip saddr", "reply"), json!("@group-1"));
    let protocol = matches("==", json!({"ct": {"key": "protocol"}}), json!("tcp"));
    let ports = json!({"set": ["0x50 [invalid type]", {"range": ["0x64 [invalid type]", "0xc8 [invalid type]"]}]});
    let ports = matches("==", of_connection("proto-src", "reply"), ports);
    let established = matches("in", json!({"ct": {"key": "state"}}), json!("established"));
    Kernel::new()
        .base("egress-forward", "forward", -20, vec![vec![vmap]])
        .chain("policies-1", vec![vec![json!({"jump": {"target": "policy-2"}})], vec![goto("forbid")]])
        .chain("policy-2", vec![vec![group, protocol, ports, json!({"accept": null})]])
        .chain("forbid", vec![vec![established, json!({"reject": {"type": "tcp reset"}})], vec![drop_it()]])
        .element("egress", vec![Part::Address(ip(POD))], goto("policies-1"))
}

#[test]
fn a_policy_is_followed_to_the_rule_that_holds() {
    let mut kernel = judged().element("group-1", vec![Part::Address(ip(OTHER))], Value::Null);
    let walk = kernel.walk(OTHER, Protocol::Tcp, 0);
    assert_eq!(walk.end, End::Delivered { link: "pw000000000003".to_owned() });
    let last = walk.steps.last().unwrap();
    assert_eq!((last.chain.as_str(), last.found.as_str()), ("policy-2", "accept"));
    let chain = Some("policy-2".to_owned());
    assert_eq!(last.cause, Some(Cause::Policies { address: ip(POD), direction: Direction::Egress, chain }));
    // Neither the protocol nor anybody else is let through.
    for walk in [kernel.walk(OTHER, Protocol::Udp, 0), judged().walk(OTHER, Protocol::Tcp, 0)] {
        assert_eq!(walk.end, End::Dropped);
        let last = walk.steps.last().unwrap();
        let all = Cause::Policies { address: ip(POD), direction: Direction::Egress, chain: None };
        assert_eq!((last.chain.as_str(), last.cause.clone()), ("forbid", Some(all)));
    }
}

#[test]
fn what_the_kernel_has_counts_and_not_what_it_should_have() {
    let mut kernel = judged();
    kernel.elements.clear();
    let walk = kernel.walk(OTHER, Protocol::Tcp, 0);
    assert!(matches!(walk.end, End::Delivered { .. }), "{walk:?}");
    let unjudged = Cause::Unjudged { address: ip(POD), direction: Direction::Egress };
    assert!(walk.steps.iter().any(|step| step.cause.as_ref() == Some(&unjudged)), "{walk:?}");
    let mut flushed = Kernel::new();
    let walk = flushed.walk(OTHER, Protocol::Tcp, 0);
    assert!(walk.steps.iter().any(|step| step.found.starts_with("missing")), "{walk:?}");
}

/// A Service of two endpoints.
fn service() -> Kernel {
    let key = json!({"concat": [
        {"payload": {"protocol": "ip", "field": "daddr"}}, {"meta": {"key": "l4proto"}},
        {"payload": {"protocol": "th", "field": "dport"}},
    ]});
    let list =
        json!({"mangle": {"key": {"ct": {"key": "mark"}}, "value": {"map": {"key": key, "data": "@cluster-ips"}}}});
    let pick = json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"numgen": {"mode": "random", "mod": 2, "offset": 0}}}});
    let slot = json!({"concat": [{"ct": {"key": "mark"}}, {"meta": {"key": "mark"}}]});
    let dnat = json!({"dnat": {"family": "ip", "addr": {"map": {"key": slot, "data": "@endpoints"}}}});
    let lists = json!({"vmap": {"key": {"ct": {"key": "mark"}}, "data": "@services"}});
    let refused = matches("==", json!({"ct": {"key": "mark"}}), json!("@refused"));
    let reset = vec![
        vec![json!({"reject": {"type": "tcp reset"}})],
        vec![json!({"reject": {"type": "icmp", "expr": "port-unreachable"}})],
    ];
    Kernel::new()
        .base("nat-prerouting", "prerouting", -100, vec![vec![list, goto("balance")]])
        .base("prerouting", "prerouting", -90, vec![vec![refused, goto("refuse")]])
        .chain("balance", vec![vec![lists]])
        .chain("refuse", reset)
        .chain("lb-2", vec![vec![pick, dnat]])
        .element("cluster-ips", vec![Part::Address(ip(VIP)), Part::Text("tcp".into()), Part::Number(80)], json!(7))
}

#[test]
fn each_endpoint_of_a_service_is_a_way_of_its_own() {
    let slot = |n| vec![Part::Number(7), Part::Number(n)];
    let to = |address: &str| json!({"concat": [address, 8080]});
    let mut kernel = service()
        .element("services", vec![Part::Number(7)], goto("lb-2"))
        .element("endpoints", slot(0), to(OTHER))
        .element("endpoints", slot(1), to(POD));
    let walks = [0, 1].map(|pick| kernel.walk(VIP, Protocol::Tcp, pick));
    assert_eq!(
        walks.each_ref().map(|walk| (walk.destination, walk.port, walk.choices)),
        [(ip(OTHER), 8080, 2), (ip(POD), 8080, 2)]
    );
    assert!(walks[0].steps.iter().any(|step| step.cause == Some(Cause::List(7))), "{:?}", walks[0].steps);
    // Of another protocol there is no such Service.
    assert_eq!(kernel.walk(VIP, Protocol::Udp, 0).choices, 1);
}

#[test]
fn a_service_without_endpoints_refuses() {
    let mut kernel = service().element("refused", vec![Part::Number(7)], Value::Null);
    let walk = kernel.walk(VIP, Protocol::Tcp, 0);
    assert_eq!(walk.end, End::Rejected { with: "tcp reset".to_owned() });
    assert_eq!(walk.steps.last().unwrap().cause, Some(Cause::List(7)));
}

#[test]
fn a_condition_that_is_unknown_is_passed_over_and_told() {
    let owner = matches("==", json!({"meta": {"key": "skuid"}}), json!(0));
    let mut kernel = Kernel::new().base("others", "forward", 0, vec![vec![owner, drop_it()]]);
    let walk = kernel.walk(OTHER, Protocol::Tcp, 0);
    assert!(matches!(walk.end, End::Delivered { .. }));
    assert_eq!(walk.uncertain, ["ip podwright others: skuid 0 drop"]);
}

/// Another program's rules that lead in a circle, or to too many.
#[test]
fn rules_that_never_end_are_followed_for_a_while() {
    let circle = vec![vec![json!({"jump": {"target": "circle"}})]; 3];
    let mut kernel = Kernel::new().base("circle", "forward", 0, circle);
    assert!(matches!(kernel.walk(OTHER, Protocol::Tcp, 0).end, End::NoRoute { .. }));
}

/// Limits are for those who send much; a set that a packet fills has it.
#[test]
fn one_packet_is_within_each_limit() {
    let hop = json!({"rt": {"key": "nexthop", "family": "ip"}});
    let source = json!({"payload": {"protocol": "ip", "field": "saddr"}});
    let limit = json!([{"limit": {"rate": 60, "burst": 256, "per": "second", "inv": true}}]);
    let add = json!({"set": {"op": "add", "elem": source, "set": "@strangers", "stmt": limit}});
    let rules = vec![
        vec![add, drop_it()],
        vec![matches("!=", hop, json!("@asked")), matches("!=", source, json!("@strangers")), drop_it()],
    ];
    let mut kernel = Kernel::new().base("next-hops", "forward", 0, rules);
    assert!(matches!(kernel.walk(OTHER, Protocol::Tcp, 0).end, End::Delivered { .. }));
}
