//! Volumes: sub-paths, links and races in them, what the agent writes into them, logs and messages.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags};
use serde_json::{Value, json};

use super::world::{BASELINE, EDIT, End, IMAGE, NODE, OPEN, OURS, THEIRS, World};
use super::{Attack, Expect, POD, Pod, Target, Try, Verdict, judge, verdict};
use crate::support::{api, eventually, registry, slowness};

/// An emptyDir whose content an init container makes.
macro_rules! prepared {
    ($script:literal) => {
        concat!(
            "{volumes: [{name: v, emptyDir: {}}], initContainers: [{name: i, image: 'localhost/attack:1', volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, '",
            $script,
            "']}]}"
        )
    };
}

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "sub-path-link",
        class: "sub-path",
        cves: &["CVE-2017-1002101"],
        how: "`subPath` through an absolute link that a container made in the volume",
        held: "sub-paths are opened below the volume, with no link followed out of it",
        attempt: Try::Pod(Pod {
            spec: prepared!("ln -s / /v/out"),
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: 'out@FOLDER@'}]",
            script: "cat /m/sub-path-link; echo held: $(ls /m 2>&1 | wc -l)",
            expect: Expect::HeldOrRefused("Invalid cross-device link"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-relative-link",
        class: "sub-path",
        cves: &["CVE-2017-1002101"],
        how: "the same through a link of many `..`, its last part the host's folder itself",
        held: "as above",
        attempt: Try::Pod(Pod {
            spec: prepared!("ln -s ../../../../../../../../../../../../../..@FOLDER@ /v/out"),
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: out}]",
            script: "cat /m/sub-path-relative-link; echo held: $(ls /m 2>&1 | wc -l)",
            expect: Expect::HeldOrRefused("Invalid cross-device link"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-magic-link",
        class: "sub-path",
        cves: &["CVE-2017-1002101", "CVE-2021-25741"],
        how: "the same through `/proc/self/root` and `/proc/self/cwd`, which lead elsewhere for who resolves them",
        held: "as above",
        attempt: Try::Pod(Pod {
            spec: prepared!("ln -s /proc/self/root@FOLDER@ /v/out"),
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: out}]",
            script: "cat /m/sub-path-magic-link; echo held: $(ls /m 2>&1 | wc -l)",
            expect: Expect::HeldOrRefused("Invalid cross-device link"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-race",
        class: "sub-path",
        cves: &["CVE-2021-25741"],
        how: "a sidecar exchanges a folder and a link out of the volume all the time, while twelve containers mount it by `subPath`",
        held: "what was opened and checked is what is mounted, by its descriptor",
        attempt: Try::Code(|world, target| {
            race(
                world,
                target,
                "[{name: v, mountPath: /m, subPath: d}]",
                "cat /m/sub-path-race /m@CANARY@; echo held: $(ls /m | wc -l)",
            )
        }),
    },
    Attack {
        id: "mount-race",
        class: "mount race",
        cves: &["CVE-2021-30465", "CVE-2019-19921"],
        how: "the same sidecar, while twelve containers mount a second volume on that folder below the first",
        held: "the mount point is opened below the root, and the mount is attached to that descriptor",
        attempt: Try::Code(|world, target| {
            let mounts = "[{name: v, mountPath: /v}, {name: w, mountPath: '/v/d/made-by-mount-race'}]";
            race(world, target, mounts, "attack climb @CANARY@")
        }),
    },
    Attack {
        id: "sub-path-parent",
        class: "sub-path",
        cves: &[],
        how: "`subPath: ../../..`",
        held: "refused by validation",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: '../../../../../../..@FOLDER@'}]",
            expect: Expect::Refused("must not contain '..'"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-expression-parent",
        class: "sub-path",
        cves: &[],
        how: "`subPathExpr` of a variable whose value is `../../..`, and one that is absolute",
        held: "what the expression gives is checked too, and opened below the volume",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "{env: [{name: X, value: '../../../../../../../../..@FOLDER@'}], volumeMounts: [{name: v, mountPath: /m, subPathExpr: $(X)}]}",
            script: "cat /m/sub-path-expression-parent; echo held: $(ls /m | wc -l)",
            expect: Expect::Refused("leads out of its folder"),
            ..POD
        }),
    },
    Attack {
        id: "proc-volume",
        class: "mount over procfs",
        cves: &["CVE-2019-16884", "CVE-2019-19921", "CVE-2023-27561", "CVE-2025-52881"],
        how: "an emptyDir at `/proc`, with links of its own at `self/attr/exec` and `sys`",
        held: "what is at `/proc` must be procfs",
        attempt: Try::Pod(Pod {
            spec: prepared!(
                "mkdir -p /v/self/attr /v/self/fd /v/sys/kernel; for f in attr/exec oom_score_adj attr/current; do ln -s @CANARY@ /v/self/$f; done"
            ),
            container: "volumeMounts: [{name: v, mountPath: /proc}]",
            expect: Expect::Refused("not of type proc"),
            ..POD
        }),
    },
    Attack {
        id: "volume-scrub",
        class: "agent's writes",
        cves: &["CVE-2017-1002102"],
        how: "a volume of the StorageClass `local`, full of links to the host's files and folders, of folders nested a thousand deep and of names that look like the agent's own, is deleted with its claim",
        held: "what is removed is removed by descriptors below the volume's own folder, whose mark only the node can write: links are removed, never followed",
        attempt: Try::Code(volume_scrub),
    },
    Attack {
        id: "volume-of-another",
        class: "claims",
        cves: &[],
        how: "who holds `edit` in a namespace claims the volume of another's: by its name, by annotations of binder and provisioner, by a uid and a name that lead elsewhere; and asks for a folder of the host by the class's parameters",
        held: "a volume is its claim's by uid, which the server makes; of a claim nothing else reaches a path; classes are the administrator's",
        attempt: Try::Code(volume_of_another),
    },
    Attack {
        id: "config-map-write",
        class: "agent's writes",
        cves: &["CVE-2017-1002102", "CVE-2025-9566"],
        how: "writes, links and removals in ConfigMap, Secret, projected and downward volumes, which the agent updates",
        held: "they are mounted read-only",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: c, configMap: {name: kube-root-ca.crt}}, {name: p, projected: {sources: [{configMap: {name: kube-root-ca.crt}}]}}, {name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]",
            container: "volumeMounts: [{name: c, mountPath: /c}, {name: p, mountPath: /p}, {name: d, mountPath: /d}]",
            script: "
