//! Command-line flags, as in upstream's setups: the effect of each, compared with a node or server without it.

use std::{
    io::{Read, Write},
    time::Duration,
};

use serde_json::json;

use crate::support::{TestNode, contains, eventually, tls};

const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn a_node_takes_the_pod_range_that_somebody_else_gives_it() {
    let mut node = TestNode::stopped(&["--node-name", "n1", "--allocate-node-cidrs=false"]);
    node.spawn();
    node.wait_answering();
    let missing = "container runtime network not ready: no podCIDR assigned yet";
    let path = ".status.conditions[?(@.type==\"Ready\")].message";
    node.wait("create", &["node/n1"], TIMEOUT);
    eventually("it says what it lacks", TIMEOUT, || contains(&node.field(&["node", "n1"], path), missing));
    assert_eq!(node.field(&["node", "n1"], ".spec.podCIDR"), "", "nobody gives it one");
    node.import_busybox();
    node.apply(SLEEPS);
    let range = json!({"spec": {"podCIDR": "10.244.77.0/24", "podCIDRs": ["10.244.77.0/24"]}}).to_string();
    node.ok(&["patch", "node", "n1", "--type=merge", "-p", &range]);
    node.wait_ready();
    node.wait("condition=Ready", &["pod/sleeps"], TIMEOUT);
    let ip = node.field(&["pod", "sleeps"], ".status.podIP");
    assert!(ip.starts_with("10.244.77."), "{ip}");
    node.ok(&["delete", "pod", "sleeps"]);
}

const SLEEPS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: sleeps}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

const PRIVILEGED: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: strict}
spec: {containers: [{name: c, image: i, securityContext: {privileged: true}}]}
";

#[test]
fn admission_plugins_are_left_out_by_name_alone() {
    for (flags, refused) in [
        (&[][..], Some("violates PodSecurity \"restricted:latest\"")),
        (&["--disable-admission-plugins=DefaultStorageClass"], Some("violates PodSecurity")),
        (&["--disable-admission-plugins=DefaultStorageClass,PodSecurity"], None),
    ] {
        let server = TestNode::server(flags);
        let answer = server.run_with(&["apply", "-f", "-"], PRIVILEGED.as_bytes());
        match refused {
            Some(why) => contains(&answer.err, why).unwrap(),
            None => assert_eq!(answer.code, 0, "{flags:?}: {}", answer.all()),
        }
    }
    for (flag, why) in [
        ("--disable-admission-plugins=Nope", "disable-admission-plugins plugin \"Nope\" is unknown"),
        ("--authorization-mode=Nope", "authorization-mode \"Nope\" is not a valid mode"),
    ] {
        let mut server = TestNode::of_control_plane(&[flag]);
        server.spawn();
        server.wait_ended();
        contains(&server.log(), why).unwrap();
    }
}

/// The server's response to an anonymous request for ConfigMaps.
fn anonymous(server: &TestNode) -> u16 {
    let (address, config) = tls::client(server, false);
    let mut stream = tls::dial(&address, &config);
    let path = "/api/v1/namespaces/default/configmaps";
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // A close without TLS's close_notify counts as the end.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn who_is_asked_about_a_request_is_a_list() {
    for (mode, code) in [("Node,RBAC", 403), ("AlwaysAllow", 200), ("RBAC,AlwaysAllow", 200), ("AlwaysDeny", 403)] {
        let server = TestNode::server(&[&format!("--authorization-mode={mode}")]);
        assert_eq!(anonymous(&server), code, "{mode}");
    }
}
