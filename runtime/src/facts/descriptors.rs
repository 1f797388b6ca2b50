//! Counts processes' open descriptors and sockets, up to a bound.

use std::fs;
use std::path::Path;

/// Maximum number of inspected descriptors, and of processes, of a cgroup: bounds the work.
pub const MOST: u64 = 8192;
const PROCESSES: usize = 4096;

/// `None`: more than the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    pub all: Option<u64>,
    pub sockets: Option<u64>,
}

/// Of these processes; exited ones have none.
pub fn count(pids: &[u32]) -> Descriptors {
    if pids.len() > PROCESSES {
        return Descriptors::default();
    }
    let (mut all, mut sockets, mut left) = (0, Some(0), MOST);
    for pid in pids {
        let folder = format!("/proc/{pid}/fd");
        // Since Linux 6.2 the folder's size is their number, for a single call; before, and for an empty folder, it is 0.
        let Ok(told) = fs::metadata(&folder).map(|folder| folder.len()) else { continue };
        let too_many = told > left || (told > 0 && sockets.is_none());
        let looked = if too_many { None } else { look(Path::new(&folder), left) };
        match looked {
            Some((found, of_sockets)) => {
                (all, left) = (all + found, left - found);
                sockets = sockets.map(|sum| sum + of_sockets);
            }
            None if told > 0 => (all, sockets) = (all + told, None),
            None => return Descriptors::default(),
        }
    }
    Descriptors { all: Some(all), sockets }
}

/// The number of descriptors in a folder, and of sockets; `None` if there are more than `most`. A link's text comes from the
/// kernel: its target is not accessed.
fn look(folder: &Path, most: u64) -> Option<(u64, u64)> {
    let (mut all, mut sockets) = (0, 0);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if all == most {
            return None;
        }
        all += 1;
        // One closed meanwhile does not count.
        let target = fs::read_link(entry.path());
        sockets += u64::from(target.is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:")));
    }
    Some((all, sockets))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_has_so_many_and_one_that_is_gone_none() {
        let of = |stdin: Stdio| {
            let mut child = Command::new("sleep").arg("1000").stdin(stdin).spawn().unwrap();
            let found = count(&[child.id()]);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(count(&[child.id(), u32::MAX]), Descriptors { all: Some(0), sockets: Some(0) });
            found
        };
        // The others belong to concurrent tests.
        let (socket, _other) = UnixStream::pair().unwrap();
        let (without, with) = (of(Stdio::null()), of(OwnedFd::from(socket).into()));
        assert!(without.all >= Some(3), "{without:?}");
        assert!(with.all >= Some(3) && with.sockets > Some(0), "{with:?}");
        assert_eq!(count(&[]), Descriptors { all: Some(0), sockets: Some(0) });
    }

    #[test]
    fn more_than_the_bound_are_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        for name in 0..20 {
            fs::write(folder.path().join(name.to_string()), "").unwrap();
        }
        assert_eq!(look(folder.path(), 20), Some((20, 0)));
        assert_eq!(look(folder.path(), 19), None);
    }

    /// One with more than the bound: the total is known from the kernel, the sockets are not, at low cost.
    #[test]
    fn a_process_with_too_many_costs_no_more_than_one_with_few() {
        if std::env::var_os("HOLDS_MANY").is_some() {
            return hold_many();
        }
        let own = "facts::descriptors::tests::a_process_with_too_many_costs_no_more_than_one_with_few";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", own, "--nocapture"])
            .env("HOLDS_MANY", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        let told = child.stderr.take().unwrap();
        std::io::Read::read_to_end(&mut std::io::Read::take(told, READY.len() as u64), &mut said).unwrap();
        let begun = Instant::now();
        let found = count(&[child.id()]);
        let took = begun.elapsed();
        child.kill().unwrap();
        child.wait().unwrap();
        if said.is_empty() {
            return println!("left out: this machine does not let a process have so many");
        }
        assert_eq!(String::from_utf8_lossy(&said), READY);
        assert_eq!(found.sockets, None);
        assert!(found.all.is_none_or(|all| all > MOST), "{found:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    const READY: &str = "ready";

    /// In a child process, until the parent releases it.
    fn hold_many() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let most = MOST + 100;
        let maximum = getrlimit(Resource::Nofile).maximum.map(|hard| hard.max(most));
        if setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).is_err() {
            return;
        }
        let null = fs::File::open("/dev/null").unwrap();
        let _held: Vec<_> = (0..MOST + 50).map(|_| null.try_clone().unwrap()).collect();
        eprint!("{READY}");
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}
