//! The flags of a node, and what they come to.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use ipnet::IpNet;
use podwright_net::NetworkConfig;
use podwright_net::cni::CniConfig;
use podwright_net::overlay::{self, OverlayConfig, Transport};
use podwright_runtime::{Runtime, sys::shared};

use super::{
    durations::duration,
    node_name,
    paths::Paths,
    private::{self, Owner},
};
use crate::{
    node::{
        admission::sysctls::Sysctls,
        id_pool::IdPool,
        kernel_release,
        shutdown::{GracePeriodError, GracePeriods},
        storage::Thresholds,
        verification::{self, VerificationPolicy},
    },
    server::default_dns_address,
};

const HOST_RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where nodes answered DNS when that did not depend on their ranges.
const FORMER_DNS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 10));

#[derive(Clone, Debug, clap::Args)]
pub struct NodeArgs {
    /// The name of the Node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Give the node its own network namespace and cgroup subtree, removed when the process ends
    #[arg(long)]
    pub isolated: bool,
    /// With --isolated, an existing network namespace to use, such as /run/netns/NAME: its links lead to other nodes. When the process
    /// ends, what the node has made in it is removed, and the namespace stays
    #[arg(long, value_name = "PATH", requires = "isolated")]
    pub netns: Option<PathBuf>,
    /// How Pods of other nodes are reached: routes (nodes share a link, or the network between them knows the way), vxlan, or auto:
    /// routes between nodes that publish that they share a link, VXLAN to others
    #[arg(long, value_name = "TRANSPORT", default_value = "auto")]
    pub network: Transport,
    /// VXLAN network identifier, the same on all nodes
    #[arg(long, value_name = "VNI", default_value_t = overlay::VNI, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    pub vxlan_id: u32,
    /// UDP port of VXLAN, the same on all nodes
    #[arg(long, value_name = "PORT", default_value_t = overlay::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: u16,
    /// Have CNI plugins make Pods' interfaces and addresses: the directory of network configuration lists, of which the first one by
    /// name counts, as /etc/cni/net.d
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// The directories of CNI plugins
    #[arg(long, value_delimiter = ',', value_name = "DIR", default_value = "/opt/cni/bin,/usr/lib/cni")]
    pub cni_bin_dir: Vec<PathBuf>,
    /// IP addresses of the node, at most one per family; with --netns, of its links [default: those of the default routes, or with
    /// --netns the first ones of its links]
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    pub node_ip: Vec<IpAddr>,
    /// Start even if the host lacks the cgroup v2 controllers for limits (implied by --isolated)
    #[arg(long)]
    pub allow_missing_cgroup_controllers: bool,
    /// IP addresses of the cluster's DNS server [default: the tenth of the first range of --service-cidr]
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// Resolver configuration for names outside the cluster, and for Pods with dnsPolicy Default
    #[arg(long, value_name = "FILE", default_value = HOST_RESOLV_CONF)]
    pub resolv_conf: PathBuf,
    /// Number of tracked connections of the node; its Pods share half of them [default: nf_conntrack_max]
    #[arg(long, value_name = "N")]
    pub conntrack_max: Option<usize>,
    /// Number of Pods that can run on this node
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Maximum number of processes per Pod [default: no limit]
    #[arg(long, value_name = "N")]
    pub pod_max_pids: Option<u64>,
    /// Allow list of unsafe sysctls or unsafe sysctl patterns (ending in *); only namespaced ones
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Host IDs for Pods with user namespaces, as in /etc/subuid [default: from 65536 on, for twice --max-pods]
    #[arg(long, value_name = "FIRST:COUNT")]
    pub userns_range: Option<IdPool>,
    /// Which images present on the node every Pod may use without verification of its pull credentials: NeverVerify (all),
    /// NeverVerifyPreloadedImages (those that were not pulled), NeverVerifyAllowlistedImages, AlwaysVerify (none)
    #[arg(long, value_name = "POLICY", default_value = verification::POLICIES[0])]
    pub image_pull_credentials_verification_policy: String,
    /// Images that NeverVerifyAllowlistedImages exempts: registry/repository, or registry/path/* for all below
    #[arg(long, value_delimiter = ',', value_name = "IMAGE")]
    pub preloaded_images_verification_allowlist: Vec<String>,
    /// Labels to add when registering the node
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE")]
    pub node_labels: Vec<String>,
    /// The directory of static Pod manifests [default: /etc/podwright/manifests, or manifests in --state-dir]
    #[arg(long, value_name = "DIR")]
    pub pod_manifests: Option<PathBuf>,
    /// Eviction thresholds that, if met, evict Pods and admit no others: SIGNAL<QUANTITY or SIGNAL<PERCENT%, separated by
    /// commas; signals are nodefs.available, nodefs.inodesFree (volumes, logs, writable layers), imagefs.available and
    /// imagefs.inodesFree; empty for none [default: nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,
    /// imagefs.inodesFree<5%; with --isolated nodefs.available<16Mi,nodefs.inodesFree<1k]
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_hard: Option<Thresholds>,
    /// How long a shutdown of the machine is delayed for Pods to end, by systemd-logind; no Pods are accepted meanwhile
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub shutdown_grace_period: Duration,
    /// How much of --shutdown-grace-period, at its end, is for critical Pods
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub shutdown_grace_period_critical_pods: Duration,
    /// The grace periods of Pods at shutdown by their priority, in place of the two above: each is for Pods of this priority and above
    #[arg(long, value_name = "PRIORITY=DURATION,...", default_value = "")]
    pub shutdown_grace_period_by_pod_priority: GracePeriods,
    /// Do not record kernel operations; `trace` then shows only the control plane's steps
    #[arg(long)]
    pub no_journal: bool,
}

