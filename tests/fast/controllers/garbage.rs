//! The garbage collector's and the namespace controller's decisions.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use podwright::{
    api::request::Verb,
    client::Key,
    controllers::{
        Failure, Plan,
        coordinates::Coordinates,
        garbage::{self, Owner},
        metadata_informers::Item,
        metadata_informers::elsewhere::Elsewhere,
        namespace::{self, Remains},
        write::Guard,
    },
};
use serde_json::{Value, json};

use super::{at, lines, object, starved};

/// What to do with an object, at the beginning of a round.
fn plan(item: &Item, owners: &[Owner], dependents: &[Item], all: Vec<Guard>) -> Plan {
    garbage::plan(item, &named(item), owners, dependents, all, None)
}

/// The coordinates by which `owned_by` names an object.
fn named(item: &Item) -> Coordinates {
    let ObjectMeta { namespace, name, uid, .. } = item.object.metadata.clone();
    let (name, uid) = (name.unwrap_or_default(), uid.unwrap_or_default());
    Coordinates { group: String::new(), kind: "X".into(), namespace, name, uid }
}

fn item(name: &str, extra: Value) -> Item {
    let mut value = json!({ "metadata": { "name": name, "namespace": "a", "uid": name, "resourceVersion": "7" } });
    json_patch::merge(&mut value, &json!({ "metadata": extra }));
    Item { resource: "pods".into(), object: object(value) }
}

fn owned_by(owners: &[&str]) -> Value {
    let reference =
        |uid: &&str| json!({ "apiVersion": "v1", "kind": "X", "name": uid, "uid": uid, "blockOwnerDeletion": true });
    json!({ "ownerReferences": owners.iter().map(reference).collect::<Vec<_>>() })
}

fn deleting(finalizer: &str) -> Value {
    json!({ "deletionTimestamp": at(0).to_string(), "finalizers": [finalizer, "other"] })
}

fn gone(uid: &str) -> Owner {
    Owner::Gone(Guard::Absent { resource: "x".into(), key: Key::new("a", uid), uid: Some(uid.into()) })
}

#[test]
fn an_object_goes_with_its_last_owner() {
    let one = || item("p", owned_by(&["o"]));
    let two = || item("p", owned_by(&["o", "q"]));
    for (why, item, owners, expected) in [
        ("no owners", item("p", json!({})), vec![], None),
        ("its owner lives", one(), vec![Owner::Solid], None),
        ("its owner is gone", one(), vec![gone("o")], Some((Verb::Delete, "Background"))),
        ("both are gone", two(), vec![gone("o"), gone("q")], Some((Verb::Delete, "Background"))),
        ("one of two is gone", two(), vec![gone("o"), Owner::Solid], Some((Verb::Patch, ""))),
        ("its owner waits for it", one(), vec![Owner::Waiting], Some((Verb::Delete, "Background"))),
        ("one waits, one lives", two(), vec![Owner::Waiting, Owner::Solid], Some((Verb::Patch, ""))),
    ] {
        let plan = plan(&item, &owners, &[], vec![]);
        let found = plan.writes().next().map(|write| {
            let policy = write.request.options.propagation_policy.as_deref().unwrap_or("");
            (write.request.verb, policy)
        });
        assert_eq!(found, expected, "{why}");
    }
}

#[test]
fn nothing_is_deleted_for_want_of_an_owner_before_the_server_is_asked() {
    let plan = plan(&item("p", owned_by(&["o"])), &[gone("o")], &[], vec![]);
    let write = plan.writes().next().unwrap();
    let asked = Guard::Absent { resource: "x".into(), key: Key::new("a", "o"), uid: Some("o".into()) };
    assert_eq!(write.guards, [asked]);
    let preconditions = write.request.options.preconditions.as_ref().unwrap();
    assert_eq!((preconditions.uid.as_deref(), preconditions.resource_version.as_deref()), (Some("p"), Some("7")));
}

