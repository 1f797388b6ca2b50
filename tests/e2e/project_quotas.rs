//! Pods' disk usage on a disk with project quotas: `/dev/vdb` of the guest of `vm/`, which may be reformatted.

use std::{
    fs::{self, File},
    io::{Error, Write},
    os::{
        fd::AsFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::{
    JournalWriter, projects,
    sys::{
        Kernel,
        quota::{self, Project, Tally},
        tree::{LONGEST, wipe},
        walk::measure,
    },
};

use crate::support::{TestNode, contains, eventually, missing};

const DISK: &str = "/dev/vdb";
/// A Pod is measured every ten seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Runs something with the disk mounted at `at`, in a new mount namespace. Only in the guest.
fn on_the_disk(at: &Path, act: impl FnOnce() + Send) {
    if std::env::var_os("PODWRIGHT_TEST_GUEST").is_none() {
        missing::here("no disk with project quotas; `./dev vm` has one");
        return;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            // Either of them has project quotas.
            let mut kinds = ["ext4", "xfs"].into_iter();
            let mounts = |kind| mount(Some(DISK), at, Some(kind), MsFlags::empty(), Some("prjquota")).is_ok();
            assert!(kinds.any(mounts), "{DISK}: {}", Error::last_os_error());
            fs::remove_dir(at.join("lost+found")).ok();
            act();
            umount(at).unwrap();
        });
        thread.join().unwrap();
    });
}

fn kernel() -> Kernel {
    Kernel::new(&JournalWriter::none())
}

fn give(paths: &[&Path]) -> Option<u32> {
    let given = projects::give(&kernel(), paths, None).unwrap();
    let projects: Vec<Option<u32>> = paths.iter().map(|path| projects::of(path)).collect();
    assert!(projects.iter().all(|project| *project == projects[0] && project.is_some() == given), "{projects:?}");
    projects[0]
}

fn used(path: &Path) -> u64 {
    projects::usage(&[path.to_owned()]).unwrap().expect("it is in a project").bytes
}

fn tally(at: &Path, project: u32) -> Tally {
    quota::tally(quota::open(at).unwrap().as_fd(), project).unwrap()
}

fn set(path: &Path, project: Project) -> Result<(), Error> {
    kernel().set_project(quota::open(path)?.as_fd(), path, project).map_err(|e| e.source)
}

fn make(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).unwrap();
    path
}

fn write(path: &Path, mib: u64) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![7; (mib * MIB) as usize]).unwrap();
    file
}

#[test]
fn a_folder_is_counted_whatever_is_done_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path();
    on_the_disk(disk, || {
        projects::supported(disk).unwrap();
        files_with_and_without_names(disk);
        an_overlay(disk);
        nobody_elses_project_is_taken(disk);
        who_has_users_of_his_own_changes_nothing(disk);
    });
}

fn files_with_and_without_names(disk: &Path) {
    let [a, b, other] = ["a", "b", "other"].map(|name| make(disk.join(name)));
    let project = give(&[&a, &b]).unwrap();
    assert_eq!(projects::usage(&[a.clone(), b.clone()]).unwrap().unwrap().inodes, 2, "the folders, once");
    assert_ne!(give(&[&other]), Some(project));
    fs::create_dir_all(a.join("x/y")).unwrap();
    let file = write(&a.join("x/y/file"), 4);
    fs::rename(a.join("x/y/file"), b.join("file")).unwrap();
    assert!((4 * MIB..5 * MIB).contains(&used(&a)), "{}", used(&a));
    fs::remove_file(b.join("file")).unwrap();
    assert!(measure(disk, TIMEOUT).unwrap().bytes < MIB, "no walk sees it");
    assert!((4 * MIB..5 * MIB).contains(&used(&a)), "{}", used(&a));
    assert!(used(&other) < MIB);
    // The project is in use as long as the file exists.
    [&a, &b].into_iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
    assert!(!tally(disk, project).is_unused());
    drop(file);
    assert!(tally(disk, project).is_unused());
    fs::remove_dir(other).unwrap();
}

/// Copied up files, and those moved between its two folders, stay within the project.
fn an_overlay(disk: &Path) {
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| make(disk.join(name)));
    fs::create_dir(lower.join("d")).unwrap();
    write(&lower.join("d/file"), 3).sync_all().unwrap();
    give(&[&upper, &work]).unwrap();
    let text = |path: &Path| path.display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", text(&lower), text(&upper), text(&work));
    mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
    File::options().append(true).open(merged.join("d/file")).unwrap().write_all(b"more").unwrap();
    fs::create_dir(merged.join("new")).unwrap();
    fs::rename(merged.join("d/file"), merged.join("new/file")).unwrap();
    write(&merged.join("d/other"), 2);
    assert!((5 * MIB..6 * MIB).contains(&used(&upper)), "{}", used(&upper));
    umount(&merged).unwrap();
    [lower, upper, work, merged].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
}