impl NodeArgs {
    /// Refuses directories of static Pod manifests, networks or plugins that others may write: what is in them runs as root.
    pub fn check_files(&self) -> anyhow::Result<()> {
        let plugins = self.cni_bin_dir.iter().filter(|_| self.cni_conf_dir.is_some()).map(|dir| ("--cni-bin-dir", dir));
        let networks = self.cni_conf_dir.iter().map(|dir| ("--cni-conf-dir", dir));
        let manifests = self.pod_manifests.iter().map(|dir| ("--pod-manifests", dir));
        let all = manifests.chain(networks).chain(plugins).filter(|(_, folder)| folder.exists());
        all.into_iter().try_for_each(|(flag, folder)| private::named(flag, folder, Owner::here()))
    }

    /// Refuses addresses that are no machine's, as kubelet does.
    pub fn check_node_ip(&self) -> anyhow::Result<()> {
        for (n, ip) in self.node_ip.iter().enumerate() {
            let unusable = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
            anyhow::ensure!(!unusable, "--node-ip {ip}: it is no machine's address");
            let twice = self.node_ip[..n].iter().any(|other| other.is_ipv4() == ip.is_ipv4());
            anyhow::ensure!(!twice, "--node-ip: at most one address of each family, not {ip} as well");
        }
        Ok(())
    }

    /// How much time Pods get when the machine shuts down.
    pub fn shutdown_grace_periods(&self) -> Result<GracePeriods, GracePeriodError> {
        let (total, critical) = (self.shutdown_grace_period, self.shutdown_grace_period_critical_pods);
        GracePeriods::new(total, critical, self.shutdown_grace_period_by_pod_priority.clone())
    }

    /// How other nodes' Pods are reached.
    pub fn overlay(&self) -> OverlayConfig {
        OverlayConfig { transport: self.network, vni: self.vxlan_id, port: self.vxlan_port }
    }

