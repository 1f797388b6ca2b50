//! The control plane with whole nodes: separate processes, backups, traces, scheduling, garbage collection.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    TestNode,
    api::{CallError, call},
    contains, eventually,
    leftovers::Machine,
    node::busybox_tar,
};

const TIMEOUT: Duration = Duration::from_secs(30);

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 4
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'echo up; exec sleep 1000']}]
";

#[test]
fn a_server_and_its_agents_are_processes_of_their_own() {
    let mut server = TestNode::server(&[]);
    let mut agents = ["n1", "n2"].map(|name| TestNode::agent(&server, name));
    let untouched = agents.each_ref().map(|agent| Machine::untouched(agent.dir.path()));
    let tar = busybox_tar().to_str().unwrap();
    let unclear = server.run(&["image", "list"]);
    assert_eq!(unclear.code, 1);
    contains(&unclear.err, "there are several nodes, choose with --node: n1, n2").unwrap();
    for node in ["n1", "n2"] {
        server.ok(&["image", "--node", node, "import", tar, "localhost/busybox:1"]);
    }
    server.apply(DEPLOYMENT);
    server.wait("condition=Available", &["deployment/app"], TIMEOUT);
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let column = |path: &str| -> Vec<String> {
        server.field(&["pods"], &format!(".items[*]{path}")).split(' ').map(str::to_owned).collect()
    };
    let nodes: BTreeSet<String> = column(".spec.nodeName").into_iter().collect();
    assert_eq!(nodes.into_iter().collect::<Vec<_>>(), ["n1", "n2"], "both are used");
    let addresses: BTreeSet<String> = column(".status.podIP").into_iter().collect();
    assert_eq!(addresses.len(), 4, "no address twice: {addresses:?}");
    let names = column(".metadata.name");
    let all_speak = |server: &TestNode| {
        for name in &names {
            eventually("its log and its shell are reached", TIMEOUT, || {
                contains(&server.run(&["logs", name]).all(), "up\n")?;
                contains(&server.run(&["exec", name, "--", "hostname"]).all(), name)
            });
        }
    };
    all_speak(&server);
    let ids = column(".status.containerStatuses[0].containerID");
    // The server restarts: the agents reconnect, and nothing else changes.
    server.kill();
    server.spawn();
    server.wait_answering();
    all_speak(&server);
    // An agent restarts.
    agents[0].kill();
    agents[0].spawn();
    all_speak(&server);
    let after = server.field(&["pods"], ".items[*].status.containerStatuses[0].containerID");
    assert_eq!(after.split(' ').collect::<Vec<_>>(), ids);
    server.ok(&["delete", "deployment", "app"]);
    server.wait("delete", &["pods", "--all"], TIMEOUT);
    drop(agents);
    drop(server);
    untouched.iter().for_each(Machine::assert_unchanged);
}

