//! What a manifest requests and must not get, or must really get: sysctls, user namespaces, profiles, storage.

use serde_json::json;

use super::world::{End, NO_USERS, OPEN, RESTRICTED, World};
use super::{Attack, Expect, POD, Pod, Target, Try, Verdict};

/// Whether it has a user namespace.
const OWN_USERS: &str = "set -- $(cat /proc/self/uid_map); if [ \"$2\" = 0 ]; then echo BREACH: uid 0 is the host\\'s: $*; else echo held: $*; fi";

/// Fills something, and is still running when it should have been evicted.
macro_rules! filling {
    ($script:literal) => {
        concat!($script, "; sync; sleep 35; echo BREACH: it is still there")
    };
}

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "sysctl-core-pattern",
        class: "sysctl",
        cves: &["CVE-2022-0811"],
        how: "a Pod sets `kernel.core_pattern` (to what it is)",
        held: "an allow-list of namespaced sysctls: SysctlForbidden",
        attempt: Try::Code(|world, target| sysctls(world, target, "{}", &["kernel.core_pattern"])),
    },
    Attack {
        id: "sysctl-spelling",
        class: "sysctl",
        cves: &["CVE-2022-0811"],
        how: "the same spelled with slashes, with `..`, behind an allowed prefix",
        held: "names are brought into one spelling before they are compared",
        attempt: Try::Code(|world, target| {
            let names = [
                "kernel/core_pattern",
                "net/ipv4/../../kernel/core_pattern",
                "net.ipv4.ip_local_port_range/../../../kernel/core_pattern",
                "kernel.shm_rmid_forced/../core_pattern",
                "kernel..core_pattern",
            ];
            sysctls(world, target, "{}", &names)
        }),
    },
    Attack {
        id: "sysctl-host",
        class: "sysctl",
        cves: &[],
        how: "sysctls that no namespace has: vm, fs, kernel.modprobe, kernel.panic",
        held: "as above",
        attempt: Try::Code(|world, target| {
            let names = [
                "vm.swappiness",
                "fs.file-max",
                "kernel.modprobe",
                "kernel.panic",
                "kernel.pid_max",
                "dev.tty.ldisc_autoload",
            ];
            sysctls(world, target, "{}", &names)
        }),
    },
    Attack {
        id: "sysctl-host-namespaces",
        class: "sysctl",
        cves: &["CVE-2022-0532"],
        how: "`net.*` with `hostNetwork`, `kernel.shm*` with `hostIPC`",
        held: "refused where the namespace is the host's",
        attempt: Try::Code(|world, target| {
            let net = sysctls(world, target, "{hostNetwork: true}", &["net.ipv4.ip_unprivileged_port_start"]);
            match net {
                Verdict::Held(_) => sysctls(world, target, "{hostIPC: true}", &["kernel.shm_rmid_forced"]),
                other => other,
            }
        }),
    },
    Attack {
        id: "sysctl-unsafe",
        class: "sysctl",
        cves: &[],
        how: "namespaced sysctls that are not of upstream's safe set",
        held: "SysctlForbidden, unless `--allowed-unsafe-sysctls` names them",
        attempt: Try::Code(|world, target| {
            sysctls(world, target, "{}", &["net.ipv4.ip_forward", "kernel.msgmax", "net.core.somaxconn"])
        }),
    },
    Attack {
        id: "sysctl-value",
        class: "sysctl",
        cves: &["CVE-2022-0811"],
        how: "an allowed sysctl whose value goes on with `+kernel.core_pattern=` and what it is (cr8escape)",
        held: "a value is written to the one file, as it is; the kernel refuses it",
        attempt: Try::Pod(Pod {
            spec: "securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '1024+kernel.core_pattern=core'}]}",
            expect: Expect::Refused(""),
            ..POD
        }),
    },
    Attack {
        id: "host-users",
        class: "user namespace",
        cves: &[],
        how: "`hostUsers: false`; looks at its uid_map",
        held: "a user namespace with a range of its own, or the Pod is refused",
        attempt: Try::Pod(Pod {
            spec: "hostUsers: false",
            script: OWN_USERS,
            expect: Expect::HeldOrRefused(NO_USERS),
            ..POD
        }),
    },
    Attack {
        id: "host-users-relaxed",
        class: "user namespace",
        cves: &[],
        how: "the same as root in a `restricted` namespace, which Pod Security allows for Pods with users of their own; one of the nodes does not say that it gives them",
        held: "Pod Security's relaxations count only where they are enforced",
        attempt: Try::Pod(Pod {
            namespace: RESTRICTED,
            spec: "{hostUsers: false, securityContext: {runAsNonRoot: null, runAsUser: 0}}",
            script: OWN_USERS,
            expect: Expect::Refused("violates PodSecurity"),
            ..POD
        }),
    },
    Attack {
        id: "proc-unmasked",
        class: "user namespace",
        cves: &[],
        how: "`procMount: Unmasked` with `hostUsers: false`; looks at its uid_map, and writes to /proc",
        held: "only with a user namespace; there the kernel refuses what is the host's",
        attempt: Try::Pod(Pod {
            spec: "hostUsers: false",
            container: "securityContext: {procMount: Unmasked}",
            script: OWN_USERS,
            expect: Expect::HeldOrRefused(NO_USERS),
            ..POD
        }),
    },
    Attack {
        id: "proc-unmasked-host-users",
        class: "user namespace",
        cves: &[],
        how: "`procMount: Unmasked` with the host's users",
        held: "refused by validation",
        attempt: Try::Pod(Pod {
            container: "securityContext: {procMount: Unmasked}",
            script: "attack writable /proc/sys",
            expect: Expect::Refused("procMount"),
            ..POD
        }),
    },
    Attack {
        id: "app-armor",
        class: "profiles",
        cves: &["CVE-2019-16884", "CVE-2023-28642"],
        how: "an AppArmor profile where the kernel has no AppArmor, or no such profile",
        held: "what is asked for and cannot be given refuses the Pod",
        attempt: Try::Pod(Pod {
            spec: "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: no-such-profile}}",
            script: "echo BREACH: it runs; cat /proc/self/attr/current",
            // "Cannot enforce AppArmor", or "apparmor profile not found".
            expect: Expect::Refused("rmor"),
            ..POD
        }),
    },
    Attack {
        id: "run-as-minus-one",
        class: "image user",
        cves: &["CVE-2024-40635"],
        how: "`runAsUser`, `runAsGroup`, `fsGroup` and `supplementalGroups` of 4294967295 and above",
        held: "refused by validation: upstream's range ends at 2147483647",
        attempt: Try::Code(minus_one),
    },
    Attack {
        id: "empty-dir-limit",
        class: "storage",
        cves: &[],
        how: "fills an emptyDir with a `sizeLimit` of 1Mi with 8 MiB",
        held: "volumes are measured; the Pod is evicted",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}]",
            script: filling!("head -c 8388608 /dev/urandom > /v/full"),
            expect: Expect::Refused("Evicted"),
            ..POD
        }),
    },
    Attack {
        id: "writable-layer-limit",
        class: "storage",
        cves: &[],
        how: "fills the root file system with 8 MiB, with a limit for ephemeral-storage of 1Mi",
        held: "the writable layer is measured; the Pod is evicted",
        attempt: Try::Pod(Pod {
            container: "resources: {limits: {ephemeral-storage: 1Mi}}",
            script: filling!("head -c 8388608 /dev/urandom > /full"),
            expect: Expect::Refused("Evicted"),
            ..POD
        }),
    },
    Attack {
        id: "log-limit",
        class: "storage",
        cves: &[],
        how: "the same by what it prints",
        held: "logs count; the Pod is evicted",
        attempt: Try::Pod(Pod {
            container: "resources: {limits: {ephemeral-storage: 1Mi}}",
            script: filling!(
                "yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c 8388608"
            ),
            expect: Expect::Refused("Evicted"),
            ..POD
        }),
    },
    Attack {
        id: "hosts-file-limit",
        class: "storage",
        cves: &["CVE-2020-8557"],
        how: "the same by `/etc/hosts`, which is a file of the agent's",
        held: "the Pod's own files of the agent count too, or cannot be written",
        attempt: Try::Pod(Pod {
            container: "resources: {limits: {ephemeral-storage: 1Mi}}",
            script: filling!("head -c 8388608 /dev/urandom >> /etc/hosts"),
            expect: Expect::Refused("Evicted"),
            ..POD
        }),
    },
    Attack {
        id: "critical-limit",
        class: "storage",
        cves: &[],
        how: "fills the root file system as above with `priorityClassName: system-node-critical`, which anybody may write, and which upstream exempts from limits",
        held: "only static Pods, and those of kube-system with such a priority, are exempt; the Pod is evicted",
        attempt: Try::Pod(Pod {
            spec: "priorityClassName: system-node-critical",
            container: "resources: {limits: {ephemeral-storage: 1Mi}}",
            script: filling!("head -c 8388608 /dev/urandom > /full"),
            expect: Expect::Refused("Evicted"),
            ..POD
        }),
    },
];

