//! Between Pods, and from Pods to the node's network: forged packets, others' addresses, the node's ports.

use std::{
    io::{Read, Write},
    net::{TcpStream, UdpSocket},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;

use super::world::{CONNTRACK_MAX, NODE, OPEN, OURS, SECRET, THEIRS, World};
use super::{Attack, POD, Pod, Target, Try, Verdict, judge, verdict};
use crate::support::{
    eventually,
    netns::{at, within},
    tls,
};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "forged-source",
        class: "spoofing",
        cves: &[],
        how: "a Pod sends datagrams from a neighbour's address to another Pod, past its own tables (AF_PACKET); its own address arrives",
        held: "strict reverse-path filter on the Pod's link",
        attempt: Try::Code(|world, target| forged(world, target, |_, victim| (neighbour(victim), victim.to_owned()))),
    },
    Attack {
        id: "forged-dns",
        class: "spoofing",
        cves: &[],
        how: "a Pod sends answers from the cluster's DNS address to another Pod",
        held: "as above; and the kernel takes packets from the node's own addresses off no link (accept_local is off)",
        attempt: Try::Code(|world, target| forged(world, target, |_, victim| ("10.96.0.10".into(), victim.to_owned()))),
    },
    Attack {
        id: "route-localnet",
        class: "spoofing",
        cves: &["CVE-2020-8558"],
        how: "a Pod sends to 127.0.0.1 of the node",
        held: "route_localnet is off",
        attempt: Try::Code(route_localnet),
    },
    Attack {
        id: "router-advertisement",
        class: "spoofing",
        cves: &["CVE-2020-10749", "CVE-2020-13401", "CVE-2020-13597", "CVE-2020-11091"],
        how: "a Pod sends router advertisements; the node's routes and addresses before and after",
        held: "the node's end of a Pod's link accepts none, and links are not bridged",
        attempt: Try::Code(router_advertisement),
    },
    Attack {
        id: "arp-claim",
        class: "spoofing",
        cves: &[],
        how: "a Pod claims the gateway's and another Pod's address by ARP",
        held: "every Pod has a link of its own, routed; the kernel takes no claim that it has not asked for (arp_accept is off)",
        attempt: Try::Code(arp_claim),
    },
    Attack {
        id: "abstract-sockets",
        class: "the runtime's sockets",
        cves: &["CVE-2020-15257"],
        how: "with `hostNetwork`, connects to all abstract sockets; the machine has none of ours either",
        held: "sockets are files in folders of root's",
        attempt: Try::Code(abstract_sockets),
    },
    Attack {
        id: "node-listens",
        class: "the node's ports",
        cves: &[],
        how: "what in the node's network listens for Pods",
        held: "DNS on the cluster's address, the way to the API, and the kernel's end of tunnels, which no Pod reaches; nothing else",
        attempt: Try::Code(node_listens),
    },
    Attack {
        id: "api-from-a-pod",
        class: "the API from inside",
        cves: &["CVE-2019-11248"],
        how: "a Pod asks the API without a token, with a forged one, with one whose signature was taken off, with its own",
        held: "authentication and RBAC",
        attempt: Try::Code(api_from_a_pod),
    },
    Attack {
        id: "host-port-dns",
        class: "stolen addresses",
        cves: &["CVE-2020-8554", "CVE-2019-9946"],
        how: "a Pod takes port 53 by `hostPort`, with any and with the cluster's DNS address as `hostIP`; another Pod asks for a name",
        held: "host ports are on the node's own addresses, cluster addresses are not among them",
        attempt: Try::Code(host_port_dns),
    },
    Attack {
        id: "external-ip-dns",
        class: "stolen addresses",
        cves: &["CVE-2020-8554"],
        how: "a user with `edit` makes a Service with the cluster's DNS address as external IP",
        held: "external IPs never cover cluster addresses",
        attempt: Try::Code(external_ip_dns),
    },
    Attack {
        id: "external-ip-pod",
        class: "stolen addresses",
        cves: &["CVE-2020-8554"],
        how: "the same with the address of a Pod of another tenant",
        held: "external IPs never cover Pods' addresses",
        attempt: Try::Code(external_ip_pod),
    },
    Attack {
        id: "external-ip-tenant",
        class: "stolen addresses",
        cves: &["CVE-2020-8554"],
        how: "the same with the external IP of another tenant's Service, by a Service whose name comes first",
        held: "a port of an external IP is its namespace's that names it first",
        attempt: Try::Code(external_ip_tenant),
    },
    Attack {
        id: "fill-conntrack",
        class: "exhaustion",
        cves: &[],
        how: "a Pod opens more UDP flows than the node counts on to track; how many are tracked some seconds later, and whether another Pod opens connections",
        held: "Pods share half of the table: who has more than its share loses it, those that have ended first, and opens no more for a while",
        attempt: Try::Code(fill_conntrack),
    },
    Attack {
        id: "hold-dns-streams",
        class: "exhaustion",
        cves: &[],
        how: "a Pod holds more TCP connections to the cluster's DNS than that takes; another Pod asks by TCP",
        held: "when all places are taken, whoever holds the most loses its oldest to who has fewer",
        attempt: Try::Code(hold_dns_streams),
    },
];

