//! From inside a container to the node: descriptors, stdio, processes, kernel files, devices, system calls.

use serde_json::{Value, json};

use super::world::{BASELINE, End, OPEN, RESTRICTED, World};
use super::{Attack, Expect, POD, Pod, Target, Try, Verdict, judge, stdio};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "workdir-descriptor",
        class: "inherited descriptor",
        cves: &["CVE-2024-21626"],
        how: "`workingDir: /proc/self/fd/N` for N from 3 to 26, as uid 1000 in a `restricted` namespace and as root in a `baseline` one, then `../../..` and a file of the host",
        held: "the child holds no descriptor of the host when it enters the directory, and the directory is proven to be below the root",
        attempt: Try::Code(workdir_descriptor),
    },
    Attack {
        id: "image-workdir-descriptor",
        class: "inherited descriptor",
        cves: &["CVE-2024-21626"],
        how: "the same by the WORKDIR of images, in a `baseline` namespace",
        held: "as above: who names the directory makes no difference",
        attempt: Try::Code(image_workdir_descriptor),
    },
    Attack {
        id: "workdir-symlink",
        class: "inherited descriptor",
        cves: &["CVE-2024-21626"],
        how: "a working directory that is a symbolic link of the image to `/proc/self/fd/N`, for the same N",
        held: "as above: what counts is where the process is after chdir",
        attempt: Try::Code(workdir_symlink),
    },
    Attack {
        id: "exec-descriptors",
        class: "inherited descriptor",
        cves: &["CVE-2016-9962", "CVE-2024-21626"],
        how: "a container with SYS_PTRACE looks at `/proc/PID/{fd,cwd,root}` of every process that is exec'd into it, from its first moment on",
        held: "a process that enters a container's PID namespace holds no descriptor, root or working directory of the host",
        attempt: Try::Code(exec_descriptors),
    },
    Attack {
        id: "trace-exec",
        class: "inherited descriptor",
        cves: &["CVE-2016-9962"],
        how: "the same without SYS_PTRACE",
        held: "until execve the runtime's child is not dumpable, so /proc/PID is root's, and nothing of the host is open",
        attempt: Try::Code(trace_exec),
    },
    Attack {
        id: "trace-newborn",
        class: "inherited rights",
        cves: &["CVE-2016-9962"],
        how: "a container with SYS_PTRACE traces every process that is exec'd into it or probes it, and looks at its capabilities and filters from the first moment on",
        held: "a process loads its filters and drops to its exact capabilities before it is born in the container's PID namespace",
        attempt: Try::Code(trace_newborn),
    },
    Attack {
        id: "stdin-link-descriptor",
        class: "stdio",
        cves: &["CVE-2025-31133", "CVE-2025-62161"],
        how: "`/dev/null` of the container is a link to `/proc/self/fd/N/../../..` and a file of the host; exec without stdin reads and writes its descriptor 0",
        held: "stdio comes from outside: nothing in the container is opened for it",
        attempt: Try::Code(stdio::stdin_link_descriptor),
    },
    Attack {
        id: "stdin-link-agent",
        class: "stdio",
        cves: &["CVE-2025-31133"],
        how: "with `hostPID`, `/dev/null` is a link to `/proc/AGENT/root` and a file of the host",
        held: "as above",
        attempt: Try::Code(stdio::stdin_link_agent),
    },
    Attack {
        id: "stdin-link-rights",
        class: "stdio",
        cves: &["CVE-2026-88265"],
        how: "uid 1000 puts a link to a file of root's for `/dev/null` into an emptyDir at `/dev`; exec without stdin reads its descriptor 0",
        held: "nothing in a container is opened with more rights than the container has",
        attempt: Try::Code(stdio::stdin_link_rights),
    },
    Attack {
        id: "stdin-missing",
        class: "stdio",
        cves: &[],
        how: "`/dev/null` is removed, then made a FIFO; exec without stdin lists its descriptors",
        held: "a missing stdio is a null device from outside the container, opened beforehand; no other descriptor moves into its number",
        attempt: Try::Code(stdio::stdin_missing),
    },
    Attack {
        id: "own-descriptors",
        class: "inherited descriptor",
        cves: &["CVE-2024-21626", "CVE-2016-9962"],
        how: "a first process lists its descriptors",
        held: "all but 0, 1 and 2 are closed, by allow-list",
        attempt: Try::Pod(Pod { container: "command: [attack, descriptors]", ..POD }),
    },
    Attack {
        id: "rewrite-runtime",
        class: "overwriting the runtime",
        cves: &["CVE-2019-5736"],
        how: "programs of the container are `#!/proc/self/exe`; while they are exec'd the container opens `/proc/PID/exe` of every process for writing",
        held: "what of ours enters a container is a sealed memfd, and not dumpable",
        attempt: Try::Code(rewrite_runtime),
    },
    Attack {
        id: "climb",
        class: "file system",
        cves: &[],
        how: "`..` from the root, from `/proc/1/{root,cwd}` and from all descriptors of the first process",
        held: "the root is a mount namespace's own, entered by pivot_root, the old one unmounted",
        attempt: Try::Pod(Pod { script: "attack climb @CANARY@", ..POD }),
    },
    Attack {
        id: "chroot",
        class: "file system",
        cves: &[],
        how: "chroot below the working directory and `..` from outside of it",
        held: "as above: above the root of a mount namespace there is nothing",
        attempt: Try::Pod(Pod { script: "attack chroot @CANARY@", ..POD }),
    },
    Attack {
        id: "file-handles",
        class: "file system",
        cves: &[],
        how: "files of the host opened by their number, through files that are bind-mounted from it (shocker)",
        held: "CAP_DAC_READ_SEARCH is not in the default set, and seccomp allows the call with it alone",
        attempt: Try::Pod(Pod { script: "attack handles / /etc/hosts /etc/hostname /dev/termination-log", ..POD }),
    },
    Attack {
        id: "proc-writable",
        class: "kernel files",
        cves: &["CVE-2022-0811", "CVE-2017-16539", "CVE-2018-10892"],
        how: "opens every file of /proc/sys, /proc/irq, /proc/bus, /proc/fs, /proc/acpi, /proc/scsi, /proc/pressure and /proc/sysrq-trigger for writing",
        held: "they are mounted read-only, or masked",
        attempt: Try::Pod(Pod {
            script: "attack writable /proc/sys /proc/irq /proc/bus /proc/fs /proc/acpi /proc/scsi /proc/pressure /proc/sysrq-trigger",
            ..POD
        }),
    },
    Attack {
        id: "sys-writable",
        class: "kernel files",
        cves: &["CVE-2022-0492", "CVE-2023-25809"],
        how: "opens every file of /sys, cgroups among them, for writing",
        held: "sysfs and cgroup2 are mounted read-only",
        attempt: Try::Pod(Pod { script: "attack writable /sys", ..POD }),
    },
    Attack {
        id: "masked",
        class: "kernel files",
        cves: &["CVE-2018-10892", "CVE-2017-16539"],
        how: "reads what Kubernetes masks: keys, memory, timers, firmware, power meters, thermal throttling",
        held: "upstream's list is covered, by /dev/null of the host or an empty read-only tmpfs",
        attempt: Try::Pod(Pod {
            script: "attack empty /proc/acpi /proc/asound /proc/interrupts /proc/kcore /proc/keys /proc/kpagecgroup /proc/kpagecount /proc/kpageflags /proc/latency_stats /proc/slabinfo /proc/vmallocinfo /proc/timer_list /proc/timer_stats /proc/sched_debug /proc/scsi /sys/firmware /sys/devices/virtual/powercap /sys/devices/system/cpu/cpu0/thermal_throttle /sys/devices/system/cpu/cpu1/thermal_throttle",
            ..POD
        }),
    },
    Attack {
        id: "release-agent",
        class: "kernel files",
        cves: &["CVE-2022-0492"],
        how: "mounts cgroup, in a user namespace too, to write a `release_agent`; and remounts /sys/fs/cgroup read-write",
        held: "no CAP_SYS_ADMIN, and seccomp refuses mount and unshare",
        attempt: Try::Pod(Pod {
            script: "
mkdir -p /tmp/cg
for try in 'mount -t cgroup -o rdma cgroup /tmp/cg' 'mount -t cgroup2 none /tmp/cg' 'mount -o remount,rw /sys/fs/cgroup' 'unshare -UrmC mount -t cgroup -o memory none /tmp/cg' 'mount -o remount,rw /proc/sys' 'umount /proc/sys'; do
  if $try 2>/tmp/why; then echo \"BREACH: $try\"; else echo \"held: $try: $(tail -n 1 /tmp/why)\"; fi
done",
            ..POD
        }),
    },
    Attack {
        id: "devices",
        class: "devices",
        cves: &[],
        how: "makes the nodes of the host's devices (memory, disks, kvm, tun, fuse, loop) in /tmp, /dev and /dev/shm, and opens them",
        held: "a program on the cgroup allows the container's devices alone",
        attempt: Try::Pod(Pod { script: "attack devices", ..POD }),
    },
    Attack {
        id: "system-calls",
        class: "system calls",
        cves: &["CVE-2022-0185", "CVE-2022-0492", "CVE-2026-31431"],
        how: "calls that RuntimeDefault refuses, with arguments that do nothing; the same with high bits set, by x32 and by the 32-bit entry",
        held: "the filter compares as many bits as the kernel takes, and knows every table of the architecture",
        attempt: Try::Pod(Pod { script: "attack syscalls", ..POD }),
    },
    Attack {
        id: "system-calls-exec",
        class: "system calls",
        cves: &[],
        how: "the same in a process that is exec'd",
        held: "exec'd processes take the container's filter, capabilities and no_new_privs",
        attempt: Try::Code(|world, target| inside_a_sleeper(world, target, POD, &["attack", "syscalls"])),
    },
    Attack {
        id: "seccomp-empty-localhost",
        class: "system calls",
        cves: &["CVE-2023-2431"],
        how: "a seccomp profile of type Localhost without a profile",
        held: "refused by validation; a profile that is not there fails the Pod",
        attempt: Try::Pod(Pod {
            spec: "securityContext: {seccompProfile: {type: Localhost, localhostProfile: ''}}",
            script: "grep Seccomp: /proc/self/status",
            expect: Expect::Refused("seccomp"),
            ..POD
        }),
    },
    Attack {
        id: "seccomp-path",
        class: "system calls",
        cves: &[],
        how: "a Localhost profile whose path leads out of the folder of profiles, to one that allows everything",
        held: "refused by validation",
        attempt: Try::Code(seccomp_path),
    },
    Attack {
        id: "capabilities",
        class: "capabilities",
        cves: &[
            "CVE-2016-8867",
            "CVE-2018-1000400",
            "CVE-2022-24769",
            "CVE-2022-27650",
            "CVE-2022-27652",
            "CVE-2022-29162",
            "CVE-2022-3466",
            "CVE-2025-27612",
        ],
        how: "reads its inheritable and ambient capabilities, in the first process and in one that is exec'd, as root and as uid 1000",
        held: "both sets are empty",
        attempt: Try::Code(capabilities),
    },
    Attack {
        id: "set-user-id",
        class: "capabilities",
        cves: &[],
        how: "a program of the image with the set-user-ID bit, in a `restricted` namespace",
        held: "no_new_privs, by `allowPrivilegeEscalation: false`",
        attempt: Try::Pod(Pod {
            namespace: RESTRICTED,
            image: "localhost/set-user-id:1",
            container: "securityContext: {runAsUser: 1000}",
            script: "ls -l /bin/suid; /bin/suid identity",
            ..POD
        }),
    },
    Attack {
        id: "join-pause",
        class: "processes",
        cves: &[],
        how: "with `shareProcessNamespace`: joins the namespaces of `pause`, reads its root and memory, takes its descriptors",
        held: "no CAP_SYS_ADMIN or CAP_SYS_PTRACE; the root of `pause` is an empty tmpfs",
        attempt: Try::Pod(Pod {
            spec: "shareProcessNamespace: true",
            script: "attack join 1; attack meddle 1; attack climb @CANARY@",
            ..POD
        }),
    },
    Attack {
        id: "join-pause-same-user",
        class: "processes",
        cves: &[],
        how: "the same as the user that `pause` is, for whom no capability is needed",
        held: "nobody may read the program of `pause`, so it is closed to inspection; it has a filter, a device program, no files",
        attempt: Try::Pod(Pod {
            spec: "shareProcessNamespace: true",
            container: "securityContext: {runAsUser: 65535, runAsGroup: 65535}",
            script: "attack join 1; attack meddle 1; attack climb @CANARY@",
            ..POD
        }),
    },
    Attack {
        id: "host-pid",
        class: "processes",
        cves: &[],
        how: "with `hostPID`, as root: joins the namespaces of the agent and of PID 1, traces them, reads their roots, takes their descriptors",
        held: "default capabilities lack SYS_PTRACE and SYS_ADMIN",
        attempt: Try::Code(|world, target| {
            let agent = world.node.pid().to_string();
            let script = format!("for p in 1 {agent}; do attack join $p; attack meddle $p; done");
            let mut pod = world.pod(target, &Pod { spec: "hostPID: true", ..POD });
            pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
            judged(target, world.run_to_the_end(&pod))
        }),
    },
    Attack {
        id: "terminal-console",
        class: "devices",
        cves: &["CVE-2025-52565", "CVE-2026-88264"],
        how: "with a terminal and a volume at `/dev`: `/dev/console` is a link to a file of the root; `/dev/console` and `/dev/pts` of the image are links into /proc",
        held: "the console is mounted on what is found inside the root, without following links, and proven to be the pty",
        attempt: Try::Pod(Pod {
            image: "localhost/console-link:1",
            spec: "{volumes: [{name: v, emptyDir: {}}], initContainers: [{name: i, image: 'localhost/attack:1', volumeMounts: [{name: v, mountPath: /v}], command: [ln, -s, /console-target, /v/console]}]}",
            container: "{tty: true, volumeMounts: [{name: v, mountPath: /dev}]}",
            script: "test -c /console-target && echo BREACH: the console was mounted through a link; attack writable /proc/sys /proc/sysrq-trigger; attack climb @CANARY@",
            expect: Expect::HeldOrRefused("error during container init"),
            ..POD
        }),
    },
    Attack {
        id: "probe-output",
        class: "exhaustion",
        cves: &["CVE-2022-31030", "CVE-2022-1708"],
        how: "a probe whose command prints without end",
        held: "of a probe's output only the first part is kept",
        attempt: Try::Code(stdio::probe_output),
    },
    Attack {
        id: "process-bomb-exec",
        class: "exhaustion",
        cves: &["CVE-2022-23471", "CVE-2025-64329"],
        how: "thirty execs whose clients vanish; the agent's descriptors before and after",
        held: "a session ends with its stream, and takes its process and descriptors with it",
        attempt: Try::Code(stdio::abandoned_execs),
    },
];

