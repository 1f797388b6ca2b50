//! Services compiled to dataplane and names: golden text, case by case.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use expect_test::{Expect, expect};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use podwright::proxy::{
    NodeContext, compile, facts, health_check, host_ports, loopback_ports, names, servers, unserved,
};
use podwright_net::dataplane::{Backends, Empty, NodeFacts};
use podwright_net::forwards::Forward;
use serde_json::json;

mod announcing;
mod external;
mod hints;
mod policies;
mod shares;
mod state;

/// A Service and its slices, compiled on node `a` in zone `east`.
fn check(service: &str, slices: &[&str], expected: Expect) {
    let service: Service = serde_saphyr::from_str(service).unwrap();
    let slices: Vec<Arc<EndpointSlice>> = slices.iter().map(|s| Arc::new(serde_saphyr::from_str(s).unwrap())).collect();
    let place = NodeContext {
        node: "a".to_owned(),
        zone: Some("east".to_owned()),
        dns: vec!["10.96.0.10".parse().unwrap()],
        api: vec!["192.0.2.1:6443".parse().unwrap()],
        own: vec!["192.168.50.1".parse().unwrap()],
    };
    let mut text = String::new();
    for port in compile(&service, &slices, &place).iter().flat_map(|s| &s.ports) {
        let _ = write!(text, "{:?} {} {:?}", port.family, port.protocol.name(), port.name);
        for address in port.cluster_ips.iter().chain(&port.external_ips) {
            let _ = write!(text, " {address}:{}", port.port);
        }
        for address in &port.host_ips {
            let _ = write!(text, " here {address}:{}", port.port);
        }
        let _ = port.node_port.map(|p| write!(text, " node port {p}"));
        let _ = port.affinity.map(|a| write!(text, " affinity {}s", a.as_secs()));
        if !port.source_ranges.is_empty() {
            let _ = write!(text, " only {:?}", port.source_ranges);
        }
        text.push('\n');
        list(&mut text, "internal", Some(&port.internal));
        list(&mut text, "external", port.external.as_ref());
        list(&mut text, "outside", port.outside.as_ref());
    }
    for (name, entry) in names(&service, &slices, "cluster.local") {
        let _ = write!(text, "{name}");
        entry.addresses.iter().for_each(|a| write!(text, " {a}").unwrap());
        entry.cname.iter().for_each(|c| write!(text, " -> {c}").unwrap());
        entry.pointers.iter().for_each(|p| write!(text, " = {p}").unwrap());
        entry.services.iter().for_each(|s| write!(text, " [{} {}]:{}", s.weight, s.target, s.port).unwrap());
        text.push('\n');
    }
    expected.assert_eq(&text);
}

fn list(text: &mut String, name: &str, backends: Option<&Backends>) {
    let Some(backends) = backends else { return };
    let endpoints: Vec<String> = backends.endpoints.iter().map(ToString::to_string).collect();
    let empty = if backends.empty == Empty::Drop { "else drop" } else { "else refuse" };
    let _ = writeln!(text, "  {name}: {} {empty}", endpoints.join(" "));
}

const WEB: &str = "
metadata: {name: web, namespace: default}
spec:
  type: ClusterIP
  clusterIP: 10.96.0.7
  clusterIPs: [10.96.0.7]
  ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}]
";

/// Two ready endpoints, one on each node, and one that is not ready.
const SLICE: &str = "
addressType: IPv4
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.244.1.2], nodeName: a, conditions: {ready: true}}
- {addresses: [10.244.2.2], nodeName: b}
- {addresses: [10.244.2.3], nodeName: b, conditions: {ready: false, serving: false}}
";

fn with(service: &str, more: &str) -> String {
    format!("{service}{}", more.lines().map(|l| format!("  {}\n", l.trim())).collect::<String>())
}

