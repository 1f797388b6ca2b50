//! Hiding disk usage from the limits.

use super::{Attack, Expect, POD, Pod, Try};

/// Hides 8 MiB, and keeps running.
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
];
