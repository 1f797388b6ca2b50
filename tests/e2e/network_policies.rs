//! NetworkPolicies as Pods meet them: from the first packet of a Pod on, at once when they change, and whatever becomes of the agent.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::support::{
    TestNode,
    cluster::{Cluster, Layout},
    contains, eventually,
    leftovers::Machine,
    netns::{Server, ask, at, within},
    node::busybox_tar,
    slowness,
};

const TIMEOUT: Duration = Duration::from_secs(30);
const PORT: u16 = 8080;

fn pod(name: &str, app: &str, command: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {app}}}}}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, '{command}']
    ports: [{{name: web, containerPort: {PORT}}}]
---
"
    )
}

fn policy(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"
    )
}

/// A node with a server and two who may ask it.
struct World {
    server: Server,
    address: SocketAddr,
    friend: PathBuf,
    stranger: PathBuf,
    node: TestNode,
    untouched: Machine,
}

impl World {
    fn new() -> World {
        let node = TestNode::start(&[]);
        let untouched = Machine::untouched(node.dir.path());
        node.import_busybox();
        let pods = [("server", "server"), ("friend", "friend"), ("stranger", "stranger")];
        node.apply(&pods.map(|(name, app)| pod(name, app, "exec sleep 1000")).concat());
        node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
        let server = Server::start(&node.netns_of("server"), "server", PORT);
        let address = at(&node.field(&["pod", "server"], ".status.podIP"), PORT);
        let (friend, stranger) = (node.netns_of("friend"), node.netns_of("stranger"));
        World { server, address, friend, stranger, node, untouched }
    }

    fn reached_by(&self) -> [bool; 2] {
        [&self.friend, &self.stranger].map(|from| ask(from, self.address).is_ok())
    }

    /// Waits until these are the ones who are answered; how long that took.
    #[track_caller]
    fn comes_to(&self, expected: [bool; 2]) -> Duration {
        let begun = Instant::now();
        eventually(&format!("friend, stranger: {expected:?}"), TIMEOUT, || match self.reached_by() {
            seen if seen == expected => Ok(()),
            seen => Err(format!("{seen:?}\n{}", self.node.log())),
        });
        begun.elapsed()
    }

    fn end(self) {
        let World { node, server, untouched, .. } = self;
        drop(server);
        node.ok(&["delete", "pods", "--all"]);
        drop(node);
        untouched.assert_unchanged();
    }
}

const DENY: &str = "podSelector: {}, policyTypes: [Ingress]";
const FRIENDS: &str = "podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}], ports: [{port: web}]}]";

#[test]
fn policies_are_in_force_at_once_and_end_what_they_forbid() {
    let world = World::new();
    assert_eq!(world.reached_by(), [true, true]);
    world.node.apply(&policy("deny", DENY));
    world.comes_to([false, false]);
    world.node.apply(&policy("friends", FRIENDS));
    let took = world.comes_to([true, false]);
    assert!(took < Duration::from_secs(4) * slowness(), "{took:?}");
    // What the kernel has of it is shown, and who is meant by it.
    let shown = world.node.ok(&["inspect", "policy", "server"]);
    for part in
        ["deny", "friends", "Ingress", "chain policies-", "jump policy-", "goto forbid", "set group-", "elements: 1"]
    {
        contains(&shown, part).unwrap();
    }
    let shown = world.node.ok(&["inspect", "policy", "friend"]);
    contains(&shown, "deny").and(contains(&shown, "everything passes")).unwrap();
    assert!(!shown.contains("friends"), "{shown}");
    // Labels, of Pods and of namespaces, are what they are now.
    world.node.ok(&["label", "pod", "stranger", "app=friend", "--overwrite"]);
    world.comes_to([true, true]);
    world.node.ok(&["label", "pod", "friend", "app=other", "--overwrite"]);
    world.comes_to([false, true]);
    world.node.ok(&["delete", "networkpolicies", "--all"]);
    world.comes_to([true, true]);
    let left = rules(&world.node.netns());
    assert!(!left.contains("policies-"), "{left}");
    world.end();
}

