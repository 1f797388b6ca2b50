//! Hijacking of what is outside of the cluster from Pods and nodes: by a node's credential, by a user who may write Services.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use super::network::{ip_of, settle};
use super::world::{EDIT, OPEN, OTHER, OURS, ROOT, THEIRS, World};
use super::{Attack, POD, Pod, TIMEOUT, Target, Try, Verdict, verdict};
use crate::support::{
    eventually,
    netns::{Outside, Server, ask, at, within},
};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "credential-outside-address",
        class: "node credential",
        cves: &[],
        how: "a node reports the address of a host outside as its own; a Pod of another node calls that host",
        held: "what other nodes say that their addresses are keeps external IPs off and does nothing else: Pods' calls to there leave by their node's address, as all that go outside",
        attempt: Try::Code(outside_address),
    },
    Attack {
        id: "external-ip-server",
        class: "stolen addresses",
        cves: &["CVE-2020-8554"],
        how: "a user with `edit` makes a Service without endpoints whose external IP is an API server's, at its port; the node and a Pod call that server",
        held: "external IPs never cover API servers: the endpoints of `default/kubernetes`",
        attempt: Try::Code(server),
    },
    Attack {
        id: "host-port-passing",
        class: "stolen addresses",
        cves: &["CVE-2025-67499", "CVE-2019-9946"],
        how: "a Pod takes a port by `hostPort`, with any address as `hostIP` and with that of another tenant's Pod; a third Pod calls that one at this port, through the node",
        held: "a host port is one of the node's own addresses; one with another address is none of a Pod's",
        attempt: Try::Code(host_port_passing),
    },
];

/// An API server that is not a node.
const SERVER: &str = "192.168.77.3";

/// The contents of a set in the node's tables.
fn set(world: &World, name: &str) -> String {
    let list = || Command::new("nft").args(["list", "set", "ip", "podwright", name]).output().unwrap().stdout;
    String::from_utf8_lossy(&within(&world.node.netns(), list)).into_owned()
}

fn outside_address(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { script: "sleep 1000", ..POD }) {
        return Verdict::Untried(why);
    }
    let outside = Outside::beside(&world.node);
    let _host = Server::start(&outside.netns, "outside", 7080);
    let call = || ask(&world.node.netns_in(OPEN, target.id), at(Outside::ADDRESS, 7080));
    let honest = Ok("outside 192.168.77.1".to_owned());
    let before = call();
    if before != honest {
        return Verdict::Untried(format!("it is not reached in the first place: {before:?}"));
    }
    let reported = |addresses: Value| {
        world.ask(OTHER, "PATCH", "/api/v1/nodes/other/status", &json!({"status": {"addresses": addresses}}))
    };
    let (code, said) = reported(json!([{"type": "ExternalIP", "address": Outside::ADDRESS}]));
    if code != 200 {
        return Verdict::Untried(said);
    }
    eventually("the other node has heard of it", TIMEOUT, || {
        let known = set(world, "other-nodes") + &set(world, "cluster-net");
        if known.contains(Outside::ADDRESS) { Ok(()) } else { Err(known) }
    });
    let after = call();
    reported(Value::Null);
    verdict(after == honest, format!("{after:?}"))
}

fn server(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { script: "sleep 1000", ..POD }) {
        return Verdict::Untried(why);
    }
    let outside = Outside::beside(&world.node);
    let add = || Command::new("ip").args(["address", "add", SERVER, "dev", "eth0"]).status().unwrap();
    assert!(within(&outside.netns, add).success());
    let _server = Server::start(&outside.netns, "server", 6443);
    // Not ready: the Service does not lead Pods there, but the node may still call it.
    let slice = json!({
        "metadata": {"name": target.id, "labels": {"kubernetes.io/service-name": "kubernetes"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": [SERVER], "conditions": {"ready": false}}], "ports": [{"name": "https", "port": 6443}],
    });
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let (code, said) = world.ask(ROOT, "POST", slices, &slice);
    if code != 201 {
        return Verdict::Untried(said);
    }
    let services = format!("/api/v1/namespaces/{OURS}/services");
    let thief = json!({"metadata": {"name": target.id},
        "spec": {"selector": {"app": "nobody"}, "externalIPs": [SERVER], "ports": [{"port": 6443}]}});
    let verdict = match world.ask(EDIT, "POST", &services, &thief) {
        (201, _) => called(world, target, at(SERVER, 6443)),
        (_, said) => Verdict::Held(said),
    };
    world.delete("services", OURS, target.id);
    world.ask(ROOT, "DELETE", &format!("{slices}/{}", target.id), &Value::Null);
    verdict
}

/// Whether the server still responds to the node and a Pod.
fn called(world: &World, target: &Target, server: SocketAddr) -> Verdict {
    settle(world);
    let from = [world.node.netns(), world.node.netns_in(OPEN, target.id)];
    let answers = from.map(|netns| ask(&netns, server));
    let well = |answer: &Result<String, String>| answer.as_ref().is_ok_and(|said| said.starts_with("server "));
    verdict(answers.iter().all(well), format!("{answers:?}"))
}

fn host_port_passing(world: &World, target: &Target) -> Verdict {
    const PORT: u16 = 7075;
    let (victim, netns) = (ip_of(world, THEIRS, "victim"), world.node.netns_in(THEIRS, "victim"));
    let _server = Server::start(&netns, "victim", PORT);
    if let Err(why) = world.start_pod(target, &Pod { script: "sleep 1000", ..POD }) {
        return Verdict::Untried(why);
    }
    let call = || ask(&world.node.netns_in(OPEN, target.id), at(&victim, PORT));
    let mut seen = vec![call()];
    let script = format!("while true; do echo forged | nc -l -p {PORT} -w 5; done");
    let thief = format!("{}-thief", target.id);
    for host_ip in ["", "0.0.0.0", &victim] {
        let mut object = world.pod(target, &POD);
        object["metadata"]["name"] = json!(thief);
        object["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
        object["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": PORT, "hostPort": PORT, "hostIP": host_ip}]);
        if let Err(why) = world.create("pods", OPEN, object) {
            return Verdict::Untried(why);
        }
        world.node.wait("condition=Ready", &["-n", OPEN, &format!("pod/{thief}")], TIMEOUT);
        settle(world);
        seen.push(call());
        world.delete("pods", OPEN, &thief);
        eventually("it is gone", TIMEOUT, || {
            world.get("pods", OPEN, &thief).map_or(Ok(()), |pod| Err(pod.to_string()))
        });
    }
    world.delete("pods", OPEN, target.id);
    let is_victim = |answer: &Result<String, String>| answer.as_ref().is_ok_and(|said| said.starts_with("victim"));
    match is_victim(&seen[0]) {
        true => verdict(seen.iter().all(is_victim), format!("{seen:?}")),
        false => Verdict::Untried(format!("it is not reached in the first place: {seen:?}")),
    }
}
