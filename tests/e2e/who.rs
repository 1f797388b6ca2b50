//! `who`: from a kernel object of a live node to the manifest and to who applied it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The manager of what `apply` writes.
const APPLIED: &str = "kubectl-client-side-apply";

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: localhost/busybox:1
        command: [sleep, '1000']
        ports: [{containerPort: 8080}]
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30123}]
";

fn asked(node: &TestNode, words: &str) -> Value {
    let words: Vec<&str> = ["who", "-o", "json"].into_iter().chain(words.split(' ')).collect();
    serde_json::from_str(&node.ok(&words)).unwrap()
}

/// Kind, name, field and manager of each owner.
fn chain(item: &Value) -> Vec<[String; 3]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let owners = item["owners"].as_array().unwrap().iter();
    owners.map(|owner| [text(&owner["kind"]), text(&owner["field"]), text(&owner["manager"]["name"])]).collect()
}

/// The chain of a field of the Pod.
fn of_deployment(field: &str) -> Vec<[String; 3]> {
    let row =
        |kind: &str, prefix: &str, manager: &str| [kind.to_owned(), format!("{prefix}{field}"), manager.to_owned()];
    [
        row("Pod", "", "replicaset-controller"),
        row("ReplicaSet", "spec.template.", "deployment-controller"),
        row("Deployment", "spec.template.", APPLIED),
    ]
    .to_vec()
}

#[test]
fn who_leads_from_each_kind_of_kernel_object_to_who_applied_it() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(WEB);
    node.wait("condition=Available", &["deployment/web"], TIMEOUT);
    let pod = node.field(&["pods"], ".items[0].metadata.name");
    let inspected = || -> Value { serde_json::from_str(&node.ok(&["inspect", "pod", &pod, "-o", "json"])).unwrap() };
    eventually("its Service leads to it", TIMEOUT, || {
        contains(&inspected()["services"].to_string(), "default/front:http")
    });
    let found = inspected();
    let container = &found["containers"][0];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let c = "spec.containers{c}";
    let mounts = container["processes"][0]["mounts"].as_array().unwrap().iter().map(text);
    let data =
        mounts.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()).find(|line| line[4] == "/data");
    let source = data.unwrap().swap_remove(3);
    let cases = [
        (container["pid"].to_string(), format!("{c}.command")),
        (found["sandbox"]["pause"]["pid"].to_string(), "spec".to_owned()),
        (format!("netns:{}", found["sandbox"]["pause"]["namespaces"]["net"]), "spec.hostNetwork".to_owned()),
        (format!("mnt:[{}]", container["processes"][0]["namespaces"]["mnt"]), format!("{c}.volumeMounts")),
        (format!("cgroup {}", text(&container["cgroup"]["path"])), format!("{c}.resources")),
        (format!("cgroup /sys/fs/cgroup{}", text(&found["sandbox"]["cgroup"]["path"])), "spec.resources".to_owned()),
        (format!("veth {}", text(&found["network"]["host"]["name"])), "spec.hostNetwork".to_owned()),
        ("mount /data".to_owned(), format!("{c}.volumeMounts{{data}}")),
        (format!("mount {source}"), format!("{c}.volumeMounts{{data}}")),
        ("port 8080".to_owned(), format!("{c}.ports{{8080}}.containerPort")),
    ];
    for (words, field) in cases {
        let answer = asked(&node, &words);
        let items = answer["items"].as_array().unwrap();
        assert_eq!(items.len(), 1, "{words}: {answer:#}");
        assert_eq!(chain(&items[0]), of_deployment(&field), "{words}");
        assert_eq!(items[0]["owners"][0]["name"], pod.as_str(), "{words}");
    }
    // What belongs to a Service leads to that.
    let of_service = |field: &str| vec![["Service".to_owned(), field.to_owned(), APPLIED.to_owned()]];
    let answer = asked(&node, "port 30123");
    assert_eq!(answer["items"][0]["object"], json!("nodePort 30123/TCP"));
    assert_eq!(chain(&answer["items"][0]), of_service("spec.ports{http}.nodePort"));
    let cluster_ip = node.field(&["service", "front"], ".spec.clusterIP");
    let answer = asked(&node, &format!("nft {cluster_ip} . tcp . 80"));
    assert_eq!(chain(&answer["items"][0]), of_service("spec.ports{http}"), "{answer:#}");
    let page = node.ok(&["who", &container["pid"].to_string()]);
    for part in [
        "(sleep 1000)",
        "Container:",
        "Deployment:",
        "default/web",
        "spec.template.spec.containers{c}.command",
        "kubectl",
    ] {
        contains(&page, part).unwrap();
    }
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn who_refuses_what_is_no_pods_and_what_is_no_object() {
    let node = TestNode::start(&["--node-name", "n1"]);
    node.import_busybox();
    node.apply(WEB);
    node.wait("condition=Available", &["deployment/web"], TIMEOUT);
    let refused = |words: &[&str], why: &str| {
        let answer = node.run(&[&["who"], words].concat());
        assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{words:?}: {}", answer.all());
        contains(&answer.err, why).unwrap();
    };
    refused(&["1"], "error: PID 1 belongs to no Pod of node n1");
    refused(&["netns:1"], "namespace net:[1] belongs to no Pod of node n1");
    refused(&["cgroup", "/"], "cgroup / belongs to no Pod");
    refused(&["veth", "lo"], "veth lo belongs to no Pod");
    refused(&["mount", "/nowhere"], "mount /nowhere belongs to no Pod");
    refused(&["nft", "192.0.2.1"], "nft element 192.0.2.1 belongs to no Pod");
    refused(&["port", "9"], "port 9 belongs to no Pod");
    refused(&["port", "8080", "-n", "kube-system"], "port 8080 belongs to no Pod of node n1 in namespace kube-system");
    refused(&["port", "65536"], "invalid port \"65536\": must be between 1 and 65535, inclusive");
    refused(&["mount", "data"], "invalid mount \"data\": an absolute path is needed");
    refused(&["tree", "1"], "expected PID, netns:INODE, cgroup PATH");
    refused(&["1", "--node", "n2"], "PID 1 belongs to no Pod of node n2");
}
