//! Resolves a process's program and environment with its own privileges, in its own root.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::protocol::StartFailure;
use crate::protocol::{Failure, FailureKind, ProcessPlan};
use podwright_sys::own;

/// No legitimate passwd file is longer.
const MAX_PASSWD: u64 = 1 << 20;
const STARTING: &str = "unable to start container process: error during container init: exec:";

/// The program to execute, and its environment.
pub type Program = Result<(PathBuf, Vec<String>), Failure>;

pub fn program(plan: &ProcessPlan) -> Program {
    let env = with_home(plan);
    Ok((find(&plan.args[0], &env)?, env))
}

/// The environment, with HOME from the image's passwd file unless the spec sets it.
fn with_home(plan: &ProcessPlan) -> Vec<String> {
    let mut env = plan.env.clone();
    if !env.iter().any(|e| e.starts_with("HOME=")) {
        let passwd = read_passwd().unwrap_or_default();
        let uid = plan.uid.to_string();
        let home = passwd.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|f| f.get(2) == Some(&&*uid));
        env.push(format!("HOME={}", home.and_then(|f| f.get(5).copied()).filter(|h| !h.is_empty()).unwrap_or("/")));
    }
    env
}

/// Reads only regular files, without blocking: a container may have put anything there.
fn read_passwd() -> Option<String> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let at = rustix::fs::open("/etc/passwd", rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, 0.into()).ok()?;
    let is_file = |fd: OwnedFd| fs::File::from(fd).metadata().is_ok_and(|m| m.is_file());
    if !is_file(at) {
        return None;
    }
    let file = fs::File::options().read(true).custom_flags(flags).open("/etc/passwd").ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_PASSWD).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Like Go's exec.LookPath, which runc uses: what users of upstream see.
fn find(name: &str, env: &[String]) -> Result<PathBuf, Failure> {
    let fail = |kind, why: String| Failure::new(FailureKind::Start(kind), format!("{STARTING} {name:?}: {why}"));
    if name.contains('/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(fail(StartFailure::PermissionDenied, format!("stat {name}: permission denied")))
            }
            Err(_) => Err(fail(StartFailure::NoSuchFile, format!("stat {name}: no such file or directory"))),
            // The shim's own program, through /proc/self/exe: not for containers.
            Ok(meta) if own::is_program(&meta) => Err(fail(StartFailure::PermissionDenied, "permission denied".into())),
            Ok(meta) if meta.is_dir() => Err(fail(StartFailure::PermissionDenied, "is a directory".into())),
            Ok(meta) if meta.permissions().mode() & 0o111 == 0 => {
                Err(fail(StartFailure::PermissionDenied, "permission denied".into()))
            }
            Ok(_) => Ok(path),
        };
    }
    let path = env.iter().rev().find_map(|e| e.strip_prefix("PATH=")).unwrap_or_default();
    path.split(':')
        .map(|folder| Path::new(if folder.is_empty() { "." } else { folder }).join(name))
        .find(|file| {
            fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0 && !own::is_program(&m))
        })
        .ok_or_else(|| fail(StartFailure::NotFoundInPath, "executable file not found in $PATH".into()))
}

/// The failure for an errno of execve.
pub fn failure(name: &str, error: &std::io::Error) -> Failure {
    let (kind, why) = match error.raw_os_error() {
        Some(libc::ENOENT) => (StartFailure::NoSuchFile, "no such file or directory".to_owned()),
        Some(libc::EACCES | libc::EPERM) => (StartFailure::PermissionDenied, "permission denied".to_owned()),
        Some(libc::ENOEXEC) => (StartFailure::ExecFailed, "exec format error".to_owned()),
        _ => (StartFailure::ExecFailed, error.to_string()),
    };
    Failure::new(FailureKind::Start(kind), format!("{STARTING} {name:?}: {why}"))
}
