//! The agent closes every descriptor it opens for a session, whatever containers and clients do.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{TestNode, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

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

/// The host pids of processes with exactly these arguments.
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

/// Writes until it fails.
fn fill(mut to: impl Write + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || while to.write_all(&[b'y'; 64 << 10]).is_ok() {})
}

#[test]
fn sessions_give_back_what_was_opened_for_them() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/p"], TIMEOUT);
    node.ok(&["exec", "p", "--", "true"]);
    let before = descriptors(&node);
    let given_back = |what: &str| {
        eventually(what, TIMEOUT, || {
            let now = descriptors(&node);
            // One or two client connections may be in progress.
            if now.len() <= before.len() + 2 { Ok(()) } else { Err(format!("{before:#?}\n{now:#?}")) }
        });
    };
    let client = |args: &[&str]| {
        let mut command = node.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };

    // A background process has the streams; the command has exited, and its session has ended with all its output.
    for i in 0..8 {
        let script = format!("sleep 77178 & head -c 60000 /dev/zero; echo {i}");
        let mut exec = client(&["exec", "p", "--", "sh", "-c", &script]);
        eventually("the command ends", TIMEOUT, || match exec.try_wait().unwrap() {
            Some(status) if status.success() => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let said = exec.wait_with_output().unwrap().stdout;
        assert_eq!((said.len(), said.last()), (60_002, Some(&b'\n')));
    }
    given_back("the descriptors of sessions whose commands have ended");
    assert_eq!(processes("sleep 77178").len(), 8);

    // Killed clients; the commands ignore signals.
    let gone = |args: &[&str]| {
        let mut clients: Vec<_> = (0..8).map(|_| client(args)).collect();
        eventually("the commands run", TIMEOUT, || match processes("sleep 77179").len() {
            8 => Ok(()),
            other => Err(format!("{other} run")),
        });
        for client in &mut clients {
            client.kill().unwrap();
            client.wait().unwrap();
        }
        given_back("the descriptors of sessions whose clients have gone");
        eventually("their commands end", TIMEOUT, || match processes("sleep 77179")[..] {
            [] => Ok(()),
            ref left => Err(format!("{left:?}")),
        });
    };
    let deaf = "trap '' HUP; sleep 77179; true";
    gone(&["exec", "p", "--", "sh", "-c", deaf]);
    gone(&["exec", "-i", "p", "--", "sh", "-c", deaf]);
    gone(&["exec", "-it", "p", "--", "sh", "-c", deaf]);
    gone(&["exec", "p", "--", "sh", "-c", &format!("exec >&- 2>&-; {deaf}")]);

    // A process in its own session stays, and holds the streams; but the exec session ends.
    gone(&["exec", "p", "--", "sh", "-c", &format!("setsid sleep 77178 & {deaf}")]);

    // Commands that are never executed.
    let freezer = freezer(processes("sleep 77177")[0]);
    let members = || fs::read_to_string(freezer.with_file_name("cgroup.procs")).unwrap().lines().count();
    let others = members();
    fs::write(&freezer, "1").unwrap();
    let mut clients: Vec<_> = (0..8).map(|_| client(&["exec", "-i", "p", "--", "sleep", "77179"])).collect();
    // Each frame is a line; one is larger than any buffer.
    for client in &mut clients[..7] {
        let mut stdin = client.stdin.take().unwrap();
        for line in 0..24 {
            writeln!(stdin, "{line}").unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        client.stdin = Some(stdin);
    }
    let endless = fill(clients[7].stdin.take().unwrap());
    eventually("all are asked for", TIMEOUT, || match members() {
        now if now >= others + 8 => Ok(()),
        now => Err(format!("{now} after {others}")),
    });
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    endless.join().unwrap();
    given_back("the descriptors of sessions whose commands were not executed");
    fs::write(&freezer, "0").unwrap();
    assert_eq!(node.ok(&["exec", "p", "--", "echo", "well"]), "well\n");
    // The server waits half a minute for a client that was killed before dialling its stream.
    eventually("nothing is executed late", 2 * TIMEOUT, || match processes("sleep 77179")[..] {
        [] => Ok(()),
        ref left => Err(format!("{left:?}")),
    });
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// A `port-forward` to `pod/p`, and its local port.
fn forward(mut command: Command) -> (Child, u16) {
    let mut client = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    // It continues to print; without a reader it would be killed.
    let mut said = BufReader::new(client.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    let local = line.split(" -> ").next().and_then(|local| local.rsplit(':').next()).and_then(|port| port.parse().ok());
    (client, local.unwrap_or_else(|| panic!("{line:?}")))
}

#[test]
fn forwards_and_execs_whose_clients_have_gone_end_though_the_pod_reads_nothing() {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    // The process with the connections does not read them.
    node.apply(&POD.replace("[sleep, '77177']", "[nc, -ll, -p, '7001', -e, sleep, '77176']"));
    node.wait("condition=Ready", &["pod/p"], TIMEOUT);
    eventually("it listens", TIMEOUT, || {
        let found = node.run(&["exec", "p", "--", "grep", ":1B59", "/proc/net/tcp", "/proc/net/tcp6"]);
        if found.code == 0 { Ok(()) } else { Err(found.all()) }
    });
    node.ok(&["exec", "p", "--", "true"]);
    let before = descriptors(&node);
    let count = || descriptors(&node).len();
    let given_back = |what: &str| {
        eventually(what, 2 * TIMEOUT, || {
            let now = descriptors(&node);
            if now.len() <= before.len() + 2 { Ok(()) } else { Err(format!("{before:#?}\n{now:#?}")) }
        });
    };
    let opened = |what: &str, more: usize| {
        eventually(what, TIMEOUT, || match count() {
            now if now >= before.len() + more => Ok(()),
            now => Err(format!("{now} after {}", before.len())),
        });
        eprintln!("{what}: {} descriptors, {} before", count(), before.len());
    };

    // What each connection does, and how often.
    for (what, filled) in [("half-closed", false), ("filled", true)] {
        let (mut client, port) = forward(node.command(&["port-forward", "p", ":7001"]));
        let connections: Vec<_> = (0..4)
            .map(|_| {
                let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
                connection.write_all(b"x").unwrap();
                if !filled {
                    connection.shutdown(Shutdown::Write).unwrap();
                }
                connection
            })
            .collect();
        let filling: Vec<_> = connections.iter().filter(|_| filled).map(|one| fill(one.try_clone().unwrap())).collect();
        opened(what, 4 * 2);
        // Until everything on the way is full.
        std::thread::sleep(Duration::from_secs(3));
        client.kill().unwrap();
        client.wait().unwrap();
        drop(connections);
        for one in filling {
            one.join().unwrap();
        }
        given_back(what);
    }

    let mut exec = node.command(&["exec", "-i", "p", "--", "sleep", "77179"]);
    let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let filling = fill(exec.stdin.take().unwrap());
    eventually("the command runs", TIMEOUT, || match processes("sleep 77179")[..] {
        [_] => Ok(()),
        ref other => Err(format!("{other:?}")),
    });
    std::thread::sleep(Duration::from_secs(3));
    exec.kill().unwrap();
    exec.wait().unwrap();
    filling.join().unwrap();
    given_back("an exec whose command reads nothing");
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn the_agent_has_room_for_descriptors_and_containers_have_what_it_was_given() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Others starting meanwhile raise theirs too.
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
    node.wait("condition=Ready", &["pod/p"], TIMEOUT);
    assert_eq!(node.ok(&["exec", "p", "--", "sh", "-c", "ulimit -Sn"]), "5000\n");
    assert_eq!(
        node.ok(&["exec", "p", "--", "sh", "-c", "grep 'open files' /proc/1/limits"]).split_whitespace().nth(3),
        Some("5000")
    );
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}
