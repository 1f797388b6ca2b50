//! What a Pod that has ended leaves to others of its tenant, or to its successors.

use std::time::{Duration, Instant};

use serde_json::json;

use super::memory::Peak;
use super::world::{NO_USERS, OPEN, OURS, World};
use super::{Attack, POD, Pod, Target, Try, Verdict, verdict};
use crate::support::{TestNode, eventually};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "rights-on-their-way",
        class: "exhaustion",
        cves: &[],
        how: "a Pod with users of its own sends descriptors (SCM_RIGHTS) that nobody takes, until the kernel lets its user send no more; then an exec, a probe once a second, and another container that is debugged into it",
        held: "who is born in a user namespace is told of from outside of it: whoever is to run there sends no descriptors as its users",
        attempt: Try::Code(rights_on_their_way),
    },
    Attack {
        id: "ranges-of-the-ended",
        class: "exhaustion",
        cves: &[],
        how: "a Job of 120 Pods with users of their own, all of which end and keep their objects; a node has ranges of ids for 220 Pods, and a namespace half of them",
        held: "a Pod that has ended gives its range back, whether its object is deleted or not",
        attempt: Try::Code(ranges_of_the_ended),
    },
    Attack {
        id: "memory-of-the-ended",
        class: "exhaustion",
        cves: &[],
        how: "a Pod fills a file of an emptyDir in memory, hands it to another Pod by a socket in a shared volume, and ends: nobody's limit counts it any more",
        held: "what is in an emptyDir in memory is emptied when its Pod ends, whoever has it open",
        attempt: Try::Code(memory_of_the_ended),
    },
    Attack {
        id: "folders-of-the-ended",
        class: "exhaustion",
        cves: &[],
        how: "a Pod makes 50,000 folders in an emptyDir in memory, below a path of 3,800 letters, and ends; how much memory the process of a node that has nothing else to do takes to remove them",
        held: "what a container has made is removed by descriptors and names of one folder at a time, a bounded number of them: no path is kept for each",
        attempt: Try::Code(folders_of_the_ended),
    },
];

const PATIENCE: Duration = Duration::from_secs(120);

fn rights_on_their_way(world: &World, target: &Target) -> Verdict {
    if !world.gives_users() {
        return Verdict::Held(NO_USERS.to_owned());
    }
    let pod = Pod {
        spec: "hostUsers: false",
        container: "readinessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 5}",
        script: "exec handed flood",
        ..POD
    };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    let said = eventually("it has sent all that it may", PATIENCE, || match world.logs(target, OPEN) {
        said if said.contains("full") => Ok(said),
        said => Err(said),
    });
    let exec = world.inside(target, OPEN, &["echo", "is", "executed"]);
    // Several probes follow it.
    std::thread::sleep(Duration::from_secs(4));
    let ready = world.node.field(&["-n", OPEN, "pod", target.id], ".status.containerStatuses[0].ready");
    let name = format!("pod/{}", target.id);
    let debug = ["-n", OPEN, "debug", &name, "--image", POD.image, "-c", "more", "--", "sh", "-c", "echo is born"];
    let debugged = world.node.run(&debug).all();
    let until = Instant::now() + PATIENCE;
    let born = loop {
        let born = world.node.run(&["-n", OPEN, "logs", target.id, "-c", "more"]).all();
        if born.contains("is born") || Instant::now() > until {
            break born;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    world.delete("pods", OPEN, target.id);
    if !said.contains("full:") || said.contains("not full") {
        return Verdict::Untried(said);
    }
    let held = exec.contains("is executed") && ready == "true" && born.contains("is born");
    verdict(held, format!("{} exec: {} ready: {ready}, debug: {debugged} {born}", said.trim(), exec.trim()))
}

fn ranges_of_the_ended(world: &World, target: &Target) -> Verdict {
    if !world.gives_users() {
        return Verdict::Held(NO_USERS.to_owned());
    }
    const PODS: usize = 120;
    let pod = Pod { namespace: OURS, spec: "hostUsers: false", script: "true", ..POD };
    let spec = world.pod(target, &pod)["spec"].clone();
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": target.id},
        "spec": {"completions": PODS, "parallelism": 10, "template": {"spec": spec}},
    });
    if let Err(why) = world.create("jobs.batch", OURS, job) {
        return Verdict::Untried(why);
    }
    let until = Instant::now() + 2 * PATIENCE;
    let succeeded = || world.get("jobs.batch", OURS, target.id).unwrap_or_default()["status"]["succeeded"].as_u64();
    let (mut ended, mut refused) = (0, None);
    while ended < PODS as u64 && refused.is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(500));
        ended = succeeded().unwrap_or(0);
        let events = world.node.run(&["-n", OURS, "get", "events"]).all();
        refused = events.lines().find(|line| line.contains("ranges of ids")).map(str::to_owned);
    }
    let options = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
    let delete = json!({"resource": "jobs.batch", "namespace": OURS, "name": target.id, "options": options});
    let _ = crate::support::api::call(&world.node.socket(), "delete", delete);
    match refused {
        Some(why) => Verdict::Breach(format!("{ended} of {PODS} have ended: {why}")),
        None if ended < PODS as u64 => Verdict::Untried(format!("{ended} of {PODS} have ended")),
        None => Verdict::Held(format!("{ended} Pods have ended")),
    }
}

