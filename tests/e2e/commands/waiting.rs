//! wait, and delete with grace periods.

use std::time::{Duration, Instant};

use super::{TIMEOUT, node, refuses, says};
use crate::support::slowness;

fn pod(name: &str, grace: u32, script: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: {grace}
  restartPolicy: Never
  containers: [{{name: c, image: 'localhost/busybox:1', command: [sh, -c, '{script}']}}]
"
    )
}

const DEAF: &str = "trap : TERM; echo deaf; while :; do sleep 0.1; done";

#[test]
fn waits_are_met_or_time_out() {
    let (node, untouched) = node();
    refuses(
        &node,
        &["wait", "--for=condition=Ready", "pod/nobody"],
        "Error from server (NotFound): pods \"nobody\" not found",
    );
    refuses(&node, &["wait", "--for=condition=Ready", "pods", "--all"], "error: no matching resources found");
    assert_eq!(node.run(&["wait", "--for=delete", "pod/nobody"]).code, 0);
    let created = node.talk(&["wait", "--for=create", "pod/sleeper", "--timeout", "30s"]);
    let ready = |timeout| ["wait", "--for=condition=Ready", "pod/sleeper", "--timeout", timeout];
    node.apply(&pod("sleeper", 0, "sleep 1000"));
    assert_eq!(created.end().out, "pod/sleeper condition met\n");
    says(&node, &ready("30s"), "pod/sleeper condition met\n");
    // An object that is already gone satisfies it.
    says(&node, &["wait", "--for=delete", "pod/nobody"], "");
    says(&node, &["wait", "--for=condition=ready", "-l", "app=sleeper", "pods"], "pod/sleeper condition met\n");
    says(&node, &["wait", "--for=jsonpath={.status.phase}=Running", "pod/sleeper"], "pod/sleeper condition met\n");
    says(&node, &["wait", "--for=jsonpath={.status.podIP}", "pod/sleeper"], "pod/sleeper condition met\n");
    let begun = Instant::now();
    let late = ["wait", "--for=condition=Ready=False", "pod/sleeper", "--timeout", "200ms"];
    refuses(&node, &late, "error: timed out waiting for the condition on pods/sleeper");
    assert!(begun.elapsed() < Duration::from_secs(5) * slowness(), "{:?}", begun.elapsed());
    refuses(
        &node,
        &["wait", "--for=delete", "pod/sleeper", "--timeout", "200ms"],
        "error: timed out waiting for the condition on pods/sleeper",
    );
    says(&node, &["delete", "pod", "sleeper"], "pod \"sleeper\" deleted\n");
    // On a busy machine a wait may begin after the object is gone, without output: then repeat.
    let waited = (0..50).any(|_| {
        node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: going}}");
        let deleted = node.talk(&["wait", "--for=delete", "configmap/going", "--timeout", "30s"]);
        // As long as a command takes to start.
        says(&node, &["get", "configmap", "going", "-o", "name"], "configmap/going\n");
        says(&node, &["delete", "configmap", "going"], "configmap \"going\" deleted\n");
        let answer = deleted.end();
        let met = answer.out == "configmap/going condition met\n";
        assert!(answer.code == 0 && (met || answer.out.is_empty()), "{}", answer.all());
        met
    });
    assert!(waited, "no wait has seen a deletion");
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn deletion_gives_the_grace_that_was_asked() {
    let (node, untouched) = node();
    let names = ["mine", "short", "now", "force", "left"];
    node.apply(&names.map(|name| pod(name, if name == "mine" { 1 } else { 300 }, DEAF)).join("---"));
    for name in names {
        node.wait_field(&["pod", name], ".status.phase", "Running", TIMEOUT);
        crate::support::eventually("its trap is set", TIMEOUT, || {
            crate::support::contains(&node.run(&["logs", name]).out, "deaf")
        });
    }
    let timed = |args: &[&str], expected: &str, least: f64| {
        let begun = Instant::now();
        says(&node, args, expected);
        let took = begun.elapsed().as_secs_f64();
        assert!(took >= least && took < least + 8.0 * f64::from(slowness()), "{args:?} took {took} s");
    };
    timed(&["delete", "pod", "mine"], "pod \"mine\" deleted\n", 1.0);
    timed(&["delete", "pod", "short", "--grace-period", "2"], "pod \"short\" deleted\n", 2.0);
    timed(&["delete", "pod", "now", "--now"], "pod \"now\" deleted\n", 1.0);
    timed(&["delete", "pod", "force", "--grace-period", "0", "--force"], "pod \"force\" force deleted\n", 0.0);
    // One that is terminating is shown as such, and its grace period may be shortened.
    timed(&["delete", "pod", "left", "--wait=false"], "pod \"left\" deleted\n", 0.0);
    assert!(node.ok(&["get", "pod", "left", "--no-headers"]).contains("Terminating"));
    refuses(
        &node,
        &["wait", "--for=delete", "pod/left", "--timeout", "300ms"],
        "error: timed out waiting for the condition on pods/left",
    );
    timed(&["delete", "pod", "left", "--grace-period", "1"], "pod \"left\" deleted\n", 0.0);
    refuses(&node, &["delete", "pod", "left"], "Error from server (NotFound): pods \"left\" not found");
    says(&node, &["delete", "pod", "left", "--ignore-not-found"], "");
    refuses(&node, &["delete", "pods"], "error: resource(s) were provided, but no name was specified");
    node.apply(&pod("last", 0, "sleep 1000"));
    says(&node, &["delete", "pod", "last", "--dry-run=server"], "pod \"last\" deleted (server dry run)\n");
    says(&node, &["delete", "pods", "--all"], "pod \"last\" deleted\n");
    says(&node, &["delete", "pods", "--all"], "No resources found\n");
    drop(node);
    untouched.assert_unchanged();
}
