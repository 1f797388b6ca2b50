//! InterPodAffinity: where Pods may go because of other Pods, and where they would rather be.

use k8s_openapi::api::core::v1::Namespace;
use podwright::scheduler::{cluster::Cluster, profile::Profile};
use serde_json::{Value, json};

use super::{cluster, labelled, node, points, scoring, verdicts, zoned};

const NEAR: &str = "node(s) didn't match pod affinity rules";
const FAR: &str = "node(s) didn't match pod anti-affinity rules";
const UNWELCOME: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// n1 and n2 are in zone a, n3 is in b, n4 in none.
fn zones() -> Cluster {
    cluster([zoned("n1", "a"), zoned("n2", "a"), zoned("n3", "b"), node("n4", json!({}))])
}

fn term(app: &str) -> Value {
    json!({ "labelSelector": { "matchLabels": { "app": app } }, "topologyKey": "zone" })
}

fn required(kind: &str, terms: Value) -> Value {
    json!({ "spec": { "affinity": { kind: { "requiredDuringSchedulingIgnoredDuringExecution": terms } } } })
}

fn preferred(kind: &str, weight: i32, term: Value) -> Value {
    let terms = json!([{ "weight": weight, "podAffinityTerm": term }]);
    json!({ "spec": { "affinity": { kind: { "preferredDuringSchedulingIgnoredDuringExecution": terms } } } })
}

fn merged(mut term: Value, more: Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        term[key] = value.clone();
    }
    term
}

/// What is said when on n1 there is a Pod of the app `web`, with `there` merged in, and another one with `here` comes.
fn with(there: Value, labels: Value, here: Value) -> Vec<String> {
    let mut cluster = zones();
    cluster.set_namespace("default", None);
    let namespace: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": "other", "labels": { "team": "x" } } })).expect("one");
    assert!(cluster.set_namespace("other", Some(&namespace)));
    cluster.set_pod(labelled("there", json!({ "app": "web", "tier": "1" }), there), "n1");
    verdicts(&labelled("here", labels, here), &mut cluster, &Profile::default())
}

fn told(n1: &str, n2: &str, n3: &str, n4: &str) -> Vec<String> {
    let one = |(name, why): (&str, &str)| if why.is_empty() { name.to_owned() } else { format!("{name}: {why}") };
    [("n1", n1), ("n2", n2), ("n3", n3), ("n4", n4)].map(one).into()
}

