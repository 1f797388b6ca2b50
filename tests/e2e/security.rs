//! A container's privileges and identity, as seen from inside.

use std::{fs, path::PathBuf, time::Duration};

use crate::support::{TestNode, contains, devices, eventually, leftovers::Machine, missing};

const TIMEOUT: Duration = Duration::from_secs(30);

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: strict}
spec:
  terminationGracePeriodSeconds: 0
  hostname: inner
  shareProcessNamespace: true
  hostAliases: [{ip: 192.0.2.9, hostnames: [friend]}]
  dnsConfig: {options: [{name: timeout, value: '3'}]}
  securityContext: {runAsUser: 1000, runAsGroup: 3000, supplementalGroups: [4000], sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '7'}]}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    workingDir: /var
    env: [{name: A, value: b}, {name: C, value: '$(A)c'}]
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
  - {name: beside, image: 'localhost/busybox:1', command: [sleep, '2000']}
---
apiVersion: v1
kind: Pod
metadata: {name: mighty}
spec:
  terminationGracePeriodSeconds: 0
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], securityContext: {privileged: true}}]
";

/// containerd's default set, and only NET_BIND_SERVICE.
const DEFAULT_CAPABILITIES: &str = "00000000a80425fb";
const BIND_ALONE: &str = "0000000000000400";
/// A host device that any process without device rules may open for writing.
const KERNEL_LOG: &str = "mknod /log c 1 11 && true > /log";

#[test]
fn a_container_is_what_its_security_context_says() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(PODS);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let inside = |pod: &str, script: &str| node.run(&["exec", pod, "-c", "c", "--", "sh", "-c", script]);
    let main = |pod: &str| {
        // The container's own process, as read from the kernel.
        let found: serde_json::Value = serde_json::from_str(&node.ok(&["inspect", "pod", pod, "-o", "json"])).unwrap();
        let all = found["containers"].as_array().unwrap();
        let pid = all.iter().find(|c| c["name"] == "c").unwrap()["pid"].as_u64().unwrap();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        move |key: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':').map(str::trim));
            line.unwrap_or_default().to_owned()
        }
    };
    // Default: root with containerd's capabilities, seccomp, masked and read-only parts of /proc and /sys.
    let plain = main("plain");
    assert_eq!([plain("CapEff"), plain("CapBnd")], [DEFAULT_CAPABILITIES; 2]);
    assert_eq!([plain("Seccomp"), plain("NoNewPrivs")], ["2", "0"]);
    for (script, said) in [
        ("cat /proc/keys /proc/timer_list /proc/kcore 2>/dev/null | wc -c; ls -A /sys/firmware | wc -l", "0\n0\n"),
        ("hostname; echo $HOSTNAME; pwd", "plain\nplain\n/\n"),
        ("ps | grep -c '[s]leep'", "1\n"),
    ] {
        assert_eq!(inside("plain", script).out, said, "{script}");
    }
    for refused in
        ["echo 1 > /proc/sys/kernel/panic", "mount -t tmpfs x /tmp", "unshare -n true", "touch /sys/x", KERNEL_LOG]
    {
        assert_ne!(inside("plain", refused).code, 0, "{refused}");
    }
    // As requested.
    let strict = main("strict");
    assert_eq!([strict("CapBnd"), strict("CapEff")], [BIND_ALONE.to_owned(), "0000000000000000".to_owned()]);
    assert_eq!(
        [strict("NoNewPrivs"), strict("Uid"), strict("Gid")],
        ["1", "1000\t1000\t1000\t1000", "3000\t3000\t3000\t3000"]
    );
    // Including the primary one: setting another one does not drop it.
    assert_eq!(strict("Groups"), "3000 4000");
    for (script, said) in [
        ("id -u; id -g; pwd; echo $C; hostname", "1000\n3000\n/var\nbc\ninner\n"),
        ("cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "7\n"),
        // A shared PID namespace: pause, and the neighbour's process.
        ("ps -o args | grep -c '[s]leep 2000'", "1\n"),
        ("grep friend /etc/hosts", "192.0.2.9\tfriend\n"),
    ] {
        assert_eq!(inside("strict", script).out, said, "{script}");
    }
    contains(&inside("strict", "cat /etc/resolv.conf").out, "timeout:3").unwrap();
    assert_ne!(inside("strict", "touch /var/x").code, 0, "the root file system is read-only");
    assert_eq!(node.run(&["exec", "strict", "-c", "beside", "--", "id", "-u"]).out, "1000\n");
    // Privileged and with the node's network.
    let mighty = main("mighty");
    assert_eq!([mighty("Seccomp"), mighty("NoNewPrivs")], ["0", "0"]);
    assert_ne!(mighty("CapEff"), DEFAULT_CAPABILITIES);
    assert_eq!(inside("mighty", "mount -t tmpfs x /tmp && umount /tmp").code, 0);
    assert_eq!(inside("mighty", KERNEL_LOG).code, 0);
    let node_ip = node.field(&["nodes"], ".items[0].status.addresses[?(@.type==\"InternalIP\")].address");
    assert_eq!(node.field(&["pod", "mighty"], ".status.podIP"), node_ip);
    contains(&inside("mighty", "ip address").out, &node_ip).unwrap();
    contains(&inside("mighty", "cat /etc/resolv.conf").out, "10.96.0.10").unwrap();
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// One that tries continuously, and one that is allowed.
const TRYING: &str = "
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'mknod /log c 1 11; while sleep 0.1; do true 2>/dev/null > /log && echo open || echo refused; done 2>/dev/null']
---
apiVersion: v1
kind: Pod
metadata: {name: mighty}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], securityContext: {privileged: true}}]
";

