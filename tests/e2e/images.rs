//! Images on a node: from registries with and without credentials, from archives, by policy, and away again.

use std::{fs, process::Command, time::Duration};

use serde_json::json;

use crate::support::{
    TestNode, contains, eventually,
    leftovers::Machine,
    node::busybox_tar,
    registry::{Layout, Registry, run, tar},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// An image that says its word and sleeps.
fn image(word: &str) -> Layout {
    let mut layout = Layout::new();
    let layers = [fs::read(busybox_tar()).unwrap(), tar(&[("word", format!("{word}\n").as_bytes())])];
    let config = json!({"Cmd": ["sh", "-c", "cat /word; exec sleep 1000"], "Env": ["PATH=/bin"]});
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let image = layout.image(architecture, &layers, config);
    layout.tag(image, "it");
    layout
}

fn pod(name: &str, image: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: '{image}'{more}}}]
---
"
    )
}

/// Waits until a Pod has said the word of its image.
#[track_caller]
fn says(node: &TestNode, pod: &str, word: &str) {
    node.wait("condition=Ready", &[&format!("pod/{pod}")], PATIENCE);
    eventually(&format!("{pod} says {word}"), PATIENCE, || match node.run(&["logs", pod]) {
        answer if answer.out == format!("{word}\n") => Ok(()),
        answer => Err(answer.all()),
    });
}

const WAITING: &str = ".status.containerStatuses[0].state.waiting.reason";

#[test]
fn a_registry_lets_in_who_has_credentials() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    let registry = Registry::start_with(true);
    let name = registry.push(&image("private"), "it", "team/private:1");
    let said = |pod: &str, part: &str| {
        eventually(part, PATIENCE, || contains(&node.ok(&["events", "--for", &format!("pod/{pod}")]), part));
    };
    // Without a secret.
    node.apply(&pod("stranger", &name, ""));
    node.wait_field(&["pod", "stranger"], WAITING, "ImagePullBackOff", PATIENCE);
    said("stranger", &format!("Failed to pull image \"{name}\": "));
    said("stranger", "pull access denied");
    said("stranger", "Error: ErrImagePull");
    said("stranger", &format!("Back-off pulling image \"{name}\""));
    // With one whose password is wrong, and with one that does not exist.
    let secret = |name: &str, password: &str| {
        let server = format!("--docker-server={}", registry.addr);
        let password = format!("--docker-password={password}");
        node.ok(&["create", "secret", "docker-registry", name, &server, "--docker-username=user", &password]);
    };
    secret("wrong", "guess");
    secret("right", "secret");
    let with = |pod_name: &str, secret: &str| {
        pod(pod_name, &name, "").replace("spec:\n", &format!("spec:\n  imagePullSecrets: [{{name: {secret}}}]\n"))
    };
    node.apply(&(with("guesser", "wrong") + &with("nobody", "missing")));
    for pod in ["guesser", "nobody"] {
        node.wait_field(&["pod", pod], WAITING, "ImagePullBackOff", PATIENCE);
    }
    for args in [&["image", "pull", &name][..], &["image", "pull", &name, "--username", "user", "--password", "guess"]]
    {
        let refused = node.run(args);
        assert_eq!(refused.code, 1, "{}", refused.all());
        contains(&refused.err, "pull access denied").unwrap();
    }
    assert_eq!(node.ok(&["image", "list", "-o", "name"]), "");
    // With the right one.
    node.apply(&with("friend", "right"));
    says(&node, "friend", "private");
    said("friend", &format!("Successfully pulled image \"{name}\" in "));
    contains(&node.field(&["pod", "friend"], ".status.containerStatuses[0].imageID"), "team/private@sha256:").unwrap();
    // The ServiceAccount brings its secrets along.
    node.ok(&["delete", "pod", "friend"]);
    node.ok(&["image", "rm", &name]);
    node.ok(&["patch", "serviceaccount", "default", "-p", "{\"imagePullSecrets\": [{\"name\": \"right\"}]}"]);
    node.apply(&pod("heir", &name, ", imagePullPolicy: Always"));
    node.wait("condition=Ready", &["pod/heir"], PATIENCE);
    node.ok(&["delete", "pods", "--all"]);
    // By hand, the password from the environment.
    node.ok(&["image", "rm", &name]);
    let pulled = node
        .command(&["image", "pull", &name, "--username", "user"])
        .env("PODWRIGHT_REGISTRY_PASSWORD", "secret")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&pulled.stdout).into_owned();
    assert!(pulled.status.success() && out.starts_with(&name), "{out}{}", String::from_utf8_lossy(&pulled.stderr));
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_registry_behind_tls_is_trusted_by_its_authority() {
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let registry = Registry::start_tls(&host);
    registry.push(&image("sealed"), "it", "sealed:1");
    let port = registry.addr.rsplit(':').next().unwrap();
    // By a name that is not the loopback's: those are spoken to without TLS.
    let name = format!("{host}:{port}/sealed:1");
    if !std::net::ToSocketAddrs::to_socket_addrs(&format!("{host}:{port}"))
        .is_ok_and(|mut a| a.any(|a| a.ip().to_string() == "127.0.0.1"))
    {
        eprintln!("skipped: {host} is not 127.0.0.1 here");
        return;
    }
    let stranger = TestNode::start(&[]);
    let refused = stranger.run(&["image", "pull", &name]);
    assert_eq!(refused.code, 1, "{}", refused.all());
    contains(&refused.err.to_lowercase(), "certificate").unwrap();
    let mut node = TestNode::stopped(&[]);
    node.set_env("SSL_CERT_FILE", registry.ca().to_str().unwrap());
    node.spawn();
    node.wait_ready();
    node.apply(&pod("sealed", &name, ""));
    says(&node, "sealed", "sealed");
    node.ok(&["delete", "pods", "--all"]);
}

