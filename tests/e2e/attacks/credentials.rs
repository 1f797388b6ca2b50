//! With a node's credential: attracting or blocking what is meant for others.

use serde_json::{Value, json};

use super::nodes::{all_refused, request_for};
use super::world::{AGENT, NODE, OTHER, ROOT, THEIRS, World};
use super::{Attack, Target, Try, Verdict, verdict};
use crate::support::eventually;

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "credential-hostname",
        class: "node credential",
        cves: &[],
        how: "a node labels itself `kubernetes.io/hostname` with another node's name, or with none; lifts an administrator's cordon; gives itself a finalizer",
        held: "NodeRestriction: the label is the node's own name, a cordon and finalizers are not its to change",
        attempt: Try::Code(hostname),
    },
    Attack {
        id: "credential-address-type",
        class: "node credential",
        cves: &[],
        how: "a node reports another one's address as a Hostname first, and then changes the type",
        held: "NodeRestriction: what was a name is looked for among the other nodes' addresses",
        attempt: Try::Code(address_type),
    },
    Attack {
        id: "credential-mirror-traffic",
        class: "node credential",
        cves: &[],
        how: "a mirror Pod in another's namespace with the labels of a Service there, ready, with an address of the node's range",
        held: "mirror Pods stand behind no Service unless an administrator lets them",
        attempt: Try::Code(mirror_traffic),
    },
    Attack {
        id: "credential-name-twice",
        class: "identity",
        cves: &[],
        how: "the holder of a bootstrap token asks twice for the certificate of a node that has not come yet",
        held: "a name has one certificate that lives until its Node comes; the second request is left to an administrator",
        attempt: Try::Code(name_twice),
    },
];

fn hostname(world: &World, _: &Target) -> Verdict {
    let path = || "/api/v1/nodes/other".to_owned();
    world.ask(
        ROOT,
        "PATCH",
        &path(),
        &json!({"metadata": {"labels": {"kubernetes.io/hostname": "other"}}, "spec": {"unschedulable": true}}),
    );
    let label = |value: Value| json!({"metadata": {"labels": {"kubernetes.io/hostname": value}}});
    let asked = [
        ("PATCH", path(), label(json!(NODE))),
        ("PATCH", format!("{}/status", path()), label(json!(NODE))),
        ("PATCH", path(), label(Value::Null)),
        ("PATCH", path(), json!({"spec": {"unschedulable": false}})),
        ("PATCH", path(), json!({"metadata": {"finalizers": ["example.com/for-ever"]}})),
    ];
    let verdict = all_refused(world, OTHER, &asked);
    world.ask(ROOT, "PATCH", &path(), &json!({"metadata": {"finalizers": null}, "spec": {"unschedulable": null}}));
    verdict
}

fn address_type(world: &World, _: &Target) -> Verdict {
    let typed = |of: &str| json!({"status": {"addresses": [{"type": of, "address": "192.0.2.78"}]}});
    world.ask(OTHER, "PATCH", "/api/v1/nodes/other/status", &typed("Hostname"));
    let before = world.get("nodes", "", NODE).unwrap()["status"]["addresses"].clone();
    let (code, said) = world.ask(ROOT, "PATCH", "/api/v1/nodes/target/status", &typed("InternalIP"));
    if code != 200 {
        return Verdict::Untried(said);
    }
    let verdict = all_refused(world, OTHER, &[("PATCH", "/api/v1/nodes/other/status".to_owned(), typed("InternalIP"))]);
    world.ask(ROOT, "PATCH", "/api/v1/nodes/target/status", &json!({"status": {"addresses": before}}));
    verdict
}

fn mirror_traffic(world: &World, target: &Target) -> Verdict {
    let node = world.get("nodes", "", NODE).unwrap();
    let service = json!({"metadata": {"name": target.id}, "spec": {"selector": {"app": target.id}, "ports": [{"port": 80}],
        "publishNotReadyAddresses": true}});
    world.create("services", THEIRS, service).unwrap();
    let pods = format!("/api/v1/namespaces/{THEIRS}/pods");
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": THEIRS, "labels": {"app": target.id}},
        "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "localhost/attack:1", "command": ["sleep", "1000"]}]}})
    };
    let mut mirror = pod(&format!("{}-mirror", target.id));
    mirror["metadata"]["annotations"] =
        json!({"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"});
    mirror["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": true}]);
    let range = node["spec"]["podCIDR"].as_str().unwrap_or("");
    let stolen = format!("{}.250", range.rsplit_once('.').map_or("", |(start, _)| start));
    let (code, said) = world.ask(AGENT, "POST", &pods, &mirror);
    if code != 201 {
        return Verdict::Untried(format!("a mirror Pod: {code} {said}"));
    }
    let status = json!({"status": {"phase": "Running", "podIP": stolen, "podIPs": [{"ip": stolen}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    world.ask(AGENT, "PATCH", &format!("{pods}/{}-mirror/status", target.id), &status);
    // Once a later Pod of the namespace exists, the other one would have, too.
    world.create("pods", THEIRS, pod(target.id)).unwrap();
    let endpoints = || world.get("endpoints", THEIRS, target.id).unwrap_or_default()["subsets"].to_string();
    eventually("the namespace's own Pod stands behind the Service", super::TIMEOUT, || {
        if endpoints().contains(&format!("\"name\":\"{}\"", target.id)) { Ok(()) } else { Err(endpoints()) }
    });
    let seen = endpoints();
    world.delete("pods", THEIRS, target.id);
    world.delete("services", THEIRS, target.id);
    verdict(!seen.contains(&stolen) && !seen.contains(&format!("{}-mirror", target.id)), seen)
}

fn name_twice(world: &World, target: &Target) -> Verdict {
    let token = json!({"metadata": {"name": "bootstrap-token-twice0"}, "type": "bootstrap.kubernetes.io/token", "stringData": {
        "token-id": "twice0", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}});
    world.create("secrets", "kube-system", token).unwrap();
    let csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for number in 0..2 {
        let csr = request_for(target.id, &format!("{}-{number}", target.id));
        let (code, said) = world.ask("twice0.0123456789abcdef", "POST", csrs, &csr);
        if code != 201 {
            return Verdict::Untried(said);
        }
    }
    let csr = |number: usize| {
        world.get("certificatesigningrequests", "", &format!("{}-{number}", target.id)).unwrap_or_default()
    };
    eventually("the first is signed, and the second decided", super::TIMEOUT, || {
        let second = csr(1);
        let decided = second["status"]["certificate"].is_string()
            || second["metadata"]["annotations"]["podwright/waits-for-approval"].is_string();
        if csr(0)["status"]["certificate"].is_string() && decided { Ok(()) } else { Err(second.to_string()) }
    });
    world.delete("secrets", "kube-system", "bootstrap-token-twice0");
    let second = csr(1);
    verdict(!second["status"]["certificate"].is_string(), second["metadata"]["annotations"].to_string())
}