/// The first packet of a Pod is judged, whether it is from it or for it: what it asks at once as it begins is not answered.
#[test]
fn a_new_pod_is_judged_from_its_first_packet_on() {
    let world = World::new();
    world.node.apply(&policy("quiet", "podSelector: {matchLabels: {app: quiet}}, policyTypes: [Egress]"));
    let (ip, port) = (world.address.ip(), world.address.port());
    let asks = format!("for i in 1 2 3; do echo who | nc -w 1 {ip} {port}; done; echo done");
    let names: Vec<String> = (0..5).map(|n| format!("quiet{n}")).collect();
    world.node.apply(&names.iter().map(|name| pod(name, "quiet", &asks)).collect::<String>());
    for name in &names {
        world.node.wait("jsonpath={.status.phase}=Succeeded", &[&format!("pod/{name}")], TIMEOUT);
        let said = world.node.ok(&["logs", name]);
        assert!(said.contains("done") && !said.contains("server "), "{name}: {said}");
    }
    world.node.apply(&pod("loud", "loud", &asks));
    world.node.wait("jsonpath={.status.phase}=Succeeded", &["pod/loud"], TIMEOUT);
    contains(&world.node.ok(&["logs", "loud"]), "server ").unwrap();
    world.end();
}

#[test]
fn an_agent_that_is_away_or_starts_again_leaves_no_gap() {
    let mut world = World::new();
    world.node.apply(&(policy("deny", DENY) + &policy("friends", FRIENDS)));
    world.comes_to([true, false]);
    world.node.kill();
    assert_eq!(world.reached_by(), [true, false], "nobody is there");
    world.node.spawn();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(ask(&world.stranger, world.address).is_err(), "after {:?}", begun.elapsed());
    }
    world.node.wait_ready();
    assert_eq!(world.reached_by(), [true, false]);
    world.node.ok(&["delete", "networkpolicy", "deny", "friends"]);
    world.comes_to([true, true]);
    world.end();
}

