//! What the fields of a Pod's spec become, other than those of its containers and volumes.

use super::Live::{Pod, Process};
use super::{Row, api, kernel};

pub const ROWS: &[Row] = &[
    // Namespaces.
    kernel(
        "hostNetwork",
        "network namespace: none of its own",
        "By default the shim clones the Pod's pause process with CLONE_NEWNET, and the node makes a veth pair whose one end, eth0, is \
         in that namespace. With hostNetwork the Pod stays in the node's.",
        "network_namespaces(7), clone3(2), veth(4)",
    )
    .live(Pod("/sandbox/pause/namespaces/net")),
    kernel(
        "hostIPC",
        "IPC namespace: none of its own",
        "By default the pause process is cloned with CLONE_NEWIPC: System V IPC and POSIX message queues are the Pod's alone.",
        "ipc_namespaces(7), sysvipc(7), mq_overview(7)",
    )
    .live(Pod("/sandbox/pause/namespaces/ipc")),
    kernel(
        "hostPID",
        "PID namespace: none of its own",
        "The Pod's processes stay in the host's PID namespace, and see all of its processes in /proc.",
        "pid_namespaces(7)",
    )
    .live(Process("/namespaces/pid")),
    kernel(
        "shareProcessNamespace",
        "PID namespace of the pause process",
        "By default each container has a PID namespace of its own (CLONE_NEWPID), in which its process is number 1. Shared: the pause \
         process is number 1, reaps orphans, and each container joins its namespace by setns(2).",
        "pid_namespaces(7), setns(2)",
    )
    .live(Process("/namespaces/pid")),
    kernel(
        "hostUsers",
        "user namespace, /proc/PID/uid_map, idmapped mounts",
        "false: the pause process is cloned with CLONE_NEWUSER, and 65536 ids that no other Pod has are mapped to its 0-65535. Images and \
         volumes are mounted with that map (mount_setattr(2), MOUNT_ATTR_IDMAP): what root owns on the host, root owns in the Pod.",
        "user_namespaces(7), mount_setattr(2)",
    )
    .live(Process("/namespaces/user")),
    // Names.
    kernel(
        "hostname",
        "UTS namespace, sethostname(2)",
        "The pause process is cloned with CLONE_NEWUTS; the name is set in it and written to the Pod's /etc/hostname and /etc/hosts.",
        "uts_namespaces(7), sethostname(2)",
    )
    .live(Pod("/sandbox/hostname")),
    kernel("hostnameOverride", "UTS namespace, sethostname(2)", "The name in place of hostname, as it is written.", "sethostname(2)")
        .live(Pod("/sandbox/hostname")),
    kernel(
        "setHostnameAsFQDN",
        "UTS namespace, sethostname(2)",
        "The name that is set is the whole HOSTNAME.SUBDOMAIN.NAMESPACE.svc.DOMAIN, at most 64 characters.",
        "sethostname(2)",
    )
    .live(Pod("/sandbox/hostname")),
    kernel(
        "subdomain",
        "file /etc/hosts",
        "The Pod's line has its whole name first. With a headless Service of this name the node's DNS server answers it, too.",
        "hosts(5)",
    ),
    kernel("hostAliases", "file /etc/hosts", "A line each, in the file that is bind-mounted into each container.", "hosts(5)").whole(),
    kernel(
        "dnsPolicy",
        "file /etc/resolv.conf",
        "ClusterFirst: the address of the node's DNS server, the namespace's search domains and ndots:5. Default: as the node's own file.",
        "resolv.conf(5)",
    ),
    kernel("dnsConfig", "file /etc/resolv.conf", "Added to what dnsPolicy gives: nameserver, search and options.", "resolv.conf(5)").whole(),
    // Credentials and access.
    kernel(
        "securityContext.runAsUser",
        "setresuid(2)",
        "The first process's real, effective and saved user, set before execve(2); containers may have their own. A user other than 0 \
         starts without effective capabilities.",
        "credentials(7), setresuid(2)",
    )
    .live(Process("/uid")),
    kernel("securityContext.runAsGroup", "setresgid(2)", "The first process's primary group.", "credentials(7), setresgid(2)")
        .live(Process("/gid")),
    api(
        "securityContext.runAsNonRoot",
        "The node compares the user that the process will really have, from the manifest or the image, with 0, and refuses to start it.",
    ),
    kernel(
        "securityContext.supplementalGroups",
        "setgroups(2)",
        "With fsGroup and the groups that the image's /etc/group gives the user.",
        "setgroups(2), group(5)",
    ),
    kernel(
        "securityContext.supplementalGroupsPolicy",
        "setgroups(2)",
        "Strict: the groups of the image's /etc/group are left out.",
        "setgroups(2), group(5)",
    ),
    kernel(
        "securityContext.fsGroup",
        "chown(2), mode bits of volumes, setgroups(2)",
        "Files of volumes that support it belong to the group, which may write them; folders are set-group-ID, so new files do as well. The \
         processes have the group as a supplementary one.",
        "chown(2), inode(7), setgroups(2)",
    ),
    kernel(
        "securityContext.fsGroupChangePolicy",
        "chown(2)",
        "OnRootMismatch: a volume whose root has the group and mode already is not walked.",
        "chown(2)",
    ),
    kernel(
        "securityContext.sysctls",
        "files below /proc/sys",
        "Written from inside the Pod's namespaces before the first container starts. Only names that the kernel keeps for each namespace; \
         those that are not safe need --allowed-unsafe-sysctls.",
        "sysctl(8), proc_sys(5)",
    )
    .whole(),
    kernel(
        "securityContext.seccompProfile",
        "seccomp(2), SECCOMP_SET_MODE_FILTER",
        "A BPF program that judges each system call of the containers' processes. RuntimeDefault is also the default; Localhost is compiled \
         from a file of the node; Unconfined: none.",
        "seccomp(2), Documentation/userspace-api/seccomp_filter.rst",
    )
    .whole()
    .live(Process("/seccomp")),
    kernel(
        "securityContext.appArmorProfile",
        "/proc/self/attr/apparmor/exec",
        "The name of the profile, written before execve(2). A node without AppArmor refuses the Pod.",
        "apparmor(7)",
    )
    .whole(),
    api("securityContext.seLinuxOptions", "Refused: this node sets no SELinux labels.").whole(),
    api("securityContext.seLinuxChangePolicy", "It is about SELinux labels, which this node does not set.").whole(),
    api("securityContext.windowsOptions", "For Windows nodes.").whole(),
    // Resources.
    kernel(
        "resources.limits.cpu",
        "cgroup file cpu.max of the Pod",
        "Microseconds of CPU time in each period of 100 ms, for all containers together: 500m is \"50000 100000\".",
        "cgroups(7), Documentation/admin-guide/cgroup-v2.rst",
    )
    .live(Pod("/sandbox/cgroup/files/cpu.max")),
    kernel(
        "resources.limits.memory",
        "cgroup file memory.max of the Pod",
        "Bytes for all containers together; beyond them the kernel's OOM killer chooses among the Pod's processes.",
        "cgroups(7), Documentation/admin-guide/cgroup-v2.rst",
    )
    .live(Pod("/sandbox/cgroup/files/memory.max")),
    kernel(
        "resources.requests.cpu",
        "cgroup file cpu.weight of the Pod",
        "Its share when CPUs are short: 1 + (shares - 2) * 9999 / 262142, where 1000m is 1024 shares.",
        "cgroups(7), Documentation/admin-guide/cgroup-v2.rst",
    )
    .live(Pod("/sandbox/cgroup/files/cpu.weight")),
    api("resources.requests", "The scheduler sums them up, and the node's eviction orders Pods by them.").whole(),
    api("resources.limits", "As of each container, for all of them together.").whole(),
    api("resources.claims", "Stored, not acted upon: an event of the Pod says so.").whole(),
    kernel(
        "overhead",
        "cgroup files cpu.max, memory.max and cpu.weight of the Pod",
        "Added to what its containers have together.",
        "cgroups(7)",
    )
    .whole(),
    // Life.
    kernel(
        "terminationGracePeriodSeconds",
        "kill(2), then cgroup file cgroup.kill",
        "Each container's first process gets the stop signal, by its pidfd; when the time is over, everything in the container's cgroup is \
         killed at once.",
        "signal(7), pidfd_send_signal(2), cgroups(7)",
    ),
    kernel(
        "activeDeadlineSeconds",
        "kill(2), then cgroup file cgroup.kill",
        "The node measures the time from the Pod's start, stops its containers, and the Pod has failed.",
        "signal(7), cgroups(7)",
    ),
    api("restartPolicy", "The node starts a new container when one has ended, after a pause that doubles up to five minutes.").whole(),
    // Others.
    kernel(
        "serviceAccountName",
        "files in a tmpfs at /var/run/secrets/kubernetes.io/serviceaccount",
        "The account whose token the Pod finds there; the node has it renewed.",
        "tmpfs(5)",
    ),
    api("serviceAccount", "The old name of serviceAccountName."),
    api("automountServiceAccountToken", "false: the account's volume is not added to the Pod."),
    kernel(
        "enableServiceLinks",
        "environment of execve(2)",
        "The variables NAME_SERVICE_HOST, NAME_SERVICE_PORT and so on for each Service of the namespace.",
        "environ(7)",
    ),
    api("imagePullSecrets", "The node presents them to the registry when it pulls an image.").whole(),
    api("nodeName", "The node that makes the Pod; the scheduler writes it."),
    api("nodeSelector", "The scheduler's plugin NodeAffinity compares it with nodes' labels; so does the node, before it starts the Pod.").whole(),
    api("affinity", "The scheduler's plugins NodeAffinity and InterPodAffinity.").whole(),
    api("topologySpreadConstraints", "The scheduler's plugin PodTopologySpread.").whole(),
    api("tolerations", "The scheduler's plugin TaintToleration, and the controller that evicts by taints.").whole(),
    api("schedulerName", "Which scheduler takes the Pod."),
    api("schedulingGates", "The scheduler leaves the Pod alone while there is one.").whole(),
    api("priority", "The scheduler's order and preemption, the node's order of eviction and of shutdown."),
    api("priorityClassName", "Admission looks it up, and writes priority."),
    api("preemptionPolicy", "Whether the scheduler may evict others for this Pod."),
    api("readinessGates", "Conditions that others set, and that readiness waits for.").whole(),
    api("runtimeClassName", "Its overhead and scheduling are added to the Pod; there is one runtime."),
    api("os", "A Pod for Windows is refused by the node.").whole(),
    api("resourceClaims", "Stored, not acted upon: an event of the Pod says so.").whole(),
    api("workloadRef", "Read by schedulers that place groups of Pods together; this one does not.").whole(),
];