/// Another address of the same range, free or someone else's.
fn neighbour(address: &str) -> String {
    let (start, last) = address.rsplit_once('.').unwrap();
    format!("{start}.{}", (last.parse::<u8>().unwrap() ^ 0x40).max(2))
}

pub fn ip_of(world: &World, namespace: &str, pod: &str) -> String {
    world.node.field(&["-n", namespace, "pod", pod], ".status.podIP")
}

/// Starts the attacker and a victim beside it; returns their addresses and the victim's namespace.
pub fn two(world: &World, target: &Target) -> Result<(String, String, std::path::PathBuf), String> {
    let pod = Pod { script: "sleep 1000", ..POD };
    world.start_pod(target, &pod)?;
    let mut victim = world.pod(target, &pod);
    let name = format!("{}-victim", target.id);
    victim["metadata"]["name"] = json!(name);
    world.create("pods", OPEN, victim)?;
    world.node.wait("condition=Ready", &["-n", OPEN, &format!("pod/{name}")], Duration::from_secs(30));
    Ok((ip_of(world, OPEN, target.id), ip_of(world, OPEN, &name), world.node.netns_in(OPEN, &name)))
}

/// Waits briefly for a datagram.
fn arrives(socket: &UdpSocket) -> bool {
    let mut buffer = [0; 64];
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let arrived = socket.recv_from(&mut buffer).is_ok();
    socket.set_nonblocking(true).unwrap();
    while socket.recv_from(&mut buffer).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    arrived
}

/// Datagrams with addresses that `choose` derives from the attacker's and victim's. A genuine one must arrive.
fn forged(world: &World, target: &Target, choose: impl Fn(&str, &str) -> (String, String)) -> Verdict {
    let (own, victim, netns) = match two(world, target) {
        Ok(two) => two,
        Err(why) => return Verdict::Untried(why),
    };
    let socket = within(&netns, || UdpSocket::bind("0.0.0.0:5353").unwrap());
    let (source, destination) = choose(&own, &victim);
    // The kernel must have resolved the neighbour before the tool looks for it.
    world.inside(target, OPEN, &["sh", "-c", &format!("echo x | nc -u -w 1 {victim} 5353")]);
    arrives(&socket);
    let honest = world.inside(target, OPEN, &["attack", "forge", &own, &victim, "5353"]);
    if !arrives(&socket) {
        return Verdict::Untried(format!("not even an honest datagram arrives: {honest}"));
    }
    let said = world.inside(target, OPEN, &["attack", "forge", &source, &destination, "5353"]);
    if !said.contains("sent 10") {
        return Verdict::Untried(said);
    }
    verdict(!arrives(&socket), said)
}

fn route_localnet(world: &World, target: &Target) -> Verdict {
    let (own, victim, _) = match two(world, target) {
        Ok(two) => two,
        Err(why) => return Verdict::Untried(why),
    };
    let node = world.node.field(&["node", NODE], ".status.addresses[?(@.type==\"InternalIP\")].address");
    let (inner, outer) = within(&world.node.netns(), || {
        (UdpSocket::bind("127.0.0.1:5354").unwrap(), UdpSocket::bind((node.as_str(), 5355)).unwrap())
    });
    world.inside(target, OPEN, &["sh", "-c", &format!("echo x | nc -u -w 1 {victim} 5353")]);
    let honest = world.inside(target, OPEN, &["attack", "forge", &own, &node, "5355"]);
    if !arrives(&outer) {
        return Verdict::Untried(format!("not even an honest datagram arrives: {honest}"));
    }
    let said = world.inside(target, OPEN, &["attack", "forge", &own, "127.0.0.1", "5354"]);
    verdict(!arrives(&inner) && said.contains("sent 10"), said)
}

