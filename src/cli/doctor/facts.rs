//! The facts that checks evaluate: plain values, so that every rule can be tested without a host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;

use podwright_api::{Status, protections::Protections};

pub struct Facts {
    pub host: Host,
    /// Or why the cluster could not be queried.
    pub cluster: Result<Cluster, Status>,
}

/// This machine.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub now: Timestamp,
    /// Small files in /proc and /sys by path; missing ones are absent.
    pub kernel_files: BTreeMap<&'static str, String>,
    pub swaps: Vec<Swap>,
    /// The server's directory with its content, and the programs.
    pub state: PathBuf,
    pub files: Vec<File>,
    pub certificates: Vec<Certificate>,
    /// The command lines of `podwright` processes.
    pub processes: Vec<Vec<String>>,
}

#[derive(Clone, Debug)]
pub struct Swap {
    pub device: String,
    /// On a disk, and not encrypted.
    pub in_the_clear: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Folder,
    /// Keys, tokens, the store: only their owner may read them.
    Secret,
    Socket,
    /// Programs that root runs: only root may write them.
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

/// The facts from the API.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub protections: Protections,
    pub nodes: Vec<Node>,
    pub namespaces: Vec<Namespace>,
    pub pods: Vec<Pod>,
    /// An admission policy denies system priorities to Pods.
    pub bars_system_priorities: bool,
    /// Each subject bound to cluster-admin, except for the administrators' group.
    pub administrators: Vec<String>,
    /// Bindings for unauthenticated users, except for those in every cluster.
    pub anonymous_bindings: Vec<String>,
    /// Bootstrap tokens, and whether each expires.
    pub bootstrap_tokens: Vec<(String, bool)>,
    /// Legacy tokens of ServiceAccounts, which never expire.
    pub endless_tokens: Vec<String>,
}

/// What a Node reports about itself.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub name: String,
    /// It supports user namespaces (KEP-127).
    pub user_namespaces: bool,
    /// How it measures Pods' disk usage; "" if it does not say.
    pub disk_usage: String,
    /// Whether other programs' tables drop its Pods' traffic or may do so, and which or why; `None` if it does not say.
    pub conflicting_tables: Option<(bool, String)>,
}

#[derive(Clone, Debug, Default)]
pub struct Namespace {
    pub name: String,
    /// The enforced Pod Security level.
    pub enforced: Option<String>,
    /// A ResourceQuota allows no Pods with the system's PriorityClasses.
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
    /// It has a token of the ServiceAccount `default`, by default.
    pub default_token: bool,
    pub unlimited: bool,
    /// It has no user namespace of its own.
    pub shares_users: bool,
    /// Unsafe sysctls.
    pub unsafe_sysctls: bool,
    /// Capabilities beyond the baseline's.
    pub added_capabilities: bool,
    /// A container that is not privileged has no seccomp filter.
    pub unfiltered: bool,
    /// `procMount: Unmasked`
    pub unmasked: bool,
    /// `system-node-critical`, or `system-cluster-critical`.
    pub system_priority: bool,
}

impl Host {
    /// The content of a kernel file; "" if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.kernel_files.get(path).map_or("", String::as_str)
    }

    /// Its number, if it has one.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path).parse().ok()
    }

    /// The values of a flag in all processes: `--flag value` and `--flag=value`.
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
