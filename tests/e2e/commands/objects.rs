//! Objects: apply, create, get, describe, label, annotate, delete, and commands without objects.

use std::{fs, process::Command};

use super::{TIMEOUT, node, refuses, says};
use crate::support::{TestNode, contains, eventually};

fn map(name: &str, label: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, labels: {{app: {label}}}}}, data: {{key: old}}}}"
    )
}

#[test]
fn manifests_come_as_folders_standard_input_and_several_documents() {
    let node = TestNode::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    refuses(
        &node,
        &["apply", "-f", &format!("{path}/none.yaml")],
        &format!("error: the path \"{path}/none.yaml\" does not exist"),
    );
    assert_eq!(node.run(&["apply", "-f", path]).code, 1, "an empty folder");
    write("1.yaml", format!("---\n{}\n---\n# nothing\n---\n{}\n", map("one", "x"), map("two", "z")));
    write(
        "2.json",
        serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "three"}}).to_string(),
    );
    write("notes.txt", "no manifest: [".to_owned());
    fs::create_dir(folder.path().join("deep")).unwrap();
    write("deep/4.yml", map("four", "x"));
    says(&node, &["apply", "-f", path], "configmap/one created\nconfigmap/two created\nconfigmap/three created\n");
    let all = "configmap/one unchanged\nconfigmap/two unchanged\nconfigmap/three unchanged\nconfigmap/four created\n";
    says(&node, &["apply", "-R", "-f", path], all);
    // Standard input; a rejected one does not affect the others.
    let bad = "{apiVersion: v1, kind: ConfigMap, metadata: {name: five}, dataa: {}}";
    let changed = map("one", "x").replace("old", "new");
    let answer = node.run_with(&["apply", "-f", "-"], format!("{bad}\n---\n{changed}\n").as_bytes());
    assert_eq!((answer.code, answer.out.as_str()), (1, "configmap/one configured\n"), "{}", answer.all());
    contains(&answer.err, "unknown field \"dataa\"").unwrap();
    // A field removed from a manifest is removed; others' settings stay.
    node.ok(&["annotate", "cm", "one", "mine=yes"]);
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: one, labels: {app: x}}, data: {other: added}}");
    says(
        &node,
        &["get", "cm", "one", "-o", "jsonpath={.data}{.metadata.annotations.mine}"],
        "{\"other\":\"added\"}yes",
    );
    let one = format!("{path}/1.yaml");
    let answer = node.run(&["create", "-f", &one]);
    let exists = |name: &str| {
        format!(
            "Error from server (AlreadyExists): error when creating \"{one}\": configmaps \"{name}\" already exists\n"
        )
    };
    assert_eq!((answer.code, answer.err), (1, exists("one") + &exists("two")));
    let answer = node.run(&["diff", "-f", &one]);
    assert_eq!(answer.code, 1, "{}", answer.all());
    contains(&answer.out, "+  key: old").unwrap();
    says(&node, &["delete", "-f", &one], "configmap \"one\" deleted\nconfigmap \"two\" deleted\n");
    let answer = node.run(&["apply", "-n", "default", "-f", "-", "--dry-run=server"]);
    assert_eq!(answer.code, 1, "no input is no manifest: {}", answer.all());
}

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: first, labels: {app: x, tier: front}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: second, labels: {app: z}}
spec:
  restartPolicy: Never
  containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'exit 0']}]
";