for f in /c /p /d /var/run/secrets/kubernetes.io/serviceaccount; do
  for try in \"ln -s @FOLDER@ $f/x\" \"rm -rf $f/..data\" \"touch $f/y\" \"mount -o remount,rw $f\"; do
    if $try 2>/tmp/why; then echo \"BREACH: $try\"; else echo \"held: $(tail -n 1 /tmp/why)\"; fi
  done
done",
            ..POD
        }),
    },
    Attack {
        id: "config-map-key",
        class: "agent's writes",
        cves: &["CVE-2017-1002102"],
        how: "items of ConfigMap, projected, downward and token volumes whose paths lead up",
        held: "refused by validation",
        attempt: Try::Code(item_paths),
    },
    Attack {
        id: "git-repo",
        class: "agent's programs",
        cves: &["CVE-2024-10220", "CVE-2025-1767"],
        how: "a gitRepo volume, of a local repository and with a folder `..`",
        held: "no such volume is made: the Pod does not start",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: g, gitRepo: {repository: '@FOLDER@', directory: '.'}}]",
            container: "volumeMounts: [{name: g, mountPath: /g}]",
            script: "ls -lR /g",
            expect: Expect::Refused("not supported by this node"),
            ..POD
        }),
    },
    Attack {
        id: "host-path-baseline",
        class: "hostPath",
        cves: &[],
        how: "hostPath of a socket (as docker.sock), a folder and `/` in a `baseline` namespace",
        held: "Pod Security",
        attempt: Try::Pod(Pod {
            namespace: BASELINE,
            spec: "volumes: [{name: v, hostPath: {path: /}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}]",
            script: "cat /v@CANARY@",
            expect: Expect::Refused("hostPath"),
            ..POD
        }),
    },
    Attack {
        id: "host-path-parent",
        class: "hostPath",
        cves: &[],
        how: "a hostPath with `..`, by which an allow-list of prefixes is passed",
        held: "refused by validation",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, hostPath: {path: '/tmp/../@FOLDER@'}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}]",
            script: "cat /v/*",
            expect: Expect::Refused("must not contain '..'"),
            ..POD
        }),
    },
    Attack {
        id: "log-folder-link",
        class: "hostPath",
        cves: &["CVE-2017-1002102", "CVE-2021-25741"],
        how: "with the node's folder of logs as a hostPath, as collectors have it: a link in the place of the container's own folder, and its log deleted",
        held: "the shim finds the folder of a log anew for each step, through no link, and stays in it",
        attempt: Try::Code(log_folder_link),
    },
    Attack {
        id: "propagation",
        class: "hostPath",
        cves: &[],
        how: "`mountPropagation: Bidirectional` without privilege",
        held: "refused by validation",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]",
            expect: Expect::Refused("Bidirectional mount propagation is available only to privileged containers"),
            ..POD
        }),
    },
    Attack {
        id: "message-link",
        class: "agent's reads",
        cves: &[],
        how: "the termination message is replaced by a link to a file of the host, by a FIFO, and read into the status",
        held: "the message is a file of the agent's own, bind-mounted; it is opened without following links",
        attempt: Try::Pod(Pod {
            container: "terminationMessagePath: /message",
            script: "rm -f /message; ln -s @CANARY@ /message; umount /message; mkfifo /message; echo held: $(ls -l /message | cut -c 1)",
            ..POD
        }),
    },
    Attack {
        id: "message-path-proc",
        class: "agent's reads",
        cves: &[],
        how: "`terminationMessagePath` of `/proc/self/root` and a file of the host, and of a file that procfs has",
        held: "nothing is mounted on a part of /proc; elsewhere paths are resolved inside the root",
        attempt: Try::Code(message_path_proc),
    },
    Attack {
        id: "log-link",
        class: "agent's reads",
        cves: &[],
        how: "who can write in the folder of the logs has the log of a container and a link change places all the time, and asks for the log again and again",
        held: "logs are opened without following links, and must be regular files",
        attempt: Try::Code(log_link),
    },
    Attack {
        id: "log-fifo",
        class: "agent's reads",
        cves: &[],
        how: "the same with a FIFO that nobody writes",
        held: "what is no regular file is not opened",
        attempt: Try::Code(log_fifo),
    },
    Attack {
        id: "log-path",
        class: "agent's reads",
        cves: &["CVE-2025-0750"],
        how: "`edit` makes Pods whose names, containers and mounts lead out of the folder of the logs, and asks for logs of containers whose names are paths to a log of the host",
        held: "names are validated; a log is asked for by the name of a container that the Pod has, and opened below the node's folder",
        attempt: Try::Code(log_path),
    },
    Attack {
        id: "lease-volumes",
        class: "agent's reads",
        cves: &[],
        how: "a container takes leases (fcntl F_SETLEASE) on all files of its ConfigMap, projected and token volumes, and the ConfigMap changes: each open(2) of the agent would wait 45 s",
        held: "files that containers see are opened without waiting, and off the threads that all Pods share; a file that cannot be read gets another in its place",
        attempt: Try::Code(lease_volumes),
    },
    Attack {
        id: "lease-managed",
        class: "agent's reads",
        cves: &[],
        how: "a container takes leases on another's termination log, and on the Pod's hosts, resolv.conf and hostname; the other ends and starts again",
        held: "as above: the status tells so in the message's place, and that container alone waits to be started",
        attempt: Try::Code(lease_managed),
    },
];