/// What `ip` says in a namespace.
pub fn ip(netns: &Path, args: &[&str]) -> String {
    let output =
        Command::new("nsenter").arg(format!("--net={}", netns.display())).arg("ip").args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn router_advertisement(world: &World, target: &Target) -> Verdict {
    let (_, _, victim) = match two(world, target) {
        Ok(two) => two,
        Err(why) => return Verdict::Untried(why),
    };
    let said = world.inside(target, OPEN, &["attack", "advertise"]);
    if !said.contains("sent 5") {
        return Verdict::Untried(said);
    }
    let mut seen = String::new();
    for netns in [&world.node.netns(), &victim] {
        for what in ["route", "address"] {
            seen.push_str(&ip(netns, &["-6", what]));
        }
    }
    verdict(!seen.contains("bad") && !seen.contains("proto ra"), format!("{said}{seen}"))
}

fn arp_claim(world: &World, target: &Target) -> Verdict {
    let (_, victim, netns) = match two(world, target) {
        Ok(two) => two,
        Err(why) => return Verdict::Untried(why),
    };
    let mut said = String::new();
    for address in ["169.254.1.1", &victim] {
        said.push_str(&world.inside(target, OPEN, &["attack", "claim", address]));
    }
    if said.matches("sent 5").count() != 2 {
        return Verdict::Untried(said);
    }
    let seen = ip(&world.node.netns(), &["neighbour"]) + &ip(&netns, &["neighbour"]);
    verdict(!seen.contains("02:ba:0d:ba:0d:01"), seen)
}

fn abstract_sockets(world: &World, target: &Target) -> Verdict {
    let ours = |line: &&str| line.contains('@') && ["podwright", "shim", "pw"].iter().any(|part| line.contains(part));
    let machine = std::fs::read_to_string("/proc/net/unix").unwrap();
    let found: Vec<&str> = machine.lines().filter(ours).collect();
    if !found.is_empty() {
        return Verdict::Breach(format!("{found:?}"));
    }
    let pod = Pod { spec: "hostNetwork: true", script: "attack abstract", ..POD };
    match world.run_to_the_end(&world.pod(target, &pod)) {
        super::world::End::Said(said) => judge(target, &said),
        super::world::End::Refused(why) => Verdict::Untried(why),
    }
}

fn node_listens(world: &World, _: &Target) -> Verdict {
    let output = Command::new("nsenter")
        .arg(format!("--net={}", world.node.netns().display()))
        .args(["ss", "-Hlntu"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let allowed = |line: &str| {
        let local = line.split_whitespace().nth(4).unwrap_or_default();
        local == "10.96.0.10:53"
            || local.starts_with("192.0.2.1:")
            || local.ends_with(":5354")
            || local.ends_with(":5355")
            // The nodes of other entries make it: `net_overlay` and `pod_network` test who can send to it.
            || local.ends_with(":8472")
    };
    let strange: Vec<&str> = text.lines().filter(|line| !allowed(line)).collect();
    verdict(strange.is_empty() && text.contains("10.96.0.10:53"), text.clone())
}

fn api_from_a_pod(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { script: "sleep 1000", ..POD }) {
        return Verdict::Untried(why);
    }
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let inside =
        |what: &str| world.node.run(&["-n", OPEN, "exec", target.id, "--", "cat", &format!("{account}/{what}")]).out;
    let (ca, token) = (inside("ca.crt"), inside("token"));
    let parts: Vec<&str> = token.split('.').collect();
    let [_, claims, signature] = parts[..] else { return Verdict::Untried(format!("no token: {token}")) };
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let unsigned = format!("{none}.{claims}.");
    let other = format!("{none}.{claims}.{signature}");
    let netns = world.node.netns_in(OPEN, target.id);
    let mut seen = Vec::new();
    for (what, token) in [
        ("none", None),
        ("forged", Some("x.y.z")),
        ("unsigned", Some(&*unsigned)),
        ("of no algorithm", Some(&*other)),
        ("its own", Some(&*token)),
    ] {
        let refused: &[u16] = if matches!(what, "none" | "its own") { &[401, 403, 404] } else { &[401] };
        for path in [
            "/api/v1/secrets",
            "/api/v1/namespaces/tenant-b/secrets/victim",
            "/api/v1/nodes",
            "/api/v1/namespaces/open/pods",
            "/debug/pprof/",
            "/metrics",
            "/logs/",
        ] {
            let answer = tls::get(&netns, at("10.96.0.1", 443), "kubernetes", &ca, token, path);
            match answer {
                // A false token gives no identity, not even the one that it names.
                Ok((code, body)) if refused.contains(&code) && !body.contains(SECRET) => {
                    seen.push(format!("{what} {path} {code}"))
                }
                Ok((code, body)) => return Verdict::Breach(format!("{what} {path}: {code} {body}")),
                Err(why) => return Verdict::Untried(format!("{what} {path}: {why}")),
            }
        }
    }
    Verdict::Held(seen.join(", "))
}

/// The question for the address of `kubernetes.default`, and whether it was answered.
fn question() -> Vec<u8> {
    let mut query = vec![0xaa, 0xaa, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["kubernetes", "default", "svc", "cluster", "local"] {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

fn is_answer(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|part| part == [10, 96, 0, 1])
}

/// Whether a Pod of the other tenant still gets an answer of the cluster's DNS.
fn dns_answers(world: &World) -> bool {
    let mut answer = [0; 512];
    let asked = within(&world.node.netns_in(THEIRS, "victim"), || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect("10.96.0.10:53")?;
        socket.send(&question())?;
        socket.recv(&mut answer)
    });
    asked.is_ok_and(|count: usize| is_answer(&answer[..count]))
}

/// The same by TCP.
fn dns_answers_streams(world: &World) -> bool {
    let mut answer = [0; 512];
    let asked = within(&world.node.netns_in(THEIRS, "victim"), || {
        let mut stream = TcpStream::connect_timeout(&at("10.96.0.10", 53), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(&(question().len() as u16).to_be_bytes())?;
        stream.write_all(&question())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        stream.read_exact(&mut answer[..length]).map(|()| length)
    });
    asked.is_ok_and(|count: usize| is_answer(&answer[..count]))
}

fn fill_conntrack(world: &World, target: &Target) -> Verdict {
    let (_, victim, _) = match two(world, target) {
        Ok(two) => two,
        Err(why) => return Verdict::Untried(why),
    };
    let flows = CONNTRACK_MAX + 4000;
    let said = world.inside(target, OPEN, &["attack", "flows", &victim, &flows.to_string()]);
    if !said.contains(&format!("sent {flows} ")) {
        return Verdict::Untried(said);
    }
    // An unanswered entry lives for 30 s: by then they would expire by themselves.
    let deadline = Instant::now() + Duration::from_secs(10);
    let tracked = || -> usize {
        let read = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
        within(&world.node.netns(), read).trim().parse().unwrap()
    };
    while tracked() > CONNTRACK_MAX / 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (left, well) = (tracked(), (0..3).all(|_| dns_answers(world) && dns_answers_streams(world)));
    verdict(left <= CONNTRACK_MAX / 2 && well, format!("{left} of {flows} are left; others are served: {well}"))
}

fn hold_dns_streams(world: &World, target: &Target) -> Verdict {
    if !dns_answers_streams(world) {
        return Verdict::Untried("the DNS does not answer at all".into());
    }
    if let Err(why) = world.start_pod(target, &Pod { script: "attack streams 10.96.0.10 53 400 30000", ..POD }) {
        return Verdict::Untried(why);
    }
    let opened = eventually("streams are held", Duration::from_secs(20), || {
        let said = world.logs(target, OPEN);
        if said.contains("opened") { Ok(said) } else { Err(said) }
    });
    let well = (0..3).all(|_| dns_answers_streams(world));
    verdict(well, format!("{}; others are served: {well}", opened.trim()))
}

fn host_port_dns(world: &World, target: &Target) -> Verdict {
    if !dns_answers(world) {
        return Verdict::Untried("the DNS does not answer at all".into());
    }
    let script = "while true; do echo forged | nc -u -l -p 53 -w 5; done";
    for (number, host_ip) in ["", "10.96.0.10"].iter().enumerate() {
        let mut object = world.pod(target, &Pod { script, ..POD });
        object["metadata"]["name"] = json!(format!("{}-{number}", target.id));
        let port = json!({"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": host_ip});
        object["spec"]["containers"][0]["ports"] = json!([port]);
        if world.create("pods", OPEN, object).is_err() {
            continue;
        }
        let name = format!("pod/{}-{number}", target.id);
        world.node.run(&["-n", OPEN, "wait", "--for=jsonpath={.status.phase}=Running", "--timeout=10s", &name]);
        settle(world);
        let well = dns_answers(world);
        world.delete("pods", OPEN, &format!("{}-{number}", target.id));
        if !well {
            return Verdict::Breach(format!("with hostIP {host_ip:?} the cluster's DNS is the attacker's"));
        }
    }
    Verdict::Held("the cluster's DNS answers all the same".into())
}

/// Waits until the node's network has applied earlier requests: a later Service exists.
pub fn settle(world: &World) {
    static NUMBER: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(30500);
    let port = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("marker-{port}");
    let service = json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "selector": {"app": "victim"}, "ports": [{"port": 80, "nodePort": port}]}});
    world.create("services", THEIRS, service).unwrap();
    eventually("a later Service is there", super::TIMEOUT, || {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", world.node.netns().display()))
            .args(["nft", "list", "ruleset"])
            .output();
        let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        if text.contains(&port.to_string()) { Ok(()) } else { Err(String::new()) }
    });
    world.delete("services", THEIRS, &name);
}

/// Creates a Service with an external IP as a user with `edit`, in front of an attacker's Pod.
fn steal(world: &World, target: &Target, address: &str, port: u16, protocol: &str) -> Result<(), String> {
    let script = format!(
        "while true; do echo forged | nc {} -l -p {port} -w 5; done",
        if protocol == "UDP" { "-u" } else { "" }
    );
    let mut object = world.pod(target, &Pod { ..POD });
    object["metadata"] = json!({"name": target.id, "namespace": OURS, "labels": {"app": target.id}});
    object["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    world.create("pods", OURS, object)?;
    world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{}", target.id)], Duration::from_secs(30));
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": target.id},
        "spec": {"selector": {"app": target.id}, "externalIPs": [address], "ports": [{"port": port, "protocol": protocol}]},
    });
    let (code, said) = world.ask(super::world::EDIT, "POST", &format!("/api/v1/namespaces/{OURS}/services"), &service);
    if code == 201 { Ok(()) } else { Err(format!("{code} {said}")) }
}

