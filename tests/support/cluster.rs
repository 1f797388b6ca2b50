//! A cluster on one machine: every node in a network namespace of its own, all joined by links to one more, a bridge or a router.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::{
    TestNode, eventually,
    netns::{ip, within},
    node::busybox_tar,
};

/// How the machines are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All on one link: 192.168.50.N.
    OneLink,
    /// Each on a link of its own, with a router between them: 198.18.N.2.
    Routed,
}

/// A network namespace that lives as long as this.
pub struct Machine {
    holder: Child,
    pub netns: PathBuf,
}

impl Machine {
    pub fn start() -> Machine {
        let holder = Command::new("unshare").args(["--net", "sleep", "1000"]).stdin(Stdio::null()).spawn().unwrap();
        let netns = PathBuf::from(format!("/proc/{}/ns/net", holder.id()));
        let machine = Machine { holder, netns };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        eventually("it has a namespace of its own", Duration::from_secs(10), || {
            match std::fs::read_link(&machine.netns) {
                Ok(link) if link != own => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        machine
    }

    /// The process that keeps it, for `ip link set netns`.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Runs `ip` there.
    pub fn ip(&self, words: &str) -> String {
        let args: Vec<&str> = words.split(' ').collect();
        within(&self.netns, || ip(&args))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A server with a node, and agents.
pub struct Cluster {
    /// `n2` and so on. They end before their server.
    pub agents: Vec<TestNode>,
    /// `n1`
    pub server: TestNode,
    /// In the order of the nodes. They go after the nodes.
    pub machines: Vec<Machine>,
    /// The bridge or router, which is a host outside of the cluster as well.
    pub between: Machine,
    pub layout: Layout,
}

impl Cluster {
    /// Starts that many nodes, each with more arguments; they are ready, and have the tests' image, when this returns. To the server all
    /// are root.
    pub fn start(count: usize, layout: Layout, args: &[&str]) -> Cluster {
        Cluster::start_with(count, layout, args, &[])
    }

    /// The same, with arguments for the control plane alone.
    pub fn start_with(count: usize, layout: Layout, args: &[&str], control_plane: &[&str]) -> Cluster {
        Cluster::of(count, layout, args, control_plane, TestNode::agent_with)
    }

    /// The same with agents that have joined by TLS: to the server each is its own node, and nothing more.
    pub fn joined(count: usize, layout: Layout, args: &[&str]) -> Cluster {
        Cluster::of(count, layout, args, &["--listen", "127.0.0.1:0"], |server, name, args| {
            let command = server.ok(&["token", "create", "--print-join-command"]);
            let words: Vec<&str> = command.split_whitespace().skip("podwright agent".split(' ').count()).collect();
            let mut agent = TestNode::of_joining(&[&["--isolated", "--node-name", name], &words[..], args].concat());
            agent.spawn();
            agent.wait_registered(server, name);
            agent
        })
    }

    /// `args`: of all nodes; `of_server`: of the server's beside.
    fn of(
        count: usize,
        layout: Layout,
        args: &[&str],
        of_server: &[&str],
        agent: impl Fn(&TestNode, &str, &[&str]) -> TestNode,
    ) -> Cluster {
        let between = Machine::start();
        match layout {
            Layout::OneLink => {
                between.ip("link add br0 up type bridge");
                between.ip("address add 192.168.50.254/24 dev br0");
            }
            Layout::Routed => within(&between.netns, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()),
        }
        let machines: Vec<Machine> = (1..=count).map(|number| machine(&between, layout, number)).collect();
        let netns = |machine: &Machine| machine.netns.display().to_string();
        let server =
            TestNode::start(&[&["--node-name", "n1", "--netns", &netns(&machines[0])], args, of_server].concat());
        let agent = |(n, machine): (usize, &Machine)| {
            agent(&server, &format!("n{}", n + 1), &[&["--netns", &netns(machine)], args].concat())
        };
        let agents = machines.iter().enumerate().skip(1).map(agent).collect();
        let cluster = Cluster { server, agents, machines, between, layout };
        for number in 1..=count {
            let tar = busybox_tar().to_str().unwrap();
            cluster.server.ok(&["image", "--node", &format!("n{number}"), "import", tar, "localhost/busybox:1"]);
        }
        cluster
    }

    /// The address of a node, the first is 1.
    pub fn address(&self, number: usize) -> String {
        address(self.layout, number)
    }
}

fn address(layout: Layout, number: usize) -> String {
    match layout {
        Layout::OneLink => format!("192.168.50.{number}"),
        Layout::Routed => format!("198.18.{number}.2"),
    }
}

/// A machine that is joined with what is between all.
fn machine(between: &Machine, layout: Layout, number: usize) -> Machine {
    let machine = Machine::start();
    let (port, pid) = (format!("port{number}"), between.holder.id());
    machine.ip(&format!("link add eth0 type veth peer name {port} netns {pid}"));
    machine.ip(&format!("address add {}/24 dev eth0", address(layout, number)));
    machine.ip("link set eth0 up");
    match layout {
        Layout::OneLink => {
            between.ip(&format!("link set {port} master br0 up"));
        }
        Layout::Routed => {
            between.ip(&format!("address add 198.18.{number}.1/24 dev {port}"));
            between.ip(&format!("link set {port} up"));
            machine.ip(&format!("route add default via 198.18.{number}.1"));
        }
    }
    machine
}
