//! What the world is on: one node and a host beside it, or several nodes and a host on the link between them.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{
    TestNode,
    cluster::{self, Layout},
    netns::{Outside, within},
};

/// The one node and who is outside, on the link between them.
const NODE: &str = "192.168.77.1";
const NODE_SIX: &str = "fd00:77::1";
const OUTSIDE_SIX: &str = "fd00:77::2";

pub enum Nodes {
    One { outside: Outside, node: TestNode },
    Several(cluster::Cluster),
}

impl Nodes {
    pub fn one() -> Nodes {
        let ranges = ["--cluster-cidr", "10.244.0.0/16,fd00:244::/48", "--service-cidr", "10.96.0.0/16,fd00:96::/112"];
        let node = TestNode::start(if has_both_families() { &ranges } else { &[] });
        node.import_busybox();
        Nodes::One { outside: beside(&node), node }
    }

    /// All but the first have joined by TLS. Who is outside knows which node a Pod is on.
    pub fn several(count: usize, layout: Layout) -> Nodes {
        let cluster = cluster::Cluster::joined(count, layout, &[]);
        for number in 1..=count {
            let range = cluster.server.field(&["node", &format!("n{number}")], ".spec.podCIDR");
            cluster.between.ip(&format!("route add {range} via {}", cluster.address(number)));
        }
        Nodes::Several(cluster)
    }

    /// The node with the server.
    pub fn server(&self) -> &TestNode {
        match self {
            Nodes::One { node, .. } => node,
            Nodes::Several(cluster) => &cluster.server,
        }
    }

    /// Their state folders.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        let agents = match self {
            Nodes::One { .. } => &[][..],
            Nodes::Several(cluster) => cluster.agents.as_slice(),
        };
        [self.server()].into_iter().chain(agents).map(|node| node.dir.path())
    }

    /// The first node's network.
    pub fn host(&self) -> PathBuf {
        match self {
            Nodes::One { node, .. } => node.netns(),
            Nodes::Several(cluster) => cluster.machines[0].netns.clone(),
        }
    }

    pub fn outside(&self) -> PathBuf {
        match self {
            Nodes::One { outside, .. } => outside.netns.clone(),
            Nodes::Several(cluster) => cluster.between.netns.clone(),
        }
    }

    pub fn is_dual(&self) -> bool {
        matches!(self, Nodes::One { .. }) && has_both_families()
    }

    pub fn outside_addresses(&self) -> Vec<IpAddr> {
        match self {
            Nodes::One { .. } if self.is_dual() => addresses(&format!("{} {OUTSIDE_SIX}", Outside::ADDRESS)),
            Nodes::One { .. } => addresses(Outside::ADDRESS),
            Nodes::Several(_) => addresses("192.168.50.254"),
        }
    }

    /// Where who is outside finds a node.
    pub fn address(&self, node: &str, is_ipv4: bool) -> IpAddr {
        let address = match self {
            Nodes::One { .. } if is_ipv4 => NODE.to_owned(),
            Nodes::One { .. } => NODE_SIX.to_owned(),
            Nodes::Several(cluster) => {
                let number = node.strip_prefix('n').and_then(|number| number.parse().ok());
                cluster.address(number.unwrap_or_else(|| panic!("{node}: nodes are called n1 and so on")))
            }
        };
        addresses(&address)[0]
    }
}

pub fn addresses(text: &str) -> Vec<IpAddr> {
    text.split(' ').map(|ip| ip.parse().unwrap_or_else(|e| panic!("{ip:?}: {e}"))).collect()
}

/// Whether this kernel does.
fn has_both_families() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

/// A host beside a node, with a second address where there is one more family.
fn beside(node: &TestNode) -> Outside {
    let outside = Outside::beside(node);
    if has_both_families() {
        let ip = |words: &str| {
            let output = Command::new("ip").args(words.split(' ')).output().unwrap();
            assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        };
        within(&node.netns(), || ip(&format!("-6 address add {NODE_SIX}/64 dev outside nodad")));
        within(&outside.netns, || {
            ip(&format!("-6 address add {OUTSIDE_SIX}/64 dev eth0 nodad"));
            ip(&format!("-6 route add default via {NODE_SIX}"));
        });
    }
    outside
}
