//! Images on a node: from registries with and without credentials, from archives, by policy, and their removal.

use std::{fs, process::Command, time::Duration};

use serde_json::json;

use crate::support::{
    TestNode, contains, eventually,
    leftovers::Machine,
    missing,
    node::busybox_tar,
    registry::{Layout, Registry, Relay, Rules, noise, run, tar},
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// An image that prints a word and sleeps.
pub fn image(word: &str) -> Layout {
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

/// Waits until a Pod has printed its image's word.
#[track_caller]
fn says(node: &TestNode, pod: &str, word: &str) {
    node.wait("condition=Ready", &[&format!("pod/{pod}")], TIMEOUT);
    eventually(&format!("{pod} says {word}"), TIMEOUT, || match node.run(&["logs", pod]) {
        answer if answer.out == format!("{word}\n") => Ok(()),
        answer => Err(answer.all()),
    });
}

/// An image's stop signal may be any text, or a number out of range.
#[test]
fn a_stop_signal_that_there_is_not_stops_as_usual() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    for (n, signal) in ["SIGRTMIN+99999999999", "SIGRTMIN+2147483647", "0", "-9", "SIGUSR1"].iter().enumerate() {
        let mut layout = Layout::new();
        let script = "trap 'exit 0' TERM; trap 'exit 10' USR1; while :; do sleep 0.1; done";
        let config = json!({"Cmd": ["sh", "-c", script], "Env": ["PATH=/bin"], "StopSignal": signal});
        let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let made = layout.image(architecture, &[fs::read(busybox_tar()).unwrap()], config);
        layout.tag(made, &format!("localhost/stop{n}:1"));
        let archive = tempfile::NamedTempFile::new().unwrap();
        run(Command::new("tar").arg("-C").arg(layout.dir.path()).arg("-cf").arg(archive.path()).arg("."));
        node.ok(&["image", "load", archive.path().to_str().unwrap()]);
        let name = format!("stop{n}");
        let manifest = pod(&name, &format!("localhost/stop{n}:1"), "").replace("PeriodSeconds: 0", "PeriodSeconds: 60");
        node.apply(&manifest);
        node.wait("condition=Ready", &[&format!("pod/{name}")], TIMEOUT);
        let watch = node.talk(&["get", "pod", &name, "-w", "-o", "json"]);
        watch.hear("\"Running\"");
        let begun = std::time::Instant::now();
        node.ok(&["delete", "pod", &name]);
        assert!(
            begun.elapsed() < Duration::from_secs(30) * crate::support::slowness(),
            "{signal}: it was killed after {:?}",
            begun.elapsed()
        );
        watch.hear(if *signal == "SIGUSR1" { "\"exitCode\": 10" } else { "\"exitCode\": 0" });
    }
    drop(node);
    untouched.assert_unchanged();
}

const WAITING: &str = ".status.containerStatuses[0].state.waiting.reason";

#[test]
fn a_registry_lets_in_who_has_credentials() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    let registry = Registry::start_with(true);
    let name = registry.push(&image("private"), "it", "team/private:1");
    let said = |pod: &str, part: &str| {
        eventually(part, TIMEOUT, || contains(&node.ok(&["events", "--for", &format!("pod/{pod}")]), part));
    };
    // Without a secret.
    node.apply(&pod("stranger", &name, ""));
    node.wait_field(&["pod", "stranger"], WAITING, "ImagePullBackOff", TIMEOUT);
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
        node.wait_field(&["pod", pod], WAITING, "ImagePullBackOff", TIMEOUT);
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
    // The ServiceAccount supplies its secrets.
    node.ok(&["delete", "pod", "friend"]);
    node.ok(&["image", "rm", &name]);
    node.ok(&["patch", "serviceaccount", "default", "-p", "{\"imagePullSecrets\": [{\"name\": \"right\"}]}"]);
    node.apply(&pod("heir", &name, ", imagePullPolicy: Always"));
    node.wait("condition=Ready", &["pod/heir"], TIMEOUT);
    node.ok(&["delete", "pods", "--all"]);
    // Manually, with the password from the environment.
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
    // With a name other than loopback's, which would be used without TLS.
    let name = format!("{host}:{port}/sealed:1");
    if !std::net::ToSocketAddrs::to_socket_addrs(&format!("{host}:{port}"))
        .is_ok_and(|mut a| a.any(|a| a.ip().to_string() == "127.0.0.1"))
    {
        missing::here(&format!("{host} is not 127.0.0.1 here"));
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

/// A layer of one header: a sparse file without data, or a link.
fn one_entry(path: &str, of_type: ::tar::EntryType, change: impl FnOnce(&mut ::tar::GnuHeader)) -> Vec<u8> {
    let mut header = ::tar::Header::new_gnu();
    header.set_entry_type(of_type);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..path.len()].copy_from_slice(path.as_bytes());
    change(gnu);
    header.set_cksum();
    [header.as_bytes().as_slice(), &[0; 1024]].concat()
}

#[test]
fn hostile_images_do_not_run_and_their_pods_say_why() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    let registry = Registry::start();
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    // A file of 8 GiB without data, and in the next layer a link to it, which must copy it.
    let hole = one_entry("hole", ::tar::EntryType::GNUSparse, |gnu| gnu.set_real_size(8 << 30));
    let copy = one_entry("copy", ::tar::EntryType::Link, |gnu| gnu.linkname[..4].copy_from_slice(b"hole"));
    let mut bomb = Layout::new();
    bomb.tag(bomb.image(architecture, &[hole, copy], json!({"Cmd": ["sh"]})), "it");
    let name = registry.push(&bomb, "it", "bomb:1");
    node.apply(&pod("bomb", &name, ""));
    node.wait_field(&["pod", "bomb"], WAITING, "ImagePullBackOff", TIMEOUT);
    for part in [format!("Failed to pull image \"{name}\": "), "taken for a decompression bomb".into()] {
        eventually(&part, TIMEOUT, || contains(&node.ok(&["events", "--for", "pod/bomb"]), &part));
    }
    // Another name for root, and a user that the kernel treats as "unchanged".
    for (user, reason) in [
        ("00", "CreateContainerConfigError"),
        ("+0:0", "CreateContainerConfigError"),
        ("4294967295", "CreateContainerError"),
    ] {
        let mut layout = Layout::new();
        let config = json!({"Cmd": ["sleep", "1000"], "Env": ["PATH=/bin"], "User": user});
        layout.tag(layout.image(architecture, &[fs::read(busybox_tar()).unwrap()], config), "it");
        let who = format!("user{}", user.len());
        let name = registry.push(&layout, "it", &format!("{who}:1"));
        node.apply(&pod(&who, &name, ", securityContext: {runAsNonRoot: true}"));
        node.wait_field(&["pod", &who], WAITING, reason, TIMEOUT);
    }
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
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
    node.wait_field(&["pod", "never"], WAITING, "ErrImageNeverPull", TIMEOUT);
    let why = format!("Container image \"{name}\" is not present with pull policy of Never");
    eventually("it is told", TIMEOUT, || contains(&node.ok(&["events", "--for", "pod/never"]), &why));
    assert_eq!(registry.gets("/manifests/"), 0, "nothing was asked");
    speaks("first", "", "old");
    // What `Never` waited for is present now.
    node.wait("condition=Ready", &["pod/never"], TIMEOUT);
    let asked = registry.gets("/manifests/");
    registry.push(&image("new"), "it", "app:1");
    speaks("present", ", imagePullPolicy: IfNotPresent", "old");
    assert_eq!(registry.gets("/manifests/"), asked, "a tag that is present is not asked for");
    contains(&node.ok(&["events", "--for", "pod/present"]), "already present on machine").unwrap();
    speaks("always", ", imagePullPolicy: Always", "new");
    assert!(registry.gets("/manifests/") > asked);
    // The old one is unchanged for its running containers.
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
    // Several Pods that want one new image at once download it once.
    let shared = registry.push(&image("shared"), "it", "shared:1");
    let before = registry.gets("/shared/blobs/");
    node.apply(&(0..6).map(|i| pod(&format!("share{i}"), &shared, "")).collect::<String>());
    for i in 0..6 {
        node.wait("condition=Ready", &[&format!("pod/share{i}")], TIMEOUT);
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
    // All names of all images in it are listed, as often as the archive repeats them.
    let tagged = ["example.com/many:1", "example.com/many:latest", "example.com/other:1"];
    let (layout, mut many) = (image("many"), Command::new("skopeo"));
    many.args(["copy", "--insecure-policy", &format!("oci:{}:it", layout.dir.path().display())]);
    many.arg(format!("docker-archive:{}:{}", path("many.tar"), tagged[0]));
    run(many.args(tagged[1..].iter().flat_map(|name| ["--additional-tag", name])));
    let said = node.ok(&["image", "load", &path("many.tar")]);
    let names: Vec<&str> = said.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, tagged, "{said}");
    node.ok(&[&["image", "rm"], &tagged[..]].concat());
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
    // An image with a running container loses its name; the container keeps its files, also after a restart of the agent.
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
    eventually("no layer is left", TIMEOUT, || {
        let mut found = Vec::new();
        for entry in fs::read_dir(layers.join("layers")).into_iter().flatten().flatten() {
            found.push(entry.path());
        }
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    });
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_restart_looks_for_its_image_again() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    let registry = Registry::start();
    let name = registry.push(&image("first"), "it", "app:1");
    let script = "cat /word; test -e /data/again || { touch /data/again; until test -e /data/go; do sleep 0.1; done; exit 1; }; \
                  exec sleep 1000";
    let more = format!(", command: [sh, -c, '{script}'], volumeMounts: [{{name: data, mountPath: /data}}]");
    node.apply(&pod("web", &name, &more).replace("spec:\n", "spec:\n  volumes: [{name: data, emptyDir: {}}]\n"));
    says(&node, "web", "first");
    // Its name refers to another image by then, which this node does not have.
    registry.push(&image("second"), "it", "app:1");
    node.ok(&["image", "rm", &name]);
    node.ok(&["exec", "web", "--", "touch", "/data/go"]);
    node.wait_field(&["pod", "web"], ".status.containerStatuses[0].restartCount", "1", TIMEOUT);
    says(&node, "web", "second");
    eventually("the second pull is told", TIMEOUT, || {
        let told = node.ok(&["events", "--for", "pod/web"]);
        if told.matches("Successfully pulled image").count() == 2 { Ok(()) } else { Err(told) }
    });
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// The contents of a node's image store: blobs, layers, names, and temporary items.
fn stored(node: &TestNode) -> [usize; 4] {
    let images = node.dir.path().join("images");
    let count = |part: &&str| fs::read_dir(images.join(part)).unwrap_or_else(|e| panic!("{part}: {e}")).count();
    [&["blobs/sha256", "downloads"][..], &["layers"], &["refs"], &["tmp"]].map(|parts| parts.iter().map(count).sum())
}

/// Feeds the beginning of an archive to a command and waits until the store has part of it.
fn half_fed(node: &TestNode, args: &[&str], archive: &[u8]) -> std::process::Child {
    let before = stored(node);
    let piped = || std::process::Stdio::piped();
    let mut feed = node.command(args).stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    std::io::Write::write_all(feed.stdin.as_mut().unwrap(), &archive[..archive.len() / 2]).unwrap();
    eventually("the half of it is on its way to the disk", TIMEOUT, || match stored(node) {
        now if now != before => Ok(()),
        now => Err(format!("{now:?}")),
    });
    feed
}

/// Kills and restarts the node; then its store must contain exactly this.
#[track_caller]
fn killed(node: &mut TestNode, wanted: [usize; 4]) {
    node.kill();
    start_again(node);
    holds(node, wanted);
}

#[track_caller]
fn start_again(node: &mut TestNode) {
    node.spawn();
    node.wait_ready();
    eventually("its agent answers", TIMEOUT, || match node.run(&["image", "list"]) {
        answer if answer.code == 0 => Ok(()),
        answer => Err(answer.all()),
    });
}

#[track_caller]
fn holds(node: &TestNode, wanted: [usize; 4]) {
    eventually("the store holds whole images and nothing else", TIMEOUT, || match stored(node) {
        now if now == wanted => Ok(()),
        now => Err(format!("{now:?}, not {wanted:?}")),
    });
}

#[test]
fn a_kill_amid_an_import_a_load_or_a_pull_leaves_nothing() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    let (empty, one) = ([0; 4], [2, 1, 1, 0]);
    let rootfs = tar(&[("noise", &noise(8 << 20)), ("zz", b"the end")]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("rootfs.tar"), &rootfs).unwrap();
    let mut layout = Layout::new();
    let made = layout.image("amd64", &[tar(&[("small", b"s")]), rootfs.clone()], json!({}));
    layout.tag(made, "it");
    let from = format!("oci:{}:it", layout.dir.path().display());
    let to = format!("docker-archive:{}:example.com/saved:1", path("saved.tar"));
    run(Command::new("skopeo").args(["copy", "--insecure-policy", &from, &to]));
    let saved = fs::read(path("saved.tar")).unwrap();
    let images = |node: &TestNode| node.ok(&["image", "list", "-o", "name"]);

    // The node, during an import and a load.
    let cases: [(&[&str], &[u8]); 2] =
        [(&["image", "import", "-", "localhost/half:1"], &rootfs), (&["image", "load", "-"], &saved)];
    for (args, archive) in cases {
        let feed = half_fed(&node, args, archive);
        killed(&mut node, empty);
        let told = feed.wait_with_output().unwrap();
        assert_eq!(told.status.code(), Some(1), "{}", String::from_utf8_lossy(&told.stderr));
        assert_eq!(images(&node), "");
    }
    // The client: nothing is left, while the node runs on.
    for (args, archive) in cases {
        let mut feed = half_fed(&node, args, archive);
        feed.kill().unwrap();
        feed.wait().unwrap();
        eventually("nothing is in the making", TIMEOUT, || match stored(&node)[3] {
            0 => Ok(()),
            count => Err(format!("{count} things")),
        });
        assert_eq!(images(&node), "");
    }
    killed(&mut node, empty);
    // Half a pull: one layer may be present already, the other one is stuck.
    let registry = Registry::start();
    let name = registry.push(&layout, "it", "app:1");
    let relay = Relay::start(&registry, Rules { stall_after: Some(1 << 20), ..Rules::default() });
    let mut pull = node.command(&["image", "pull", &format!("{}/app:1", relay.addr)]).spawn().unwrap();
    eventually("the pull is stuck", TIMEOUT, || {
        let (relayed, now) = (relay.relayed.load(std::sync::atomic::Ordering::SeqCst), stored(&node));
        if relayed > 1 << 20 && now != empty { Ok(()) } else { Err(format!("{relayed} bytes, {now:?}")) }
    });
    killed(&mut node, empty);
    assert_eq!(pull.wait().unwrap().code(), Some(1));
    // All three work afterwards.
    node.ok(&["image", "import", &path("rootfs.tar"), "localhost/half:1"]);
    holds(&node, one);
    node.ok(&["image", "load", &path("saved.tar")]);
    node.ok(&["image", "pull", &name]);
    assert_eq!(images(&node).lines().count(), 3, "{}", images(&node));
    node.ok(&["image", "rm", "localhost/half:1", "example.com/saved:1", &name]);
    holds(&node, empty);

    // At other times: the image is complete or absent.
    let import = ["image", "import", &path("rootfs.tar"), "localhost/whole:1"];
    let begun = std::time::Instant::now();
    node.ok(&import);
    let whole = begun.elapsed();
    for eighth in 1..=9 {
        node.ok(&["image", "rm", "localhost/whole:1"]);
        let mut feed = node.command(&import).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * eighth / 8);
        node.kill();
        feed.wait().unwrap();
        start_again(&mut node);
        let there = images(&node);
        holds(&node, if there.is_empty() { empty } else { one });
        eprintln!("killed after {eighth}/8 of an import: {}", if there.is_empty() { "nothing" } else { "whole" });
        node.ok(&import);
        holds(&node, one);
    }
    drop(node);
    untouched.assert_unchanged();
}
