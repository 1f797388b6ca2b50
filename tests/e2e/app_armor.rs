//! Containers' AppArmor profiles, as in the kernel: on hosts with AppArmor, such as the guest of `vm/`.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use crate::support::{TestNode, contains, eventually, missing};

const TIMEOUT: Duration = Duration::from_secs(30);
const PARSER: &str = "/usr/sbin/apparmor_parser";
const DEFAULT: &str = "podwright-default (enforce)";

/// Forbids something that nothing else does.
const NAMED: &str = "profile podwright-test flags=(attach_disconnected) { file, network, capability, signal, ptrace, deny /tmp/** w, }\n";

/// Whether AppArmor is available; that the guest has it is a separate test.
fn is_there() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'));
    if enabled && std::env::var_os("PODWRIGHT_TEST_GUEST").is_some() {
        return true;
    }
    assert!(std::env::var_os("PODWRIGHT_TEST_GUEST").is_none(), "the guest has no AppArmor");
    missing::here("it loads and removes profiles of the whole machine; `./dev vm` runs it in a guest");
    false
}

fn parser(how: &str, profile: &str) {
    let mut child = Command::new(PARSER).args([how, "--skip-cache"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(profile.as_bytes()).unwrap();
    let ended = child.wait().unwrap();
    assert!(ended.success(), "apparmor_parser {how}: {ended}");
}

fn pod(name: &str, annotation: &str, of_pod: &str, of_container: &str) -> String {
    let key = "container.apparmor.security.beta.kubernetes.io/c";
    let annotations = if annotation.is_empty() { String::new() } else { format!("{key}: {annotation}") };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 0\n  {of_pod}\n  containers:\n  \
         - {{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], {of_container}}}\n---\n"
    )
}

fn profile(kind: &str) -> String {
    format!("securityContext: {{appArmorProfile: {kind}}}")
}

/// Of a container's own process, and of one executed in it.
fn profiles(node: &TestNode, pod: &str) -> [String; 2] {
    ["1", "self"].map(|process| {
        let script = format!("cat /proc/{process}/attr/current");
        node.ok(&["exec", pod, "--", "sh", "-c", &script]).trim_end().to_owned()
    })
}

/// As the host sees the container's process.
fn seen_from_outside(node: &TestNode, pod: &str) -> String {
    let found: serde_json::Value = serde_json::from_str(&node.ok(&["inspect", "pod", pod, "-o", "json"])).unwrap();
    let pid = found["containers"][0]["pid"].as_u64().unwrap();
    fs::read_to_string(format!("/proc/{pid}/attr/current")).unwrap().trim_end().to_owned()
}

/// May do anything not forbidden by a profile, without being privileged.
const MIGHTY: &str = "capabilities: {add: [SYS_ADMIN, SYS_RAWIO]}, seccompProfile: {type: Unconfined}";

#[test]
fn containers_run_under_the_profiles_that_they_ask_for() {
    if !is_there() {
        return;
    }
    parser("--replace", NAMED);
    let node = TestNode::start(&[]);
    node.import_busybox();
    let localhost = profile("{type: Localhost, localhostProfile: podwright-test}");
    let probed = "readinessProbe: {periodSeconds: 1, exec: {command: \
                  [grep, -qx, 'podwright-default (enforce)', /proc/self/attr/current]}}";
    let strict = "securityContext: {allowPrivilegeEscalation: false, runAsUser: 1000, capabilities: {drop: [ALL]}}";
    let gives_users = node.field(&["nodes"], ".items[0].status.runtimeHandlers[0].features.userNamespaces") == "true";
    let users = if gives_users { "hostUsers: false" } else { "" };
    for (name, manifest, wanted) in [
        ("plain", pod("plain", "", "", probed), DEFAULT),
        ("strict", pod("strict", "", "", strict), DEFAULT),
        ("shared", pod("shared", "", "shareProcessNamespace: true", ""), DEFAULT),
        ("hosted", pod("hosted", "", "hostPID: true", ""), DEFAULT),
        ("mapped", pod("mapped", "", users, ""), DEFAULT),
        ("asked", pod("asked", "", &profile("{type: RuntimeDefault}"), ""), DEFAULT),
        ("free", pod("free", "", &profile("{type: Unconfined}"), ""), "unconfined"),
        ("own", pod("own", "", &profile("{type: Unconfined}"), &localhost), "podwright-test (enforce)"),
        ("old", pod("old", "localhost/podwright-test", "", ""), "podwright-test (enforce)"),
        ("mighty", pod("mighty", "", "", "securityContext: {privileged: true}"), "unconfined"),
        ("both", pod("both", "", "", &localhost.replace("{app", "{privileged: true, app")), "podwright-test (enforce)"),
    ] {
        node.apply(&manifest);
        node.wait("condition=Ready", &[&format!("pod/{name}")], TIMEOUT);
        assert_eq!(seen_from_outside(&node, name), wanted, "{name}");
        // The profile of the sandbox's or host's pid 1 does not matter.
        let inside = profiles(&node, name);
        let (first, second) = (if matches!(name, "shared" | "hosted") { "" } else { &inside[0] }, &inside[1]);
        assert!(first.is_empty() || first == wanted, "{name}: {inside:?}");
        assert_eq!(second, wanted, "{name}");
    }
    let denied = node.run(&["exec", "own", "--", "touch", "/tmp/x"]);
    contains(&denied.all(), "Permission denied").unwrap();
    node.ok(&["exec", "plain", "--", "touch", "/tmp/x"]);
    // The trace contains it like any other step.
    contains(&node.ok(&["trace", "pod", "plain"]), "exec podwright-default").unwrap();
    contains(&node.run(&["doctor"]).all(), "containers run under AppArmor's podwright-default").unwrap();
    let field = ".spec.containers[0].securityContext.appArmorProfile.localhostProfile";
    assert_eq!(node.field(&["pod", "old"], field), "podwright-test");
}

