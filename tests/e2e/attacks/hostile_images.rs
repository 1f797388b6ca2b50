//! Image metadata: variables, labels, working directories, users; and the effects of its `/etc`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::images::{Entry, layer};
use super::world::{End, OPEN, World};
use super::{Attack, Expect, POD, Pod, Target, Try, Verdict, judge, verdict};
use crate::support::{
    registry::{Liar, Lie, digest},
    slowness,
};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "image-environment",
        class: "environment",
        cves: &["CVE-2026-57231"],
        how: "an image whose Env has the names of all variables of the agent, without values",
        held: "a variable without a value is none; nothing of a container's environment comes from the node's processes",
        attempt: Try::Code(image_environment),
    },
    Attack {
        id: "environment-of-another",
        class: "environment",
        cves: &["CVE-2021-21334", "CVE-2020-14370"],
        how: "sixteen containers of one image start side by side, each with variables of its own, and print theirs",
        held: "each environment is made anew of the image's",
        attempt: Try::Code(environment_of_another),
    },
    Attack {
        id: "image-labels",
        class: "annotations",
        cves: &["CVE-2026-53488", "CVE-2026-53492", "CVE-2023-6476", "CVE-2024-3154"],
        how: "labels of an image and annotations of a Pod that other runtimes act on: a program to log to, hooks, devices (CDI), writable cgroups, properties of units, users",
        held: "labels of images are not looked at, and of a Pod's annotations none is an order to the runtime",
        attempt: Try::Code(image_labels),
    },
    Attack {
        id: "ptmx",
        class: "image files",
        cves: &["CVE-2026-41579", "CVE-2026-47766"],
        how: "`/dev` of the image is a link up and out, to a folder of the host that has a file `ptmx`, which others' runtimes take away and make a link of, beside links of their own",
        held: "links are resolved inside the root; what a container has in /dev is made in a file system of its own",
        attempt: Try::Pod(Pod {
            image: "localhost/dev-link:1",
            script: "attack climb @CANARY@; test -c /dev/null || echo BREACH: /dev is elsewhere: $(ls -l /dev)",
            expect: Expect::HeldOrRefused("error during container init"),
            ..POD
        }),
    },
    Attack {
        id: "informational-answers",
        class: "exhaustion",
        cves: &[],
        how: "a registry of one's own answers with 103 Early Hints, again and again, and never with anything else",
        held: "few informational answers come before an answer, and its head is all here in time; else the connection ends, and the pull with it",
        attempt: Try::Code(informational_answers),
    },
    Attack {
        id: "digest-path",
        class: "unpacking",
        cves: &["CVE-2024-3727"],
        how: "a registry of one's own has manifests whose config, layer and platform's manifest have paths for digests, to a file of the host and to what else the registry answers",
        held: "a digest is sha256 and 64 digits before anything is asked for by it, or a file is called so",
        attempt: Try::Code(digest_path),
    },
    Attack {
        id: "workdir-made",
        class: "image files",
        cves: &["CVE-2026-55686"],
        how: "a missing WORKDIR below a link of the image that leads up and out, to where the canaries are",
        held: "it is made where the link leads inside the root (openat2 RESOLVE_IN_ROOT)",
        attempt: Try::Pod(Pod {
            image: "localhost/out-link:1",
            container: "workingDir: '/out@FOLDER@/made-by-workdir-made'",
            script: "pwd; attack climb @CANARY@",
            ..POD
        }),
    },
    Attack {
        id: "workdir-made-absolute",
        class: "image files",
        cves: &["CVE-2026-55686"],
        how: "the same by an absolute link, and by the WORKDIR of the image",
        held: "as above: there is nothing that the link leads to, and no file is made of it",
        attempt: Try::Pod(Pod {
            image: "localhost/workdir-made:1",
            script: "pwd; attack climb @CANARY@",
            expect: Expect::Refused("not a directory"),
            ..POD
        }),
    },
    Attack {
        id: "workdir-made-magic",
        class: "image files",
        cves: &["CVE-2026-55686", "CVE-2024-21626"],
        how: "the same by a link to `/proc/self/root`",
        held: "links of procfs are not followed",
        attempt: Try::Pod(Pod {
            image: "localhost/magic-link:1",
            container: "workingDir: '/magic@FOLDER@/made-by-workdir-made-magic'",
            script: "pwd; attack climb @CANARY@",
            expect: Expect::Refused("mkdir"),
            ..POD
        }),
    },
    Attack {
        id: "passwd-huge",
        class: "exhaustion",
        cves: &["CVE-2025-4437", "CVE-2026-47262"],
        how: "an image with a passwd file of 32 MiB, and a user that it does not have",
        held: "no more of it is read than an honest one has",
        attempt: Try::Code(passwd_huge),
    },
    Attack {
        id: "user-beyond-numbers",
        class: "image user",
        cves: &["CVE-2026-46680"],
        how: "`runAsNonRoot` with USER `99999999999999999999`, which the image's passwd has as the name of uid 0",
        held: "what is no number of an id is a name, and a name is no proof",
        attempt: super::images::user("localhost/user-8:1", Expect::Refused("image has non-numeric user")),
    },
    Attack {
        id: "strict-groups",
        class: "image user",
        cves: &["CVE-2022-2995"],
        how: "`supplementalGroupsPolicy: Strict` with an image whose group file has its user in the groups of root, disk and shadow",
        held: "the groups are those that the manifest names",
        attempt: Try::Pod(Pod {
            image: "localhost/groups:1",
            spec: "securityContext: {runAsUser: 1000, runAsGroup: 3000, supplementalGroupsPolicy: Strict, supplementalGroups: [4000]}",
            script: "set -- $(grep ^Groups: /proc/self/status); case \"$*\" in 'Groups: 3000 4000') echo held: $*;; *) echo BREACH: $*;; esac",
            ..POD
        }),
    },
];

