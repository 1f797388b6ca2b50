//! Other programs' tables: those that drop Pods' traffic are reported, once per state; others are not.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Event;
use podwright::api::{Env, Options};
use podwright::client::{Recorder, local};
use podwright::node::conflicting_tables;
use podwright::server::{Config, Server};
use podwright::store::Memory;
use tokio::sync::watch;

use super::net_world::*;

/// As from firewalld and careful operators: none of a Pod's new connections are dropped.
const HARMLESS: &str = "
table inet harmless {
    set blocked { type ipv4_addr; elements = { 203.0.113.66 }; }
    chain forward {
        type filter hook forward priority 10; policy drop;
        ct state { established, related } accept
        ct state invalid drop
        ip saddr @blocked drop
        ip daddr { 198.51.100.0/24, 203.0.113.7 } reject
        iifname \"docker0\" drop
        jump pods
        drop
    }
    chain pods {
        iifname \"pw*\" accept
        oifname \"pw*\" accept
    }
    chain input { type filter hook input priority 10; policy accept; tcp dport 1 reject; }
}";

/// The rejecting rule is in another chain.
const REJECTING: &str = "
table inet firewalld {
    chain filter_FORWARD {
        type filter hook forward priority 10; policy accept;
        ct state { established, related } accept
        goto rest
    }
    chain rest { ct state invalid drop; ip saddr 10.0.0.0/8 counter reject with icmpx admin-prohibited; }
}";

#[test]
fn tables_of_others_are_found_where_they_drop_pods_traffic() {
    let node = Node::single();
    let (server, client) = (node.server("server"), node.pod("client"));
    let found = || node.wait(node.network.conflicting_tables()).unwrap();
    let answered = || ask(client.netns.as_fd(), server.endpoint()).is_ok();
    let nft = |script: &str| drop(run_in(node.netns(), "nft", &[script]));
    assert!(found().is_empty() && answered());

    nft(HARMLESS);
    assert_eq!((found(), answered()), (vec![], true));

    nft(REJECTING);
    let conflicts = found();
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    let (conflict, rule) = (&conflicts[0], &conflicts[0].rule);
    let place = (conflict.family, conflict.table.as_str(), conflict.chain.as_str());
    assert_eq!(place, ("inet", "firewalld", "filter_FORWARD"));
    assert_eq!(rule, "rule of chain rest: ip saddr 10.0.0.0/8 reject");
    assert!(conflict.handle.is_some());
    assert!(conflict.message.contains("firewalld's table inet firewalld, chain filter_FORWARD"), "{conflict:?}");
    assert!(!answered());

    nft("flush table inet firewalld");
    assert_eq!((found(), answered()), (vec![], true));
    nft("add chain inet firewalld filter_FORWARD { policy drop; }");
    let conflicts = found();
    assert_eq!(conflicts.iter().map(|c| c.rule.as_str()).collect::<Vec<_>>(), ["policy drop"]);
    assert!(!answered());
}

/// With permitted addresses in sets.
const WITH_SETS: &str = "
table inet passing {
    set pods { type ipv4_addr; flags interval; elements = { 192.0.2.1, 10.244.0.0/16 }; }
    set timed { type ipv4_addr; flags interval, timeout; elements = { 10.244.0.0/16 timeout 1h }; }
    set links { type ifname; flags interval; elements = { \"docker0\", \"pw*\" }; }
    set others { type ipv4_addr; elements = { 192.0.2.1 }; }
    chain forward {
        type filter hook forward priority 10; policy drop;
        ct state { established, related } accept
        ip saddr @pods accept
        ip daddr @timed accept
    }
    chain input { type filter hook input priority 10; policy drop; iifname @links accept; }
    chain output { type filter hook output priority 10; policy accept; ip daddr @others drop; }
}";

#[test]
fn what_named_sets_let_pass_is_no_conflict() {
    let node = Node::single();
    let (server, client) = (node.server("server"), node.pod("client"));
    let found = || {
        let found = node.wait(node.network.conflicting_tables()).unwrap();
        found.into_iter().map(|c| format!("{} {}", c.chain, c.rule)).collect::<Vec<_>>()
    };
    let answered = || ask(client.netns.as_fd(), server.endpoint()).is_ok();
    let nft = |script: &str| drop(run_in(node.netns(), "nft", &[script]));
    nft(WITH_SETS);
    assert_eq!((found(), answered()), (vec![], true));
    // Pods' incoming traffic still passes.
    nft("delete element inet passing pods { 10.244.0.0/16 }");
    assert_eq!((found(), answered()), (vec!["forward policy drop".to_owned()], true));
    nft("delete element inet passing timed { 10.244.0.0/16 }");
    assert_eq!((found(), answered()), (vec!["forward policy drop".to_owned()], false));
}

#[test]
fn each_state_of_others_tables_is_an_event_of_the_node() {
    let node = Node::single();
    let nft = |script: &str| drop(run_in(node.netns(), "nft", &[script]));
    nft(HARMLESS);
    let (client, mut found) = node.wait(async {
        let server = Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
        let client = local::client(Arc::clone(&server), "kubelet");
        let recorder = Recorder::new(client.clone(), Env::system(), "kubelet", Some("node1"));
        let (tell, found) = watch::channel(None);
        tokio::spawn(conflicting_tables::watch(node.network.clone(), recorder, "node1".to_owned(), tell));
        (client, found)
    });
    let _healing = node.network.heal(drop).unwrap();
    let events = || {
        let all = node.wait(client.list::<Event>(None, Options::default())).unwrap().items;
        all.into_iter().map(|e| (e.type_.unwrap(), e.reason.unwrap(), e.message.unwrap())).collect::<Vec<_>>()
    };
    let mut becomes = |what: &str, wanted: usize| {
        let is = |found: &conflicting_tables::Found| {
            found.as_ref().is_some_and(|found| found.as_ref().is_ok_and(|found| found.len() == wanted))
        };
        let seen =
            async { tokio::time::timeout(Duration::from_secs(30), found.wait_for(is)).await.is_ok_and(|r| r.is_ok()) };
        assert!(node.wait(seen), "{what}: {:?}", events());
    };
    let mut told = Vec::new();
    let mut more = |what: &str| {
        let deadline = Instant::now() + Duration::from_secs(10);
        let fresh = loop {
            let fresh: Vec<_> = events().into_iter().filter(|event| !told.contains(event)).collect();
            if !fresh.is_empty() || Instant::now() > deadline {
                break fresh;
            }
            std::thread::yield_now();
        };
        assert_eq!(fresh.len(), 1, "{what}: {fresh:?}");
        told.extend(fresh.clone());
        fresh[0].clone()
    };
    becomes("the first look", 0);

    nft(REJECTING);
    becomes("a table that drops", 1);
    let (kind, reason, message) = more("a table that drops");
    assert_eq!((kind.as_str(), reason.as_str()), ("Warning", "ConflictingTables"));
    assert!(message.contains("table inet firewalld, chain filter_FORWARD"), "{message}");
    assert!(!message.contains("harmless"), "{message}");

    // Another dropping table is another state; a harmless one is not.
    nft("table ip more { chain input { type filter hook input priority 5; policy drop; }; }");
    nft("table ip less { chain input { type filter hook input priority 5; policy accept; }; }");
    becomes("another", 2);
    assert!(more("another").2.contains("table ip more, chain input"));

    nft("delete table inet firewalld; delete table ip more");
    becomes("none", 0);
    let (kind, reason, _) = more("none");
    assert_eq!((kind.as_str(), reason.as_str()), ("Normal", "NoConflictingTables"));
}
