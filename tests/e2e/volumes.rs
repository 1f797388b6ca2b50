//! Volumes of running Pods: live updates, sharing, host requirements, and the Pod's own token.

use std::{fs, time::Duration};

use base64::Engine;
use serde_json::Value;

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: cm}
data: {word: first, other: x}
---
apiVersion: v1
kind: Secret
metadata: {name: sec}
stringData: {word: hidden}
";

const LIVE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: live, labels: {tier: front}, annotations: {note: 'a\"b'}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: a
    image: localhost/busybox:1
    command: [sleep, '1000']
    env:
    - {name: FROZEN, valueFrom: {configMapKeyRef: {name: cm, key: word}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    - {name: PATHED, value: below}
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    volumeMounts:
    - {name: cm, mountPath: /cm}
    - {name: items, mountPath: /items}
    - {name: sec, mountPath: /sec}
    - {name: all, mountPath: /all}
    - {name: cm, mountPath: /single, subPath: word}
    - {name: shared, mountPath: /shared}
    - {name: shared, mountPath: /below, subPathExpr: made/$(PATHED)}
  - name: b
    image: localhost/busybox:1
    command: [sleep, '1000']
    volumeMounts: [{name: shared, mountPath: /there, readOnly: true}]
  volumes:
  - {name: cm, configMap: {name: cm}}
  - {name: items, configMap: {name: cm, items: [{key: word, path: deep/renamed, mode: 0400}]}}
  - {name: sec, secret: {secretName: sec, defaultMode: 0440}}
  - {name: shared, emptyDir: {}}
  - name: all
    projected:
      sources:
      - configMap: {name: cm}
      - secret: {name: sec, items: [{key: word, path: secret-word}]}
      - configMap: {name: not-there, optional: true}
      - downwardAPI:
          items:
          - {path: labels, fieldRef: {fieldPath: metadata.labels}}
          - {path: annotations, fieldRef: {fieldPath: metadata.annotations}}
          - {path: name, fieldRef: {fieldPath: metadata.name}}
          - {path: cpu, resourceFieldRef: {containerName: a, resource: limits.cpu, divisor: 1m}}
      - serviceAccountToken: {path: token, audience: vault, expirationSeconds: 600}
";

#[test]
fn mounted_objects_change_under_a_running_pod() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(OBJECTS);
    node.apply(LIVE);
    node.wait("condition=Ready", &["pod/live"], TIMEOUT);
    let inside = |script: &str| node.ok(&["exec", "live", "-c", "a", "--", "sh", "-c", script]);
    let becomes = |script: &str, wanted: &str| {
        eventually(&format!("{script} = {wanted}"), TIMEOUT, || {
            let found = inside(script);
            if found == wanted { Ok(()) } else { Err(found) }
        });
    };
    assert_eq!(
        inside("cat /cm/word /items/deep/renamed /sec/word /all/word /all/secret-word /single"),
        "firstfirsthiddenfirsthiddenfirst"
    );
    assert_eq!(inside("ls /cm /items"), "/cm:\nother\nword\n\n/items:\ndeep\n");
    assert_eq!(inside("stat -L -c %a /items/deep/renamed /sec/word /cm/word"), "400\n440\n644\n");
    assert_eq!(
        inside("cat /all/name /all/cpu; echo; cat /all/labels; echo; cat /all/annotations")
            .lines()
            .take(2)
            .collect::<Vec<_>>(),
        ["live500", "tier=\"front\""]
    );
    contains(&inside("cat /all/annotations"), "note=\"a\\\"b\"").unwrap();
    let host = node.field(&["pod", "live"], ".spec.nodeName");
    assert_eq!(inside("echo $FROZEN $NODE $LIMIT"), format!("first {host} 64\n"));
    assert_eq!(node.run(&["exec", "live", "-c", "a", "--", "touch", "/cm/mine"]).code, 1, "read-only");
    // emptyDir: one folder for both, at each one's mount path.
    inside("echo across > /shared/file; echo deep > /below/file");
    let there = |script: &str| node.run(&["exec", "live", "-c", "b", "--", "sh", "-c", script]);
    assert_eq!(there("cat /there/file /there/made/below/file").out, "across\ndeep\n");
    assert_ne!(there("echo no > /there/file").code, 0, "read-only there");

    // All views of the objects change; environment and subPath do not, as upstream.
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: cm}, data: {word: second, added: w}}");
    node.apply("{apiVersion: v1, kind: Secret, metadata: {name: sec}, stringData: {word: known}}");
    becomes("cat /cm/word /items/deep/renamed /all/word /sec/word /all/secret-word", "secondsecondsecondknownknown");
    becomes("ls /cm", "added\nword\n");
    assert_eq!(inside("cat /single; echo $FROZEN"), "firstfirst\n");
    node.ok(&["label", "pod", "live", "--overwrite", "tier=back"]);
    becomes("cat /all/labels", "tier=\"back\"");
    // An optional source that appears is shown.
    node.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: not-there}, data: {late: z}}");
    becomes("cat /all/late", "z");
    // A deleted object leaves its files unchanged.
    node.ok(&["delete", "cm", "cm"]);
    assert_eq!(inside("cat /cm/word"), "second");

    // Tokens: the one from the manifest, and every Pod's default one.
    let claims = |path: &str| -> Value {
        let token = inside(&format!("cat {path}"));
        let body = token.split('.').nth(1).unwrap_or_else(|| panic!("no token: {token}"));
        serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap()
    };
    let own = claims("/all/token");
    assert_eq!((&own["aud"][0], &own["sub"]), (&"vault".into(), &"system:serviceaccount:default:default".into()));
    assert_eq!(own["exp"].as_i64().unwrap() - own["iat"].as_i64().unwrap(), 600);
    assert_eq!(own["kubernetes.io"]["pod"]["name"], "live");
    assert_eq!(
        own["kubernetes.io"]["pod"]["uid"].as_str(),
        Some(node.field(&["pod", "live"], ".metadata.uid").as_str())
    );
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(claims(&format!("{account}/token"))["kubernetes.io"]["pod"]["name"], "live");
    assert_eq!(inside(&format!("cat {account}/namespace")), "default");
    node.ok(&["delete", "pod", "live"]);
    drop(node);
    untouched.assert_unchanged();
}