#[test]
fn containers_of_an_agent_that_knew_no_device_rules_are_held_to_them_by_the_next() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(TRYING);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let inspected = |node: &TestNode, pod: &str| -> serde_json::Value {
        serde_json::from_str(&node.ok(&["inspect", "pod", pod, "-o", "json"])).unwrap()
    };
    let plain = inspected(&node, "plain");
    let mount = podwright_runtime::cgroup::find_mount().unwrap();
    let cgroup = mount.join(plain["containers"][0]["cgroup"]["path"].as_str().unwrap().trim_start_matches('/'));
    let log = PathBuf::from(plain["containers"][0]["log"].as_str().unwrap());
    let now = |word: &str| {
        eventually(&format!("its process is told {word}"), TIMEOUT, || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let last = said.lines().last().unwrap_or_default().to_owned();
            if last.ends_with(&format!(" {word}")) { Ok(()) } else { Err(last) }
        });
    };
    if devices::programs(&cgroup).is_empty() {
        missing::here("this host refuses programs that decide about devices");
        return;
    }
    now("refused");
    // As left by an agent without device filters: none attached, none recorded.
    node.kill();
    devices::detach(&cgroup);
    let mut records = 0;
    for sandbox in fs::read_dir(node.dir.path().join("runtime/sandboxes")).unwrap().flatten() {
        let record = sandbox.path().join("c/c.0/container.json");
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        assert!(json.as_object_mut().unwrap().remove("devices").is_some(), "{json:#}");
        fs::write(&record, json.to_string()).unwrap();
        records += 1;
    }
    assert_eq!(records, 2);
    now("open");
    // The next one finds them; running processes are restricted from then on, except privileged ones.
    for _ in 0..2 {
        node.spawn();
        node.wait_ready();
        node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
        eventually("one program holds it", TIMEOUT, || match devices::programs(&cgroup).len() {
            1 => Ok(()),
            count => Err(format!("{count} programs")),
        });
        now("refused");
        let inside = |pod: &str, script: &str| node.run(&["exec", pod, "--", "sh", "-c", script]);
        eventually("the agent answers", TIMEOUT, || match inside("plain", "true") {
            answer if answer.code == 0 => Ok(()),
            answer => Err(answer.all()),
        });
        contains(&inside("plain", "true > /log").err, "Operation not permitted").unwrap();
        assert_eq!(inside("mighty", "test -e /log || mknod /log c 1 11; true > /log").code, 0);
        // Found again, it is not attached twice.
        node.kill();
    }
    node.spawn();
    node.wait_ready();
    let id = ".status.containerStatuses[0].containerID";
    assert!(node.field(&["pod", "plain"], id).ends_with(plain["containers"][0]["id"].as_str().unwrap()));
    assert_eq!(node.field(&["pod", "plain"], ".status.containerStatuses[0].restartCount"), "0");
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}