/// The node's rules, as the kernel has them.
fn rules(netns: &Path) -> String {
    within(netns, || {
        let listed = Command::new("nft").args(["list", "table", "ip", "podwright"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    })
}

/// Who a Pod is other nodes hear at once, also those that have joined by TLS, and when it is nobody any more.
#[test]
fn what_a_pod_is_counts_on_every_node() {
    let cluster = Cluster::joined(3, Layout::OneLink, &[]);
    let server = &cluster.server;
    let on = |node: usize, name: &str, app: &str| {
        pod(name, app, "exec sleep 1000").replace("spec:\n", &format!("spec:\n  nodeName: n{node}\n"))
    };
    let names = ["s1", "s2", "s3"];
    server
        .apply(&(on(1, "s1", "server") + &on(2, "s2", "server") + &on(3, "s3", "server") + &on(2, "guest", "friend")));
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let guest = server.netns_of("guest");
    let answering: Vec<Server> = names.iter().map(|name| Server::start(&server.netns_of(name), name, PORT)).collect();
    let ip = |name: &str| server.field(&["pod", name], ".status.podIP");
    let addresses: Vec<SocketAddr> = names.iter().map(|name| at(&ip(name), PORT)).collect();
    let comes_to = |expected: bool| {
        for address in &addresses {
            eventually(&format!("the guest reaches {address}: {expected}"), TIMEOUT, || match ask(&guest, *address) {
                answer if answer.is_ok() == expected => Ok(()),
                answer => Err(format!("{answer:?}")),
            });
        }
    };
    comes_to(true);
    server.apply(&(policy("deny", DENY) + &policy("friends", FRIENDS)));
    comes_to(true);
    server.ok(&["label", "pod", "guest", "app=stranger", "--overwrite"]);
    comes_to(false);
    server.ok(&["label", "pod", "guest", "app=friend", "--overwrite"]);
    comes_to(true);
    // What its own node lets out goes by the names that ports have on other nodes.
    let by_name = |port: &str| {
        format!(
            "podSelector: {{matchLabels: {{app: friend}}}}, policyTypes: [Egress], egress: [{{to: [{{podSelector: {{}}}}], ports: [{{port: {port}}}]}}]"
        )
    };
    server.apply(&policy("out", &by_name("other")));
    comes_to(false);
    server.apply(&policy("out", &by_name("web")));
    comes_to(true);
    let gone = ip("guest");
    for machine in &cluster.machines {
        assert!(rules(&machine.netns).contains(&gone), "{}", rules(&machine.netns));
    }
    server.ok(&["delete", "pod", "guest"]);
    // Counters of what it sent expire by themselves.
    let names_it = |line: &&str| line.contains(&gone) && !line.contains(" expires ");
    for machine in &cluster.machines {
        eventually("its address is of no group any more", TIMEOUT, || {
            match rules(&machine.netns).lines().find(names_it) {
                Some(line) => Err(line.to_owned()),
                None => Ok(()),
            }
        });
    }
    drop(answering);
}

/// What cannot be put in force is not left out: the Pod does not start, and says why.
#[test]
fn a_pod_whose_policies_have_no_room_does_not_start() {
    let world = World::new();
    let rule = |n: u32| {
        format!("{{from: [{{ipBlock: {{cidr: 10.{}.{}.0/24}}}}], ports: [{{port: {}}}]}}", n / 256, n % 256, n + 1)
    };
    let rules: Vec<String> = (0..600).map(rule).collect();
    let spec = format!("podSelector: {{matchLabels: {{app: late}}}}, ingress: [{}]", rules.join(", "));
    world.node.apply(&policy("huge", &spec));
    world.node.apply(&pod("late", "late", "exec sleep 1000"));
    eventually("the Pod says why it does not start", TIMEOUT, || {
        let events = world.node.ok(&["get", "events", "--field-selector", "type=Warning"]);
        contains(&events, "600 rules")
    });
    assert_eq!(world.node.field(&["pod", "late"], ".status.phase"), "Pending");
    assert_eq!(world.reached_by(), [true, true], "others go on");
    world.node.ok(&["delete", "networkpolicy", "huge"]);
    world.node.wait("condition=Ready", &["pod/late"], TIMEOUT);
    world.end();
}

/// What the container `c` of a Pod has said, as its node has it.
fn said(agent: &TestNode, pod: &str) -> String {
    let folders = fs::read_dir(agent.dir.path().join("log")).into_iter().flatten().flatten();
    let of_pod = folders.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(&format!("_{pod}-n1_")));
    of_pod.and_then(|folder| fs::read_to_string(folder.join("c/0.log")).ok()).unwrap_or_default()
}

fn put(folder: &Path, name: &str, manifest: &str) {
    let hidden = folder.join(format!(".{name}"));
    fs::write(&hidden, manifest.trim_end().trim_end_matches("---")).unwrap();
    fs::rename(hidden, folder.join(format!("{name}.yaml"))).unwrap();
}

/// A static Pod needs no server to start, and no server to be judged: its node knows the policies.
#[test]
fn static_pods_start_and_are_judged_while_the_server_is_away() {
    let mut server = TestNode::server(&[]);
    let agent = TestNode::agent(&server, "n1");
    let untouched = Machine::untouched(agent.dir.path());
    server.ok(&["image", "--node", "n1", "import", busybox_tar().to_str().unwrap(), "localhost/busybox:1"]);
    let quiet = policy("quiet", "podSelector: {matchLabels: {app: quiet}}, policyTypes: [Egress]");
    server.apply(
        &(quiet.clone() + &pod("server", "server", "exec sleep 1000") + &pod("witness", "quiet", "exec sleep 1000")),
    );
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let answering = Server::start(&server.netns_of("server"), "server", PORT);
    let address = at(&server.field(&["pod", "server"], ".status.podIP"), PORT);
    let witness = server.netns_of("witness");
    eventually("the policy is in force", TIMEOUT, || ask(&witness, address).err().ok_or_else(|| agent.log()));
    server.kill();
    let asks = format!("echo who | nc -w 1 {} {}; echo done; exec sleep 1000", address.ip(), address.port());
    let folder = agent.dir.path().join("manifests");
    ["quiet", "loud"].iter().for_each(|name| put(&folder, name, &pod(name, name, &asks)));
    for name in ["quiet", "loud"] {
        eventually("it has asked", TIMEOUT, || contains(&said(&agent, name), "done").map_err(|e| e + &agent.log()));
    }
    contains(&said(&agent, "loud"), "server ").unwrap();
    assert!(!said(&agent, "quiet").contains("server "), "{}", said(&agent, "quiet"));
    server.spawn();
    server.wait_answering();
    drop(answering);
    ["quiet", "loud"].iter().for_each(|name| fs::remove_file(folder.join(format!("{name}.yaml"))).unwrap());
    server.wait("delete", &["pod/quiet-n1", "pod/loud-n1"], TIMEOUT);
    server.ok(&["delete", "pods", "--all"]);
    drop(agent);
    drop(server);
    untouched.assert_unchanged();
}

#[test]
fn the_example_does_what_its_header_says() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(include_str!("../../manifests/network-policy.yaml"));
    node.apply("{apiVersion: v1, kind: Namespace, metadata: {name: street, labels: {shop: visitor}}}");
    node.apply(&pod("guest", "guest", "exec sleep 1000").replace("name: guest,", "name: guest, namespace: street,"));
    node.apply(&pod("other", "other", "exec sleep 1000"));
    node.wait("condition=Ready", &["-n", "shop", "pods", "--all"], TIMEOUT);
    node.wait("condition=Ready", &["-n", "street", "pods", "--all"], TIMEOUT);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let web = node.field(&["-n", "shop", "pod", "web"], ".status.podIP");
    let fetch = |from: [&str; 2], host: &str, port: u16| {
        let fetch = format!("printf \"GET / HTTP/1.0\\r\\n\\r\\n\" | nc -w 2 {host} {port}");
        node.run(&["-n", from[0], "exec", from[1], "--", "sh", "-c", &fetch]).out
    };
    let (guest, other, shop) = (["street", "guest"], ["default", "other"], ["shop", "web"]);
    eventually("the visitor is welcome", TIMEOUT, || contains(&fetch(guest, &web, 8080), "welcome"));
    eventually("the database answers the shop", TIMEOUT, || contains(&fetch(shop, "db", 5432), "rows"));
    assert!(!fetch(other, &web, 8080).contains("welcome"));
    assert!(!fetch(guest, "db.shop", 5432).contains("rows"));
    assert!(!fetch(["shop", "db"], &web, 8080).contains("welcome"), "the database reaches nobody");
}

