//! The terms that mean a Pod are the same, whether they are looked up or all of them are judged.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use podwright::scheduler::{carriers::Carriers, pod::PodInfo, term::Namespaces};
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
enum Op {
    Came(usize, usize),
    Left(usize, usize),
    Asked(usize),
    Renamed(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..24, 0usize..3).prop_map(|(term, slot)| Op::Came(term, slot)),
        2 => (0usize..24, 0usize..3).prop_map(|(term, slot)| Op::Left(term, slot)),
        3 => (0usize..6).prop_map(Op::Asked),
        1 => any::<bool>().prop_map(Op::Renamed),
    ]
}

fn requirement() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec!["app", "tier"]);
    let values = prop::collection::vec(prop::sample::select(vec!["", "a", "b"]), 1..3);
    (key, values, 0..4).prop_map(|(key, values, how)| match how {
        0 => json!({ "key": key, "operator": "In", "values": values }),
        1 => json!({ "key": key, "operator": "NotIn", "values": values }),
        2 => json!({ "key": key, "operator": "Exists" }),
        _ => json!({ "key": key, "operator": "DoesNotExist" }),
    })
}

fn term() -> impl Strategy<Value = Value> {
    let many: Vec<String> = (0..80).map(|n| format!("n{n}")).collect();
    let namespaces = prop::sample::select(vec![
        json!([]),
        json!(["x"]),
        json!(["x", "y"]),
        json!([&["y".to_owned()][..], &many].concat()),
    ]);
    let by_labels = prop::sample::select(vec![Value::Null, json!({}), json!({ "matchLabels": { "team": "t" } })]);
    let selector = prop::option::weighted(0.9, prop::collection::vec(requirement(), 0..4));
    (namespaces, by_labels, selector).prop_map(|(namespaces, by_labels, selector)| {
        let selector = selector.map(|all| json!({ "matchExpressions": all }));
        json!({ "topologyKey": "zone", "namespaces": namespaces, "namespaceSelector": by_labels, "labelSelector": selector })
    })
}

fn pod(namespace: &str, labels: Value, terms: &[Value]) -> Arc<PodInfo> {
    let pod = json!({
        "metadata": { "name": "p", "namespace": namespace, "labels": labels },
        "spec": { "containers": [], "affinity": {
            "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } } },
    });
    PodInfo::of(Arc::new(serde_json::from_value(pod).expect("a Pod")))
}

fn namespaces(renamed: bool) -> Namespaces {
    let labels = |it: bool| BTreeMap::from_iter(it.then(|| ("team".to_owned(), "t".to_owned())));
    Namespaces(HashMap::from([("x".to_owned(), labels(renamed)), ("y".to_owned(), labels(!renamed))]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn what_is_looked_up_is_what_a_walk_finds(
        terms in prop::collection::vec(term(), 24), ops in prop::collection::vec(op(), 1..120),
    ) {
        let carrier = pod("x", json!({}), &terms);
        let asking = [
            pod("x", json!({}), &[]), pod("y", json!({}), &[]), pod("x", json!({ "app": "a" }), &[]),
            pod("y", json!({ "app": "", "tier": "b" }), &[]), pod("x", json!({ "tier": "a" }), &[]),
            pod("z", json!({ "app": "b", "tier": "" }), &[]),
        ];
        let (mut carriers, mut known) = (Carriers::default(), namespaces(false));
        let mut there: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Came(term, slot) => {
                    *there.entry((term, slot)).or_default() += 1;
                    carriers.came(&carrier.affinity.carried[term], slot);
                }
                Op::Left(term, slot) => if let Some(count @ 1..) = there.get_mut(&(term, slot)) {
                    *count -= 1;
                    carriers.left(&carrier.affinity.carried[term], slot);
                },
                Op::Asked(n) => carriers.prepare(&asking[n], &known),
                Op::Renamed(renamed) => {
                    known = namespaces(renamed);
                    carriers.namespaces_changed();
                }
            }
            for asks in &asking {
                let place = |(carried, slots): (_, &BTreeMap<usize, u32>)| (std::ptr::from_ref(carried), slots.clone());
                let mut found: Vec<_> = carriers.meaning(asks, &known).into_iter().map(place).collect();
                let walk = carriers.all().filter(|(carried, _)| asks.is_meant_by(&carried.term.who, &known));
                let mut walked: Vec<_> = walk.map(place).collect();
                found.sort();
                walked.sort();
                prop_assert_eq!(found, walked);
            }
        }
        let carried: usize = carriers.all().flat_map(|(_, slots)| slots.values()).map(|count| *count as usize).sum();
        prop_assert_eq!(carried, there.values().sum::<usize>());
    }
}

/// Not a test: what the terms of 600 Pods, ten of each, that mean nobody cost a decision about somebody else's Pod, looked up and judged
/// one by one. `cargo test --release --test fast carriers -- --ignored --nocapture`
#[test]
#[ignore = "a benchmark"]
fn what_foreign_terms_cost() {
    const TIMES: u32 = 1_000;
    // As whoever means harm makes them: with what fails at the end, and with nothing that can be looked up.
    let foreign = |ending: Value| {
        move |pod: usize, term: usize| {
            let absent = (0..8).map(|k| json!({ "key": format!("a{term}-{pod}-{k}"), "operator": "DoesNotExist" }));
            let all: Vec<Value> = absent.chain([ending.clone()]).collect();
            json!({ "topologyKey": "zone", "namespaceSelector": {}, "labelSelector": { "matchExpressions": all } })
        }
    };
    for ending in
        [json!({ "key": "z", "operator": "Exists" }), json!({ "key": "app", "operator": "NotIn", "values": ["a"] })]
    {
        let term = foreign(ending.clone());
        let (mut carriers, known) = (Carriers::default(), namespaces(true));
        for n in 0..600 {
            let terms: Vec<Value> = (0..10).map(|t| term(n, t)).collect();
            let carrier = pod("y", json!({}), &terms);
            carrier.affinity.carried.iter().for_each(|carried| carriers.came(carried, n % 6));
        }
        let asks = pod("x", json!({ "app": "a", "tier": "b" }), &[]);
        let measured = |mut work: Box<dyn FnMut() -> usize + '_>| {
            let begun = cpu();
            assert_eq!((0..TIMES).map(|_| work()).sum::<usize>(), 0);
            (cpu() - begun) / TIMES
        };
        let walk = measured(Box::new(|| {
            carriers.all().filter(|(carried, _)| asks.is_meant_by(&carried.term.who, &known)).count()
        }));
        let found = measured(Box::new(|| {
            carriers.prepare(&asks, &known);
            carriers.meaning(&asks, &known).len()
        }));
        println!("{ending}: {walk:?} judged one by one, {found:?} looked up");
    }
}

/// The CPU time of this thread.
fn cpu() -> std::time::Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    std::time::Duration::new(time.tv_sec().unsigned_abs(), u32::try_from(time.tv_nsec()).unwrap())
}
