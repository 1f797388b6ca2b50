//! What plugins answer. Pure. <https://www.cni.dev/docs/spec/#section-5-result-types>

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::CniError;

/// The part of a result that a node uses; plugins get the whole as it is.
#[derive(Debug, Default, Deserialize)]
struct Attached {
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Address>,
}

#[derive(Debug, Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct Address {
    address: IpNet,
    interface: Option<i64>,
}

/// A failure that a plugin reports.
#[derive(Debug, Deserialize)]
pub struct Failure {
    pub code: u32,
    pub msg: String,
    #[serde(default)]
    pub details: String,
}

/// The addresses of a Pod's interface `name`, in the order of the result, at most one of each family.
///
/// # Errors
///
/// The result is malformed, or has no address of that interface.
pub fn addresses(result: &Value, name: &str) -> Result<Vec<IpAddr>, CniError> {
    let malformed = |why: String| CniError::Result(why);
    let Attached { interfaces, ips } = Attached::deserialize(result).map_err(|error| malformed(error.to_string()))?;
    let is_of_pod = |address: &&Address| match address.interface.and_then(|at| usize::try_from(at).ok()) {
        None => true,
        Some(at) => interfaces.get(at).is_some_and(|of| of.name == name && !of.sandbox.is_empty()),
    };
    let mut found: Vec<IpAddr> = Vec::new();
    for address in ips.iter().filter(is_of_pod).map(|address| address.address.addr()) {
        let usable = !address.is_unspecified() && !address.is_loopback() && !address.is_multicast();
        if usable && !found.iter().any(|has| has.is_ipv4() == address.is_ipv4()) {
            found.push(address);
        }
    }
    if found.is_empty() { Err(malformed(format!("ips: no address of {name}"))) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_the_pods_interface_count_and_no_others() {
        let result = json!({"cniVersion": "1.0.0", "interfaces": [
            {"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [{"address": "10.1.0.1/16", "interface": 0}, {"address": "10.1.0.9/16", "gateway": "10.1.0.1", "interface": 2},
                    {"address": "fd00::9/64", "interface": 2}, {"address": "10.1.0.10/16", "interface": 2}],
            "dns": {}});
        let ips = addresses(&result, "eth0").expect("some").iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(ips, ["10.1.0.9", "fd00::9"]);
        // Versions 0.3 and 0.4 say the family as well.
        let old = json!({"ips": [{"version": "4", "address": "10.1.0.9/16"}]});
        assert_eq!(addresses(&old, "eth0").expect("one").len(), 1);
        for wrong in [
            json!({}),
            json!({"ips": [{"address": "x"}]}),
            json!([]),
            json!({"ips": [{"address": "127.0.0.1/8"}]}),
            json!({"ips": [{"address": "10.1.0.1/16", "interface": 7}]}),
        ] {
            assert!(addresses(&wrong, "eth0").is_err(), "{wrong}");
        }
    }
}
