//! Ends and removes what a failed test has left behind: for who has failed already, so what cannot be removed is said, and stays.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Kills what is in a cgroup and below it, and removes it.
pub fn cgroup(root: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while root.is_dir() {
        // All at once, and again while something new is born.
        let _ = fs::write(root.join("cgroup.kill"), "1");
        remove_cgroups(root);
        if Instant::now() > deadline {
            return eprintln!("--- left behind: {}", root.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn remove_cgroups(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        remove_cgroups(&entry.path());
    }
    // One that somebody is still dying in is tried again.
    let _ = fs::remove_dir(root);
}

/// Unmounts all that is mounted at or below a folder, what was mounted last first.
pub fn mounts(dir: &Path) {
    // Of the caller: a test may have a mount namespace of its own.
    let mounted = fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
    let places = mounted.lines().rev().filter_map(|line| line.split(' ').nth(1)).map(|at| at.replace("\\040", " "));
    for place in places.filter(|at| Path::new(at).starts_with(dir)) {
        if let Err(why) = nix::mount::umount2(place.as_str(), nix::mount::MntFlags::MNT_DETACH) {
            eprintln!("--- left behind: the mount at {place}: {why}");
        }
    }
}
