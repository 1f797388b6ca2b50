//! Damage to cgroups: what is frozen thaws, an empty one that is removed is made again, and one that is killed is started anew.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{PATIENCE, Row, World};
use crate::support::{contains, eventually};

/// The cgroup v2 of a process.
fn cgroup_of(pid: u64) -> PathBuf {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root =
        mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4)).unwrap();
    Path::new(root).join(path)
}

impl World {
    /// The first process of the container of the Pod `web`.
    fn pid_in_web(&self) -> u64 {
        let found = self.node.ok(&["inspect", "pod", "web", "-o", "json"]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        found["containers"][0]["pid"].as_u64().unwrap()
    }
}

/// A file of a cgroup gets another text, and its own back. What this machine does not have is left out, and said.
fn limit(what: &'static str, cgroup: &Path, name: &str, other: &'static str) -> Option<Row> {
    let file = cgroup.join(name);
    let Ok(own) = fs::read_to_string(&file) else {
        println!("{what}: left out, for there is no {}", file.display());
        return None;
    };
    let (damaged, own) = (file.clone(), own.trim().to_owned());
    let repaired = move |_: &World| {
        let found = fs::read_to_string(&file).map_err(|e| e.to_string())?;
        if found.trim() == own { Ok(()) } else { Err(found) }
    };
    Some(Row::new(what, move |_| fs::write(&damaged, other).unwrap(), repaired))
}

#[test]
fn cgroups_are_mended() {
    let world = World::new();
    let first = world.pid_in_web();
    let container = cgroup_of(first);
    let pod = container.parent().unwrap().to_owned();
    let rows = [
        limit("memory.max of a container", &container, "memory.max", "268435456"),
        limit("pids.max of a container", &container, "pids.max", "1000"),
        limit("cpu.max of a Pod", &pod, "cpu.max", "50000 100000"),
        limit("cgroup.freeze of a container", &container, "cgroup.freeze", "1"),
        limit("cgroup.freeze of a Pod", &pod, "cgroup.freeze", "1"),
    ];
    world.heals(rows.into_iter().flatten().collect());

    // Nothing is in the cgroup of a QoS class that no Pod has: its next Pod makes it again.
    let class = pod.parent().unwrap().with_file_name("burstable");
    if class.is_dir() {
        fs::remove_dir(&class).unwrap();
    }
    world.node.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: some}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, \
         image: 'localhost/busybox:1', command: [sleep, '1000'], resources: {requests: {cpu: 10m}}}]}}",
    );
    world.node.wait("condition=Ready", &["pod/some"], PATIENCE);
    world.node.ok(&["delete", "pod", "some", "--now"]);

    // A container whose cgroup is killed is the one thing that is started anew, and it alone.
    let begun = std::time::Instant::now();
    fs::write(container.join("cgroup.kill"), "1").unwrap();
    world.node.wait_field(&["pod", "web"], ".status.containerStatuses[0].restartCount", "1", PATIENCE);
    world.node.wait("condition=Ready", &["pod/web"], PATIENCE);
    println!("{:<44} {:>5} ms", "container, killed", begun.elapsed().as_millis());
    assert_ne!(world.pid_in_web(), first);
    eventually("the Service answers", PATIENCE, || world.answers());
    let sandbox = |of: &str| of.split(' ').skip(2).map(str::to_owned).collect::<Vec<_>>();
    let now = world.running();
    assert_eq!(sandbox(now.split(", ").next().unwrap()), sandbox(world.containers.split(", ").next().unwrap()));
    contains(&now, world.containers.split(", ").nth(1).unwrap()).unwrap();
    world.end(&["NodeRestored"]);
}