fn message_path_proc(world: &World, target: &Target) -> Verdict {
    let mut seen = Vec::new();
    for path in [format!("/proc/self/root{}", target.canary.display()), "/proc/version".into()] {
        let mut pod = world.pod(target, &POD);
        pod["spec"]["containers"][0]["terminationMessagePath"] = json!(path);
        match world.run_to_the_end(&pod) {
            End::Said(said) => return Verdict::Breach(format!("{path} is covered: {said}")),
            End::Refused(why) if why.contains("inside /proc") => seen.push(why),
            End::Refused(why) => return Verdict::Untried(why),
        }
    }
    Verdict::Held(seen.join("; "))
}

/// Many containers of one Pod mount what a sidecar exchanges.
fn race(world: &World, target: &Target, mounts: &str, script: &'static str) -> Verdict {
    let pod = Pod { script, container: "", ..POD };
    let mut object = world.pod(target, &pod);
    let template = object["spec"]["containers"][0].clone();
    let mounts = super::yaml(mounts, target);
    let containers = (0..12).map(|n| {
        let mut container = template.clone();
        container["name"] = json!(format!("c{n}"));
        container["volumeMounts"] = mounts.clone();
        container
    });
    let up = format!("../../../../../../../../../../../..{}", world.folder().display());
    let swap = format!("mkdir /v/d; ln -s {up} /v/l; touch /v/up; attack swap /v/d /v/l 60000");
    object["spec"]["containers"] = containers.collect();
    object["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]);
    object["spec"]["initContainers"] = json!([{
        "name": "swap", "image": template["image"], "restartPolicy": "Always", "command": ["sh", "-c", swap],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "startupProbe": {"exec": {"command": ["test", "-e", "/v/up"]}, "periodSeconds": 1},
    }]);
    if let Err(why) = world.create("pods", OPEN, object) {
        return Verdict::Untried(why);
    }
    eventually("all containers have been tried", super::PATIENCE, || {
        let pod = world.get("pods", OPEN, target.id).unwrap_or_default();
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let tried = |c: &serde_json::Value| {
            let waiting = c["state"]["waiting"]["reason"].as_str().unwrap_or_default();
            !c["state"]["terminated"].is_null() || waiting.ends_with("Error")
        };
        if all.len() == 12 && all.iter().all(tried) { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    let mut said = world.get("pods", OPEN, target.id).unwrap_or_default()["status"].to_string();
    for n in 0..12 {
        said.push_str(&world.node.run(&["-n", OPEN, "logs", target.id, "-c", &format!("c{n}")]).out);
    }
    world.delete("pods", OPEN, target.id);
    match judge(target, &said) {
        Verdict::Untried(_) => Verdict::Held("no container started".into()),
        other => other,
    }
}

fn item_paths(world: &World, target: &Target) -> Verdict {
    let mut seen = Vec::new();
    for (number, path) in ["../../x", "/x", "a/../../x", "..x/../../y", "..data"].iter().enumerate() {
        let item = json!([{"key": "ca.crt", "path": path}]);
        let volumes = [
            json!({"name": "v", "configMap": {"name": "kube-root-ca.crt", "items": item}}),
            json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt", "items": item}}]}}),
            json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": path}}]}}),
            json!({"name": "v", "downwardAPI": {"items": [{"path": path, "fieldRef": {"fieldPath": "metadata.name"}}]}}),
        ];
        for (kind, volume) in volumes.into_iter().enumerate() {
            let mut object = world.pod(target, &POD);
            object["metadata"]["name"] = json!(format!("{}-{number}-{kind}", target.id));
            object["spec"]["volumes"] = json!([volume]);
            match world.create("pods", OPEN, object) {
                Ok(_) => return Verdict::Breach(format!("accepted: {volume}")),
                Err(why) => seen.push(why),
            }
        }
    }
    Verdict::Held(format!("{} were refused; {}", seen.len(), seen[0]))
}

/// A Pod that has a log; where it is.
fn with_log(world: &World, target: &Target) -> Result<PathBuf, String> {
    world.start_pod(target, &Pod { script: "echo up; sleep 1000", ..POD })?;
    eventually("it has a log", super::PATIENCE, || {
        let said = world.logs(target, OPEN);
        if said.contains("up") { Ok(()) } else { Err(said) }
    });
    let found: serde_json::Value =
        serde_json::from_str(&world.node.ok(&["-n", OPEN, "inspect", "pod", target.id, "-o", "json"])).unwrap();
    Ok(PathBuf::from(found["containers"][0]["log"].as_str().unwrap()))
}

/// Asks for a log again and again, while its file and what `other` has made beside it change places all the time: one of both is
/// what the agent finds, the other what it opens. Ends with the first answer that `ends` wants no more after, if any.
fn logs_of_exchanged(
    world: &World,
    target: &Target,
    log: &Path,
    other: &Path,
    ends: impl Fn(&str) -> bool,
) -> Option<String> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, log, CWD, other, RenameFlags::EXCHANGE).expect("both are there");
            }
        });
        let bad = (0..ASKED).map(|_| world.logs(target, OPEN)).find(|said| ends(said));
        over.store(true, Ordering::Relaxed);
        bad
    })
}