#[test]
fn get_and_describe_show_objects_in_every_format() {
    let (node, untouched) = node();
    for (args, said) in [
        (&["get", "pods"][..], "No resources found in default namespace.\n"),
        (&["get", "pods", "-A"], "No resources found\n"),
    ] {
        let answer = node.run(args);
        assert_eq!((answer.code, answer.out.as_str(), answer.err.as_str()), (0, "", said), "{args:?}");
    }
    // A watch from before the Pods sees them appear and change.
    let watch = node.talk(&["get", "pods", "-w"]);
    let names = node.talk(&["get", "pods", "--watch-only", "-o", "name", "-l", "app=z"]);
    eventually("both watch", TIMEOUT, || {
        // They print nothing before an event: a change is repeated until both have printed something.
        node.apply(PODS);
        node.ok(&["label", "pods", "--all", "--overwrite", &format!("n={}", rand_word())]);
        if watch.out().contains("second") && names.out().contains("pod/second\n") {
            Ok(())
        } else {
            Err(watch.out() + &names.out())
        }
    });
    node.wait("condition=Ready", &["pod/first"], TIMEOUT);
    node.wait_field(&["pod", "second"], ".status.phase", "Succeeded", TIMEOUT);
    watch.hear("Completed");
    assert_eq!(watch.out().matches("NAME").count(), 1, "{}", watch.out());
    assert!(!names.out().contains("first"), "{}", names.out());
    node.ok(&["label", "pods", "--all", "n-"]);
    let table = node.ok(&["get", "po"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(
        (&rows[1][..4], &rows[2][..4]),
        (&["first", "1/1", "Running", "0"][..], &["second", "0/1", "Completed", "0"][..])
    );
    let (ip, host) = (node.field(&["pod", "first"], ".status.podIP"), node.field(&["pod", "first"], ".spec.nodeName"));
    let wide = node.ok(&["get", "pod", "first", "-o", "wide", "--no-headers"]);
    assert_eq!(wide.split_whitespace().skip(5).collect::<Vec<_>>(), [&ip, &host, "<none>", "<none>"]);
    says(&node, &["get", "pods", "-o", "name"], "pod/first\npod/second\n");
    says(&node, &["get", "pod/second", "-o", "name"], "pod/second\n");
    let json: serde_json::Value = serde_json::from_str(&node.ok(&["get", "pods", "-o", "json"])).unwrap();
    assert_eq!((&json["kind"], json["items"].as_array().unwrap().len()), (&"List".into(), 2));
    let yaml = node.ok(&["get", "pod", "first", "-o", "yaml"]);
    contains(&yaml, "apiVersion: v1\nkind: Pod\nmetadata:\n").unwrap();
    let each = "jsonpath={range .items[*]}{.metadata.name}={.status.phase}{\"\\n\"}{end}";
    says(&node, &["get", "pods", "-o", each], "first=Running\nsecond=Succeeded\n");
    says(&node, &["get", "pods", "-o", "jsonpath={.items[?(@.status.phase==\"Running\")].metadata.name}"], "first");
    says(
        &node,
        &["get", "pods", "-o", "custom-columns=N:.metadata.name,P:.status.phase", "--no-headers"],
        "first    Running\nsecond   Succeeded\n",
    );
    says(&node, &["get", "pods", "-l", "app in (x,w),tier", "-o", "name"], "pod/first\n");
    says(&node, &["get", "pods", "-l", "app!=x", "-o", "name"], "pod/second\n");
    says(&node, &["get", "pods", "--field-selector", "status.phase!=Running", "-o", "name"], "pod/second\n");
    says(
        &node,
        &["get", "pods", "--field-selector", &format!("spec.nodeName={host},metadata.name=first"), "-o", "name"],
        "pod/first\n",
    );
    says(
        &node,
        &["get", "pods", "--sort-by", ".status.phase", "-o", "jsonpath={.items[*].metadata.name}"],
        "first second",
    );
    contains(&node.ok(&["get", "pods", "--show-labels"]), "app=x,tier=front").unwrap();
    contains(&node.ok(&["get", "pods", "-L", "tier"]), "TIER").unwrap();
    let both = node.ok(&["get", "pods,namespaces"]);
    contains(&both, "pod/first ")
        .and(contains(&both, "\n\nNAME"))
        .and(contains(&both, "namespace/kube-system "))
        .unwrap();
    contains(&node.ok(&["get", "pods", "-A"]), "NAMESPACE   NAME").unwrap();
    let answer = node.run(&["get", "pod/first", "pod/nobody", "-o", "name"]);
    assert_eq!((answer.code, answer.out.as_str()), (1, "pod/first\n"));
    assert_eq!(answer.err, "Error from server (NotFound): pods \"nobody\" not found\n");
    says(&node, &["get", "pod", "nobody", "--ignore-not-found"], "");
    let refused = node.run(&["get", "pods", "--field-selector", "spec.nothing=x"]);
    assert_eq!(refused.code, 1, "{}", refused.all());
    let why = "Error from server (BadRequest): Unable to find \"/v1, Resource=pods\" that match label selector \"\", field \
               selector \"spec.nothing=x\": field label not supported: spec.nothing";
    assert_eq!(refused.err.trim_end(), why);
    // As kubectl writes them: sorted keys, four spaces, without managed fields unless requested.
    let json = node.ok(&["get", "pod", "first", "-o", "json"]);
    let top: Vec<&str> = json.lines().filter_map(|l| l.strip_prefix("    \"")?.split('"').next()).collect();
    assert_eq!(top, ["apiVersion", "kind", "metadata", "spec", "status"]);
    for format in ["yaml", "json"] {
        let [brief, whole] =
            [&["get", "pods", "-o", format][..], &["get", "pods", "-o", format, "--show-managed-fields"]];
        assert!(!node.ok(brief).contains("managedFields"));
        assert_eq!(node.ok(whole).matches("managedFields").count(), 2);
    }
    // A Pod's events are on its page, in order.
    let page = node.ok(&["describe", "pod", "first"]);
    let events = page.split_once("Events:").expect("it has events").1;
    let at = |reason: &str| events.find(reason).unwrap_or_else(|| panic!("no {reason} in {page}"));
    // The scheduler's event follows the binding: the node's may be earlier.
    at("Scheduled");
    assert!(at("Pulled") < at("Created") && at("Created") < at("Started"), "{page}");
    contains(&page, "  Type                        Status\n  PodReadyToStartContainers   True \n").unwrap();
    for line in ["Name:             first", "Labels:           app=x", &format!("IP:               {ip}"), "QoS Class:"]
    {
        contains(&page, line).unwrap();
    }
    let page = node.ok(&["describe", "node"]);
    let allocated = page.split_once("Allocated resources:\n").expect("it tells what is allocated").1;
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let rows: Vec<String> = allocated.lines().skip(3).take(3).map(first).collect();
    assert_eq!(rows, ["cpu", "memory", "ephemeral-storage"]);
    refuses(&node, &["describe", "pod", "nobody"], "Error from server (NotFound): pods \"nobody\" not found");
    let events = node.ok(&["events", "--for", "pod/first"]);
    contains(&events, "Pod/first").and(contains(&events, "Started container c")).unwrap();
    assert!(!events.contains("Pod/second"), "{events}");
    let none = node.run(&["events", "--for", "pod/first", "--types", "Warning"]);
    assert_eq!((none.code, none.err.as_str()), (0, "No events found in default namespace.\n"));
    node.ok(&["delete", "pods", "--all"]);
    watch.interrupt();
    drop((names, node));
    untouched.assert_unchanged();
}

/// A different word each time.
fn rand_word() -> String {
    format!("{:x}", std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos())
}

#[test]
fn labels_and_annotations() {
    let node = TestNode::start(&[]);
    node.apply(&(map("one", "x") + "\n---\n" + &map("two", "z")));
    says(&node, &["label", "cm", "one", "a=b"], "configmap/one labeled\n");
    says(&node, &["label", "cm", "one", "a=b"], "configmap/one not labeled\n");
    refuses(&node, &["label", "cm/one", "a=c"], "error: 'a' already has a value (b), and --overwrite is false");
    says(&node, &["label", "--overwrite", "cm/one", "a=c"], "configmap/one labeled\n");
    says(&node, &["label", "cm", "one", "--list"], "a=c\napp=x\n");
    says(&node, &["label", "cm", "one", "a-"], "configmap/one unlabeled\n");
    says(&node, &["label", "cm", "-l", "app=z", "b=1"], "configmap/two labeled\n");
    let refused = node.run(&["label", "cm", "one", "a=not/a/label"]);
    assert_eq!(refused.code, 1, "{}", refused.all());
    contains(&refused.err, "metadata.labels").unwrap();
    refuses(&node, &["label", "cm", "nobody", "a=b"], "Error from server (NotFound): configmaps \"nobody\" not found");
    says(&node, &["annotate", "cm", "one", "note=some words"], "configmap/one annotated\n");
    says(&node, &["get", "cm", "one", "-o", "jsonpath={.metadata.annotations.note}"], "some words");
    let why = "error: --overwrite is false but found the following declared annotation(s): 'note' already has a value (some words)";
    refuses(&node, &["annotate", "cm", "one", "note=others"], why);
    says(&node, &["annotate", "cm", "one", "note-"], "configmap/one annotated\n");
    says(&node, &["annotate", "cm", "one", "note-"], "configmap/one annotated\n");
    says(&node, &["label", "cm", "one", "a-"], "label \"a\" not found.\nconfigmap/one not labeled\n");
    says(&node, &["get", "cm", "one", "-o", "jsonpath={.metadata.annotations.note}"], "");
}

#[test]
fn what_was_created_is_applied_later_and_flags_are_kubectls() {
    let node = TestNode::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("map.yaml");
    fs::write(&file, map("one", "x")).unwrap();
    let file = file.to_str().unwrap();
    // Created without the last-applied annotation: apply warns, and adds it.
    says(&node, &["create", "-f", file], "configmap/one created\n");
    let apply = |more: &[&str]| {
        let answer = node.run(&[&["apply", "-f", file], more].concat());
        assert_eq!(answer.code, 0, "{}", answer.all());
        (
            answer.out,
            answer
                .err
                .starts_with("Warning: resource configmaps/one is missing the kubectl.kubernetes.io/last-applied"),
        )
    };
    assert_eq!(apply(&["--dry-run=server"]), ("configmap/one configured (server dry run)\n".to_owned(), true));
    assert_eq!(apply(&[]), ("configmap/one configured\n".to_owned(), true));
    assert_eq!(apply(&["--dry-run=server"]), ("configmap/one unchanged (server dry run)\n".to_owned(), false));
    assert_eq!(apply(&[]), ("configmap/one unchanged\n".to_owned(), false));
    node.ok(&["delete", "cm", "one"]);
    says(&node, &["create", "-f", file, "--save-config"], "configmap/one created\n");
    assert_eq!(apply(&[]), ("configmap/one unchanged\n".to_owned(), false));

    // Switches with a value; the flag parsers' messages; kinds with names; ambiguous names.
    says(
        &node,
        &["get", "cm", "one", "--no-headers=true", "--ignore-not-found=false", "-o", "name"],
        "configmap/one\n",
    );
    contains(&node.ok(&["get", "cm", "one", "--show-kind"]), "configmap/one").unwrap();
    refuses(&node, &["wait", "--for=nope=1", "pod/x"], "error: unrecognized condition: \"nope=1\"");
    let why = "error: unable to match a printer suitable for the output format \"xml\", allowed formats are: ";
    contains(&node.run(&["get", "cm", "-o", "xml"]).err, why).unwrap();
    let why = "error: setting 'all' parameter but found a non empty selector.";
    refuses(&node, &["delete", "cm", "--all", "-l", "app=x"], why);
    for command in ["edit", "delete"] {
        let answer = node.run(&[command]);
        assert_eq!(answer.code, 1);
        contains(&answer.err, "error: You must provide one or more resources by argument or filename.\nExample ")
            .unwrap();
    }
}

#[test]
fn what_needs_no_object_and_what_finds_no_server() {
    let node = TestNode::start(&[]);
    let version = node.ok(&["version"]);
    let lines: Vec<&str> = version.lines().collect();
    let number = concat!("v", env!("CARGO_PKG_VERSION"));
    assert_eq!(lines, [format!("Client Version: {number}"), format!("Server Version: {number}")]);
    let resources = node.ok(&["api-resources"]);
    let row = |name: &str| -> Vec<&str> {
        let mut rows = resources.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name} in {resources}"))
    };
    assert_eq!(row("deployments"), ["deployments", "deploy", "apps/v1", "true", "Deployment"]);
    assert_eq!(row("pods"), ["pods", "po", "v1", "true", "Pod"]);
    let names = node.ok(&["api-resources", "-o", "name", "--namespaced=false"]);
    contains(&names, "namespaces\n").and(contains(&names, "nodes\n")).unwrap();
    assert!(!names.contains("pods\n"), "{names}");
    assert_eq!(node.run(&["gett", "pods"]).code, 1);
    assert_eq!(node.run(&["get", "--help"]).code, 0);

    // A reader that closes early is not an error.
    let big: String = "0123456789abcdef".repeat(40_000);
    // Too large for apply, which keeps a copy in an annotation.
    let manifest = format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: big}}, data: {{key: {big}}}}}");
    assert_eq!(node.run_with(&["apply", "-f", "-"], manifest.as_bytes()).code, 1);
    assert_eq!(node.run_with(&["create", "-f", "-"], manifest.as_bytes()).out, "configmap/big created\n");
    for args in ["get cm -A -o yaml", "get cm -A -w -o yaml"] {
        let mut shell = Command::new("bash");
        let command = node.command(&[]);
        shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        shell
            .arg("-c")
            .arg(format!("'{}' {args} | head -n 1; echo ${{PIPESTATUS[0]}}", command.get_program().display()));
        let output = shell.output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((out.lines().last(), err.as_ref()), (Some("141"), ""), "{args}: {out}");
    }

    let nowhere = ["get", "pods", "-s", "unix:///nowhere/api.sock"];
    let answer = node.run(&nowhere);
    assert_eq!(answer.code, 1);
    contains(&answer.err, "The connection to the server")
        .and(contains(&answer.err, "did you specify the right"))
        .unwrap();
    assert_eq!(node.run(&["version", "--client", "-s", "unix:///nowhere/api.sock"]).code, 0);
    assert_eq!(node.run(&["version", "-s", "unix:///nowhere/api.sock"]).code, 1);
}
