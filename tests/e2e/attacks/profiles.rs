//! Effects of a Pod's own seccomp profile: one that only logs, like upstream's `audit.json`, or that allows everything.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::world::{BASELINE, OPEN, RESTRICTED, World};
use super::{Attack, POD, Pod, TIMEOUT, Target, Try, Verdict, judge};
use crate::support::eventually;

/// The node's profiles, for `Localhost`.
const PROFILES: [(&str, &str); 2] = [
    ("logs.json", r#"{"defaultAction": "SCMP_ACT_LOG"}"#),
    (
        "allows.json",
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["open_by_handle_at", "setns", "statmount", "listmount", "listns"], "action": "SCMP_ACT_LOG"}]}"#,
    ),
];

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "own-profile-logs",
        class: "system calls",
        cves: &[],
        how: "a Localhost profile whose only action is SCMP_ACT_LOG; open_by_handle_at, setns, statmount, listmount and listns on nothing, on its own mount namespace, on its own mounts, in the first process and in one that is exec'd",
        held: "what names namespaces of others is refused below any profile, to who lacks the capability that it is for",
        attempt: Try::Code(|world, target| both(world, target, Pod { spec: LOGS, ..POD })),
    },
    Attack {
        id: "own-profile-allows",
        class: "system calls",
        cves: &[],
        how: "the same in a `baseline` namespace, with a profile that allows everything and names these calls",
        held: "as above",
        attempt: Try::Code(|world, target| both(world, target, Pod { namespace: BASELINE, spec: ALLOWS, ..POD })),
    },
    Attack {
        id: "own-profile-restricted",
        class: "system calls",
        cves: &[],
        how: "the same as uid 1000 in a `restricted` namespace, with the profile that only logs",
        held: "as above",
        attempt: Try::Code(|world, target| {
            let spec =
                "securityContext: {runAsUser: 1000, seccompProfile: {type: Localhost, localhostProfile: logs.json}}";
            both(world, target, Pod { namespace: RESTRICTED, spec, ..POD })
        }),
    },
    Attack {
        id: "own-profile-neighbour",
        class: "system calls",
        cves: &[],
        how: "as root of the host's users, with the profile that only logs: opens the user namespace of a Pod with `hostUsers: false` by its handle, which is its number and can be guessed (Linux 6.18)",
        held: "as above: that namespace was made by the host's root, so root without any capability has all of them in it, and must not come to have it",
        attempt: Try::Code(neighbour),
    },
];

const LOGS: &str = "securityContext: {seccompProfile: {type: Localhost, localhostProfile: logs.json}}";
/// Merged over a spec.
pub const ALLOWS: &str = "securityContext: {seccompProfile: {type: Localhost, localhostProfile: allows.json}}";

/// Writes the profiles to the node's folder.
pub fn write(world: &World) {
    for (name, profile) in PROFILES {
        fs::write(world.node.dir.path().join("seccomp").join(name), profile).unwrap();
    }
}

/// The outputs of the first process, and of an exec'd one.
fn both(world: &World, target: &Target, pod: Pod) -> Verdict {
    let pod = Pod { script: "attack namespaces; echo up; sleep 1000", ..pod };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    eventually("it has said what it met", TIMEOUT, || {
        let first = world.logs(target, pod.namespace);
        if first.contains("up\n") { Ok(()) } else { Err(first) }
    });
    let first = world.logs(target, pod.namespace);
    let said = format!("{first}\n{}", world.inside(target, pod.namespace, &["attack", "namespaces"]));
    match judge(target, &said) {
        // Each prints something for each call.
        Verdict::Held(_) if said.matches("held: setns on nothing").count() != 2 => Verdict::Untried(said),
        other => other,
    }
}

fn neighbour(world: &World, target: &Target) -> Verdict {
    if !world.gives_users() {
        return Verdict::Held("there is no such Pod: this host cannot give users of their own".into());
    }
    let name = format!("{}-victim", target.id);
    let mut victim = world.pod(target, &Pod { spec: "hostUsers: false", script: "sleep 1000", ..POD });
    victim["metadata"]["name"] = json!(name);
    if let Err(why) = world.create("pods", OPEN, victim) {
        return Verdict::Untried(why);
    }
    world.node.wait("condition=Ready", &["-n", OPEN, &format!("pod/{name}")], TIMEOUT);
    let verdict = match handle(&world.node.netns_in(OPEN, &name).with_file_name("user")) {
        None => Verdict::Held("this kernel has no handles of namespaces".into()),
        Some(handle) => match world.start_pod(target, &Pod { spec: LOGS, script: "sleep 1000", ..POD }) {
            Err(why) => Verdict::Untried(why),
            Ok(()) => judge(target, &world.inside(target, OPEN, &["attack", "namespaces", &handle])),
        },
    };
    world.delete("pods", OPEN, &name);
    verdict
}

/// A file's handle as hexadecimal digits: name_to_handle_at(2).
fn handle(path: &Path) -> Option<String> {
    #[repr(C)]
    struct Handle {
        size: u32,
        kind: i32,
        bytes: [u8; 128],
    }
    let path = CString::new(path.to_str()?).ok()?;
    let (mut handle, mut mount) = (Handle { size: 128, kind: 0, bytes: [0; 128] }, 0);
    // SAFETY: a path that ends in NUL, and room for as many bytes as the handle says; all outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_SYMLINK_FOLLOW,
        )
    };
    let bytes = &handle.bytes[..(handle.size as usize).min(handle.bytes.len())];
    (done == 0).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
