//! What the agent reads: logs, messages and files that a container can replace, symlink or hold leases on.

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

use super::world::{EDIT, End, IMAGE, OPEN, OURS, World};
use super::{Attack, POD, Pod, Target, Try, Verdict, verdict};
use crate::support::{api, eventually, registry, slowness};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "log-folder-link",
        class: "hostPath",
        cves: &["CVE-2017-1002102", "CVE-2021-25741"],
        how: "with the node's folder of logs as a hostPath, as collectors have it: a link in the place of the container's own folder, and its log deleted",
        held: "the shim finds the folder of a log anew for each step, through no link, and stays in it",
        attempt: Try::Code(log_folder_link),
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

/// A Pod with a log; returns its path.
fn with_log(world: &World, target: &Target) -> Result<PathBuf, String> {
    world.start_pod(target, &Pod { script: "echo up; sleep 1000", ..POD })?;
    eventually("it has a log", super::TIMEOUT, || {
        let said = world.logs(target, OPEN);
        if said.contains("up") { Ok(()) } else { Err(said) }
    });
    let found: serde_json::Value =
        serde_json::from_str(&world.node.ok(&["-n", OPEN, "inspect", "pod", target.id, "-o", "json"])).unwrap();
    Ok(PathBuf::from(found["containers"][0]["log"].as_str().unwrap()))
}

/// Requests a log repeatedly while its file and `other`'s replacement are swapped continuously: the agent may find one and open the
/// other. Ends with the first response for which `ends` returns true, if any.
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

/// With this many attempts, one place is checked and the other opened at least once, even if that happens only one time in ten.
const ASKED: usize = 60;

fn log_path(world: &World, target: &Target) -> Verdict {
    // What would be a log outside, at a separate path: a name resolving to it is enough.
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
    world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{}", target.id)], super::TIMEOUT);
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
    // A FIFO without a reader cannot be opened like this.
    let has_reader = |path: &PathBuf| {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW, Mode::empty());
        file.is_ok_and(|file| FileType::from_raw_mode(rustix::fs::fstat(file).unwrap().st_mode) == FileType::Fifo)
    };
    let (answered, over, waited) = (Mutex::new(Instant::now()), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Releases blocked openers after a while.
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

/// Waiting for a single lease takes 45 s.
fn soon() -> Duration {
    Duration::from_secs(20) * slowness()
}

/// Waits for something soon, without requiring it; returns after how long it came.
fn comes(is_there: impl FnMut() -> bool) -> Result<Duration, Duration> {
    comes_within(soon(), is_there)
}

fn comes_within(most: Duration, mut is_there: impl FnMut() -> bool) -> Result<Duration, Duration> {
    let begun = Instant::now();
    while !is_there() {
        if begun.elapsed() > most {
            return Err(begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    if begun.elapsed() > most { Err(begun.elapsed()) } else { Ok(begun.elapsed()) }
}

/// Another Pod starts and ends, with responses, while leases are held.
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
    eventually("it has leases", super::TIMEOUT, || {
        let said = world.logs(target, OPEN);
        if said.contains("leased: ") { Ok(()) } else { Err(said) }
    });
    // Links tell which files are shown: opening one would block, too.
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
    eventually("it has leases", super::TIMEOUT, || {
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
    // It is restarted repeatedly, with back-off of up to forty seconds by then; the leases are held for longer.
    let lease = "another process holds a lease on the file";
    let waits =
        comes_within(soon() * 3, || world.failed_to_start(OPEN, target.id).is_some_and(|why| why.contains(lease)));
    let seen = format!("message: {told:?}; another Pod: {ran:?}; the next start: {waits:?}; {}", of_c());
    world.delete("pods", OPEN, target.id);
    verdict(told.is_ok() && ran.is_ok() && waits.is_ok(), seen)
}

/// The shim would write outside of the log folder, whatever the link's target.
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