fn nobody_elses_project_is_taken(disk: &Path) {
    let [theirs, ours] = ["theirs", "ours"].map(|name| make(disk.join(name)));
    // The first candidate.
    let first = |path: &Path| {
        let count = u64::from(projects::IDS.end - projects::IDS.start);
        projects::IDS.start + u32::try_from(fs::metadata(path).unwrap().ino() % count).unwrap()
    };
    set(&theirs, Project { id: first(&ours), inherited: false }).unwrap();
    assert_eq!(give(&[&ours]), Some(first(&ours) + 1));
    // If the node's own folder was put into a project, everything in it belongs to it.
    set(&theirs, Project { id: 7, inherited: true }).unwrap();
    let inner = make(theirs.join("inner"));
    assert_eq!(give(&[&inner]), None);
    assert_eq!(projects::usage(std::slice::from_ref(&inner)).unwrap(), None);
    assert!(projects::supported(&theirs).unwrap_err().ends_with("it is in project 7 itself"));
    [theirs, ours].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
}

fn who_has_users_of_his_own_changes_nothing(disk: &Path) {
    let own = make(disk.join("own"));
    let project = give(&[&own]).unwrap();
    fs::create_dir_all(own.join("sub/inner")).unwrap();
    for change in [Project::default(), Project { id: project, inherited: false }, Project { id: 1, inherited: true }] {
        let sub = own.join("sub");
        let mut child = Command::new("true");
        // SAFETY: the child is a copy of one thread, with an allocator that outlives a fork.
        unsafe {
            child.pre_exec(move || {
                unshare(CloneFlags::CLONE_NEWUSER)?;
                set(&sub, change)
            });
        }
        assert_eq!(child.status().unwrap_err().raw_os_error(), Some(nix::libc::EINVAL), "{change:?}");
    }
    assert_eq!(projects::of(&own.join("sub")), Some(project));
    // Others may change it, and their changes are removed all the same.
    set(&own.join("sub"), Project::default()).unwrap();
    set(&own.join("sub/inner"), Project::default()).unwrap();
    fs::create_dir(own.join("sub/inner/most")).unwrap();
    wipe(&own, LONGEST).unwrap();
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
    fs::remove_dir(own).unwrap();
}

fn pod(name: &str, does: &str, limit: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, \"{does}; echo done; while :; do sleep 1; done\"]
    resources: {{limits: {{{limit}}}}}
    volumeMounts: [{{name: scratch, mountPath: /scratch}}]
  volumes: [{{name: scratch, emptyDir: {{sizeLimit: 4Mi}}}}]
---
"
    )
}

#[test]
fn pods_are_measured_by_quotas_and_those_who_exceed_them_are_evicted() {
    let mut node = TestNode::stopped(&[]);
    let disk = node.dir.path().to_owned();
    on_the_disk(&disk, || {
        node.spawn();
        node.wait_ready();
        let says = node.field(&["node"], ".items[0].metadata.annotations['podwright/disk-usage']");
        match node.field(&["nodes"], ".items[0].status.runtimeHandlers[0].features.userNamespaces") == "true" {
            true => {
                assert_eq!(says, "project quotas");
                contains(&node.log(), "counted by project quotas").unwrap();
                evictions(&mut node, &disk);
            }
            false => contains(&says, "walking: Pods can have no users of their own: ").unwrap(),
        }
        node.terminate();
    });
}

