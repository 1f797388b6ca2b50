//! Who hides from its limits what it has on a disk.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::world::{OPEN, World};
use super::{Attack, Expect, POD, Pod, Target, Try, Verdict};

/// Hides 8 MiB, and goes on.
macro_rules! hiding {
    ($command:literal) => {
        concat!($command, " & sleep 35; echo BREACH: it is still there")
    };
}

const LIMITED: &str = "{resources: {limits: {ephemeral-storage: 1Mi}}, volumeMounts: [{name: v, mountPath: /v}]}";

const HIDING: Pod =
    Pod { spec: "volumes: [{name: v, emptyDir: {}}]", container: LIMITED, expect: Expect::Refused("Evicted"), ..POD };

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "disk-handed-over",
        class: "storage",
        cves: &[],
        how: "writes 8 MiB to a file that it has deleted, with a limit for ephemeral-storage of 1Mi, and hands its descriptor over to another container of the Pod, by an abstract socket",
        held: "a file without a name counts against whoever holds it, wherever it was opened; the Pod is evicted",
        attempt: Try::Pod(Pod {
            spec: "{volumes: [{name: v, emptyDir: {}}], initContainers: [{name: d, restartPolicy: Always, image: 'localhost/attack:1', command: [hide, receive]}]}",
            script: hiding!("hide send /file"),
            ..HIDING
        }),
    },
    Attack {
        id: "disk-headless",
        class: "storage",
        cves: &[],
        how: "the same file, open in a process whose main thread has ended: its folder in /proc shows no descriptors",
        held: "each thread is looked at by itself; the Pod is evicted",
        attempt: Try::Pod(Pod { script: hiding!("hide headless /file"), ..HIDING }),
    },
    Attack {
        id: "disk-moved",
        class: "storage",
        cves: &[],
        how: "has 8 MiB in a folder that it moves, whenever inotify tells where the walk is, to where that has been",
        held: "folders that have changed are walked again, at last while the Pod holds still; the Pod is evicted",
        attempt: Try::Pod(Pod { script: hiding!("hide move /v"), ..HIDING }),
    },
    Attack {
        id: "disk-mounted",
        class: "storage",
        cves: &[],
        how: "has a file of a volume mounted by `subPath`, deletes it in the volume, and writes 8 MiB where it is mounted: no process has it open",
        held: "files that are mounted for a container are looked at where the node has mounted them; the Pod is evicted",
        attempt: Try::Pod(Pod {
            spec: "{volumes: [{name: v, emptyDir: {}}], initContainers: [{name: i, image: 'localhost/attack:1', volumeMounts: [{name: v, mountPath: /v}], command: [touch, /v/file]}]}",
            container: "{resources: {limits: {ephemeral-storage: 1Mi}}, volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /file, subPath: file}]}",
            script: hiding!("rm /v/file && head -c 8388608 /dev/urandom > /file && sync"),
            ..HIDING
        }),
    },
    Attack {
        id: "disk-in-flight",
        class: "storage",
        cves: &[],
        how: "sends the descriptor of such a file to a socket of its own, receives it never, and closes what else it has of it",
        held: "what waits in sockets is counted: a Pod that has something there at each look of a minute counts as above its limits",
        attempt: Try::Code(in_flight),
    },
];

/// It takes longer than others wait.
fn in_flight(world: &World, target: &Target) -> Verdict {
    let pod = Pod { script: "hide flight /file", ..HIDING };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    let deadline = Instant::now() + Duration::from_secs(150);
    let status = |pod: Option<Value>| pod.map(|pod| pod["status"].clone()).unwrap_or_default();
    let mut found = status(world.get("pods", OPEN, target.id));
    while found["phase"] == "Running" && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(500));
        found = status(world.get("pods", OPEN, target.id));
    }
    let said = world.logs(target, OPEN);
    world.delete("pods", OPEN, target.id);
    let (phase, reason, message) = (&found["phase"], &found["reason"], found["message"].as_str().unwrap_or_default());
    let seen = format!("{phase} {reason} {message}; {said}");
    match () {
        () if phase == "Running" && said.contains("sent") => Verdict::Breach(seen),
        () if reason == "Evicted" && message.contains("on their way between its processes") => Verdict::Held(seen),
        () => Verdict::Untried(seen),
    }
}
