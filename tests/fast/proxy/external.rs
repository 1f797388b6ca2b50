//! Addresses that lead to no Service on a node, whoever names them.

use std::sync::Arc;

use expect_test::expect;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use podwright::client::Key;
use podwright::proxy::{NodeContext, OccupiedAddresses, Told, compile, unserved_addresses};
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
    let told = |service: &str| {
        let service: Service = serde_saphyr::from_str(service).unwrap();
        unserved_addresses(&service, &OccupiedAddresses::default(), &["10.96.0.10".parse().unwrap()])
    };
    let why = "UDP port 53 of 10.96.0.10 is not served: it is the address of the cluster's DNS; \
               TCP port 853 of 10.96.0.10 is not served: it is the address of the cluster's DNS";
    assert_eq!(told(&thief), [("ClusterIPNotServed", why.to_owned())]);
    assert!(told(&thief.replace("namespace: default", "namespace: kube-system")).is_empty());
}

/// By a node port anybody outside would ask the node's own server, and have no pace.
#[test]
fn nobody_but_the_system_leads_to_where_the_node_answers_dns() {
    let node_port = WEB.replace("ClusterIP\n", "NodePort\n").replace("port: 80,", "port: 80, nodePort: 30080,");
    let slice = SLICE.replace("port: 8080", "port: 53").replace("10.244.1.2", "10.96.0.10");
    let six = slice
        .replace("10.244.2.3", "'fd00::3'")
        .replace("IPv4", "IPv6")
        .replace("10.96.0.10", "'::ffff:10.96.0.10'")
        .replace("10.244.2.2", "'fd00::2'");
    let dual = node_port.replace("clusterIPs: [10.96.0.7]", "clusterIPs: [10.96.0.7, 'fd00:96::7']");
    let compiled = |service: &str| {
        let service: Service = serde_saphyr::from_str(service).unwrap();
        let slices = [&slice, &six].map(|slice| Arc::new(serde_saphyr::from_str::<EndpointSlice>(slice).unwrap()));
        let dns = vec!["10.96.0.10".parse().unwrap()];
        let place = NodeContext { node: "a".to_owned(), dns, ..NodeContext::default() };
        let ports = compile(&service, &slices, &place).unwrap().ports;
        ports.iter().flat_map(|port| &port.internal.endpoints).map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(compiled(&dual), ["10.244.2.2:53", "[fd00::2]:53"]);
    let of_system = dual.replace("namespace: default", "namespace: kube-system");
    assert_eq!(compiled(&of_system), ["10.96.0.10:53", "10.244.2.2:53", "[::ffff:10.96.0.10]:53", "[fd00::2]:53"]);
}

#[test]
fn no_external_address_is_that_of_dns_or_one_of_the_machines_own() {
    let balancer = WEB.replace("type: ClusterIP", "type: LoadBalancer");
    let balancer = balancer.replace("clusterIPs: [10.96.0.7]", "clusterIPs: [10.96.0.7, 'fd00:96::7']");
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
            V6 tcp "http" fd00:96::7:80
              internal:  else refuse
            7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa = web.default.svc.cluster.local
            7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
            _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
            web.default.svc.cluster.local 10.96.0.7 fd00:96::7
        "#]],
    );
}

#[test]
fn whoever_names_an_address_that_is_not_served_hears_why() {
    let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    let facts = NodeFacts {
        cluster_ranges: nets(&["10.244.0.0/16", "10.244.3.0/24", "192.168.50.1/32", "fd00:244::/32"]),
        other_nodes: nets(&["192.168.50.2/32"]),
        servers: nets(&["192.168.50.3/32"]),
        service_ranges: nets(&["10.96.0.0/16"]),
        ..NodeFacts::default()
    };
    let told = |named: &str, given: &str| {
        let status = format!("status: {{loadBalancer: {{ingress: [{{ip: {given}}}]}}}}\n");
        let service: Service = serde_saphyr::from_str(&(with(WEB, named) + &status)).unwrap();
        let unserved = unserved_addresses(&service, &OccupiedAddresses::of(&facts), &["10.96.0.10".parse().unwrap()]);
        assert!(unserved.iter().all(|(reason, _)| *reason == "ExternalAddressNotServed"), "{unserved:?}");
        unserved.into_iter().map(|(_, message)| message).next()
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

#[test]
fn each_hears_once_and_nobody_is_left_out() {
    let mut told = Told::default();
    let keys = ["a", "b", "c"].map(|name| Key::new("default", name));
    let names = |telling: Vec<(Key, _)>| telling.into_iter().map(|(key, _)| key.name).collect::<Vec<_>>();
    let unserved = |key: &Key| if key.name == "b" { Vec::new() } else { vec![("Reason", key.name.clone())] };
    told.look_at(keys.clone());
    assert_eq!(names(told.next(1, unserved)), ["a"]);
    assert_eq!(names(told.next(1, unserved)), ["c"], "what was too much before is told afterwards");
    told.look_at(keys.clone());
    assert_eq!(names(told.next(9, unserved)), [""; 0]);
    // Of two reasons the one that is new; and all again of who has been served in the meantime.
    let more = |key: &Key| [unserved(key), vec![("Other", key.name.clone())]].concat();
    told.look_at(keys[..1].to_vec());
    assert_eq!(told.next(9, more), [(keys[0].clone(), vec![("Other", "a".to_owned())])]);
    told.look_at(keys.clone());
    assert_eq!(names(told.next(9, |_| Vec::new())), [""; 0]);
    told.look_at(keys);
    assert_eq!(names(told.next(9, unserved)), ["a", "c"]);
}
