//! Background processes left by commands in a container: they keep their streams open, and nothing ends them.

use std::fs;
use std::time::Duration;

use super::world::{OPEN, World};
use super::{Attack, POD, Pod, Target, Try, Verdict, verdict};
use crate::support::eventually;

pub const ATTACKS: &[Attack] = &[Attack {
    id: "exec-left-behind",
    class: "exhaustion",
    cves: &["CVE-2026-53495"],
    how: "a probe, once a second, and a hook whose commands end, and leave a process behind that has their output open; the descriptors of agent and shim before, and when there are twenty of them",
    held: "a command's output is read until the command ends, and for a moment more; then its streams are closed, whoever else has them",
    attempt: Try::Code(left_behind),
}];

/// Number of commands before counting.
const COMMANDS: usize = 20;

/// Descriptors of the agent, and of the shim of a Pod.
fn descriptors(world: &World, pod: &str) -> [usize; 2] {
    let of_container = world.node.netns_in(OPEN, pod).with_file_name("../status");
    let status = fs::read_to_string(of_container).unwrap();
    let shim = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("it has a parent").trim().to_owned();
    [world.node.pid().to_string(), shim].map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

fn left_behind(world: &World, target: &Target) -> Verdict {
    let pod = Pod {
        container:
            "{readinessProbe: {exec: {command: [sh, -c, 'sleep 7777 & exit 0']}, periodSeconds: 1, timeoutSeconds: 5},
            lifecycle: {postStart: {exec: {command: [sh, -c, 'sleep 7777 & exit 0']}}}}",
        script: "sleep 1000",
        ..POD
    };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    let before = descriptors(world, target.id);
    let left = eventually("they have left enough behind", Duration::from_secs(60), || {
        let said = world.inside(target, OPEN, &["sh", "-c", "ps -o args | grep -c '^[s]leep 7777'"]);
        let left = said.lines().find_map(|line| line.trim().parse::<usize>().ok()).unwrap_or(0);
        if left >= COMMANDS { Ok(left) } else { Err(said) }
    });
    let ready = world.node.field(&["-n", OPEN, "pod", target.id], ".status.containerStatuses[0].ready");
    let after = descriptors(world, target.id);
    world.delete("pods", OPEN, target.id);
    if ready != "true" {
        return Verdict::Untried(format!("its probe does not succeed: {ready}"));
    }
    // Each has two streams; currently running ones have some as well.
    let held = before.iter().zip(&after).all(|(before, after)| *after < before + COMMANDS);
    verdict(held, format!("of agent and shim: {before:?}, and {after:?} with {left} left behind"))
}
