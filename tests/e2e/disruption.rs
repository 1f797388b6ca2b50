//! A node is drained under a disruption budget: Pods go one by one, each when the previous one is replaced.

use std::time::Duration;

use crate::support::{TestNode, contains, leftovers::Machine, node::busybox_tar, readiness};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn drain_keeps_to_a_disruption_budget() {
    let server = TestNode::server(&[]);
    let agents = ["n1", "n2"].map(|name| TestNode::agent(&server, name));
    let untouched = agents.each_ref().map(|agent| Machine::untouched(agent.dir.path()));
    for name in ["n1", "n2"] {
        server.ok(&["image", "--node", name, "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
    }
    server.ok(&["cordon", "n2"]);
    server.ok(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/disruption-budget.yaml")]);
    let budget = |field: &str| server.field(&["-n", "budget", "pdb", "web"], &format!(".status.{field}"));
    server.ok(&["-n", "budget", "rollout", "status", "deployment/web", "--timeout=60s"]);
    server.wait("condition=DisruptionAllowed", &["-n", "budget", "pdb/web"], TIMEOUT);
    let counts = ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"].map(budget);
    assert_eq!(counts, ["3", "2", "3", "1"]);
    let on = |node: &str| {
        let selection = format!("spec.nodeName={node}");
        let pods = ["-n", "budget", "pods", "--field-selector", &selection];
        server.field(&pods, ".items[*].metadata.name").split_whitespace().count()
    };
    assert_eq!((on("n1"), on("n2")), (3, 0));
    server.ok(&["uncordon", "n2"]);

    let drain = || server.run(&["drain", "n1", "--timeout=100s"]);
    let (answer, seen) = readiness::meanwhile(&server, "budget", "app=web", drain);
    assert_eq!(answer.code, 0, "{}", answer.all());
    let refused = "(will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget.";
    contains(&answer.err, refused).unwrap();
    assert_eq!(answer.out.matches(" evicted").count(), 3, "{}", answer.all());
    assert_eq!(*seen.start(), 2, "one at a time");
    server.ok(&["-n", "budget", "rollout", "status", "deployment/web", "--timeout=60s"]);
    assert_eq!((on("n1"), on("n2")), (0, 3));
    server.wait("condition=DisruptionAllowed", &["-n", "budget", "pdb/web"], TIMEOUT);
    assert_eq!(budget("disruptedPods"), "");
    // An eviction from the last node finds none that may go.
    server.ok(&["cordon", "n2"]);
    let stuck = server.run(&["drain", "n2", "--timeout=8s"]);
    assert_eq!(stuck.code, 1, "{}", stuck.all());
    assert_eq!(budget("currentHealthy"), "2");
    server.ok(&["delete", "namespace", "budget"]);
    drop(agents);
    untouched.iter().for_each(Machine::assert_unchanged);
}