pub const SLEEP: &str = "sleep 1000";

fn seccomp_path(world: &World, target: &Target) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile.json");
    std::fs::write(&profile, r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#).unwrap();
    let mut pod = world.pod(target, &POD);
    let path = format!("../../../../../../../../..{}", profile.display());
    pod["spec"]["securityContext"] = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": path}});
    match world.run_to_the_end(&pod) {
        End::Said(said) => Verdict::Breach(format!("it has that profile: {said}")),
        End::Refused(why) if why.contains("localhostProfile") => Verdict::Held(why),
        End::Refused(why) => Verdict::Untried(why),
    }
}

/// The output of a process exec'd into a sleeping container.
fn inside_a_sleeper(world: &World, target: &Target, pod: Pod, command: &[&str]) -> Verdict {
    match world.start_pod(target, &Pod { script: SLEEP, ..pod }) {
        Err(why) => Verdict::Untried(why),
        Ok(()) => judge(target, &world.inside(target, pod.namespace, command)),
    }
}

fn capabilities(world: &World, target: &Target) -> Verdict {
    let mut said = String::new();
    for container in ["", "securityContext: {runAsUser: 1000}"] {
        let pod = Pod { container, script: "attack capabilities; echo up; sleep 1000", ..POD };
        if let Err(why) = world.start_pod(target, &pod) {
            return Verdict::Untried(why);
        }
        crate::support::eventually("it has said what it has", super::TIMEOUT, || {
            let first = world.logs(target, OPEN);
            if first.contains("up") { Ok(()) } else { Err(first) }
        });
        let both = world.logs(target, OPEN) + &world.inside(target, OPEN, &["attack", "capabilities"]);
        if both.matches("held: Cap").count() + both.matches("BREACH: Cap").count() != 4 {
            return Verdict::Untried(both);
        }
        said.push_str(&both);
        world.delete("pods", OPEN, target.id);
        crate::support::eventually("it has gone", super::TIMEOUT, || match world.get("pods", OPEN, target.id) {
            None => Ok(()),
            Some(pod) => Err(pod["status"].to_string()),
        });
    }
    judge(target, &said)
}

