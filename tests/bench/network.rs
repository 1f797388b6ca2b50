//! Between Pods of two nodes, which are network namespaces: what the way there costs beside the same devices made by hand, and
//! how long a load balancer's address is nobody's when its node's link is cut.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    beside, quantile, report, sorted,
    support::{
        cluster::{Cluster, Layout, Machine},
        netns::{Server, ask, at, within},
    },
};

/// All are measured in turns, so that other work on the machine meets all.
const TURNS: usize = 6;
const TURN: Duration = Duration::from_secs(1);
/// Round trips of one byte in a turn.
const TRIPS: usize = 3_000;
const PORT: u16 = 5201;
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn routes() {
    compare("routes");
}

pub fn vxlan() {
    compare("vxlan");
}

/// Two places with a way between them.
struct Way {
    from: PathBuf,
    to: PathBuf,
    at: SocketAddr,
}

fn compare(network: &str) {
    let by_hand = ByHand::new(network == "vxlan");
    // Nodes track connections and judge packets, which no device does by itself.
    let tracked = ByHand::new(network == "vxlan");
    tracked.track();
    let cluster = Cluster::start(2, Layout::OneLink, &["--network", network]);
    for n in 1..=2 {
        let mut pod = crate::pods::pod(&format!("p{n}"));
        pod["spec"]["nodeName"] = format!("n{n}").into();
        cluster.server.apply(&pod.to_string());
    }
    cluster.server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let at = at(&cluster.server.field(&["pod", "p2"], ".status.podIP"), PORT);
    let ours = Way { from: cluster.server.netns_of("p1"), to: cluster.server.netns_of("p2"), at };
    let all = [&ours, &by_hand.way, &tracked.way];
    // Neighbours, routes and connections are known.
    all.iter().for_each(|way| {
        latency(way);
    });
    let (mut rates, mut trips) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for turn in 0..TURNS {
        for n in (0..all.len()).map(|n| (turn + n) % all.len()) {
            rates[n].push(throughput(all[n]));
            trips[n].push(latency(all[n]));
        }
    }
    let [rate, hand_rate, tracked_rate] = rates.map(|all| quantile(&sorted(all), 0.5));
    let [trip, hand_trip, tracked_trip] = trips.map(|all| quantile(&sorted(all), 0.5));
    let percent = |share: f64| format!("{:.0} % of by hand", share * 100.0);
    report(
        &format!("Pod to Pod by {network}, one TCP stream"),
        format!("{:.1} Gbit/s, {}", rate / 1e9, percent(rate / hand_rate)),
        ">= 95 % of by hand",
        rate / hand_rate >= 0.95,
    );
    report(
        &format!("Pod to Pod by {network}, round trips per second"),
        format!("{:.0}, {} ({trip:.1} us each)", 1e6 / trip, percent(hand_trip / trip)),
        ">= 95 % of by hand",
        hand_trip / trip >= 0.95,
    );
    let figures = |rate: f64, trip: f64| format!("{:.1} Gbit/s, {:.0} round trips/s", rate / 1e9, 1e6 / trip);
    beside("by hand:", figures(hand_rate, hand_trip));
    beside("by hand, with connections tracked:", figures(tracked_rate, tracked_trip));
}

/// The same devices, made by `ip`: a link for each Pod, nodes that forward, a bridge between them.
struct ByHand {
    machines: Vec<Machine>,
    way: Way,
}

