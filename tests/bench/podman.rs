//! The peer: the same Pods with `podman kube play`, if installed, on the host network (which saves it the links).

use std::{fs, process::Command};

use serde_json::json;

use crate::{beside, pods};

const PODS: usize = 30;

/// The same 30 Pods as in `thirty`, in separate mount and network namespaces; and one alone.
pub fn thirty() {
    if Command::new("podman").arg("--version").output().is_err() {
        beside("podman is not installed: no peer to compare with", "apt-get install podman");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let document = |name: &String| {
        let mut pod = pods::pod(name);
        pod["spec"]["hostNetwork"] = json!(true);
        // An imported image has no PATH there.
        pod["spec"]["containers"][0]["command"] = json!(["/bin/sleep", "infinity"]);
        pod.to_string()
    };
    let documents: Vec<String> = pods::names(PODS).iter().map(document).collect();
    fs::write(dir.path().join("one.yaml"), &documents[0]).unwrap();
    fs::write(dir.path().join("pods.yaml"), documents.join("\n---\n")).unwrap();
    fs::write(dir.path().join("containers.conf"), CONF).unwrap();
    let output = Command::new("unshare")
        .args(["-mn", "--propagation", "private", "sh", "-c", SCRIPT])
        .current_dir(dir.path())
        .env("CONTAINERS_CONF", dir.path().join("containers.conf"))
        .env("TAR", crate::support::node::busybox_tar())
        .output()
        .unwrap();
    let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let figure = |what: &str| said.lines().find_map(|l| l.strip_prefix(what)?.trim().parse::<f64>().ok());
    match (output.status.success(), figure("one"), figure("up"), figure("down"), figure("pss")) {
        (true, Some(one), Some(up), Some(down), Some(pss)) => {
            beside("podman kube play, one Pod (host network)", format!("{one:.0} ms"));
            beside("podman kube play, 30 Pods", format!("{:.1} s", up / 1e3));
            beside("podman kube down, 30 Pods", format!("{:.1} s", down / 1e3));
            beside("podman, memory per Pod (conmon + pause, PSS)", format!("{:.0} KiB", pss / PODS as f64));
        }
        _ => beside("podman kube play fails here", why.trim().lines().last().unwrap_or("it says nothing")),
    }
}

/// Limits that any root may set, and no systemd.
const CONF: &str = r#"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"#;

/// Prints how many milliseconds each step took, and the KiB that podman needs beside the containers. crun refuses hybrid cgroups,
/// so their v2 half is hidden from it. Older podmans use `play kube`.
const SCRIPT: &str = r#"
set -e
ip link set lo up
umount /sys/fs/cgroup/unified 2>/dev/null || true
podman() { command podman --root "$PWD/r" --runroot "$PWD/rr" "$@"; }
play="kube play" down="kube down"
podman kube play --help >/dev/null 2>&1 || { play="play kube"; down="play kube --down"; }
now() { echo $(($(date +%s%N) / 1000000)); }
end() {
    podman pod rm -af >/dev/null 2>&1 || true
    umount -R "$PWD/r" "$PWD/rr" 2>/dev/null || true
    find /sys/fs/cgroup -depth -path '*libpod_parent*' -type d -exec rmdir {} + 2>/dev/null || true
}
trap end EXIT
pss() {
    own=$(readlink /proc/self/ns/mnt)
    for conmon in $(pgrep -x conmon); do
        [ "$(readlink "/proc/$conmon/ns/mnt")" = "$own" ] || continue
        for process in $conmon $(pgrep -P "$conmon"); do
            [ "$(cat "/proc/$process/comm")" = sleep ] || cat "/proc/$process/smaps_rollup"
        done
    done | awk '/^Pss:/ { sum += $2 } END { print sum + 0 }'
}
podman import "$TAR" localhost/busybox:1 >/dev/null
for turn in warm one; do
    start=$(now)
    podman $play one.yaml >/dev/null
    echo $turn $(($(now) - start))
    podman $down one.yaml >/dev/null
done
start=$(now)
podman $play pods.yaml >/dev/null
echo up $(($(now) - start))
echo pss $(pss)
start=$(now)
podman $down pods.yaml >/dev/null
echo down $(($(now) - start))
"#;