#[test]
fn where_pods_may_go_because_of_others() {
    let none = || json!({});
    let elsewhere = || json!({ "metadata": { "namespace": "other" } });
    let all = || told("", "", "", "");
    let near = |term: Value| required("podAffinity", json!([term]));
    let far = |term: Value| required("podAntiAffinity", json!([term]));
    let in_zone_a = || told("", "", NEAR, NEAR);
    let nowhere = || told(NEAR, NEAR, NEAR, NEAR);
    let out_of_zone_a = || told(FAR, FAR, "", "");
    let unwelcome = || told(UNWELCOME, UNWELCOME, "", "");
    let spaces = |list: Value| merged(term("web"), json!({ "namespaces": list }));
    let by_label = |selector: Value| merged(term("web"), json!({ "namespaceSelector": selector }));
    let web = || json!({ "app": "web" });
    let table: Vec<(&str, Value, Value, Value, Vec<String>)> = vec![
        ("no affinity", none(), none(), none(), all()),
        ("near", none(), none(), near(term("web")), in_zone_a()),
        ("near nobody", none(), none(), near(term("db")), nowhere()),
        ("near its own kind, the first one", none(), json!({ "app": "db" }), near(term("db")), told("", "", "", NEAR)),
        ("near its own kind, where one is", none(), web(), near(term("web")), in_zone_a()),
        (
            "near two kinds of which one is missing",
            none(),
            none(),
            required("podAffinity", json!([term("web"), term("db")])),
            nowhere(),
        ),
        (
            "near what both terms mean",
            none(),
            none(),
            required(
                "podAffinity",
                json!([term("web"), { "labelSelector": { "matchLabels": { "tier": "1" } }, "topologyKey": "zone" }]),
            ),
            in_zone_a(),
        ),
        (
            "near on the very node",
            none(),
            none(),
            near(merged(term("web"), json!({ "topologyKey": "kubernetes.io/hostname" }))),
            told("", NEAR, NEAR, NEAR),
        ),
        ("far", none(), none(), far(term("web")), out_of_zone_a()),
        ("far from nobody", none(), none(), far(term("db")), all()),
        (
            "far from one of two",
            none(),
            none(),
            required("podAntiAffinity", json!([term("db"), term("web")])),
            out_of_zone_a(),
        ),
        ("near, in another namespace", elsewhere(), none(), near(term("web")), nowhere()),
        ("far, in another namespace", elsewhere(), none(), far(term("web")), all()),
        ("in a named namespace", elsewhere(), none(), far(spaces(json!(["other"]))), out_of_zone_a()),
        (
            "in a namespace by its labels",
            elsewhere(),
            none(),
            far(by_label(json!({ "matchLabels": { "team": "x" } }))),
            out_of_zone_a(),
        ),
        (
            "in a namespace of other labels",
            elsewhere(),
            none(),
            far(by_label(json!({ "matchLabels": { "team": "y" } }))),
            all(),
        ),
        ("in all namespaces", elsewhere(), none(), far(by_label(json!({}))), out_of_zone_a()),
        (
            "an empty selector means everybody",
            none(),
            none(),
            far(json!({ "labelSelector": {}, "topologyKey": "zone" })),
            out_of_zone_a(),
        ),
        ("no selector means nobody", none(), none(), far(json!({ "topologyKey": "zone" })), all()),
        (
            "of its own version",
            none(),
            json!({ "tier": "2" }),
            far(merged(term("web"), json!({ "matchLabelKeys": ["tier"] }))),
            all(),
        ),
        (
            "of its own version, which is there",
            none(),
            json!({ "tier": "1" }),
            far(merged(term("web"), json!({ "matchLabelKeys": ["tier", "unknown"] }))),
            out_of_zone_a(),
        ),
        (
            "of other versions alone",
            none(),
            json!({ "tier": "1" }),
            far(merged(term("web"), json!({ "mismatchLabelKeys": ["tier"] }))),
            all(),
        ),
        (
            "of other versions, one of which is there",
            none(),
            json!({ "tier": "2" }),
            far(merged(term("web"), json!({ "mismatchLabelKeys": ["tier"] }))),
            out_of_zone_a(),
        ),
        ("unwelcome", far(term("db")), json!({ "app": "db" }), none(), unwelcome()),
        ("others are unwelcome", far(term("db")), web(), none(), all()),
        (
            "unwelcome from another namespace",
            merged(far(merged(term("db"), json!({ "namespaceSelector": {} }))), elsewhere()),
            json!({ "app": "db" }),
            none(),
            unwelcome(),
        ),
        ("its affinity is not theirs", near(term("db")), json!({ "app": "db" }), none(), all()),
    ];
    for (what, there, labels, here, expected) in table {
        assert_eq!(with(there, labels, here), expected, "{what}");
    }
}

#[test]
fn what_was_against_a_node_ends_with_the_pod() {
    let mut cluster = zones();
    let far = required("podAntiAffinity", json!([term("web")]));
    let there = labelled("there", json!({ "app": "web" }), far.clone());
    let profile = Profile::default();
    let here = labelled("here", json!({ "app": "web" }), far);
    cluster.set_pod(there.clone(), "n3");
    assert_eq!(verdicts(&here, &mut cluster, &profile), told("", "", FAR, ""));
    cluster.remove_pod(&there.uid);
    assert_eq!(verdicts(&here, &mut cluster, &profile), told("", "", "", ""));
    // A Pod that is there before its node is known, and after it is gone, is nowhere.
    cluster.remove_node("n3");
    cluster.set_pod(there, "n3");
    assert_eq!(verdicts(&here, &mut cluster, &profile), ["n1", "n2", "n4"]);
    cluster.set_node(zoned("n3", "a"));
    assert_eq!(verdicts(&here, &mut cluster, &profile), told(FAR, FAR, FAR, ""));
    cluster.set_node(zoned("n3", "b"));
    assert_eq!(verdicts(&here, &mut cluster, &profile), told("", "", FAR, ""));
}

