//! What the kernel permits by uid alone, or counts globally, tried under a seccomp profile that allows everything: keyrings,
//! cgroups, namespaces, mounts, and descriptors of processes named by a socket.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::crowd;
use super::escapes::memory;
use super::profiles::ALLOWS;
use super::world::{BASELINE, End, OPEN, World};
use super::{Attack, POD, Pod, TIMEOUT, Target, Try, Verdict, judge, verdict};
use crate::support::{eventually, leftovers::cgroup_mount, slowness};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "own-profile-keyrings",
        class: "system calls",
        cves: &[],
        how: "two Pods of one uid, which nobody else has: one has SYS_ADMIN and puts a key into the keyring of its uid; the other, in a `baseline` namespace, with a profile that allows everything, links that keyring to its own, and looks for the key by keyctl and request_key, in the first process and in one that is exec'd",
        held: "keyrings are a uid's, in a user namespace: below any profile those of the host's users are for who has SYS_ADMIN",
        attempt: Try::Code(keyrings),
    },
    Attack {
        id: "own-profile-cgroups",
        class: "exhaustion",
        cves: &[],
        how: "in a `baseline` namespace, with a profile that allows everything: root of a user namespace of its own mounts cgroup2, and makes a hundred cgroups below each other, with names of 200 bytes; then the Pod is deleted",
        held: "14 cgroups go below each other under a Pod's, and they are removed by descriptors, however long their paths are",
        attempt: Try::Code(cgroups),
    },
    Attack {
        id: "own-profile-namespaces",
        class: "exhaustion",
        cves: &[],
        how: "the same makes fifty UTS namespaces in a container; then, where a node lives in a user namespace in which root may have 24, makes all that there are to be had, and a Pod is made",
        held: "namespaces are counted by who makes them: where root has no more, the node makes a Pod's as a user that nobody is",
        attempt: Try::Code(crowd::namespaces),
    },
    Attack {
        id: "own-profile-owner",
        class: "exhaustion",
        cves: &[],
        how: "a Pod with `hostUsers: false`: whose its user namespace is, for whom all that it makes in there is counted, and who has every capability in it",
        held: "a user's that no process and no Pod is",
        attempt: Try::Code(owner),
    },
    Attack {
        id: "own-profile-mounts",
        class: "exhaustion",
        cves: &[],
        how: "in a `baseline` namespace, with a profile that allows everything and a limit for ephemeral-storage: 4,000 mounts at a path of 3,840 newlines, which its mountinfo has in 120 MB, and 8 MiB in a file without a name; the agent's memory until the Pod is evicted",
        held: "mounts are read line by line, and count as what a Pod has open",
        attempt: Try::Code(mounts),
    },
    Attack {
        id: "own-profile-descriptors",
        class: "system calls",
        cves: &[],
        how: "two Pods with one volume: one listens on a socket there, the other, in a `baseline` namespace, with a profile that allows everything, connects, has the kernel say who listens (SO_PEERPIDFD), and takes what he has open (pidfd_getfd), in the first process and in one that is exec'd",
        held: "below any profile pidfd_getfd is for who has SYS_PTRACE; and over users of others nobody has that",
        attempt: Try::Code(descriptors),
    },
];

/// Waits until the first process of the entry's Pod has printed a word; returns its output.
pub fn said(world: &World, target: &Target, namespace: &str, word: &str) -> String {
    eventually(&format!("{} says {word:?}", target.id), TIMEOUT, || {
        let said = world.logs(target, namespace);
        if said.contains(word) { Ok(said) } else { Err(said) }
    })
}

/// Starts an entry's Pod that does something, and repeats it by exec; returns both outputs.
fn twice(world: &World, target: &Target, pod: Pod, does: &[&str]) -> Result<String, String> {
    let mut object = world.pod(target, &pod);
    object["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", format!("{}; echo up; sleep 1000", does.join(" "))]);
    world.create("pods", pod.namespace, object)?;
    world.node.wait("condition=Ready", &["-n", pod.namespace, &format!("pod/{}", target.id)], TIMEOUT);
    let first = said(world, target, pod.namespace, "up\n");
    Ok(format!("{first}\n{}", world.inside(target, pod.namespace, does)))
}