#[test]
fn what_is_waited_for_waits_for_its_own_dependents() {
    let middle = item("m", owned_by(&["o"]));
    let leaf = item("l", owned_by(&["m"]));
    let plan = plan(&middle, &[Owner::Waiting], &[leaf], vec![]);
    assert_eq!(plan.writes().next().unwrap().request.options.propagation_policy.as_deref(), Some("Foreground"));
}

/// What other servers serve has passed no check of whose deletion it may block.
#[test]
fn what_is_the_clusters_waits_for_nothing_of_other_servers() {
    let owner = item("o", deleting("foregroundDeletion"));
    let mut of_cluster = deleting("foregroundDeletion");
    of_cluster["namespace"] = Value::Null;
    let of_cluster = item("o", of_cluster);
    let here = item("p", owned_by(&["o"]));
    let there = Item { resource: "things.ext.example.com/v1".into(), ..here.clone() };
    let ends = |owner: &Item, dependent: &Item| plan(owner, &[], &[dependent.clone()], vec![]).writes().count() == 1;
    assert!(!ends(&owner, &here) && !ends(&owner, &there), "within a namespace all of them count");
    assert!(!ends(&of_cluster, &here) && ends(&of_cluster, &there));
    let served_there = Item { resource: "others.ext.example.com/v1".into(), ..of_cluster };
    assert!(!ends(&served_there, &there), "what both are its server's is its matter");
}

