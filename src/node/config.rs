//! How an agent is set up: what its flags say.

use std::{net::IpAddr, path::PathBuf};

use ipnet::IpNet;

use super::{
    admission::sysctls::Sysctls, id_pool::IdPool, kernel, shutdown::GracePeriods, storage,
    verification::VerificationPolicy,
};

/// How an agent is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name.
    pub name: String,
    /// Durable things: `<state>/pods`, `<state>/local-volumes`, `<state>/seccomp`.
    pub state_dir: PathBuf,
    /// What lives until reboot, in memory: `<run>/volumes`, `<run>/journals`.
    pub run_dir: PathBuf,
    /// The Pods' logs: `/var/log/pods`, or below the state folder of an isolated node.
    pub log_dir: PathBuf,
    /// Static Pods' manifests, if there is such a folder.
    pub manifests: Option<PathBuf>,
    /// The node's network namespace, where it has one of its own: the path at which it is pinned.
    pub network_namespace: Option<PathBuf>,
    /// The node's addresses, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// Those that a link has, with its prefix: they are published, so that other nodes know who is on their link.
    pub networks: Vec<IpNet>,
    /// Where the cluster's names are answered.
    pub cluster_dns: Vec<IpAddr>,
    /// `cluster.local`
    pub cluster_domain: String,
    /// What Pods of `dnsPolicy: Default` get is made of it.
    pub resolv_conf: PathBuf,
    /// How many Pods the node takes.
    pub max_pods: u32,
    /// pids.max of each Pod; `None`: no limit but the host's.
    pub pod_pids_max: Option<u64>,
    /// Record kernel operations, for `trace`.
    pub journal: bool,
    /// Further labels of the Node.
    pub labels: Vec<(String, String)>,
    /// Remove all Pods, and what they have on this machine, when the agent is told to end.
    pub remove_at_exit: bool,
    /// ConfigMaps and Secrets are read one by one: the agent may read those of its own Pods alone, not list them all.
    pub by_name: bool,
    /// What must stay free of the disks, else Pods are evicted.
    pub eviction_hard: storage::Thresholds,
    /// How much time Pods get when the machine shuts down.
    pub shutdown_grace_periods: GracePeriods,
    /// What Pods may set.
    pub sysctls: Sysctls,
    /// The ids of the host that Pods with users of their own get.
    pub ids: IdPool,
    /// Which images that are here are for every Pod.
    pub verification: VerificationPolicy,
}

impl Config {
    /// An agent below `state_dir` with upstream's defaults.
    pub fn new(name: &str, state_dir: PathBuf, run_dir: PathBuf) -> Config {
        Config {
            name: name.to_owned(),
            log_dir: state_dir.join("logs"),
            state_dir,
            run_dir,
            manifests: None,
            network_namespace: None,
            addresses: Vec::new(),
            networks: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: "/etc/resolv.conf".into(),
            max_pods: 110,
            pod_pids_max: None,
            journal: true,
            labels: Vec::new(),
            remove_at_exit: false,
            by_name: false,
            eviction_hard: storage::Thresholds::default(),
            shutdown_grace_periods: GracePeriods::default(),
            sysctls: Sysctls::safe(&kernel::release()),
            ids: IdPool::for_pods(110),
            verification: VerificationPolicy::default(),
        }
    }
}