/// So often, one of two places is looked at and the other opened, be it only one time in ten.
const ASKED: usize = 60;

fn log_path(world: &World, target: &Target) -> Verdict {
    // What would be a log of the host, at a place of its own: a name that leads there is all that it takes.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(
        elsewhere.path().join("0.log"),
        format!("2024-01-02T03:04:05.000000000Z stdout F {}\n", target.text),
    )
    .unwrap();
    let path = format!("/api/v1/namespaces/{OURS}");
    let pod = |name: &str, container: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0,
            "containers": [{"name": container, "image": IMAGE, "command": ["sh", "-c", "echo up; sleep 1000"]}]}})
    };
    for (name, container) in
        [("..", "c"), ("a/b", "c"), ("a_b", "c"), ("a", ".."), ("a", "../b"), ("a", "b.log"), ("a", "")]
    {
        let (code, said) = world.ask(EDIT, "POST", &format!("{path}/pods"), &pod(name, container));
        if !matches!(code, 400 | 404 | 422) {
            return Verdict::Breach(format!("a Pod {name:?} with a container {container:?}: {code} {said}"));
        }
    }
    let (code, said) = world.ask(EDIT, "POST", &format!("{path}/pods"), &pod(target.id, "c"));
    if code != 201 {
        return Verdict::Untried(said);
    }
    world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{}", target.id)], super::PATIENCE);
    let log = |container: &str, more: &str| {
        let container = container.replace('/', "%2F");
        world.ask(EDIT, "GET", &format!("{path}/pods/{}/log?container={container}{more}", target.id), &Value::Null)
    };
    let (mut seen, up) = (Vec::new(), format!("../../../../../../../../../../..{}", elsewhere.path().display()));
    for container in
        [up.as_str(), &format!("c/{up}"), elsewhere.path().to_str().unwrap(), "..", ".", "c/.", "c/../c", "./c"]
    {
        for more in ["", "&previous=true", "&tailLines=5", "&follow=false&timestamps=true"] {
            let (code, said) = log(container, more);
            if said.contains(&target.text) || code == 200 {
                return Verdict::Breach(format!("{container:?}: {code} {said}"));
            }
            seen.push(code);
        }
    }
    let (code, said) = log("c", "");
    world.delete("pods", OURS, target.id);
    match code == 200 && said.contains("up") {
        true => Verdict::Held(format!("{seen:?}")),
        false => Verdict::Untried(said),
    }
}