#[test]
fn a_circle_that_waits_for_itself_is_opened() {
    let policy = |plan: &Plan| plan.writes().next().unwrap().request.options.propagation_policy.clone();
    let mut first = deleting("foregroundDeletion");
    json_patch::merge(&mut first, &owned_by(&["b"]));
    let first = item("a", first);
    let second = plan(&item("b", owned_by(&["a", "c"])), &[Owner::Waiting, gone("c")], &[first.clone()], vec![]);
    assert_eq!(lines(&second), ["patch pods/b"]);
    let body = second.writes().next().unwrap().request.body.clone().unwrap();
    let references = body["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(references.len(), 2);
    assert!(references.iter().all(|reference| reference["blockOwnerDeletion"] == false), "{references:?}");

    let mut lax = owned_by(&["a"]);
    lax["ownerReferences"][0]["blockOwnerDeletion"] = false.into();
    let then = plan(&item("b", lax), &[Owner::Waiting], &[first], vec![]);
    assert_eq!(
        (lines(&then).as_slice(), policy(&then).as_deref()),
        (&["delete pods/b".to_owned()][..], Some("Foreground"))
    );
}

#[test]
fn what_has_lost_its_owner_goes_as_its_own_finalizers_wish() {
    let with = |finalizers: Value| {
        let mut extra = owned_by(&["o"]);
        extra["finalizers"] = finalizers;
        item("p", extra)
    };
    for (finalizers, owner, dependents, expected) in [
        (json!(["other"]), gone("o"), 1, "Background"),
        (json!(["other", "orphan"]), gone("o"), 1, "Orphan"),
        (json!(["foregroundDeletion"]), gone("o"), 1, "Foreground"),
        (json!(["orphan", "foregroundDeletion"]), gone("o"), 1, "Orphan"),
        (json!(["orphan"]), Owner::Waiting, 0, "Orphan"),
        (json!(["orphan"]), Owner::Waiting, 1, "Foreground"),
    ] {
        let hanging = vec![item("l", owned_by(&["p"])); dependents];
        let plan = plan(&with(finalizers.clone()), &[owner.clone()], &hanging, vec![]);
        let policy = plan.writes().next().unwrap().request.options.propagation_policy.clone();
        assert_eq!(policy.as_deref(), Some(expected), "{finalizers} {owner:?}");
    }
}

#[test]
fn a_foreground_deletion_ends_with_the_last_blocking_dependent() {
    let owner = item("o", deleting("foregroundDeletion"));
    assert!(plan(&owner, &[], &[item("p", owned_by(&["o"]))], vec![]).is_empty());
    let mut lax = owned_by(&["o"]);
    lax["ownerReferences"][0]["blockOwnerDeletion"] = false.into();
    let done = plan(&owner, &[], &[item("p", lax)], vec![]);
    assert_eq!(lines(&done), ["patch pods/o"]);
    let body = done.writes().next().unwrap().request.body.clone().unwrap();
    assert_eq!(body["metadata"]["finalizers"], json!(["other"]));
    assert_eq!(body["metadata"]["resourceVersion"], "7");
}

/// Anyone who knows a uid can write it.
#[test]
fn what_names_an_owners_uid_but_not_the_owner_is_nothing_to_it() {
    for (field, other) in [("kind", "Y"), ("apiVersion", "y.io/v1"), ("name", "y")] {
        let forged = || {
            let mut extra = owned_by(&["o"]);
            extra["ownerReferences"][0][field] = other.into();
            item("p", extra)
        };
        for finalizer in ["foregroundDeletion", "orphan"] {
            let done = plan(&item("o", deleting(finalizer)), &[], &[forged()], vec![]);
            assert_eq!(lines(&done), ["patch pods/o"], "{finalizer}, another {field}");
        }
        // Such an owner does not exist. A real one stays, with the same uid or not.
        assert_eq!(lines(&plan(&forged(), &[gone("o")], &[], vec![])), ["delete pods/p"]);
        let mut both = owned_by(&["o", "o"]);
        both["ownerReferences"][0][field] = other.into();
        let left = plan(&item("p", both), &[gone("o"), Owner::Solid], &[], vec![]);
        let body = left.writes().next().unwrap().request.body.clone().unwrap();
        assert_eq!(body["metadata"]["ownerReferences"], owned_by(&["o"])["ownerReferences"], "another {field}");
    }
}

#[test]
fn the_server_is_asked_for_dependents_that_are_not_seen_yet() {
    let owner = item("o", deleting("foregroundDeletion"));
    let plan = plan(&owner, &[], &[], vec![childless(&owner, true)]);
    assert_eq!(lines(&plan), ["patch pods/o"]);
    assert_eq!(plan.writes().next().unwrap().guards, [childless(&owner, true)]);
}

fn childless(owner: &Item, blocking: bool) -> Guard {
    Guard::Childless { owner: Box::new(named(owner)), blocking, resources: vec!["x".into()] }
}

#[test]
fn an_orphaning_deletion_lets_the_dependents_go_first() {
    let owner = item("o", deleting("orphan"));
    let plan = plan(
        &owner,
        &[],
        &[item("p", owned_by(&["o", "q"])), item("r", owned_by(&["o"]))],
        vec![childless(&owner, false)],
    );
    assert_eq!(lines(&plan), ["patch pods/p", "patch pods/r", "patch pods/o"]);
    assert_eq!(starved(&plan, "patch pods/p"), ["patch pods/o"], "the owner only when all have been let go");
    assert_eq!(plan.writes().last().unwrap().guards, [childless(&owner, false)]);
    let first = plan.writes().next().unwrap().request.body.clone().unwrap();
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], "q");
}

/// Each is written with all of its other owners: not all of them at once.
#[test]
fn many_dependents_are_let_go_some_at_a_time() {
    let owner = item("o", deleting("orphan"));
    for (owners, at_a_time) in [(1, 500), (1000, 16)] {
        let names: Vec<String> = (1..owners).map(|n| format!("q{n}")).collect();
        let of: Vec<&str> = std::iter::once("o").chain(names.iter().map(String::as_str)).collect();
        let mut left: Vec<_> = (0..2 * at_a_time + 8).map(|n| item(&format!("p{n:04}"), owned_by(&of))).rev().collect();
        let (mut left_off, mut passes) = (None, 0);
        while left.len() > at_a_time {
            let plan = garbage::plan(&owner, &named(&owner), &[], &left, vec![], left_off.as_ref());
            assert_eq!((plan.writes().count(), plan.requeue_after), (at_a_time, None));
            (left_off, passes) = (plan.left_off, passes + 1);
            left.truncate(left.len() - at_a_time);
        }
        assert_eq!((left.len(), passes), (8, 2));
        let last = garbage::plan(&owner, &named(&owner), &[], &left, vec![], left_off.as_ref());
        assert_eq!(lines(&last).last().map(String::as_str), Some("patch pods/o"));
        assert!(last.left_off.is_none());
    }
}

