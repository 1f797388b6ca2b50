//! `podwright reset` removes what a killed node left; one that fails to start leaves nothing.

use std::time::Duration;

use crate::support::{TestNode, contains, eventually, leftovers::Machine, node::binary, sysctls::Sysctls};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sleep, infinity]
    volumeMounts: [{name: memory, mountPath: /memory}]
";

#[test]
fn reset_removes_all_that_a_killed_node_left() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/web"], Duration::from_secs(30));
    let dir = node.dir.path().to_str().unwrap().to_owned();
    let refused = node.run(&["reset", "--state-dir", &dir, "--yes"]);
    assert!(refused.code == 1 && refused.err.contains("is running on"), "{}", refused.all());
    node.kill();
    let refused = node.run(&["reset", "--state-dir", &dir]);
    assert!(refused.code == 1 && refused.err.contains("give --yes"), "{}", refused.all());
    let done = node.run(&["reset", "--state-dir", &dir, "--yes"]);
    assert_eq!((done.code, done.out.as_str()), (0, "nothing of the node is left\n"), "{}", done.all());
    // The process's log belongs to the test.
    let left: Vec<_> = std::fs::read_dir(node.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["up.log"], "{}", done.all());
    let again = node.run(&["reset", "--state-dir", &dir, "--yes"]);
    assert!(again.code == 1 && again.err.contains("is no folder of podwright's"), "{}", again.all());
    untouched.assert_unchanged();
}

#[test]
fn reset_that_keeps_the_state_leaves_a_node_that_starts_again() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/web"], Duration::from_secs(30));
    let uid = node.field(&["pod", "web"], ".metadata.uid");
    node.kill();
    let dir = node.dir.path().to_str().unwrap().to_owned();
    let done = node.run(&["reset", "--state-dir", &dir, "--keep-state", "--yes"]);
    assert!(done.code == 0 && done.out.starts_with("nothing of the node runs; its folders are kept"), "{}", done.all());
    untouched.assert_unchanged();
    node.spawn();
    node.wait_ready();
    eventually("the Pod runs again", Duration::from_secs(60), || {
        // What the API has of it may still be from before.
        contains(&node.run(&["exec", "web", "--", "echo", "it runs"]).out, "it runs")
    });
    assert_eq!(node.field(&["pod", "web"], ".metadata.uid"), uid);
}

/// An isolated node whose namespace is no longer pinned: the caller's namespace must stay untouched.
#[test]
fn reset_of_an_isolated_node_leaves_the_callers_network_as_it_is() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.kill();
    let netns = node.dir.path().join("network/netns");
    rustix::mount::unmount(&netns, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(netns.exists());
    // In a new namespace, with links, routes and addresses like those of this node on a host.
    let script = "ip link set lo up; ip address add 10.96.0.10/32 dev lo; ip route add 10.96.0.0/16 dev lo
        look() { ip address show lo; ip route; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/all/send_redirects; }
        before=$(look); \"$0\" reset --state-dir \"$1\" --yes && [ \"$before\" = \"$(look)\" ]";
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "sh", "-c", script]).arg(binary()).arg(node.dir.path());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    untouched.assert_unchanged();
}

#[test]
fn reset_leaves_folders_of_others_as_they_are() {
    use std::os::unix::fs::PermissionsExt;
    let node = TestNode::stopped(&[]);
    let site = tempfile::tempdir().unwrap();
    let files = ["images/logo.png", "pki/ca.crt", "network/plan", "src/main.c"].map(|file| site.path().join(file));
    for file in &files {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "precious").unwrap();
    }
    std::fs::set_permissions(site.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = node.run(&["reset", "--state-dir", site.path().to_str().unwrap(), "--yes"]);
    assert!(refused.code == 1 && refused.err.contains("is no folder of podwright's"), "{}", refused.all());
    assert_eq!(site.path().metadata().unwrap().permissions().mode() & 0o7777, 0o755);
    assert!(files.iter().all(|file| std::fs::read(file).unwrap() == b"precious"));
}

#[test]
fn a_start_that_fails_leaves_nothing_but_what_ran_before() {
    let mut node = TestNode::stopped(&[]);
    let untouched = Machine::untouched(node.dir.path());
    // Created after the network, and not a folder.
    let profiles = node.dir.path().join("seccomp");
    std::fs::write(&profiles, "").unwrap();
    std::fs::write(node.dir.path().join(".podwright"), "# A folder of podwright's.\n").unwrap();
    node.spawn();
    node.wait_ended();
    contains(&node.log(), "File exists").unwrap();
    untouched.assert_unchanged();
    // A killed node's Pods stay, with their network.
    std::fs::remove_file(&profiles).unwrap();
    node.spawn();
    node.wait_ready();
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/web"], Duration::from_secs(30));
    let started = node.field(&["pod", "web"], ".status.containerStatuses[0].containerID");
    node.kill();
    let (images, kept) = (node.dir.path().join("images"), node.dir.path().join("images.kept"));
    std::fs::rename(&images, &kept).unwrap();
    std::fs::write(&images, "").unwrap();
    let before = Machine::look(node.dir.path());
    node.spawn();
    node.wait_ended();
    assert_eq!(Machine::look(node.dir.path()), before);
    std::fs::remove_file(&images).unwrap();
    std::fs::rename(&kept, &images).unwrap();
    node.spawn();
    node.wait_ready();
    eventually("its agent tells of the Pod", Duration::from_secs(30), || {
        let answer = node.run(&["exec", "web", "--", "true"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all()) }
    });
    assert_eq!(node.field(&["pod", "web"], ".status.containerStatuses[0].containerID"), started);
    node.ok(&["delete", "pods", "--all", "--grace-period=0", "--force"]);
    drop(node);
    untouched.assert_unchanged();
}

/// Setting outside of its namespace what a node sets is detected, for each setting.
#[test]
fn a_setting_of_the_machine_that_a_node_makes_is_seen() {
    let network = ["net/ipv4/ip_forward", "net/ipv4/conf/all/send_redirects", "net/ipv4/conf/all/rp_filter"];
    let links = ["net/ipv4/conf/lo/forwarding", "net/ipv4/conf/default/rp_filter", "net/ipv4/conf/lo/arp_ignore"];
    let rest = ["net/ipv4/ipfrag_time", "net/ipv4/ip_unprivileged_port_start", "kernel/shm_rmid_forced"];
    // Equivalents in exclusive namespaces.
    let look = std::thread::spawn(move || {
        use nix::sched::{CloneFlags, unshare};
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC).unwrap();
        let mut before = Sysctls::look();
        assert_eq!(before.changed(&Sysctls::look()), [""; 0], "nothing has changed");
        for name in [network, links, rest].concat() {
            let path = format!("/proc/sys/{name}");
            let own: u64 = std::fs::read_to_string(&path).unwrap().trim().parse().unwrap();
            std::fs::write(&path, if own == 1 { "0" } else { "1" }).unwrap();
            let now = Sysctls::look();
            let changed = before.changed(&now);
            assert!(changed.iter().any(|told| told.contains(&path)), "{name}: {changed:?}");
            before = now;
        }
    });
    look.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
}