#[test]
fn the_default_profile_forbids_what_capabilities_allow() {
    if !is_there() {
        return;
    }
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(&pod("confined", "", "", &format!("securityContext: {{{MIGHTY}}}")));
    node.apply(&pod("free", "", &profile("{type: Unconfined}"), &format!("securityContext: {{{MIGHTY}}}")));
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    // Each only affects the container, so it is harmless if not forbidden.
    for script in [
        "mkdir -p /m && mount -t tmpfs none /m",
        "umount /proc/sys 2>/dev/null; echo x > /proc/sys/kernel/domainname",
        "umount /proc/kcore 2>/dev/null; head -c 1 /proc/kcore >/dev/null",
        "umount /sys/firmware 2>/dev/null; ls /sys/firmware/* >/dev/null",
    ] {
        let run = |pod: &str| node.run(&["exec", pod, "--", "sh", "-c", script]);
        let (confined, free) = (run("confined"), run("free"));
        contains(&confined.all(), "Permission denied").unwrap_or_else(|e| panic!("{script}: {e}"));
        if !script.contains("firmware") {
            assert_eq!(free.code, 0, "{script}: {}", free.all());
        }
    }
    // A profile must not prevent these: signals from each other and from the shim, traces, own attributes.
    let trapped = "apiVersion: v1\nkind: Pod\nmetadata: {name: trapped}\nspec:\n  terminationGracePeriodSeconds: 600\n  \
        containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, \
        'trap \"exit 0\" TERM; while true; do sleep 1; done']}]\n";
    node.apply(trapped);
    node.wait("condition=Ready", &["pod/trapped"], TIMEOUT);
    let script = "sleep 1000 & kill $! && cat /proc/1/environ >/dev/null && echo 1000 > /proc/self/oom_score_adj && \
                  echo x > /dev/null && mkfifo /tmp/p && chown 1:1 /tmp/p && rm /tmp/p && echo well";
    let allowed = node.run(&["exec", "trapped", "--", "sh", "-c", script]);
    contains(&allowed.all(), "well").unwrap();
    let deleted = std::time::Instant::now();
    node.ok(&["delete", "pod", "trapped"]);
    assert!(deleted.elapsed() < Duration::from_secs(500), "it did not hear of SIGTERM");
}

#[test]
fn a_profile_that_is_not_loaded_is_waited_for_and_one_that_is_removed_comes_back() {
    if !is_there() {
        return;
    }
    let node = TestNode::start(&[]);
    node.import_busybox();
    let late = NAMED.replace("podwright-test", "podwright-late");
    node.apply(&pod("late", "", &profile("{type: Localhost, localhostProfile: podwright-late}"), ""));
    eventually("it waits for its profile", TIMEOUT, || {
        let waiting =
            |field: &str| node.field(&["pod", "late"], &format!(".status.containerStatuses[0].state.waiting.{field}"));
        contains(&waiting("reason"), "CreateContainerError")?;
        contains(&waiting("message"), "apparmor profile not found podwright-late")
    });
    parser("--replace", &late);
    node.wait("condition=Ready", &["pod/late"], TIMEOUT * 3);
    assert_eq!(seen_from_outside(&node, "late"), "podwright-late (enforce)");

    parser("--remove", "profile podwright-default { }\n");
    node.apply(&pod("after", "", "", ""));
    node.wait("condition=Ready", &["pod/after"], TIMEOUT);
    assert_eq!(seen_from_outside(&node, "after"), DEFAULT);

    // Without its compiler it is unavailable: Pods that request it are refused, others run on.
    drop(node);
    parser("--remove", "profile podwright-default { }\n");
    fs::rename(PARSER, "/usr/sbin/hidden").unwrap();
    let node = TestNode::start(&[]);
    fs::rename("/usr/sbin/hidden", PARSER).unwrap();
    node.import_busybox();
    node.apply(&pod("plain", "", "", ""));
    node.apply(&pod("asks", "", &profile("{type: RuntimeDefault}"), ""));
    node.wait("condition=Ready", &["pod/plain"], TIMEOUT);
    assert_eq!(seen_from_outside(&node, "plain"), "unconfined");
    node.wait("jsonpath={.status.phase}=Failed", &["pod/asks"], TIMEOUT);
    let why = "Pod was rejected: Cannot enforce AppArmor: the profile podwright-default is not loaded: apparmor_parser is not \
               installed";
    assert_eq!(node.field(&["pod", "asks"], ".status.message"), why);
    contains(&node.log(), "containers run without an AppArmor profile unless they name one").unwrap();
}

/// CVE-2019-16884, CVE-2023-28642: a volume that imitates procfs receives the write.
#[test]
fn no_false_proc_is_there_to_take_the_profile() {
    if !is_there() {
        return;
    }
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: forged}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - name: i
    image: localhost/busybox:1
    volumeMounts: [{name: v, mountPath: /v}]
    command: [sh, -c, 'for p in self thread-self; do mkdir -p /v/$p/attr/apparmor; touch /v/$p/attr/exec /v/$p/attr/apparmor/exec; done']
  containers:
  - name: c
    image: localhost/busybox:1
    volumeMounts: [{name: v, mountPath: /proc}]
    command: [sleep, '1000']
",
    );
    eventually("it does not start", TIMEOUT, || {
        let told = node.ok(&["events", "--for", "pod/forged", "--types", "Warning"]);
        contains(&told, "\"/proc\" cannot be mounted because it is not of type proc")
    });
}