/// More than a whole batch of writes may be refused for ever.
#[test]
fn who_is_not_let_go_keeps_nobody_else() {
    let owner = item("o", deleting("orphan"));
    let mut left: Vec<_> = (0..1700).map(|n| item(&format!("p{n:04}"), owned_by(&["o"]))).collect();
    let stays = |name: &str| name[1..].parse::<u32>().is_ok_and(|n| n < 600);
    let (mut left_off, mut plans) = (None, 0);
    let last = loop {
        let plan = garbage::plan(&owner, &named(&owner), &[], &left, vec![], left_off.as_ref());
        let tried: Vec<String> = plan.writes().map(|write| write.request.name.clone().unwrap()).collect();
        left.retain(|dependent| {
            let name = dependent.object.metadata.name.clone().unwrap();
            stays(&name) || !tried.contains(&name)
        });
        plans += 1;
        match plan.left_off {
            Some(item) => left_off = Some(item),
            None => break plan,
        }
    };
    assert_eq!((plans, left.len()), (4, 600), "one round");
    assert_eq!(last.requeue_after, Some(std::time::Duration::ZERO), "those that stay are tried again");
    let again = plan(&owner, &[], &left, vec![]);
    assert_eq!(again.writes().next().unwrap().request.name.as_deref(), Some("p0000"));
}

#[test]
fn what_is_being_deleted_already_is_left_alone() {
    let mut extra = owned_by(&["o"]);
    extra["deletionTimestamp"] = at(0).to_string().into();
    assert!(plan(&item("p", extra), &[gone("o")], &[], vec![]).is_empty());
}

/// A namespace being deleted.
fn ending() -> std::sync::Arc<Namespace> {
    object(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "a", "uid": "a", "deletionTimestamp": at(0).to_string() },
        "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Terminating" },
    }))
}

fn left(resource: &str, count: usize, untouched: usize, finalizers: &[(&str, usize)]) -> Remains {
    let finalizers = finalizers.iter().map(|(name, n)| (name.to_string(), *n)).collect::<BTreeMap<_, _>>();
    Remains { resource: resource.into(), count, untouched, finalizers }
}

/// The conditions that a plan writes.
fn told(plan: &Plan) -> Vec<String> {
    let status = plan.report.as_ref().unwrap().request.body.clone().unwrap();
    let all = status["status"]["conditions"].as_array().unwrap();
    all.iter().filter_map(|c| c["message"].as_str()).map(str::to_owned).collect()
}

#[test]
fn a_namespace_is_emptied_then_let_go() {
    let ns = ending();
    let contents =
        vec![left("x.example.com", 2, 1, &[("a/b", 1)]), left("secrets", 1, 0, &[]), left("pods", 0, 0, &[])];
    let full = namespace::plan(&ns, contents, &Elsewhere::default(), &[], vec![], &[], at(0));
    assert_eq!(lines(&full), ["patch namespaces/a/status", "deletecollection x.example.com/"]);
    let remaining =
        "Some resources are remaining: secrets. has 1 resource instances, x.example.com has 2 resource instances";
    assert!(told(&full).iter().any(|message| message == remaining), "{:?}", told(&full));
    let held = "Some content in the namespace has finalizers remaining: a/b in 1 resource instances";
    assert!(told(&full).iter().any(|message| message == held), "{:?}", told(&full));

    let defined = Guard::Defined { resources: vec!["x".into()] };
    let empty = namespace::plan(
        &ns,
        vec![left("pods", 0, 0, &[])],
        &Elsewhere::default(),
        &[],
        vec![defined.clone()],
        &[],
        at(0),
    );
    assert_eq!(lines(&empty), ["deletecollection events/", "update namespaces/a/finalize"]);
    let write = empty.writes().last().unwrap();
    assert_eq!(write.request.body.as_ref().unwrap()["spec"]["finalizers"], json!([]));
    let guard = Guard::Empty { namespace: "a".into(), resources: vec!["pods".into(), "events".into()] };
    assert_eq!(write.guards, [defined, guard], "the server is asked whether it is really empty");
}

