//! Creates network namespaces, even if root's limit is exhausted.
//!
//! They count for their creator (namespaces(7), `max_net_namespaces`): root in containers shares the number of the machine's root.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::thread::Builder;

use nix::sched::{CloneFlags, unshare};
use rustix::io;
use rustix::process::{Uid, geteuid};
use rustix::thread::{capabilities, set_capabilities, set_thread_res_uid};

use super::{current_netns, no_thread};
use crate::{Error, Result};

/// Users above the ids that Pods may name; also used by the runtime for namespaces.
const FIRST_OWNER: u32 = 0xF000_0000;
const OWNERS: u32 = 0x0FFF_FFFE;

/// A new network namespace, known only by the descriptor. Its `lo` is down.
pub fn new_netns() -> Result<OwnedFd> {
    // In a new thread, which ends with its changed credentials and namespace.
    let make = || {
        match unshare_net() {
            Err(used_up) if used_up.errno() == Some(libc::ENOSPC) => {
                become_nobody().map_err(|_| used_up)?;
                unshare_net()?;
            }
            done => done?,
        }
        current_netns()
    };
    let made = Builder::new().spawn(make).map_err(no_thread)?;
    made.join().unwrap_or(Err(Error::ThreadGone))
}

fn unshare_net() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| Error::call("unshare(CLONE_NEWNET)", e.into()))
}

/// Gives root's thread an unused effective user, with all of root's capabilities.
fn become_nobody() -> io::Result<()> {
    if !geteuid().is_root() {
        return Err(io::Errno::PERM);
    }
    let before = capabilities(None)?;
    let any = RandomState::new().hash_one(std::process::id());
    let nobody = Uid::from_raw(FIRST_OWNER + (any % u64::from(OWNERS)) as u32);
    set_thread_res_uid(None, nobody, None)?;
    // The kernel clears the effective set when the effective user is no longer root; the permitted set stays, as the real user is
    // root.
    set_capabilities(None, before)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// In a new user namespace with its own limits.
    const CROWDED: &str = "PODWRIGHT_TEST_CROWDED";

    #[test]
    fn what_root_has_used_up_keeps_no_namespace_from_being_made() {
        if std::env::var_os(CROWDED).is_some() {
            return in_a_crowd();
        }
        if !geteuid().is_root() {
            return println!("left out: it needs root");
        }
        // It runs the test as root of that namespace: its ids are mapped by then.
        let life = r#"echo in; read go; exec "$0" --exact --nocapture "$1""#;
        let name = "netlink::new_netns::tests::what_root_has_used_up_keeps_no_namespace_from_being_made";
        let mut child = Command::new("unshare");
        child.args(["--user", "sh", "-c", life]).arg(std::env::current_exe().unwrap()).arg(name);
        child.env(CROWDED, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let (mut told, mut text) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        told.read_line(&mut text).unwrap();
        for file in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{file}", child.id()), "0 0 4294967295").unwrap();
        }
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        told.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success() && text.contains("1 passed"), "{text}");
    }

    fn in_a_crowd() {
        let limit = |number: &str| fs::write("/proc/sys/user/max_net_namespaces", number).unwrap();
        limit("1");
        let all: Vec<OwnedFd> = (0..3).map(|_| new_netns().unwrap()).collect();
        let inodes: std::collections::BTreeSet<u64> =
            all.iter().map(|netns| super::super::inode(std::os::fd::AsFd::as_fd(netns)).unwrap()).collect();
        assert_eq!(inodes.len(), 3);
        assert!(geteuid().is_root(), "who asks is who he was");
        limit("0");
        assert_eq!(new_netns().unwrap_err().errno(), Some(libc::ENOSPC), "nobody has any");
    }
}