#[test]
fn a_backup_of_a_running_node_becomes_another_node() {
    let node = TestNode::start(&["--node-name", "n1"]);
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}, data: {word: before}}");
    let uid = node.field(&["cm", "kept"], ".metadata.uid");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup").display().to_string();
    node.apply("{apiVersion: v1, kind: Secret, metadata: {name: hidden}, stringData: {word: sesame}}");
    node.ok(&["backup", &file]);
    let backup = fs::read(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = node.run(&["backup", &file]);
    assert!(again.code == 1 && again.all().contains("exists already"), "{}", again.all());
    // A symlink is replaced, not followed.
    let (link, precious) = (folder.path().join("link"), folder.path().join("precious"));
    fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    assert_eq!(node.run(&["backup", &link.display().to_string()]).code, 1);
    node.ok(&["backup", "--force", &link.display().to_string()]);
    assert!(link.symlink_metadata().unwrap().is_file() && fs::read_to_string(&precious).unwrap() == "precious");
    let holds = |text: &str| backup.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(holds("\"word\":\"before\"") && !holds("c2VzYW1l") && !holds("sesame"), "Secrets are not in the clear");
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}, data: {word: after}}");
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: later}}");
    // Its Secrets are encrypted with keys that it does not contain.
    let mut other = TestNode::stopped(&["--node-name", "n1", "--restore", &file]);
    other.spawn();
    eventually("it refuses to start", TIMEOUT, || contains(&other.log(), "encryption-config.yaml is missing"));
    other.wait_ended();
    fs::copy(node.dir.path().join("encryption-config.yaml"), other.dir.path().join("encryption-config.yaml")).unwrap();
    other.spawn();
    other.wait_ready();
    assert_eq!(other.field(&["cm", "kept"], ".data.word"), "before");
    assert_eq!(other.field(&["cm", "kept"], ".metadata.uid"), uid);
    assert_eq!(other.run(&["get", "cm", "later"]).code, 1);
    assert_eq!(other.field(&["secret", "hidden"], ".data.word"), "c2VzYW1l");
    // An existing store is not overwritten.
    other.terminate();
    other.spawn();
    eventually("it refuses to start", TIMEOUT, || contains(&other.log(), "--restore"));
    let gone = node.run(&["backup", "/nowhere/backup"]);
    assert_eq!(gone.code, 1, "{}", gone.all());
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

/// The same with a volume of each kind that is mounted differently.
const TRACED: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {hello: world}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: cache, emptyDir: {medium: Memory}}
  - {name: words, configMap: {name: words}}
  - {name: disk, persistentVolumeClaim: {claimName: disk}}
  containers:
  - name: c
    image: 'localhost/busybox:1'
    command: [sleep, '1000']
    volumeMounts:
    - {name: words, mountPath: /words}
    - {name: disk, mountPath: /disk}
    - {name: cache, mountPath: /part, subPath: part}
";

/// What fields of the Pod `web` become in the kernel is explained, with what the kernel has.
fn explained(node: &TestNode) {
    let linux = |field: &str| node.ok(&["explain", field, "--linux", "--pod", "web"]);
    let found: Value = serde_json::from_str(&node.ok(&["inspect", "pod", "web", "-o", "json"])).unwrap();
    let network = found["sandbox"]["pause"]["namespaces"]["net"].to_string();
    contains(&linux("pod.spec.hostNetwork"), &format!("LIVE:   {network} (pod/web)")).unwrap();
    let cgroup = found["containers"][0]["cgroup"]["path"].as_str().unwrap();
    contains(&linux("pods.spec.containers.name"), cgroup).unwrap();
    contains(&linux("deployment.spec.template.spec.containers.securityContext.capabilities"), "00000000a80425fb")
        .unwrap();
    let refused =
        |arguments: &[&str], why: &str| contains(&node.run(&[&["explain"], arguments].concat()).err, why).unwrap();
    refused(&["pod.spec.nonsense", "--linux"], "field \"nonsense\" does not exist");
    refused(&["pod.spec.affinity.nonsense", "--linux"], "field \"nonsense\" does not exist");
    refused(&["service.spec.ports", "--linux"], "only what a Pod's spec asks for");
    refused(&["pod.spec.hostPID", "--linux", "--pod", "web", "-c", "none"], "container none");
}

