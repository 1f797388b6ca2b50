//! The namespaced sysctls: all others belong to the host, and sandboxes cannot set them. Pure.
//!
//! Upstream: `k8s.io/component-helpers/node/util/sysctl`; `man 5 sysctl.d` for the two notations of a name.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::spec::{IdRange, Network, SandboxSpec};
use crate::{Error, Result};

/// The namespace of a sysctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    /// Upstream's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Namespace::Ipc => "IPC",
            Namespace::Net => "Net",
        }
    }
}

/// Namespaced sysctls: a full name, or a prefix ending in `*`.
const NAMESPACED: [(&str, Namespace); 5] = [
    ("kernel.sem", Namespace::Ipc),
    ("kernel.shm*", Namespace::Ipc),
    ("kernel.msg*", Namespace::Ipc),
    ("fs.mqueue.*", Namespace::Ipc),
    ("net.*", Namespace::Net),
];

/// The namespace of the sysctl `name`, written with dots; `None`: it belongs to the whole host.
pub fn namespace(name: &str) -> Option<Namespace> {
    let is_it = |pattern: &str| pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix));
    NAMESPACED.iter().find(|(pattern, _)| is_it(pattern)).map(|(_, namespace)| *namespace)
}

/// A name in dot notation. The first of `.` and `/` is the separator; the other one is literal: `net/ipv4/conf/eth0.1/forwarding`
/// is `net.ipv4.conf.eth0/1.forwarding`.
pub fn dotted(name: &str) -> Cow<'_, str> {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => Cow::Owned(swapped(name)),
        _ => Cow::Borrowed(name),
    }
}

fn swapped(name: &str) -> String {
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

/// The file of a sysctl, below `/proc`. Fails for a name that would lead elsewhere.
pub fn path(name: &str) -> Result<PathBuf> {
    let below = swapped(&dotted(name));
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('\0');
    match below.split('/').all(is_plain) {
        true => Ok(Path::new("sys").join(below)),
        false => Err(Error::Invalid(format!("sysctl {name:?} is not a name"))),
    }
}

/// Contains group ids, which the kernel translates to the user namespace of the reader or writer.
const GROUPS: &str = "net/ipv4/ping_group_range";

/// The files to write for a sandbox, sorted by name, with their contents.
///
/// Fails for a sysctl of the host, or of a namespace that the sandbox shares with the host.
pub fn files(sandbox: &SandboxSpec) -> Result<Vec<(PathBuf, String)>> {
    sandbox.sysctls.iter().map(|(name, value)| Ok((own(name, sandbox)?, value.clone()))).collect()
}

/// The contents as read and written outside the sandbox's user namespace, where its groups have other ids.
pub fn from_outside(files: Vec<(PathBuf, String)>, users: Option<IdRange>) -> Vec<(PathBuf, String)> {
    let Some(users) = users else { return files };
    let id = |word: &str| word.parse().ok().filter(|id: &u32| *id < users.size).map(|id| users.host + id);
    let outside = |text: &str| {
        let words = text.split_whitespace().map(|word| id(word).map_or_else(|| word.to_owned(), |id| id.to_string()));
        words.collect::<Vec<_>>().join(" ")
    };
    let translated = |(path, text): (PathBuf, String)| match path.ends_with(GROUPS) {
        true => (path, outside(&text)),
        false => (path, text),
    };
    files.into_iter().map(translated).collect()
}

fn own(name: &str, sandbox: &SandboxSpec) -> Result<PathBuf> {
    let refused = |why: &str| Err(Error::Invalid(format!("sysctl {name:?} {why}")));
    match namespace(&dotted(name)) {
        None => refused("is not kept by a namespace: it is the host's"),
        Some(Namespace::Net) if sandbox.network != Network::New => {
            refused("is kept by the network namespace, which the sandbox shares")
        }
        Some(Namespace::Ipc) if sandbox.host_ipc => refused("is kept by the IPC namespace, which the sandbox shares"),
        Some(_) => path(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::CgroupName;

    #[test]
    fn groups_are_others_outside_of_a_sandboxs_users() {
        let mut sandbox = sandbox("net.ipv4.ip_forward");
        sandbox.sysctls.insert("net.ipv4.ping_group_range".to_owned(), "0\t65535".to_owned());
        let told = |users| -> Vec<String> {
            from_outside(files(&sandbox).unwrap(), users).into_iter().map(|(_, text)| text).collect()
        };
        assert_eq!(told(None), ["1", "0\t65535"]);
        assert_eq!(told(Some(IdRange { host: 200_000, size: 65_536 })), ["1", "200000 265535"]);
        assert_eq!(told(Some(IdRange { host: 200_000, size: 100 })), ["1", "200000 65535"]);
    }

    fn sandbox(sysctl: &str) -> SandboxSpec {
        let mut spec = SandboxSpec::new("s", CgroupName::new("s"));
        spec.sysctls.insert(sysctl.to_owned(), "1".to_owned());
        spec
    }

    #[test]
    fn a_sandbox_sets_what_its_own_namespaces_keep() {
        for (name, file) in [
            ("net.core.somaxconn", "sys/net/core/somaxconn"),
            ("net/core/somaxconn", "sys/net/core/somaxconn"),
            ("net.ipv4.conf.eth0/1.forwarding", "sys/net/ipv4/conf/eth0.1/forwarding"),
            ("net/ipv4/conf/eth0.1/forwarding", "sys/net/ipv4/conf/eth0.1/forwarding"),
            ("kernel.sem", "sys/kernel/sem"),
            ("kernel.shm_rmid_forced", "sys/kernel/shm_rmid_forced"),
            ("kernel/msgmax", "sys/kernel/msgmax"),
            ("fs.mqueue.msg_max", "sys/fs/mqueue/msg_max"),
        ] {
            let files = files(&sandbox(name)).unwrap();
            assert_eq!(files, [(PathBuf::from(file), "1".to_owned())], "{name}");
        }
    }

    #[test]
    fn the_hosts_are_never_set() {
        for name in [
            "kernel.core_pattern",
            "kernel/core_pattern",
            "kernel.hostname",
            "kernel.semaphore",
            "vm.overcommit_memory",
            "fs.file-max",
            "net",
            "",
            "net..kernel.core_pattern",
            "net...kernel.core_pattern",
            "net/../kernel/core_pattern",
            "net.//.kernel.core_pattern",
            "net.//kernel.core_pattern",
            "kernel.shm/../core_pattern",
            "kernel.shm.//.core_pattern",
            "/net/core/somaxconn",
            ".net.core.somaxconn",
            "net.core.somaxconn.",
            "net.core.a\0b",
        ] {
            assert!(files(&sandbox(name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn what_is_shared_with_the_host_is_the_hosts() {
        for network in [Network::Host, Network::Path("/run/netns/n".into())] {
            assert!(files(&SandboxSpec { network, ..sandbox("net.core.somaxconn") }).is_err());
        }
        assert!(files(&SandboxSpec { host_ipc: true, ..sandbox("kernel.msgmax") }).is_err());
        assert!(files(&SandboxSpec { host_ipc: true, ..sandbox("net.core.somaxconn") }).is_ok());
    }
}
