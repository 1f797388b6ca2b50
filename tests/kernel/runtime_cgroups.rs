//! What a container makes of cgroups below its own: how much, and that all of it goes with its sandbox.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use podwright_runtime::JournalWriter;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::runtime::support::{Bed, cgroup_path};

const TIMEOUT: Duration = Duration::from_secs(30);

/// One cgroup in the other: `Err` is how many there are when the kernel makes no more.
fn nest(top: &Path, name: &str, deep: usize) -> Result<(), usize> {
    let open = |at: &OwnedFd, name: &str| openat(at, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut here = openat(CWD, top, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for depth in 0..deep {
        match mkdirat(&here, name, Mode::from(0o755)) {
            Err(Errno::AGAIN) => return Err(depth),
            made => made.unwrap(),
        }
        here = open(&here, name);
    }
    Ok(())
}

fn container_of(pod: &Path) -> PathBuf {
    let entries = fs::read_dir(pod).unwrap().flatten().filter(|entry| entry.path().is_dir());
    entries.map(|entry| entry.path()).find(|path| !path.ends_with("pause")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cgroups_that_a_container_makes_have_an_end() {
    let bed = Bed::new("bounds").await;
    bed.sandbox("s").await;
    bed.run("main", "exec sleep 1000").await;
    let pod = cgroup_path(&bed.cgroup).join("burstable/s");
    let text = |file: &str| fs::read_to_string(pod.join(file)).unwrap();
    assert_eq!((text("cgroup.max.depth"), text("cgroup.max.descendants")), ("32\n".into(), "4096\n".into()));
    // The container's own is the first of them.
    assert_eq!(nest(&container_of(&pod), "d", 100), Err(31));
    // Who lifts that, lifts it for a while.
    assert_eq!(bed.runtime.mend_sandboxes().await, [""; 0]);
    fs::write(pod.join("cgroup.max.depth"), "max").unwrap();
    assert_eq!(bed.runtime.mend_sandboxes().await, ["cgroup.max.depth of cgroup burstable/s"]);
    assert_eq!(text("cgroup.max.depth"), "32\n");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cgroups_nested_deeper_than_a_path_is_long_go_with_their_sandbox() {
    let bed = Bed::new("nested").await;
    bed.sandbox("s").await;
    bed.run("main", "exec sleep 1000").await;
    let pod = cgroup_path(&bed.cgroup).join("burstable/s");
    for file in ["cgroup.max.depth", "cgroup.max.descendants"] {
        fs::write(pod.join(file), "max").unwrap();
    }
    let own = container_of(&pod);
    nest(&own, &"d".repeat(60), 300).unwrap();
    let beside = own.join("beside");
    fs::create_dir(&beside).unwrap();
    (0..300).for_each(|at| fs::create_dir(beside.join(format!("{at}"))).unwrap());
    let begun = Instant::now();
    bed.runtime.remove_sandbox("s", &JournalWriter::none()).await.unwrap();
    assert!(!pod.exists());
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    bed.end().await;
}
