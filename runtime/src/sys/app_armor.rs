//! Sets the AppArmor profile that a process switches to on exec.

use std::fs::File;
use std::io::{Error as IoError, ErrorKind, Result as IoResult, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{self, Mode, OFlags, ResolveFlags};

use super::fs::{PROC, is_of};
use super::{Kernel, SysResult};

/// The inode of procfs's root, which nothing else in it has (`PROC_ROOT_INO` of the kernel).
const ROOT: u64 = 1;
/// The second is for AppArmor before Linux 5.8, and if no other security module uses it.
const ATTRIBUTES: [&str; 2] = ["thread-self/attr/apparmor/exec", "thread-self/attr/exec"];

impl Kernel {
    /// Makes the caller, and children it creates before then, switch to this profile on exec.
    ///
    /// Call it while `/proc` is the host's, before entering a mount namespace that a container influences: a write to a fake
    /// attribute would silently have no effect (CVE-2019-16884, CVE-2023-28642, CVE-2025-52881). So the opened file is verified to
    /// be on procfs, below its root, with nothing mounted over it, and to return what was written.
    pub fn set_profile_on_exec(&self, profile: &str) -> SysResult<()> {
        self.op(
            "write",
            |a| a.text("/proc/").text(ATTRIBUTES[0]).text(" <- exec ").text(profile),
            || {
                let proc = fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                if !is_of(proc.as_fd(), PROC) || fs::fstat(&proc)?.st_ino != ROOT {
                    return Err(IoError::other("/proc is no procfs"));
                }
                let mut attribute = open(proc.as_fd())?;
                attribute.write_all(format!("exec {profile}").as_bytes())?;
                let told = read(&attribute)?;
                match is_profile(&told, profile) {
                    true => Ok(()),
                    false => Err(IoError::other(format!("it is {told:?} afterwards"))),
                }
            },
        )
    }
}

fn open(proc: BorrowedFd<'_>) -> IoResult<File> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let open = |name: &str| fs::openat2(proc, name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty(), how);
    let file = open(ATTRIBUTES[0]).or_else(|e| match e {
        rustix::io::Errno::NOENT => open(ATTRIBUTES[1]),
        other => Err(other),
    })?;
    match is_of(file.as_fd(), PROC) {
        true => Ok(file.into()),
        false => Err(IoError::new(ErrorKind::InvalidInput, "not a file of procfs")),
    }
}

/// The attribute's content: at most a page.
fn read(attribute: &File) -> IoResult<String> {
    let mut bytes = [0; 4096];
    let length = attribute.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).trim_end_matches(['\n', '\0']).to_owned())
}

/// A name, followed by its mode in parentheses.
fn is_profile(told: &str, profile: &str) -> bool {
    told == profile || told.strip_prefix(profile).is_some_and(|mode| mode.starts_with(" (") && !mode[2..].contains('('))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_told_with_its_mode() {
        for (told, is) in [
            ("a", true),
            ("a (enforce)", true),
            ("a (b) (enforce)", false),
            ("ab (enforce)", false),
            ("", false),
            ("unconfined", false),
        ] {
            assert_eq!(is_profile(told, "a"), is, "{told:?}");
        }
    }

    /// Without such a profile, and without AppArmor.
    #[test]
    fn what_cannot_be_had_is_an_error() {
        let refused =
            Kernel::new(&podwright_journal::JournalWriter::none()).set_profile_on_exec("podwright-no-such-profile");
        let words = refused.unwrap_err().to_string();
        assert!(words.starts_with("write(/proc/thread-self/attr/apparmor/exec <- exec podwright-no-such"), "{words}");
    }
}
