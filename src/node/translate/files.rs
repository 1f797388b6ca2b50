//! The files that every Pod gets: resolv.conf, hosts, hostname. Pure text.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;

use crate::spec::PodExt;

/// The node's DNS settings.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Addresses of the cluster's DNS.
    pub dns: Vec<IpAddr>,
    /// `cluster.local`
    pub domain: String,
}

/// The Pod's hostname: spec.hostname or the name, at most 63 characters; the FQDN if the Pod asks for it.
pub fn hostname(pod: &Pod, domain: &str) -> String {
    let spec = pod.spec();
    if let Some(name) = spec.hostname_override.as_deref().filter(|n| !n.is_empty()) {
        return name.to_owned();
    }
    let name = short_hostname(pod);
    match fqdn(pod, domain) {
        Some(fqdn) if spec.set_hostname_as_fqdn == Some(true) => fqdn,
        _ => name,
    }
}

fn short_hostname(pod: &Pod) -> String {
    match pod.spec().hostname.as_deref().filter(|h| !h.is_empty()) {
        Some(name) => name.to_owned(),
        None => {
            let mut name = pod.name().to_owned();
            name.truncate(63);
            name.trim_end_matches(['-', '.']).to_owned()
        }
    }
}

fn fqdn(pod: &Pod, domain: &str) -> Option<String> {
    let subdomain = pod.spec().subdomain.as_deref().filter(|s| !s.is_empty())?;
    Some(format!("{}.{subdomain}.{}.svc.{domain}", short_hostname(pod), pod.namespace()))
}

/// `/etc/hosts` of a Pod with its own network.
pub fn hosts(pod: &Pod, domain: &str, ips: &[IpAddr]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for ip in ips {
        match fqdn(pod, domain) {
            Some(fqdn) => text.push_str(&format!("{ip}\t{fqdn}\t{}\n", short_hostname(pod))),
            None => text.push_str(&format!("{ip}\t{}\n", short_hostname(pod))),
        }
    }
    text + &aliases(pod)
}

/// `/etc/hosts` of a host network Pod: the host's file plus the aliases.
pub fn host_hosts(pod: &Pod, host: &str) -> String {
    format!("# Kubernetes-managed hosts file (host network).\n{host}{}", aliases(pod))
}

fn aliases(pod: &Pod) -> String {
    let mut text = String::new();
    for alias in pod.spec().host_aliases.iter().flatten() {
        if text.is_empty() {
            text.push_str("\n# Entries added by HostAliases.\n");
        }
        text.push_str(&format!("{}\t{}\n", alias.ip, alias.hostnames.clone().unwrap_or_default().join("\t")));
    }
    text
}

#[derive(Default)]
struct Resolv {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

/// `/etc/resolv.conf` by dnsPolicy and dnsConfig; `host` is the node's own.
pub fn resolv_conf(pod: &Pod, names: &Names, host: &str) -> String {
    let policy = pod.spec().dns_policy.as_deref().unwrap_or("ClusterFirst");
    let host = || parse(host);
    let cluster = !names.dns.is_empty()
        && (policy == "ClusterFirstWithHostNet" || (policy == "ClusterFirst" && !pod.host_network()));
    let mut resolv = match policy {
        "None" => Resolv::default(),
        _ if cluster => {
            let (namespace, domain) = (pod.namespace(), &names.domain);
            let mut searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
            searches.extend(host().searches);
            Resolv {
                servers: names.dns.iter().map(IpAddr::to_string).collect(),
                searches,
                options: vec!["ndots:5".to_owned()],
            }
        }
        _ => host(),
    };
    if let Some(config) = &pod.spec().dns_config {
        resolv.servers.extend(config.nameservers.iter().flatten().cloned());
        resolv.searches.extend(config.searches.iter().flatten().cloned());
        for option in config.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            resolv.options.retain(|o| o.split(':').next() != Some(&name));
            resolv.options.push(match option.value.as_deref().filter(|v| !v.is_empty()) {
                Some(value) => format!("{name}:{value}"),
                None => name,
            });
        }
    }
    dedup(&mut resolv.servers);
    dedup(&mut resolv.searches);
    render(&resolv)
}

fn dedup(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

fn parse(text: &str) -> Resolv {
    let mut resolv = Resolv::default();
    for line in text.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => resolv.servers.extend(words.next()),
            Some("search" | "domain") => resolv.searches = words.filter(|w| w != ".").collect(),
            Some("options") => resolv.options = words.collect(),
            _ => {}
        }
    }
    resolv
}

fn render(resolv: &Resolv) -> String {
    let mut text = String::new();
    if !resolv.searches.is_empty() {
        text.push_str(&format!("search {}\n", resolv.searches.join(" ")));
    }
    for server in &resolv.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !resolv.options.is_empty() {
        text.push_str(&format!("options {}\n", resolv.options.join(" ")));
    }
    text
}
