//! Upstream's documented cases: policies, and who reaches whom under them. The model must say so, and so must a node.
//!
//! Most are those of upstream's end-to-end tests (test/e2e/network/netpol), others are examples and sentences of its documentation.

use super::{
    model::{Flow, World},
    policy::Policy,
};

/// Policies that are in force together, and what is so under them.
pub struct Case {
    pub name: &'static str,
    /// A list in YAML. `<x/a>` is the address of that Pod, `<x/a:6>` its second one.
    policies: &'static str,
    /// `from -> to`, and maybe a protocol, a port, a family: whether it is allowed. All else is; of two that are about the same flow
    /// the later one holds. `*` is everybody, `*/*` each Pod that has a network of its own.
    then: &'static [(&'static str, bool)],
}

const NO: bool = false;
const YES: bool = true;

pub const CASES: &[Case] = &[
    Case { name: "no policy", policies: "[]", then: &[] },
    Case {
        name: "default-deny-ingress",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Ingress]}}]",
        then: &[("* -> x/*", NO)],
    },
    Case {
        name: "default-deny-egress",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Egress]}}]",
        then: &[("x/* -> *", NO)],
    },
    Case {
        name: "default-deny-all",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}]",
        then: &[("* -> x/*", NO), ("x/* -> *", NO)],
    },
    Case {
        name: "no rules and empty lists of rules deny alike, and a selector that is not there selects all Pods",
        policies: "[{namespace: x, spec: {ingress: [], egress: [], policyTypes: [Ingress, Egress]}}, {namespace: y, spec: {}}]",
        then: &[("* -> x/*", NO), ("x/* -> *", NO), ("* -> y/*", NO)],
    },
    Case {
        name: "without types, or with an empty list of them: Ingress, and Egress where there are rules for it",
        policies: "[{namespace: x, spec: {podSelector: {}, egress: []}},
            {namespace: y, spec: {podSelector: {}, policyTypes: [], egress: [{to: [{podSelector: {}}]}]}}]",
        then: &[("* -> x/*", NO), ("* -> y/*", NO), ("y/* -> *", NO)],
    },
    Case {
        name: "rules of a direction that is no type of the policy's are none",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Egress], ingress: [{from: [{podSelector: {}}]}], egress: [{}]}},
            {namespace: y, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{}], egress: [{to: [{podSelector: {}}]}]}}]",
        then: &[],
    },
    Case {
        name: "an empty rule allows all",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}}]",
        then: &[],
    },
    Case {
        name: "a rule with empty lists allows all",
        policies: "[{namespace: x, spec: {podSelector: {}, ingress: [{from: [], ports: []}], egress: [{to: [], ports: []}]}}]",
        then: &[],
    },
    Case {
        name: "from Pods of the server's namespace, by PodSelector",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}}]",
        then: &[("* -> x/a", NO), ("x/b -> x/a", YES)],
    },
    Case {
        name: "ingress traffic for a target, beside a policy that denies all",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Ingress]}},
            {namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {}, namespaceSelector: {}}]}]}}]",
        then: &[("* -> x/*", NO), ("*/* -> x/a", YES)],
    },
    Case {
        name: "ingress traffic from Pods in all namespaces",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {}}}]}]}}]",
        then: &[("* -> x/a", NO), ("*/* -> x/a", YES)],
    },
    Case {
        name: "only from a different namespace, by NamespaceSelector",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/* -> x/a", YES)],
    },
    Case {
        name: "PodSelector with MatchExpressions",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{podSelector: {matchExpressions: [{key: pod, operator: In, values: [b]}]}}]}]}}]",
        then: &[("* -> x/a", NO), ("x/b -> x/a", YES)],
    },
    Case {
        name: "NamespaceSelector with MatchExpressions",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: In, values: [y]}]}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/* -> x/a", YES)],
    },
    Case {
        name: "PodSelector or NamespaceSelector",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]}},
                {podSelector: {matchLabels: {pod: b}}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/* -> x/a", YES), ("z/* -> x/a", YES), ("x/b -> x/a", YES)],
    },
    Case {
        name: "PodSelector and NamespaceSelector",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]},
                podSelector: {matchLabels: {pod: b}}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/b -> x/a", YES), ("z/b -> x/a", YES)],
    },
    Case {
        name: "multiple PodSelectors and NamespaceSelectors",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]},
                podSelector: {matchExpressions: [{key: pod, operator: In, values: [b, c]}]}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/b|y/c -> x/a", YES), ("z/b|z/c -> x/a", YES)],
    },
    Case {
        name: "any PodSelectors",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}, {podSelector: {matchLabels: {pod: c}}}]}]}}]",
        then: &[("* -> x/a", NO), ("x/b|x/c -> x/a", YES)],
    },
    Case {
        name: "only from a Pod in a different namespace, by PodSelector and NamespaceSelector",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: a}}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/a -> x/a", YES)],
    },
    Case {
        name: "by ports",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{ports: [{port: 81}], from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/* -> x/a TCP 81", YES)],
    },
    Case {
        name: "stacked policies with overlapping podSelectors, each with a port",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 80}], from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}},
            {namespace: x, spec: {podSelector: {}, ingress: [{ports: [{port: 81}], from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}}]",
        then: &[("* -> x/*", NO), ("y/* -> x/a TCP 80", YES), ("y/* -> x/* TCP 81", YES)],
    },
    Case {
        name: "allow-all takes precedence over what denies all, for ingress",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Ingress]}}, {namespace: x, spec: {podSelector: {}, ingress: [{}]}}]",
        then: &[],
    },
    Case {
        name: "allow-all takes precedence over what denies all, for egress",
        policies: "[{namespace: x, spec: {podSelector: {}, policyTypes: [Egress]}}, {namespace: x, spec: {policyTypes: [Egress], egress: [{}]}}]",
        then: &[],
    },
    Case {
        name: "ingress on one named port",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: web}]}]}}]",
        then: &[("* -> x/a", NO), ("* -> x/a TCP 80", YES)],
    },
    Case {
        name: "ingress from a namespace on one named port",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}},
            ingress: [{ports: [{port: other}], from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}}]",
        then: &[("* -> x/a", NO), ("y/* -> x/a TCP 81", YES)],
    },
    Case {
        name: "egress on one named port, which each Pod has elsewhere, one by another protocol and none outside",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{ports: [{port: web}]}]}}]",
        then: &[("x/a -> *", NO), ("x/a -> */a TCP 80", YES), ("x/a -> */b TCP 81", YES)],
    },
    Case {
        name: "a named port that does not match its protocol, and one that nobody has",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: dns, protocol: TCP}, {port: nobody, protocol: UDP}]}]}}]",
        then: &[("* -> x/a", NO)],
    },
    Case {
        name: "a port without a number is all of its protocol's",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{protocol: UDP}]}]}},
            {namespace: x, spec: {podSelector: {matchLabels: {pod: b}}, ingress: [{ports: [{}]}]}}]",
        then: &[("* -> x/a", NO), ("* -> x/a UDP", YES), ("* -> x/b", NO), ("* -> x/b TCP", YES)],
    },
    Case {
        name: "TCP is not allowed by what is for SCTP alone",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 80, protocol: SCTP}]}]}}]",
        then: &[("* -> x/a", NO), ("* -> x/a SCTP 80", YES)],
    },
    Case {
        name: "TCP is not allowed by what is for UDP alone",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 81, protocol: UDP}]}]}}]",
        then: &[("* -> x/a", NO), ("* -> x/a UDP 81", YES)],
    },
    Case {
        name: "endPort",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 80, endPort: 81}]}]}},
            {namespace: x, spec: {podSelector: {matchLabels: {pod: b}}, ingress: [{ports: [{port: 81, endPort: 65535}]}]}},
            {namespace: x, spec: {podSelector: {matchLabels: {pod: c}}, ingress: [{ports: [{port: 1, endPort: 80, protocol: UDP}]}]}}]",
        then: &[("* -> x/*", NO), ("* -> x/a TCP", YES), ("* -> x/b TCP 81", YES), ("* -> x/c UDP 80", YES)],
    },
    Case {
        name: "egress to a server in a CIDR block",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: <y/b>/32}}]}]}}]",
        then: &[("x/a -> *", NO), ("x/a -> y/b v4", YES)],
    },
    Case {
        name: "egress to a CIDR block but for what is excepted",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress],
            egress: [{to: [{ipBlock: {cidr: <y/b>/24, except: [<y/b>/32]}}]}]}}]",
        then: &[("x/a -> *", NO), ("x/a -> */* v4", YES), ("x/a -> y/b", NO)],
    },
    Case {
        name: "an address in CIDR blocks, in one of them as an exception",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress],
                egress: [{to: [{ipBlock: {cidr: <y/b>/24, except: [<y/b>/32]}}]}]}},
            {namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: <y/b>/32}}]}]}}]",
        then: &[("x/a -> *", NO), ("x/a -> */* v4", YES)],
    },
    Case {
        name: "ingress from CIDR blocks of both families",
        policies: "[{namespace: x, spec: {podSelector: {}, ingress: [{from: [
            {ipBlock: {cidr: <outside>/32}}, {ipBlock: {cidr: '::/0', except: ['<outside:6>/128', '<y/b:6>/128']}}]}]}}]",
        then: &[("* -> x/*", NO), ("outside -> x/* v4", YES), ("* -> x/* v6", YES), ("outside -> x/* v6", NO), ("y/b -> x/* v6", NO)],
    },
    Case {
        name: "egress of a Pod by PodSelector",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: b}}}]}]}}]",
        then: &[("x/a -> *", NO), ("x/a -> x/b", YES)],
    },
    Case {
        name: "egress by NamespaceSelector and ingress by PodSelector must both allow",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}},
            {namespace: y, spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}]}}]",
        then: &[("x/a -> *", NO), ("x/a -> y/*", YES), ("* -> y/a", NO), ("z/* -> y/a", YES)],
    },
    Case {
        name: "NotIn and DoesNotExist match what has no such label",
        policies: "[{namespace: x, spec: {podSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]},
            ingress: [{from: [{podSelector: {matchExpressions: [{key: team, operator: NotIn, values: [red]}]}}]}]}},
            {namespace: y, spec: {podSelector: {matchExpressions: [{key: team, operator: Exists}]}, policyTypes: [Ingress]}}]",
        then: &[("* -> x/*", NO), ("x/* -> x/*", YES)],
    },
    Case {
        name: "matchLabels and matchExpressions must all match",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}, matchExpressions: [{key: pod, operator: In, values: [a, b]}, {key: pod, operator: Exists}]},
            policyTypes: [Ingress]}}]",
        then: &[("* -> x/a", NO)],
    },
    Case {
        name: "the example of the documentation",
        policies: "[{namespace: x, spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Ingress, Egress],
            ingress: [{from: [{ipBlock: {cidr: <outside>/16, except: [<outside>/32]}}, {namespaceSelector: {matchLabels: {ns: y}}},
                {podSelector: {matchLabels: {pod: b}}}], ports: [{protocol: TCP, port: 80}]}],
            egress: [{to: [{ipBlock: {cidr: <outside>/24}}], ports: [{protocol: TCP, port: 81}]}]}}]",
        then: &[
            ("* -> x/a", NO),
            ("x/a -> *", NO),
            ("y/*|x/b -> x/a TCP 80", YES),
            ("x/a -> outside TCP 81 v4", YES),
        ],
    },
];

