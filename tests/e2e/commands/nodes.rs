//! Cordon, drain and taint; permissions; copies; ephemeral containers; raw paths.

use super::{TIMEOUT, node, refuses, says};
use crate::support::contains;

const BARE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

#[test]
fn a_node_is_closed_emptied_and_tainted_and_a_pod_looked_into() {
    let (node, untouched) = node();
    node.apply(BARE);
    node.wait("condition=Ready", &["pod/bare"], TIMEOUT);
    let name = node.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let name = name.as_str();

    // Raw paths, and can-i.
    contains(&node.ok(&["get", "--raw", "/readyz?verbose"]), "readyz check passed").unwrap();
    let why = "Error from server (NotFound): the server could not find the requested resource";
    refuses(&node, &["get", "--raw", "/nothing"], why);
    says(&node, &["auth", "can-i", "create", "deploy"], "yes\n");
    says(&node, &["auth", "can-i", "get", "pods", "--as", "eve", "--as-group", "system:masters"], "yes\n");
    let no = node.run(&["auth", "can-i", "get", "pods", "--as", "eve"]);
    assert_eq!((no.code, no.out.as_str()), (1, "no\n"), "{}", no.all());
    contains(&node.ok(&["auth", "can-i", "--list"]), "*.*").unwrap();
    contains(&node.ok(&["auth", "whoami"]), "[system:masters").unwrap();

    // Copies in both directions.
    let folder = tempfile::tempdir().unwrap();
    let here = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir_all(here("up/sub")).unwrap();
    let big: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    std::fs::write(here("up/sub/big"), &big).unwrap();
    std::os::unix::fs::symlink("big", here("up/sub/link")).unwrap();
    says(&node, &["cp", &here("up"), "bare:/tmp"], "");
    says(&node, &["exec", "bare", "--", "readlink", "/tmp/up/sub/link"], "big\n");
    says(&node, &["cp", "default/bare:/tmp/up", &here("down"), "-c", "c"], "");
    assert!(std::fs::read(here("down/sub/big")).unwrap() == big, "it is what was sent");
    assert!(!folder.path().join("down/sub/link").is_symlink(), "links do not come back");
    says(&node, &["cp", "bare:tmp/up/sub/big", folder.path().to_str().unwrap()], "");
    assert!(std::fs::read(here("big")).unwrap() == big);
    let missing = node.run(&["cp", "bare:/nothing", &here("none")]);
    assert_eq!(missing.code, 1, "{}", missing.all());
    contains(&missing.err, "No such file or directory").unwrap();
    refuses(&node, &["cp", "a", "b"], "error: one of src or dest must be a local file specification");

    // A container joins the Pod.
    let script = "read x; echo got $x; tr '\\0' ' ' < /proc/1/cmdline";
    let debug =
        ["debug", "bare", "-q", "--image=localhost/busybox:1", "--target=c", "-c", "look", "-i", "--", "sh", "-c"];
    let looked = node.run_with(&[&debug[..], &[script]].concat(), b"typed\n");
    assert_eq!((looked.code, looked.out.as_str()), (0, "got typed\nsleep 1000 "), "{}", looked.all());
    refuses(&node, &[&debug[..], &["true"]].concat(), "error: the Pod has an ephemeral container \"look\" already");

    // Cordoned, tainted, drained.
    let is_now = |what: &str| format!("node/{name} {what}\n");
    says(&node, &["cordon", name], &is_now("cordoned"));
    says(&node, &["cordon", &format!("node/{name}")], &is_now("already cordoned"));
    contains(&node.ok(&["get", "nodes"]), "Ready,SchedulingDisabled").unwrap();
    says(&node, &["uncordon", name, "--dry-run=server"], &is_now("uncordoned (server dry run)"));
    says(&node, &["uncordon", name], &is_now("uncordoned"));
    says(&node, &["taint", "nodes", name, "k=a:NoSchedule"], &is_now("tainted"));
    let why = format!("error: node {name} already has k taint(s) with same effect(s) and --overwrite is false");
    refuses(&node, &["taint", "nodes", name, "k=b:NoSchedule"], &why);
    says(&node, &["taint", "nodes", name, "k=b:NoSchedule", "--overwrite"], &is_now("modified"));
    assert_eq!(node.field(&["node", name], ".spec.taints[0].value"), "b");
    says(&node, &["taint", "nodes", "--all", "k-"], &is_now("untainted"));
    refuses(&node, &["taint", "nodes", name, "k-"], "error: taint \"k\" not found");
    let drained = node.run(&["drain", name]);
    assert_eq!((drained.code, drained.out), (1, is_now("cordoned")));
    let why = "cannot delete Pods that declare no controller (use --force to override): default/bare";
    contains(&drained.err, why).unwrap();
    let emptied = node.ok(&["drain", name, "--force", "--grace-period=0", "--timeout=60s"]);
    let words = ["already cordoned", "evicting pod default/bare", "pod/bare evicted", "drained"];
    words.iter().for_each(|part| contains(&emptied, part).unwrap());
    refuses(&node, &["get", "pod", "bare"], "Error from server (NotFound): pods \"bare\" not found");
    drop(node);
    untouched.assert_unchanged();
}
