//! Deployments: scale, rollout status, history, undo, restart, pause; expose.

use super::{TIMEOUT, node, refuses, says};
use crate::support::contains;

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, annotations: {kubernetes.io/change-cause: begun}}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], env: [{name: V, value: one}]}
";

#[test]
fn a_rollout_is_told_undone_and_held_back() {
    let (node, untouched) = node();
    node.apply(DEPLOYMENT);
    let status = node.ok(&["rollout", "status", "deployment/app", "--timeout", "60s"]);
    assert_eq!(status.lines().last(), Some("deployment \"app\" successfully rolled out"), "{status}");
    says(&node, &["scale", "deploy/app", "--replicas", "3"], "deployment.apps/app scaled\n");
    refuses(
        &node,
        &["scale", "deploy/app", "--replicas", "1", "--current-replicas", "2"],
        "error: Expected replicas to be 2, was 3",
    );
    refuses(
        &node,
        &["scale", "deploy/nobody", "--replicas", "1"],
        "error: no objects passed to scale deployments.apps \"nobody\" not found",
    );
    node.wait("jsonpath={.status.readyReplicas}=3", &["deployment/app"], TIMEOUT);
    node.ok(&["scale", "deploy/app", "--replicas", "1"]);

    let value = |wanted: &str| {
        let path = ".spec.template.spec.containers[0].env[0].value";
        assert_eq!(node.field(&["deployment", "app"], path), wanted);
        node.ok(&["rollout", "status", "deployment/app", "--timeout", "60s"]);
        let pods = node.ok(&[
            "get",
            "pods",
            "-l",
            "app=app",
            "-o",
            "jsonpath={.items[?(@.metadata.name)].spec.containers[0].env[0].value}",
        ]);
        contains(&pods, wanted).unwrap();
    };
    value("one");
    node.apply(
        &DEPLOYMENT
            .replace("value: one", "value: two")
            .replace("begun", "changed")
            .replace("replicas: 2", "replicas: 1"),
    );
    value("two");
    let history = node.ok(&["rollout", "history", "deployment/app"]);
    let rows: Vec<Vec<&str>> = history.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["deployment.apps/app"]);
    assert_eq!(rows[1..4], [vec!["REVISION", "CHANGE-CAUSE"], vec!["1", "begun"], vec!["2", "changed"]], "{history}");
    let first = node.ok(&["rollout", "history", "deployment/app", "--revision", "1"]);
    let words: Vec<&str> = first.split_whitespace().collect();
    contains(&words.join(" "), "deployment.apps/app with revision #1 Pod Template: Labels: app=app")
        .and(contains(&words.join(" "), "Environment: V: one"))
        .unwrap();
    refuses(
        &node,
        &["rollout", "history", "deployment/app", "--revision", "9"],
        "error: unable to find the specified revision",
    );
    says(&node, &["rollout", "undo", "deployment/app"], "deployment.apps/app rolled back\n");
    value("one");
    let undone = node.ok(&["rollout", "history", "deployment/app"]);
    assert!(undone.contains("\n3 ") && !undone.contains("\n1 "), "the revision moves to the end: {undone}");
    says(&node, &["rollout", "undo", "deployment/app", "--to-revision", "2"], "deployment.apps/app rolled back\n");
    value("two");
    refuses(
        &node,
        &["rollout", "undo", "deployment/app", "--to-revision", "77"],
        "error: unable to find specified revision 77 in history",
    );

    says(&node, &["rollout", "pause", "deployment/app"], "deployment.apps/app paused\n");
    refuses(&node, &["rollout", "pause", "deployment/app"], "error: deployments.apps \"app\" is already paused");
    node.ok(&["set", "image", "deployment/app", "c=localhost/nothing:1"]);
    let held = node.run(&["rollout", "status", "deployment/app", "--timeout", "300ms"]);
    assert_eq!(held.code, 1, "{}", held.all());
    says(&node, &["rollout", "resume", "deployment/app"], "deployment.apps/app resumed\n");
    let stuck = node.run(&["rollout", "status", "deployment/app", "--timeout", "300ms"]);
    assert_eq!((stuck.code, stuck.err.as_str()), (1, "error: timed out waiting for the condition\n"));
    contains(&stuck.out, "Waiting for deployment \"app\" rollout to finish: ").unwrap();
    // The old Pod keeps serving beside the new one that cannot start.
    assert_eq!(node.field(&["deployment", "app"], ".status.availableReplicas"), "1");
    node.ok(&["rollout", "undo", "deployment/app"]);
    node.ok(&["rollout", "status", "deployment/app", "--timeout", "60s"]);

    let before = node.field(&["pods", "-l", "app=app"], ".items[*].metadata.name");
    says(&node, &["rollout", "restart", "deployment/app"], "deployment.apps/app restarted\n");
    node.ok(&["rollout", "status", "deployment/app", "--timeout", "60s"]);
    node.wait("delete", &[&format!("pod/{before}")], TIMEOUT);
    says(&node, &["expose", "deployment", "app", "--port", "80"], "service/app exposed\n");
    assert_eq!(node.field(&["service", "app"], ".spec.selector.app"), "app");
    node.ok(&["delete", "deployment,service", "app"]);
    node.wait("delete", &["pods", "--all"], TIMEOUT);
    drop(node);
    untouched.assert_unchanged();
}