#[test]
fn pull_policies_decide_what_is_asked_of_the_registry() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    let registry = Registry::start();
    let name = registry.push(&image("old"), "it", "app:1");
    let speaks = |pod_name: &str, more: &str, word: &str| {
        node.apply(&pod(pod_name, &name, more));
        says(&node, pod_name, word);
    };
    node.apply(&pod("never", &name, ", imagePullPolicy: Never"));
    node.wait_field(&["pod", "never"], WAITING, "ErrImageNeverPull", PATIENCE);
    let why = format!("Container image \"{name}\" is not present with pull policy of Never");
    eventually("it is told", PATIENCE, || contains(&node.ok(&["events", "--for", "pod/never"]), &why));
    assert_eq!(registry.gets("/manifests/"), 0, "nothing was asked");
    speaks("first", "", "old");
    // What `Never` waited for is there now.
    node.wait("condition=Ready", &["pod/never"], PATIENCE);
    let asked = registry.gets("/manifests/");
    registry.push(&image("new"), "it", "app:1");
    speaks("present", ", imagePullPolicy: IfNotPresent", "old");
    assert_eq!(registry.gets("/manifests/"), asked, "a tag that is present is not asked for");
    contains(&node.ok(&["events", "--for", "pod/present"]), "already present on machine").unwrap();
    speaks("always", ", imagePullPolicy: Always", "new");
    assert!(registry.gets("/manifests/") > asked);
    // The old one stays what it is for those that run it.
    assert_eq!(node.ok(&["exec", "first", "--", "cat", "/word"]), "old\n");
    let digest = node.field(&["pod", "first"], ".status.containerStatuses[0].imageID");
    let newer = node.field(&["pod", "always"], ".status.containerStatuses[0].imageID");
    assert_ne!(digest, newer);
    // By digest.
    node.apply(&pod("exact", &digest, ""));
    says(&node, "exact", "old");
    let absent = format!("{}/app:2", registry.addr);
    let missing = node.run(&["image", "pull", &absent]);
    assert_eq!(missing.code, 1);
    contains(&missing.err, "not found").unwrap();
    let invalid = node.run(&["image", "pull", "Not//A:Name"]);
    assert_eq!(invalid.code, 1, "{}", invalid.all());
    // Several Pods that want one new image at once fetch it once.
    let shared = registry.push(&image("shared"), "it", "shared:1");
    let before = registry.gets("/shared/blobs/");
    node.apply(&(0..6).map(|i| pod(&format!("share{i}"), &shared, "")).collect::<String>());
    for i in 0..6 {
        node.wait("condition=Ready", &[&format!("pod/share{i}")], PATIENCE);
    }
    let fetched = registry.gets("/shared/blobs/") - before;
    assert!(fetched <= 3, "{fetched} blobs for a config and two layers, one of which is known");
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn archives_are_loaded_and_images_removed() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let copy = |layout: &Layout, to: String| {
        let from = format!("oci:{}:it", layout.dir.path().display());
        run(Command::new("skopeo").args(["copy", "--insecure-policy", &from, &to]));
    };
    copy(&image("docker"), format!("docker-archive:{}:example.com/saved:1", path("docker.tar")));
    copy(&image("oci"), format!("oci-archive:{}:example.com/oci:2", path("oci.tar")));
    contains(&node.ok(&["image", "load", &path("docker.tar")]), "example.com/saved:1").unwrap();
    // From standard input, too, and compressed.
    run(Command::new("gzip").arg(path("oci.tar")));
    let loaded = node.run_with(&["image", "load", "-"], &fs::read(path("oci.tar.gz")).unwrap());
    assert_eq!(loaded.code, 0, "{}", loaded.all());
    contains(&loaded.out, "example.com/oci:2").unwrap();
    node.apply(
        &(pod("saved", "example.com/saved:1", "")
            + &pod("oci", "example.com/oci:2", ", imagePullPolicy: IfNotPresent")),
    );
    for (pod, word) in [("saved", "docker"), ("oci", "oci")] {
        says(&node, pod, word);
    }
    fs::write(path("garbage"), b"no archive").unwrap();
    let garbage = node.run(&["image", "load", &path("garbage")]);
    assert_eq!(garbage.code, 1, "{}", garbage.all());
    let absent = node.run(&["image", "load", &path("absent")]);
    assert_eq!(absent.code, 1);
    let list = node.ok(&["image", "list"]);
    let rows: Vec<&str> = list.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!(rows[0], "NAME");
    for name in ["example.com/saved:1", "example.com/oci:2"] {
        assert!(rows.contains(&name), "{list}");
    }
    // An image whose container runs loses its name; the container keeps its files, also after a restart of the agent.
    let inside = |pod: &str| node.ok(&["exec", pod, "--", "cat", "/word", "/etc/passwd"]);
    assert_eq!(node.ok(&["image", "rm", "example.com/saved:1"]), "image \"example.com/saved:1\" removed\n");
    contains(&inside("saved"), "docker\nroot:").unwrap();
    assert!(!node.ok(&["image", "list", "-o", "name"]).contains("saved"));
    let gone = node.run(&["image", "rm", "example.com/saved:1"]);
    assert_eq!(gone.code, 1, "{}", gone.all());
    contains(&gone.err, "NotFound").unwrap();
    contains(&inside("saved"), "docker\nroot:").unwrap();
    node.ok(&["delete", "pods", "--all"]);
    node.ok(&["image", "rm", "example.com/oci:2"]);
    assert_eq!(node.ok(&["image", "list", "-o", "name"]), "");
    let layers = node.dir.path().join("images");
    eventually("no layer is left", PATIENCE, || {
        let mut found = Vec::new();
        for entry in fs::read_dir(layers.join("layers")).into_iter().flatten().flatten() {
            found.push(entry.path());
        }
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    });
    drop(node);
    untouched.assert_unchanged();
}