fn judged(target: &Target, end: End) -> Verdict {
    match end {
        End::Said(said) => judge(target, &said),
        End::Refused(why) => Verdict::Untried(why),
    }
}

/// The possible numbers of a child's host descriptors.
pub const NUMBERS: std::ops::Range<u32> = 3..27;

/// As a user who may not inspect the descriptors of a runtime's child, and as root, who may.
fn workdir_descriptor(world: &World, target: &Target) -> Verdict {
    let of_somebody = Pod { namespace: RESTRICTED, spec: "securityContext: {runAsUser: 1000}", ..POD };
    let of_root = Pod { namespace: BASELINE, ..POD };
    let there = |n: u32, container: &mut Value| container["workingDir"] = json!(format!("/proc/self/fd/{n}"));
    match from_descriptors(world, target, of_somebody, there) {
        Verdict::Held(somebody) => match from_descriptors(world, target, of_root, there) {
            Verdict::Held(root) => Verdict::Held(format!("{somebody}; as root: {root}")),
            other => other,
        },
        other => other,
    }
}

fn image_workdir_descriptor(world: &World, target: &Target) -> Verdict {
    let there = |n: u32, container: &mut Value| container["image"] = json!(format!("localhost/workdir-{n}:1"));
    from_descriptors(world, target, Pod { namespace: BASELINE, ..POD }, there)
}

