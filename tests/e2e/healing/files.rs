//! Damage to the node's files and mounts: records, volumes, logs, the API's socket, images.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{Row, TIMEOUT, World, timely};
use crate::support::{
    contains, eventually,
    registry::{Registry, run},
};

/// Ways to damage a file.
const RUINS: [(&str, fn(&Path)); 3] = [
    ("removed", |path| fs::remove_file(path).unwrap()),
    ("truncated", |path| {
        let length = fs::metadata(path).unwrap().len();
        fs::File::options().write(true).open(path).unwrap().set_len(length / 2).unwrap();
    }),
    ("garbage", |path| fs::write(path, b"\0\xff\xfe garbage").unwrap()),
];

fn unmount(path: &Path) {
    nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).unwrap();
}

fn is_mounted(path: &Path) -> Result<(), String> {
    contains(&fs::read_to_string("/proc/self/mountinfo").unwrap(), &format!(" {} ", path.display()))
}

/// Records that the agent or the runtime reads at their next start.
fn records(world: &World) -> Vec<Row> {
    let uid = world.uid.clone();
    let of_pod = |name: &str| world.find(|path| path.ends_with(name) && path.to_string_lossy().contains(&uid));
    let ipam = world.node.dir.path().join("network/ipam.json");
    let files =
        [("sandbox.json", of_pod("sandbox.json")), ("container.json", of_pod("container.json")), ("ipam.json", ipam)];
    let secret = of_pod("secret");
    let sound = fs::read(&secret).unwrap();
    let socket = world.find(|path| path.ends_with("s") && path.to_string_lossy().contains(&uid));
    let mut rows = Vec::new();
    for (how, ruin) in RUINS {
        let (damaged, path, sound) = (secret.clone(), secret.clone(), sound.clone());
        let repaired = move |_: &World| match fs::read(&path) {
            Ok(found) if found == sound => Ok(()),
            found => Err(format!("{found:?}")),
        };
        rows.push(Row::new(format!("secret of a shim, {how}"), move |_| ruin(&damaged), repaired));
    }
    let damaged = socket.clone();
    rows.push(Row::new(
        "socket of a shim, removed",
        move |_| fs::remove_file(&damaged).unwrap(),
        move |_| std::os::unix::net::UnixStream::connect(&socket).map(drop).map_err(|e| e.to_string()),
    ));
    for (name, path) in files {
        for (how, ruin) in RUINS {
            let (damaged, uid) = (path.clone(), uid.clone());
            let path = path.clone();
            rows.push(Row::new(
                format!("{name}, {how}"),
                move |_| ruin(&damaged),
                move |_| {
                    let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
                    serde_json::from_str::<serde_json::Value>(&text).map_err(|e| e.to_string())?;
                    contains(&text, &uid)
                },
            ));
        }
    }
    rows
}

/// The credentials of the server and its administrator.
fn certificates(world: &World) -> Vec<Row> {
    let mut rows = Vec::new();
    for name in ["pki/ca.crt", "pki/ca.key", "pki/server.crt", "pki/admin.key", "admin.kubeconfig"] {
        let path = world.node.dir.path().join(name);
        let own = fs::read(&path).unwrap();
        for (how, ruin) in RUINS {
            let (damaged, path, own) = (path.clone(), path.clone(), own.clone());
            let repaired = move |_: &World| match fs::read(&path) {
                Ok(found) if found == own => Ok(()),
                found => Err(format!("{found:?}")),
            };
            rows.push(Row::new(format!("{name}, {how}"), move |_| ruin(&damaged), repaired));
        }
    }
    rows
}