/// Images of the entries here: name, layer, config.
pub fn images(up: &str) -> Vec<(&'static str, Vec<u8>, Value)> {
    use Entry::{File, Link};
    let folder = up.trim_start_matches("../");
    let passwd = "root:x:0:0::/:/bin/sh\nweb:x:1000:1000::/:/bin/sh\n";
    let group = "root:x:0:web\ndisk:x:6:web\nshadow:x:42:web\nweb:x:1000:\n";
    vec![
        (
            "workdir-made",
            layer(&[Link("out", &format!("/{folder}"))]),
            json!({"WorkingDir": "/out/made-by-workdir-made-absolute"}),
        ),
        ("magic-link", layer(&[Link("magic", "/proc/self/root")]), json!({})),
        ("groups", layer(&[File("etc/passwd", passwd, 0o644), File("etc/group", group, 0o644)]), json!({})),
        (
            "labels",
            layer(&[]),
            json!({"Labels": {
                "containerd.io/restart.status": "running",
                "containerd.io/restart.loguri": format!("binary:///bin/sh?-c=touch%20/{folder}/made-by-image-labels"),
                "io.containerd.image.host-binary": "/bin/sh",
                "io.kubernetes.container.hash": "0",
                "io.kubernetes.pod.uid": "../../..",
                "podwright/journal": "/made",
            }}),
        ),
    ]
}

fn image_environment(world: &World, target: &Target) -> Verdict {
    let environ = std::fs::read(format!("/proc/{}/environ", world.node.pid())).unwrap();
    let environ = String::from_utf8_lossy(&environ).into_owned();
    // What every container has reveals nothing.
    let pairs = environ.split('\0').filter_map(|pair| pair.split_once('='));
    let own: Vec<(&str, &str)> = pairs
        .filter(|(name, value)| value.len() > 3 && !matches!(*name, "PATH" | "HOME" | "TERM" | "HOSTNAME"))
        .collect();
    if own.is_empty() {
        return Verdict::Untried("the agent has no variables".into());
    }
    let names: Vec<&str> = own.iter().map(|(name, _)| *name).chain(["HOME"]).collect();
    world.load("localhost/environment:1", &[], json!({"Env": names}));
    let pod =
        world.pod(target, &Pod { image: "localhost/environment:1", script: "env; echo held: $(env | wc -l)", ..POD });
    match world.run_to_the_end(&pod) {
        End::Refused(why) => Verdict::Untried(why),
        End::Said(said) => match own.iter().find(|(name, value)| said.contains(&format!("{name}={value}"))) {
            Some((name, _)) => Verdict::Breach(format!("{name} is the agent's own")),
            None => judge(target, &said),
        },
    }
}

