//! What a Pod may not have, or this host cannot provide: the Pod is rejected with upstream's reason, and the host is unchanged.

use std::{fs, os::unix::fs::symlink, time::Duration};

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

fn pod(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  {fields}\n  \
         containers: [{{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}}]\n---\n"
    )
}

/// A sysctl that is unaffected by the write, if it happens.
fn with_sysctl(pod_name: &str, name: &str, host: &str) -> String {
    let value = fs::read_to_string(host).unwrap().trim().to_owned();
    pod(pod_name, &format!("securityContext: {{sysctls: [{{name: '{name}', value: '{value}'}}]}}"))
}

fn assert_refused(node: &TestNode, pod: &str, reason: &str, message: &str) {
    node.wait("jsonpath={.status.phase}=Failed", &[&format!("pod/{pod}")], TIMEOUT);
    assert_eq!(node.field(&["pod", pod], ".status.reason"), reason, "{pod}");
    assert_eq!(node.field(&["pod", pod], ".status.message"), format!("Pod was rejected: {message}"), "{pod}");
    eventually("the event tells it", TIMEOUT, || {
        contains(&node.ok(&["events", "--for", &format!("pod/{pod}"), "--types", "Warning"]), reason)
    });
}

#[test]
fn a_pod_sets_no_sysctl_of_the_host() {
    let node = TestNode::start(&["--allowed-unsafe-sysctls", "net.core.somaxconn,kernel.msg*"]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    for (pod, name, file) in [
        ("dotted", "kernel.core_pattern", "/proc/sys/kernel/core_pattern"),
        ("slashed", "kernel/core_pattern", "/proc/sys/kernel/core_pattern"),
        ("memory", "vm.swappiness", "/proc/sys/vm/swappiness"),
        ("unsafe", "kernel.shmmax", "/proc/sys/kernel/shmmax"),
    ] {
        node.apply(&with_sysctl(pod, name, file));
        let dotted = name.replace('/', ".");
        assert_refused(&node, pod, "SysctlForbidden", &format!("forbidden sysctl: {dotted:?} not allowlisted"));
    }
    // Safe ones, and those allowed by the operator, are set for the Pod.
    let asked = [("net.ipv4.tcp_syncookies", "0"), ("net/core/somaxconn", "77"), ("kernel.msgmax", "4321")];
    let each = asked.map(|(name, value)| format!("{{name: {name}, value: '{value}'}}")).join(", ");
    node.apply(&pod("allowed", &format!("securityContext: {{sysctls: [{each}]}}")));
    node.wait("condition=Ready", &["pod/allowed"], TIMEOUT);
    for (name, value) in asked {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        assert_eq!(node.ok(&["exec", "allowed", "--", "cat", &file]).trim(), value, "{name}");
        assert_ne!(fs::read_to_string(&file).unwrap().trim(), value, "{name} of the host");
    }
    // Not even an allowed one in a namespace of the host.
    let shared =
        pod("shared", "hostNetwork: true\n  securityContext: {sysctls: [{name: net.core.somaxconn, value: '77'}]}");
    let refused = node.run_with(&["apply", "-f", "-"], shared.as_bytes());
    contains(&refused.all(), "may not be specified when 'hostNetwork' is true").unwrap();
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn an_agent_that_would_allow_a_sysctl_of_the_host_does_not_start() {
    let mut node = TestNode::stopped(&["--allowed-unsafe-sysctls", "kernel.core_pattern"]);
    node.spawn();
    node.wait_ended();
    let why = "the sysctl \"kernel.core_pattern\" is not known to be namespaced";
    contains(&node.log(), why).unwrap();
}

#[test]
fn a_pod_that_asks_for_what_the_host_has_not_is_refused() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let enabled = |file: &str| fs::read_to_string(file).is_ok_and(|text| !text.starts_with('N'));
    // If enabled, `app_armor` tests it.
    if !enabled("/sys/module/apparmor/parameters/enabled") {
        let app_armor = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        node.apply(&pod("confined", "securityContext: {appArmorProfile: {type: RuntimeDefault}}"));
        assert_refused(&node, "confined", "AppArmor", app_armor);
        node.apply(&pod("named", "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: p}}"));
        assert_refused(&node, "named", "AppArmor", app_armor);
    }
    let se_linux = match enabled("/sys/fs/selinux/enforce") {
        true => "Cannot enforce seLinuxOptions: this node's runtime does not set SELinux labels",
        false => "Cannot enforce seLinuxOptions: SELinux is not enabled on the host",
    };
    node.apply(&pod("labelled", "securityContext: {seLinuxOptions: {level: 's0:c1,c2'}}"));
    assert_refused(&node, "labelled", "PodFeatureUnsupported", se_linux);
    // No one gets it later.
    node.apply(&pod("plain", "securityContext: {appArmorProfile: {type: Unconfined}}"));
    node.wait("condition=Ready", &["pod/plain"], TIMEOUT);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_seccomp_profile_is_a_file_of_its_folder_and_nothing_else() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let folder = node.dir.path().join("seccomp");
    let allow_all = "{\"defaultAction\": \"SCMP_ACT_ALLOW\"}";
    fs::create_dir_all(folder.join("deep")).unwrap();
    fs::write(folder.join("deep/open.json"), allow_all).unwrap();
    let elsewhere = node.dir.path().join("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join("open.json"), allow_all).unwrap();
    symlink(elsewhere.join("open.json"), folder.join("link.json")).unwrap();
    symlink(&elsewhere, folder.join("linked")).unwrap();
    nix::unistd::mkfifo(&folder.join("pipe.json"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let profile = |profile: &str| {
        format!("securityContext: {{seccompProfile: {{type: Localhost, localhostProfile: {profile}}}}}")
    };
    node.apply(&pod("open", &profile("deep/open.json")));
    node.wait("condition=Ready", &["pod/open"], TIMEOUT);
    for (name, file, why) in [
        ("link", "link.json", "Too many levels of symbolic links"),
        ("linked", "linked/open.json", "Too many levels of symbolic links"),
        ("pipe", "pipe.json", "not a file"),
        ("folder", "deep", "not a file"),
        ("none", "none.json", "No such file"),
    ] {
        node.apply(&pod(name, &profile(file)));
        eventually(&format!("{name} waits"), TIMEOUT, || {
            let waiting = |field: &str| {
                node.field(&["pod", name], &format!(".status.containerStatuses[0].state.waiting.{field}"))
            };
            contains(&waiting("reason"), "CreateContainerError")?;
            contains(&waiting("message"), "cannot load seccomp profile")?;
            contains(&waiting("message"), why)
        });
    }
    for path in ["../elsewhere/open.json", "deep/../../elsewhere/open.json", "/etc/passwd"] {
        let refused = node.run_with(&["apply", "-f", "-"], pod("bad", &profile(path)).as_bytes());
        assert_ne!(refused.code, 0, "{path}");
        contains(&refused.all(), "localhostProfile").unwrap();
    }
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// Upstream's kubelet has the same log folders, and the same limit.
#[test]
fn a_pod_whose_name_no_folder_can_have_says_so_and_goes() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    let name = ["a"; 127].join(".");
    assert_eq!(name.len(), 253);
    node.apply(&pod(&name, ""));
    let own = format!("pod/{name}");
    eventually("an event tells it", TIMEOUT, || {
        let events = node.ok(&["events", "--for", &own, "--types", "Warning"]);
        contains(&events, "FailedCreatePodSandBox")?;
        contains(&events, "Failed to create pod sandbox: mkdir ")?;
        contains(&events, ": file name too long")
    });
    assert_eq!(node.field(&["pod", &name], ".status.phase"), "Pending");
    node.ok(&["delete", &own, "--timeout=20s"]);
}