/// What carries a Service's traffic to the Pod `web` is shown: by `inspect` as in the kernel, with the name of the Service's port;
/// by `trace` as the transactions that added and removed it.
fn serves(node: &TestNode) {
    node.ok(&["label", "pod", "web", "app=web"]);
    node.apply(SERVICE);
    let ip = node.field(&["pod", "web"], ".status.podIP");
    let cluster_ip = node.field(&["service", "front"], ".spec.clusterIP");
    eventually("the elements are there", TIMEOUT, || {
        contains(&node.ok(&["inspect", "pod", "web"]), "default/front:http")
    });
    let found: Value = serde_json::from_str(&node.ok(&["inspect", "pod", "web", "-o", "json"])).unwrap();
    let elements = found["services"].as_array().unwrap();
    let names = |map: &str, service: &str| {
        elements.iter().filter(|e| (&e["map"], &e["service"]) == (&json!(map), &json!(service))).count()
    };
    let counts = ["endpoints", "cluster-ips", "services"]
        .map(|map| [names(map, "default/front:http"), names(map, "default/front:more")]);
    assert_eq!(counts, [[1, 1]; 3], "{elements:#?}");
    assert_eq!(elements.iter().filter(|e| e["set"] == "own").count(), 1, "{elements:#?}");
    explained(node);
    let text = node.ok(&["inspect", "pod", "web"]);
    let line = |part: &str| text.lines().find(|l| l.contains(part)).unwrap_or_else(|| panic!("no {part} in\n{text}"));
    for (part, also) in
        [(format!("{ip} . 8080"), "map endpoints"), (format!("{cluster_ip} . tcp . 80"), "map cluster-ips")]
    {
        let line = line(&part);
        assert!(line.contains(also) && line.ends_with("Service default/front:http"), "{line}");
    }
    let transactions = || -> Vec<(String, String)> {
        let trace: Value = serde_json::from_str(&node.ok(&["trace", "pod", "web", "-o", "json"])).unwrap();
        let all = trace["items"].as_array().unwrap().iter();
        let all = all.map(|i| (i["call"].as_str().unwrap().to_owned(), i["field"].as_str().unwrap().to_owned()));
        all.filter(|(call, _)| call.starts_with("nft(")).collect()
    };
    let told = transactions();
    let (call, field) = told.first().unwrap_or_else(|| panic!("no transaction in {:#?}", transactions()));
    assert_eq!(field, "metadata.labels");
    contains(call, "nft(add element ip podwright endpoints { 0x")
        .and(contains(call, &format!(": {ip} . 8080 }}")))
        .unwrap();
    node.ok(&["label", "pod", "web", "app-"]);
    eventually("its going is told", TIMEOUT, || match transactions().last() {
        Some((call, _)) if call.starts_with("nft(delete element ip podwright ") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    node.ok(&["delete", "service", "front"]);
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: front}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: more, port: 1234, targetPort: 4321}]
";