#[test]
fn all_else_in_a_namespace_stays_until_its_pods_are_gone() {
    let ns = ending();
    let others = || vec![left("networkpolicies.networking.k8s.io", 1, 1, &[]), left("secrets", 1, 1, &[("a/c", 1)])];
    for (untouched, expected) in
        [(2, &["patch namespaces/a/status", "deletecollection pods/"][..]), (0, &["patch namespaces/a/status"])]
    {
        let contents = [others(), vec![left("pods", 3, untouched, &[("a/b", 1)])]].concat();
        let plan = namespace::plan(&ns, contents, &Elsewhere::default(), &[], vec![], &[], at(0));
        assert_eq!(lines(&plan), expected, "{untouched} not being deleted yet");
        let told = told(&plan);
        assert_eq!(told[3], "Some resources are remaining: pods. has 3 resource instances");
        assert_eq!(told[4], "Some content in the namespace has finalizers remaining: a/b in 1 resource instances");
    }
    let plan = namespace::plan(
        &ns,
        [others(), vec![left("pods", 0, 0, &[])]].concat(),
        &Elsewhere::default(),
        &[],
        vec![],
        &[],
        at(0),
    );
    assert_eq!(lines(&plan)[1..], ["deletecollection networkpolicies.networking.k8s.io/", "deletecollection secrets/"]);
    let unseen = Guard::Empty { namespace: "a".into(), resources: vec!["pods".into()] };
    for write in plan.writes().filter(|write| write.request.verb == Verb::DeleteCollection) {
        assert_eq!(write.guards, std::slice::from_ref(&unseen), "a Pod may not be seen yet");
    }
}

#[test]
fn what_cannot_be_deleted_of_a_namespace_is_told() {
    let ns = ending();
    let refused = |message: &str| Failure { reason: "ContentDeletionFailed", message: message.into() };
    let failures = [refused("widgets.example.com \"w\" is forbidden"), refused("a webhook is away")];
    let message =
        "Failed to delete all resource types, 2 remaining: a webhook is away, widgets.example.com \"w\" is forbidden";
    let left = vec![left("widgets.example.com", 1, 1, &[])];
    for (contents, events) in [(left, "deletecollection widgets.example.com/"), (vec![], "deletecollection events/")] {
        let plan = namespace::plan(&ns, contents, &Elsewhere::default(), &[], vec![], &failures, at(0));
        assert_eq!(lines(&plan)[..2], ["patch namespaces/a/status", events]);
        assert_eq!(told(&plan)[2], message);
        for write in plan.writes().filter(|write| write.request.verb == Verb::DeleteCollection) {
            assert_eq!(write.reported, Some("ContentDeletionFailed"));
        }
    }
    let long = [refused(&"é".repeat(1 << 20))];
    let plan = namespace::plan(&ns, vec![], &Elsewhere::default(), &[], vec![], &long, at(0));
    assert!(told(&plan)[2].len() <= 32 * 1024);
}

/// Whoever makes its objects decides how many finalizers and kinds there are.
#[test]
fn what_is_told_of_a_namespace_is_cut() {
    let names: Vec<String> = (0..10_000).map(|n| format!("example.com/f{n}")).collect();
    let held: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let kinds = (0..10_000).map(|n| left(&format!("kind-{n}.example.com"), 1, 1, &[]));
    let contents = [vec![left("secrets", 1, 0, &held)], kinds.collect()].concat();
    let full = (0..10_000).map(|n| format!("things-{n}.ext.example.com/v1")).collect();
    let others = Elsewhere { full, ..Elsewhere::default() };
    let told = told(&namespace::plan(&ending(), contents, &others, &[], vec![], &[], at(0)));
    for (at, begins) in [(0, "Discovery failed"), (3, "Some resources are remaining"), (4, "Some content in the")] {
        let (length, is_it) = (told[at].len(), told[at].starts_with(begins));
        assert!(is_it && (30 * 1024..=32 * 1024).contains(&length), "{length}: {}", &told[at][..80]);
    }
}

