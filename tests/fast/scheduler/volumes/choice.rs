//! Which nodes claims leave a Pod, and what is promised to it on one: pure.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use podwright::{
    api::{Env, patch},
    scheduler::{
        cluster::Cluster,
        decide::{Decision, decide},
        framework::Nomination,
        pod::PodInfo,
        profile::Profile,
    },
};
use serde_json::{Value, json};

use super::{super::verdicts, bound, class, pod, put, pv, pvc, user, world};

const AFFINITY: &str = "node(s) had volume node affinity conflict";
const NONE_FREE: &str = "node(s) didn't find available persistent volumes to bind";
const ZONE: &str = "node(s) had no available volume zone";

#[test]
fn nodes_that_claims_leave_to_a_pod() {
    let zoned =
        |key: &str, zone: &str| json!({ "metadata": { "labels": { key: zone } }, "spec": { "nodeAffinity": null } });
    let big = || json!({ "spec": { "resources": { "requests": { "storage": "9Gi" } } } });
    let small = |on: &str| pv("small", on, json!({ "spec": { "capacity": { "storage": "5Gi" } } }));
    let selected = |on: &str| json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": on } } });
    let reserved = json!({ "spec": { "claimRef": { "namespace": "default", "name": "c" } } });
    let makes = || class("local", "example.com/disk", "WaitForFirstConsumer");
    let only_b = || {
        let terms = json!([{ "matchLabelExpressions": [{ "key": "topology.kubernetes.io/zone", "values": ["b"] }] }]);
        patch::merge(&makes(), &json!({ "allowedTopologies": terms }))
    };
    let all = |why: &str| vec![("n1", why.to_owned()), ("n2", why.to_owned()), ("n3", why.to_owned())];
    let but = |free: &[&str], why: &str| {
        let mut all = all(why);
        all.iter_mut().filter(|(node, _)| free.contains(node)).for_each(|(_, why)| why.clear());
        all
    };
    let table: Vec<(&str, Vec<Value>, &[&str], Vec<(&str, String)>)> = vec![
        ("no claims", vec![], &[], all("")),
        ("where its volume is", vec![pvc("c", bound("v")), pv("v", "n2", json!({}))], &["c"], but(&["n2"], AFFINITY)),
        (
            "anywhere",
            vec![pvc("c", bound("v")), pv("v", "", json!({ "spec": { "nodeAffinity": null } }))],
            &["c"],
            all(""),
        ),
        (
            "two volumes at two places",
            vec![pvc("c", bound("v")), pv("v", "n2", json!({})), pvc("d", bound("w")), pv("w", "n1", json!({}))],
            &["c", "d"],
            all(AFFINITY),
        ),
        (
            "where a free volume is",
            vec![pvc("c", json!({})), pv("v", "n2", json!({}))],
            &["c"],
            but(&["n2"], NONE_FREE),
        ),
        ("none is large enough", vec![pvc("c", big()), small("n2")], &["c"], all(NONE_FREE)),
        (
            "one volume for two claims",
            vec![pvc("c", json!({})), pvc("d", json!({})), pv("v", "n2", json!({})), pv("w", "n1", json!({}))],
            &["c", "d"],
            all(NONE_FREE),
        ),
        (
            "one claim by two names",
            vec![pvc("c", json!({})), pv("v", "n2", json!({}))],
            &["c", "c"],
            but(&["n2"], NONE_FREE),
        ),
        (
            "the larger claim gets the larger one",
            vec![pvc("a", big()), pvc("b", json!({})), pv("v", "n1", json!({})), small("n1")],
            &["a", "b"],
            but(&["n1"], NONE_FREE),
        ),
        (
            "one is reserved for it",
            vec![pvc("c", json!({})), pv("v", "n1", json!({})), pv("w", "n3", reserved.clone())],
            &["c"],
            but(&["n3"], NONE_FREE),
        ),
        (
            "not another's",
            vec![
                pvc("c", json!({})),
                pv("v", "n1", json!({ "spec": { "claimRef": { "namespace": "default", "name": "x", "uid": "u" } } })),
            ],
            &["c"],
            all(NONE_FREE),
        ),
        ("made where it is needed", vec![makes(), pvc("c", json!({}))], &["c"], all("")),
        ("made in a part of the cluster", vec![only_b(), pvc("c", json!({}))], &["c"], but(&["n2"], NONE_FREE)),
        ("being made for a node", vec![makes(), pvc("c", selected("n3"))], &["c"], but(&["n3"], NONE_FREE)),
        (
            "the zone of its volume",
            vec![pvc("c", bound("v")), pv("v", "", zoned("topology.kubernetes.io/zone", "a"))],
            &["c"],
            // A node without zones may be anywhere.
            but(&["n1", "n3"], ZONE),
        ),
        (
            "several zones, by the label's old name",
            vec![pvc("c", bound("v")), pv("v", "", zoned("failure-domain.beta.kubernetes.io/zone", "x__b"))],
            &["c"],
            but(&["n2", "n3"], ZONE),
        ),
        (
            "its volume does not exist",
            vec![pvc("c", bound("v"))],
            &["c"],
            // As upstream's VolumeZone says it before any node is looked at.
            all("persistentvolume \"v\" not found"),
        ),
    ];
    for (why, objects, claims, expected) in table {
        let mut cluster = world(objects);
        let user = user("p", claims);
        let expected: Vec<String> = expected
            .into_iter()
            .map(|(node, why)| if why.is_empty() { node.to_owned() } else { format!("{node}: {why}") })
            .collect();
        assert_eq!(verdicts(&user, &mut cluster, &Profile::default()), expected, "{why}");
    }
}