fn log_link(world: &World, target: &Target) -> Verdict {
    let log = match with_log(world, target) {
        Err(why) => return Verdict::Untried(why),
        Ok(log) => log,
    };
    let (canary, link) = (target.canary.with_extension("log"), log.with_extension("other"));
    std::fs::write(&canary, format!("2024-01-02T03:04:05.000000000Z stdout F {}\n", target.text)).unwrap();
    std::os::unix::fs::symlink(&canary, &link).unwrap();
    let bad = logs_of_exchanged(world, target, &log, &link, |said| said.contains(&target.text));
    std::fs::remove_file(&canary).unwrap();
    verdict(bad.is_none(), bad.unwrap_or_else(|| format!("asked {ASKED} times")))
}

fn log_fifo(world: &World, target: &Target) -> Verdict {
    let log = match with_log(world, target) {
        Err(why) => return Verdict::Untried(why),
        Ok(log) => log,
    };
    let fifo = log.with_extension("other");
    registry::run(Command::new("mkfifo").arg(&fifo));
    // Without a reader a FIFO cannot be opened so.
    let has_reader = |path: &PathBuf| {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW, Mode::empty());
        file.is_ok_and(|file| FileType::from_raw_mode(rustix::fs::fstat(file).unwrap().st_mode) == FileType::Fifo)
    };
    let (answered, over, waited) = (Mutex::new(Instant::now()), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Who waits there is let go on after a while.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                if answered.lock().unwrap().elapsed() > soon() / 2 && [&log, &fifo].into_iter().any(has_reader) {
                    waited.store(true, Ordering::Relaxed);
                }
            }
        });
        logs_of_exchanged(world, target, &log, &fifo, |_| {
            *answered.lock().unwrap() = Instant::now();
            waited.load(Ordering::Relaxed)
        });
        over.store(true, Ordering::Relaxed);
    });
    let waited = waited.into_inner();
    verdict(!waited, if waited { "the agent waits for who would write".into() } else { format!("asked {ASKED} times") })
}

/// What waits for one lease alone takes 45 s.
fn soon() -> Duration {
    Duration::from_secs(20) * slowness()
}

