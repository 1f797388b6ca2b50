//! Pods' interfaces made by CNI plugins: Debian's, and one of the test's own that writes down what it is asked.

use std::{os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use crate::support::{TestNode, contains, eventually};

const TIMEOUT: Duration = Duration::from_secs(60);
const DEBIANS: &str = "/usr/lib/cni";

/// A folder with networks, a plugin of the test's own, and what plugins keep.
struct Networks {
    dir: tempfile::TempDir,
}

impl Networks {
    fn new() -> Networks {
        let dir = tempfile::Builder::new().prefix("pw").tempdir().unwrap();
        for folder in ["net.d", "bin", "asked"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Networks { dir }
    }

    fn path(&self, of: &str) -> PathBuf {
        self.dir.path().join(of)
    }

    /// A node whose Pods are attached to them.
    fn node(&self) -> TestNode {
        let (networks, plugins) = (self.path("net.d"), format!("{},{DEBIANS}", self.path("bin").display()));
        TestNode::stopped(&["--cni-conf-dir", networks.to_str().unwrap(), "--cni-bin-dir", &plugins])
    }

    fn write(&self, version: &str, plugins: Value) {
        let list = json!({ "cniVersion": version, "name": "pods", "plugins": plugins });
        std::fs::write(self.path("net.d/10-pods.conflist"), list.to_string()).unwrap();
    }

    /// Addresses for Pods, by Debian's `host-local`.
    fn ipam(&self) -> Value {
        let range = json!({ "subnet": "10.244.0.0/24", "rangeStart": "10.244.0.50" });
        json!({ "type": "host-local", "ranges": [[range]], "routes": [{ "dst": "0.0.0.0/0" }], "dataDir": self.path("data") })
    }

    /// The addresses that `host-local` has given and not got back.
    fn given(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("data/pods")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut all: Vec<String> = names.filter(|name| name.starts_with("10.")).collect();
        all.sort();
        all
    }

    /// Installs a plugin `scribe` that writes each call into a file, passes the result on, and fails where a file says so.
    fn install_scribe(&self) {
        let script = r#"#!/bin/sh
set -eu
input=$(cat)
asked=ASKED
n=$(ls "$asked" | grep -c ^call- || true)
printf '%s\n%s\n%s\n%s\n' "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_ARGS" "$input" > "$asked/.new-$$"
# Calls overlap: each takes the first number that is free, and is there whole.
until ln "$asked/.new-$$" "$asked/call-$(printf %03d "$n")" 2>/dev/null; do n=$((n + 1)); done
rm "$asked/.new-$$"
if [ -e "$asked/fail-$CNI_COMMAND" ]; then
    echo '{"cniVersion": "1.1.0", "code": 100, "msg": "no luck", "details": "with '"$CNI_COMMAND"'"}'
    exit 1
fi
if [ "$CNI_COMMAND" = ADD ]; then
    echo '{"cniVersion":"1.1.0","ips":[{"address":"10.244.0.77/24"}]}'
fi
"#;
        let path = self.path("bin/scribe");
        std::fs::write(&path, script.replace("ASKED", self.path("asked").to_str().unwrap())).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// The scribe's calls: command, container, `CNI_ARGS`, configuration.
    fn calls(&self) -> Vec<(String, String, String, Value)> {
        let mut files: Vec<_> =
            std::fs::read_dir(self.path("asked")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let is_call = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("call-");
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            let mut lines = text.splitn(4, '\n').map(str::to_owned);
            let mut next = || lines.next().unwrap_or_default();
            let (command, container, arguments) = (next(), next(), next());
            (command, container, arguments, serde_json::from_str(&next()).unwrap_or(Value::Null))
        };
        files.into_iter().filter(is_call).map(read).collect()
    }

    fn wait_call(&self, command: &str) -> (String, String, String, Value) {
        eventually(&format!("a call of {command}"), TIMEOUT, || {
            let calls = self.calls();
            let found = calls.iter().rev().find(|(is, ..)| is == command).cloned();
            found.ok_or_else(|| format!("{calls:?}"))
        })
    }
}

fn pod(name: &str, ports: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}}}, spec: {{
          terminationGracePeriodSeconds: 0, containers: [{{name: c, image: 'localhost/busybox:1', ports: [{ports}],
          command: [sh, -c, 'mkdir -p /www && echo {name} > /www/name && httpd -f -p 80 -h /www']}}]}}}}\n---\n"
    )
}

