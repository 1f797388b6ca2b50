//! What a Pod asks of network plugins, in the words of the Container Network Interface.
//! <https://www.cni.dev/docs/conventions/>,
//! <https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/network-plugins/>

use k8s_openapi::api::core::v1::{ContainerPort, Pod};
use podwright_api::Quantity;
use podwright_net::cni::{BANDWIDTH, CapabilityArguments, PORT_MAPPINGS, Request};
use serde_json::{Value, json};

use crate::spec::PodExt;

/// Annotations that limit a Pod's traffic, and the field of the capability `bandwidth` for each.
const BANDWIDTHS: [(&str, &str); 2] =
    [("kubernetes.io/ingress-bandwidth", "ingress"), ("kubernetes.io/egress-bandwidth", "egress")];
/// The limits of a bandwidth, bits per second: upstream's `minRsrc` and `maxRsrc`.
const RATES: std::ops::RangeInclusive<i64> = 1_000..=1_000_000_000_000_000;

/// Why a Pod's annotation cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata.annotations[{annotation}]: {value:?}: must be a bandwidth from 1k to 1P")]
pub struct BandwidthError {
    annotation: &'static str,
    value: String,
}

/// The request of a Pod whose sandbox has this id.
///
/// # Errors
///
/// An annotation is no bandwidth.
pub fn request(pod: &Pod, sandbox: &str) -> Result<Request, BandwidthError> {
    let arguments = [
        // Plugins that do not know them pass them over.
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", pod.namespace()),
        ("K8S_POD_NAME", pod.name()),
        ("K8S_POD_INFRA_CONTAINER_ID", sandbox),
        ("K8S_POD_UID", pod.uid()),
    ];
    let mut asked = CapabilityArguments::new();
    let ports: Vec<Value> =
        pod.parts().iter().flat_map(|part| part.container.ports.iter().flatten()).filter_map(mapping).collect();
    if !ports.is_empty() {
        asked.insert(PORT_MAPPINGS.to_owned(), Value::Array(ports));
    }
    let bandwidth = bandwidth(pod)?;
    if !bandwidth.is_empty() {
        asked.insert(BANDWIDTH.to_owned(), Value::Object(bandwidth));
    }
    Ok(Request { arguments: arguments.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(), asked })
}

/// What is not kept of the Pod's limits of traffic, in words. `by_plugins`: whether plugins keep them.
pub fn unlimited(pod: &Pod, by_plugins: bool) -> Option<String> {
    let asked: Vec<&str> =
        BANDWIDTHS.iter().map(|(annotation, _)| *annotation).filter(|name| pod.annotation(name).is_some()).collect();
    let why = match (asked.is_empty(), pod.host_network(), by_plugins) {
        (true, ..) | (_, false, true) => return None,
        (_, true, _) => "the Pod is on its node's network",
        (_, false, false) => "no network plugin with the capability bandwidth attaches the Pod",
    };
    let fields: Vec<String> = asked.iter().map(|name| format!("metadata.annotations[{name}]")).collect();
    Some(format!("Traffic limits are not enforced ({}): {why}", fields.join(", ")))
}

/// A port of the node for one of the Pod's.
fn mapping(port: &ContainerPort) -> Option<Value> {
    let outside = port.host_port.filter(|outside| *outside > 0)?;
    let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
    let mut mapping = json!({ "hostPort": outside, "containerPort": port.container_port, "protocol": protocol });
    if let Some(ip) = port.host_ip.as_ref().filter(|ip| !ip.is_empty()) {
        mapping["hostIP"] = json!(ip);
    }
    Some(mapping)
}

/// The Pod's bandwidths, in bits per second.
fn bandwidth(pod: &Pod) -> Result<CapabilityArguments, BandwidthError> {
    let mut all = CapabilityArguments::new();
    for (annotation, direction) in BANDWIDTHS {
        let Some(value) = pod.annotation(annotation) else { continue };
        let refused = || BandwidthError { annotation, value: value.to_owned() };
        let rate = value.parse::<Quantity>().map_err(|_| refused())?.value();
        if !RATES.contains(&rate) {
            return Err(refused());
        }
        all.insert(format!("{direction}Rate"), json!(rate));
        // Upstream's: the rate decides.
        all.insert(format!("{direction}Burst"), json!(i32::MAX));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).expect("a Pod")
    }

    #[test]
    fn ports_and_bandwidth_are_asked_for_by_capability() {
        let pod = pod(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"kubernetes.io/egress-bandwidth": "10M"}},
            "spec": {"containers": [{"name": "c", "ports": [
                {"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "192.0.2.1"},
                {"containerPort": 81}]}]},
        }));
        let request = request(&pod, "u_0").expect("valid");
        assert_eq!(request.arguments[1], ("K8S_POD_NAMESPACE".to_owned(), "n".to_owned()));
        assert_eq!(
            Value::Object(request.asked),
            json!({
                "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                                 {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"}],
                "bandwidth": {"egressRate": 10_000_000, "egressBurst": i32::MAX},
            })
        );
    }

    #[test]
    fn limits_that_nobody_keeps_are_named() {
        let of = |annotations: Value, host: bool| {
            pod(json!({"metadata": {"annotations": annotations}, "spec": {"containers": [], "hostNetwork": host}}))
        };
        let both =
            json!({"kubernetes.io/egress-bandwidth": "10M", "kubernetes.io/ingress-bandwidth": "any", "other": "1"});
        assert_eq!(unlimited(&of(both.clone(), false), true), None);
        assert_eq!(unlimited(&of(json!({"other": "1"}), false), false), None);
        assert_eq!(
            unlimited(&of(both.clone(), false), false).as_deref(),
            Some(
                "Traffic limits are not enforced (metadata.annotations[kubernetes.io/ingress-bandwidth], \
                 metadata.annotations[kubernetes.io/egress-bandwidth]): no network plugin with the capability bandwidth attaches the Pod"
            )
        );
        let why = unlimited(&of(both, true), true).expect("nobody limits the node");
        assert!(why.ends_with(": the Pod is on its node's network"), "{why}");
    }

    #[test]
    fn what_is_no_bandwidth_is_refused() {
        for wrong in ["", "fast", "999", "2P", "-1M"] {
            let pod = pod(json!({"metadata": {"annotations": {"kubernetes.io/ingress-bandwidth": wrong}}}));
            let why = request(&pod, "u_0").expect_err(wrong).to_string();
            assert!(why.contains("metadata.annotations[kubernetes.io/ingress-bandwidth]"), "{why}");
        }
    }
}
