//! Hostile images: users, folders, links, archives, bombs.

use serde_json::{Value, json};

use super::world::{BASELINE, End, NODE, RESTRICTED, World};
use super::{Attack, Expect, POD, Pod, Target, Try, Verdict, judge, verdict};
use crate::support::registry::Layout;

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "user-zero-zero",
        class: "image user",
        cves: &["CVE-2016-3697"],
        how: "`runAsNonRoot` with USER `00`",
        held: "the resolved uid decides",
        attempt: user("localhost/user-0:1", Expect::Refused("container has runAsNonRoot and image will run as root")),
    },
    Attack {
        id: "user-plus-zero",
        class: "image user",
        cves: &["CVE-2016-3697"],
        how: "`runAsNonRoot` with USER `+0`",
        held: "the resolved uid decides",
        attempt: user("localhost/user-1:1", Expect::Refused("container has runAsNonRoot and image will run as root")),
    },
    Attack {
        id: "user-zeros-group",
        class: "image user",
        cves: &["CVE-2016-3697"],
        how: "`runAsNonRoot` with USER `000:000`",
        held: "the resolved uid decides",
        attempt: user("localhost/user-2:1", Expect::Refused("container has runAsNonRoot and image will run as root")),
    },
    Attack {
        id: "user-minus-one",
        class: "image user",
        cves: &["CVE-2024-40635"],
        how: "`runAsNonRoot` with USER `4294967295`: setresuid(-1) changes nothing",
        held: "-1 is refused everywhere",
        attempt: user("localhost/user-3:1", Expect::Refused("uids and gids must be in range 0-2147483647")),
    },
    Attack {
        id: "user-overflow",
        class: "image user",
        cves: &["CVE-2024-40635"],
        how: "`runAsNonRoot` with USER `4294967296`: 0 in 32 bits",
        held: "what is no uid is refused",
        attempt: user("localhost/user-4:1", Expect::Refused("uids and gids must be in range 0-2147483647")),
    },
    Attack {
        id: "user-overflow-signed",
        class: "image user",
        cves: &["CVE-2024-40635"],
        how: "`runAsNonRoot` with USER `-4294967296`",
        held: "what is no uid is refused",
        attempt: user("localhost/user-5:1", Expect::Refused("uids and gids must be in range 0-2147483647")),
    },
    Attack {
        id: "user-named-zero",
        class: "image user",
        cves: &["CVE-2016-3697"],
        how: "`runAsNonRoot` with a USER whose line in the image's passwd has uid 0",
        held: "the resolved uid decides: a name is no proof, and is refused as upstream does",
        attempt: user("localhost/user-6:1", Expect::Refused("image has non-numeric user")),
    },
    Attack {
        id: "user-numeric-name",
        class: "image user",
        cves: &["CVE-2016-3697"],
        how: "`runAsNonRoot` with USER `1001`, which the image's passwd has as the name of uid 0",
        held: "a number is a uid, whatever names there are",
        attempt: user("localhost/user-7:1", Expect::Held),
    },
    Attack {
        id: "passwd-fifo",
        class: "image files",
        cves: &["CVE-2024-9676"],
        how: "`/etc/passwd` is a FIFO, a link to `/dev/zero`, a link out of the root; then exec and start",
        held: "the agent looks users up in the image's layers, where only a regular file is read, and no long one; the container's own file is nobody's to open",
        attempt: Try::Code(passwd_fifo),
    },
    Attack {
        id: "supplementary-groups",
        class: "image user",
        cves: &["CVE-2022-36109", "CVE-2023-25173", "CVE-2022-2995", "CVE-2022-2989", "CVE-2022-2990"],
        how: "a process whose primary group was taken away tries what `rwx---rwx` forbids to that group",
        held: "the primary group is among the supplementary ones, and `supplementalGroupsPolicy: Strict` adds none of the image",
        attempt: Try::Pod(Pod {
            container: "securityContext: {runAsUser: 1000, runAsGroup: 3000}",
            // Not by id(1), which also shows the primary group.
            script: "set -- $(grep ^Groups: /proc/self/status); case \" $* \" in *' 3000 '*) echo held: $*;; *) echo BREACH: $*;; esac",
            ..POD
        }),
    },
    Attack {
        id: "proc-link",
        class: "image files",
        cves: &[
            "CVE-2019-16884",
            "CVE-2019-19921",
            "CVE-2023-27561",
            "CVE-2023-28642",
            "CVE-2025-52881",
            "CVE-2025-54867",
            "CVE-2025-62596",
        ],
        how: "`/proc` of the image is a link to a folder with links to a file of the host, and to nothing masked",
        held: "procfs is mounted on a folder that is where it is said to be, and what must be procfs is proven to be",
        attempt: Try::Pod(Pod {
            image: "localhost/proc-link:1",
            script: "attack writable /proc/sys; attack empty /proc/kcore /proc/keys; attack climb @CANARY@",
            expect: Expect::Refused("must be mounted on ordinary directory"),
            ..POD
        }),
    },
    Attack {
        id: "dev-link",
        class: "image files",
        cves: &["CVE-2025-31133", "CVE-2024-45310"],
        how: "`/dev` of the image is a link up and out, to the folder of the canaries",
        held: "links are resolved inside the root: nothing is made on the host",
        attempt: Try::Pod(Pod {
            image: "localhost/dev-link:1",
            script: "attack climb @CANARY@; test -c /dev/null || echo BREACH: /dev is elsewhere: $(ls -l /dev)",
            expect: Expect::HeldOrRefused("error during container init"),
            ..POD
        }),
    },
    Attack {
        id: "mount-target-link",
        class: "image files",
        cves: &["CVE-2024-45310", "CVE-2021-30465", "CVE-2019-18837"],
        how: "a volume is mounted below a link of the image that leads up and out, to where the canaries are",
        held: "links are resolved inside the root (openat2 RESOLVE_IN_ROOT); nothing is made on the host",
        attempt: Try::Pod(Pod {
            image: "localhost/out-link:1",
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "volumeMounts: [{name: v, mountPath: '/out@FOLDER@/made-by-mount-target-link'}]",
            script: "attack climb @CANARY@",
            expect: Expect::Held,
            ..POD
        }),
    },
    Attack {
        id: "workdir-made-link",
        class: "image files",
        cves: &["CVE-2024-45310"],
        how: "a working directory that is not there, below a link of the image that leads up and out, to where the canaries are",
        held: "a missing working directory is made below the root, links resolved inside it (openat2 RESOLVE_IN_ROOT)",
        attempt: Try::Pod(Pod {
            image: "localhost/out-link:1",
            container: "workingDir: '/out@FOLDER@/made-by-workdir-made-link'",
            script: "echo held: $(pwd)",
            expect: Expect::HeldOrRefused("error during container init"),
            ..POD
        }),
    },
    Attack {
        id: "image-words",
        class: "image files",
        cves: &[],
        how: "an image whose labels, health check, shell and triggers are commands, for a shell and for \
              podman's runlabel, that touch a file of the host",
        held: "no word of an image is a command of the node's, or reaches a shell: the process's arguments are its own, by execve(2)",
        attempt: Try::Pod(Pod { image: "localhost/image-words:1", script: "echo held: $(env | wc -l)", ..POD }),
    },
    Attack {
        id: "shared-environment",
        class: "image files",
        cves: &["CVE-2021-21334"],
        how: "twelve containers of one image begin together, each with a variable of its own; each looks for another's",
        held: "each container's environment is made of its own manifest and the image's, and handed to its process alone",
        attempt: Try::Code(shared_environment),
    },
    Attack {
        id: "image-volume",
        class: "image files",
        cves: &["CVE-2022-23648"],
        how: "an image with VOLUME `/../../../../../tmp`",
        held: "no code makes, copies or mounts the volumes of images: there is none to be undone",
        attempt: Try::Pod(Pod {
            namespace: BASELINE,
            image: "localhost/image-volume:1",
            script: "attack climb @CANARY@; cat @CANARY@ /tmp/*/*; echo held: $(ls / | wc -l)",
            ..POD
        }),
    },
    Attack {
        id: "layer-traversal",
        class: "unpacking",
        cves: &["CVE-2018-8115", "CVE-2021-32760", "CVE-2025-47290"],
        how: "layers with `../` names, absolute names, entries below a link that leads out, hard links to files outside, chmod of a link's target",
        held: "a layer is unpacked below its own folder by openat2; a name that leaves it fails the layer",
        attempt: Try::Code(layer_traversal),
    },
    Attack {
        id: "layer-device",
        class: "unpacking",
        cves: &[],
        how: "a layer with nodes of the host's disks and memory",
        held: "the file systems of images are mounted nodev, or the cgroup's device program refuses them",
        attempt: Try::Pod(Pod {
            image: "localhost/layer-device:1",
            script: "
for node in /nodes/*; do
  if head -c 0 < $node 2>/tmp/why; then echo \"BREACH: $node opens\"; else echo \"held: $(tail -n 1 /tmp/why)\"; fi
done
echo held: $(ls /nodes 2>&1)",
            expect: Expect::Held,
            ..POD
        }),
    },
    Attack {
        id: "image-bomb",
        class: "exhaustion",
        cves: &["CVE-2017-14992"],
        how: "a layer of a few kB that unpacks to 1 GiB",
        held: "unpacking ends at a ratio, and where the disk would get full",
        attempt: Try::Code(image_bomb),
    },
    Attack {
        id: "digest-mismatch",
        class: "unpacking",
        cves: &["CVE-2021-41190"],
        how: "a manifest that is an index too; a layer that is not what its digest says",
        held: "bytes are verified by digest, and a document is of one media type alone",
        attempt: Try::Code(digest_mismatch),
    },
    Attack {
        id: "private-image",
        class: "other tenants' images",
        cves: &[],
        how: "an image that another tenant's credentials have pulled is used by tag, by digest, by id, by an init container and by an imported name's Pod that is changed to it, without pulling",
        held: "a record of each image says whose credentials its registry has accepted (KEP-2535); who shows none of them asks the registry, or is told that the image is not there",
        attempt: Try::Code(super::private_images::without_credentials),
    },
    Attack {
        id: "private-image-by-id",
        class: "other tenants' images",
        cves: &[],
        how: "a registry of one's own has a manifest whose config is that of another tenant's image, by its id alone, and whose layers there are not",
        held: "layers that are here are found by a config, and that comes from the registry whose image it is said to be",
        attempt: Try::Code(super::private_images::by_id),
    },
    Attack {
        id: "documents-as-layers",
        class: "other tenants' images",
        cves: &[],
        how: "a registry of one's own has a manifest that calls the config, then the manifest, of another tenant's image its layer: what cannot be unpacked is removed",
        held: "layers are downloaded to a place of their own, and only there is one removed; the other image is used without pulling",
        attempt: Try::Code(super::private_images::documents_as_layers),
    },
    Attack {
        id: "archive-link-manifest",
        class: "unpacking",
        cves: &[],
        how: "an OCI layout whose index names a true manifest, whose blob is a symbolic link, then a hard link, to another image's",
        held: "what an archive has below blobs/ is no link, and is verified by its digest where it is read",
        attempt: Try::Code(super::archive_links::manifest),
    },
    Attack {
        id: "archive-link-config",
        class: "other tenants' images",
        cves: &[],
        how: "an OCI layout with the manifest alone of another tenant's image, whose config and layers are links to files of the author's own, loaded before that image is pulled, and after it",
        held: "what an archive has below blobs/ is no link, and is verified where it is read; a config is its manifest's, the layers that came are the config's, and names come last",
        attempt: Try::Code(super::archive_links::config),
    },
    Attack {
        id: "volume-device",
        class: "image files",
        cves: &[],
        how: "nodes of the host's devices, made in an emptyDir and opened",
        held: "volumes are mounted nodev, or the device program refuses it",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}]",
            script: "
mknod /v/mem c 1 1; mknod /v/log c 1 11; mknod /v/loop b 7 0; mknod /v/tun c 10 200
for node in /v/*; do
  if head -c 0 < $node 2>/tmp/why; then echo \"BREACH: $node opens\"; else echo \"held: $(tail -n 1 /tmp/why)\"; fi
done",
            ..POD
        }),
    },
];

/// The USERs to try.
const USERS: &[&str] =
    &["00", "+0", "000:000", "4294967295", "4294967296", "-4294967296", "toor", "1001", "99999999999999999999"];

/// Names for root, some of which look like numbers.
const PASSWD: &str =
    "root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n1001:x:0:0::/:/bin/sh\n99999999999999999999:x:0:0::/:/bin/sh\n";

pub const fn user(image: &'static str, expect: Expect) -> Try {
    Try::Pod(Pod {
        namespace: RESTRICTED,
        image,
        script: "case $(id -u) in 0) echo BREACH: uid 0;; *) echo held: uid $(id -u);; esac",
        expect,
        ..POD
    })
}

/// One entry of a crafted layer.
pub enum Entry<'a> {
    File(&'a str, &'a str, u32),
    Link(&'a str, &'a str),
    Hard(&'a str, &'a str),
    Node(&'a str, tar::EntryType, u32, u32),
    Fifo(&'a str),
}

/// A tar with unmodified names: no library sanitizes them.
pub fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        let (name, kind, text, link, mode) = match entry {
            Entry::File(name, text, mode) => (name, tar::EntryType::Regular, *text, "", *mode),
            Entry::Link(name, to) => (name, tar::EntryType::Symlink, "", *to, 0o777),
            Entry::Hard(name, to) => (name, tar::EntryType::Link, "", *to, 0o644),
            Entry::Node(name, kind, ..) => (name, *kind, "", "", 0o666),
            Entry::Fifo(name) => (name, tar::EntryType::Fifo, "", "", 0o666),
        };
        let raw = header.as_old_mut();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(text.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        if let Entry::Node(_, _, major, minor) = entry {
            header.set_device_major(*major).unwrap();
            header.set_device_minor(*minor).unwrap();
        }
        header.set_cksum();
        tar.append(&header, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

fn shared_environment(world: &World, target: &Target) -> Verdict {
    let mut object = world.pod(target, &POD);
    let one = |n: usize| {
        json!({"name": format!("c{n}"), "image": super::world::IMAGE, "env": [{"name": format!("OWN_{n}"), "value": "secret"}],
            "command": ["sh", "-c", "test $(env | grep -c ^OWN_) = 1 && echo held: one || echo BREACH: $(env | grep ^OWN_)"]})
    };
    object["spec"]["containers"] = (0..12).map(one).collect();
    match world.run_to_the_end(&object) {
        End::Said(said) => match judge(target, &said) {
            Verdict::Held(held) if held.matches("held: one").count() != 12 => Verdict::Untried(said),
            verdict => verdict,
        },
        End::Refused(why) => Verdict::Untried(why),
    }
}

/// Loads the images needed by all entries.
pub fn load(world: &World) {
    use Entry::{File, Link, Node};
    load_workdirs(world);
    let out = "../../../../../../../..";
    let up = format!("{out}{}", world.folder().display());
    let words = &format!("$(touch {0}); `touch {0}`; touch {0}", world.folder().join("made-by-image-words").display());
    let passwd = File("etc/passwd", PASSWD, 0o644);
    let users = layer(&[passwd]);
    let links: Vec<(String, String)> =
        super::escapes::NUMBERS.map(|n| (format!("link-{n}"), format!("/proc/self/fd/{n}"))).collect();
    for (number, user) in USERS.iter().enumerate() {
        world.load(&format!("localhost/user-{number}:1"), std::slice::from_ref(&users), json!({"User": user}));
    }
    let images: &[(&str, Vec<u8>, Value)] = &[
        ("workdir-links", layer(&links.iter().map(|(name, to)| Link(name, to)).collect::<Vec<_>>()), json!({})),
        ("set-user-id", layer(&[]), json!({})),
        ("root-file", layer(&[File("root-only", "for root alone", 0o600)]), json!({})),
        (
            "console-link",
            layer(&[
                File("console-target", "", 0o666),
                Link("dev/console", "/proc/sysrq-trigger"),
                Link("dev/pts", "/proc/sys/kernel"),
                Link("dev/tty", "/proc/sysrq-trigger"),
            ]),
            json!({}),
        ),
        (
            "proc-link",
            layer(&[
                File("fake/self/attr/exec", "", 0o666),
                File("fake/sys/kernel/hostname", "", 0o666),
                Link("fake/self/oom_score_adj", &format!("{up}/proc-link")),
                Link("proc", "fake"),
            ]),
            json!({}),
        ),
        ("dev-link", layer(&[Link("dev", &up)]), json!({})),
        ("no-root", layer(&[File("etc/passwd", "web:x:1000:1000::/:/bin/sh\n", 0o644)]), json!({})),
        ("out-link", layer(&[Link("out", out)]), json!({})),
        (
            "image-words",
            layer(&[]),
            json!({"Labels": {"RUN": words, "INSTALL": words}, "StopSignal": "SIGTERM",
                "Healthcheck": {"Test": ["CMD-SHELL", words]}, "OnBuild": [words], "Shell": [words]}),
        ),
        ("image-volume", layer(&[]), json!({"Volumes": {"/../../../../../tmp": {}}})),
        (
            "layer-device",
            layer(&[
                Node("nodes/mem", tar::EntryType::Char, 1, 1),
                Node("nodes/log", tar::EntryType::Char, 1, 11),
                Node("nodes/loop", tar::EntryType::Block, 7, 0),
            ]),
            json!({}),
        ),
    ];
    for (name, layer, config) in images.iter().chain(&super::hostile_images::images(&up)) {
        let layer = if *name == "set-user-id" { set_user_id() } else { layer.clone() };
        world.load(&format!("localhost/{name}:1"), &[layer], config.clone());
    }
}

/// An image for each number that a descriptor may have, with it as WORKDIR; all in one archive.
fn load_workdirs(world: &World) {
    let mut layout = Layout::new();
    let layers = [std::fs::read(crate::support::node::busybox_tar()).unwrap(), super::world::tool_layer().to_vec()];
    for n in super::escapes::NUMBERS {
        let config = json!({"Env": ["PATH=/bin"], "WorkingDir": format!("/proc/self/fd/{n}")});
        let image = layout.image(super::world::architecture(), &layers, config);
        layout.tag(image, &format!("localhost/workdir-{n}:1"));
    }
    let answer = world.load_layout(&layout);
    assert_eq!(answer.code, 0, "{}", answer.all());
}

/// The tool with the set-user-ID bit.
fn set_user_id() -> Vec<u8> {
    let tool = super::world::tool();
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o4755);
    header.set_size(tool.len() as u64);
    header.set_uid(0);
    header.set_gid(0);
    tar.append_data(&mut header, "bin/suid", tool).unwrap();
    tar.into_inner().unwrap()
}

fn passwd_fifo(world: &World, target: &Target) -> Verdict {
    // HOME of its root is unset: it is looked up inside.
    let pod = Pod { image: "localhost/no-root:1", script: "sleep 1000", ..POD };
    if let Err(why) = world.start_pod(target, &pod) {
        return Verdict::Untried(why);
    }
    let canary = target.canary.display();
    for spoil in [
        "rm -f /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group".to_owned(),
        "rm -f /etc/passwd /etc/group; ln -s /dev/zero /etc/passwd; ln -s /dev/zero /etc/group".to_owned(),
        format!("rm -f /etc/passwd; ln -s /proc/self/fd/9/../../../../../..{canary} /etc/passwd"),
    ] {
        let home = ["sh", "-c", "echo held: $HOME"];
        world.inside(target, pod.namespace, &["sh", "-c", &spoil]);
        let begin = std::time::Instant::now();
        let said = world.node.run(&[&["-n", pod.namespace, "exec", target.id, "--"], &home[..]].concat());
        if begin.elapsed() > std::time::Duration::from_secs(10) * crate::support::slowness() {
            return Verdict::Breach(format!("after {spoil:?} exec hangs"));
        }
        if said.all().contains(&target.text) || said.code != 0 {
            return Verdict::Breach(format!("after {spoil:?}: {}", said.all()));
        }
    }
    // And an image containing one.
    world.load("localhost/passwd-fifo:1", &[layer(&[Entry::Fifo("etc/passwd")])], json!({"User": "web"}));
    let mut object =
        world.pod(target, &Pod { image: "localhost/passwd-fifo:1", script: "echo held: it started", ..POD });
    object["metadata"]["name"] = json!(format!("{}-start", target.id));
    let begin = std::time::Instant::now();
    let end = world.run_to_the_end(&object);
    let why = match end {
        super::world::End::Said(said) | super::world::End::Refused(said) => said,
    };
    verdict(begin.elapsed() < std::time::Duration::from_secs(15) * crate::support::slowness(), why)
}

/// Loads an image with this upper layer; returns whether it was refused, and what is on the host now.
fn load_hostile(world: &World, name: &str, entries: &[Entry<'_>]) -> (bool, String) {
    let mut layout = Layout::new();
    let image = layout.image("amd64", &[layer(entries)], json!({}));
    layout.tag(image, &format!("localhost/{name}:1"));
    let answer = world.load_layout(&layout);
    (answer.code != 0, answer.all())
}

fn layer_traversal(world: &World, target: &Target) -> Verdict {
    let canary = target.canary.display().to_string();
    let out = format!("../../../../../../../../../../..{canary}");
    let folder = world.folder().display().to_string();
    let tries: &[(&str, &[Entry<'_>])] = &[
        ("up", &[Entry::File(&out, "overwritten", 0o644)]),
        ("absolute", &[Entry::File(&canary, "overwritten", 0o644)]),
        ("below-a-link", &[Entry::Link("x", &folder), Entry::File("x/layer-traversal", "overwritten", 0o644)]),
        (
            "below-a-parent",
            &[Entry::Link("y", "../../../../../../../../.."), Entry::File(&format!("y{canary}"), "overwritten", 0o644)],
        ),
        ("hard-link", &[Entry::Hard("h", &out), Entry::File("h", "overwritten", 0o644)]),
        ("hard-link-absolute", &[Entry::Hard("h", &canary), Entry::File("h", "overwritten", 0o644)]),
        ("through-a-link", &[Entry::Link("l", &canary), Entry::File("l", "overwritten", 0o666)]),
        ("whiteout", &[Entry::File(&format!("../../../../../../../../..{folder}/.wh.layer-traversal"), "", 0o644)]),
    ];
    let (refused, said) = load_hostile(world, "traversal-none", &[Entry::File("a", "harmless", 0o644)]);
    if refused {
        return Verdict::Untried(format!("not even a good image is loaded: {said}"));
    }
    let mode = |path: &std::path::Path| std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).unwrap());
    let before = mode(&target.canary);
    let mut seen = Vec::new();
    for (name, entries) in tries {
        let (refused, said) = load_hostile(world, &format!("traversal-{name}"), entries);
        if std::fs::read_to_string(&target.canary).ok().as_ref() != Some(&target.text) || mode(&target.canary) != before
        {
            return Verdict::Breach(format!("{name}: the canary was changed: {said}"));
        }
        seen.push(format!("{name}: {}", if refused { "refused" } else { "harmless" }));
    }
    Verdict::Held(seen.join(", "))
}

fn image_bomb(world: &World, _: &Target) -> Verdict {
    let dir = tempfile::tempdir().unwrap();
    let bomb = dir.path().join("bomb.tar.zst");
    let make = "truncate -s 1G zeros && tar -cf - zeros | zstd -q -o bomb.tar.zst && rm zeros";
    crate::support::registry::run(std::process::Command::new("sh").args(["-c", make]).current_dir(dir.path()));
    let size = std::fs::metadata(&bomb).unwrap().len();
    let answer = world.node.run(&["image", "--node", NODE, "import", bomb.to_str().unwrap(), "localhost/bomb:1"]);
    // What was unpacked must not stay, whatever happened.
    if answer.code == 0 {
        world.node.run(&["image", "--node", NODE, "rm", "localhost/bomb:1"]);
    }
    match answer.all() {
        why if answer.code != 0 && why.contains("unpack") => Verdict::Held(format!("{size} bytes: {why}")),
        why if answer.code != 0 => Verdict::Untried(why),
        why => Verdict::Breach(format!("{size} bytes: {why}")),
    }
}

fn digest_mismatch(world: &World, _: &Target) -> Verdict {
    // A layer that was exchanged after its digest was computed.
    let mut layout = Layout::new();
    let good = layer(&[Entry::File("a", "what was signed", 0o644)]);
    let image = layout.image("amd64", std::slice::from_ref(&good), json!({}));
    layout.tag(image, "localhost/exchanged:1");
    let blob = layout.dir.path().join("blobs").join(crate::support::registry::digest(&good).replace(':', "/"));
    std::fs::write(blob, layer(&[Entry::File("a", "what was exchng", 0o644)])).unwrap();
    let exchanged = world.load_layout(&layout);
    verdict(exchanged.all().contains("digest") || exchanged.all().contains("sha256"), exchanged.all())
}
