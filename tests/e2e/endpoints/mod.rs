//! The node's kubelet endpoints, through the server's proxy; and a real Prometheus that scrapes them.

mod prometheus;

use std::{process::Command, time::Duration};

use serde_json::Value;

use crate::support::{Answer, TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(60);

const PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: seen}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: seen}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: seen}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: worker, image: localhost/busybox:1, command: [sh, -c, 'echo works; while :; do :; done']}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: seen}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: scratch, emptyDir: {}}
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, 'head -c 1000000 /dev/zero > /scratch/big; echo ready; exec httpd -f -p 80 -h /scratch']
    readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}, {name: scratch, mountPath: /scratch}]
    env:
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: hidden, key: word}}}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: seen}
stringData: {word: open-sesame}
";

/// The node's name.
fn name(node: &TestNode) -> String {
    node.field(&["nodes"], ".items[0].metadata.name")
}

/// The node's response for a path.
fn raw(node: &TestNode, path: &str) -> String {
    node.ok(&["get", "--raw", &format!("/api/v1/nodes/{}/proxy/{path}", name(node))])
}

fn json(node: &TestNode, path: &str) -> Value {
    let text = raw(node, path);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}: {text}"))
}

/// With curl, any user and options: the status and the body.
fn curl(node: &TestNode, args: &[&str], path: &str) -> (u16, String) {
    let url = format!("http://node/api/v1/nodes/{path}");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-m", "30", "-w", "\n%{http_code}", "--unix-socket"]).arg(node.socket()).args(args).arg(url);
    let answer = Answer::of(curl.output().unwrap());
    assert_eq!(answer.code, 0, "{path}: {}", answer.all());
    let (body, status) = answer.out.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

fn pod<'v>(summary: &'v Value, name: &str) -> &'v Value {
    let mut pods = summary["pods"].as_array().unwrap().iter();
    pods.find(|pod| pod["podRef"]["name"] == name).unwrap_or_else(|| panic!("{name} is not in {summary:#}"))
}

/// `top` and the summary show the same measurement.
fn agrees_with_top(node: &TestNode) -> Result<(), String> {
    let top = node.run(&["-n", "seen", "top", "pods", "--containers", "--no-headers"]);
    let summary = json(node, "stats/summary");
    for name in ["busy", "web"] {
        let row = top.out.lines().find(|line| line.starts_with(name)).ok_or_else(|| top.all())?;
        let cells: Vec<&str> = row.split_whitespace().collect();
        let number = |cell: &str| cell.trim_end_matches(char::is_alphabetic).parse::<u64>().unwrap();
        let container = &pod(&summary, name)["containers"][0];
        let nanocores = container["cpu"]["usageNanoCores"].as_u64().ok_or_else(|| container.to_string())?;
        let memory = container["memory"]["workingSetBytes"].as_u64().unwrap() >> 20;
        if nanocores.div_ceil(1_000_000) != number(cells[2]) || memory.abs_diff(number(cells[3])) > 2 {
            return Err(format!("{row} is not {container:#}"));
        }
    }
    Ok(())
}

