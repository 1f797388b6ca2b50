//! What the fields of a volume become.

use super::{Row, api, kernel};

pub const ROWS: &[Row] = &[
    api("name", "For volumeMounts."),
    kernel(
        "emptyDir",
        "folder of the Pod on the node's disk",
        "Made with the Pod, mode 0777, and removed with it. Each container that mounts it has a bind mount of the same folder.",
        "mkdir(2), mount(2)",
    ),
    kernel(
        "emptyDir.medium",
        "tmpfs",
        "Memory: a tmpfs, whose pages count for the cgroup of who writes them.",
        "tmpfs(5), cgroups(7)",
    ),
    kernel(
        "emptyDir.sizeLimit",
        "size= of the tmpfs, or a project quota",
        "In memory the kernel refuses more (ENOSPC). On the disk the Pod is evicted.",
        "tmpfs(5), quotactl(2)",
    ),
    kernel("hostPath", "bind mount of the node's own file or folder", "Nothing is copied, and nothing is removed with the Pod.", "mount(2)"),
    api("hostPath.path", "The path on the node."),
    kernel("hostPath.type", "stat(2)", "What must be there; DirectoryOrCreate and FileOrCreate make it.", "stat(2), inode(7)"),
    kernel(
        "configMap",
        "files on the node's disk",
        "In a folder of a generation each, behind the symlink ..data: rename(2) replaces all of them at once when the object changes.",
        "rename(2), symlink(7)",
    )
    .whole(),
    kernel(
        "secret",
        "files in a tmpfs",
        "As configMap, in memory: they never reach the disk.",
        "tmpfs(5), rename(2)",
    )
    .whole(),
    kernel("downwardAPI", "files in a tmpfs", "Fields of the Pod itself, written anew when they change.", "tmpfs(5), rename(2)").whole(),
    kernel(
        "projected",
        "files in a tmpfs",
        "Those of several sources in one folder; tokens of the ServiceAccount are renewed before they expire.",
        "tmpfs(5), rename(2)",
    )
    .whole(),
    kernel(
        "persistentVolumeClaim",
        "bind mount of the PersistentVolume that the claim is bound to",
        "A folder or device of the node; a claim waits for its first Pod where its StorageClass says so.",
        "mount(2)",
    )
    .whole(),
    kernel(
        "ephemeral",
        "bind mount of a PersistentVolume",
        "Of a claim that a controller makes from the template, and that the Pod owns.",
        "mount(2)",
    )
    .whole(),
];

/// Kinds of volumes that this node does not set up: a Pod with one waits, and its event FailedMount says why.
pub const FOREIGN: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];