/// An informer whose room others have taken shows what was there once, or nothing.
#[test]
fn what_is_not_followed_as_it_is_is_deleted_unseen_and_told_of() {
    let others = Elsewhere { full: vec!["things.ext.example.com/v1".into()], ..Elsewhere::default() };
    let plan = namespace::plan(&ending(), vec![left("pods", 0, 0, &[])], &others, &[], vec![], &[], at(0));
    let expected = [
        "patch namespaces/a/status",
        "deletecollection events/",
        "deletecollection things.ext.example.com/v1/",
        "update namespaces/a/finalize",
    ];
    assert_eq!(lines(&plan), expected);
    assert!(told(&plan)[0].ends_with("things.ext.example.com/v1: there is more of it than is followed"), "{plan:?}");
    let last = plan.writes().last().unwrap();
    let resources = ["pods", "events", "things.ext.example.com/v1"].map(str::to_owned).to_vec();
    assert_eq!(last.guards, [Guard::Empty { namespace: "a".into(), resources }], "the server is asked instead");
    assert_eq!(last.reported, Some("ContentDeletionFailed"), "and why it cannot say is told");
    assert!(plan.requeue_after.is_some(), "nobody tells when the last of it has gone");
}

/// Nobody follows it, so nobody would know what a namespace waits for.
#[test]
fn what_is_not_watched_and_stays_is_told_of() {
    let others = Elsewhere { unwatched: vec!["blind.ext.example.com/v1".into()], ..Elsewhere::default() };
    let plan = |remains: Remains, now: i64| {
        namespace::plan(&ending(), vec![left("pods", 0, 0, &[])], &others, &[remains], vec![], &[], at(now))
    };
    let here = |count, untouched, held: &[_]| left("blind.ext.example.com/v1", count, untouched, held);
    for (remains, now, is_told) in [
        (here(0, 0, &[]), 100, false),
        // It is deleted just now.
        (here(2, 2, &[]), 0, false),
        (here(2, 1, &[("a/b", 1)]), 0, true),
        // Not all servers say what is being deleted.
        (here(2, 2, &[("a/b", 1)]), 100, true),
    ] {
        let plan = plan(remains.clone(), now);
        assert_eq!(plan.report.is_some(), is_told, "{remains:?} at {now}");
        assert!(lines(&plan).contains(&"deletecollection blind.ext.example.com/v1/".to_owned()), "{plan:?}");
        if is_told {
            let told = told(&plan);
            assert_eq!(told[3], "Some resources are remaining: blind.ext.example.com has 2 resource instances");
            assert_eq!(told[4], "Some content in the namespace has finalizers remaining: a/b in 1 resource instances");
        }
    }
}

/// What an object of another namespace says of its owner is not the owner's business.
#[test]
fn a_deletion_waits_for_nobody_in_another_namespace() {
    let child = |namespace: Option<&str>| {
        let mut item = item("d", owned_by(&["o"]));
        std::sync::Arc::make_mut(&mut item.object).metadata.namespace = namespace.map(str::to_owned);
        item
    };
    for finalizer in ["foregroundDeletion", "orphan"] {
        let owner = item("o", deleting(finalizer));
        let writes = |namespace| plan(&owner, &[], &[child(namespace)], vec![]).writes().count();
        let (near, far, cluster) = (writes(Some("a")), writes(Some("b")), writes(None));
        let expected = if finalizer == "orphan" { (2, 1, 1) } else { (0, 1, 1) };
        assert_eq!((near, far, cluster), expected, "{finalizer}");
    }
    let mut owner = item("o", deleting("foregroundDeletion"));
    std::sync::Arc::make_mut(&mut owner.object).metadata.namespace = None;
    assert_eq!(
        plan(&owner, &[], &[child(Some("b"))], vec![]).writes().count(),
        0,
        "one of the cluster owns everywhere"
    );
}