#[test]
fn a_nodes_endpoints_are_read_through_the_proxy() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(PODS);
    node.wait("condition=Ready", &["-n", "seen", "pod/busy", "pod/web"], TIMEOUT);
    let node_name = name(&node);
    assert_eq!(node.field(&["node", &node_name], ".status.daemonEndpoints.kubeletEndpoint.Port"), "10250");

    assert_eq!(raw(&node, "healthz"), "ok");
    let verbose = raw(&node, "healthz?verbose");
    for check in ["[+]ping ok", "[+]log ok", "[+]syncloop ok"] {
        contains(&verbose, check).unwrap();
    }
    assert_eq!(raw(&node, "healthz/syncloop"), "ok");
    let pods = json(&node, "pods");
    let names: Vec<&str> =
        pods["items"].as_array().unwrap().iter().filter_map(|p| p["metadata"]["name"].as_str()).collect();
    assert_eq!((pods["kind"].as_str(), names), (Some("PodList"), vec!["busy", "web"]));
    assert_eq!(json(&node, "runningpods/")["items"].as_array().unwrap().len(), 2);
    assert_eq!(json(&node, "configz")["kubeletconfig"]["maxPods"], 110);

    eventually("the summary", TIMEOUT, || agrees_with_top(&node));
    eventually("what is on disk", TIMEOUT, || {
        let summary = json(&node, "stats/summary");
        let web = pod(&summary, "web");
        let volume = |name: &str| web["volume"].as_array().into_iter().flatten().find(|v| v["name"] == name).cloned();
        let (scratch, data) = (volume("scratch"), volume("data"));
        let (Some(scratch), Some(data)) = (scratch, data) else { return Err(format!("{web:#}")) };
        let used = |of: &Value| of["usedBytes"].as_u64().unwrap_or(0);
        assert!((1_000_000..2_000_000).contains(&used(&scratch)), "{scratch:#}");
        assert_eq!(data["pvcRef"]["name"], "data");
        assert!(used(&web["ephemeral-storage"]) >= used(&scratch), "{web:#}");
        assert!(
            used(&web["containers"][0]["logs"]) > 0 && web["network"]["interfaces"][0]["name"] == "eth0",
            "{web:#}"
        );
        assert!(summary["node"]["fs"]["capacityBytes"].as_u64() > Some(0), "{summary:#}");
        Ok(())
    });
    let short = json(&node, "stats/summary?only_cpu_and_memory=true");
    assert!(pod(&short, "web").get("volume").is_none() && pod(&short, "web").get("cpu").is_some(), "{short:#}");

    let metrics = raw(&node, "metrics");
    for line in [
        "kubelet_running_pods 2",
        "kubelet_running_containers{container_state=\"running\"} 2",
        "kubelet_started_pods_total 2",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 2",
        "kubelet_pod_start_duration_seconds_count 2",
        "kubelet_volume_stats_capacity_bytes{namespace=\"seen\",persistentvolumeclaim=\"data\"} ",
        "process_resident_memory_bytes ",
        "# TYPE process_cpu_seconds_total counter",
        "rest_client_requests_total{code=\"200\",",
        &format!("kubelet_node_name{{node=\"{node_name}\"}} 1"),
    ] {
        contains(&metrics, line).unwrap();
    }
    let cadvisor = raw(&node, "metrics/cadvisor");
    for part in [
        "container_memory_working_set_bytes{container=\"worker\",",
        "namespace=\"seen\",pod=\"busy\"",
        "machine_cpu_cores",
        "container_file_descriptors{container=\"web\",",
        "container_sockets{container=\"web\",",
    ] {
        contains(&cadvisor, part).unwrap();
    }
    // The machine's own, if its kernel counts it.
    let pressure = std::fs::read_to_string("/proc/pressure/memory").is_ok();
    let told = ["waiting", "stalled"].map(|kind| {
        let row = format!("container_pressure_memory_{kind}_seconds_total{{container=\"\",id=\"/\",");
        cadvisor.contains(&row)
    });
    assert_eq!(told, [pressure; 2]);
    assert_eq!(short["node"]["memory"].get("psi").is_some(), pressure, "{short:#}");
    let system: Vec<&str> =
        short["node"]["systemContainers"].as_array().unwrap().iter().filter_map(|part| part["name"].as_str()).collect();
    assert_eq!(system, ["kubelet", "runtime", "pods"]);
    contains(&raw(&node, "metrics/resource"), "container_cpu_usage_seconds_total{container=\"worker\",pod=\"busy\"")
        .unwrap();
    contains(
        &raw(&node, "metrics/probes"),
        "prober_probe_total{probe_type=\"Readiness\",result=\"successful\",container=\"web\"",
    )
    .unwrap();
    for path in
        ["metrics", "metrics/cadvisor", "metrics/resource", "metrics/probes", "stats/summary", "pods", "configz"]
    {
        assert!(!raw(&node, path).contains("open-sesame"), "{path} tells a Secret");
    }

    assert_eq!(raw(&node, "containerLogs/seen/web/web"), "ready\n");
    contains(&raw(&node, "containerLogs/seen/web/web?timestamps=true&tailLines=1"), "Z ready\n").unwrap();
    for (stream, said) in [("All", "ready\n"), ("Stdout", "ready\n"), ("Stderr", "")] {
        assert_eq!(raw(&node, &format!("containerLogs/seen/web/web?stream={stream}")), said, "{stream}");
        let log = format!("/api/v1/namespaces/seen/pods/web/log?stream={stream}");
        assert_eq!(node.ok(&["get", "--raw", &log]), said, "{log}");
    }
    let refused = |args: &[&str], path: &str, status: u16, words: &str| {
        let (code, body) = curl(&node, args, path);
        assert!(code == status && body.contains(words), "{path} {args:?}: {code} {body}");
    };
    refused(&[], &format!("{node_name}/proxy/containerLogs/seen/nobody/web"), 404, "pod \"nobody\" does not exist");
    refused(
        &[],
        &format!("{node_name}/proxy/containerLogs/seen/web/x"),
        404,
        "container \"x\" not found in pod \"web\"",
    );
    refused(&[], &format!("{node_name}/proxy/containerLogs/seen/web/web?tailLines=-1"), 422, "Invalid request.");
    refused(&["-X", "POST"], &format!("{node_name}/proxy/metrics"), 405, "Method Not Allowed");
    refused(
        &["-X", "POST"],
        &format!("{node_name}/proxy/exec/seen/web/web?command=id"),
        405,
        "Debug endpoints are disabled.",
    );
    refused(&[], &format!("{node_name}/proxy/nothing"), 404, "404 page not found");
    for id in [format!("{node_name}:10250"), format!("https:{node_name}:10250"), format!("https:{node_name}:")] {
        refused(&[], &format!("{id}/proxy/healthz"), 200, "ok");
    }
    refused(&["-H", "Impersonate-User: tenant"], &format!("{node_name}/proxy/pods"), 403, "nodes/proxy");
    // A followed log continues until its reader leaves.
    let (socket, follow) = (node.socket(), "http://n/api/v1/nodes/");
    let mut following = Command::new("curl");
    following
        .args(["-sSN", "-m", "3", "--unix-socket"])
        .arg(socket)
        .arg(format!("{follow}{node_name}/proxy/containerLogs/seen/busy/worker?follow=true"));
    let answer = Answer::of(following.output().unwrap());
    assert_eq!((answer.code, answer.out.as_str()), (28, "works\n"), "curl gives up after its time: {}", answer.all());

    node.ok(&["delete", "namespace", "seen"]);
    eventually("nothing is told of Pods that are gone", TIMEOUT, || {
        contains(&raw(&node, "metrics"), "kubelet_running_pods 0\n")
    });
    assert!(!raw(&node, "metrics/probes").contains("prober_probe_total"));
    drop(node);
    untouched.assert_unchanged();
}
