//! What policies are in nft's words, and what of it a change touches.

use std::sync::Arc;

use super::super::model::Protocol;
use super::*;

const BOTH: [Family; 2] = Family::ALL;

fn rule(peers: Peers, ports: Ports) -> Rule {
    Rule { peers, ports }
}

fn isolated(address: &str, rules: Vec<Rule>) -> Isolated {
    let ingress = Some(Allowed::from([Arc::new(Policy { rules })]));
    Isolated { addresses: vec![address.parse().unwrap()], ingress, egress: None, named: Vec::new() }
}

fn change(owner: &str, isolated: Isolated) -> PolicyChanges {
    PolicyChanges { isolated: BTreeMap::from([(owner.to_owned(), isolated)]), ..PolicyChanges::default() }
}

/// What a change makes and removes, as the driver does it.
fn apply(policies: &mut Policies, ids: &mut PartIds, changes: PolicyChanges) -> (Difference, String, String) {
    let difference = policies.decide(changes, ids);
    let missing = policies.missing();
    let script = policies.script_of(&missing);
    policies.add_made(&missing);
    let (left, removal) = policies.left_over();
    policies.forget(&left, ids);
    (difference, script, removal)
}

#[test]
fn a_rule_in_words() {
    let (mut ids, any) = (PartIds::default(), Peers::Any);
    let mut said = |rule: Rule, direction, family| {
        policy_text(&Policy { rules: vec![rule] }, direction, family, &mut ids).pop().unwrap_or_default()
    };
    use Direction::{Egress, Ingress};
    assert_eq!(said(rule(any.clone(), Ports::Any), Ingress, Family::V4), "accept");
    let ports = Ports::Numbers(Protocol::Tcp, vec![(80, 80), (8000, 9000)]);
    let web = said(rule(any.clone(), ports), Ingress, Family::V4);
    assert_eq!(web, "ct protocol 6 ct reply proto-src { 80, 8000-9000 } accept");
    let all = Ports::Numbers(Protocol::Sctp, vec![(0, u16::MAX)]);
    assert_eq!(said(rule(any, all), Egress, Family::V6), "ct protocol 132 accept");
    let ranges = ["10.0.0.0", "10.0.0.7", "10.0.0.9", "10.0.0.9"].map(|ip| ip.parse().unwrap());
    let ranges = Peers::Ranges(vec![(ranges[0], ranges[1]), (ranges[2], ranges[3])]);
    let block = said(rule(ranges.clone(), Ports::Any), Ingress, Family::V4);
    assert_eq!(block, "ct original ip saddr { 10.0.0.0-10.0.0.7, 10.0.0.9 } accept");
    assert_eq!(said(rule(ranges.clone(), Ports::Any), Egress, Family::V4), block.replace("original", "reply"));
    assert_eq!(said(rule(ranges, Ports::Any), Egress, Family::V6), "", "nobody of that family");
    let whole =
        Peers::Ranges(vec![("::".parse().unwrap(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap())]);
    assert_eq!(said(rule(whole, Ports::Any), Egress, Family::V6), "accept");
}

fn policy_text(policy: &Policy, direction: Direction, family: Family, ids: &mut PartIds) -> Vec<String> {
    text::policy_rules(policy, direction, family, ids)
}

#[test]
fn what_leads_somewhere_is_whole_and_what_nothing_leads_to_goes() {
    let (mut policies, mut ids) = (Policies::new(&BOTH), PartIds::default());
    let friends = || vec![rule(Peers::Group("friends".into()), Ports::Any)];
    let (difference, script, removal) = apply(&mut policies, &mut ids, change("a", isolated("10.0.0.1", friends())));
    assert_eq!((difference.add.len(), difference.delete.len()), (2, 0), "{difference:?}");
    let group = ids.take("group friends");
    let order = [format!("add set ip podwright group-{group:x}"), "add chain ip podwright policy-".to_owned()];
    let order = order
        .iter()
        .chain([&"add chain ip podwright policies-".to_owned()])
        .map(|w| script.find(w))
        .collect::<Vec<_>>();
    assert!(order.is_sorted() && order.iter().all(Option::is_some), "{script}");
    assert_eq!(removal, "");
    // Another one with the same policies is two elements more, and nothing to be made.
    let (difference, script, _) = apply(&mut policies, &mut ids, change("b", isolated("10.0.0.2", friends())));
    assert_eq!((difference.add.len(), script.as_str()), (2, ""));
    // Other rules are another chain: only then the elements change, and only then the old one goes.
    let (difference, script, removal) = apply(&mut policies, &mut ids, change("a", isolated("10.0.0.1", vec![])));
    assert_eq!((difference.add.len(), difference.delete.len()), (1, 1));
    assert!(script.contains("goto forbid") && !script.contains("policy-"), "{script}");
    assert_eq!(removal, "");
    let (_, _, removal) = apply(&mut policies, &mut ids, change("b", Isolated::default()));
    assert!(
        removal.contains("delete chain ip6 podwright policies-") && removal.contains("delete set ip podwright group-")
    );
    assert!(removal.find("policies-") < removal.find("policy-") && removal.find("policy-") < removal.find("group-"));
    let (_, _, removal) = apply(&mut policies, &mut ids, change("a", Isolated::default()));
    assert!(removal.contains("policies-") && policies.elements().count() == 0);
}

#[test]
fn members_of_two_are_elements_once() {
    let (mut policies, mut ids) = (Policies::new(&[Family::V4]), PartIds::default());
    let member = |ips: &[&str]| Member {
        addresses: ips.iter().map(|ip| (Arc::from("g"), ip.parse().unwrap())).collect(),
        ..Member::default()
    };
    let mut join = |owner: &str, ips: &[&str]| {
        let members = BTreeMap::from([(owner.to_owned(), member(ips))]);
        let difference = policies.decide(PolicyChanges { members, ..PolicyChanges::default() }, &mut ids);
        (difference.add.len(), difference.delete.len())
    };
    assert_eq!(join("a", &["10.0.0.1", "fd00::1"]), (1, 0), "of families that there are");
    assert_eq!(join("b", &["10.0.0.1"]), (0, 0));
    assert_eq!(join("a", &[]), (0, 0));
    assert_eq!(join("b", &["10.0.0.2"]), (1, 1));
    assert_eq!(join("b", &[]), (0, 1));
}

/// Until it is known which of two has an address, nothing is let through.
#[test]
fn an_address_of_two_is_nobodys() {
    let (mut policies, mut ids) = (Policies::new(&[Family::V4]), PartIds::default());
    let open = isolated("10.0.0.1", vec![rule(Peers::Any, Ports::Any)]);
    apply(&mut policies, &mut ids, change("a", open.clone()));
    apply(&mut policies, &mut ids, change("b", isolated("10.0.0.1", vec![])));
    assert!(policies.elements().any(|(key, value)| key.map == Map::Ingress && value == Value::Drop));
    apply(&mut policies, &mut ids, change("b", open));
    assert!(policies.elements().all(|(_, value)| value != Value::Drop));
}