/// The Pod `two`, with a port on its node.
fn with_host_port() -> String {
    pod("two", "{containerPort: 80, hostPort: 8088}")
}

fn pods() -> String {
    pod("one", "") + &with_host_port()
}

fn ip(node: &TestNode, pod: &str) -> String {
    node.field(&["pod", pod], ".status.podIP")
}

/// One Pod asks an address for the name of who answers.
fn asks(node: &TestNode, pod: &str, address: &str, name: &str) {
    let (host, port) = address.split_once(':').unwrap_or((address, "80"));
    let fetch = format!("printf 'GET /name HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {host} {port}");
    eventually(&format!("{pod} reaches {address}"), TIMEOUT, || {
        let answer = node.run(&["exec", pod, "--", "sh", "-c", &fetch]);
        match answer.code == 0 && answer.out.lines().last() == Some(name) {
            true => Ok(()),
            false => Err(answer.all()),
        }
    });
}

#[test]
fn pods_on_a_bridge_keep_their_addresses_and_give_them_back() {
    let networks = Networks::new();
    let bridge =
        json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": networks.ipam() });
    let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true });
    networks.write("1.0.0", json!([bridge, ports]));
    let mut node = networks.node();
    node.spawn();
    node.wait_ready();
    node.import_busybox();
    node.apply(&pods());
    node.wait("condition=Ready", &["pod/one", "pod/two"], TIMEOUT);
    let [one, two] = ["one", "two"].map(|pod| ip(&node, pod));
    let mut given = [one.clone(), two.clone()];
    given.sort();
    assert_eq!(networks.given(), given);
    asks(&node, "one", &two, "two");
    asks(&node, "two", &one, "one");
    // The plugin has mapped the node's port.
    let host = node.field(&["pod", "two"], ".status.hostIP");
    asks(&node, "one", &format!("{host}:8088"), "two");
    contains(&node.ok(&["inspect", "pod", "one"]), &one).unwrap();

    node.kill();
    node.spawn();
    node.wait_ready();
    node.wait("condition=Ready", &["pod/one", "pod/two"], TIMEOUT);
    assert_eq!(["one", "two"].map(|pod| ip(&node, pod)), [one.clone(), two]);
    asks(&node, "two", &one, "one");
    node.ok(&["delete", "pod", "two"]);
    eventually("its address is given back", TIMEOUT, || match networks.given() {
        given if given == [one.clone()] => Ok(()),
        given => Err(format!("{given:?}")),
    });
    assert!(node.terminate().unwrap().success());
    assert_eq!(networks.given(), [""; 0]);
}

#[test]
fn services_lead_to_pods_of_plugins() {
    let networks = Networks::new();
    networks.write("1.0.0", json!([{ "type": "ptp", "ipam": networks.ipam() }]));
    let mut node = networks.node();
    node.spawn();
    node.wait_ready();
    node.import_busybox();
    node.apply(&pods());
    node.apply("{apiVersion: v1, kind: Service, metadata: {name: two}, spec: {selector: {app: two}, ports: [{port: 81, targetPort: 80}]}}");
    node.wait("condition=Ready", &["pod/one", "pod/two"], TIMEOUT);
    asks(&node, "one", &ip(&node, "two"), "two");
    let service = node.field(&["service", "two"], ".spec.clusterIP");
    asks(&node, "one", &format!("{service}:81"), "two");
    asks(&node, "one", "two.default.svc.cluster.local:81", "two");
    // No plugin maps ports: the node does.
    let host = node.field(&["pod", "two"], ".status.hostIP");
    asks(&node, "one", &format!("{host}:8088"), "two");
}