/// Another Pod of the same kind beside the entry's; returns its name, once it runs.
fn beside(world: &World, target: &Target, pod: Pod, does: &str) -> Result<String, String> {
    let name = format!("{}-victim", target.id);
    let mut object = world.pod(target, &pod);
    object["metadata"]["name"] = json!(name);
    object["spec"]["containers"][0]["command"] = json!(["sh", "-c", does]);
    world.create("pods", pod.namespace, object)?;
    world.node.wait("condition=Ready", &["-n", pod.namespace, &format!("pod/{name}")], TIMEOUT);
    Ok(name)
}

/// The output of a Pod beside the entry's, once it contains a word.
fn told(world: &World, namespace: &str, name: &str, word: &str) -> Result<String, String> {
    let deadline = Instant::now() + TIMEOUT * slowness();
    loop {
        let said = world.node.run(&["-n", namespace, "logs", name]).all();
        match said.contains(word) {
            true => return Ok(said),
            false if Instant::now() > deadline => return Err(said),
            false => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn keyrings(world: &World, target: &Target) -> Verdict {
    // An id that no user of this machine has, but that also exists in user namespaces.
    let spec = "securityContext: {runAsUser: 54321, seccompProfile: {type: Localhost, localhostProfile: allows.json}}";
    let keeper = Pod { spec, container: "securityContext: {capabilities: {add: [SYS_ADMIN]}}", ..POD };
    let key = format!("key-{}", uuid::Uuid::new_v4());
    let keep = format!("beyond keep-key {key} '{}'; sleep 1000", target.text);
    let victim = match beside(world, target, keeper, &keep) {
        Ok(victim) => victim,
        Err(why) => return Verdict::Untried(why),
    };
    let seeker = Pod { namespace: BASELINE, spec, ..POD };
    let tried =
        told(world, OPEN, &victim, "kept").and_then(|_| twice(world, target, seeker, &["beyond", "seek-key", &key]));
    let forgotten = world.node.run(&["-n", OPEN, "exec", &victim, "--", "beyond", "forget-key", &key]).all();
    for (namespace, name) in [(OPEN, &*victim), (BASELINE, target.id)] {
        world.delete("pods", namespace, name);
    }
    match tried {
        Ok(said) if !forgotten.contains("forgotten") => Verdict::Untried(format!("{said}\n{forgotten}")),
        Ok(said) => judge_twice(target, &said, "held: request_key"),
        Err(why) => Verdict::Untried(why),
    }
}

/// The outputs of a first process and of an exec'd one: each must have tried.
fn judge_twice(target: &Target, said: &str, held: &str) -> Verdict {
    match judge(target, said) {
        Verdict::Held(_) if said.matches(held).count() < 2 => Verdict::Untried(said.to_owned()),
        other => other,
    }
}

/// The cgroup of a Pod, as seen by the host.
fn cgroup_of(world: &World, namespace: &str, pod: &str) -> PathBuf {
    let of_container = fs::read_to_string(world.node.netns_in(namespace, pod).with_file_name("../cgroup")).unwrap();
    let container = of_container.lines().find_map(|line| line.strip_prefix("0::/")).expect("it is in a cgroup");
    let pod = Path::new(container).parent().expect("it is in a Pod's");
    cgroup_mount().join(pod)
}

fn cgroups(world: &World, target: &Target) -> Verdict {
    let pod = Pod { namespace: BASELINE, spec: ALLOWS, script: "beyond cgroups 100", ..POD };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    let said = said(world, target, pod.namespace, "below each other");
    let cgroup = cgroup_of(world, pod.namespace, target.id);
    let made = number(&said, "made ");
    world.delete("pods", pod.namespace, target.id);
    let deadline = Instant::now() + TIMEOUT * slowness();
    while cgroup.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    if cgroup.exists() {
        // Deep paths need descriptors, so that nothing stays on the machine.
        let removed = Command::new("find").arg(&cgroup).args(["-depth", "-type", "d", "-delete"]).output();
        return Verdict::Breach(format!("{} is still there; {said} {removed:?}", cgroup.display()));
    }
    verdict(made <= 14, format!("{}; they are gone", said.trim()))
}

/// The number after a word.
pub fn number(said: &str, word: &str) -> usize {
    let digits = said.split(word).nth(1).unwrap_or_default();
    digits.split(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no number: {said}"))
}

fn owner(world: &World, target: &Target) -> Verdict {
    if !world.gives_users() {
        return Verdict::Held("there is no such Pod: this host cannot give users of their own".into());
    }
    let pod = Pod { spec: "hostUsers: false", script: "sleep 1000", ..POD };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    const NS_GET_OWNER_UID: u64 = 0xb704;
    let namespace = fs::File::open(world.node.netns_in(OPEN, target.id).with_file_name("user")).unwrap();
    let mut owner = 0u32;
    // SAFETY: the kernel writes a uid there.
    let asked = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut owner) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_user = users.lines().any(|line| line.split(':').nth(2) == Some(&*owner.to_string()));
    // Beyond what a Pod may name, and not -1.
    verdict((0x8000_0000..u32::MAX).contains(&owner) && !is_user, format!("it is {owner}'s"))
}

/// The agent's peak memory in MiB since the last reset.
pub fn most(world: &World) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", world.node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

fn mounts(world: &World, target: &Target) -> Verdict {
    let limited = "resources: {limits: {ephemeral-storage: 1Mi}}";
    let pod = Pod { namespace: BASELINE, spec: ALLOWS, container: limited, script: "beyond mounts 4000", ..POD };
    fs::write(format!("/proc/{}/clear_refs", world.node.pid()), "5").unwrap();
    let before = memory(world);
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    // It is evicted by the measurement that reads its mounts: what it hides is found there.
    let end = world.wait_end(pod.namespace, target.id);
    let (most, said) = (most(world), world.logs(target, pod.namespace));
    world.delete("pods", pod.namespace, target.id);
    match end {
        End::Refused(why) if !why.contains("Evicted") => Verdict::Untried(why),
        End::Said(why) => Verdict::Untried(why),
        // If AppArmor refuses to mount there is nothing to read.
        End::Refused(_) if !said.contains("made 4000 mounts") && !said.contains("held: mount") => {
            Verdict::Untried(said)
        }
        End::Refused(_) => {
            verdict(most < before + 64, format!("{before} MiB before, {most} MiB at most; {}", said.trim()))
        }
    }
}

fn descriptors(world: &World, target: &Target) -> Verdict {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": target.id, "namespace": BASELINE},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    });
    let mounted = "volumeMounts: [{name: v, mountPath: /v}]";
    const VOLUME: &str = "volumes: [{name: v, persistentVolumeClaim: {claimName: own-profile-descriptors}}]";
    let victim = Pod { namespace: BASELINE, spec: VOLUME, container: mounted, ..POD };
    let spec: &'static str = Box::leak(format!("{{{VOLUME}, {ALLOWS}}}").into_boxed_str());
    let listen = format!("exec beyond listen /v/socket '{}'", target.text);
    let tried = world
        .create("persistentvolumeclaims", BASELINE, claim)
        .and_then(|_: Value| beside(world, target, victim, &listen))
        .and_then(|name| told(world, BASELINE, &name, "listening"))
        .and_then(|_| twice(world, target, Pod { spec, ..victim }, &["beyond", "take", "/v/socket"]));
    for name in [target.id.to_owned(), format!("{}-victim", target.id)] {
        world.delete("pods", BASELINE, &name);
    }
    world.delete("persistentvolumeclaims", BASELINE, target.id);
    match tried {
        Ok(said) => judge_twice(target, &said, "held: "),
        Err(why) => Verdict::Untried(why),
    }
}
