//! An agent and a server of different releases: machines are upgraded one after the other.

use super::{Older, TIMEOUT};
use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'echo begun; httpd -p 8080 -h /www; until [ -e /tmp/end ]; do sleep 0.1; done']
    readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 1}
    lifecycle: {postStart: {exec: {command: [sh, -c, 'echo yes > /www/ready']}}}
    volumeMounts: [{name: conf, mountPath: /conf}]
  volumes: [{name: conf, configMap: {name: conf}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {word: hello}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
";

/// All interactions of a server and an agent: objects, statuses, sessions, streams, images, leases.
fn work_together(server: &TestNode) {
    let tar = crate::support::node::busybox_tar();
    server.ok(&["image", "import", "--node", "n1", tar.to_str().unwrap(), "localhost/busybox:1"]);
    server.apply(POD);
    server.wait("condition=Ready", &["pod/web"], TIMEOUT);
    assert_eq!(server.ok(&["exec", "web", "--", "cat", "/conf/word"]), "hello");
    let answer = server.run_with(&["exec", "-i", "web", "--", "sh", "-c", "cat; exit 5"], b"typed");
    assert_eq!((answer.out.as_str(), answer.code), ("typed", 5), "{}", answer.all());
    assert_eq!(server.ok(&["logs", "web"]), "begun\n");
    contains(&server.ok(&["get", "--raw", "/api/v1/namespaces/default/services/web/proxy/ready"]), "yes").unwrap();
    contains(&server.ok(&["image", "list", "--node", "n1"]), "localhost/busybox:1").unwrap();
    let ip = server.field(&["service", "web"], ".spec.clusterIP");
    let fetch = format!("printf 'GET /ready HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {ip} 80");
    let asked = || server.run(&["exec", "web", "--", "sh", "-c", &fetch]).all();
    eventually("the Service answers", TIMEOUT, || contains(&asked(), "yes"));
    let id = server.field(&["pod", "web"], ".status.containerStatuses[0].containerID");
    server.ok(&["exec", "web", "--", "touch", "/tmp/end"]);
    server.wait_field(&["pod", "web"], ".status.containerStatuses[0].restartCount", "1", TIMEOUT);
    server.wait("condition=Ready", &["pod/web"], TIMEOUT);
    assert_ne!(server.field(&["pod", "web"], ".status.containerStatuses[0].containerID"), id);
}

/// Both orders of an upgrade: one side first, then the other, with a Pod that keeps running.
fn upgraded_one_after_the_other(server_first: bool) {
    let Some(older) = Older::here() else { return };
    let mut server = TestNode::of_control_plane(&[]);
    if !server_first {
        older.takes(&mut server);
    }
    server.spawn();
    server.wait_answering();
    let mut agent = TestNode::of_agent(&server, "n1", &[]);
    if server_first {
        older.takes(&mut agent);
    }
    agent.spawn();
    agent.wait_registered(&server, "n1");
    let untouched = Machine::untouched(agent.dir.path());
    work_together(&server);
    let id = |server: &TestNode| server.field(&["pod", "web"], ".status.containerStatuses[0].containerID");
    let before = id(&server);
    let late = if server_first { &mut agent } else { &mut server };
    late.kill();
    late.be(None);
    late.spawn();
    server.wait_answering();
    eventually("the node serves again", TIMEOUT, || {
        contains(&server.run(&["exec", "web", "--", "echo", "here"]).all(), "here\n")
    });
    assert_eq!(id(&server), before);
    assert_eq!(server.field(&["pod", "web"], ".status.containerStatuses[0].restartCount"), "1");
    server.ok(&["delete", "pod", "web"]);
    drop(agent);
    untouched.assert_unchanged();
}

#[test]
fn an_old_agent_works_for_a_new_server() {
    upgraded_one_after_the_other(true);
}

#[test]
fn a_new_agent_works_for_an_old_server() {
    upgraded_one_after_the_other(false);
}

/// A newer command can use an older server's custom resources, which have another name there.
#[test]
fn a_new_command_asks_an_old_server_for_custom_resources() {
    let Some(older) = Older::here() else { return };
    let mut server = TestNode::of_control_plane(&[]);
    older.takes(&mut server);
    server.spawn();
    server.wait_answering();
    server.apply(
        "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wi]}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
",
    );
    server.wait("condition=Established", &["crd/widgets.example.com"], TIMEOUT);
    let widget = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}, spec: {size: 1}}";
    assert_eq!(server.run_with(&["apply", "-f", "-"], widget.as_bytes()).out, "widget.example.com/w created\n");
    assert_eq!(server.ok(&["get", "wi", "w", "-o", "jsonpath={.spec.size}"]), "1");
    assert!(contains(&server.ok(&["get", "widgets"]), "w").is_ok());
    assert_eq!(server.ok(&["delete", "widget", "w"]), "widget.example.com \"w\" deleted\n");
    let missing = server.run(&["get", "widget", "w"]);
    assert!(missing.all().contains("widgets.example.com \"w\" not found"), "{}", missing.all());
}

/// An agent has no store that prevents a downgrade: the newer one's shims serve the older.
#[test]
fn an_agent_is_taken_back_under_its_pods() {
    let Some(older) = Older::here() else { return };
    let server = TestNode::server(&[]);
    let mut agent = TestNode::agent(&server, "n1");
    let untouched = Machine::untouched(agent.dir.path());
    work_together(&server);
    let status = |field: &str| server.field(&["pod", "web"], &format!(".status.containerStatuses[0].{field}"));
    let before = [status("containerID"), status("restartCount"), status("state.running.startedAt")];
    agent.kill();
    older.takes(&mut agent);
    agent.spawn();
    eventually("the node serves again", TIMEOUT, || {
        contains(&server.run(&["exec", "web", "--", "cat", "/conf/word"]).all(), "hello")
    });
    assert_eq!([status("containerID"), status("restartCount"), status("state.running.startedAt")], before);
    server.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {word: changed}}");
    let inside = || server.run(&["exec", "web", "--", "cat", "/conf/word"]).all();
    eventually("its volumes follow", TIMEOUT, || contains(&inside(), "changed"));
    server.ok(&["delete", "pod", "web"]);
    drop(agent);
    untouched.assert_unchanged();
}
