//! The two ends of a connection, as arguments name them.

use std::net::IpAddr;

use serde_json::Value;

use crate::{Session, error::Failure, pods::kind_of};
use podwright_api::Object;
use podwright_api::rpc::PeerRef;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Pod { namespace: String, name: String },
    Service { namespace: String, name: String },
    Node { name: String },
    Address(IpAddr),
}

/// The port that a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP`
    pub protocol: String,
}

impl Target {
    /// `web:80` -> `web`, `80`; an IPv6 address is in brackets.
    pub fn split(word: &str) -> Result<(&str, &str), Failure> {
        let split = word.rsplit_once(':').filter(|(to, port)| !(to.is_empty() || port.is_empty()));
        // The last group of an address is no port.
        let split = split.filter(|(to, _)| !to.contains(':') || (to.starts_with('[') && to.ends_with(']')));
        split.ok_or_else(|| {
            Failure::usage(format!("{word}: a port is needed, as in web:80, svc/web:http, [fd00::1]:80"))
        })
    }
}

impl End {
    /// `pod`, `namespace/pod`, `pod/[namespace/]name`, `svc/[namespace/]name`, `node/name`, an address.
    pub fn parse(word: &str, namespace: &str) -> Result<End, Failure> {
        let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
        if let Ok(address) = bare.parse() {
            return Ok(End::Address(address));
        }
        let (kind, rest) = match word.split_once('/') {
            Some((kind @ ("pod" | "pods" | "po" | "svc" | "service" | "services" | "node" | "nodes" | "no"), rest)) => {
                (kind, rest)
            }
            _ => ("pod", word),
        };
        let (namespace, name) = rest.split_once('/').unwrap_or((namespace, rest));
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', ':', '[', ']']);
        if !(is_name(namespace) && is_name(name)) {
            let why = "an end is [NAMESPACE/]POD, svc/[NAMESPACE/]NAME, node/NAME or an address";
            return Err(Failure::usage(format!("{word}: {why}")));
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(match kind {
            "svc" | "service" | "services" => End::Service { namespace, name },
            "node" | "nodes" | "no" if rest.contains('/') => {
                return Err(Failure::usage(format!("{word}: a node has no namespace")));
            }
            "node" | "nodes" | "no" => End::Node { name },
            _ => End::Pod { namespace, name },
        })
    }

    pub fn as_peer(&self) -> PeerRef {
        match self.clone() {
            End::Pod { namespace, name } => PeerRef::Pod { namespace, name },
            End::Service { namespace, name } => PeerRef::Service { namespace, name },
            End::Node { name } => PeerRef::Node { name },
            End::Address(address) => PeerRef::Address(address),
        }
    }
}

/// The port of an end by number or name, and its protocol.
pub async fn target(session: &Session, to: &End, port: &str, protocol: Option<&str>) -> Result<Target, Failure> {
    let protocol = protocol.map(str::to_uppercase);
    let number = port.parse::<u16>().ok().filter(|port| *port > 0);
    let declared = match to {
        End::Pod { namespace, name } if number.is_none() => {
            let pod = session.get(kind_of("pods"), Some(namespace), name).await?;
            let containers = pod.0["spec"]["containers"].as_array().into_iter().flatten();
            containers.flat_map(|container| list(&container["ports"])).collect()
        }
        End::Service { namespace, name } => {
            let service = session.get(kind_of("services"), Some(namespace), name).await?;
            if service.0["spec"]["type"] == "ExternalName" || service.0["spec"]["clusterIP"] == "None" {
                return Err(Failure::usage(format!("Service {name} has no address of its own: name one of its Pods")));
            }
            list(&service.0["spec"]["ports"])
        }
        _ => Vec::new(),
    };
    pick(&declared, number, port, protocol.as_deref())
        .ok_or_else(|| Failure::usage(format!("{port}: there is no such port")))
}

/// Pure: the port that is meant among those declared.
fn pick(declared: &[Value], number: Option<u16>, word: &str, protocol: Option<&str>) -> Option<Target> {
    let of = |port: &&Value| {
        let is_it = match number {
            Some(number) => port["port"] == number || port["containerPort"] == number,
            None => port["name"] == word,
        };
        is_it && protocol.is_none_or(|protocol| port["protocol"].as_str().unwrap_or("TCP") == protocol)
    };
    let found = declared.iter().find(of);
    let declared = found.and_then(|port| port["port"].as_u64().or_else(|| port["containerPort"].as_u64()));
    let port = number.or_else(|| declared.and_then(|port| u16::try_from(port).ok()))?;
    let by_port = found.and_then(|port| port["protocol"].as_str()).unwrap_or("TCP");
    Some(Target { port, protocol: protocol.unwrap_or(by_port).to_owned() })
}

/// The address by which an end is found from outside.
pub async fn outer_address(session: &Session, to: &End) -> Result<IpAddr, Failure> {
    match to {
        End::Address(address) => Ok(*address),
        End::Service { namespace, name } => {
            let service = session.get(kind_of("services"), Some(namespace), name).await?;
            let none = || Failure::usage(format!("Service {name} has no address outside the cluster"));
            of_service(&service).ok_or_else(none)
        }
        _ => Err(Failure::usage("it has no address outside the cluster")),
    }
}

fn of_service(service: &Object) -> Option<IpAddr> {
    let balanced = list(&service.0["status"]["loadBalancer"]["ingress"]);
    let balanced = balanced.iter().filter_map(|entry| entry["ip"].as_str()?.parse().ok()).next();
    balanced.or_else(|| list(&service.0["spec"]["externalIPs"]).iter().find_map(|ip| ip.as_str()?.parse().ok()))
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(namespace: &str, name: &str) -> End {
        End::Pod { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn ends_are_named_as_elsewhere() {
        let parse = |word: &str| End::parse(word, "default").ok();
        assert_eq!(parse("web"), Some(pod("default", "web")));
        assert_eq!(parse("shop/web"), Some(pod("shop", "web")));
        assert_eq!(parse("pod/web"), Some(pod("default", "web")));
        assert_eq!(parse("pod/shop/web"), Some(pod("shop", "web")));
        let service = |namespace: &str| Some(End::Service { namespace: namespace.into(), name: "web".into() });
        assert_eq!((parse("svc/web"), parse("service/shop/web")), (service("default"), service("shop")));
        assert_eq!(parse("node/n1"), Some(End::Node { name: "n1".into() }));
        assert_eq!(parse("192.0.2.7"), Some(End::Address("192.0.2.7".parse().unwrap())));
        assert_eq!(parse("[fd00::7]"), Some(End::Address("fd00::7".parse().unwrap())));
        for wrong in ["", "a/b/c", "svc/", "node/a/b", "/web", "svc/a/b/c", "we:b"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_port_comes_last() {
        assert_eq!(Target::split("svc/web:http").ok(), Some(("svc/web", "http")));
        assert_eq!(Target::split("[fd00::1]:80").ok(), Some(("[fd00::1]", "80")));
        assert!(["web", "web:", ":80", "fd00::1", "fd00::1:80"].iter().all(|word| Target::split(word).is_err()));
    }

    #[test]
    fn a_port_brings_its_protocol_along() {
        let ports =
            [json!({"name": "dns", "port": 53, "protocol": "UDP"}), json!({"name": "web", "containerPort": 8080})];
        let pick = |word: &str, protocol| {
            let found = pick(&ports, word.parse().ok(), word, protocol);
            found.map(|target| format!("{} {}", target.port, target.protocol))
        };
        assert_eq!(pick("dns", None).as_deref(), Some("53 UDP"));
        assert_eq!(pick("53", None).as_deref(), Some("53 UDP"));
        assert_eq!(pick("53", Some("TCP")).as_deref(), Some("53 TCP"));
        assert_eq!(pick("web", None).as_deref(), Some("8080 TCP"));
        assert_eq!((pick("other", None), pick("dns", Some("TCP"))), (None, None));
    }
}
