//! The sysctls that a Pod may safely set in its own namespaces, and the notation of their names.
//!
//! Upstream: `pkg/kubelet/sysctl/safe_sysctls.go`, `k8s.io/pod-security-admission/policy/check_sysctls.go`.

/// A safe sysctl.
pub struct Safe {
    pub name: &'static str,
    /// The minor version of Kubernetes 1 from which Pod Security's baseline allows it.
    pub since: u32,
    /// The kernel version from which it is namespaced.
    pub kernel: (u32, u32),
}

const fn safe(name: &'static str, since: u32, kernel: (u32, u32)) -> Safe {
    Safe { name, since, kernel }
}

pub const SAFE: [Safe; 12] = [
    safe("kernel.shm_rmid_forced", 0, (0, 0)),
    safe("net.ipv4.ip_local_port_range", 0, (0, 0)),
    safe("net.ipv4.tcp_syncookies", 0, (0, 0)),
    safe("net.ipv4.ping_group_range", 0, (0, 0)),
    safe("net.ipv4.ip_unprivileged_port_start", 0, (0, 0)),
    safe("net.ipv4.ip_local_reserved_ports", 27, (3, 16)),
    safe("net.ipv4.tcp_keepalive_time", 29, (4, 5)),
    safe("net.ipv4.tcp_fin_timeout", 29, (4, 6)),
    safe("net.ipv4.tcp_keepalive_intvl", 29, (4, 5)),
    safe("net.ipv4.tcp_keepalive_probes", 29, (4, 5)),
    safe("net.ipv4.tcp_rmem", 32, (4, 15)),
    safe("net.ipv4.tcp_wmem", 32, (4, 15)),
];

/// Whether Pod Security's baseline of Kubernetes 1.`version` lets Pods set `name`.
pub fn is_safe(name: &str, version: u32) -> bool {
    SAFE.iter().any(|safe| safe.name == name && safe.since <= version)
}

/// A name with dots: the first of `.` and `/` is the separator (`man 5 sysctl.d`).
pub fn dotted(name: &str) -> String {
    let slashed = name.find(['.', '/']).is_some_and(|at| name.as_bytes()[at] == b'/');
    let swap = |c| match c {
        '.' if slashed => '/',
        '/' if slashed => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}