fn external_ip_dns(world: &World, target: &Target) -> Verdict {
    if !dns_answers(world) {
        return Verdict::Untried("the DNS does not answer at all".into());
    }
    if let Err(why) = steal(world, target, "10.96.0.10", 53, "UDP") {
        return Verdict::Held(why);
    }
    settle(world);
    let well = dns_answers(world);
    world.delete("services", OURS, target.id);
    verdict(well, "the cluster's DNS, with a Service of that address")
}

fn external_ip_pod(world: &World, target: &Target) -> Verdict {
    let victim = ip_of(world, THEIRS, "victim");
    let netns = world.node.netns_in(THEIRS, "victim");
    let server = crate::support::netns::Server::start(&netns, "victim", 7070);
    if let Err(why) = steal(world, target, &victim, 7070, "TCP") {
        return Verdict::Held(why);
    }
    settle(world);
    let mut object = world.pod(target, &Pod { script: "sleep 1000", ..POD });
    object["metadata"]["name"] = json!(format!("{}-client", target.id));
    world.create("pods", OPEN, object).unwrap();
    let client = format!("{}-client", target.id);
    world.node.wait("condition=Ready", &["-n", OPEN, &format!("pod/{client}")], Duration::from_secs(30));
    let answer = crate::support::netns::ask(&world.node.netns_in(OPEN, &client), at(&victim, 7070));
    world.delete("services", OURS, target.id);
    drop(server);
    verdict(answer.as_ref().is_ok_and(|said| said.starts_with("victim")), format!("{answer:?}"))
}

fn external_ip_tenant(world: &World, target: &Target) -> Verdict {
    const ADDRESS: &str = "198.51.100.77";
    let theirs = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("z-{}", target.id)},
        "spec": {"selector": {"app": "nobody"}, "externalIPs": [ADDRESS], "ports": [{"port": 7071}]},
    });
    world.create("services", THEIRS, theirs).unwrap();
    let stolen = steal(world, target, ADDRESS, 7071, "TCP");
    let answer = stolen.clone().map(|()| {
        settle(world);
        crate::support::netns::ask(&world.node.netns_in(THEIRS, "victim"), at(ADDRESS, 7071))
    });
    world.delete("services", THEIRS, &format!("z-{}", target.id));
    match answer {
        Err(why) => Verdict::Held(why),
        Ok(answer) => {
            world.delete("services", OURS, target.id);
            verdict(!answer.as_ref().is_ok_and(|said| said.starts_with("forged")), format!("{answer:?}"))
        }
    }
}