/// What `why` says, and how it ends: 0 where a connection would be opened, 1 where not.
fn why(node: &TestNode, words: &[&str]) -> (i32, String) {
    let said = node.run(&[&["why"], words].concat());
    (said.code, said.out + &said.err)
}

/// Who allows or drops a connection is named, by the kernel's rules: also where these are not what they should be.
#[test]
fn why_names_the_policy_and_believes_the_kernel() {
    let world = World::new();
    let node = &world.node;
    node.apply(&(policy("deny", DENY) + &policy("friends", FRIENDS)));
    world.comes_to([true, false]);
    let (code, said) = why(node, &["friend", "server:web"]);
    assert_eq!(code, 0, "{said}");
    contains(&said, "NetworkPolicy default/friends").and(contains(&said, "Verdict: allowed")).unwrap();
    let (code, said) = why(node, &["stranger", &format!("server:{PORT}")]);
    assert_eq!(code, 1, "{said}");
    let verdict =
        "Verdict: dropped by NetworkPolicy default/deny, NetworkPolicy default/friends: ingress: no rule matches";
    contains(&said, verdict).unwrap();
    let (code, said) = why(node, &["stranger", "server:8081", "-o", "wide"]);
    assert_eq!(code, 1, "{said}");
    contains(&said, "ip podwright").and(contains(&said, "forbid")).unwrap();
    // Of several policies with rules each is shown.
    let from = "podSelector: {matchLabels: {app: server}}, ingress: [{from: [{ipBlock: {cidr: 198.51.100.0/24}}]}]";
    node.apply(&policy("blocks", from));
    eventually("both are shown", TIMEOUT, || {
        let shown = node.ok(&["inspect", "policy", "server"]);
        contains(&shown, "198.51.100.0").and(contains(&shown, "@group-"))
    });
    node.ok(&["delete", "networkpolicy", "blocks"]);
    // Another program's rules are the kernel's, too.
    let guard = "add table inet guard; add chain inet guard on-guard { type filter hook forward priority 10; }; add rule inet guard on-guard tcp dport 8080 drop";
    within(&node.netns(), || assert!(Command::new("nft").arg(guard).status().unwrap().success()));
    world.comes_to([false, false]);
    let (code, said) = why(node, &["friend", "server:web"]);
    assert_eq!(code, 1, "{said}");
    contains(&said, "Verdict: dropped by table inet guard, chain on-guard: tcp dport 8080").unwrap();
    within(&node.netns(), || {
        assert!(Command::new("nft").args(["delete", "table", "inet", "guard"]).status().unwrap().success())
    });
    world.comes_to([true, false]);
    node.apply(&policy("quiet", "podSelector: {matchLabels: {app: friend}}, policyTypes: [Egress]"));
    eventually("its own policy holds it", TIMEOUT, || {
        contains(&why(node, &["friend", "server:web"]).1, "default/quiet: egress")
    });
    // It needs two ends and a port.
    for words in [&["friend", "server"][..], &["friend", "nobody:80"], &["svc/kubernetes", "server:80"]] {
        let (code, said) = why(node, words);
        assert_eq!(code, 2, "{said}");
    }
    world.end();
}