/// Waits for what is to come soon, but does not insist; after how long it came.
fn comes(mut is_there: impl FnMut() -> bool) -> Result<Duration, Duration> {
    let begun = Instant::now();
    while !is_there() {
        if begun.elapsed() > soon() {
            return Err(begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    if begun.elapsed() > soon() { Err(begun.elapsed()) } else { Ok(begun.elapsed()) }
}

/// That another Pod starts and ends, and is answered for, while somebody holds leases.
fn another_runs(world: &World, target: &Target) -> Result<Duration, Duration> {
    let mut other = world.pod(target, &Pod { script: "echo held: it runs", ..POD });
    other["metadata"]["name"] = json!(format!("{}-other", target.id));
    let begun = Instant::now();
    let end = world.run_to_the_end(&other);
    let ran = matches!(end, End::Said(said) if said.contains("held: it runs"));
    if ran && begun.elapsed() < soon() { Ok(begun.elapsed()) } else { Err(begun.elapsed()) }
}

fn lease_volumes(world: &World, target: &Target) -> Verdict {
    let map = |word: &str| {
        let data: serde_json::Map<String, Value> = (0..8).map(|n| (format!("k{n}"), json!(word))).collect();
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": target.id, "namespace": OPEN}, "data": data})
    };
    if let Err(why) = world.create("configmaps", OPEN, map("old")) {
        return Verdict::Untried(why);
    }
    let pod = Pod {
        spec: "volumes: [{name: c, configMap: {name: lease-volumes}}, {name: p, projected: {sources: [{configMap: {name: lease-volumes}}]}}]",
        container: "volumeMounts: [{name: c, mountPath: /c}, {name: p, mountPath: /p}]",
        script: "attack lease 120000 /c /p /var/run/secrets/kubernetes.io/serviceaccount",
        ..POD
    };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    eventually("it has leases", super::PATIENCE, || {
        let said = world.logs(target, OPEN);
        if said.contains("leased: ") { Ok(()) } else { Err(said) }
    });
    // Which files are shown is told by links: to open one would wait, too.
    let shown = || -> Vec<String> {
        let said = world.inside(target, OPEN, &["sh", "-c", "readlink /c/..data; readlink /p/..data"]);
        said.lines().filter(|line| line.starts_with("..")).map(str::to_owned).collect()
    };
    let old = shown();
    if old.len() != 2 {
        return Verdict::Untried(format!("volumes are laid out otherwise: {old:?}"));
    }
    let params = json!({"resource": "configmaps", "namespace": OPEN, "name": target.id, "body": map("new")});
    if let Err(why) = api::call(&world.node.socket(), "update", params) {
        return Verdict::Untried(format!("{why:?}"));
    }
    let changed = comes(|| {
        let new = shown();
        new.len() == 2 && new.iter().all(|link| !old.contains(link))
    });
    let ran = another_runs(world, target);
    let seen = format!("files changed: {changed:?}; another Pod: {ran:?}; {}", world.logs(target, OPEN));
    world.delete("pods", OPEN, target.id);
    verdict(changed.is_ok() && ran.is_ok(), seen)
}

fn lease_managed(world: &World, target: &Target) -> Verdict {
    let mut object = world.pod(target, &POD);
    let container = |name: &str, script: &str| json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script], "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    object["spec"]["restartPolicy"] = json!("Always");
    object["spec"]["shareProcessNamespace"] = json!(true);
    object["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    object["spec"]["containers"] = json!([
        container("c", "touch /v/up; until test -e /v/go; do sleep 0.1; done; exit 3"),
        container(
            "b",
            "
until test -e /v/up; do sleep 0.1; done
attack lease 120000 /etc/hosts /etc/resolv.conf /etc/hostname /proc/[0-9]*/root/dev/termination-log >/v/said &
until grep leased /v/said; do sleep 0.1; done
touch /v/go
wait"
        ),
    ]);
    if let Err(why) = world.create("pods", OPEN, object) {
        return Verdict::Untried(why);
    }
    eventually("it has leases", super::PATIENCE, || {
        let said = world.logs(target, OPEN);
        if said.contains("leased: ") { Ok(()) } else { Err(said) }
    });
    let of_c = || {
        let pod = world.get("pods", OPEN, target.id).unwrap_or_default();
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|status| status["name"] == "c").unwrap_or_default()
    };
    let has = |text: &Value, word: &str| text.as_str().is_some_and(|text| text.contains(word));
    let told = comes(|| {
        let c = of_c();
        [&c["state"], &c["lastState"]].iter().any(|state| {
            has(&state["terminated"]["message"], "Error on reading termination log")
                && has(&state["terminated"]["message"], "lease")
        })
    });
    let ran = another_runs(world, target);
    // It is started again after ten seconds.
    let lease = "another process holds a lease on the file";
    let waits = comes(|| world.failed_to_start(OPEN, target.id).is_some_and(|why| why.contains(lease)));
    let seen = format!("message: {told:?}; another Pod: {ran:?}; the next start: {waits:?}; {}", of_c());
    world.delete("pods", OPEN, target.id);
    verdict(told.is_ok() && ran.is_ok() && waits.is_ok(), seen)
}

