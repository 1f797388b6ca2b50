//! Leader election: a server acts while it holds its Leases, and releases them at its end.

use std::time::{Duration, Instant};

use crate::support::{TestNode, contains, eventually};

const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn a_server_leads_by_its_leases_and_releases_them() {
    let mut server = TestNode::server(&["--leader-elect"]);
    let leases = ["kube-controller-manager", "kube-scheduler"];
    let holder =
        |server: &TestNode, lease: &str| server.field(&["-n", "kube-system", "lease", lease], ".spec.holderIdentity");
    let led = |server: &TestNode| {
        eventually("both are led", TIMEOUT, || {
            let answer = server.run(&["-n", "kube-system", "get", "leases"]);
            leases.iter().try_for_each(|lease| contains(&answer.all(), lease))?;
            let holders = leases.map(|lease| holder(server, lease));
            if holders.iter().all(|holder| holder.contains('_')) { Ok(holders) } else { Err(format!("{holders:?}")) }
        })
    };
    let first = led(&server);
    assert_eq!(first[0], first[1], "one server is one candidate");
    // Its controllers act: a ReplicaSet is created.
    let deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: app}, spec: {selector: {matchLabels: {a: b}}, \
                      template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: 'c:1'}]}}}}";
    server.apply(deployment);
    let pods = |server: &TestNode| server.field(&["pods"], ".items[*].metadata.name").split_whitespace().count();
    let made = |server: &TestNode, number: usize| {
        eventually("the Pods are made", TIMEOUT, || match pods(server) {
            now if now == number => Ok(()),
            now => Err(format!("{now} Pods")),
        });
    };
    made(&server, 1);
    server.terminate();
    let begun = Instant::now();
    server.spawn();
    server.wait_answering();
    let second = led(&server);
    eventually("another one leads", TIMEOUT, || match leases.map(|lease| holder(&server, lease)) {
        now if now.iter().all(|now| !first.contains(now) && now.contains('_')) => Ok(()),
        now => Err(format!("{now:?}, first {second:?}")),
    });
    assert!(begun.elapsed() < Duration::from_secs(15), "nobody has waited for the Lease to end");
    let transitions = ["-n", "kube-system", "lease", leases[0]];
    assert_eq!(server.field(&transitions, ".spec.leaseTransitions"), "1");
    server.ok(&["scale", "deployment/app", "--replicas=2"]);
    made(&server, 2);
}