#[test]
fn where_pods_would_rather_be() {
    let weights = |there: Value, labels: Value, here: Value, args: Value| {
        let mut cluster = zones();
        cluster.set_pod(labelled("there", json!({ "app": "web" }), there), "n1");
        let here = labelled("here", labels, here);
        let points = points(&here, &mut cluster, &scoring("InterPodAffinity", args));
        points.into_iter().map(|(_, points)| points).collect::<Vec<_>>()
    };
    let none = || json!({});
    let db = || json!({ "app": "db" });
    let likes = || preferred("podAffinity", 10, term("web"));
    assert_eq!(weights(none(), none(), none(), none()), [0, 0, 0, 0]);
    assert_eq!(weights(none(), none(), likes(), none()), [100, 100, 0, 0]);
    assert_eq!(weights(none(), none(), preferred("podAntiAffinity", 10, term("web")), none()), [0, 0, 100, 100]);
    assert_eq!(weights(none(), none(), preferred("podAffinity", 10, term("db")), none()), [0, 0, 0, 0]);
    // What those that are there like.
    assert_eq!(weights(preferred("podAffinity", 10, term("db")), db(), none(), none()), [100, 100, 0, 0]);
    assert_eq!(weights(preferred("podAntiAffinity", 10, term("db")), db(), none(), none()), [0, 0, 100, 100]);
    assert_eq!(weights(required("podAffinity", json!([term("db")])), db(), none(), none()), [100, 100, 0, 0]);
    let ignoring = || json!({ "ignorePreferredTermsOfExistingPods": true });
    assert_eq!(weights(preferred("podAffinity", 10, term("db")), db(), none(), ignoring()), [0, 0, 0, 0]);
    let not_hard = json!({ "hardPodAffinityWeight": 0 });
    assert_eq!(weights(required("podAffinity", json!([term("db")])), db(), none(), not_hard), [0, 0, 0, 0]);
    // Weights are summed: 10 against 40, for two Pods 20 against 40.
    let here = json!({ "spec": { "affinity": {
        "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 10, "podAffinityTerm": term("web") },
            { "weight": 40, "podAffinityTerm": term("db") },
        ] },
    } } });
    let mut cluster = zones();
    cluster.set_pod(labelled("a", json!({ "app": "web" }), none()), "n1");
    cluster.set_pod(labelled("b", db(), none()), "n3");
    let here = labelled("here", none(), here);
    let profile = scoring("InterPodAffinity", none());
    let n = |name: &str, points| (name.to_owned(), points);
    assert_eq!(points(&here, &mut cluster, &profile), [n("n1", 25), n("n2", 25), n("n3", 100), n("n4", 0)]);
    cluster.set_pod(labelled("c", json!({ "app": "web" }), none()), "n2");
    assert_eq!(points(&here, &mut cluster, &profile), [n("n1", 50), n("n2", 50), n("n3", 100), n("n4", 0)]);
}

/// Any node makes one, in any namespace, with any labels.
#[test]
fn a_mirror_pod_neither_draws_nor_repels() {
    let none = || json!({});
    let mirror = |mut there: Value| {
        there["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "x" });
        there
    };
    let (near, far) =
        (required("podAffinity", json!([term("web")])), required("podAntiAffinity", json!([term("web")])));
    assert_eq!(with(none(), none(), near.clone()), told("", "", NEAR, NEAR));
    assert_eq!(with(mirror(none()), none(), near), told(NEAR, NEAR, NEAR, NEAR));
    let web = || json!({ "app": "web" });
    assert_eq!(with(far.clone(), web(), none()), told(UNWELCOME, UNWELCOME, "", ""));
    assert_eq!(with(mirror(far), web(), none()), told("", "", "", ""));
}
