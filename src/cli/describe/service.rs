//! The descriptions of Services and EndpointSlices.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    related::Related,
    text::{head_with_labels, labels, list, or, text},
};
use crate::page::Page;
use podwright_api::Object;

/// How many endpoints of each port are shown.
const SHOWN: usize = 3;

pub fn describe(page: &mut Page, service: &Object, related: &Related, _now: Timestamp) {
    let spec = &service.0["spec"];
    head_with_labels(page, service);
    labels(page, 0, "Selector", &spec["selector"]);
    page.line(0, format!("Type:\t{}", text(&spec["type"])));
    page.optional(0, "IP Family Policy", &text(&spec["ipFamilyPolicy"]));
    let joined = |list_of: &Value| list(list_of).iter().map(text).collect::<Vec<_>>().join(",");
    page.optional(0, "IP Families", &joined(&spec["ipFamilies"]));
    page.line(0, format!("IP:\t{}", text(&spec["clusterIP"])));
    page.optional(0, "IPs", &joined(&spec["clusterIPs"]));
    page.optional(0, "External IPs", &joined(&spec["externalIPs"]));
    page.optional(0, "Desired LoadBalancer IP", &text(&spec["loadBalancerIP"]));
    page.optional(0, "External Name", &text(&spec["externalName"]));
    let ingress = list(&service.0["status"]["loadBalancer"]["ingress"]);
    let ingress: Vec<String> = ingress.iter().map(|i| or(&i["ip"], &text(&i["hostname"]))).collect();
    page.optional(0, "LoadBalancer Ingress", &ingress.join(", "));
    for port in list(&spec["ports"]) {
        let (name, protocol) = (or(&port["name"], "<unset>"), or(&port["protocol"], "TCP"));
        page.line(0, format!("Port:\t{name}\t{}/{protocol}", text(&port["port"])));
        page.line(0, format!("TargetPort:\t{}/{protocol}", or(&port["targetPort"], "0")));
        if port["nodePort"].as_i64().unwrap_or(0) > 0 {
            page.line(0, format!("NodePort:\t{name}\t{}/{protocol}", port["nodePort"]));
        }
        page.line(0, format!("Endpoints:\t{}", endpoints(&related.slices, &text(&port["name"]))));
    }
    page.line(0, format!("Session Affinity:\t{}", text(&spec["sessionAffinity"])));
    page.optional(0, "External Traffic Policy", &text(&spec["externalTrafficPolicy"]));
    page.optional(0, "Internal Traffic Policy", &text(&spec["internalTrafficPolicy"]));
}

/// `10.244.0.5:80,10.244.0.6:80 + 1 more...`: the ready ones of a port.
fn endpoints(slices: &[Object], port_name: &str) -> String {
    let mut all = Vec::new();
    for slice in slices {
        let ports = list(&slice.0["ports"]).iter().filter(|port| text(&port["name"]) == port_name);
        for port in ports {
            let ready = list(&slice.0["endpoints"]).iter().filter(|e| e["conditions"]["ready"] != false);
            for address in ready.filter_map(|e| list(&e["addresses"]).first()).map(text) {
                let host = if address.contains(':') { format!("[{address}]") } else { address };
                all.push(format!("{host}:{}", text(&port["port"])));
            }
        }
    }
    match all.len() {
        0 => String::new(),
        n if n > SHOWN => format!("{} + {} more...", all[..SHOWN].join(","), n - SHOWN),
        _ => all.join(","),
    }
}

pub fn endpoint_slice(page: &mut Page, slice: &Object, _related: &Related, _now: Timestamp) {
    let or_unset = |value: &Value| or(value, "<unset>");
    head_with_labels(page, slice);
    page.line(0, format!("AddressType:\t{}", text(&slice.0["addressType"])));
    let (ports, endpoints) = (list(&slice.0["ports"]), list(&slice.0["endpoints"]));
    if ports.is_empty() {
        page.line(0, "Ports: <unset>");
    } else {
        page.line(0, "Ports:");
        page.line(1, "Name\tPort\tProtocol");
        page.line(1, "----\t----\t--------");
        for port in ports {
            let [name, number] = ["name", "port"].map(|field| or_unset(&port[field]));
            page.line(1, format!("{name}\t{number}\t{}", text(&port["protocol"])));
        }
    }
    page.line(0, if endpoints.is_empty() { "Endpoints: <none>" } else { "Endpoints:" });
    for endpoint in endpoints {
        let addresses: Vec<String> = list(&endpoint["addresses"]).iter().map(text).collect();
        page.line(1, format!("- Addresses:\t{}", addresses.join(", ")));
        page.line(2, "Conditions:");
        page.line(3, format!("Ready:\t{}", or_unset(&endpoint["conditions"]["ready"])));
        page.line(2, format!("Hostname:\t{}", or_unset(&endpoint["hostname"])));
        let target = &endpoint["targetRef"];
        if target.is_object() {
            page.line(2, format!("TargetRef:\t{}/{}", text(&target["kind"]), text(&target["name"])));
        }
        page.line(2, format!("NodeName:\t{}", or_unset(&endpoint["nodeName"])));
        page.line(2, format!("Zone:\t{}", or_unset(&endpoint["zone"])));
    }
}