/// Files visible to containers.
fn volumes(world: &World) -> Vec<Row> {
    let conf = world.find(|path| path.ends_with("volumes/conf"));
    let sealed = world.find(|path| path.ends_with("sealed/word")).parent().unwrap().to_owned();
    let damage: Vec<(&str, PathBuf, fn(&Path))> = vec![
        ("ConfigMap, other content", conf.clone(), |volume| fs::write(volume.join("..data/one"), "other").unwrap()),
        ("ConfigMap, a file gone", conf.clone(), |volume| fs::remove_file(volume.join("..data/one")).unwrap()),
        ("ConfigMap, a link gone", conf.clone(), |volume| fs::remove_file(volume.join("one")).unwrap()),
        ("ConfigMap, ..data gone", conf.clone(), |volume| fs::remove_file(volume.join("..data")).unwrap()),
        ("ConfigMap, ..data elsewhere", conf, |volume| {
            fs::remove_file(volume.join("..data")).unwrap();
            std::os::unix::fs::symlink("/nowhere", volume.join("..data")).unwrap();
        }),
        ("Secret, other content", sealed.clone(), |volume| fs::write(volume.join("..data/word"), "other").unwrap()),
        ("Secret, a link gone", sealed.clone(), |volume| fs::remove_file(volume.join("word")).unwrap()),
        ("Secret, ..data gone", sealed, |volume| fs::remove_file(volume.join("..data")).unwrap()),
    ];
    let rows = damage.into_iter().map(|(what, volume, damage)| Row::new(what, move |_| damage(&volume), shown));
    rows.collect()
}

/// What the container sees under its keys.
fn shown(world: &World) -> Result<(), String> {
    contains(&world.in_pod("/conf/one")?, "first")?;
    contains(&world.in_pod("/conf/two")?, "second")?;
    contains(&world.in_pod("/sealed/word")?, "hidden")
}

/// Mounts are restored: running containers and later ones share them again.
fn mounts(world: &World) -> Vec<Row> {
    let tmpfs = world.node.dir.path().join("volumes");
    let of_pod = |path: &Path| path.to_string_lossy().contains(&world.uid);
    let shm = world.find(|path| path.ends_with("shm") && path.with_file_name("s").exists() && of_pod(path));
    let memory = world.find(|path| path.ends_with("volumes/memory"));
    let mut rows = Vec::new();
    for path in [tmpfs, shm, memory] {
        let (sign, at) = (path.join(".sign"), path.clone());
        fs::write(&sign, "kept").unwrap();
        rows.push(Row::new(
            format!("mount of {}", path.file_name().unwrap().display()),
            move |_| unmount(&at),
            move |_| {
                is_mounted(&path)?;
                fs::read_to_string(&sign).map(drop).map_err(|e| e.to_string())
            },
        ));
    }
    for (what, link) in [
        ("link to a claim's volume, gone", world.find(|path| path.ends_with("volumes/claimed"))),
        ("link that says who has a claim's volume, gone", taken(world, "taken")),
        ("link that says who writes a claim's volume, gone", taken(world, "written")),
    ] {
        let (own, removed) = (fs::read_link(&link).unwrap(), link.clone());
        rows.push(Row::new(
            what,
            move |_| fs::remove_file(&removed).unwrap(),
            move |_| match fs::read_link(&link) {
                Ok(found) if found == own => Ok(()),
                other => Err(format!("{other:?}")),
            },
        ));
    }
    rows.push(Row::new(
        "mount of the node's namespace",
        |world| {
            let netns = world.node.netns();
            // It must not disappear with its last name.
            let held = fs::File::open(&netns).unwrap();
            unmount(&netns);
            // As long as the damage is visible; the Pods keep it anyway.
            drop(held);
        },
        |world| is_mounted(&world.node.netns()),
    ));
    rows
}

/// The only link in one of the Pod's folders.
fn taken(world: &World, kind: &str) -> PathBuf {
    let folder = world.find(|path| path.ends_with(kind) && path.to_string_lossy().contains(&world.uid));
    fs::read_dir(folder).unwrap().next().expect("the Pod has a claim").unwrap().path()
}