    /// How the node's network is laid out, with these addresses for DNS.
    pub fn network(&self, node: String, paths: &Paths, service_ranges: &[IpNet], dns: Vec<IpAddr>) -> NetworkConfig {
        NetworkConfig {
            node,
            folder: paths.network(),
            isolated: self.isolated,
            netns: self.netns.clone(),
            addresses: self.node_ip.clone(),
            service_ranges: service_ranges.to_vec(),
            dns,
            conntrack_max: self.conntrack_max,
            overlay: self.overlay(),
            cni: CniConfig { conf_dir: self.cni_conf_dir.clone(), bin_dirs: self.cni_bin_dir.clone() },
        }
    }

    /// Where the node answers DNS, in a cluster whose Services have these ranges.
    pub fn cluster_dns(&self, service_ranges: &[IpNet]) -> anyhow::Result<Vec<IpAddr>> {
        let dns = match self.cluster_dns.is_empty() {
            true => default_dns_address(service_ranges).into_iter().collect(),
            false => self.cluster_dns.clone(),
        };
        anyhow::ensure!(
            !dns.is_empty(),
            "--service-cidr: the first range has no tenth address for DNS; give --cluster-dns"
        );
        Ok(dns)
    }

    /// Where it may have answered DNS, for cleaning up: without a flag also the fixed address of earlier versions.
    pub fn former_cluster_dns(&self, service_ranges: &[IpNet]) -> Vec<IpAddr> {
        match self.cluster_dns.is_empty() {
            true => BTreeSet::from_iter(default_dns_address(service_ranges).into_iter().chain([FORMER_DNS]))
                .into_iter()
                .collect(),
            false => self.cluster_dns.clone(),
        }
    }

    /// The node's name: from the flag, or the host name.
    pub fn name(&self) -> anyhow::Result<String> {
        node_name::of_flags(self.node_name.as_deref())
    }

    pub fn labels(&self) -> anyhow::Result<Vec<(String, String)>> {
        let pair = |text: &String| {
            let (key, value) =
                text.split_once('=').with_context(|| format!("--node-labels {text}: expected KEY=VALUE"))?;
            Ok((key.to_owned(), value.to_owned()))
        };
        self.node_labels.iter().map(pair).collect()
    }

    pub fn check_controllers(&self, runtime: &Runtime) -> anyhow::Result<()> {
        let missing = &runtime.cgroups().missing;
        anyhow::ensure!(
            missing.is_empty() || self.isolated || self.allow_missing_cgroup_controllers,
            "this host lacks the cgroup v2 controllers {}, so limits of Pods could not be enforced. Boot with \
             cgroup_no_v1=all (or systemd.unified_cgroup_hierarchy=1), or give --allow-missing-cgroup-controllers",
            missing.join(", ")
        );
        Ok(())
    }

    /// The sysctls that Pods may set on this kernel.
    pub fn sysctls(&self) -> anyhow::Result<Sysctls> {
        Sysctls::new(&kernel_release(), &self.allowed_unsafe_sysctls)
            .map_err(|why| anyhow::anyhow!("--allowed-unsafe-sysctls: {why}"))
    }

    /// Which existing images are available to every Pod.
    pub fn verification(&self) -> anyhow::Result<VerificationPolicy> {
        let allowlist = &self.preloaded_images_verification_allowlist;
        VerificationPolicy::new(&self.image_pull_credentials_verification_policy, allowlist)
            .map_err(|why| anyhow::anyhow!("--image-pull-credentials-verification-policy: {why}"))
    }