/// A Pod with a claim of the class `local`; what it does, then waits.
fn with_claim(target: &Target, does: &str) -> (Value, String) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": target.id, "namespace": OPEN},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}},
    });
    (claim, format!("{does}; echo up; sleep 1000"))
}

fn volume_scrub(world: &World, target: &Target) -> Verdict {
    let (claim, script) = with_claim(
        target,
        "cd /v && ln -s @FOLDER@ out && ln -s @CANARY@ file && ln -s / root && ln -s ../../../../../../../..@FOLDER@ up && mkdir -p a/b && \
         ln -s @FOLDER@ a/b/out && ln -s @FOLDER@ .removed-1 && ln -s @FOLDER@ .removed-2 && ln -s @CANARY@ volume.json && \
         mkfifo fifo && chmod 0 a && i=0; while [ $i -lt 1000 ]; do mkdir d && cd d && ln -s @FOLDER@ l; i=$((i+1)); done; touch /v/full",
    );
    let script: &'static str = Box::leak(script.into_boxed_str());
    let pod = Pod {
        spec: "volumes: [{name: v, persistentVolumeClaim: {claimName: volume-scrub}}]",
        container: "volumeMounts: [{name: v, mountPath: /v}]",
        script,
        ..POD
    };
    let tried = world.create("persistentvolumeclaims", OPEN, claim).and_then(|_| world.start_pod(target, &pod));
    if let Err(why) = tried {
        return Verdict::Untried(why);
    }
    let volume = world.node.field(&["-n", OPEN, "pvc", target.id], ".spec.volumeName");
    let data = world.node.dir.path().join("local-volumes").join(&volume).join("data");
    eventually("the volume is full", super::PATIENCE, || {
        data.join("full").symlink_metadata().map_err(|e| format!("{e} {}", world.logs(target, OPEN)))
    });
    let links = std::fs::read_dir(&data).unwrap().flatten().filter(|entry| entry.path().is_symlink()).count();
    world.delete("pods", OPEN, target.id);
    world.delete("persistentvolumeclaims", OPEN, target.id);
    let root = world.node.dir.path().join("local-volumes");
    eventually("the volume is gone", super::PATIENCE, || {
        let left = std::fs::read_dir(&root)
            .unwrap()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().contains(&volume));
        match world.get("persistentvolumes", "", &volume) {
            None if !left => Ok(()),
            found => Err(format!("{left} {found:?}")),
        }
    });
    // The canary and its folder are looked at by whoever judges.
    match target.canary.symlink_metadata() {
        Ok(_) => Verdict::Held(format!("{links} links went, and what they lead to stays")),
        Err(why) => Verdict::Breach(format!("the canary: {why}")),
    }
}