fn others(world: &World) -> Vec<Row> {
    let log = world.find(|path| path.ends_with("c/0.log") && path.to_string_lossy().contains("_web_"));
    let folder = log.parent().unwrap().to_owned();
    let of_pod = folder.parent().unwrap().to_owned();
    let written = log.clone();
    let connects = |world: &World| {
        std::os::unix::net::UnixStream::connect(world.node.socket()).map(drop).map_err(|e| e.to_string())
    };
    let says = move |_: &World| contains(&fs::read_to_string(&written).map_err(|e| e.to_string())?, "UTC");
    vec![
        Row::new("api.sock, removed", |world| fs::remove_file(world.node.socket()).unwrap(), connects),
        Row::new(
            "api.sock, a file in its place",
            |world| {
                fs::remove_file(world.node.socket()).unwrap();
                fs::write(world.node.socket(), "").unwrap();
            },
            connects,
        ),
        Row::new("log", move |_| fs::remove_file(&log).unwrap(), says.clone()),
        Row::new("folder of a container's logs", move |_| fs::remove_dir_all(&folder).unwrap(), says.clone()),
        Row::new("folder of a Pod's logs", move |_| fs::remove_dir_all(&of_pod).unwrap(), says),
    ]
}

#[test]
fn files_and_mounts_are_mended() {
    let world = World::new();
    let rows = [records, certificates, volumes, mounts, others].iter().flat_map(|rows| rows(&world)).collect();
    world.heals(rows);
    // A Secret that changes now reaches the long-running container.
    world.node.apply("{apiVersion: v1, kind: Secret, metadata: {name: sealed}, stringData: {word: changed}}");
    eventually("the Secret changes", TIMEOUT * 4, || contains(&world.in_pod("/sealed/word")?, "changed"));
    contains(&world.node.run(&["logs", "web"]).all(), "UTC").unwrap();
    world.end(&["NodeRestored"]);
}

/// An image missing a layer or a document is pulled again by the next Pod. Its containers keep their open files, which is reported;
/// they are not restarted.
#[test]
fn an_image_that_lost_its_layers_is_pulled_again() {
    let registry = Registry::start();
    registry.push(&crate::images::image("whole"), "it", "app:1");
    let world = World::new();
    let image = format!("{}/app:1", registry.addr);
    let pod = |name: &str| {
        world.node.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 0, \
             containers: [{{name: c, image: '{image}', imagePullPolicy: IfNotPresent}}]}}}}"
        ));
        world.node.wait("condition=Ready", &[&format!("pod/{name}")], TIMEOUT);
        eventually("it says its word", TIMEOUT, || contains(&world.node.run(&["logs", name]).out, "whole"));
    };
    pod("first");
    let pulls = registry.gets("/v2/app/");
    pod("second");
    assert_eq!(registry.gets("/v2/app/"), pulls, "it is there");
    let layer = || world.find(|path| path.ends_with("fs/word")).parent().unwrap().parent().unwrap().to_owned();
    let remove = |path: &Path| run(std::process::Command::new("rm").arg("-r").arg(path));
    let manifest = registry.manifest_digest("app", "1");
    let blob = world.find(|path| path.to_string_lossy().ends_with(manifest.trim_start_matches("sha256:")));

    // While containers use it.
    let of_first = || world.node.field(&["pod", "first"], ".status.containerStatuses[0]['containerID','restartCount']");
    let (container, begun) = (of_first(), Instant::now());
    let lost = layer();
    let shown = lost.display().to_string();
    remove(&lost);
    eventually("it is told", TIMEOUT, || {
        let told = world.node.ok(&["get", "events", "-A"]);
        told.lines().find(|line| line.contains("ImageDamaged") && line.contains(&shown)).map(drop).ok_or(told)
    });
    timely("layer of an image in use, told", begun.elapsed());
    assert_eq!(of_first(), container, "nobody restarts it");

    let mut pulled = registry.gets("/v2/app/");
    let mut comes_back = |what: &str, name: &str, damage: &dyn Fn()| {
        damage();
        let begun = Instant::now();
        pod(name);
        timely(what, begun.elapsed());
        let now = registry.gets("/v2/app/");
        assert!(now > pulled, "{what}: it was pulled again");
        pulled = now;
    };
    comes_back("layer of an image in use, for the next Pod", "third", &|| {});
    world.node.ok(&["delete", "pods", "first", "second", "third", "--now"]);
    comes_back("layer of an image, not in use", "fourth", &|| remove(&layer()));
    comes_back("manifest of an image, removed", "fifth", &|| fs::remove_file(&blob).unwrap());
    world.end(&["ImageDamaged"]);
}
