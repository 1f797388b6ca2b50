//! Addresses that lead to no Service on a node, whoever names them.

use expect_test::expect;
use k8s_openapi::api::core::v1::Service;
use podwright::proxy::unserved_addresses;
use podwright_net::dataplane::NodeFacts;

use super::{SLICE, WEB, check, with};

/// The server may be of another version, or know another address of DNS.
#[test]
fn nobody_but_the_system_has_a_port_of_the_address_of_dns() {
    let thief = WEB.replace("10.96.0.7", "10.96.0.10").replace(
        "ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}]",
        "ports: [{name: dns, port: 53, protocol: UDP}, {name: dot, port: 853}]",
    );
    check(
        &thief,
        &[],
        expect![[r#"
            V4 udp "dns"
              internal:  else refuse
            V4 tcp "dot"
              internal:  else refuse
            10.0.96.10.in-addr.arpa = web.default.svc.cluster.local
            _dns._udp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:53
            _dot._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:853
            web.default.svc.cluster.local 10.96.0.10
        "#]],
    );
}

#[test]
fn no_external_address_is_that_of_dns_or_one_of_the_machines_own() {
    let balancer = WEB.replace("type: ClusterIP", "type: LoadBalancer");
    let named = "externalIPs: [10.96.0.10, '::ffff:10.96.0.10', 127.0.0.1, 169.254.1.1, 198.51.100.1]";
    let given = ["10.96.0.10", "127.0.0.2", "169.254.169.254", "0.0.0.1", "224.0.0.1", "198.51.100.7"];
    let given: Vec<String> = given.iter().map(|ip| format!("{{ip: {ip}}}")).collect();
    let status = format!("status: {{loadBalancer: {{ingress: [{}]}}}}\n", given.join(", "));
    check(
        &(with(&balancer, named) + &status),
        &[SLICE],
        expect![[r#"
            V4 tcp "http" 10.96.0.7:80 198.51.100.1:80 198.51.100.7:80
              internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
            7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
            _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
            web.default.svc.cluster.local 10.96.0.7
        "#]],
    );
}

#[test]
fn whoever_names_an_address_that_is_not_served_hears_why() {
    let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    let facts = NodeFacts {
        cluster_ranges: nets(&["10.244.0.0/16", "192.168.50.1/32"]),
        other_nodes: nets(&["192.168.50.2/32"]),
        servers: nets(&["192.168.50.3/32"]),
        service_ranges: nets(&["10.96.0.0/16"]),
        ..NodeFacts::default()
    };
    let told = |named: &str, given: &str| {
        let status = format!("status: {{loadBalancer: {{ingress: [{{ip: {given}}}]}}}}\n");
        let service: Service = serde_saphyr::from_str(&(with(WEB, named) + &status)).unwrap();
        unserved_addresses(&service, &facts, &["10.96.0.10".parse().unwrap()])
    };
    assert_eq!(told("externalIPs: [198.51.100.1]", "192.168.50.2"), None, "a load balancer on a node's own port");
    let why = told("externalIPs: [10.96.0.10, 10.96.0.7]", "127.0.0.1");
    expect![[r#"
        external address 10.96.0.10 is not served: it is the address of the cluster's DNS
        external address 10.96.0.7 is not served: it is in the range of Services' addresses
        external address 127.0.0.1 is not served: may not be in the loopback range (127.0.0.0/8, ::1/128)"#]]
    .assert_eq(&why.unwrap().replace("; ", "\n"));
    let why = told("externalIPs: [192.168.50.1, 192.168.50.2, 192.168.50.3, 10.244.1.1, 10.96.0.1]", "198.51.100.7");
    expect![[r#"
        external address 192.168.50.1 is not served: it is the address of a Pod or node
        external address 192.168.50.2 is not served: it is the address of a Pod or node
        external address 192.168.50.3 is not served: it is the address of an API server
        external address 10.244.1.1 is not served: it is the address of a Pod or node
        and 1 more"#]]
    .assert_eq(&why.unwrap().replace("; ", "\n"));
}
