//! Pods that start under a policy: isolated before any of their programs runs, as upstream's documentation has it ("Pod lifecycle").

use std::time::Duration;

use super::{check, cluster::Cluster, policy::Policy};
use crate::support::{contains, eventually};

const COUNT: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Nothing goes out of them, to nobody.
const POLICY: &str =
    "[{namespace: y, name: newborns, spec: {podSelector: {matchLabels: {age: none}}, policyTypes: [Egress]}}]";

/// The first thing that its init container does, and its container after that, is to open a connection.
fn newborn(name: &str, age: &str, target: &str) -> String {
    let tries = format!("nc -w 1 {target} 80 </dev/null; echo tried");
    let image = "image: 'localhost/busybox:1'";
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: 'y', labels: {{age: {age}}}}}
spec:
  terminationGracePeriodSeconds: 0
  initContainers: [{{name: i, {image}, command: [sh, -c, '{tries}']}}]
  containers: [{{name: c, {image}, command: [sh, -c, '{tries}; sleep 100000']}}]
---
"
    )
}

/// What both have heard.
fn heard(cluster: &Cluster, pod: &str) -> Result<String, String> {
    let log = |container: &str| cluster.node().run(&["-n", "y", "logs", pod, "-c", container]).out;
    let (first, second) = (log("i"), log("c"));
    contains(&first, "tried").and(contains(&second, "tried")).map(|()| first + &second)
}

pub fn reach_nobody(cluster: &mut Cluster) {
    let policies: Vec<Policy> = serde_saphyr::from_str(POLICY).unwrap();
    cluster.write(&policies);
    // The policy is known once it is in force, which nobody of those that are there tells: it is about none of them.
    check(cluster, &policies, super::IN_FORCE).unwrap_or_else(|differences| panic!("{differences}"));
    let target = cluster.address("x/a").to_string();
    let names: Vec<String> = (0..COUNT).map(|at| format!("newborn-{at}")).collect();
    cluster.node().apply(&names.iter().map(|name| newborn(name, "none", &target)).collect::<String>());
    for name in &names {
        let heard = eventually("it has tried", TIMEOUT, || heard(cluster, name));
        assert!(!heard.contains("x/a"), "{name} has reached somebody:\n{heard}");
    }
    // The same ones, but that no policy is about them: may their addresses be those of the others.
    cluster
        .node()
        .ok(&[&["-n", "y", "delete", "pods"][..], &names.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    cluster.node().apply(&names.iter().map(|name| newborn(name, "some", &target)).collect::<String>());
    for name in &names {
        let heard = eventually("it has tried", TIMEOUT, || heard(cluster, name));
        assert_eq!(heard.matches("x/a 80").count(), 2, "{name} has not reached x/a:\n{heard}");
    }
}
