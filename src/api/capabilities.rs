//! Capabilities that Pod Security's baseline lets containers add: those that container runtimes grant by default.
//!
//! Upstream: `k8s.io/pod-security-admission/policy/check_capabilities_baseline.go`.

pub const BASELINE: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
