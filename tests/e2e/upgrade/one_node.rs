//! One node that is upgraded while its Pods run, and cannot be downgraded.

use serde_json::{Value, json};

use super::{Older, TIMEOUT, inspected, running};
use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {word: before}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {word: sesame}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {n: {type: integer}}}}}}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {selector: {app: app}, ports: [{port: 80, targetPort: 8080}]}
";

const PODS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app, of: test}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: localhost/busybox:1
        command: [sh, -c, 'hostname > /www/index.html; exec httpd -f -p 8080 -h /www']
        readinessProbe: {exec: {command: [test, '!', -e, /tmp/away]}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db, of: test}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: counts
        image: localhost/busybox:1
        command: [sh, -c, 'i=0; while :; do echo $i; i=$((i+1)); sleep 0.1; done']
        livenessProbe: {exec: {command: [test, '!', -e, /tmp/ill]}, periodSeconds: 1, failureThreshold: 1}
        env: [{name: WORD, valueFrom: {secretKeyRef: {name: hidden, key: word}}}]
        volumeMounts: [{name: data, mountPath: /data}, {name: conf, mountPath: /conf}, {name: hidden, mountPath: /hidden}]
      - name: second
        image: localhost/busybox:1
        command: [sh, -c, '[ -e /data/once ] && exec sleep 1000000; touch /data/once; exit 3']
        volumeMounts: [{name: data, mountPath: /data}]
      volumes:
      - {name: data, emptyDir: {}}
      - {name: conf, configMap: {name: conf}}
      - {name: hidden, secret: {secretName: hidden}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: done}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: localhost/busybox:1, command: [echo, done]}]
";

/// All kinds of objects that an upgrade must not change: without what the server itself keeps writing.
fn kept(node: &TestNode) -> Value {
    let kinds = "configmaps,secrets,services,serviceaccounts,customresourcedefinitions,jobs,controllerrevisions";
    let mut all: Value =
        serde_json::from_str(&node.ok(&["get", kinds, "-o", "json", "--show-managed-fields"])).unwrap();
    let items = all["items"].as_array_mut().unwrap();
    assert!(items.len() > 5, "{items:?}");
    items.sort_by_key(|item| format!("{} {}", item["kind"], item["metadata"]["name"]));
    all["items"].take()
}

/// The numbers counted by Pod `db-0`: none missing, none duplicated.
fn counted(node: &TestNode) -> usize {
    let log = node.ok(&["logs", "db-0", "-c", "counts"]);
    let numbers: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>(), "{log}");
    numbers.len()
}

fn says(node: &TestNode, script: &str) -> String {
    node.ok(&["exec", "db-0", "-c", "counts", "--", "sh", "-c", script])
}

/// A node of the older programs with everything of this file, its Pods running.
fn old_node(older: &Older) -> TestNode {
    let mut node = TestNode::stopped(&["--node-name", "n1"]);
    older.takes(&mut node);
    node.spawn();
    node.wait_ready();
    node.import_busybox();
    node.apply(OBJECTS);
    node.apply(PODS);
    node.wait("condition=Ready", &["pods", "-l", "of=test"], TIMEOUT);
    node.wait_field(&["pod", "db-0"], ".status.containerStatuses[1].restartCount", "1", TIMEOUT);
    node.wait("condition=Ready", &["pod/db-0"], TIMEOUT);
    node.wait("condition=Complete", &["job/done"], TIMEOUT);
    // With the command of its own release: a newer one uses another name for custom resources.
    let widget = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}, spec: {n: 7}}";
    let made = older.client(&node, &["apply", "-f", "-"], widget);
    assert_eq!(made.out, "widget.example.com/w created\n", "{}", made.all());
    says(&node, "echo kept | tee /data/state > /tmp/state");
    node
}

