//! Wrong readings of policies: the comparison must find each, by policies that the generator makes.

use ipnet::IpNet;

use super::{
    compare::{Trial, differences},
    generate,
    policy::{Direction, Operator, Policy, Port, Protocol, Rule, Selector, Spec, Which},
    world,
};
use crate::chaos::Dice;

/// Policies that a reader who gets one thing wrong would take for what he was given.
const READINGS: &[(&str, fn(&mut Policy))] = &[
    ("exceptions of blocks do not count", |policy| {
        each_peer(policy, |peer| peer.ip_block.iter_mut().for_each(|block| block.except = None));
    }),
    ("blocks of IPv6 have nobody in them", |policy| {
        each_peer(policy, |peer| {
            peer.ip_block.iter_mut().filter(|block| matches!(block.cidr, IpNet::V6(_))).for_each(|block| {
                (block.cidr, block.except) = ("2001:db8:dead::/48".parse().expect("a network"), None);
            });
        });
    }),
    ("a podSelector alone is about all namespaces", |policy| {
        each_peer(policy, |peer| {
            if peer.pod_selector.is_some() {
                peer.namespace_selector.get_or_insert_default();
            }
        });
    }),
    ("beside a podSelector a namespaceSelector does not count", |policy| {
        each_peer(policy, |peer| {
            if peer.pod_selector.is_some() {
                peer.namespace_selector = None;
            }
        });
    }),
    ("both selectors of one peer are two peers", |policy| {
        each_rule(policy, |rule| {
            rule.peers_mut().for_each(|peers| {
                let both = peers.iter_mut().filter(|peer| peer.namespace_selector.is_some());
                let apart: Vec<_> = both.filter_map(|peer| peer.pod_selector.take()).collect();
                peers.extend(
                    apart.into_iter().map(|it| super::policy::Peer { pod_selector: Some(it), ..Default::default() }),
                );
            });
        });
    }),
    ("an empty list of peers is nobody", |policy| {
        each_list(policy, |rules| rules.retain(|rule| !rule.peers().is_empty()))
    }),
    ("no ports are no port", |policy| {
        each_list(policy, |rules| rules.retain(|rule| rule.ports.as_ref().is_some_and(|it| !it.is_empty())))
    }),
    ("an empty list of rules is none, and isolates nobody", |policy| {
        let spec = &mut policy.spec;
        spec.policy_types = Some(spec.types());
        if spec.ingress.as_ref().is_none_or(Vec::is_empty) {
            spec.ingress = Some(vec![Rule::default()]);
        }
    }),
    ("types are what there are rules for", |policy| {
        let spec = &mut policy.spec;
        let has = |rules: &Option<Vec<Rule>>| rules.as_ref().is_some_and(|rules| !rules.is_empty());
        let (ingress, egress) = (has(&spec.ingress), has(&spec.egress));
        let types = [(Direction::Ingress, ingress || !egress), (Direction::Egress, egress)];
        spec.policy_types = Some(types.into_iter().filter_map(|(of, is)| is.then_some(of)).collect());
    }),
    ("without types a policy is about what comes in alone", |policy| {
        let types = &mut policy.spec.policy_types;
        if types.as_ref().is_none_or(Vec::is_empty) {
            *types = Some(vec![Direction::Ingress]);
        }
    }),
    ("without types a policy is about both directions", |policy| {
        let types = &mut policy.spec.policy_types;
        if types.as_ref().is_none_or(Vec::is_empty) {
            *types = Some(vec![Direction::Ingress, Direction::Egress]);
        }
    }),
    ("without a selector a policy is about nobody", |policy| {
        let nobody = || serde_saphyr::from_str::<Selector>("{matchLabels: {ghost: real}}").expect("a selector");
        policy.spec.pod_selector.get_or_insert_with(nobody);
    }),
    ("NotIn needs the label", |policy| {
        each_selector(policy, |selector| {
            let all = selector.match_expressions.iter().flatten();
            let asked: Vec<_> = all.filter(|it| it.operator == Operator::NotIn).cloned().collect();
            let exists = asked.into_iter().map(|it| super::policy::Requirement {
                operator: Operator::Exists,
                values: vec![],
                ..it
            });
            selector.match_expressions.iter_mut().for_each(|all| all.extend(exists.clone()));
        });
    }),
    ("expressions do not count beside labels", |policy| {
        each_selector(policy, |selector| {
            if selector.match_labels.as_ref().is_some_and(|labels| !labels.is_empty()) {
                selector.match_expressions = None;
            }
        });
    }),
    ("of several expressions one is enough", |policy| {
        each_selector(policy, |selector| selector.match_expressions.iter_mut().for_each(|all| all.truncate(1)));
    }),
    ("endPort does not count", |policy| each_port(policy, |port| port.end_port = None)),
    ("endPort is beyond the range", |policy| {
        each_port(policy, |port| {
            if let (Some(Which::Number(first)), Some(last)) = (&port.port, &mut port.end_port) {
                *last = (*last - 1).max(*first);
            }
        });
    }),
    ("a named port is the number of one Pod's", |policy| {
        each_port(policy, |port| {
            let number = match &port.port {
                Some(Which::Name(name)) if name == "web" => 80,
                Some(Which::Name(name)) if name == "other" => 81,
                _ => return,
            };
            port.port = Some(Which::Number(number));
        });
    }),
    ("a named port is nobody's", |policy| {
        each_port(policy, |port| {
            if matches!(port.port, Some(Which::Name(_))) {
                port.port = Some(Which::Name("nobody".to_owned()));
            }
        });
    }),
    ("a port without a number is none", |policy| {
        each_port(policy, |port| {
            port.port.get_or_insert(Which::Number(7));
        });
    }),
    ("without a protocol a port is one of UDP", |policy| {
        each_port(policy, |port| {
            port.protocol.get_or_insert(Protocol::Udp);
        });
    }),
    ("SCTP is TCP", |policy| {
        each_port(policy, |port| {
            port.protocol = port.protocol.map(|it| if it == Protocol::Sctp { Protocol::Tcp } else { it })
        });
    }),
];

