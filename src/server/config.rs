//! The configuration of a server.

use std::sync::Arc;

use podwright_api::load_balancer::Pool;

use super::{
    admission::{Disabled as DisabledAdmission, PodSecurity, TolerationSeconds},
    audit,
    authorize::Mode as AuthorizationMode,
    encryption,
    limits::Limits,
    pki, profiling,
    tokens::{Oidc, StaticTokens},
};

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The ranges of ClusterIPs, in order of preference (dual-stack: two).
    pub service_cidrs: Vec<ipnet::IpNet>,
    /// Where nodes answer DNS, as far as the server knows, besides the address of `kube-dns`: reserved for Services in
    /// `kube-system`.
    pub cluster_dns: Vec<std::net::IpAddr>,
    /// The range of NodePorts.
    pub node_ports: std::ops::RangeInclusive<u16>,
    /// Static bearer tokens.
    pub tokens: StaticTokens,
    /// An external issuer of bearer tokens.
    pub oidc: Option<Oidc>,
    /// The CA that signs certificates; without it none are signed.
    pub authority: Option<pki::Authority>,
    /// The client certificate for extension API servers; without it the server does not authenticate to them.
    pub front_proxy: Option<pki::FrontProxy>,
    /// The default tolerationSeconds of Pods for nodes that are not ready or not reachable.
    pub toleration_seconds: TolerationSeconds,
    /// The default Pod security standards, and exemptions.
    pub pod_security: PodSecurity,
    /// The disabled admission plugins.
    pub disabled_admission: DisabledAdmission,
    /// The authorizers, in order.
    pub authorization: Vec<AuthorizationMode>,
    /// What is encrypted in the store; `None`: nothing.
    pub encryption: Option<Arc<encryption::Rules>>,
    /// The audit log; `None`: no log.
    pub audit: Option<Arc<audit::Audit>>,
    pub limits: Limits,
    /// The ranges of Pods' addresses: no node may report one of these, nor one of `service_cidrs`, as its own.
    pub cluster_cidrs: Vec<ipnet::IpNet>,
    /// The addresses that are given to Services of type LoadBalancer, if there are such: no Service names one as its own otherwise.
    pub load_balancer_pool: Option<Pool>,
    /// The TLS listen addresses, and how far the process is confined: reported to clients that ask for its protections.
    pub listening: Vec<std::net::SocketAddr>,
    pub confinement: Confinement,
    /// Whether a new cluster gets a StorageClass of the built-in provisioner.
    pub local_storage_class: bool,
    /// The process' flags, sorted by name, without secrets.
    pub flags: Vec<(String, String)>,
    /// The profiler of the process, if any.
    pub profiler: Option<Arc<dyn profiling::Profiler>>,
}

/// How far the server's process is confined, as far as the kernel does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    pub runs_node: bool,
    pub landlock: bool,
}

impl Default for Config {
    fn default() -> Config {
        // The invariant: a literal that parses.
        let service_cidrs = vec!["10.96.0.0/16".parse().expect("a valid CIDR")];
        Config {
            service_cidrs,
            cluster_dns: Vec::new(),
            node_ports: 30000..=32767,
            tokens: StaticTokens::default(),
            oidc: None,
            authority: None,
            front_proxy: None,
            toleration_seconds: TolerationSeconds::default(),
            pod_security: PodSecurity::default(),
            disabled_admission: DisabledAdmission::default(),
            authorization: AuthorizationMode::DEFAULT.to_vec(),
            encryption: None,
            audit: None,
            limits: Limits::default(),
            cluster_cidrs: Vec::new(),
            load_balancer_pool: None,
            listening: Vec::new(),
            confinement: Confinement::default(),
            local_storage_class: false,
            flags: Vec::new(),
            profiler: None,
        }
    }
}
