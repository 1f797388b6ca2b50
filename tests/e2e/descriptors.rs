//! What the agent opens for a session it closes again, whatever a container or a client does.

use std::{fs, path::PathBuf, process::Stdio, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{TestNode, eventually, leftovers::Machine};

const PATIENCE: Duration = Duration::from_secs(30);

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '77177']}]
";

fn descriptors(node: &TestNode) -> Vec<String> {
    let folder = format!("/proc/{}/fd", node.pid());
    let links = fs::read_dir(folder).unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    links.map(|link| link.display().to_string()).collect()
}

/// The host's numbers of processes with just these arguments.
fn processes(args: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.trim_end_matches('\0').replace('\0', " ") == args
    };
    numbers.filter(is_it).collect()
}

/// `cgroup.freeze` of a process's cgroup.
fn freezer(pid: u32) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[2] == "cgroup2");
    let root = root.expect("there is a cgroup2 tree")[1].to_owned();
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::/")).expect("it is in the cgroup2 tree");
    PathBuf::from(root).join(own).join("cgroup.freeze")
}

#[test]
fn sessions_give_back_what_was_opened_for_them() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/p"], PATIENCE);
    node.ok(&["exec", "p", "--", "true"]);
    let before = descriptors(&node);
    let given_back = |what: &str| {
        eventually(what, PATIENCE, || {
            let now = descriptors(&node);
            // One connection of a client or two may be on its way.
            if now.len() <= before.len() + 2 { Ok(()) } else { Err(format!("{before:#?}\n{now:#?}")) }
        });
    };
    let client = |args: &[&str]| {
        let mut command = node.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };

    // A background process has the streams; the command has ended, and so has its session, with all that it said.
    for i in 0..8 {
        let script = format!("sleep 77178 & head -c 60000 /dev/zero; echo {i}");
        let mut exec = client(&["exec", "p", "--", "sh", "-c", &script]);
        eventually("the command ends", PATIENCE, || match exec.try_wait().unwrap() {
            Some(status) if status.success() => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let said = exec.wait_with_output().unwrap().stdout;
        assert_eq!((said.len(), said.last()), (60_002, Some(&b'\n')));
    }
    given_back("the descriptors of sessions whose commands have ended");
    assert_eq!(processes("sleep 77178").len(), 8);

    // Clients that are killed; the commands ignore what they are told.
    let gone = |args: &[&str]| {
        let mut clients: Vec<_> = (0..8).map(|_| client(args)).collect();
        eventually("the commands run", PATIENCE, || match processes("sleep 77179").len() {
            8 => Ok(()),
            other => Err(format!("{other} run")),
        });
        for client in &mut clients {
            client.kill().unwrap();
            client.wait().unwrap();
        }
        given_back("the descriptors of sessions whose clients have gone");
        eventually("their commands end", PATIENCE, || match processes("sleep 77179")[..] {
            [] => Ok(()),
            ref left => Err(format!("{left:?}")),
        });
    };
    let deaf = "trap '' HUP; sleep 77179; true";
    gone(&["exec", "p", "--", "sh", "-c", deaf]);
    gone(&["exec", "-i", "p", "--", "sh", "-c", deaf]);
    gone(&["exec", "-it", "p", "--", "sh", "-c", deaf]);
    gone(&["exec", "p", "--", "sh", "-c", &format!("exec >&- 2>&-; {deaf}")]);

    // What has made a session of its own stays, and holds the streams; but only its own ends.
    gone(&["exec", "p", "--", "sh", "-c", &format!("setsid sleep 77178 & {deaf}")]);

    // Commands that are never executed.
    let freezer = freezer(processes("sleep 77177")[0]);
    let members = || fs::read_to_string(freezer.with_file_name("cgroup.procs")).unwrap().lines().count();
    let others = members();
    fs::write(&freezer, "1").unwrap();
    let mut clients: Vec<_> = (0..8).map(|_| client(&["exec", "-i", "p", "--", "sleep", "77179"])).collect();
    eventually("all are asked for", PATIENCE, || match members() {
        now if now >= others + 8 => Ok(()),
        now => Err(format!("{now} after {others}")),
    });
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    given_back("the descriptors of sessions whose commands were not executed");
    fs::write(&freezer, "0").unwrap();
    assert_eq!(node.ok(&["exec", "p", "--", "echo", "well"]), "well\n");
    // The server waits for half a minute for a client that was killed before it had dialled its stream.
    eventually("nothing is executed late", 2 * PATIENCE, || match processes("sleep 77179")[..] {
        [] => Ok(()),
        ref left => Err(format!("{left:?}")),
    });
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn the_agent_has_room_for_descriptors_and_containers_have_what_it_was_given() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Others that start meanwhile raise theirs too.
    setrlimit(Resource::Nofile, Rlimit { current: Some(5000), maximum }).unwrap();
    let mut node = TestNode::stopped(&[]);
    node.spawn();
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let untouched = Machine::untouched(node.dir.path());
    node.wait_ready();
    let limits = fs::read_to_string(format!("/proc/{}/limits", node.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
    assert!(words[3].parse().map_or(true, |now: u64| now > 5000), "{line}");
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/p"], PATIENCE);
    assert_eq!(node.ok(&["exec", "p", "--", "sh", "-c", "ulimit -Sn"]), "5000\n");
    assert_eq!(
        node.ok(&["exec", "p", "--", "sh", "-c", "grep 'open files' /proc/1/limits"]).split_whitespace().nth(3),
        Some("5000")
    );
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}
