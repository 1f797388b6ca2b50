//! Several nodes: how fast one joins, what many agents cost, and whether callers notice that endpoints roll.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    beside,
    idle::{cpu_ticks, rss_mib},
    quantile, report, sorted,
    support::{
        TestNode,
        cluster::{Cluster, Layout},
        netns::{at, within},
        node::busybox_tar,
    },
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// From the start of `agent --join` on a new machine to its Node's `Ready`, by TLS.
pub fn join() {
    const TIMES: usize = 5;
    let server = TestNode::server(&["--listen", "127.0.0.1:0"]);
    let once = |n| {
        let command = server.ok(&["token", "create", "--print-join-command"]);
        let words: Vec<&str> = command.split_whitespace().skip("podwright agent".split(' ').count()).collect();
        let name = format!("n{n}");
        // Nodes that have joined report no address of another one's.
        let own = ["--isolated", "--node-name", &name, "--node-ip", &format!("192.0.2.{n}")];
        let mut agent = TestNode::of_joining(&[&own[..], &words[..]].concat());
        let begun = Instant::now();
        agent.spawn();
        server.wait("create", &[&format!("node/{name}")], TIMEOUT);
        server.wait("condition=Ready", &[&format!("node/{name}")], TIMEOUT);
        begun.elapsed().as_secs_f64()
    };
    let took = sorted((1..=TIMES).map(once).collect());
    report(
        "agent --join -> node Ready",
        format!("p50 {:.2} s, worst {:.2} s of {TIMES}", quantile(&took, 0.5), quantile(&took, 1.0)),
        "worst <= 2 s",
        quantile(&took, 1.0) <= 2.0,
    );
}

/// Memory and CPU of the agents of a cluster that has nothing to do; `PODWRIGHT_BENCH_NODES`: how many.
pub fn agents() {
    const WATCHED: Duration = Duration::from_secs(30);
    let count = std::env::var("PODWRIGHT_BENCH_NODES").ok().and_then(|n| n.parse().ok()).unwrap_or(50);
    let server = TestNode::server(&[]);
    let begun = Instant::now();
    let agents: Vec<TestNode> = (1..=count).map(|n| TestNode::agent(&server, &format!("n{n}"))).collect();
    beside(
        &format!("{count} agents, one after the other, all Ready:"),
        format!("{:.1} s", begun.elapsed().as_secs_f64()),
    );
    std::thread::sleep(Duration::from_secs(10));
    let ticks = || agents.iter().map(|agent| cpu_ticks(agent.pid())).sum::<u64>();
    let (before, of_server) = (ticks(), cpu_ticks(server.pid()));
    std::thread::sleep(WATCHED);
    let share = |ticks: u64| ticks as f64 / WATCHED.as_secs_f64();
    let (cpu, of_server) = (share(ticks() - before), share(cpu_ticks(server.pid()) - of_server));
    let pss: f64 = agents.iter().map(|agent| pss_mib(agent.pid())).sum();
    let each = pss / agents.len() as f64;
    report(
        &format!("memory of {count} agents, PSS"),
        format!("{pss:.0} MiB, {each:.1} MiB each"),
        "<= 40 MiB each",
        each <= 40.0,
    );
    let each = cpu / agents.len() as f64;
    report(
        &format!("idle CPU of {count} agents"),
        format!("{cpu:.1} % of a core, {each:.2} % each"),
        "< 0.5 % each",
        each < 0.5,
    );
    beside("their server:", format!("{:.0} MiB, {of_server:.1} % of a core", rss_mib(server.pid())));
}

/// What a process has of memory, each shared page in parts (proc_pid_smaps(5)).
fn pss_mib(pid: u32) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// Requests to a Service from a Pod and from both nodes, a connection each, while its Pods are replaced again and again.
pub fn rolling() {
    const REQUESTS: usize = 100_000;
    const CLIENTS: usize = 2;
    let cluster = Cluster::start(2, Layout::OneLink, &[]);
    let server = &cluster.server;
    for node in ["n1", "n2"] {
        server.ok(&["image", "--node", node, "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
    }
    server.apply(include_str!("../../manifests/rolling-update.yaml"));
    let roll = |what: &[&str]| drop(server.ok(&[&["-n", "rolling", "rollout"], what].concat()));
    roll(&["status", "deployment/web", "--timeout=100s"]);
    server.wait("condition=Ready", &["-n", "rolling", "pod/visitor"], TIMEOUT);
    let to = at(&server.field(&["-n", "rolling", "service", "web"], ".spec.clusterIP"), 80);
    let from: Vec<PathBuf> = [server.netns_in("rolling", "visitor")]
        .into_iter()
        .chain(cluster.machines.iter().map(|machine| machine.netns.clone()))
        .collect();
    let (left, failed) = (Arc::new(AtomicUsize::new(REQUESTS)), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let client = |netns: &PathBuf| {
        let (netns, left, failed) = (netns.clone(), left.clone(), failed.clone());
        std::thread::spawn(move || {
            within(&netns, || {
                let take = |left: usize| left.checked_sub(1);
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                    if let Err(why) = request(to)
                        && failed.fetch_add(1, Ordering::Relaxed) < 5
                    {
                        beside("a request failed:", why);
                    }
                }
            })
        })
    };
    let clients: Vec<_> = from.iter().flat_map(|netns| std::iter::repeat_n(netns, CLIENTS)).map(client).collect();
    let mut rolled = 0;
    while left.load(Ordering::Relaxed) > 0 {
        roll(&["restart", "deployment/web"]);
        roll(&["status", "deployment/web", "--timeout=300s"]);
        rolled += 1;
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
    let (failed, took) = (failed.load(Ordering::Relaxed), begun.elapsed().as_secs_f64());
    report(
        &format!("failed of {REQUESTS} requests while endpoints roll"),
        format!("{failed} ({rolled} rollouts, {:.0} requests/s)", REQUESTS as f64 / took),
        "0",
        failed == 0,
    );
}

/// One request on a connection of its own, which is answered whole.
fn request(to: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: web\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.starts_with("HTTP/1.") && answer.contains(" 200 ") && answer.contains("version ") {
        true => Ok(()),
        false => Err(std::io::Error::other(format!("not an answer: {answer:?}"))),
    }
}
