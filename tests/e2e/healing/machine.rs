//! Damage to cgroups: limits and device filters are restored, frozen ones thawed, removed empty ones recreated, and killed
//! containers restarted.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{Row, TIMEOUT, World, timely};
use crate::support::{contains, devices, eventually, missing};

/// The cgroup v2 of a process.
fn cgroup_of(pid: u64) -> PathBuf {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root =
        mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4)).unwrap();
    Path::new(root).join(path)
}

/// A cgroup file is changed, and must be restored. Skipped, with a message, if this machine lacks it.
fn limit(what: &'static str, cgroup: &Path, name: &str, other: &'static str) -> Option<Row> {
    let file = cgroup.join(name);
    let Ok(own) = fs::read_to_string(&file) else {
        missing::here(&format!("{what}: there is no {}", file.display()));
        return None;
    };
    let (damaged, own) = (file.clone(), own.trim().to_owned());
    let sound = move |_: &World| {
        let found = fs::read_to_string(&file).map_err(|e| e.to_string())?;
        if found.trim() == own { Ok(()) } else { Err(found) }
    };
    Some(Row::new(what, move |_| fs::write(&damaged, other).unwrap(), sound))
}

/// A controller is disabled for a cgroup's children; those of the limits lose their files.
fn controller(what: &'static str, cgroup: &Path, name: &'static str) -> Option<Row> {
    let gives = cgroup.join("cgroup.subtree_control");
    if !fs::read_to_string(&gives).unwrap().contains(name) {
        missing::here(&format!("{what}: this machine does not have it"));
        return None;
    }
    let damaged = gives.clone();
    let take = move |_: &World| fs::write(&damaged, format!("-{name}")).unwrap();
    Some(Row::new(what, take, move |_| contains(&fs::read_to_string(&gives).unwrap(), name)))
}

/// A cgroup's device filter is detached.
fn program(what: &'static str, cgroup: &Path) -> Option<Row> {
    if devices::programs(cgroup).is_empty() {
        missing::here(&format!("{what}: this machine refuses such programs"));
        return None;
    }
    let (damaged, cgroup) = (cgroup.to_owned(), cgroup.to_owned());
    let sound = move |_: &World| match devices::programs(&cgroup).len() {
        1 => Ok(()),
        other => Err(format!("{other} programs")),
    };
    Some(Row::new(what, move |_| devices::detach(&damaged), sound))
}

#[test]
fn cgroups_are_mended() {
    let mut world = World::new();
    world.node.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: some}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, \
         image: 'localhost/busybox:1', command: [sleep, '1000'], resources: {requests: {cpu: 100m}, limits: {memory: 64Mi, cpu: \
         200m}}}]}}",
    );
    world.node.wait("condition=Ready", &["pod/some"], TIMEOUT);
    let (container, limited) = (cgroup_of(world.pid), cgroup_of(world.pid_of("some")));
    let pod = container.parent().unwrap().to_owned();
    let limited_pod = limited.parent().unwrap();
    let class = limited_pod.parent().unwrap();
    assert!(class.ends_with("burstable"), "{}", class.display());
    let rows = [
        limit("memory.max of a container", &container, "memory.max", "268435456"),
        limit("memory.max of a container with a limit", &limited, "memory.max", "max"),
        limit("cpu.max of a container with a limit", &limited, "cpu.max", "max 100000"),
        limit("cpu.weight of a container", &limited, "cpu.weight", "77"),
        limit("pids.max of a container", &container, "pids.max", "1000"),
        limit("cpu.max of a Pod", &pod, "cpu.max", "50000 100000"),
        limit("memory.max of a Pod with a limit", limited_pod, "memory.max", "max"),
        limit("cpu.weight of a QoS class", class, "cpu.weight", "77"),
        limit("cpu.max of a QoS class", class, "cpu.max", "50000 100000"),
        limit("cgroup.freeze of a container", &container, "cgroup.freeze", "1"),
        limit("cgroup.freeze of a Pod", &pod, "cgroup.freeze", "1"),
        limit("cgroup.freeze of a QoS class", class, "cgroup.freeze", "1"),
        program("device program of a container", &container),
        program("device program of pause", &pod.join("pause")),
    ];
    world.heals(rows.into_iter().flatten().collect());
    // Lost limits are restored once their files exist again.
    let memory = |cgroup: &Path| fs::read_to_string(cgroup.join("memory.max"));
    if let Ok(own) = memory(&limited) {
        let whole = {
            let limited = limited.clone();
            move || match memory(&limited) {
                Ok(found) if found == own => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        world.heals(controller("memory controller of a Pod's containers", limited_pod, "memory").into_iter().collect());
        eventually("the container has its limit", TIMEOUT, whole);
    }

    // The cgroup of an unused QoS class is empty: its next Pod recreates it.
    world.node.ok(&["delete", "pod", "some", "--now"]);
    eventually("the class is empty", TIMEOUT, || fs::remove_dir(class).map_err(|e| e.to_string()));
    let begun = Instant::now();
    world.node.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: some}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, \
         image: 'localhost/busybox:1', command: [sleep, '1000'], resources: {requests: {cpu: 10m}}}]}}",
    );
    world.node.wait("condition=Ready", &["pod/some"], TIMEOUT);
    timely("cgroup of a QoS class, removed", begun.elapsed());
    world.node.ok(&["delete", "pod", "some", "--now"]);

    // Only a container whose cgroup is killed is restarted.
    let first = world.pid;
    let lives = || fs::read_to_string(format!("/proc/{first}/cgroup")).is_ok_and(|text| text.contains("podwright"));
    assert!(lives());
    let begun = Instant::now();
    fs::write(container.join("cgroup.kill"), "1").unwrap();
    eventually("it is killed", TIMEOUT, || if lives() { Err(format!("{first} lives")) } else { Ok(()) });
    world.node.wait_field(&["pod", "web"], ".status.containerStatuses[0].restartCount", "1", TIMEOUT);
    world.node.wait("condition=Ready", &["pod/web"], TIMEOUT);
    eventually("the Service answers", TIMEOUT, || world.answers());
    timely("container, killed", begun.elapsed());
    assert_ne!(world.pid_of("web"), first);
    let sandbox = |of: &str| of.split(' ').skip(2).map(str::to_owned).collect::<Vec<_>>();
    let now = world.running();
    assert_eq!(sandbox(now.split(", ").next().unwrap()), sandbox(world.containers.split(", ").next().unwrap()));
    contains(&now, world.containers.split(", ").nth(1).unwrap()).unwrap();

    // The next agent adopts the existing programs: it attaches no others beside them.
    let (container, pause) = (cgroup_of(world.pid_of("web")), pod.join("pause"));
    let of_pause = devices::programs(&pause);
    world.node.kill();
    world.node.spawn();
    world.node.wait_ready();
    let own = devices::programs(&container);
    if !own.is_empty() {
        devices::detach(&container);
        // The same one if it has seen it before; otherwise that is gone, and it loads another.
        eventually("the next agent mends it", TIMEOUT, || match devices::programs(&container) {
            found if found.len() == own.len() => Ok(()),
            found => Err(format!("{found:?} instead of {own:?}")),
        });
        assert_eq!(devices::programs(&pause), of_pause);
    }
    world.end(&["NodeRestored"]);
}