#[test]
fn trace_and_inspect_tell_a_pods_story_and_the_protocol_is_plain() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(TRACED);
    node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    let trace: Value = serde_json::from_str(&node.ok(&["trace", "pod", "web", "-o", "json"])).unwrap();
    let items = trace["items"].as_array().unwrap();
    let at = |part: &str| {
        let found = items.iter().position(|i| i["call"].as_str().is_some_and(|call| call.contains(part)));
        found.unwrap_or_else(|| panic!("no {part} in {trace:#}"))
    };
    let order = ["Pod default/web", "binding", "clone3", "overlay"].map(at);
    assert!(order.is_sorted(), "{order:?} in {trace:#}");
    let times: Vec<&str> = items.iter().map(|i| i["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{trace:#}");
    assert!(items.iter().any(|i| i["who"].as_str().is_some_and(|who| who.contains("scheduler"))), "{trace:#}");
    contains(&node.ok(&["trace", "pod", "web"]), "clone3").unwrap();
    // Recording a start does not write to disk.
    let (mounts, journals) = (std::fs::read_to_string("/proc/self/mounts").unwrap(), node.dir.path().join("journals"));
    contains(&mounts, &format!("tmpfs {} tmpfs ", journals.display())).unwrap();
    assert_eq!(std::fs::read_dir(&journals).unwrap().count(), 1, "one a Pod");
    node.apply(&POD.replace("{name: web}", "{name: quiet, annotations: {podwright/journal: 'off'}}"));
    node.wait("condition=Ready", &["pod/quiet"], TIMEOUT);
    let quiet = node.ok(&["trace", "pod", "quiet"]);
    assert!(quiet.contains("binding") && !quiet.contains("clone3"), "{quiet}");
    // Each operation on the node names its manifest field; the scheduler shows how it chose.
    let of_node = items.iter().filter(|i| i["who"].as_str().is_some_and(|who| who.starts_with("node")));
    let asked = |call: &str, field: &str| {
        let found = items.iter().find(|i| i["call"].as_str().is_some_and(|c| c.contains(call)));
        let found = found.unwrap_or_else(|| panic!("no {call} in {trace:#}"));
        assert_eq!(found["field"], field, "{found:#}");
    };
    let nameless: Vec<&Value> = of_node.filter(|i| i["field"] == "").collect();
    assert!(nameless.is_empty(), "{nameless:#?}");
    asked("netlink(add link", "spec.hostNetwork");
    asked("netlink(add address", "spec.hostNetwork");
    asked("overlay", "spec.containers{c}");
    asked("/volumes/cache, mode=0777", "spec.volumes{cache}.emptyDir");
    asked("/subpaths/c/2, recursive", "spec.containers{c}.volumeMounts[2].subPath");
    for mounted in ["/volumes/words", "/local-volumes/", "/subpaths/c/2"] {
        let found = items.iter().filter_map(|i| Some((i["call"].as_str()?, i["field"].as_str()?)));
        let mut binds = found.filter(|(call, field)| call.starts_with("open_tree(") && *field == "spec.containers{c}");
        assert!(binds.any(|(call, _)| call.contains(mounted)), "no bind of {mounted} in {trace:#}");
    }
    let bound = items.iter().find(|i| i["call"].as_str().is_some_and(|c| c.contains("binding"))).unwrap();
    contains(bound["call"].as_str().unwrap(), "looked at 1 of 1 nodes, 1 fit, chose ").unwrap();
    serves(&node);
    // inspect shows the real state.
    let found: Value = serde_json::from_str(&node.ok(&["inspect", "pod", "web", "-o", "json"])).unwrap();
    let pid = found["containers"][0]["pid"].as_u64().unwrap();
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap().display().to_string();
    let text = node.ok(&["inspect", "pod", "web"]);
    for name in ["net", "mnt", "uts", "ipc", "pid"] {
        let inode = link(name).trim_end_matches(']').rsplit('[').next().unwrap().to_owned();
        contains(&text, &inode).unwrap();
    }
    contains(&text, &node.field(&["pod", "web"], ".status.podIP")).and(contains(&text, &pid.to_string())).unwrap();

    // The raw protocol.
    let socket = node.socket();
    let pods = json!({"resource": "pods", "namespace": "default", "options": {"fieldSelector": "metadata.name=web"}});
    let list = call(&socket, "list", pods).unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("PodList"), &json!("web")));
    let nobody = json!({"resource": "pods", "namespace": "default", "name": "nobody"});
    assert!(matches!(call(&socket, "get", nobody), Err(CallError::Refused { .. })));
    assert!(matches!(call(&socket, "gett", json!({})), Err(CallError::Refused { code: -32601, .. })));
    node.ok(&["delete", "pods", "--all"]);
}

const PLACES: &str = "
apiVersion: v1
kind: Pod
metadata: {name: picky}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {disk: fast}
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec:
  containers: [{name: c, image: 'localhost/busybox:1', resources: {requests: {cpu: 5k}}}]
";

