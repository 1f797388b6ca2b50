//! The networks that a Node's addresses are in, as its agent publishes them: by these alone two nodes decide whether they share a link.

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

/// The Node annotation: `192.168.50.1/24,fd00:50::1/64`, each address with the prefix of its link.
pub const ANNOTATION: &str = "podwright/node-networks";
/// More than one of each family say nothing more; whoever writes the annotation is not trusted to know.
const MOST: usize = 8;

/// What the annotation says of these networks.
pub fn text(networks: &[IpNet]) -> String {
    networks.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",")
}

/// What a Node publishes; what cannot be read is left out.
pub fn published(node: &Node) -> Vec<IpNet> {
    let text = node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)).map_or("", String::as_str);
    text.split(',').take(MOST).filter_map(|net| net.trim().parse().ok()).collect()
}