fn environment_of_another(world: &World, target: &Target) -> Verdict {
    const COUNT: usize = 16;
    let mut object = world.pod(target, &Pod { script: "env", ..POD });
    let template = object["spec"]["containers"][0].clone();
    let containers = (0..COUNT).map(|n| {
        let mut container = template.clone();
        container["name"] = json!(format!("c{n}"));
        // A varying number of variables: appending to shared lists would overwrite each other's end.
        let variables = (0..=n % 4).map(|i| json!({"name": format!("MARK_{n}_{i}"), "value": format!("mark of {n}")}));
        container["env"] = variables.collect();
        container
    });
    object["spec"]["containers"] = containers.collect();
    if let Err(why) = world.create("pods", OPEN, object) {
        return Verdict::Untried(why);
    }
    let end = world.wait_end(OPEN, target.id);
    let mut seen = 0;
    for n in 0..COUNT {
        let said = world.node.run(&["-n", OPEN, "logs", target.id, "-c", &format!("c{n}")]).out;
        let marks: Vec<&str> = said.lines().filter(|line| line.starts_with("MARK_")).collect();
        if marks
            .iter()
            .any(|mark| !mark.starts_with(&format!("MARK_{n}_")) || !mark.ends_with(&format!("=mark of {n}")))
        {
            return Verdict::Breach(format!("c{n} has {marks:?}"));
        }
        seen += marks.len();
    }
    world.delete("pods", OPEN, target.id);
    match (seen, end) {
        (40, _) => Verdict::Held(format!("{seen} variables, each where it belongs")),
        (_, End::Said(said) | End::Refused(said)) => {
            Verdict::Untried(format!("{seen} of 40 variables were seen: {said}"))
        }
    }
}

fn image_labels(world: &World, target: &Target) -> Verdict {
    let script = "
attack devices; attack writable /sys/fs/cgroup; attack climb @CANARY@
ls /dev/kmsg /dev/fuse /dev/kvm 2>&1 | grep -v 'No such' | sed 's/^/BREACH: /'
set -- $(cat /proc/self/uid_map); test \"$3\" -gt 65535 || echo held: a map of its own";
    let mut pod = world.pod(target, &Pod { image: "localhost/labels:1", script, ..POD });
    pod["metadata"]["annotations"] = json!({
        "io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw": "true",
        "io.kubernetes.cri-o.Devices": "/dev/kmsg,/dev/fuse",
        "io.kubernetes.cri-o.userns-mode": "auto:size=65536",
        "io.kubernetes.cri-o.UnifiedCgroup.c": "memory.max=max",
        "io.kubernetes.cri-o.LinkLogs": "../../../..",
        "io.containers.trace-syscall": "of:/tmp/x",
        "org.systemd.property.ExecStartPre": format!("'touch {}/made-by-image-labels'", world.folder().display()),
        "cdi.k8s.io/all": "vendor.com/device=kmsg",
        "run.oci.hooks.stdout": format!("{}/made-by-image-labels", world.folder().display()),
        "run.oci.keep_original_groups": "1",
        "run.oci.handler": "krun",
        "krun.config": "/dev/kvm",
        "podwright/journal": format!("{}/made-by-image-labels", world.folder().display()),
        "kubernetes.io/config.source": "file",
    });
    match world.run_to_the_end(&pod) {
        End::Said(said) => judge(target, &said),
        End::Refused(why) => Verdict::Untried(why),
    }
}