    /// An explicitly named file must exist; a host without name servers may lack the default one.
    pub fn check_resolv_conf(&self) -> anyhow::Result<()> {
        let path = self.resolv_conf.as_path();
        match shared::read_linked(path, 1) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound || path != Path::new(HOST_RESOLV_CONF) => {
                Err(e).with_context(|| format!("--resolv-conf {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Argv {
        #[command(flatten)]
        node: NodeArgs,
    }

    fn dns(given: &[&str], ranges: &[&str]) -> anyhow::Result<Vec<IpAddr>> {
        let argv = Argv::try_parse_from([&["podwright"], given].concat())?;
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        argv.node.cluster_dns(&ranges)
    }

    #[test]
    fn dns_has_the_tenth_address_of_the_first_range_unless_it_is_told_another() {
        let addresses = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let of = |given: &[&str], ranges: &[&str]| dns(given, ranges).unwrap();
        assert_eq!(of(&[], &["10.50.0.0/16"]), addresses(&["10.50.0.10"]));
        assert_eq!(of(&[], &["10.50.7.9/16", "fd00:50::/112"]), addresses(&["10.50.0.10"]));
        assert_eq!(of(&[], &["fd00:50::/112", "10.50.0.0/16"]), addresses(&["fd00:50::a"]));
        // An address outside the ranges is an operator's own.
        let given = ["--cluster-dns", "192.0.2.53,2001:db8::53"];
        assert_eq!(of(&given, &["10.50.0.0/16"]), addresses(&["192.0.2.53", "2001:db8::53"]));
        for small in [&["10.50.0.0/29"][..], &["255.255.255.248/29"], &["10.50.0.0/29", "fd00:50::/112"]] {
            let why = dns(&[], small).unwrap_err().to_string();
            assert_eq!(why, "--service-cidr: the first range has no tenth address for DNS; give --cluster-dns");
            assert_eq!(of(&given, small).len(), 2);
        }
    }

    #[test]
    fn the_flags_of_the_network_are_checked() {
        let parsed =
            |given: &[&str]| Argv::try_parse_from([&["podwright"], given].concat()).map_err(|why| why.to_string());
        let node =
            parsed(&["--isolated", "--netns", "/run/netns/a", "--network", "vxlan", "--vxlan-id", "7"]).unwrap().node;
        let config = node.network("n".to_owned(), &paths(), &[], Vec::new());
        assert_eq!(config.overlay, OverlayConfig { transport: Transport::Vxlan, vni: 7, port: 8472 });
        assert_eq!(config.netns.as_deref(), Some(Path::new("/run/netns/a")));
        for (given, why) in [
            (&["--netns", "/run/netns/a"][..], "--isolated"),
            (&["--network", "wireguard"], "WireGuard is not supported"),
            (&["--network", "ipip"], "expected auto, routes or vxlan"),
            (&["--vxlan-id", "16777216"], "16777216"),
        ] {
            let error = parsed(given).err().expect("it is refused");
            assert!(error.contains(why), "{error}");
        }
        for (ip, why) in [
            ("127.0.0.1", "--node-ip 127.0.0.1: it is no machine's address"),
            ("::", "--node-ip ::: it is no machine's address"),
            ("10.0.0.1,10.0.0.2", "--node-ip: at most one address of each family, not 10.0.0.2 as well"),
        ] {
            let error = parsed(&["--node-ip", ip]).unwrap().node.check_node_ip().unwrap_err();
            assert_eq!(error.to_string(), why);
        }
        parsed(&["--node-ip", "10.0.0.1,fd00::1"]).unwrap().node.check_node_ip().unwrap();
    }

    fn paths() -> Paths {
        let folder = PathBuf::from("/nonexistent");
        Paths {
            state: folder.clone(),
            run: folder.clone(),
            logs: folder.clone(),
            manifests: folder,
            cgroup_root: PathBuf::new(),
        }
    }

    #[test]
    fn who_removes_a_node_removes_also_where_earlier_ones_answered() {
        let former = |given: &[&str], range: &str| {
            let argv = Argv::parse_from([&["podwright"], given].concat());
            let dns = argv.node.former_cluster_dns(&[range.parse().unwrap()]);
            dns.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(former(&[], "10.96.0.0/16"), ["10.96.0.10"]);
        assert_eq!(former(&[], "10.50.0.0/16"), ["10.50.0.10", "10.96.0.10"]);
        assert_eq!(former(&[], "10.50.0.0/29"), ["10.96.0.10"]);
        assert_eq!(former(&["--cluster-dns", "192.0.2.53"], "10.50.0.0/16"), ["192.0.2.53"]);
    }
}
