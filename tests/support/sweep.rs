//! Ends and removes what a failed test has left behind; what cannot be removed is reported, and stays.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Kills everything in a cgroup and below, and removes it.
pub fn cgroup(root: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while root.is_dir() {
        // All at once, and again while new ones appear.
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
    // Retried if a process is still exiting in it.
    let _ = fs::remove_dir(root);
}

/// Unmounts everything at or below a folder, in reverse mount order.
pub fn mounts(dir: &Path) {
    // Of the caller: a test may have its own mount namespace.
    let mounted = fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
    let places = mounted.lines().rev().filter_map(|line| line.split(' ').nth(1)).map(|at| at.replace("\\040", " "));
    for place in places.filter(|at| Path::new(at).starts_with(dir)) {
        if let Err(why) = nix::mount::umount2(place.as_str(), nix::mount::MntFlags::MNT_DETACH) {
            eprintln!("--- left behind: the mount at {place}: {why}");
        }
    }
}