/// A Pod for each sysctl, which sets its current value; all must be refused.
fn sysctls(world: &World, target: &Target, spec: &'static str, names: &[&str]) -> Verdict {
    let mut seen = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let path = std::path::Path::new("/proc/sys").join(if name.contains('/') {
            name.to_string()
        } else {
            name.replace('.', "/")
        });
        let value = std::fs::read_to_string(path).unwrap_or_else(|_| "core".into());
        let mut object = world.pod(target, &Pod { spec, ..POD });
        let kind = if spec.contains("IPC") { "ipc" } else { "n" };
        object["metadata"]["name"] = json!(format!("{}-{kind}{number}", target.id));
        object["spec"]["securityContext"] = json!({"sysctls": [{"name": name, "value": value.trim()}]});
        match world.run_to_the_end(&object) {
            End::Said(said) => return Verdict::Breach(format!("{name} was set: {said}")),
            End::Refused(why)
                if why.contains("SysctlForbidden") || why.contains("sysctl") && !why.contains("/proc/sys/") =>
            {
                seen.push(why)
            }
            // An attempt was made to write it.
            End::Refused(why) => return Verdict::Breach(format!("{name} was not forbidden: {why}")),
        }
    }
    Verdict::Held(seen.join("; "))
}

fn minus_one(world: &World, target: &Target) -> Verdict {
    let mut seen = Vec::new();
    let contexts = [
        json!({"runAsUser": 4294967295u64}),
        json!({"runAsUser": 2147483648u64}),
        json!({"runAsUser": -1}),
        json!({"runAsUser": 1000, "runAsGroup": 4294967295u64}),
        json!({"fsGroup": 4294967295u64}),
        json!({"supplementalGroups": [4294967295u64]}),
    ];
    for (number, context) in contexts.into_iter().enumerate() {
        let mut object = world.pod(target, &POD);
        object["metadata"]["name"] = json!(format!("{}-{number}", target.id));
        object["spec"]["securityContext"] = context.clone();
        match world.create("pods", OPEN, object) {
            Ok(_) => return Verdict::Breach(format!("accepted: {context}")),
            Err(why) => seen.push(why),
        }
    }
    Verdict::Held(seen.remove(0))
}