fn memory_of_the_ended(world: &World, target: &Target) -> Verdict {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": target.id, "namespace": OPEN},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    });
    // What it says once a second that it has.
    let said = || -> Vec<u64> {
        let said = world.logs(target, OPEN);
        let blocks = |line: &str| line.strip_prefix("has ")?.strip_suffix(" blocks")?.parse::<u64>().ok();
        said.lines().filter_map(blocks).collect()
    };
    let giver = format!("{}-giver", target.id);
    let tried = || -> Result<(u64, u64), String> {
        world.create("persistentvolumeclaims", OPEN, claim)?;
        let shared = Pod {
            spec: "volumes: [{name: v, persistentVolumeClaim: {claimName: memory-of-the-ended}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}]",
            script: "exec handed take /v/socket",
            ..POD
        };
        world.start_pod(target, &shared)?;
        eventually("it listens", PATIENCE, || match world.logs(target, OPEN) {
            said if said.contains("listening") => Ok(()),
            said => Err(said),
        });
        let memory = Pod {
            spec: "volumes: [{name: v, persistentVolumeClaim: {claimName: memory-of-the-ended}}, {name: m, emptyDir: {medium: Memory, sizeLimit: 16Mi}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}, {name: m, mountPath: /m}]",
            script: "handed give /v/socket /m/file 8; sleep 3",
            ..POD
        };
        let mut object = world.pod(target, &memory);
        object["metadata"]["name"] = giver.as_str().into();
        world.create("pods", OPEN, object)?;
        let before = eventually("it has been given a file", PATIENCE, || {
            said().into_iter().max().filter(|blocks| *blocks > 0).ok_or_else(String::new)
        });
        world.node.wait("jsonpath={.status.phase}=Succeeded", &["-n", OPEN, &format!("pod/{giver}")], PATIENCE);
        let until = Instant::now() + Duration::from_secs(10);
        while said().last() != Some(&0) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok((before, said().last().copied().unwrap_or(u64::MAX)))
    };
    let tried = tried();
    for name in [target.id, &giver] {
        world.delete("pods", OPEN, name);
    }
    world.delete("persistentvolumeclaims", OPEN, target.id);
    match tried {
        Ok((before, after)) => verdict(after == 0, format!("{before} blocks, and {after} when its Pod has ended")),
        Err(why) => Verdict::Untried(why),
    }
}

fn folders_of_the_ended(_: &World, _: &Target) -> Verdict {
    // A node of its own: memory that another one has had before, and uses again, would hide how much this takes.
    let node = TestNode::start(&[]);
    node.import_busybox();
    let script = "cd /m; n=$(printf %0250d 0); for i in $(seq 15); do mkdir $n; cd $n; done; seq 50000 | xargs mkdir && echo held: $(ls | wc -l)";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "folders"},
        "spec": {"restartPolicy": "Never", "volumes": [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}],
            "containers": [{"name": "c", "image": "localhost/busybox:1", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "m", "mountPath": "/m"}]}]},
    });
    let peak = Peak::of(node.pid());
    node.apply(&pod.to_string());
    node.wait("jsonpath={.status.phase}=Succeeded", &["pod/folders"], PATIENCE);
    let volume = format!("{}/volumes/m ", node.field(&["pod", "folders"], ".metadata.uid"));
    eventually("its volume is gone", PATIENCE, || {
        let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", node.pid())).unwrap();
        if mounts.contains(&volume) { Err(mounts) } else { Ok(()) }
    });
    let (grown, said) = (peak.grown(), node.ok(&["logs", "folders"]));
    match said.contains("held: 50000") {
        true => verdict(grown < 60, format!("{}: {}", peak.seen(), said.trim())),
        false => Verdict::Untried(said),
    }
}