fn evictions(node: &mut TestNode, disk: &Path) {
    node.import_busybox();
    let waits = |then: &str| format!("until [ -e /scratch/go ]; do sleep 1; done; {then}");
    // A walk sees no file of any volume here.
    node.apply(&pod("hidden", &waits("exec 5>/scratch/a; rm /scratch/a; head -c 6000000 /dev/zero >&5"), ""));
    node.apply(&pod("layer", &waits("head -c 12000000 /dev/zero >/big"), "ephemeral-storage: 8Mi"));
    let cheat = format!("mkdir /scratch/sub; {}", waits("head -c 6000000 /dev/zero >/scratch/sub/big"));
    node.apply(&pod("cheat", &cheat, ""));
    // A file of the image that is written to, and what is moved about.
    let modest = "echo more >>/etc/passwd; mkdir /d; mv /etc/passwd /d/; mv /d /scratch/; head -c 2000000 /dev/zero >/scratch/f; mv /scratch/f /scratch/d/";
    node.apply(&pod("modest", modest, "ephemeral-storage: 8Mi"));
    let done = |node: &TestNode, name: &str| {
        eventually(&format!("{name} has written"), TIMEOUT, || contains(&node.run(&["logs", name]).out, "done"));
    };
    done(node, "modest");
    let names = ["hidden", "layer", "cheat", "modest"];
    let folders = names.map(|name| {
        let uid = node.field(&["pod", name], ".metadata.uid");
        disk.join("pods").join(uid).join("volumes/scratch")
    });
    let sub = folders[2].join("sub");
    eventually("the cheat has a folder", TIMEOUT, || fs::metadata(&sub).map_err(|e| e.to_string()));
    let projects = folders.each_ref().map(|folder| {
        eventually("it is in a project", TIMEOUT, || projects::of(folder).ok_or_else(|| format!("{folder:?} is not")))
    });
    let different: std::collections::BTreeSet<u32> = projects.into_iter().collect();
    assert_eq!(different.len(), names.len(), "{projects:?}");
    let go = |folder: &Path| fs::write(folder.join("go"), "").unwrap();
    // What no process in a user namespace can do, one outside may do for it.
    set(&sub, Project::default()).unwrap();
    go(&folders[2]);
    done(node, "cheat");

    node.kill();
    node.spawn();
    node.wait_ready();
    go(&folders[0]);
    go(&folders[1]);
    let volume = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"4Mi\".";
    let whole = "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi.";
    for (name, message) in [("hidden", volume), ("layer", whole), ("cheat", volume)] {
        node.wait_field(&["pod", name], ".status.reason", "Evicted", TIMEOUT);
        assert_eq!(node.field(&["pod", name], ".status.message").trim_end(), message, "{name}");
    }
    contains(&node.log(), "a Pod uses more disk than its project quotas count").unwrap();
    assert_eq!(node.field(&["pod", "modest"], ".status.phase"), "Running");
    assert_eq!(projects::of(&folders[3]), Some(projects[3]));
    node.ok(&["delete", "pod", "hidden", "layer", "modest", "cheat"]);
    eventually("their projects are free", TIMEOUT, || match projects.map(|project| tally(disk, project)) {
        tallies if tallies.iter().all(Tally::is_unused) => Ok(()),
        tallies => Err(format!("{tallies:?}")),
    });
}

const CLAIM: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: small}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: small}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000'], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: small}}]
";

/// A volume of the class `local` is limited to its claim's request, and grows with it.
#[test]
fn a_volume_is_held_to_its_size() {
    let mut node = TestNode::stopped(&[]);
    let disk = node.dir.path().to_owned();
    on_the_disk(&disk, || {
        node.spawn();
        node.wait_ready();
        node.import_busybox();
        node.apply(CLAIM);
        node.wait("condition=Ready", &["pod/small"], TIMEOUT);
        let volume = node.field(&["pvc", "small"], ".spec.volumeName");
        let data = disk.join("local-volumes").join(&volume).join("data");
        let project = projects::of(&data).expect("it is in a project");
        assert_eq!(tally(&disk, project).limit, 8 * MIB);
        let write = |file: &str, mib: u64| {
            let script = format!("head -c {} /dev/zero > /v/{file}; sync; ls -l /v/{file}", mib * MIB);
            node.run(&["exec", "small", "--", "sh", "-c", &script])
        };
        let refused = write("big", 16);
        assert!(!refused.out.contains(&(16 * MIB).to_string()), "{}", refused.all());
        assert!(used(&data) <= 8 * MIB, "{}", used(&data));
        let told = node.ok(&["events", "--for", "pvc/small"]);
        assert!(!told.contains("CapacityNotEnforced"), "{told}");
        let size = "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"40Mi\"}}}}";
        node.ok(&["patch", "pvc", "small", "-p", size]);
        eventually("it may take more", TIMEOUT, || match tally(&disk, project).limit {
            limit if limit == 40 * MIB => Ok(()),
            limit => Err(limit.to_string()),
        });
        contains(&write("more", 16).out, &(16 * MIB).to_string()).unwrap();
        node.ok(&["delete", "pod", "small"]);
        node.ok(&["delete", "pvc", "small"]);
        eventually("its project is free", TIMEOUT, || match tally(&disk, project) {
            tally if tally.is_unused() => Ok(()),
            tally => Err(format!("{tally:?} {}", node.ok(&["events", "-A"]))),
        });
        assert!(!data.exists());
        node.terminate();
    });
}