#[test]
fn pods_wait_for_a_node_that_suits_them() {
    let node = TestNode::start(&["--node-name", "n1", "--max-pods", "3"]);
    node.import_busybox();
    node.apply(PLACES);
    let said = |pod: &str, part: &str| {
        eventually(part, TIMEOUT, || contains(&node.ok(&["events", "--for", &format!("pod/{pod}")]), part));
    };
    said("picky", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.");
    said("huge", "0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(node.field(&["pod", "huge"], ".status.conditions[?(@.type==\"PodScheduled\")].reason"), "Unschedulable");
    node.ok(&["label", "node", "n1", "disk=fast"]);
    node.wait("condition=Ready", &["pod/picky"], TIMEOUT);
    node.ok(&["patch", "node", "n1", "-p", "{\"spec\":{\"unschedulable\":true}}"]);
    node.apply(POD);
    said("web", "1 node(s) were unschedulable");
    node.ok(&["patch", "node", "n1", "-p", "{\"spec\":{\"unschedulable\":false}}"]);
    node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    // No more Pods than the node accepts.
    node.apply(&(POD.replace("name: web", "name: third") + "---" + &POD.replace("name: web", "name: fourth")));
    eventually("one of them is one too many", TIMEOUT, || {
        let events = node.ok(&["events", "-o", "jsonpath={.items[*].message}"]);
        contains(&events, "1 Too many pods")
    });
    node.ok(&["delete", "pod", "web"]);
    for pod in ["pod/third", "pod/fourth"] {
        node.wait("condition=Ready", &[pod], TIMEOUT);
    }
    node.ok(&["delete", "pods", "--all"]);
}

const FAMILY: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: lab}
spec: {selector: {app: app}, clusterIP: 10.96.50.50, ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: held, namespace: lab, finalizers: [test/held]}
---
";

#[test]
fn what_is_deleted_takes_its_own_along() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(&(FAMILY.to_owned() + &DEPLOYMENT.replace("name: app}", "name: app, namespace: lab}")));
    node.wait("condition=Available", &["-n", "lab", "deployment/app"], TIMEOUT);
    let taken = FAMILY.split("---").nth(1).unwrap().replace("name: app,", "name: second,");
    let refused = node.run_with(&["apply", "-f", "-"], taken.as_bytes());
    assert_eq!(refused.code, 1, "{}", refused.all());
    contains(&refused.err, "provided IP is already allocated").unwrap();
    assert_eq!(node.run(&["get", "serviceaccount", "default", "-n", "lab"]).code, 0);
    // A deleted Pod of the set is replaced; orphans stay.
    let pods = || node.field(&["-n", "lab", "pods"], ".items[*].metadata.name");
    let first = pods().split(' ').next().unwrap().to_owned();
    node.ok(&["-n", "lab", "delete", "pod", &first]);
    node.wait("jsonpath={.status.readyReplicas}=4", &["-n", "lab", "deployment/app"], TIMEOUT);
    assert!(!pods().contains(&first));
    node.ok(&["-n", "lab", "delete", "deployment", "app", "--cascade=orphan"]);
    assert_eq!(node.ok(&["-n", "lab", "get", "replicasets", "-o", "name"]).lines().count(), 1);
    assert_eq!(pods().split(' ').count(), 4);
    node.ok(&["-n", "lab", "delete", "replicasets", "--all", "--cascade=foreground"]);
    node.wait("delete", &["-n", "lab", "pods", "--all"], TIMEOUT);
    // A Namespace waits for finalizers, and accepts nothing new.
    node.apply(&POD.replace("name: web", "name: web, namespace: lab"));
    node.ok(&["delete", "namespace", "lab", "--wait=false"]);
    let late = node.run_with(&["create", "-n", "lab", "-f", "-"], POD.replace("name: web", "name: late").as_bytes());
    assert_eq!(late.code, 1);
    contains(&late.err, "because it is being terminated").unwrap();
    node.wait("delete", &["-n", "lab", "pods", "--all"], TIMEOUT);
    assert_eq!(node.field(&["namespace", "lab"], ".status.phase"), "Terminating");
    node.ok(&["-n", "lab", "patch", "cm", "held", "--type=merge", "-p", "{\"metadata\":{\"finalizers\":null}}"]);
    node.wait("delete", &["namespace/lab"], TIMEOUT);
    // The address is free again.
    node.apply(&FAMILY.split("---").nth(1).unwrap().replace(", namespace: lab", ""));
    drop(node);
    untouched.assert_unchanged();
}

/// Requested ends report no errors.
#[test]
fn whoever_is_told_to_end_ends_without_an_error() {
    for mut it in [TestNode::server(&[]), TestNode::start(&[])] {
        assert!(it.terminate().is_some_and(|status| status.success()), "{}", it.log());
        let log = it.log();
        assert!(!log.contains("ERROR") && !log.contains("the watch cache"), "{log}");
    }
}
