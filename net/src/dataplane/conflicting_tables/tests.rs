//! Listings of others' rules in nft's format, and the conflicts found in them.

use super::*;

/// The conflicts of a table `inet t` whose chain `base` has these rules, as `chain: rule`, with the rule's handle, which is its
/// number.
fn found(hook: &str, policy: &str, rules: &[Value]) -> Vec<String> {
    let chain = json!({"chain": {"family": "inet", "table": "t", "name": "base", "hook": hook, "policy": policy}});
    let rule = |(at, (chain, expr)): (usize, (&str, &Value))| json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": at, "expr": expr}});
    let places = rules.iter().map(|rule| match rule {
        Value::Object(_) => ("other", &rule["other"]),
        _ => ("base", rule),
    });
    let all: Vec<Value> = std::iter::once(chain).chain(places.enumerate().map(rule)).collect();
    let ranges = ["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()];
    let mut listing = Listing::parse(&json!({ "nftables": all }).to_string()).unwrap();
    listing.learn(&json!({ "nftables": sets() }).to_string()).unwrap();
    let handle = |c: &Conflict| c.handle.map(|handle| format!(" ({handle})")).unwrap_or_default();
    let words = |c: Conflict| format!("{}: {}{}", c.chain, c.rule, handle(&c));
    listing.conflicts(&ranges, &Family::ALL).into_iter().map(words).collect()
}

/// Sets of the table, in nft's format.
fn sets() -> Value {
    let set = |name: &str, elem: Value| json!({"set": {"family": "inet", "table": "t", "name": name, "type": "ipv4_addr", "elem": elem}});
    let net = json!({"prefix": {"addr": "10.244.0.0", "len": 16}});
    let other =
        json!({"set": {"family": "ip", "table": "t", "name": "of_another_table", "type": "ipv4_addr", "elem": [net]}});
    let none = json!({"set": {"family": "inet", "table": "t", "name": "none", "type": "ipv4_addr"}});
    json!([
        set("pods", json!(["192.0.2.1", net])),
        set(
            "timed",
            json!([{"elem": {"val": {"range": ["10.0.0.0", "10.255.255.255"]}, "timeout": 60, "unheard-of": 1}}])
        ),
        set("others", json!(["192.0.2.1", {"prefix": {"addr": "192.168.0.0", "len": 16}}])),
        set("some", json!(["10.244.1.7"])),
        set("odd", json!([{"unheard-of": {}}])),
        set("pairs", json!([{"concat": [net, 80]}])),
        set("links", json!(["docker0", "pw*"])),
        none,
        other,
    ])
}

#[test]
fn what_is_in_a_named_set_counts() {
    let accepts = |condition: Value| {
        let rules = [json!([condition, {"accept": null}]), json!([meta("nfproto", &json!("ipv6")), {"accept": null}])];
        found("input", "drop", &rules).is_empty()
    };
    for (op, set, is_accepted) in [
        ("==", "@pods", true),
        ("in", "@timed", true),
        ("!=", "@others", true),
        ("!=", "@none", true),
        ("==", "@others", false),
        ("==", "@some", false),
        ("!=", "@some", false),
        ("==", "@odd", false),
        ("!=", "@odd", false),
        ("==", "@pairs", false),
        ("==", "@none", false),
        ("==", "@of_another_table", false),
        ("==", "@unheard-of", false),
    ] {
        assert_eq!(accepts(saddr(op, &json!(set))), is_accepted, "{op} {set}");
    }
    assert!(accepts(meta("iifname", &json!("@links"))));
    // A dropping rule is found as well.
    let drops = json!([saddr("==", &json!("@pods")), {"drop": null}]);
    assert_eq!(found("forward", "accept", &[drops]), ["base: rule of chain base: ip saddr @pods drop (0)"]);
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
    let found = Listing::parse(listing).unwrap().conflicts(&[], &[Family::V4]);
    let found: Vec<String> = found.iter().map(|c| format!("{} {} {}", c.family, c.table, c.chain)).collect();
    assert_eq!(found, ["ip filter FORWARD", "inet firewalld filter_INPUT", "inet podwright forward"]);
    // An unreadable listing differs from an empty one.
    for listing in ["", "not json", "[]", "{}", r#"{"nftables": {}}"#, r#"{"nftables": [{}"#] {
        assert!(Listing::parse(listing).is_err(), "{listing}");
    }
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
        ("reject", json!([{"xt": {"type": "match", "name": "comment"}}, {"xt": {"type": "target", "name": "REJECT"}}])),
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
    // The kernel rejects loops; a listing might contain one.
    let circle = vec![in_other(&to("jump")); 64];
    assert_eq!(found("forward", "drop", &[vec![to("jump")], circle].concat()), [""; 0]);
}

#[test]
fn rules_that_are_loaded_again_are_the_same_conflict() {
    let of = |handle: u64| {
        let chain = json!({"family": "ip", "table": "t", "name": "c", "hook": "forward", "policy": "accept"});
        let rule = json!({"family": "ip", "table": "t", "chain": "c", "handle": handle, "expr": [{"drop": null}]});
        let listed = json!({"nftables": [{"chain": chain}, {"rule": rule}]}).to_string();
        Listing::parse(&listed).unwrap().conflicts(&[], &[Family::V4]).remove(0)
    };
    let (before, after) = (of(4), of(9));
    assert_eq!((before.handle, after.handle, before.message), (Some(4), Some(9), after.message));
}

#[test]
fn names_are_shown_as_one_line_of_text() {
    let chain = json!({"chain": {"family": "ip", "table": "a\u{1b}[2J\nb", "name": "x".repeat(300), "hook": "forward", "policy": "drop"}});
    let listing = Listing::parse(&json!({ "nftables": [chain] }).to_string()).unwrap();
    let found = listing.conflicts(&[], &Family::ALL);
    assert_eq!((found[0].table.as_str(), found[0].chain.len()), ("a\u{fffd}[2J\u{fffd}b", LONGEST + 3));
    assert!(!found[0].message.contains(char::is_control) && found[0].message.len() < 400, "{found:?}");
}
