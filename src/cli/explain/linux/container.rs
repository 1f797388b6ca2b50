//! What the fields of a container become; those of init and ephemeral containers become the same.

use super::Live::{Container, Process};
use super::{Row, api, kernel};

pub const ROWS: &[Row] = &[
    kernel(
        "name",
        "cgroup below the Pod's, and the folder of its logs",
        "The cgroup is NAME.RESTARTS; the first process is cloned into it (CLONE_INTO_CGROUP), so there is no moment outside of it.",
        "cgroups(7), clone3(2)",
    )
    .live(Container("/cgroup/path")),
    kernel(
        "image",
        "overlay mount at /",
        "The layers of the image are unpacked once, and are the lower folders of an overlayfs; what the container writes goes to an upper \
         folder of its own. pivot_root(2) makes it the root.",
        "mount_namespaces(7), Documentation/filesystems/overlayfs.rst, pivot_root(2)",
    )
    .live(Process("/mounts/0")),
    api("imagePullPolicy", "Whether the node asks the registry before it uses the layers that it has."),
    kernel(
        "command",
        "argv of execve(2)",
        "In place of the image's entrypoint and arguments. $(NAME) is expanded by the node; there is no shell.",
        "execve(2)",
    )
    .live(Process("/args")),
    kernel("args", "argv of execve(2)", "After the command, or after the image's entrypoint.", "execve(2)").live(Process("/args")),
    kernel(
        "workingDir",
        "chdir(2)",
        "Made if it is missing, and resolved inside the container's root only. That it is inside is proven after chdir(2).",
        "chdir(2), openat2(2)",
    ),
    kernel("env", "environment of execve(2)", "After the image's own variables; in the order of the manifest.", "environ(7)").whole(),
    api("env.valueFrom.fileKeyRef", "Stored, not acted upon: an event of the Pod says so.").whole(),
    kernel("envFrom", "environment of execve(2)", "Before those of env, which count more.", "environ(7)").whole(),
    // Input and output.
    kernel(
        "stdin",
        "pipe(2) at descriptor 0",
        "By default descriptor 0 is /dev/null. With stdin the shim holds the other end of a pipe, and attach writes to it.",
        "pipe(7)",
    ),
    kernel("stdinOnce", "close(2) of the pipe", "After the first client has gone the process reads the end of the file.", "pipe(7)"),
    kernel(
        "tty",
        "pseudoterminal: /dev/pts/0 at descriptors 0, 1 and 2",
        "From a devpts of the container's own; the process leads a session (setsid(2)) with it as the controlling terminal (TIOCSCTTY).",
        "pty(7), ioctl_tty(2)",
    ),
    kernel(
        "terminationMessagePath",
        "bind mount of a file",
        "The node reads the file when the container has ended: at most 4096 bytes.",
        "mount(2)",
    ),
    api("terminationMessagePolicy", "FallbackToLogsOnError: the log's end, where the file is empty and the container has failed."),
    // The network.
    kernel(
        "ports.hostPort",
        "nftables: map host-ports of table podwright",
        "What arrives at the node's port is sent to the Pod (dnat), and masqueraded where the answer would otherwise go astray.",
        "nft(8)",
    ),
    kernel("ports.hostIP", "nftables: map host-ports of table podwright", "The address of the node that counts; by default all.", "nft(8)"),
    api("ports.containerPort", "Says what the process listens on; Services and policies may name it. Nothing is opened or closed by it."),
    kernel("ports.protocol", "nftables: maps are keyed by protocol", "TCP, UDP or SCTP.", "nft(8), ip(7)"),
    api("ports.name", "For Services' targetPort, policies' ports and SRV records."),
    // Resources.
    kernel(
        "resources.limits.memory",
        "cgroup files memory.max, memory.swap.max, memory.oom.group",
        "memory.max in bytes, no swap, and when it is exceeded the kernel kills all processes of the container together: OOMKilled.",
        "cgroups(7), Documentation/admin-guide/cgroup-v2.rst",
    )
    .live(Container("/cgroup/files/memory.max")),
    kernel(
        "resources.limits.cpu",
        "cgroup file cpu.max",
        "Microseconds of CPU time in each period of 100 ms: 500m is \"50000 100000\". Who has used them up waits for the next period.",
        "cgroups(7), Documentation/scheduler/sched-bwc.rst",
    )
    .live(Container("/cgroup/files/cpu.max")),
    kernel(
        "resources.limits.ephemeral-storage",
        "project quota of the disk, quotactl(2)",
        "Where the file system has project quotas they count; elsewhere the node walks the container's upper folder and logs. Beyond the \
         limit the Pod is evicted.",
        "quotactl(2), xfs_quota(8)",
    ),
    kernel(
        "resources.requests.cpu",
        "cgroup file cpu.weight",
        "Its share when CPUs are short: 1 + (shares - 2) * 9999 / 262142, where 1000m is 1024 shares.",
        "cgroups(7), Documentation/admin-guide/cgroup-v2.rst",
    )
    .live(Container("/cgroup/files/cpu.weight")),
    kernel(
        "resources.requests.memory",
        "/proc/PID/oom_score_adj",
        "The scheduler places by it. In a Burstable Pod, 1000 - 1000 * request / memory of the node, between 3 and 999: who asked for less is \
         killed first when the node's memory is short. Guaranteed: -997, BestEffort: 1000.",
        "proc_pid_oom_score_adj(5)",
    ),
    api("resources.requests", "The scheduler sums them up; with the limits they make the Pod's QoS class, whose cgroup is its parent.").whole(),
    api("resources.limits", "Other limits are counted by the scheduler alone; hugepages are not acted upon, and an event says so.").whole(),
    api("resources.claims", "Stored, not acted upon: an event of the Pod says so.").whole(),
    api("resizePolicy", "Whether a container starts anew when its limits change; by default the cgroup's files are written in place.").whole(),
    // What it may do.
    kernel(
        "securityContext.privileged",
        "all capabilities, /dev of the host, no seccomp filter, nothing masked",
        "The namespaces stay. Everything else that holds a process is left out: it is root on the host.",
        "capabilities(7)",
    )
    .live(Process("/capabilities/CapEff")),
    kernel(
        "securityContext.capabilities",
        "capset(2), PR_CAPBSET_DROP",
        "The default set, less drop, plus add, becomes the bounding set; root has it as its permitted and effective one, too. Nothing is \
         inheritable or ambient.",
        "capabilities(7), capset(2), PR_CAPBSET_DROP(2const)",
    )
    .whole()
    .live(Process("/capabilities/CapBnd")),
    kernel(
        "securityContext.allowPrivilegeEscalation",
        "PR_SET_NO_NEW_PRIVS",
        "false: set-user-ID programs and file capabilities give the process nothing, nor its children.",
        "PR_SET_NO_NEW_PRIVS(2const), Documentation/userspace-api/no_new_privs.rst",
    )
    .live(Process("/noNewPrivs")),
    kernel(
        "securityContext.readOnlyRootFilesystem",
        "mount_setattr(2), MOUNT_ATTR_RDONLY on /",
        "Volumes, /dev and /dev/shm can be written nevertheless.",
        "mount_setattr(2)",
    )
    .live(Process("/mounts/0")),
    kernel("securityContext.runAsUser", "setresuid(2)", "As the Pod's, for this container.", "credentials(7), setresuid(2)")
        .live(Process("/uid")),
    kernel("securityContext.runAsGroup", "setresgid(2)", "As the Pod's, for this container.", "credentials(7), setresgid(2)")
        .live(Process("/gid")),
    api("securityContext.runAsNonRoot", "As the Pod's, for this container."),
    kernel(
        "securityContext.procMount",
        "mounts over parts of /proc and /sys",
        "Default: /proc/kcore, /proc/keys and others are covered, /proc/sys and others are read-only. Unmasked: nothing is; it needs \
         hostUsers: false.",
        "proc(5), mount(2)",
    ),
    kernel(
        "securityContext.seccompProfile",
        "seccomp(2), SECCOMP_SET_MODE_FILTER",
        "As the Pod's, for this container. 2 in /proc/PID/status: a filter is in force.",
        "seccomp(2)",
    )
    .whole()
    .live(Process("/seccomp")),
    kernel("securityContext.appArmorProfile", "/proc/self/attr/apparmor/exec", "As the Pod's, for this container.", "apparmor(7)").whole(),
    api("securityContext.seLinuxOptions", "Refused: this node sets no SELinux labels.").whole(),
    api("securityContext.windowsOptions", "For Windows nodes.").whole(),
    // Volumes.
    kernel(
        "volumeMounts",
        "bind mount",
        "open_tree(2) with OPEN_TREE_CLONE takes the volume, move_mount(2) puts it into the container's mount namespace.",
        "mount_namespaces(7), open_tree(2), move_mount(2)",
    )
    .live(Process("/mounts")),
    api("volumeMounts.name", "The volume of the Pod."),
    kernel("volumeMounts.mountPath", "target of the bind mount", "Resolved inside the container's root only.", "move_mount(2), openat2(2)"),
    kernel("volumeMounts.readOnly", "MOUNT_ATTR_RDONLY", "Of this mount; those below it may be written.", "mount_setattr(2)"),
    kernel("volumeMounts.recursiveReadOnly", "MOUNT_ATTR_RDONLY with AT_RECURSIVE", "Of this mount and all below it.", "mount_setattr(2)"),
    kernel(
        "volumeMounts.subPath",
        "openat2(2), RESOLVE_BENEATH",
        "The file or folder of the volume that is mounted; a symlink cannot lead out of the volume.",
        "openat2(2)",
    ),
    kernel("volumeMounts.subPathExpr", "openat2(2), RESOLVE_BENEATH", "As subPath, after $(NAME) is expanded.", "openat2(2)"),
    kernel(
        "volumeMounts.mountPropagation",
        "MS_PRIVATE, MS_SLAVE or MS_SHARED",
        "None, HostToContainer, Bidirectional: whether later mounts below it are seen on the other side.",
        "mount_namespaces(7), mount(2)",
    ),
    kernel(
        "volumeDevices",
        "device node, and the cgroup's device program",
        "The block device of a claim, as a node that the container may open.",
        "mknod(2), bpf(2)",
    )
    .whole(),
    // Life.
    api("restartPolicy", "Of an init container, Always: it goes on beside the others, and is stopped after them."),
    api("restartPolicyRules", "Which exit codes count as what; compared by the node.").whole(),
    kernel(
        "lifecycle.stopSignal",
        "pidfd_send_signal(2)",
        "The first signal when the container is stopped; by default the image's, or SIGTERM.",
        "signal(7), pidfd_send_signal(2)",
    ),
    kernel(
        "lifecycle",
        "exec: setns(2) and execve(2); httpGet: a socket in the node's network namespace",
        "preStop comes before the stop signal, and its time counts for the grace period. postStart begins with the process.",
        "setns(2)",
    )
    .whole(),
    kernel(
        "livenessProbe",
        "exec: setns(2) and execve(2); others: a socket in the node's network namespace",
        "When it has failed often enough the container is stopped, and started anew.",
        "setns(2), socket(2)",
    )
    .whole(),
    kernel(
        "readinessProbe",
        "exec: setns(2) and execve(2); others: a socket in the node's network namespace",
        "While it fails the Pod is no endpoint of its Services: its elements leave the nftables maps of all nodes.",
        "setns(2), socket(2), nft(8)",
    )
    .whole(),
    kernel(
        "startupProbe",
        "exec: setns(2) and execve(2); others: a socket in the node's network namespace",
        "Until it succeeds the other probes wait.",
        "setns(2), socket(2)",
    )
    .whole(),
    api("targetContainerName", "Of an ephemeral container: it joins the PID namespace of that one."),
];
