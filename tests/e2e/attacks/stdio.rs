//! What goes into processes of containers and comes out of them: where that is from, how much it is, and when it ends.

use super::escapes::{NUMBERS, SLEEP, memory};
use super::world::{OPEN, World};
use super::{POD, Pod, Target, Verdict, judge, verdict};

/// What a process finds at its descriptor 0; what it writes there must reach nothing.
const AT_ZERO: &str = "head -c 200 <&0; echo overwritten >&0; readlink /proc/self/fd/0";

pub fn stdin_link_descriptor(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { script: SLEEP, ..POD }) {
        return Verdict::Untried(why);
    }
    let mut strange = None;
    for n in NUMBERS {
        let to = format!("/proc/self/fd/{n}/../../../../../../../../..{}", target.canary.display());
        world.inside(target, OPEN, &["sh", "-c", &format!("rm -f /dev/null; ln -s {to} /dev/null")]);
        let said = world.inside(target, OPEN, &["sh", "-c", AT_ZERO]);
        if said.contains(&target.text) || said.contains("socket:") {
            return Verdict::Breach(format!("through descriptor {n}: {said}"));
        }
        if !said.contains("/null") && !said.contains("pipe:") {
            strange = Some(said);
        }
    }
    // Only then: a later number may lead to the host.
    match strange {
        Some(said) => Verdict::Untried(said),
        None => Verdict::Held("descriptor 0 was a null device from outside all the time".into()),
    }
}

pub fn stdin_link_agent(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { spec: "hostPID: true", script: SLEEP, ..POD }) {
        return Verdict::Untried(why);
    }
    let to = format!("/proc/{}/root{}", world.node.pid(), target.canary.display());
    world.inside(target, OPEN, &["sh", "-c", &format!("rm -f /dev/null; ln -s {to} /dev/null")]);
    let said = world.inside(target, OPEN, &["sh", "-c", AT_ZERO]);
    verdict(!said.contains(&target.text) && said.contains("/null\n"), said)
}

pub fn stdin_link_rights(world: &World, target: &Target) -> Verdict {
    let pod = Pod {
        image: "localhost/root-file:1",
        spec: "{securityContext: {runAsUser: 1000}, volumes: [{name: d, emptyDir: {}}]}",
        container: "volumeMounts: [{name: d, mountPath: /dev}]",
        script: "rm -f /dev/null; ln -s /root-only /dev/null; ls -l /dev/null; sleep 1000",
        ..POD
    };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Held(format!("refused: {why}"));
    }
    crate::support::eventually("the link is there", super::TIMEOUT, || {
        let said = world.logs(target, OPEN);
        if said.contains("/dev/null") { Ok(()) } else { Err(said) }
    });
    let said = world.inside(target, OPEN, &["sh", "-c", AT_ZERO]);
    verdict(!said.contains("for root alone"), said)
}

pub fn stdin_missing(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { script: SLEEP, ..POD }) {
        return Verdict::Untried(why);
    }
    let mut all = String::new();
    for spoil in [
        "rm -f /dev/null",
        "mkfifo /dev/null",
        "rm -f /dev/null; mkdir /dev/null",
        "rmdir /dev/null; mknod /dev/null c 1 5",
    ] {
        world.inside(target, OPEN, &["sh", "-c", spoil]);
        let begin = std::time::Instant::now();
        let said = world.inside(target, OPEN, &["attack", "descriptors"]);
        if begin.elapsed() > std::time::Duration::from_secs(10) * crate::support::slowness() {
            return Verdict::Breach(format!("after {spoil:?} exec hangs: {said}"));
        }
        match judge(target, &said) {
            Verdict::Held(seen) if seen.contains("descriptor 0 is") => all = seen,
            other => return Verdict::Breach(format!("after {spoil:?}: {other:?}")),
        }
    }
    Verdict::Held(all)
}

pub fn probe_output(world: &World, target: &Target) -> Verdict {
    let before = memory(world);
    let pod = Pod {
        container: "readinessProbe: {exec: {command: [sh, -c, 'head -c 50000000 /dev/zero; touch /probed']}, timeoutSeconds: 20}",
        script: SLEEP,
        ..POD
    };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    let mut most = before;
    // Its probe runs again and again meanwhile, whether it is in time or not.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(15);
    while std::time::Instant::now() < end {
        most = most.max(memory(world));
        world.get("pods", OPEN, target.id).unwrap_or_default();
    }
    verdict(most < before + 40, format!("{before} MiB before, {most} MiB at most"))
}

pub fn abandoned_execs(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { script: SLEEP, ..POD }) {
        return Verdict::Untried(why);
    }
    for _ in 0..30 {
        let mut talk = world.node.talk(&["-n", OPEN, "exec", "-i", target.id, "--", "sh", "-c", "echo up; exec cat"]);
        talk.hear("up");
        talk.say("x");
        // Killed, not ended: it says goodbye to nobody.
        drop(talk);
    }
    crate::support::eventually("the processes are gone", super::TIMEOUT, || {
        let said = world.inside(target, OPEN, &["sh", "-c", "ps -o args | grep -c '^[c]at'"]);
        if said.contains("\n0\n") { Ok(()) } else { Err(said) }
    });
    Verdict::Held("no process of an abandoned session is left".into())
}