impl ByHand {
    fn new(tunnel: bool) -> ByHand {
        let between = Machine::start();
        between.ip("link add br0 up type bridge");
        let nodes = [Machine::start(), Machine::start()];
        let pods = [Machine::start(), Machine::start()];
        let mtu = if tunnel { 1450 } else { 1500 };
        for (n, (node, pod)) in nodes.iter().zip(&pods).enumerate() {
            let (own, other) = (n + 1, 2 - n);
            node.ip(&format!("link add eth0 type veth peer name port{own} netns {}", between.pid()));
            between.ip(&format!("link set port{own} master br0 up"));
            node.ip(&format!("address add 192.168.60.{own}/24 dev eth0"));
            node.ip("link set eth0 up");
            node.ip(&format!("link add pod mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}", pod.pid()));
            node.ip(&format!("address add 10.9.{own}.1/24 dev pod"));
            node.ip("link set pod up");
            pod.ip(&format!("address add 10.9.{own}.2/24 dev eth0"));
            pod.ip("link set eth0 up");
            pod.ip(&format!("route add default via 10.9.{own}.1"));
            within(&node.netns, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
            let mut gateway = format!("192.168.60.{other}");
            if tunnel {
                let (local, remote) = (format!("192.168.60.{own}"), &gateway);
                node.ip(&format!("link add vx type vxlan id 77 local {local} remote {remote} dstport 8472 nolearning"));
                node.ip(&format!("address add 10.8.0.{own}/24 dev vx"));
                node.ip("link set vx up mtu 1450");
                gateway = format!("10.8.0.{other}");
            }
            node.ip(&format!("route add 10.9.{other}.0/24 via {gateway}"));
        }
        let way = Way { from: pods[0].netns.clone(), to: pods[1].netns.clone(), at: at("10.9.2.2", PORT) };
        ByHand { machines: [between].into_iter().chain(nodes).chain(pods).collect(), way }
    }

    /// Has the nodes track connections.
    fn track(&self) {
        let rules =
            "table ip by-hand { chain forward { type filter hook forward priority 0; ct state established accept; } }";
        for node in &self.machines[1..=2] {
            let nft = || std::process::Command::new("nft").arg(rules).status();
            assert!(within(&node.netns, nft).is_ok_and(|status| status.success()), "nft");
        }
    }
}

/// Runs a server for one connection in a namespace.
fn served<T: Send + 'static>(netns: &Path, serve: impl FnOnce(TcpStream) -> T + Send + 'static) -> JoinHandle<T> {
    let listener = within(netns, || TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    std::thread::spawn(move || serve(listener.accept().unwrap().0))
}

fn connected(way: &Way) -> TcpStream {
    let stream = within(&way.from, || TcpStream::connect_timeout(&way.at, TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Bits per second that one stream carries.
fn throughput(way: &Way) -> f64 {
    let counted = served(&way.to, |mut stream| {
        let (mut buffer, mut bytes, begun) = (vec![0; 1 << 20], 0, Instant::now());
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            bytes += read;
        }
        bytes as f64 * 8.0 / begun.elapsed().as_secs_f64()
    });
    let (mut stream, buffer, begun) = (connected(way), vec![0; 256 << 10], Instant::now());
    while begun.elapsed() < TURN {
        stream.write_all(&buffer).unwrap();
    }
    drop(stream);
    counted.join().unwrap()
}

/// Microseconds that one byte takes there and back.
fn latency(way: &Way) -> f64 {
    let echo = served(&way.to, |mut stream| {
        stream.set_nodelay(true).unwrap();
        let mut byte = [0];
        while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
    });
    let mut stream = connected(way);
    let trip = |_| {
        let (begun, mut byte) = (Instant::now(), [7]);
        stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte)).unwrap();
        begun.elapsed().as_secs_f64() * 1e6
    };
    let trips = sorted((0..TRIPS).map(trip).collect());
    drop(stream);
    echo.join().unwrap();
    quantile(&trips, 0.5)
}

/// The link of the node that answers for an address is cut: until somebody beside the nodes is answered again.
pub fn failover() {
    const POOL: &str = "192.168.50.100-192.168.50.101";
    const IP: &str = "192.168.50.100";
    const TIMES: usize = 5;
    let cluster = Cluster::start_with(3, Layout::OneLink, &[], &["--load-balancer-pool", POOL]);
    let server = &cluster.server;
    for n in 1..=3 {
        let mut pod = crate::pods::pod(&format!("p{n}"));
        pod["metadata"]["labels"] = serde_json::json!({ "app": "web" });
        pod["spec"]["nodeName"] = format!("n{n}").into();
        server.apply(&pod.to_string());
    }
    server.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, \
         loadBalancerIP: 192.168.50.100, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}",
    );
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let _servers: Vec<Server> =
        (1..=3).map(|n| Server::start(&server.netns_of(&format!("p{n}")), &format!("p{n}"), 8080)).collect();
    let outside = &cluster.between.netns;
    let to = at(IP, 80);
    let answered = |patience: Duration| within(outside, || TcpStream::connect_timeout(&to, patience)).is_ok();
    let mut gaps = Vec::new();
    for _ in 0..TIMES {
        let begun = Instant::now();
        let who = loop {
            match ask(outside, to) {
                Ok(answer) => break answer,
                Err(why) if begun.elapsed() > TIMEOUT => return println!("{IP} is not answered for: {why}"),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let number: usize = who[1..].split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(1);
        let machine = &cluster.machines[number - 1];
        machine.ip("link set eth0 down");
        let cut = Instant::now();
        while !answered(Duration::from_millis(50)) {
            if cut.elapsed() > TIMEOUT {
                return println!("{IP} does not move from n{number}");
            }
        }
        gaps.push(cut.elapsed().as_secs_f64());
        machine.ip("link set eth0 up");
        // It counts again.
        std::thread::sleep(Duration::from_secs(3));
    }
    let gaps = sorted(gaps);
    report(
        "load balancer's address moves from a dead link",
        format!("p50 {:.2} s, worst {:.2} s of {TIMES}", quantile(&gaps, 0.5), quantile(&gaps, 1.0)),
        "worst <= 2 s",
        quantile(&gaps, 1.0) <= 2.0,
    );
}
