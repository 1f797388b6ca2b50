//! Published vulnerabilities without an entry: what they were, and why.

/// CVE, description, why there is no entry.
pub const CVES: &[(&str, &str, &str)] = &[
    (
        "CVE-2022-0847",
        "Dirty Pipe: the kernel lets anybody overwrite pages of files that he may only read, as of shared image layers",
        "a kernel bug: nothing above the kernel holds; a try would harm the machine. Layers are shared between containers, see SECURITY.md",
    ),
    ("CVE-2016-5195", "Dirty COW: the same by a race of copy-on-write", "a kernel bug, as above"),
    (
        "CVE-2024-1086, CVE-2022-2588",
        "kernel bugs that need user namespaces or nftables inside a container",
        "kernel bugs; that the calls are refused is `system-calls`",
    ),
    (
        "CVE-2019-14271, CVE-2026-41567",
        "docker cp loaded the container's libnss, or ran its decompressors, in a process of the host",
        "our code that enters a container is static, and `cp` runs the container's own tar in the container",
    ),
    (
        "CVE-2018-15664, CVE-2026-41568, CVE-2026-42306",
        "docker cp: a link is exchanged between the check and the copy, or the mount, on the host",
        "`cp` never opens a container's files from the host",
    ),
    ("CVE-2019-10152", "podman cp followed links of the container on the host", "as above"),
    (
        "CVE-2021-41089",
        "docker cp changed modes of files of the host",
        "as above; unpacking at the client is `copy-out`",
    ),
    (
        "CVE-2020-8555",
        "volume plugins of the controller manager dialled addresses out of StorageClasses",
        "no controller dials what an object names but webhooks, which an administrator writes",
    ),
    (
        "CVE-2025-13281, CVE-2017-1002100, CVE-2019-11252, CVE-2019-11255",
        "the same by the Portworx plugin; volumes and credentials of other in-tree plugins and of CSI",
        "as above: no in-tree volume plugins",
    ),
    (
        "CVE-2020-8561",
        "redirects of webhooks were followed, answers logged",
        "webhooks' redirects are not followed: the HTTP client has no such feature",
    ),
    (
        "CVE-2020-8562",
        "the proxy resolved a name twice, once to check it",
        "the address that was checked is the one dialled; `node-address` and `node-pod-ip` try the addresses",
    ),
    (
        "CVE-2018-1002105, CVE-2018-1002102",
        "after a failed upgrade a backend's connection stayed open for more requests, with the server's credential; a kubelet's redirect was followed",
        "each session is a fresh stream that the node dials; none is used twice, and a node listens on nothing",
    ),
    (
        "CVE-2021-25735",
        "validating webhooks for Nodes were shown old fields that the request could set",
        "what admission is shown as the old object is the stored one; Nodes have no fields of that kind",
    ),
    (
        "CVE-2023-2727",
        "ImagePolicyWebhook overlooked ephemeral containers",
        "there is no such plugin; `ephemeral-container` tries Pod Security",
    ),
    (
        "CVE-2024-7646, CVE-2025-1974, CVE-2025-1097, CVE-2025-1098, CVE-2025-24513, CVE-2025-24514, CVE-2020-8553, CVE-2021-25742, CVE-2021-25745, CVE-2021-25746, CVE-2021-25748, CVE-2023-5043, CVE-2023-5044",
        "ingress-nginx: annotations became nginx configuration",
        "there is no ingress controller",
    ),
    (
        "CVE-2023-3676, CVE-2023-3893, CVE-2023-3955, CVE-2023-5528, CVE-2024-5321, CVE-2024-9042, CVE-2021-25736, CVE-2021-25749",
        "nodes that run Windows",
        "nodes run Linux",
    ),
    (
        "CVE-2025-0426",
        "checkpoint requests to the kubelet's open port filled the disk",
        "a node listens on nothing (`node-listens`), and makes no checkpoints",
    ),
    (
        "CVE-2024-8676, CVE-2026-50195, CVE-2026-53489",
        "containers restored from an archive took their mounts from it, or gave an image another's name, or had a link for a log",
        "there is no restore",
    ),
    (
        "CVE-2020-8551, CVE-2020-8552",
        "requests to the kubelet's and the API server's open ports used up memory",
        "a node listens on nothing; the server's limits are tried by `bad_input`",
    ),
    (
        "CVE-2023-44487, CVE-2023-39325",
        "HTTP/2 streams opened and reset without end",
        "the HTTP library counts resets; limits are per connection (`bad_input`)",
    ),
    ("CVE-2024-45338, CVE-2023-45288, CVE-2022-41723 and others", "parsers of Go's libraries", "no Go in the product"),
    (
        "CVE-2019-11245",
        "a container ran as uid 0 after a restart, though its image has another user",
        "the user is worked out anew at each start, from the same image; `user-*` try the values",
    ),
    (
        "CVE-2020-8563, CVE-2020-8564, CVE-2020-8566",
        "credentials of volume plugins and registries in logs",
        "as above; no in-tree volume plugins",
    ),
    (
        "CVE-2024-0793",
        "an autoscaler of an unknown kind of metric crashed the controller manager",
        "controllers answer with conditions; the simulation feeds them all kinds",
    ),
    (
        "CVE-2023-1943, CVE-2023-1944, CVE-2021-25738, CVE-2020-8570, CVE-2025-9708, CVE-2018-18264, CVE-2018-1002103, CVE-2024-9486",
        "installers, client libraries, the dashboard, builders of nodes' images",
        "not part of podwright",
    ),
    (
        "CVE-2016-1905",
        "what a patch made of an object was not shown to admission",
        "each verb's object is admitted as it will be stored; `private-image` changes a Pod's image",
    ),
    (
        "CVE-2024-23650, CVE-2024-23651, CVE-2024-23652, CVE-2024-23653",
        "BuildKit: requests stopped the daemon, cache mounts raced, stubs were removed on the host, privileged steps through its API",
        "podwright builds no images. The race is that of `sub-path-race`; what is made for a mount point is never removed on the host",
    ),
    (
        "CVE-2024-1753, CVE-2024-9407, CVE-2024-9675, CVE-2024-11218, CVE-2021-3602, CVE-2019-13139, CVE-2024-24557, CVE-2020-27534, CVE-2023-26054, CVE-2026-33747, CVE-2026-33748",
        "building images: mounts, caches, git contexts",
        "podwright builds no images",
    ),
    (
        "CVE-2024-41110, CVE-2026-34040, CVE-2026-33997",
        "Docker: authorization plugins were shown no body; a plugin's rights were not all asked for",
        "there are no such plugins",
    ),
    (
        "CVE-2018-12608",
        "Docker took clients' certificates of any authority that the host trusts",
        "clients' certificates are verified by the authority that the server was given, and no other",
    ),
    (
        "CVE-2018-20699",
        "Docker: a processor's number without end in a cpuset used up memory",
        "no field of a Pod names processors",
    ),
    (
        "CVE-2025-9074, CVE-2025-62725",
        "Docker Desktop: its API was open to containers. Compose: an artifact's annotations were paths",
        "`node-listens` and `api-from-a-pod` try what a container reaches; no file is called by what an artifact says (`layer-traversal`)",
    ),
    (
        "CVE-2024-0132, CVE-2025-23266, CVE-2025-23359",
        "NVIDIA's toolkit: a link of the image led a mount to the host; a variable of the image was one of its hook's",
        "there are no hooks; links are tried by `mount-target-link`, variables by `image-environment`",
    ),
    (
        "CVE-2026-30892",
        "crun exec: the user 1 became user 0",
        "the user of an exec is the container's, nobody names another; `user-*` try the values",
    ),
    (
        "CVE-2021-20206, CVE-2026-32241",
        "a CNI configuration named any program by a path; flannel ran commands out of a node's annotations",
        "no program is run for a Pod's network",
    ),
    (
        "no CVE (GHSA-rp3h-jf77-q9p4)",
        "containerd: a layer whose unpacking looks through its folders again and again",
        "what goes is looked at, and nothing beside it (tests of the image store)",
    ),
    (
        "CVE-2021-21284, CVE-2021-21285",
        "Docker: the folder of remapped users; a malformed image stops the daemon",
        "volumes are idmapped, nothing is chowned by a user of the container; malformed images are fuzzed and tried by `layer-traversal`",
    ),
    (
        "CVE-2021-43784",
        "runc: a length in the netlink message of its own bootstrap overflowed",
        "the child is told what to do by its memory, not by a message that it parses with C",
    ),
    (
        "CVE-2020-15157",
        "containerd sent registry credentials to the address in a foreign layer's URL",
        "foreign layers' URLs are not fetched; credentials are for the registry's host alone (tests of the image store)",
    ),
    ("CVE-2022-24778, CVE-2020-28914", "imgcrypt, Kata: other runtimes' features", "not part of podwright"),
    ("CVE-2020-14370", "podman: environment of one container in another by the varlink API", "there is no such API"),
    (
        "CVE-2024-3154",
        "CRI-O: an annotation became properties of a systemd unit",
        "no annotation reaches the runtime but `podwright/journal`",
    ),
    (
        "CVE-2025-0750",
        "CRI-O: the folder of a Pod's logs was mounted and unmounted by a path that an annotation and a container's name led elsewhere",
        "logs are neither mounted nor linked; their paths are of the namespace, the names and the uid that the API has checked or made. \
         What is put in their place is tried by `log-link` and `log-fifo`",
    ),
    (
        "CVE-2025-4437",
        "CRI-O read all of an image's `/etc/passwd` into memory",
        "1 MiB of it is read, in the agent as everywhere (tests of the image store); what is no regular file is tried by `passwd-fifo`",
    ),
    (
        "CVE-2024-5154",
        "CRI-O: a link at `/etc/mtab` of an image made a file on the host",
        "`/etc/mtab` is not made; targets of mounts are tried by `mount-target-link` and `dev-link`",
    ),
    (
        "CVE-2022-4318, CVE-2026-15809",
        "CRI-O: a line break in HOME wrote a line of `/etc/passwd`",
        "nothing writes a container's passwd file",
    ),
    (
        "CVE-2024-9341",
        "a link in an image led a mount of FIPS files to the host",
        "there is no such mount; links are tried by `mount-target-link`",
    ),
    (
        "CVE-2024-29018",
        "Docker: names of internal networks were asked for outside",
        "cluster names are never forwarded (tests of the DNS)",
    ),
    (
        "CVE-2025-47291",
        "containerd: Pods with user namespaces had no cgroup limits",
        "a Pod's cgroup is the same with and without a user namespace (tests of limits in a guest)",
    ),
    (
        "CVE-2021-20291, CVE-2023-25153",
        "images that made the store wait for ever, or read all of a file into memory",
        "documents have a limit of 8 MiB, the rest is streamed (tests of the image store)",
    ),
    (
        "CVE-2020-8567, CVE-2020-8568, CVE-2020-8569, CVE-2023-2878, CVE-2021-25739, CVE-2024-3744, CVE-2025-7445 and others",
        "drivers for storage, secrets and snapshots outside of the core",
        "not part of podwright",
    ),
    (
        "CVE-2021-43816",
        "containerd gave files of a hostPath the Pod's SELinux label",
        "nothing is labelled: a Pod with SELinux options is refused where they cannot be enforced (tests of the node's admission)",
    ),
    (
        "CVE-2019-14891",
        "CRI-O: what watches a container was killed with it for want of memory, being in its cgroup",
        "the shim has a cgroup beside the Pods' (tests of limits in a guest)",
    ),
    (
        "CVE-2025-24965",
        "crun: its handler for virtual machines wrote a file through a link of the image",
        "there are no such handlers; that nothing is made through a link is `mount-target-link` and `workdir-made`",
    ),
    (
        "CVE-2021-41092, CVE-2019-1020014",
        "Docker's client sent credentials to another registry when it could not run the helper that it was told of; a helper freed memory twice",
        "no helpers are run; credentials are for the registry's host alone (tests of the image store)",
    ),
    (
        "CVE-2023-28840, CVE-2023-28841, CVE-2023-28842",
        "Swarm: encrypted networks took packets in, or sent them, that were not",
        "traffic between nodes is not encrypted, and not said to be, see SECURITY.md",
    ),
    (
        "CVE-2024-32473",
        "Docker: interfaces of networks without IPv6 had it all the same",
        "a Pod's link lets nothing through of a family that the node does not have; `router-advertisement` tries one",
    ),
    (
        "CVE-2024-36620, CVE-2024-36621, CVE-2024-36623",
        "Docker: a crash at an image without a history, races of layers and of progress reports",
        "an image needs no history; what threads share is behind locks, as the compiler sees to",
    ),
    (
        "CVE-2025-54388, CVE-2025-54410",
        "Docker: when firewalld was loaded anew, rules for loopback ports and between networks were gone",
        "the rules are in an nftables table of podwright's own, which firewalld leaves alone",
    ),
    (
        "CVE-2016-7075",
        "client certificates of an authority below were taken whatever they were made for",
        "the TLS library verifies chains and what a certificate may be used for; `certificate-masters` tries to get one",
    ),
    ("CVE-2017-1000056", "anybody could use any PodSecurityPolicy", "there are no PodSecurityPolicies"),
    (
        "CVE-2019-11243, CVE-2019-11244",
        "Go's client kept a credential that it was told to leave out; kubectl's cache was open to other users",
        "another client; it keeps no cache",
    ),
    (
        "CVE-2024-7598",
        "of a namespace that is deleted the NetworkPolicies could go before its Pods",
        "Pods go first (tests of the controllers); a node goes by the policies that there are until its Pod's addresses are given back",
    ),
    (
        "no CVE",
        "TIOCSTI: characters pushed into the terminal of who runs exec",
        "a terminal in a container is a pty of its own; bytes pushed into it stay there. What is printed to the client is the container's, see SECURITY.md",
    ),
    ("no CVE", "side channels: caches, timing, load, /proc/stat", "not promised, see SECURITY.md"),
    (
        "no CVE",
        "the metadata service of a cloud (169.254.169.254)",
        "open unless a NetworkPolicy for egress leaves it out, see SECURITY.md. An isolated node's network leads nowhere",
    ),
];
