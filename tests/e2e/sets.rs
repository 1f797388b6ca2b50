//! StatefulSets and DaemonSets with real Pods, as described in their manifests.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::support::{TestNode, contains, eventually, leftovers::Machine, node::busybox_tar};

const TIMEOUT: Duration = Duration::from_secs(60);
const STATEFUL: &str = include_str!("../../manifests/stateful-set.yaml");
const DAEMONS: &str = include_str!("../../manifests/daemon-set.yaml");

/// The Pods of a namespace with this label, by name.
fn pods(node: &TestNode, namespace: &str, label: &str) -> Vec<Value> {
    let list = node.ok(&["-n", namespace, "get", "pods", "-l", label, "-o", "json"]);
    let list: Value = serde_json::from_str(&list).expect("a list");
    let mut pods = list["items"].as_array().expect("items").clone();
    pods.sort_by_key(|pod| pod["metadata"]["name"].to_string());
    pods
}

fn made(pod: &Value) -> String {
    pod["metadata"]["creationTimestamp"].as_str().expect("a time").to_owned()
}

fn ready_since(pod: &Value) -> String {
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    let ready = conditions.iter().find(|c| c["type"] == "Ready" && c["status"] == "True").expect("it is ready");
    ready["lastTransitionTime"].as_str().expect("a time").to_owned()
}

