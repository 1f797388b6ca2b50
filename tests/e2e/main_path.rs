//! The main path: a manifest becomes running Pods that respond through their Service.

use std::{collections::BTreeSet, time::Duration};

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The three typical first manifests.
const NAMESPACE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: lab}
";
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: lab}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, 'echo one web > /www/index.html; exec httpd -f -p 80 -h /www']
";
const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, namespace: lab}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: localhost/busybox:1
        command: [sh, -c, 'hostname > /www/index.html; exec httpd -f -p 8080 -h /www']
        ports: [{containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: lab}
spec:
  selector: {app: app}
  ports: [{port: 80, targetPort: 8080}]
";

#[test]
fn lab_manifests_run_and_the_service_answers_from_both_backends() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    for manifest in [NAMESPACE, POD, DEPLOYMENT] {
        node.apply(manifest);
    }
    node.wait("condition=Ready", &["-n", "lab", "pods", "--all"], TIMEOUT);
    node.wait("condition=Available", &["-n", "lab", "deployment/app"], TIMEOUT);
    let backends: BTreeSet<String> = node
        .field(&["-n", "lab", "pods", "-l", "app=app"], ".items[*].metadata.name")
        .split(' ')
        .map(str::to_owned)
        .collect();
    let ip = node.field(&["-n", "lab", "service", "app"], ".spec.clusterIP");
    for host in ["app", "app.lab.svc.cluster.local", &ip] {
        // Debian's static busybox wget crashes on names; its nc does not.
        let fetch = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {host} 80");
        let mut heard = BTreeSet::new();
        eventually(&format!("both backends answer at {host}"), TIMEOUT, || {
            let answer = node.run(&["-n", "lab", "exec", "web", "--", "sh", "-c", &fetch]);
            if answer.code != 0 || !answer.out.contains(" 200 OK") {
                return Err(answer.all());
            }
            heard.insert(answer.out.lines().last().unwrap_or("").trim().to_owned());
            if heard == backends { Ok(()) } else { Err(format!("heard {heard:?} of {backends:?}")) }
        });
    }
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_host_port_leads_to_its_pod() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(NAMESPACE);
    node.apply(&POD.replace("  - name: web", "  - name: web\n    ports: [{containerPort: 80, hostPort: 8088}]"));
    node.apply(&POD.replace("name: web, namespace", "name: client, namespace"));
    node.wait("condition=Ready", &["-n", "lab", "pods", "--all"], TIMEOUT);
    let ip = node.field(&["-n", "lab", "pod", "web"], ".status.hostIP");
    let fetch = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {ip} 8088");
    let asked = || node.run(&["-n", "lab", "exec", "client", "--", "sh", "-c", &fetch]);
    eventually("the node's port answers for the Pod", TIMEOUT, || contains(&asked().all(), "one web"));
    assert_eq!(node.ok(&["-n", "lab", "get", "events", "--field-selector", "type=Warning", "-o", "name"]), "");
    // A second Pod that wants the port must wait for it.
    node.apply(
        &POD.replace("name: web, namespace", "name: late, namespace")
            .replace("  - name: web", "  - name: web\n    ports: [{containerPort: 80, hostPort: 8088}]"),
    );
    node.wait("condition=PodScheduled=False", &["-n", "lab", "pod/late"], TIMEOUT);
    node.ok(&["-n", "lab", "delete", "pod", "web"]);
    node.wait("condition=Ready", &["-n", "lab", "pod/late"], TIMEOUT);
    eventually("the port answers for the next Pod", TIMEOUT, || contains(&asked().all(), "one web"));
}

#[test]
fn a_hundred_pods_come_and_go_without_a_trace() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(NAMESPACE);
    // The folders of the cgroup tree appear with the first Pod and stay with the node.
    node.apply(POD);
    node.wait("condition=Ready", &["-n", "lab", "pod/web"], TIMEOUT);
    node.ok(&["-n", "lab", "delete", "pod", "web"]);
    let fresh = Machine::look(node.dir.path());
    let pods: String =
        (0..100).map(|i| POD.replace("name: web, namespace", &format!("name: p{i}, namespace")) + "---").collect();
    node.apply(&pods);
    eventually("100 Pods run", Duration::from_secs(60), || {
        let phases = node.field(&["-n", "lab", "pods"], ".items[*].status.phase");
        let running = phases.split(' ').filter(|p| *p == "Running").count();
        if running == 100 { Ok(()) } else { Err(format!("{running} run\n{}", node.ok(&["-n", "lab", "get", "pods"]))) }
    });
    node.ok(&["-n", "lab", "delete", "pods", "--all", "--timeout", "60s"]);
    fresh.assert_unchanged();
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn mistakes_are_told_clearly() {
    let node = TestNode::start(&[]);
    let answer = node.run_with(&["apply", "-f", "-"], POD.replace("image:", "imagee:").as_bytes());
    assert_eq!(answer.code, 1, "{}", answer.all());
    contains(&answer.err, "unknown field \"spec.containers[0].imagee\"").unwrap();
    node.apply(NAMESPACE);
    let answer = node.run_with(&["apply", "-f", "-"], POD.replace("name: web\n", "name: Web_1\n").as_bytes());
    assert_eq!(answer.code, 1, "{}", answer.all());
    contains(&answer.err, "spec.containers[0].name: Invalid value: \"Web_1\"").unwrap();
    let answer = node.run(&["get", "pod", "nobody"]);
    assert_eq!((answer.code, answer.err.as_str()), (1, "Error from server (NotFound): pods \"nobody\" not found\n"));
    let answer = node.run(&["get", "gizmos"]);
    assert_eq!((answer.code, answer.err.as_str()), (1, "error: the server doesn't have a resource type \"gizmos\"\n"));
}
