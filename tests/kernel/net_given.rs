//! A node in a network namespace that somebody else has made: it is taken by one node, and stays when the node has gone.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use podwright_net::cni::CniConfig;
use podwright_net::overlay::OverlayConfig;
use podwright_net::{Network, NetworkConfig, links, netlink};

use super::net_world::run_in;

/// A namespace with a link of its own, pinned as `ip netns add` does.
struct Given {
    netns: OwnedFd,
    path: PathBuf,
    folder: tempfile::TempDir,
}

impl Given {
    fn new() -> Given {
        let (folder, netns) = (tempfile::tempdir().unwrap(), netlink::new_netns().unwrap());
        let path = folder.path().join("given");
        netlink::pin(netns.as_fd(), &path).unwrap();
        run_in(netns.as_fd(), "ip", &["link", "add", "eth0", "up", "type", "veth", "peer", "name", "eth1"]);
        run_in(netns.as_fd(), "ip", &["link", "set", "eth1", "up"]);
        run_in(netns.as_fd(), "ip", &["address", "add", "192.168.50.1/24", "dev", "eth0"]);
        Given { netns, path, folder }
    }

    fn shown(&self) -> String {
        let all = "ip -br address show; ip route; ip -o link show lo; nft list ruleset";
        run_in(self.netns.as_fd(), "sh", &["-c", all])
    }

    fn config(&self, node: &str, path: &Path, addresses: &[&str]) -> NetworkConfig {
        let folder = self.folder.path().join(node);
        std::fs::create_dir_all(&folder).unwrap();
        NetworkConfig {
            node: node.to_owned(),
            folder,
            isolated: true,
            netns: Some(path.to_owned()),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            service_ranges: vec!["10.96.0.0/16".parse().unwrap()],
            dns: vec!["10.96.0.10".parse().unwrap()],
            conntrack_max: None,
            overlay: OverlayConfig::default(),
            cni: CniConfig::default(),
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        netlink::unpin(&self.path).unwrap();
    }
}

fn up(config: NetworkConfig) -> Result<Network, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(Network::up(config)).map_err(|error| error.to_string())
}

fn remove(network: Network) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let errors = runtime.block_on(network.remove());
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn a_given_namespace_is_one_nodes_and_stays_as_it_was() {
    let given = Given::new();
    links::loopback_up(given.netns.as_fd()).unwrap();
    let before = given.shown();
    let network = up(given.config("one", &given.path, &[])).unwrap();
    assert_eq!(network.addresses(), ["192.168.50.1".parse::<std::net::IpAddr>().unwrap()]);
    let refused = up(given.config("two", &given.path, &[])).err().unwrap();
    assert!(refused.contains("is in use by the node of") && refused.contains("/one"), "{refused}");
    assert!(!given.folder.path().join("two/netns").exists(), "nothing is left of who was refused");
    // The same node again, as after a crash.
    drop(network);
    let network = up(given.config("one", &given.path, &["192.168.50.1"])).unwrap();
    remove(network);
    assert_eq!(given.shown(), before);
    // Whoever was there last is gone, with its folder.
    let network = up(given.config("one", &given.path, &[])).unwrap();
    drop(network);
    netlink::unpin(&given.folder.path().join("one/netns")).unwrap();
    std::fs::remove_dir_all(given.folder.path().join("one")).unwrap();
    remove(up(given.config("two", &given.path, &[])).unwrap());
}

#[test]
fn what_is_no_namespace_for_a_node_is_refused() {
    let given = Given::new();
    let file = given.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = |path: &Path, addresses: &[&str]| up(given.config("one", path, addresses)).err().unwrap();
    for (path, why) in [
        ("/proc/self/ns/net", "is this machine's own network namespace"),
        ("/proc/thread-self/ns/net", "is this machine's own network namespace"),
        ("/proc/self/ns/mnt", "is no network namespace"),
        ("/dev/null", "is no network namespace"),
        (file.to_str().unwrap(), "is no network namespace"),
        ("/nonexistent", "No such file"),
    ] {
        let said = refused(Path::new(path), &[]);
        assert!(said.contains(why), "{path}: {said}");
    }
    let said = refused(&given.path, &["192.168.50.2"]);
    assert_eq!(said, "no link of the node's network namespace has the address 192.168.50.2 (--node-ip)");
    let other = Given::new();
    let said = refused(&other.path, &[]);
    assert!(said.contains("the node has another network namespace"), "{said}");
    netlink::unpin(&given.folder.path().join("one/netns")).unwrap();
}