#[test]
fn pods_run_through_an_upgrade_and_the_way_back_is_refused() {
    let Some(older) = Older::here() else { return };
    let mut node = old_node(&older);
    let untouched = Machine::untouched(node.dir.path());
    let (before, objects, lines) = (running(&node, "of=test"), kept(&node), counted(&node));
    assert_eq!(before.len(), 3, "{before:?}");
    assert!(before.keys().all(|pod| older.holds(&node, pod)));

    // 1. The state after systemd stops a service with `KillMode=process`, or an isolated node after a SIGKILL.
    node.kill();
    node.be(None);
    node.spawn();
    node.wait_ready();
    node.wait("condition=Ready", &["pods", "-l", "of=test"], TIMEOUT);
    contains(&node.log(), "migrating the store's file to layout 2").unwrap();
    assert_eq!(running(&node, "of=test"), before);
    assert_eq!(kept(&node), objects);
    assert_eq!(node.field(&["widget", "w"], ".spec.n"), "7");
    let seen = older.client(&node, &["get", "widgets,pods", "-o", "name"], "");
    contains(&seen.out, "widget.example.com/w\npod/app-").unwrap();
    assert!(before.keys().all(|pod| older.holds(&node, pod)), "the shims are those that were there");

    // 2. The old shims handle all requests of an agent.
    let told = says(&node, "cat /data/state /tmp/state /conf/word /hidden/word; echo $WORD");
    assert_eq!(told, "kept\nkept\nbeforesesamesesame\n");
    eventually("it counts on", TIMEOUT, || (counted(&node) > lines + 5).then_some(()).ok_or("it does not".to_owned()));
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {word: after}}");
    eventually("a volume changes", TIMEOUT, || contains(&says(&node, "cat /conf/word"), "after"));
    let web = before.keys().find(|name| name.starts_with("app-")).unwrap().as_str();
    node.ok(&["exec", web, "--", "touch", "/tmp/away"]);
    node.wait("condition=Ready=False", &[&format!("pod/{web}")], TIMEOUT);
    node.ok(&["exec", web, "--", "rm", "/tmp/away"]);
    node.wait("condition=Ready", &[&format!("pod/{web}")], TIMEOUT);
    // A container's own files are removed with it, so the next one is healthy.
    says(&node, "touch /tmp/ill");
    node.wait_field(&["pod", "db-0"], ".status.containerStatuses[0].restartCount", "1", TIMEOUT);
    node.wait("condition=Ready", &["pod/db-0"], TIMEOUT);
    assert!(older.holds(&node, "db-0"), "a container is started anew by the old shim");
    assert_eq!(inspected(&node, web)["errors"], json!([]));

    // 3. New Pods have a new shim, and reach the old ones.
    node.ok(&["delete", "pod", web]);
    node.ok(&["rollout", "status", "deployment/app", "--timeout=30s"]);
    let after = running(&node, "app=app");
    let new = after.keys().find(|name| !before.contains_key(*name)).expect("another Pod came").as_str();
    let old = after.keys().find(|name| before.contains_key(*name)).expect("one stayed").as_str();
    assert!(!older.holds(&node, new) && older.holds(&node, old));
    assert_eq!(after[old], before[old]);
    let ip = node.field(&["service", "app"], ".spec.clusterIP");
    let fetch = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {ip} 80 | tail -n 1");
    for pod in [new, old] {
        let asked = || node.run(&["exec", "db-0", "-c", "counts", "--", "sh", "-c", &fetch]).all();
        eventually(&format!("{pod} answers through the Service"), TIMEOUT, || contains(&asked(), pod));
    }

    // 4. The old program changes nothing.
    let (before, objects) = (running(&node, "of=test"), kept(&node));
    node.kill();
    older.takes(&mut node);
    let written = node.log().len();
    node.spawn();
    node.wait_ended();
    contains(&node.log()[written..], "opening the store: store: the store's layout has version 2, not 1").unwrap();
    for running in before.values() {
        assert!(running.pids.iter().all(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists()), "{running:?}");
    }
    node.be(None);
    node.spawn();
    node.wait_ready();
    node.wait("condition=Ready", &["pods", "-l", "of=test"], TIMEOUT);
    assert_eq!(running(&node, "of=test"), before);
    assert_eq!(kept(&node), objects);

    // 5. Old and new Pods end the same way.
    node.ok(&["delete", "deployment/app", "statefulset/db", "job/done", "--cascade=foreground", "--timeout=60s"]);
    assert_eq!(node.ok(&["get", "pods", "-o", "name"]), "");
    drop(node);
    untouched.assert_unchanged();
}

/// Without an agent, containers of an old Pod exit and a new agent learns it from the old shim's records.
#[test]
fn what_ends_between_the_two_is_known_afterwards() {
    let Some(older) = Older::here() else { return };
    let mut node = TestNode::stopped(&[]);
    older.takes(&mut node);
    node.spawn();
    node.wait_ready();
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    for (name, end) in [("ends", "sleep 2; exit 9"), ("shot", "exec sleep 1000000")] {
        node.apply(&ENDS.replace("NAME", name).replace("END", end));
        node.wait_field(&["pod", name], ".status.phase", "Running", TIMEOUT);
    }
    let shot = inspected(&node, "shot")["sandbox"]["pause"]["pid"].as_u64().unwrap();
    let ends = inspected(&node, "ends")["containers"][0]["pid"].as_u64().unwrap();
    node.kill();
    let status = std::fs::read_to_string(format!("/proc/{shot}/status")).unwrap();
    let shim: i32 = status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::SIGKILL).unwrap();
    let gone = || !std::path::Path::new(&format!("/proc/{ends}")).exists();
    eventually("it ends while nobody looks", TIMEOUT, || gone().then_some(()).ok_or("it runs".to_owned()));
    node.be(None);
    node.spawn();
    node.wait_ready();
    let ended = ".status.containerStatuses[0].state.terminated";
    for (name, code, reason) in [("ends", "9", "Error"), ("shot", "137", "ContainerStatusUnknown")] {
        node.wait_field(&["pod", name], ".status.phase", "Failed", TIMEOUT);
        let found = ["exitCode", "reason"].map(|field| node.field(&["pod", name], &format!("{ended}.{field}")));
        assert_eq!(json!(found), json!([code, reason]), "{name}");
    }
    node.ok(&["delete", "pod", "ends", "shot"]);
    drop(node);
    untouched.assert_unchanged();
}

const ENDS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sh, -c, 'END']}]
";
