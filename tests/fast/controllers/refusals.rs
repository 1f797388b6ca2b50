//! One write fails for ever: everything that does not depend on it is done, and what is reported about it is right.

use std::collections::BTreeSet;

use podwright::{
    api::Verb,
    client::Key,
    controllers::{Plan, Work, write::Write},
};
use serde_json::{Value, json};

use super::{begun, daemon_set, deployment, merge, sets::SmallWorld, stateful_set};

/// A write identified by name.
fn write(name: &str) -> Work {
    Write::patch("pods".into(), &Key::new("a", name), json!({})).into()
}

fn writes(names: &str) -> Vec<Work> {
    names.split(' ').map(write).collect()
}

/// The names of the writes begun while those in `refused` fail.
fn tried(work: &Work, refused: &str) -> String {
    let plan = Plan { work: work.clone(), ..Plan::default() };
    let names = begun(plan, &|write| {
        let name = write.request.name.clone().unwrap();
        (name.clone(), !refused.split(' ').any(|refused| refused == name))
    });
    names.join(" ")
}

#[test]
fn a_refusal_stops_what_comes_after_it_and_nothing_else() {
    let chain = write("a").then(vec_of("b c")).then(write("d"));
    let work = chain.beside(write("e").then(write("f"))).beside(write("g"));
    for (refused, expected) in [
        ("", "a b c d e f g"),
        ("a", "a e f g"),
        ("b", "a b c e f g"),
        ("d e", "a b c d e g"),
        ("g", "a b c d e f g"),
        ("a e g", "a e g"),
    ] {
        assert_eq!(tried(&work, refused), expected, "without {refused:?}");
    }
}

fn vec_of(names: &str) -> Work {
    Work::Beside(writes(names))
}

#[test]
fn nothing_is_no_link_of_a_chain() {
    assert!(Work::default().then(Work::default()).beside(None).is_empty());
    assert_eq!(tried(&Work::default().then(write("a")).then(None).then(Vec::new()).then(write("b")), ""), "a b");
}

#[test]
fn a_slow_start_meets_a_quota_with_few_requests_and_one_refusal_with_all() {
    let work = Work::SlowStart(writes("a b c d e f g h"));
    for (refused, expected) in [
        ("", "a b c d e f g h"),
        // Nothing at all is allowed.
        ("a b c d e f g h", "a b"),
        // Three are.
        ("d e f g h", "a b c d e f g h"),
        ("b c d e f g h", "a b c d"),
        // One of them never is.
        ("a", "a b c d e f g h"),
        ("c", "a b c d e f g h"),
        ("h", "a b c d e f g h"),
    ] {
        assert_eq!(tried(&work, refused), expected, "without {refused:?}");
    }
    let pairs = Work::SlowStart(vec![write("a").then(write("b")), write("c").then(write("d")), write("e")]);
    assert_eq!(tried(&pairs, "a"), "a c d e");
}

/// What a world does when one write fails for ever, or none.
fn all_done<W: SmallWorld + Send>(mut world: W, refused: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut idle = 0;
    for _ in 0..100 {
        let begun = world.step_refusing(&|label| label == refused);
        let done: Vec<String> = begun.into_iter().filter(|label| label != refused).collect();
        idle = if done.is_empty() { idle + 1 } else { 0 };
        if idle == 3 {
            return all;
        }
        all.extend(done);
        world.settle();
    }
    panic!("no rest without {refused:?}: {all:?}");
}

/// Fails each write that `make` leads to; `needed` lists the writes that then never happen.
fn refuse_each<W: SmallWorld + Send>(make: impl Fn() -> W, needed: &[(&str, &[&str])]) {
    let everything = all_done(make(), "");
    for (refused, _) in needed {
        assert!(everything.contains(*refused), "{refused:?} is none of {everything:#?}");
    }
    for refused in &everything {
        let done = all_done(make(), refused);
        let lost: Vec<&str> =
            everything.iter().filter(|one| *one != refused && !done.contains(*one)).map(String::as_str).collect();
        let expected = needed.iter().find(|(one, _)| one == refused).map(|(_, lost)| *lost).unwrap_or_default();
        assert_eq!(lost, expected, "without {refused:?}");
    }
}

