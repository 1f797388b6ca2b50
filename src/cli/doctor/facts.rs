//! What the checks judge: plain values, so that every rule can be tried without a host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;

use podwright_api::{Status, protections::Protections};

pub struct Facts {
    pub host: Host,
    /// Or why nobody could be asked.
    pub cluster: Result<Cluster, Status>,
}

/// This machine.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub now: Timestamp,
    /// Small files of /proc and /sys by their paths; those that are missing are not here.
    pub kernel_files: BTreeMap<&'static str, String>,
    pub swaps: Vec<Swap>,
    /// The server's folder with what lies in it, and the programs.
    pub state: PathBuf,
    pub files: Vec<File>,
    pub certificates: Vec<Certificate>,
    /// The words that `podwright` processes were started with.
    pub processes: Vec<Vec<String>>,
}

#[derive(Clone, Debug)]
pub struct Swap {
    pub device: String,
    /// On a disk, and not encrypted on its way there.
    pub in_the_clear: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Folder,
    /// Keys, tokens, the store: for nobody else to read.
    Secret,
    Socket,
    /// What root runs: for nobody else to write.
    Program,
}

#[derive(Clone, Debug)]
pub struct File {
    pub path: PathBuf,
    pub content: Content,
    pub mode: u32,
    pub uid: u32,
}

#[derive(Clone, Debug)]
pub struct Certificate {
    pub name: String,
    pub ends: Timestamp,
}

/// What the API tells.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub protections: Protections,
    pub nodes: Vec<Node>,
    pub namespaces: Vec<Namespace>,
    pub pods: Vec<Pod>,
    /// An admission policy denies the system's priorities to Pods.
    pub bars_system_priorities: bool,
    /// Each subject of a binding to cluster-admin, but for the group of administrators.
    pub administrators: Vec<String>,
    /// Bindings of whoever shows no credential, but for those that every cluster has.
    pub anonymous_bindings: Vec<String>,
    /// Bootstrap tokens, and whether each ends.
    pub bootstrap_tokens: Vec<(String, bool)>,
    /// Legacy tokens of ServiceAccounts, which never end.
    pub endless_tokens: Vec<String>,
}

/// What a Node says of itself.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub name: String,
    /// It gives Pods users of their own (KEP-127).
    pub user_namespaces: bool,
    /// How it learns what Pods have on disk; "" where it does not say.
    pub disk_usage: String,
    /// Whether other programs' tables drop its Pods' traffic or may do so, and which or why; `None` where it does not say.
    pub conflicting_tables: Option<(bool, String)>,
}

#[derive(Clone, Debug, Default)]
pub struct Namespace {
    pub name: String,
    /// The Pod Security level that is enforced.
    pub enforced: Option<String>,
    /// A ResourceQuota leaves no Pods of the system's PriorityClasses.
    pub bars_system_priorities: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// `namespace/name`
    pub name: String,
    pub privileged: bool,
    pub host_path: bool,
    /// hostNetwork, hostPID or hostIPC.
    pub host_namespaces: bool,
    /// It has a token of the ServiceAccount `default`, which nobody asked for.
    pub default_token: bool,
    pub unlimited: bool,
    /// Its users are the host's.
    pub shares_users: bool,
    /// Sysctls beyond the safe ones.
    pub unsafe_sysctls: bool,
    /// Capabilities beyond the baseline's.
    pub added_capabilities: bool,
    /// A container that is not privileged asks for no seccomp filter.
    pub unfiltered: bool,
    /// `procMount: Unmasked`
    pub unmasked: bool,
    /// `system-node-critical`, or `system-cluster-critical`.
    pub system_priority: bool,
}

impl Host {
    /// A kernel file's text; "" where there is none.
    pub fn text(&self, path: &str) -> &str {
        self.kernel_files.get(path).map_or("", String::as_str)
    }

    /// Its number, where it holds one.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path).parse().ok()
    }

    /// The values of a flag of all processes: `--flag value` and `--flag=value`.
    pub fn flags(&self, flag: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for words in &self.processes {
            for (at, word) in words.iter().enumerate() {
                if word == flag {
                    values.push(words.get(at + 1).map_or("", String::as_str));
                } else if let Some(value) = word.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
                    values.push(value);
                }
            }
        }
        values
    }
}
