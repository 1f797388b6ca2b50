//! Usage of Pods and nodes in `podwright top`: measured in real cgroups, reported by agents.

use std::time::Duration;

use crate::support::{TestNode, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The cells of a table without headings, line by line.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

/// `123m`, `28Mi`
fn number(cell: &str) -> u64 {
    let digits = cell.trim_end_matches(char::is_alphabetic);
    digits.parse().unwrap_or_else(|e| panic!("{cell}: {e}"))
}

/// The values of `top pods --containers` for the manifest's Pods, once all are plausible.
fn of_manifest(node: &TestNode) -> Result<(), String> {
    let answer = node.run(&["-n", "usage", "top", "pods", "--containers", "--no-headers"]);
    let all = rows(&answer.out);
    let names: Vec<String> = all.iter().map(|row| row[..2].join("/")).collect();
    if names != ["busy/sleeper", "busy/worker", "holder/holder"] {
        return Err(answer.all());
    }
    let cpu = |at: usize| number(all[at][2]);
    // Other work may need the CPUs too; sleeping needs none.
    let as_told = (100..=1100).contains(&cpu(1)) && cpu(0) <= 20 && cpu(2) <= 20 && number(all[2][3]) >= 28;
    if as_told { Ok(()) } else { Err(answer.all()) }
}

#[test]
fn top_shows_who_is_busy() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(include_str!("../../manifests/top.yaml"));
    node.wait("condition=Ready", &["-n", "usage", "pod/busy", "pod/holder"], TIMEOUT);
    eventually("the Pods' figures", TIMEOUT, || of_manifest(&node));
    let pods = node.ok(&["-n", "usage", "top", "pods", "--sort-by=cpu", "--sum"]);
    let all = rows(&pods);
    assert_eq!(all[0], ["NAME", "CPU(cores)", "MEMORY(bytes)"], "{pods}");
    assert_eq!([all[1][0], all[2][0], all[3][0]], ["busy", "holder", "________"], "{pods}");
    // Each cell is rounded up separately.
    let sum = number(all[1][1]) + number(all[2][1]);
    assert!((sum - 1..=sum).contains(&number(all[4][0])), "{pods}");
    assert_eq!(rows(&node.ok(&["-n", "usage", "top", "pod", "--sort-by=memory", "--no-headers"]))[0][0], "holder");
    let one = node.ok(&["top", "po", "-A", "-l", "kind=idle"]);
    assert_eq!(rows(&one)[0], ["NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)"], "{one}");
    assert_eq!((rows(&one)[1][..2].join("/"), rows(&one).len()), ("usage/holder".to_owned(), 2), "{one}");
    // The node uses at least as much as its Pods.
    let nodes = node.ok(&["top", "nodes"]);
    let all = rows(&nodes);
    assert_eq!(all[0], ["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"], "{nodes}");
    assert!(number(all[1][1]) >= 100 && number(all[1][3]) > 64, "{nodes}");
    assert!(all[1][2].ends_with('%') && all[1][4].ends_with('%'), "{nodes}");
    let shown = node.ok(&[
        "-n",
        "usage",
        "get",
        "pods.metrics.k8s.io",
        "holder",
        "-o",
        "jsonpath={.window} {.metadata.labels.kind}",
    ]);
    assert!(shown.ends_with("s idle"), "{shown}");
    // A restarted agent measures the same Pods again.
    node.kill();
    node.spawn();
    node.wait_ready();
    eventually("the figures after a restart", TIMEOUT, || of_manifest(&node));
    node.ok(&["delete", "namespace", "usage"]);
    assert_eq!(
        node.run(&["-n", "usage", "top", "pods"]).all().trim(),
        "exit code 0\nNo resources found in usage namespace."
    );
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn top_says_why_it_shows_nothing() {
    let server = TestNode::server(&[]);
    server.apply("{apiVersion: v1, kind: Pod, metadata: {name: waits}, spec: {containers: [{name: c, image: x}]}}");
    let refused = |args: &[&str], expected: &str| {
        let answer = server.run(args);
        assert_eq!((answer.code, answer.err.trim_end()), (1, expected), "{args:?}: {}", answer.all());
    };
    refused(&["top", "pods"], "error: metrics not available yet");
    refused(&["top", "nodes"], "error: metrics not available yet");
    refused(
        &["top", "pod", "waits"],
        "Error from server (NotFound): podmetrics.metrics.k8s.io \"default/waits\" not found",
    );
    refused(&["top", "pod", "nobody"], "Error from server (NotFound): pods \"nobody\" not found");
    refused(&["top", "pods", "--sort-by=age"], "error: --sort-by accepts only cpu or memory");
    refused(&["top", "pod", "waits", "-l", "a=b"], "error: only one of NAME or selector can be provided");
    refused(&["top", "node", "n", "-l", "a=b"], "error: only one of NAME or --selector can be provided");
    let none = server.run(&["top", "pods", "-n", "kube-system"]);
    assert_eq!(none.all().trim(), "exit code 0\nNo resources found in kube-system namespace.");
}