#[test]
fn a_chain_of_plugins_is_asked_as_the_specification_says() {
    let networks = Networks::new();
    networks.install_scribe();
    let mut node = networks.node();
    node.spawn();
    node.wait_answering();
    let name = || node.field(&["nodes"], ".items[0].metadata.name");
    let ready = |what: &str| format!(".status.conditions[?(@.type==\"Ready\")].{what}");
    let why = eventually("the node is registered", TIMEOUT, || match node.run(&["get", "nodes", "-o", "json"]) {
        answer if answer.out.contains("NetworkPluginNotReady") => Ok(answer.out),
        answer => Err(answer.all()),
    });
    contains(&why, "Network plugin returns error: no networks found in").unwrap();

    // Version 1.1 has STATUS and GC, which Debian's plugins do not know yet.
    let scribe = json!({ "type": "scribe", "capabilities": { "portMappings": true, "bandwidth": true } });
    networks.write("1.1.0", json!([{ "type": "fixed" }, scribe]));
    let fixed = "#!/bin/sh\n[ \"$CNI_COMMAND\" != ADD ] || echo '{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.244.0.77/24\"}]}'\n";
    let path = networks.path("bin/fixed");
    std::fs::write(&path, fixed).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(networks.path("asked/fail-STATUS"), "").unwrap();
    node.wait_field(
        &["node", &name()],
        &ready("message"),
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns \
         error: plugin type=\"scribe\" failed (status): no luck: with STATUS (code 100)",
        TIMEOUT,
    );
    std::fs::remove_file(networks.path("asked/fail-STATUS")).unwrap();
    node.wait_ready();
    node.import_busybox();

    // A plugin that fails: all take back, and the Pod says why.
    std::fs::write(networks.path("asked/fail-ADD"), "").unwrap();
    node.apply(&with_host_port());
    let events = || node.ok(&["get", "events", "--field-selector", "involvedObject.name=two"]);
    eventually("the Pod says why", TIMEOUT, || contains(&events(), "no luck: with ADD (code 100)"));
    let (_, failed, ..) = networks.wait_call("DEL");
    assert_eq!(failed, node.field(&["pod", "two"], ".metadata.uid"));
    std::fs::remove_file(networks.path("asked/fail-ADD")).unwrap();
    node.wait("condition=Ready", &["pod/two"], TIMEOUT);
    assert_eq!(ip(&node, "two"), "10.244.0.77");
    let (_, container, arguments, given) = networks.wait_call("ADD");
    let uid = node.field(&["pod", "two"], ".metadata.uid");
    assert_eq!(container, uid);
    contains(&arguments, "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=two;").unwrap();
    assert_eq!(
        given["runtimeConfig"],
        json!({ "portMappings": [{ "hostPort": 8088, "containerPort": 80, "protocol": "tcp" }] })
    );
    assert_eq!((&given["name"], &given["cniVersion"]), (&json!("pods"), &json!("1.1.0")));
    assert_eq!(given["prevResult"]["ips"][0]["address"], "10.244.0.77/24");

    // Another agent has it checked, and garbage collected.
    node.kill();
    node.spawn();
    node.wait_ready();
    let (_, container, _, given) = networks.wait_call("CHECK");
    assert_eq!((container, &given["prevResult"]["ips"][0]["address"]), (uid.clone(), &json!("10.244.0.77/24")));
    eventually("what is left is told", TIMEOUT, || {
        let valid = networks.wait_call("GC").3["cni.dev/valid-attachments"].clone();
        if valid == json!([{ "containerID": uid, "ifname": "eth0" }]) { Ok(()) } else { Err(valid.to_string()) }
    });
    // What cannot be taken back stays the Pod's, until it can.
    std::fs::write(networks.path("asked/fail-DEL"), "").unwrap();
    let before = networks.calls().len();
    node.ok(&["delete", "pod", "two", "--wait=false"]);
    let attachment = || node.dir.path().join(format!("network/cni/attachments/{uid}.json")).exists();
    eventually("it is asked", TIMEOUT, || {
        match networks.calls()[before..].iter().any(|(command, ..)| command == "DEL") {
            true => Ok(()),
            false => Err("nothing is taken back".to_owned()),
        }
    });
    assert!(attachment());
    std::fs::remove_file(networks.path("asked/fail-DEL")).unwrap();
    eventually("it is taken back", TIMEOUT, || if attachment() { Err("still there".to_owned()) } else { Ok(()) });
    node.wait("delete", &["pod/two"], TIMEOUT);
}