#[test]
fn cluster_ip() {
    check(
        WEB,
        &[SLICE],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80
          internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
    check(
        WEB,
        &[],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80
          internal:  else refuse
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
}

#[test]
fn node_port_with_policies() {
    let node_port = WEB.replace("ClusterIP\n", "NodePort\n").replace("port: 80,", "port: 80, nodePort: 30080,");
    check(
        &node_port,
        &[SLICE],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 node port 30080
          internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
    check(
        &with(&node_port, "externalTrafficPolicy: Local"),
        &[SLICE],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 node port 30080
          internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
          outside: 10.244.1.2:8080 else drop
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
    let both = with(&node_port, "externalTrafficPolicy: Local\ninternalTrafficPolicy: Local");
    check(
        &both,
        &[&SLICE.replace("nodeName: a", "nodeName: c")],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 node port 30080
          internal:  else drop
          external: 10.244.1.2:8080 10.244.2.2:8080 else refuse
          outside:  else drop
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
    check(
        &both,
        &[],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 node port 30080
          internal:  else refuse
          external:  else refuse
          outside:  else refuse
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
}

#[test]
fn terminating_endpoints_serve_when_nobody_else_does() {
    let last = SLICE
        .replace("conditions: {ready: true}", "conditions: {ready: false, serving: true, terminating: true}")
        .replace("nodeName: b}", "nodeName: b, conditions: {ready: false, serving: false, terminating: true}}");
    check(
        WEB,
        &[&last],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80
          internal: 10.244.1.2:8080 else refuse
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
}

#[test]
fn dual_stack_and_affinity() {
    let dual = WEB.replace("clusterIPs: [10.96.0.7]", "clusterIPs: [10.96.0.7, 'fd00:96::7']");
    let v6 = SLICE
        .replace("IPv4", "IPv6")
        .replace("10.244.1.2", "'fd00:244:1::2'")
        .replace("10.244.2.", "'fd00:244:2::")
        .replace("::2]", "::2']")
        .replace("::3]", "::3']");
    let affinity = "sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}";
    check(
        &with(&dual, affinity),
        &[SLICE, &v6],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 affinity 60s
          internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
        V6 tcp "http" fd00:96::7:80 affinity 60s
          internal: [fd00:244:1::2]:8080 [fd00:244:2::2]:8080 else refuse
        7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa = web.default.svc.cluster.local
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7 fd00:96::7
    "#]],
    );
    check(
        &with(WEB, "sessionAffinity: ClientIP"),
        &[SLICE],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 affinity 10800s
          internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
}

#[test]
fn load_balancer() {
    let balancer =
        WEB.replace("type: ClusterIP", "type: LoadBalancer").replace("port: 80,", "port: 80, nodePort: 30080,");
    let balancer = with(&balancer, "externalIPs: [198.51.100.1]\nloadBalancerSourceRanges: [' 203.0.113.0/24 ', oops]");
    let status =
        "status: {loadBalancer: {ingress: [{ip: 198.51.100.7}, {ip: 198.51.100.8, ipMode: Proxy}, {hostname: x}]}}\n";
    check(
        &(balancer + status),
        &[SLICE],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 198.51.100.1:80 198.51.100.7:80 node port 30080 only [203.0.113.0/24]
          internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
}

/// Without a pool a load balancer's address is a node's: on that node it is one of its own ports, elsewhere an address like others.
#[test]
fn a_load_balancer_on_the_nodes_own_addresses() {
    let balancer = WEB.replace("type: ClusterIP", "type: LoadBalancer");
    let balancer = with(&balancer, "externalTrafficPolicy: Local");
    let ingress = "[{ip: 192.168.50.1, ipMode: VIP}, {ip: 192.168.50.2, ipMode: VIP}, {ip: 198.51.100.7}]";
    let service = format!("{balancer}status: {{loadBalancer: {{ingress: {ingress}}}}}\n");
    check(
        &service,
        &[SLICE],
        expect![[r#"
        V4 tcp "http" 10.96.0.7:80 192.168.50.2:80 198.51.100.7:80 here 192.168.50.1:80
          internal: 10.244.1.2:8080 10.244.2.2:8080 else refuse
          outside: 10.244.1.2:8080 else drop
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
    // Where it is said that nothing else is there: what no Service has of it is refused.
    let service: Service = serde_saphyr::from_str(&service).unwrap();
    let place = NodeContext { own: vec!["192.168.50.1".parse().unwrap()], ..NodeContext::default() };
    let whole = compile(&service, &[] as &[Arc<EndpointSlice>], &place).unwrap().whole;
    assert_eq!(whole, ["192.168.50.2".parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn a_load_balancer_in_front_of_the_nodes_hears_where_endpoints_are() {
    let balancer = WEB.replace("type: ClusterIP", "type: LoadBalancer");
    let local = with(&balancer, "externalTrafficPolicy: Local\nhealthCheckNodePort: 30099");
    let slices: Vec<Arc<EndpointSlice>> = vec![Arc::new(serde_saphyr::from_str(SLICE).unwrap())];
    let check = |service: &str, node: &str| health_check(&serde_saphyr::from_str(service).unwrap(), &slices, node);
    assert_eq!(check(&local, "a"), Some((30099, 1)));
    assert_eq!(check(&local, "b"), Some((30099, 1)), "of two that one which is ready");
    assert_eq!(check(&local, "c"), Some((30099, 0)));
    assert_eq!(check(&local.replace("Local", "Cluster"), "a"), None);
    assert_eq!(check(&local.replace("LoadBalancer", "NodePort"), "a"), None);
}

#[test]
fn headless() {
    let headless = WEB.replace("clusterIP: 10.96.0.7", "clusterIP: None").replace("[10.96.0.7]", "[None]");
    check(
        &headless,
        &[&SLICE.replace("nodeName: a,", "nodeName: a, hostname: db-0,")],
        expect![[r#"
        10-244-2-2.web.default.svc.cluster.local 10.244.2.2
        2.1.244.10.in-addr.arpa = db-0.web.default.svc.cluster.local
        2.2.244.10.in-addr.arpa = 10-244-2-2.web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [50 db-0.web.default.svc.cluster.local]:8080 [50 10-244-2-2.web.default.svc.cluster.local]:8080
        db-0.web.default.svc.cluster.local 10.244.1.2
        web.default.svc.cluster.local 10.244.1.2 10.244.2.2
    "#]],
    );
}

#[test]
fn nothing_to_balance() {
    let external =
        "{metadata: {name: out, namespace: default}, spec: {type: ExternalName, externalName: WWW.Example.org.}}";
    check(
        external,
        &[],
        expect![[r#"
        out.default.svc.cluster.local -> www.example.org
    "#]],
    );
    let other = WEB.replace("{name: web,", "{name: web, labels: {service.kubernetes.io/service-proxy-name: mine},");
    check(
        &other,
        &[SLICE],
        expect![[r#"
        7.0.96.10.in-addr.arpa = web.default.svc.cluster.local
        _http._tcp.web.default.svc.cluster.local [100 web.default.svc.cluster.local]:80
        web.default.svc.cluster.local 10.96.0.7
    "#]],
    );
    check("{metadata: {name: new, namespace: default}, spec: {ports: [{port: 80}]}}", &[], expect![[""]]);
}

#[test]
fn the_address_of_dns_is_not_balanced() {
    let dns = "
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}, {name: metrics, port: 9153}]
";
    check(
        dns,
        &[],
        expect![[r#"
        V4 udp "dns"
          internal:  else refuse
        V4 tcp "dns-tcp"
          internal:  else refuse
        V4 tcp "metrics" 10.96.0.10:9153
          internal:  else refuse
        10.0.96.10.in-addr.arpa = kube-dns.kube-system.svc.cluster.local
        _dns-tcp._tcp.kube-dns.kube-system.svc.cluster.local [100 kube-dns.kube-system.svc.cluster.local]:53
        _dns._udp.kube-dns.kube-system.svc.cluster.local [100 kube-dns.kube-system.svc.cluster.local]:53
        _metrics._tcp.kube-dns.kube-system.svc.cluster.local [100 kube-dns.kube-system.svc.cluster.local]:9153
        kube-dns.kube-system.svc.cluster.local 10.96.0.10
    "#]],
    );
}

#[test]
fn host_ports_of_a_pod() {
    let of = |pod: &str| {
        let pod: Pod = serde_saphyr::from_str(pod).unwrap();
        let ports = host_ports(&pod, &[]).map(|s| s.ports).unwrap_or_default();
        let line = |p: podwright_net::dataplane::ServicePort| {
            assert_eq!(p.external_ips, p.host_ips);
            let at = p.host_ips.iter().map(|ip| format!("{ip}:{}", p.port));
            let at: String = at.chain(p.node_port.map(|n| format!("*:{n}"))).collect();
            format!("{:?} {} {} -> {:?}", p.family, p.protocol.name(), at, p.internal.endpoints)
        };
        ports.into_iter().map(line).collect::<Vec<_>>()
    };
    let web = "
spec:
  initContainers:
  - {name: once, ports: [{containerPort: 1, hostPort: 1}]}
  - {name: beside, restartPolicy: Always, ports: [{containerPort: 2, hostPort: 2, protocol: UDP}]}
  containers:
  - name: web
    ports:
    - {containerPort: 80, hostPort: 8080}
    - {containerPort: 81}
    - {containerPort: 82, hostPort: 82, hostIP: 192.0.2.1}
    - {containerPort: 83, hostPort: 83, hostIP: '::'}
    - {containerPort: 84, hostPort: 84, hostIP: 127.0.0.1}
status: {phase: Running, podIPs: [{ip: 10.244.1.5}, {ip: 'fd00::5'}]}
";
    let expected = [
        "V4 udp *:2 -> [10.244.1.5:2]",
        "V4 tcp *:8080 -> [10.244.1.5:80]",
        "V4 tcp 192.0.2.1:82 -> [10.244.1.5:82]",
        "V6 udp *:2 -> [[fd00::5]:2]",
        "V6 tcp *:8080 -> [[fd00::5]:80]",
        "V6 tcp *:83 -> [[fd00::5]:83]",
    ];
    assert_eq!(of(web), expected);
    assert_eq!(of(&web.replace("phase: Running", "phase: Failed")), [""; 0]);
    assert_eq!(of(&web.replace("spec:", "spec:\n  hostNetwork: true")), [""; 0]);
    assert_eq!(of(&web.replace("podIPs", "hostIPs")), [""; 0]);

    let pod = |pod: &str| -> Pod { serde_saphyr::from_str(pod).unwrap() };
    let loopback = |text: &str| -> Vec<String> {
        let told = |c: &Forward| format!("{} -> {}/{}", c.at, c.to, c.protocol.name());
        loopback_ports(&pod(text)).iter().map(told).collect()
    };
    let by = |protocol: &str| web.replace("hostIP: 127.0.0.1", &format!("hostIP: 127.0.0.1, protocol: {protocol}"));
    assert_eq!(loopback(web), ["127.0.0.1:84 -> 10.244.1.5:84/tcp"]);
    assert_eq!(loopback(&by("UDP")), ["127.0.0.1:84 -> 10.244.1.5:84/udp"]);
    assert_eq!(loopback(&by("SCTP")), [""; 0]);
    assert_eq!(loopback(&web.replace("phase: Running", "phase: Failed")), [""; 0]);
    let facts = NodeFacts { cluster_ranges: vec!["192.0.2.0/30".parse().unwrap()], ..NodeFacts::default() };
    let own = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
    assert_eq!(unserved(&pod(web), &facts, &own(&["192.0.2.1"]), &[]), [""; 0]);
    let told = unserved(&pod(web), &facts, &own(&["192.0.2.2"]), &[]);
    assert_eq!(told, ["host port 192.0.2.1:82/tcp is not served: the address is not one of this node"]);
    assert_eq!(unserved(&pod(&by("UDP")), &NodeFacts::default(), &[], &[]), [""; 0]);
    let told = unserved(&pod(&by("SCTP")), &NodeFacts::default(), &[], &[]);
    assert_eq!(told, ["host port 127.0.0.1:84/sctp is not served: on loopback this node serves TCP and UDP alone"]);
}

#[test]
fn host_ports_are_on_no_special_address() {
    let dns = ["10.96.0.10", "fd00:96::a"].map(|ip| ip.parse().unwrap());
    let (link_local, of_dns) =
        ("may not be in the link-local range (169.254.0.0/16, fe80::/10)", "it is the address of the cluster's DNS");
    let multicast = "may not be in the multicast range (224.0.0.0/4, ff00::/10)";
    for (address, why) in [
        ("169.254.169.254", link_local),
        ("169.254.1.1", link_local),
        ("0.1.2.3", "may not be unspecified (0.0.0.0 or ::)"),
        ("224.0.0.251", multicast),
        ("255.255.255.255", "may not be the broadcast address (255.255.255.255)"),
        ("10.96.0.10", of_dns),
        ("fe80::1", link_local),
        ("ff02::fb", multicast),
        ("fd00:96::a", of_dns),
        ("::ffff:169.254.169.254", link_local),
        ("::ffff:127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
    ] {
        let port = json!({"containerPort": 80, "hostPort": 8080, "hostIP": address});
        let pod = json!({
            "spec": {"containers": [{"name": "web", "ports": [port]}]},
            "status": {"podIPs": [{"ip": "10.244.1.5"}, {"ip": "fd00::5"}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(host_ports(&pod, &dns), None, "{address}");
        let at = SocketAddr::new(address.parse().unwrap(), 8080);
        let expected = format!("host port {at}/tcp is not served: {why}");
        assert_eq!(unserved(&pod, &NodeFacts::default(), &[], &dns), [expected]);
    }
}

#[test]
fn facts_of_nodes() {
    let node = |name: &str, range: &str, address: &str| -> Arc<Node> {
        let networks = format!("podwright/node-networks: '{address}/24,nonsense'");
        let yaml = format!(
            "metadata: {{name: {name}, annotations: {{{networks}}}}}\nspec: {{podCIDR: {range}, podCIDRs: [{range}]}}\n\
             status: {{addresses: [{{type: InternalIP, address: {address}}}, {{type: Hostname, address: {name}}}]}}"
        );
        Arc::new(serde_saphyr::from_str(&yaml).unwrap())
    };
    let nodes = [node("a", "10.244.1.0/24", "192.168.50.1"), node("b", "10.244.2.0/24", "192.168.50.2")];
    let dns = ["10.96.0.10", "192.0.2.53"].map(|ip| ip.parse().unwrap());
    let ranges = ["10.96.0.0/16".parse().unwrap()];
    let facts_with = |dns: &[IpAddr]| facts(&nodes, "b", &["192.168.60.2".parse().unwrap()], &ranges, dns);
    let facts = facts_with(&dns);
    expect![[r#"
        {
          "pod_ranges": [
            "10.244.2.0/24"
          ],
          "plugged": [],
          "cluster_ranges": [
            "10.244.1.0/24",
            "10.244.2.0/24",
            "192.168.50.2/32",
            "192.168.60.2/32"
          ],
          "other_nodes": [
            "192.168.50.1/32"
          ],
          "servers": [],
          "service_ranges": [
            "10.96.0.0/16",
            "192.0.2.53/32"
          ],
          "networks": [
            "192.168.50.2/24"
          ],
          "peers": [
            {
              "name": "a",
              "addresses": [
                "192.168.50.1"
              ],
              "pod_ranges": [
                "10.244.1.0/24"
              ],
              "networks": [
                "192.168.50.1/24"
              ]
            }
          ],
          "tunnel": null
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&facts).unwrap());
    // Where DNS is on an address of the node's own, its ports are as before.
    let own = ["192.168.50.2", "192.168.60.2"].map(|ip| ip.parse().unwrap());
    assert_eq!(facts_with(&own).service_ranges, ranges);
}

#[test]
fn of_the_peers_those_come_first_that_were_there_first() {
    let node = |name: &str, since: &str| -> Arc<Node> {
        let yaml = format!(
            "metadata: {{name: {name}, uid: {name}, creationTimestamp: {since}}}\nspec: {{podCIDRs: [10.244.9.0/24]}}"
        );
        Arc::new(serde_saphyr::from_str(&yaml).unwrap())
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let nodes = [node("a", late), node("b", early), node("c", late), node("own", early)];
    let names: Vec<String> = facts(&nodes, "own", &[], &[], &[]).peers.into_iter().map(|peer| peer.name).collect();
    assert_eq!(names, ["b", "a", "c"]);
}

#[test]
fn servers_are_where_the_cluster_says_and_where_the_node_was_told() {
    let slice = |endpoints: &str| -> Arc<EndpointSlice> {
        let yaml = format!("metadata: {{name: kubernetes}}\naddressType: IPv4\nendpoints: {endpoints}");
        Arc::new(serde_saphyr::from_str(&yaml).unwrap())
    };
    let slices = [
        slice("[{addresses: [192.168.50.1]}, {addresses: [192.168.50.2], conditions: {ready: false}}]"),
        slice("[{addresses: [server.example, 'fd00:50::1']}]"),
    ];
    let told = ["192.168.50.1", "203.0.113.9"].map(|ip| ip.parse().unwrap());
    let found: Vec<String> = servers(&slices, &told).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["192.168.50.1/32", "192.168.50.2/32", "203.0.113.9/32", "fd00:50::1/128"]);
}

#[test]
fn a_node_that_takes_the_apis_calls_itself_leads_them_there() {
    let service = "
metadata: {name: kubernetes, namespace: NAMESPACE}
spec: {type: ClusterIP, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{name: https, port: 443, targetPort: 6443}]}
";
    let slice = "
metadata: {name: kubernetes, namespace: NAMESPACE, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 7443, protocol: TCP}]
endpoints: [{addresses: [10.0.0.9], conditions: {ready: true}}]
";
    let in_namespace = |text: &str, name: &str| text.replace("NAMESPACE", name);
    check(
        &in_namespace(service, "default"),
        &[&in_namespace(slice, "default")],
        expect![[r#"
            V4 tcp "https" 10.96.0.1:443
              internal: 192.0.2.1:6443 else refuse
            1.0.96.10.in-addr.arpa = kubernetes.default.svc.cluster.local
            _https._tcp.kubernetes.default.svc.cluster.local [100 kubernetes.default.svc.cluster.local]:443
            kubernetes.default.svc.cluster.local 10.96.0.1
        "#]],
    );
    // A namesake is nobody special.
    check(
        &in_namespace(service, "other"),
        &[&in_namespace(slice, "other")],
        expect![[r#"
            V4 tcp "https" 10.96.0.1:443
              internal: 10.0.0.9:7443 else refuse
            1.0.96.10.in-addr.arpa = kubernetes.other.svc.cluster.local
            _https._tcp.kubernetes.other.svc.cluster.local [100 kubernetes.other.svc.cluster.local]:443
            kubernetes.other.svc.cluster.local 10.96.0.1
        "#]],
    );
}
