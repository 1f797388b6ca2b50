//! External damage to a node's network is repaired within a second or so, without fights.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use podwright_journal::JournalWriter;
use podwright_net::{Healing, Repair, links, netlink};

use super::net_world::*;

const VIP: &str = "10.96.1.1";
/// Far more than needed; each time is printed.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Where nothing is said of how long it takes: a healer rests for several times what a look has taken, which may be long beside others.
const PATIENCE: Duration = Duration::from_secs(60);

const UID: &str = "5eb0aa11-2233-4000-8000-000000000000";
const LINK: &str = "pw5eb0aa112233";

/// A self-healing node with a Pod behind a Service.
struct World {
    _healing: Healing,
    repairs: Receiver<Repair>,
    /// Number of reported repairs; the same one is reported once a minute.
    told: Cell<u32>,
    node: Node,
    pod: Pod,
}

fn world() -> World {
    let node = Node::dual();
    let pod = node.server(UID);
    node.load(&[("default/web", service(VIP, &[pod.endpoint()]))]);
    wait_until("the Pod's link is up", || {
        run_in(pod.netns.as_fd(), "ip", &["-br", "link", "show", "eth0"]).contains("LOWER_UP")
    });
    let (sender, repairs) = channel();
    let healing = node.network.heal(move |repair| drop(sender.send(repair))).unwrap();
    World { _healing: healing, repairs, told: Cell::new(0), node, pod }
}