/// One Pod per host path type; `%` is a folder of the test.
const ROWS: [(&str, &str, &str); 9] = [
    ("any", "there", ""),
    ("dir", "there", "Directory"),
    ("made", "new/deep", "DirectoryOrCreate"),
    ("file", "there/file", "File"),
    ("makefile", "fresh", "FileOrCreate"),
    ("nodir", "missing", "Directory"),
    ("nofile", "there", "File"),
    ("notdir", "there/file", "DirectoryOrCreate"),
    ("nosocket", "there/file", "Socket"),
];

#[test]
fn host_paths_are_checked_made_and_shared_with_the_host() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("there")).unwrap();
    fs::write(folder.path().join("there/file"), "of the host").unwrap();
    let pod = |(name, path, kind): (&str, &str, &str)| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], volumeMounts: [{{name: v, mountPath: /v}}]}}
  volumes: [{{name: v, hostPath: {{path: '{}/{path}', type: '{kind}'}}}}]
---",
            folder.path().display()
        )
    };
    node.apply(&ROWS.map(pod).concat());
    for name in ["any", "dir", "made", "file", "makefile"] {
        node.wait("condition=Ready", &[&format!("pod/{name}")], TIMEOUT);
    }
    let inside = |pod: &str, script: &str| node.ok(&["exec", pod, "--", "sh", "-c", script]);
    assert_eq!(inside("any", "cat /v/file"), "of the host");
    assert_eq!(inside("file", "cat /v"), "of the host");
    inside("made", "echo back > /v/word");
    inside("makefile", "echo again > /v");
    assert_eq!(fs::read_to_string(folder.path().join("new/deep/word")).unwrap(), "back\n");
    assert_eq!(fs::read_to_string(folder.path().join("fresh")).unwrap(), "again\n");
    let at = folder.path().display();
    for (name, why) in [
        ("nodir", format!("hostPath type check failed: {at}/missing is not a directory")),
        ("nofile", format!("hostPath type check failed: {at}/there is not a file")),
        ("notdir", format!("hostPath type check failed: {at}/there/file is not a directory")),
        ("nosocket", format!("hostPath type check failed: {at}/there/file is not a socket file")),
    ] {
        let said = format!("MountVolume.SetUp failed for volume \"v\" : {why}");
        eventually("it is told", TIMEOUT, || contains(&node.ok(&["events", "--for", &format!("pod/{name}")]), &said));
        assert_eq!(node.field(&["pod", name], ".status.phase"), "Pending");
    }
    // A missing path may appear; then the Pod starts.
    fs::create_dir(folder.path().join("missing")).unwrap();
    node.wait("condition=Ready", &["pod/nodir"], TIMEOUT);
    node.ok(&["delete", "pods", "--all"]);
    assert!(folder.path().join("new/deep/word").exists(), "what the host has stays");
    drop(node);
    untouched.assert_unchanged();
}