fn passwd_huge(world: &World, target: &Target) -> Verdict {
    let line = "somebody:x:70000:70000:a line that is like others:/:/bin/sh\n";
    let text = line.repeat((32 << 20) / line.len());
    world.load("localhost/passwd-huge:1", &[layer(&[Entry::File("etc/passwd", &text, 0o644)])], json!({}));
    drop(text);
    let (before, over) = (super::escapes::memory(world), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let mut most = before;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                most = most.max(super::escapes::memory(world));
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            most
        });
        let pod = Pod { image: "localhost/passwd-huge:1", container: "securityContext: {runAsUser: 4242}", ..POD };
        let ended = world.run_to_the_end(&world.pod(target, &Pod { script: "echo held: $(id -u)", ..pod }));
        let (End::Said(said) | End::Refused(said)) = ended;
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let most = watched.join().expect("it only looks");
        let seen = format!("{before} MiB before, {most} MiB at most: {said}");
        match said.contains("held: 4242") || said.contains("is larger than") {
            true => verdict(most < before + 40, seen),
            false => Verdict::Untried(seen),
        }
    })
}

fn informational_answers(world: &World, target: &Target) -> Verdict {
    let hints = b"HTTP/1.1 103 Early Hints\r\nlink: </v2/>\r\n\r\n".to_vec();
    let registry = Liar::start(move |_| Lie { pieces: vec![hints.clone()], endless: true, ..Lie::default() });
    let mut object = world.pod(target, &POD);
    object["spec"]["containers"][0]["image"] = json!(format!("{}/own:1", registry.addr));
    if let Err(why) = world.create("pods", OPEN, object) {
        return Verdict::Untried(why);
    }
    let until = Instant::now() + Duration::from_secs(30) * slowness();
    let waits = || {
        let pod = world.get("pods", OPEN, target.id).unwrap_or_default();
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned()
    };
    let mut said = waits();
    while !said.contains(&registry.addr) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(200));
        said = waits();
    }
    world.delete("pods", OPEN, target.id);
    match (registry.seen("/v2/"), said.contains("informational answers")) {
        (0, _) => Verdict::Untried(format!("it is not asked: {said}")),
        (_, held) => verdict(held, format!("it is asked; the pull: {said:?}")),
    }
}

fn digest_path(world: &World, target: &Target) -> Verdict {
    let config = json!({"architecture": super::world::architecture(), "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(b"layer")]}});
    let config = config.to_string();
    // Correct sizes for real items.
    let described = |kind: &str, digest: &str| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": config.len()});
    let (honest, layer) = (digest(config.as_bytes()), digest(b"layer"));
    let mut seen = Vec::new();
    for path in [format!("sha256:../../../../../../../..{}", target.canary.display()), "sha256:../../../secrets".into()]
    {
        let manifest = |config: &str, layer: &str| json!({"schemaVersion": 2, "config": described("config.v1+json", config), "layers": [described("layer.v1.tar", layer)]});
        let mut platform = described("manifest.v1+json", &path);
        platform["platform"] = json!({"os": "linux", "architecture": super::world::architecture()});
        let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [platform]});
        for (number, document) in [manifest(&path, &layer), manifest(&honest, &path), index].into_iter().enumerate() {
            let (document, config, text) = (document.to_string(), config.clone(), target.text.clone());
            let registry = Liar::start(move |head| match () {
                () if head.contains("/manifests/1") => Lie::answer("200 OK", "", document.as_bytes()),
                () if head.contains(&digest(config.as_bytes())) => Lie::answer("200 OK", "", config.as_bytes()),
                () if head.contains("secrets") => Lie::answer("200 OK", "", text.as_bytes()),
                () => Lie::answer("200 OK", "", b"{}"),
            });
            let mut object = world.pod(target, &POD);
            object["spec"]["containers"][0]["image"] = json!(format!("{}/own:1", registry.addr));
            let end = world.run_to_the_end(&object);
            // An index is parsed by a library, which requires digests too.
            let is_about =
                |why: &str| ["unsupported digest", "Invalid encoded value"].iter().any(|part| why.contains(part));
            let asked = ["../", "..%2f", "secrets", target.id].iter().map(|part| registry.seen(part)).sum::<usize>();
            match end {
                End::Refused(why) if asked == 0 && is_about(&why) => seen.push(format!("{number}: {why}")),
                End::Refused(why) if asked == 0 => return Verdict::Untried(format!("{number}: {why}")),
                End::Refused(why) | End::Said(why) => {
                    return Verdict::Breach(format!("{number}: {asked} requests: {why}"));
                }
            }
        }
    }
    Verdict::Held(seen.join("; "))
}