/// What a pattern of a case is about.
struct Pattern<'a> {
    from: &'a str,
    to: &'a str,
    more: Vec<&'a str>,
}

impl<'a> Pattern<'a> {
    fn parse(text: &'a str) -> Pattern<'a> {
        let (from, rest) = text.split_once(" -> ").unwrap_or_else(|| panic!("{text:?} has no arrow"));
        let mut words = rest.split(' ');
        let to = words.next().unwrap_or_default();
        Pattern { from, to, more: words.collect() }
    }

    fn is_about(&self, flow: &Flow<'_>) -> bool {
        let says = |word: &&str| match *word {
            "v4" => flow.destination.is_ipv4(),
            "v6" => flow.destination.is_ipv6(),
            word => word == flow.protocol.name() || word == flow.port.to_string(),
        };
        fits(self.from, &flow.from.name) && fits(self.to, &flow.to.name) && self.more.iter().all(says)
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let part = |(pattern, name): (&str, &str)| pattern == "*" || pattern == name;
    pattern.split('|').any(|pattern| match (pattern.split_once('/'), name.split_once('/')) {
        (Some((namespace, pod)), Some(name)) => part((namespace, name.0)) && part((pod, name.1)),
        _ => part((pattern, name)),
    })
}

impl Case {
    pub fn policies(&self, world: &World) -> Vec<Policy> {
        let text = world.ends.iter().fold(self.policies.to_owned(), |text, end| {
            let second = end.addresses.last().expect("everybody has an address");
            let text = text.replace(&format!("<{}>", end.name), &end.addresses[0].to_string());
            text.replace(&format!("<{}:6>", end.name), &second.to_string())
        });
        let mut policies: Vec<Policy> =
            serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", self.name));
        policies.iter_mut().enumerate().for_each(|(at, policy)| policy.name = format!("policy-{at}"));
        policies
    }

    fn allows(&self, flow: &Flow<'_>) -> bool {
        let about = self.then.iter().rev().find(|(pattern, _)| Pattern::parse(pattern).is_about(flow));
        about.is_none_or(|(_, allowed)| *allowed)
    }

    /// Whether it needs the second family.
    pub fn is_of_both_families(&self) -> bool {
        self.policies.contains(":6>")
    }
}

/// What is so under whatever policies: a Pod and itself, a Pod and its node.
const ALWAYS: [&str; 8] = [
    "host -> */*",
    "*/* -> host",
    "node -> */*",
    "*/* -> node",
    "node -> host",
    "host -> node",
    "host -> host",
    "node -> node",
];

#[test]
fn the_model_says_what_upstream_documents() {
    let world = super::world::on_paper();
    for case in CASES {
        let policies = case.policies(&world);
        let wrong: Vec<String> = super::flows(&world)
            .filter_map(|flow| {
                let always =
                    flow.from.name == flow.to.name || ALWAYS.iter().any(|it| Pattern::parse(it).is_about(&flow));
                let wanted = always || case.allows(&flow);
                let text =
                    || format!("{} -> {} {} {}", flow.from.name, flow.destination, flow.protocol.name(), flow.port);
                (world.allows(&policies, &flow) != wanted).then(|| format!("{}: wanted {wanted}", text()))
            })
            .collect();
        assert!(wrong.is_empty(), "{}:\n{}", case.name, wrong.join("\n"));
    }
}

/// Nodes other than a Pod's own are no more than addresses.
#[test]
fn another_node_is_let_in_by_its_address_alone() {
    let world = super::world::on_paper();
    let flow = |flow: &Flow<'_>| flow.from.name == "other" && flow.to.name == "x/a" && flow.source.is_ipv4();
    let allowed = |policies: &'static str| {
        let case = Case { name: "another node", policies, then: &[] };
        let policies = case.policies(&world);
        super::flows(&world).filter(flow).all(|flow| world.allows(&policies, &flow))
    };
    assert!(!allowed("[{namespace: x, spec: {ingress: [{from: [{podSelector: {}, namespaceSelector: {}}]}]}}]"));
    assert!(allowed("[{namespace: x, spec: {ingress: [{from: [{ipBlock: {cidr: <other>/32}}]}]}}]"));
}