fn workdir_symlink(world: &World, target: &Target) -> Verdict {
    let there = |n: u32, container: &mut Value| container["workingDir"] = json!(format!("/link-{n}"));
    from_descriptors(world, target, Pod { image: "localhost/workdir-links:1", ..POD }, there)
}

/// A Pod for each possible number of a host descriptor: with one container, whose creation opens as many as any other's.
fn from_descriptors(world: &World, target: &Target, pod: Pod, there: impl Fn(u32, &mut Value)) -> Verdict {
    let pod = Pod { script: "cat ../../../../../../../../..@CANARY@; attack climb @CANARY@", ..pod };
    let name = |n: u32| format!("{}-{n}", target.id);
    for n in NUMBERS {
        let mut object = world.pod(target, &pod);
        object["metadata"]["name"] = json!(name(n));
        there(n, &mut object["spec"]["containers"][0]);
        if let Err(why) = world.create("pods", pod.namespace, object) {
            return Verdict::Untried(why);
        }
    }
    let (mut all, mut started) = (String::new(), 0);
    for n in NUMBERS {
        let (End::Said(said) | End::Refused(said)) = world.wait_end(pod.namespace, &name(n));
        started += usize::from(said.contains("held: "));
        if !said.contains("held: ") && !said.contains("error during container init") && !said.contains(&target.text) {
            return Verdict::Untried(said);
        }
        all.push_str(&said);
        world.delete("pods", pod.namespace, &name(n));
    }
    match judge(target, &all) {
        Verdict::Breach(seen) => Verdict::Breach(seen),
        _ => Verdict::Held(format!("{started} of {} started, inside", NUMBERS.len())),
    }
}