fn refusal(cluster: &mut Cluster, pod: &PodInfo) -> String {
    match decide(pod, cluster, &Profile::default(), &Env::system()) {
        Decision::Bind(choice) => panic!("{choice}"),
        Decision::Unschedulable { message, .. } => message.split(" preemption: ").next().expect("a part").to_owned(),
    }
}

#[test]
fn claims_that_no_node_helps() {
    let immediate = || class("local", "x.io/p", "Immediate");
    let ending = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let lost = json!({ "spec": { "volumeName": "v" }, "status": { "phase": "Lost" } });
    let only_one = || json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } });
    let ephemeral = pod("p", json!({ "volumes": [{ "name": "s", "ephemeral": {} }] }));
    let user = user("p", &["c"]);
    for (pod, objects, expected) in [
        (&user, vec![], "persistentvolumeclaim \"c\" not found"),
        (&user, vec![pvc("c", ending)], "persistentvolumeclaim \"c\" is being deleted"),
        (&user, vec![pvc("c", lost)], "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\""),
        (&user, vec![immediate(), pvc("c", json!({}))], "pod has unbound immediate PersistentVolumeClaims"),
        (
            &user,
            vec![pvc("c", json!({ "spec": { "storageClassName": "none" } }))],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        // The binder is about to.
        (
            &user,
            vec![pvc("c", json!({ "spec": { "volumeName": "v" } })), pv("v", "n1", json!({}))],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (&ephemeral, vec![], "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-s\""),
        (
            &ephemeral,
            vec![pvc("p-s", json!({}))],
            "PVC default/p-s was not created for pod default/p (pod is not owner)",
        ),
    ] {
        assert_eq!(refusal(&mut world(objects), pod), format!("0/3 nodes are available: {expected}."));
    }
    // A claim for one Pod alone, which has one.
    let volume = pv("v", "", json!({ "spec": { "nodeAffinity": null } }));
    let mut cluster = world(vec![pvc("c", patch::merge(&bound("v"), &only_one())), volume]);
    assert!(matches!(decide(&user, &mut cluster, &Profile::default(), &Env::system()), Decision::Bind(_)));
    cluster.set_pod(super::user("other", &["c"]), "n3");
    let why = "3 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    assert_eq!(refusal(&mut cluster, &user), format!("0/3 nodes are available: {why}."));
    // A more important one takes it over.
    let important = {
        let mut pod = Pod::clone(&user.pod);
        pod.spec.get_or_insert_default().priority = Some(9);
        PodInfo::of(Arc::new(pod))
    };
    match decide(&important, &mut cluster, &Profile::default(), &Env::system()) {
        Decision::Unschedulable { nomination: Nomination::Preempt { node, victims }, .. } => {
            assert_eq!((node.as_str(), victims[0].1.as_str()), ("n3", "uid-other"));
        }
        other => panic!("{other:?}"),
    }
    cluster.remove_pod("uid-other");
    assert!(matches!(decide(&user, &mut cluster, &Profile::default(), &Env::system()), Decision::Bind(_)));
}

/// What a Pod is promised nobody else gets, and the smallest that fits is enough.
#[test]
fn a_volume_is_promised_once() {
    let large = pv("a-large", "n1", json!({ "spec": { "capacity": { "storage": "99Gi" } } }));
    let mut cluster = world(vec![pvc("c", json!({})), pvc("d", json!({})), large, pv("fits", "n1", json!({}))]);
    let profile = Profile::default();
    let (first, second) = (user("p", &["c"]), user("q", &["d"]));
    let before = profile.reserve(&first, "n1", &mut cluster).expect("it fits").expect("something to write");
    let bodies: Vec<_> = before.writes.iter().map(|write| (write.name.clone(), write.body.clone())).collect();
    let (name, body) = bodies.into_iter().next().expect("one write");
    let body = body.expect("a patch");
    assert_eq!((name.as_deref(), before.writes.len()), (Some("fits"), 1));
    assert_eq!(
        (&body["metadata"]["resourceVersion"], &body["spec"]["claimRef"]["uid"]),
        (&json!("1"), &json!("uid-c"))
    );
    assert_eq!(body["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    assert_eq!(before.patience, Duration::from_secs(600));
    assert_eq!(is_ready(&profile, &first, "n1", &cluster), Ok(false));
    let other = profile.reserve(&second, "n1", &mut cluster).expect("it fits").expect("something to write");
    assert_eq!(other.writes[0].name.as_deref(), Some("a-large"));
    // What is given back can be promised again.
    profile.unreserve(&first, &mut cluster);
    profile.unreserve(&second, &mut cluster);
    let again = profile.reserve(&second, "n1", &mut cluster).expect("it fits").expect("something to write");
    assert_eq!(again.writes[0].name.as_deref(), Some("fits"));
    // Who shares the claim goes where its volume is, and does not rely on the other to write it.
    let sharer = user("r", &["d"]);
    assert!(profile.reserve(&sharer, "n2", &mut cluster).is_err());
    let same = profile.reserve(&sharer, "n1", &mut cluster).expect("it fits").expect("something to write");
    assert_eq!(same.writes[0].name.as_deref(), Some("fits"));
    profile.unreserve(&sharer, &mut cluster);
    // The server has it, then the binder is done.
    let to = json!({ "metadata": { "resourceVersion": "2" },
        "spec": { "claimRef": { "namespace": "default", "name": "d", "uid": "uid-d" } } });
    put(&mut cluster, pv("fits", "n1", to));
    assert_eq!(is_ready(&profile, &second, "n1", &cluster), Ok(false));
    put(&mut cluster, pvc("d", bound("fits")));
    assert_eq!(is_ready(&profile, &second, "n1", &cluster), Ok(true));
    let far = is_ready(&profile, &second, "n2", &cluster).unwrap_err();
    assert!(far.ends_with("binding volumes: pv \"fits\" node affinity doesn't match node \"n2\""), "{far}");
    // The binder has undone it.
    put(&mut cluster, pv("fits", "n1", json!({ "metadata": { "resourceVersion": "3" } })));
    let why = "running PreBind plugin \"VolumeBinding\": binding volumes: ClaimRef got reset for pv \"fits\"";
    assert_eq!(is_ready(&profile, &second, "n1", &cluster), Err(why.into()));
}

fn is_ready(profile: &Profile, pod: &PodInfo, node: &str, cluster: &Cluster) -> Result<bool, String> {
    let ready = profile.is_ready(pod, cluster.node(node).expect("it is there"), cluster);
    ready.map_err(|why| why.to_string())
}

/// A claim that two volumes of a Pod name gets one volume, which is written once.
#[test]
fn a_claim_of_two_volumes_of_a_pod_gets_one() {
    let mut cluster = world(vec![pvc("c", json!({})), pv("v", "n1", json!({})), pv("w", "n1", json!({}))]);
    let (profile, twice) = (Profile::default(), user("p", &["c", "c"]));
    let before = profile.reserve(&twice, "n1", &mut cluster).expect("it fits").expect("something to write");
    let written: Vec<_> = before.writes.iter().map(|write| write.name.as_deref().unwrap_or_default()).collect();
    assert_eq!(written, ["v"]);
    // What is promised twice cannot be kept twice.
    let to = json!({ "metadata": { "resourceVersion": "2" },
        "spec": { "claimRef": { "namespace": "default", "name": "c", "uid": "uid-c" } } });
    put(&mut cluster, pv("v", "n1", to));
    put(&mut cluster, pvc("c", bound("v")));
    assert_eq!(is_ready(&profile, &twice, "n1", &cluster), Ok(true));
}

/// A volume that has yet to be made: the claim says where, until whoever makes it says that it cannot.
#[test]
fn a_claim_says_where_its_volume_is_to_be_made() {
    let mut cluster = world(vec![class("local", "example.com/disk", "WaitForFirstConsumer"), pvc("c", json!({}))]);
    let (profile, user) = (Profile::default(), user("p", &["c"]));
    let before = profile.reserve(&user, "n2", &mut cluster).expect("it fits").expect("something to write");
    let body = before.writes[0].body.clone().expect("a patch");
    assert_eq!(body["metadata"]["annotations"]["volume.kubernetes.io/selected-node"], "n2");
    assert_eq!(is_ready(&profile, &user, "n2", &cluster), Ok(false), "not seen yet");
    put(&mut cluster, pvc("c", json!({ "metadata": { "resourceVersion": "2", "annotations": { "x": "y" } } })));
    let why = "running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"c\"";
    assert_eq!(is_ready(&profile, &user, "n2", &cluster), Err(why.into()));
}