#[test]
fn a_stateful_sets_pods_keep_their_names_and_their_order() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(STATEFUL);
    let web = |args: &[&str]| node.ok(&[&["-n", "stateful"], args].concat());
    let rolled = |count: u32| {
        let told = web(&["rollout", "status", "statefulset/web", "--timeout", "60s"]);
        let expected = format!("partitioned roll out complete: {count} new pods have been updated...");
        assert_eq!(told.lines().last(), Some(expected.as_str()), "{told}");
    };
    rolled(3);
    // One after the other: with a resolution of seconds, none was created before the previous one was ready.
    let first = pods(&node, "stateful", "app=web");
    let names: Vec<&str> = first.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["web-0", "web-1", "web-2"]);
    for pair in first.windows(2) {
        assert!(ready_since(&pair[0]) <= made(&pair[1]), "{} was early", pair[1]["metadata"]["name"]);
    }
    let events = web(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    contains(&events, "create Pod web-0 in StatefulSet web successful").unwrap();
    let labels = &first[2]["metadata"]["labels"];
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "web-2");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "2");
    let revision = node.field(&["-n", "stateful", "statefulset", "web"], ".status.updateRevision");
    assert_eq!(labels["controller-revision-hash"], revision.as_str());

    node.wait("condition=Ready", &["-n", "stateful", "pod/visitor"], TIMEOUT);
    let answers = |words: &str| {
        let fetch = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 web-1.web 80";
        eventually(words, TIMEOUT, || {
            let answer = node.run(&["-n", "stateful", "exec", "visitor", "--", "sh", "-c", fetch]);
            contains(&answer.all(), words)
        });
    };
    answers("I am web-1");
    web(&["delete", "pod", "web-1"]);
    let uids = |pods: &[Value]| pods.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect::<Vec<_>>();
    let first = uids(&first);
    let second = eventually("another web-1", TIMEOUT, || match uids(&pods(&node, "stateful", "app=web")) {
        second if second.len() == 3 => Ok(second),
        fewer => Err(format!("{fewer:?}")),
    });
    assert_eq!((&first[0], &first[2]), (&second[0], &second[2]), "the others have not noticed");
    assert_ne!(first[1], second[1]);
    node.wait("condition=Ready", &["-n", "stateful", "pod/web-1"], TIMEOUT);
    answers("I am web-1");

    node.apply(&STATEFUL.replace("value: I am", "value: Now I am"));
    rolled(3);
    answers("Now I am web-1");
    let third = pods(&node, "stateful", "app=web");
    for pair in third.windows(2) {
        assert!(ready_since(&pair[1]) <= made(&pair[0]), "{} was early", pair[0]["metadata"]["name"]);
    }
    let history = web(&["rollout", "history", "statefulset/web"]);
    let rows: Vec<&str> = history.lines().map(|line| line.split_whitespace().next().unwrap_or("")).collect();
    assert_eq!(rows[..4], ["statefulset.apps/web", "REVISION", "1", "2"], "{history}");
    let before = web(&["rollout", "history", "statefulset/web", "--revision", "1"]);
    let words = before.split_whitespace().collect::<Vec<_>>().join(" ");
    contains(&words, "statefulset.apps/web with revision #1 Pod Template: Labels: app=web").unwrap();
    contains(&words, "GREETING: I am").unwrap();
    assert_eq!(web(&["rollout", "undo", "statefulset/web"]), "statefulset.apps/web rolled back\n");
    rolled(3);
    answers("I am web-1");
    assert_eq!(
        web(&["rollout", "undo", "statefulset/web", "--to-revision", "3"]),
        "statefulset.apps/web skipped rollback (current template already matches revision 3)\n"
    );
    assert_eq!(web(&["rollout", "restart", "statefulset/web"]), "statefulset.apps/web restarted\n");
    rolled(3);
    let pause = node.run(&["-n", "stateful", "rollout", "pause", "statefulset/web"]);
    assert_eq!((pause.code, pause.err.as_str()), (1, "error: statefulsets.apps \"web\" pausing is not supported\n"));

    web(&["scale", "statefulset/web", "--replicas", "1"]);
    eventually("web-0 alone is left", TIMEOUT, || match pods(&node, "stateful", "app=web").len() {
        1 => Ok(()),
        more => Err(format!("{more} Pods")),
    });
    node.ok(&["delete", "namespace", "stateful"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_daemon_set_has_a_pod_on_every_node() {
    let server = TestNode::server(&[]);
    let join = |name: &str| {
        let agent = TestNode::agent(&server, name);
        let tar = busybox_tar().to_str().unwrap();
        server.ok(&["image", "--node", name, "import", tar, "localhost/busybox:1"]);
        agent
    };
    let mut agents = vec![join("n1"), join("n2")];
    server.apply(DAEMONS);
    let watch = |args: &[&str]| server.ok(&[&["-n", "watch"], args].concat());
    let rolled = || {
        let told = watch(&["rollout", "status", "daemonset/watcher", "--timeout", "60s"]);
        assert_eq!(told.lines().last(), Some("daemon set \"watcher\" successfully rolled out"), "{told}");
    };
    // Nodes with a ready Pod that is not terminating.
    let nodes = || -> BTreeSet<String> {
        let pods = pods(&server, "watch", "app=watcher");
        let stays = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let ready = stays.filter(|pod| pod["status"]["containerStatuses"][0]["ready"] == true);
        ready.map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned()).collect()
    };
    let reach = |what: &str, wanted: &[&str]| {
        eventually(what, TIMEOUT, || {
            let (found, wanted) = (nodes(), wanted.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>());
            if found == wanted { Ok(()) } else { Err(format!("Pods are on {found:?}, wanted {wanted:?}")) }
        });
    };
    rolled();
    reach("a Pod on each node", &["n1", "n2"]);
    agents.push(join("n3"));
    reach("a Pod on the node that has joined", &["n1", "n2", "n3"]);
    let said = watch(&["logs", "-l", "app=watcher"]);
    for node in ["n1", "n2", "n3"] {
        contains(&said, &format!("watching over {node}")).unwrap();
    }
    server.ok(&["taint", "node", "n2", "dedicated=other:NoExecute"]);
    reach("none where it is not tolerated", &["n1", "n3"]);
    server.ok(&["taint", "node", "n2", "dedicated-"]);
    reach("one again", &["n1", "n2", "n3"]);
    // Cordoned nodes keep theirs, and would get one.
    server.ok(&["cordon", "n1"]);
    watch(&["delete", "pods", "--field-selector", "spec.nodeName=n1"]);
    reach("one on a cordoned node", &["n1", "n2", "n3"]);

    server.apply(&DAEMONS.replace("value: watching", "value: watching again"));
    rolled();
    reach("a Pod on each node", &["n1", "n2", "n3"]);
    eventually("they are of the new template", TIMEOUT, || {
        // A listed one may be gone before its log is read.
        let said = server.run(&["-n", "watch", "logs", "-l", "app=watcher"]).all();
        ["n1", "n2", "n3"].iter().try_for_each(|node| contains(&said, &format!("watching again over {node}")))
    });
    let history = watch(&["rollout", "history", "daemonset/watcher"]);
    let rows: Vec<&str> = history.lines().map(|line| line.split_whitespace().next().unwrap_or("")).collect();
    assert_eq!(rows[..4], ["daemonset.apps/watcher", "REVISION", "1", "2"], "{history}");
    assert_eq!(watch(&["rollout", "undo", "daemonset/watcher"]), "daemonset.apps/watcher rolled back\n");
    rolled();
    let word = ".items[*].spec.containers[0].env[1].value";
    eventually("all are of the old template", TIMEOUT, || {
        match server.field(&["-n", "watch", "pods", "-l", "app=watcher"], word).as_str() {
            "watching watching watching" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    assert_eq!(server.field(&["-n", "watch", "daemonset", "watcher"], ".status.desiredNumberScheduled"), "3");
    server.ok(&["delete", "namespace", "watch"]);
    let untouched: Vec<Machine> = agents.iter().map(|agent| Machine::untouched(agent.dir.path())).collect();
    drop(agents);
    untouched.iter().for_each(Machine::assert_unchanged);
}