fn each_list(policy: &mut Policy, change: impl Fn(&mut Vec<Rule>)) {
    let Spec { ingress, egress, .. } = &mut policy.spec;
    ingress.iter_mut().chain(egress).for_each(change);
}

fn each_rule(policy: &mut Policy, change: impl Fn(&mut Rule)) {
    each_list(policy, |rules| rules.iter_mut().for_each(&change));
}

fn each_peer(policy: &mut Policy, change: impl Fn(&mut super::policy::Peer)) {
    each_rule(policy, |rule| rule.peers_mut().for_each(|peers| peers.iter_mut().for_each(&change)));
}

fn each_port(policy: &mut Policy, change: impl Fn(&mut Port)) {
    each_rule(policy, |rule| rule.ports.iter_mut().flatten().for_each(&change));
}

fn each_selector(policy: &mut Policy, change: impl Fn(&mut Selector)) {
    policy.spec.pod_selector.iter_mut().for_each(&change);
    each_peer(policy, |peer| peer.pod_selector.iter_mut().chain(&mut peer.namespace_selector).for_each(&change));
}

/// After how many policies the reading has been found to be wrong, if at all.
fn found_by(seed: u64, read: Option<fn(&mut Policy)>) -> Option<usize> {
    let (mut dice, mut world, mut count) = (Dice(seed), world::on_paper(), 0);
    while count < super::POLICIES {
        generate::relabel(&mut dice, &mut world);
        let policies = generate::policies(&mut dice, &world);
        count += policies.len();
        let mut taken = policies.clone();
        taken.iter_mut().for_each(|policy| read.iter().for_each(|read| read(policy)));
        let trial = |flow| Trial {
            flow,
            by_service: false,
            wanted: world.allows(&policies, &flow),
            seen: world.allows(&taken, &flow),
        };
        if !differences(&super::flows(&world).map(trial).collect::<Vec<_>>()).is_empty() {
            return Some(count);
        }
    }
    None
}

/// By as few policies as a usual run has: of twenty runs, most find each.
#[test]
fn every_wrong_reading_is_found() {
    for (reading, read) in READINGS {
        let found: Vec<usize> = (0..20).filter_map(|seed| found_by(seed, Some(*read))).collect();
        assert!(found.len() >= 10, "{reading}: found by {} of 20 runs", found.len());
    }
}

#[test]
fn the_right_reading_differs_in_nothing() {
    assert!((0..5).all(|seed| found_by(seed, None).is_none()));
}