#[test]
fn a_parallel_stateful_set_loses_no_more_than_one_pod() {
    let new = || {
        let mut world = stateful_set::World::new(stateful_set::with_claims(json!({
            "podManagementPolicy": "Parallel", "replicas": 5,
        })));
        world.know_revision();
        world
    };
    refuse_each(
        new,
        &[
            ("create claim data-web-0", &["create web-0"]),
            ("create claim data-web-1", &["create web-1"]),
            ("create claim data-web-2", &["create web-2"]),
            ("create claim data-web-3", &["create web-3"]),
            ("create claim data-web-4", &["create web-4"]),
        ],
    );
}

#[test]
fn a_parallel_stateful_set_is_mended_scaled_and_updated_beside_a_refused_claim() {
    let spec = json!({ "podManagementPolicy": "Parallel", "replicas": 4 });
    let mut world = stateful_set::World::ready(stateful_set::with_claims(spec));
    world.change(json!({ "replicas": 6 }));
    world.set_phase("web-1", "Failed");
    world.set_image("v2");
    let refused = |label: &str| label == "create claim data-web-4" || label == "create claim data-web-5";
    let mut all = BTreeSet::new();
    for _ in 0..20 {
        all.extend(world.step_refusing(&refused));
        world.settle();
    }
    assert_eq!(world.images(), "web-0=v1 web-1=v2 web-2=v1 web-3=v1", "an update goes on when nobody is missing");
    assert!(all.contains("patch statefulsets.apps/web/status"), "{all:?}");
}

#[test]
fn a_stateful_set_in_order_waits_for_what_is_refused() {
    let new = || {
        let mut world = stateful_set::World::new(stateful_set::with_claims(json!({ "replicas": 2 })));
        world.know_revision();
        world
    };
    let after_0: &[&str] = &["create claim data-web-1", "create web-0", "create web-1"];
    refuse_each(
        new,
        &[
            ("create claim data-web-0", after_0),
            ("create claim data-web-1", &["create web-1"]),
            ("create web-0", &["create claim data-web-1", "create web-1"]),
        ],
    );
}

#[test]
fn a_daemon_set_reaches_all_other_nodes() {
    // The Pods of n1 and n2 are to be deleted, those of n5 and n6 created.
    let world = || {
        let mut world = daemon_set::World::ready(daemon_set::set(json!({})), 4);
        for node in 0..2 {
            let taint: Value = json!({ "spec": { "taints": [{ "key": "x", "effect": "NoExecute" }] } });
            merge(&mut world.nodes[node], &taint);
        }
        world.nodes.extend(["n5", "n6"].map(|name| daemon_set::node(name, json!({}))));
        world
    };
    let expected = ["+n5", "+n6", "-n1", "-n2", "patch daemonsets.apps/logs/status"];
    assert_eq!(all_done(world(), ""), expected.map(str::to_owned).into());
    refuse_each(world, &[]);
}

#[test]
fn a_refused_replica_set_is_told_of() {
    let mut world = deployment::World::new(deployment::deployment("a", 2, "25%", "25%"));
    world.reach_rest();
    world.set_image("b");
    let refuse = |write: &Write| write.request.verb == Verb::Create;
    for _ in 0..3 {
        world.step_refusing(&refuse);
    }
    let (status, reason, message) = world.condition("Progressing");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ReplicaSetCreateError"));
    assert!(message.starts_with("Failed to create new replica set \"web-"), "{message}");
    assert!(message.ends_with(": exceeded quota"), "{message}");
    assert_eq!(world.deployment.status.as_ref().unwrap().observed_generation, world.deployment.metadata.generation);
    let annotations = world.deployment.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "1", "there is no second one yet");
    let told = world.deployment.clone();
    world.step_refusing(&refuse);
    assert_eq!(world.deployment, told, "the same is told once");
    // When the write succeeds at last, all is well.
    world.step();
    world.step();
    assert_eq!(world.condition("Progressing").1, "FoundNewReplicaSet");
    world.reach_rest();
    assert_eq!(world.condition("Progressing").1, "NewReplicaSetAvailable");
}

#[test]
fn a_deployment_tells_how_it_is_whatever_is_refused() {
    let mut world = deployment::World::new(deployment::deployment("a", 4, "25%", "25%"));
    world.reach_rest();
    world.change(json!({ "spec": { "replicas": 6 } }));
    world.step_refusing(&|write| write.request.resource == "replicasets.apps");
    assert_eq!(world.deployment.status.as_ref().unwrap().observed_generation, Some(2));
    world.step_refusing(&|write| write.request.name.as_deref() == Some("web") && write.request.subresource.is_none());
    assert_eq!(world.sets[0].spec.as_ref().unwrap().replicas, Some(6));
}