impl World {
    /// The whole kernel state as text. A recreated link has another number.
    fn shown(&self) -> String {
        let show = |netns: BorrowedFd<'_>, program: &str, words: &str| {
            let run = || Command::new(program).args(words.split(' ')).output().unwrap().stdout;
            String::from_utf8(netlink::in_netns(netns, run).unwrap()).unwrap()
        };
        // Without the sets filled by packets.
        let mut text = show(self.node.netns(), "nft", "-t list ruleset");
        for set in ["map ip podwright services", "map ip podwright endpoints", "map ip podwright cluster-ips"]
            .into_iter()
            .chain(["set ip podwright own", "set ip podwright local-pods", "set ip podwright cluster-net"])
        {
            text += &show(self.node.netns(), "nft", &format!("list {set}"));
        }
        for netns in [self.node.netns(), self.pod.netns.as_fd()] {
            for words in ["-br addr", "route show table main", "-6 route show table main", "neigh show nud permanent"] {
                text += &show(netns, "ip", words);
            }
        }
        let sysctls = ["ip_forward", "conf/all/send_redirects", "conf/all/rp_filter"].map(String::from);
        let of_link = ["forwarding", "send_redirects", "rp_filter"].map(|name| format!("conf/{LINK}/{name}"));
        for name in sysctls.iter().chain(&of_link) {
            let value = netlink::in_netns(self.node.netns(), || netlink::read_sysctl(&format!("net/ipv4/{name}")));
            text += &format!("{name} = {:?}\n", value.unwrap().ok());
        }
        // Restored items are listed last among their kind.
        let line = |line: &str| {
            let words = line.split(' ').filter(|word| !word.is_empty());
            let mut words: Vec<&str> =
                words.map(|word| word.split_once("@if").map_or(word, |(name, _)| name)).collect();
            words.sort();
            words.join(" ")
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Damages something and waits until everything is restored.
    fn heals(&self, what: &str, damage: impl FnOnce(&World)) {
        let before = self.shown();
        damage(self);
        let begun = Instant::now();
        while self.shown() != before {
            if begun.elapsed() > TIMEOUT {
                panic!("{what}: not mended; it was\n{before}\nand is\n{}", self.shown());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("{what}: mended after {} ms", begun.elapsed().as_millis());
        while let Ok(repair) = self.repairs.recv_timeout(Duration::from_millis(50)) {
            assert!(matches!(repair, Repair::Mended(_)), "{what}: {repair:?}");
            self.told.set(self.told.get() + 1);
        }
    }

    fn nft(&self, command: &str) {
        run_in(self.node.netns(), "nft", &[command]);
    }

    fn ip(&self, command: &str) {
        run_in(self.node.netns(), "ip", &command.split(' ').collect::<Vec<_>>());
    }

    fn ip_in_pod(&self, command: &str) {
        run_in(self.pod.netns.as_fd(), "ip", &command.split(' ').collect::<Vec<_>>());
    }

    fn set(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/net/ipv4/{name}");
        netlink::in_netns(self.node.netns(), || std::fs::write(path, value)).unwrap().unwrap();
    }
}

#[test]
fn tables_that_somebody_damages_are_mended() {
    let world = world();
    let commands = [
        "delete table ip podwright",
        "delete table ip6 podwright",
        "flush ruleset",
        "flush map ip podwright services",
        "flush map ip podwright endpoints",
        "flush set ip podwright local-pods",
        "delete element ip podwright cluster-ips { 10.96.1.1 . tcp . 80 }",
        "add element ip podwright cluster-ips { 10.96.1.2 . tcp . 80 : 0x1 }",
        "add element ip podwright local-pods { 203.0.113.0/24 }",
        "flush chain ip podwright service",
        "flush chain ip podwright lb-1",
        "insert rule ip podwright nat-prerouting drop",
        "add rule ip podwright forward counter drop",
        "add chain ip podwright mine { type filter hook forward priority 0; policy drop; }",
        "add chain ip podwright forward { policy drop; }",
        "add table ip podwright { flags dormant; }",
    ];
    for command in commands {
        world.heals(command, |world| world.nft(command));
    }
    assert!(world.told.get() > 8, "{}", world.told.get());
    assert_eq!(ask(world.node.pod("client").netns.as_fd(), at(VIP, 80)).unwrap().0, UID);
}

#[test]
fn links_routes_and_settings_that_somebody_damages_are_mended() {
    let world = world();
    let address = world.pod.ip();
    for command in [
        format!("route del {address} dev {LINK}"),
        format!("route replace {address} dev lo"),
        format!("-6 route del {} dev {LINK}", world.pod.ips[1]),
        format!("neigh del {address} dev {LINK}"),
        format!("link set {LINK} down"),
        format!("link set {LINK} alias mine"),
        format!("link del {LINK}"),
        "route del 10.96.0.0/16 dev lo".to_owned(),
        "addr del 10.96.0.10/32 dev lo".to_owned(),
        "addr del 192.0.2.1/32 dev lo".to_owned(),
        "link set lo down".to_owned(),
    ] {
        world.heals(&command, |world| world.ip(&command));
    }
    for command in [
        "addr del 10.244.1.2/32 dev eth0",
        "route del default",
        "-6 route del default",
        "neigh del 169.254.1.1 dev eth0",
        "link set eth0 down",
        "link set lo down",
        "link del eth0",
    ] {
        world.heals(&format!("in the Pod: {command}"), |world| world.ip_in_pod(command));
    }
    for (name, value) in [("ip_forward", "0"), ("conf/all/rp_filter", "2")] {
        world.heals(&format!("sysctl {name}"), |world| world.set(name, value));
    }
    world.heals("sysctl of a link", |world| world.set(&format!("conf/{LINK}/rp_filter"), "0"));
    let pin = world.node.network.netns().pinned().unwrap().to_owned();
    netlink::unpin(&pin).unwrap();
    wait_until("the node's namespace is pinned again", || is_pinned(&pin));
    assert_eq!(ask(world.node.pod("client").netns.as_fd(), at(VIP, 80)).unwrap().0, UID);
}

fn is_pinned(pin: &Path) -> bool {
    netlink::open_pinned(pin).is_ok_and(|found| found.is_some())
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{what} after {} ms", begun.elapsed().as_millis());
}

/// A Pod that may administer its own network can change it, and the agent's own changes are not treated as damage.
#[test]
fn what_is_not_damage_is_left_alone() {
    let world = world();
    std::thread::sleep(Duration::from_millis(600));
    while world.repairs.try_recv().is_ok() {}
    world.ip_in_pod("link add tunnel type veth peer tunnel2");
    world.ip_in_pod("link set tunnel2 up");
    world.ip_in_pod("link set tunnel up");
    world.ip_in_pod("route replace default dev tunnel");
    world.ip_in_pod("addr add 198.51.100.7/32 dev eth0");
    let mine = run_in(world.pod.netns.as_fd(), "ip", &["route"]);
    world.nft("add table ip others");
    for n in 0..5 {
        let other = world.node.pod(&format!("other-{n}"));
        world.node.apply("default/other", Some(service("10.96.1.7", &[other.endpoint()])));
        world.node.wait(world.node.network.detach(&other.uid, &JournalWriter::none())).unwrap();
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(world.repairs.try_iter().collect::<Vec<_>>(), []);
    assert_eq!(run_in(world.pod.netns.as_fd(), "ip", &["route"]), mine);
    world.nft("delete table ip others");
}

/// A Pod that may administer its own network can create millions of routes: they are not read, and others' damage is still
/// repaired.
#[test]
fn what_a_pod_makes_by_the_thousands_is_not_read() {
    let world = world();
    let routes = world.node.folder.path().join("routes");
    let line = |n: usize| format!("route add 198.18.{}.{}/32 dev eth0\n", n / 256, n % 256);
    std::fs::write(&routes, (0..links::MOST + 200).map(line).collect::<String>()).unwrap();
    world.ip_in_pod(&format!("-batch {}", routes.display()));
    world.ip_in_pod("route del default");
    let other = world.node.server("other");
    run_in(world.node.netns(), "ip", &["route", "del", &other.ip().to_string()]);
    wait_until("another Pod's route is there again", || ask(world.node.netns(), other.endpoint()).is_ok());
    std::thread::sleep(Duration::from_secs(1));
    let default = run_in(world.pod.netns.as_fd(), "ip", &["route", "show", "default"]);
    assert_eq!(default, "", "it is the Pod's own business");
    let seen = links::pod_details(world.pod.netns.as_fd()).unwrap().unwrap();
    assert!(seen.routes.len() == 1 && seen.routes[0].starts_with("more than"), "{:?}", seen.routes);
    world.ip_in_pod("route flush dev eth0 scope link");
    wait_until("its own default route is there again", || {
        !run_in(world.pod.netns.as_fd(), "ip", &["route", "show", "default"]).is_empty()
    });
}

/// Repeated deletion of the table does not make the agent spin, or fill its log.
#[test]
fn whoever_fights_is_answered_a_few_times_a_second_and_told_of_twice() {
    let world = world();
    let (begun, cpu) = (Instant::now(), cpu_of_thread("podwright-heal"));
    let mut deleted = 0;
    while begun.elapsed() < Duration::from_secs(8) {
        world.nft("add table ip podwright; delete table ip podwright");
        deleted += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    let used = cpu_of_thread("podwright-heal").saturating_sub(cpu);
    let told: Vec<Repair> = world.repairs.try_iter().collect();
    println!("deleted {deleted} times; the thread used {used:?}; told {}", told.len());
    assert!(used < Duration::from_secs(1), "{used:?} of 8 s");
    assert!(told.len() <= 10, "{told:?}");
    wait_until("the table is there", || {
        std::thread::sleep(Duration::from_millis(200));
        ask(world.node.netns(), at(VIP, 80)).is_ok()
    });
}

/// The total CPU time of threads with this name.
fn cpu_of_thread(name: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let ticks = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // utime and stime are the 14th and 15th field; the state, after the name, is the third.
        let used = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
        head.ends_with(&name[..name.len().min(15)]).then_some(used)
    });
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// The record of addresses is damaged or deleted while the agent is down: live Pods with routes keep theirs, and others get
/// different ones. One known only from its own end is lost: a Pod's claim is no reason to give it an address.
#[test]
fn addresses_of_living_pods_are_known_without_their_record() {
    for damage in ["", "{\"owners\":{\"", "gone"] {
        let mut node = Node::dual();
        let (one, two) = (node.server("one"), node.server("two"));
        let record = node.folder.path().join("ipam.json");
        match damage {
            "gone" => std::fs::remove_file(&record).unwrap(),
            bytes => std::fs::write(&record, bytes).unwrap(),
        }
        // This one has the other's address, and a free one, on its own replacement link.
        run_in(node.netns(), "ip", &["route", "del", &two.ip().to_string()]);
        run_in(node.netns(), "ip", &["-6", "route", "del", &two.ips[1].to_string()]);
        let add = |address: &str| run_in(two.netns.as_fd(), "ip", &["address", "add", address, "dev", "eth0"]);
        add(&format!("{}/32", one.ip()));
        add("198.51.100.9/32");
        node.restart();
        for pod in [&one, &two] {
            node.network.adopt(&pod.uid, pod.netns.try_clone().unwrap(), &JournalWriter::none()).unwrap();
        }
        assert_eq!(node.network.addresses_of(&one.uid).as_ref(), Some(&one.ips), "{damage:?}");
        assert_eq!(node.network.addresses_of(&two.uid), None, "{damage:?}");
        let third = node.server("three");
        assert!(third.ips.iter().all(|ip| !one.ips.contains(ip)), "{damage:?}");
        let (tell, told) = std::sync::mpsc::channel();
        let _healing = node.network.heal(move |repair| drop(tell.send(repair))).unwrap();
        let lost = Repair::Lost(two.uid.clone());
        wait_until("the Pod is lost", || told.try_iter().any(|repair| repair == lost));
        assert!(ask(third.netns.as_fd(), one.endpoint()).is_ok(), "the other is where it was");
    }
}

#[test]
fn a_look_that_fails_is_not_the_last_one() {
    let node = Node::single();
    let pod = node.server(UID);
    node.load(&[("default/web", service(VIP, &[pod.endpoint()]))]);
    let ((failing, failed), (sender, repairs)) = (channel(), channel());
    let mut first = Some(failing);
    let _healing = node.network.heal(move |repair| match first.take() {
        Some(failing) => {
            let _ = failing.send(());
            // Not by `panic!`, which looks for the names of all frames: the healer rests for several times what a look took.
            std::panic::resume_unwind(Box::new("the first one finds nobody"));
        }
        None => drop(sender.send(repair)),
    });
    let damage = |element: &str| run_in(node.netns(), "nft", &["flush", "map", "ip", "podwright", element]);
    damage("cluster-ips");
    // Until it has failed, one look would mend both.
    assert!(failed.recv_timeout(PATIENCE).is_ok(), "nobody looks");
    damage("endpoints");
    assert!(repairs.recv_timeout(PATIENCE).is_ok(), "nobody looks any more");
    wait_until("the Service is there again", || ask(node.netns(), at(VIP, 80)).is_ok());
}