fn exec_descriptors(world: &World, target: &Target) -> Verdict {
    scan_while_execing(world, target, "securityContext: {capabilities: {add: [SYS_PTRACE]}}")
}

fn trace_exec(world: &World, target: &Target) -> Verdict {
    scan_while_execing(world, target, "")
}

fn trace_newborn(world: &World, target: &Target) -> Verdict {
    let container = "{securityContext: {capabilities: {add: [SYS_PTRACE]}, seccompProfile: {type: RuntimeDefault}},
        readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1}}";
    let pod = Pod { container, script: "attack newborn 6000; sleep 1000", ..POD };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    exec_until_said(world, target)
}

fn scan_while_execing(world: &World, target: &Target, container: &'static str) -> Verdict {
    let pod = Pod { container, script: "attack scan @CANARY@ 6000; sleep 1000", ..POD };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    exec_until_said(world, target)
}

/// Processes enter the container until it has reported what it saw of them.
fn exec_until_said(world: &World, target: &Target) -> Verdict {
    let begin = std::time::Instant::now();
    loop {
        // Its own process may run forever.
        let itself = world.node.talk(&["-n", OPEN, "exec", target.id, "--", "/bin/self"]);
        world.inside(target, OPEN, &["true"]);
        drop(itself);
        match judge(target, &world.logs(target, OPEN)) {
            Verdict::Untried(said) if begin.elapsed() > super::TIMEOUT => return Verdict::Untried(said),
            Verdict::Untried(_) => {}
            other => return other,
        }
    }
}

fn rewrite_runtime(world: &World, target: &Target) -> Verdict {
    let shim = std::env::var("PODWRIGHT_SHIM").ok().map(|path| (std::fs::read(&path).unwrap_or_default(), path));
    let script = "printf '#!/proc/self/exe\\n' > /bin/self; chmod 755 /bin/self; attack rewrite 5000; sleep 1000";
    let pod = Pod { container: "securityContext: {capabilities: {add: [SYS_PTRACE]}}", script, ..POD };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    let seen = exec_until_said(world, target);
    match shim {
        Some((before, path)) if std::fs::read(&path).unwrap_or_default() != before => {
            Verdict::Breach(format!("{path} is not what it was"))
        }
        _ => seen,
    }
}

/// Resident memory of the node's process in MiB.
pub fn memory(world: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}
