//! The API server's own report on its protections: the response of the method `protections`.

use serde::{Deserialize, Serialize};

/// The method's name.
pub const METHOD: &str = "protections";
/// Required to call it: the right to `get` this path.
pub const PATH: &str = "/debug/protections";

/// The Node annotation on how it measures Pods' disk usage: [`PROJECT_QUOTAS`], or `walking: WHY`.
pub const DISK_USAGE: &str = "podwright/disk-usage";
pub const PROJECT_QUOTAS: &str = "project quotas";

/// The Node condition on whether other programs' tables drop its Pods' traffic; its message names them.
pub const CONFLICTING_TABLES: &str = "ConflictingTables";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Protections {
    /// The state of Secrets in the store.
    pub secrets: AtRest,
    /// Whether there is an audit log.
    pub audit: bool,
    /// How many static tokens a file has.
    pub fixed_tokens: usize,
    /// The OpenID Connect issuer that is trusted in addition to the server itself.
    pub issuer: Option<String>,
    /// The authorizers, by upstream's names.
    pub authorization: Vec<String>,
    /// The disabled admission plugins.
    pub disabled_admission: Vec<String>,
    /// The TLS listen addresses.
    pub listening: Vec<String>,
    /// The server's process.
    pub process: Process,
}

/// Determined by reading raw values from the store, below the encryption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AtRest {
    /// Whether new values are encrypted.
    pub configured: bool,
    pub encrypted: usize,
    /// The keys of unencrypted ones, up to a limit.
    pub clear: Vec<String>,
}

/// The kernel's report on a process (proc_pid_status(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
    /// The effective capabilities, as a bit mask.
    pub capabilities: u64,
    pub no_new_privs: bool,
    /// 0: none, 2: a filter.
    pub seccomp: u8,
    /// Whether it also runs this machine's node, which needs root.
    pub runs_node: bool,
    /// Whether Landlock confines it to its directories.
    pub landlock: bool,
}

impl Process {
    /// Parses `/proc/PID/status`.
    pub fn parse(status: &str) -> Process {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().nth(if name == "Uid" { 1 } else { 0 })).unwrap_or("")
        };
        Process {
            pid: field("Pid").parse().unwrap_or_default(),
            uid: field("Uid").parse().unwrap_or_default(),
            capabilities: u64::from_str_radix(field("CapEff"), 16).unwrap_or_default(),
            no_new_privs: field("NoNewPrivs") == "1",
            seccomp: field("Seccomp").parse().unwrap_or_default(),
            ..Process::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_a_process_may() {
        let status = "Name:\tpodwright\nPid:\t42\nUid:\t0\t991\t991\t991\nCapEff:\t0000000000000400\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        let wanted =
            Process { pid: 42, uid: 991, capabilities: 0x400, no_new_privs: true, seccomp: 2, ..Process::default() };
        assert_eq!(Process::parse(status), wanted);
    }
}