fn volume_of_another(world: &World, target: &Target) -> Verdict {
    // A tenant's, with data.
    let claim = |name: &str, namespace: &str, changes: Value| {
        let mut claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
        });
        json_patch::merge(&mut claim, &changes);
        claim
    };
    let (text, canary) = (&target.text, &target.canary);
    let pod = |name: &str, namespace: &str, claim: &str, does: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": {
            "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
            "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", does], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
    };
    let victim = world.create("persistentvolumeclaims", THEIRS, claim("mine", THEIRS, json!({}))).and_then(|_| {
        world.create("pods", THEIRS, pod("keeper", THEIRS, "mine", &format!("echo '{text}' > /v/word; sleep 1000")))
    });
    if let Err(why) = victim {
        return Verdict::Untried(why);
    }
    world.node.wait("condition=Ready", &["-n", THEIRS, "pod/keeper"], super::PATIENCE);
    let volume = world.node.field(&["-n", THEIRS, "pvc", "mine"], ".spec.volumeName");
    let uid = volume.trim_start_matches("pvc-").to_owned();
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/selected-node": NODE, "volume.kubernetes.io/storage-provisioner": "podwright.dev/local"});
    let tries = [
        ("by-name", json!({"spec": {"volumeName": volume}})),
        ("bound", json!({"spec": {"volumeName": volume}, "metadata": {"annotations": bound}})),
        ("uid", json!({"metadata": {"uid": uid, "annotations": {"volume.kubernetes.io/selected-node": NODE}}})),
        ("out", json!({"metadata": {"uid": format!("../../../../../../..{}", canary.display())}})),
        ("node", json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "../../../etc"}}})),
    ];
    let path = format!("/api/v1/namespaces/{OURS}");
    let mut seen = Vec::new();
    for (name, changes) in tries {
        let (code, said) =
            world.ask(EDIT, "POST", &format!("{path}/persistentvolumeclaims"), &claim(name, OURS, changes));
        seen.push(format!("{name}: {code}"));
        if !matches!(code, 201 | 400 | 422) {
            return Verdict::Untried(said);
        }
        // What its status says is not his either.
        let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Mi"}}});
        let (code, said) = world.ask(EDIT, "PATCH", &format!("{path}/persistentvolumeclaims/{name}/status"), &status);
        if code == 200 {
            return Verdict::Breach(format!("he writes the status of {name}: {said}"));
        }
        world.ask(EDIT, "POST", &format!("{path}/pods"), &pod(name, OURS, name, "cat /v/word; ls -la /v; echo over"));
    }
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "host"},
        "provisioner": "podwright.dev/local", "parameters": {"path": "/"}, "volumeBindingMode": "WaitForFirstConsumer"});
    let (code, said) = world.ask(EDIT, "POST", "/apis/storage.k8s.io/v1/storageclasses", &class);
    if code != 403 {
        return Verdict::Breach(format!("he makes classes: {code} {said}"));
    }
    // An honest one, to know how long it takes until a volume would be there.
    let honest = [
        ("persistentvolumeclaims", claim("honest", OURS, json!({}))),
        ("pods", pod("honest", OURS, "honest", "ls /v; sleep 1000")),
    ];
    for (kind, object) in honest {
        world.ask(EDIT, "POST", &format!("{path}/{kind}"), &object);
    }
    world.node.wait("condition=Ready", &["-n", OURS, "pod/honest"], super::PATIENCE);
    let said: String = ["by-name", "bound", "uid", "out", "node"]
        .iter()
        .map(|name| world.node.run(&["-n", OURS, "logs", name]).all())
        .collect();
    let word = world.node.run(&["-n", THEIRS, "exec", "keeper", "--", "cat", "/v/word"]).out;
    let root = world.node.dir.path().join("local-volumes");
    let strange = || -> Vec<String> {
        let entries = std::fs::read_dir(&root).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| world.get("persistentvolumes", "", name).is_none()).collect()
    };
    // The volume of another attack may be on its way out just now: what is strange is strange for long.
    let (begin, mut strangers) = (std::time::Instant::now(), strange());
    while !strangers.is_empty() && begin.elapsed() < super::PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let now = strange();
        strangers.retain(|name| now.contains(name));
    }
    for (namespace, kind) in [(OURS, "pods"), (THEIRS, "pods"), (OURS, "pvc"), (THEIRS, "pvc")] {
        let names: &[&str] = if namespace == OURS {
            &["by-name", "bound", "uid", "out", "node", "honest"]
        } else if kind == "pods" {
            &["keeper"]
        } else {
            &["mine"]
        };
        world.node.run(&[&["-n", namespace, "delete", kind, "--ignore-not-found", "--wait=false"], names].concat());
    }
    match () {
        () if said.contains(text.as_str()) => Verdict::Breach(format!("another's data was read: {said}")),
        () if word.trim() != text.as_str() => Verdict::Breach(format!("another's data is now {word:?}")),
        () if !strangers.is_empty() => Verdict::Breach(format!("folders that are no volume's: {strangers:?}")),
        () => Verdict::Held(seen.join(", ")),
    }
}

/// What the shim writes would be outside of the folder of logs, by whatever name the link leads to.
fn log_folder_link(world: &World, target: &Target) -> Verdict {
    let elsewhere = tempfile::tempdir().unwrap();
    let script = format!(
        "cd /logs/{}_{}_*/c && mv ../c ../aside && ln -s {} ../c && rm ../aside/0.log && readlink ../c > /dev/termination-log; \
         for i in 1 2 3 4; do echo $i; sleep 1; done",
        OPEN,
        target.id,
        elsewhere.path().display()
    );
    let mut object = world.pod(target, &Pod { container: "volumeMounts: [{name: l, mountPath: /logs}]", ..POD });
    object["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    object["spec"]["volumes"] = json!([{"name": "l", "hostPath": {"path": world.node.dir.path().join("log")}}]);
    let end = world.run_to_the_end(&object);
    let written: Vec<_> = std::fs::read_dir(elsewhere.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    match &end {
        _ if !written.is_empty() => Verdict::Breach(format!("the shim wrote {written:?} there")),
        End::Said(said) if said.contains(&elsewhere.path().display().to_string()) => {
            Verdict::Held("nothing was written where the link leads".to_owned())
        }
        _ => Verdict::Untried(format!("{end:?}")),
    }
}