/// The way through Services: to one of their endpoints, to none, and to the cluster's DNS.
#[test]
fn why_follows_services_to_their_endpoints() {
    let world = World::new();
    let node = &world.node;
    let service = |name: &str, spec: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{ports: [{{name: http, port: 80, targetPort: web}}], {spec}}}}}\n---\n"
        )
    };
    let sticky = "selector: {app: server}, sessionAffinity: ClientIP";
    node.apply(
        &(service("web", "selector: {app: server}")
            + &service("empty", "selector: {app: nobody}")
            + &service("sticky", sticky)),
    );
    for name in ["web", "sticky"] {
        let to = format!("svc/{name}:http");
        eventually("it leads to its endpoint", TIMEOUT, || {
            let (code, said) = why(node, &["friend", &to]);
            contains(&said, &format!("Service default/{name} port http"))
                .and(contains(&said, &format!("dnat to {} . {PORT}", world.address.ip())))
                .and(if code == 0 { Ok(()) } else { Err(said) })
        });
    }
    let (code, said) = why(node, &["friend", "svc/empty:80"]);
    assert_eq!(code, 1, "{said}");
    contains(&said, "Verdict: refused: Service default/empty port http has no ready endpoints").unwrap();
    let (code, said) = why(node, &["friend", "svc/web:http", "--protocol", "UDP"]);
    assert_eq!(code, 2, "{said}");
    node.apply(&policy("deny", DENY));
    world.comes_to([false, false]);
    let (code, said) = why(node, &["friend", "svc/web:80"]);
    assert_eq!(code, 1, "{said}");
    contains(&said, "Verdict: dropped by NetworkPolicy default/deny: ingress").unwrap();
    world.end();
}

/// What leaves a node is followed to where it goes, and each node says its own part.
#[test]
fn why_follows_a_packet_to_its_node() {
    let cluster = Cluster::joined(2, Layout::OneLink, &[]);
    let server = &cluster.server;
    let on = |node: usize, name: &str, app: &str| {
        pod(name, app, "exec sleep 1000").replace("spec:\n", &format!("spec:\n  nodeName: n{node}\n"))
    };
    let service = |name: &str, policy: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{internalTrafficPolicy: {policy}, selector: {{app: server}}, ports: [{{port: 80, targetPort: web}}]}}}}\n---\n"
        )
    };
    server.apply(&(on(1, "guest", "friend") + &on(2, "far", "server")));
    server.apply(&(service("web", "Cluster") + &service("near", "Local")));
    server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    for to in ["far:web", "svc/web:80"] {
        eventually("it arrives", TIMEOUT, || {
            let (code, said) = why(server, &["guest", to]);
            contains(&said, "\nn1 ").and(contains(&said, "\nn2 ")).and(if code == 0 { Ok(()) } else { Err(said) })
        });
    }
    eventually("a Local policy", TIMEOUT, || {
        contains(
            &why(server, &["guest", "svc/near:80"]).1,
            "Verdict: dropped: Service default/near port 80 has no endpoints on this node",
        )
    });
    server.apply(&policy("deny", DENY));
    eventually("the other node drops it", TIMEOUT, || {
        let (code, said) = why(server, &["guest", "svc/web:80"]);
        let verdict = "Verdict: dropped by NetworkPolicy default/deny: ingress: no rule matches";
        contains(&said, verdict).and(if code == 1 { Ok(()) } else { Err(said) })
    });
    // To their own node all are open, from one that is not theirs they are not.
    let (code, said) = why(server, &["node/n2", "far:web"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = why(server, &["node/n1", "far:web"]);
    assert_eq!(code, 1, "{said}");
}
