//! How much of a node's shared resources one tenant may take.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::world::{ADMIN, OURS, THEIRS, World};
use super::{Attack, POD, Pod, Target, Try, Verdict, verdict};
use crate::support::netns::{at, within};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "endpoints-without-end",
        class: "exhaustion",
        cves: &[],
        how: "`admin` makes Services of thousands of ports, more and more of them, all with the same Pod behind: each port is entries \
              of every node's tables; how many there are, and whether another tenant's Service is served",
        held: "a namespace has a share of a node's tables; the youngest Services that do not fit are not served, and say so",
        attempt: Try::Code(endpoints_without_end),
    },
    Attack {
        id: "containers-without-end",
        class: "exhaustion",
        cves: &[],
        how: "`admin` makes a Pod of 5,000 init containers, and one of as many as there may be beside a container, with \
              `activeDeadlineSeconds: 4`; how long others wait for the API meanwhile",
        held: "the API refuses more than 512 in one list, a node more than 512 in one Pod, and a Pod's status is as much work as it \
               has containers",
        attempt: Try::Code(containers_without_end),
    },
];

/// Per Service; three entries each.
const PORTS: usize = 4_000;
const SERVICES: usize = 24;
/// A namespace's share.
const SHARE: usize = 262_144;

fn endpoints_without_end(world: &World, target: &Target) -> Verdict {
    let backend = |namespace: &'static str| {
        let pod = Pod { namespace, script: "httpd -f -p 8080", ..POD };
        let mut object = world.pod(target, &pod);
        object["metadata"]["labels"] = json!({"behind": target.id});
        world.create("pods", namespace, object)?;
        world.node.wait("condition=Ready", &["-n", namespace, &format!("pod/{}", target.id)], Duration::from_secs(40));
        Ok::<_, String>(())
    };
    let service = |name: &str, ports: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"behind": target.id}, "ports": ports}})
    };
    for namespace in [OURS, THEIRS] {
        if let Err(why) = backend(namespace) {
            return Verdict::Untried(why);
        }
    }
    let number = |n: usize| json!({"name": format!("p{n}"), "port": n + 1, "targetPort": 8080});
    let many: Value = (0..PORTS).map(number).collect();
    for n in 0..SERVICES {
        let path = format!("/api/v1/namespaces/{OURS}/services");
        let (code, said) = world.ask(ADMIN, "POST", &path, &service(&format!("{}-{n}", target.id), many.clone()));
        if code != 201 {
            return Verdict::Untried(said.chars().take(500).collect());
        }
    }
    // The last one is reported once the node knows its endpoints.
    let (deadline, mut told) = (Instant::now() + Duration::from_secs(120), Value::Null);
    while told["items"].as_array().is_none_or(Vec::is_empty) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(250));
        let events = format!("/api/v1/namespaces/{OURS}/events?fieldSelector=reason%3DTooManyEndpoints");
        let (_, said) = world.ask(ADMIN, "GET", &events, &Value::Null);
        told = said.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).unwrap_or_default();
    }
    let victim = world.create("services", THEIRS, service(target.id, json!([{"port": 80, "targetPort": 8080}])));
    let address = victim.map(|made| made["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned());
    let served = address.is_ok_and(|address| is_served(world, &address));
    let list = || Command::new("nft").args(["list", "map", "ip", "podwright", "endpoints"]).output().unwrap().stdout;
    let listed = String::from_utf8_lossy(&within(&world.node.netns(), list)).matches(" : ").count();
    for n in 0..SERVICES {
        world.delete("services", OURS, &format!("{}-{n}", target.id));
    }
    let about: Vec<&Value> =
        told["items"].as_array().into_iter().flatten().map(|event| &event["involvedObject"]["name"]).collect();
    // Others have few.
    let held = served && !about.is_empty() && listed > SHARE / 6 && listed < SHARE / 3 + 1_000;
    verdict(held, format!("{listed} endpoints of {}, told of {about:?}; another is served: {served}", PORTS * SERVICES))
}

/// Whether another tenant's Pod reaches a Service of its own.
fn is_served(world: &World, address: &str) -> bool {
    let deadline = Instant::now() + Duration::from_secs(30);
    let connect = || TcpStream::connect_timeout(&at(address, 80), Duration::from_secs(2)).is_ok();
    while !within(&world.node.netns_in(THEIRS, "victim"), connect) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    true
}

fn containers_without_end(world: &World, target: &Target) -> Verdict {
    let mut object = world.pod(target, &Pod { namespace: OURS, script: "true", ..POD });
    let init =
        |count: usize| -> Value { (0..count).map(|n| json!({"name": format!("i{n}"), "image": POD.image})).collect() };
    object["spec"]["initContainers"] = init(5_000);
    object["spec"]["activeDeadlineSeconds"] = json!(4);
    let (code, said) = world.ask(ADMIN, "POST", &format!("/api/v1/namespaces/{OURS}/pods"), &object);
    if code != 422 || !said.contains("spec.initContainers: Too many: 5000") {
        return Verdict::Breach(format!("{code} {}", said.chars().take(500).collect::<String>()));
    }
    object["spec"]["initContainers"] = init(512);
    if let Err(why) = world.create("pods", OURS, object) {
        return Verdict::Untried(why.chars().take(500).collect());
    }
    // Somewhat beyond its deadline.
    let (until, mut longest) = (Instant::now() + Duration::from_secs(10), Duration::ZERO);
    while Instant::now() < until {
        let asked = Instant::now();
        let (code, _) = world.ask(ADMIN, "GET", &format!("/api/v1/namespaces/{OURS}/configmaps"), &Value::Null);
        longest = longest.max(if code == 200 { asked.elapsed() } else { Duration::MAX });
        std::thread::sleep(Duration::from_millis(50));
    }
    let pod = world.get("pods", OURS, target.id).unwrap_or_default();
    world.delete("pods", OURS, target.id);
    let reason = pod["status"]["reason"].as_str().unwrap_or_default();
    let held = reason == "TooManyContainers" && longest < Duration::from_secs(5);
    verdict(held, format!("{reason}; the API answered within {longest:?}"))
}
