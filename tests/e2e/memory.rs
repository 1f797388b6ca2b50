//! Operations that use much memory: a storm of watches, which is freed again, and inspecting objects that tenants make large.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use serde_json::json;

use crate::support::{TestNode, api::call, eventually};

const TIMEOUT: Duration = Duration::from_secs(60);
const WATCHES: usize = 200;
const WRITES: usize = 300;
/// What may remain: larger caches, and memory kept by the allocator.
const STAYS: u64 = 24 << 10;

/// A process's own resident memory in KiB: code pages depend on what runs.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The same once it is stable.
fn at_rest(pid: u32) -> u64 {
    eventually("it rests", TIMEOUT, || {
        let first = resident(pid);
        std::thread::sleep(Duration::from_secs(3));
        let second = resident(pid);
        if first.abs_diff(second) < 1024 { Ok(second) } else { Err(format!("{first} {second}")) }
    })
}

/// A watch of all ConfigMaps; one in ten is never read.
fn watch(node: &TestNode, number: usize) -> UnixStream {
    let mut stream = UnixStream::connect(node.socket()).unwrap();
    let request = "GET /api/v1/namespaces/default/configmaps?watch=true HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    if !number.is_multiple_of(10) {
        let mut reader = stream.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while reader.read(&mut buffer).is_ok_and(|read| read > 0) {}
        });
    }
    stream
}

#[test]
fn the_memory_of_a_storm_of_watches_is_given_back() {
    let server = TestNode::server(&[]);
    let named = |name: &str| json!({"resource": "configmaps", "namespace": "default", "name": name});
    let storm = |round: usize, watches: usize| {
        let all: Vec<UnixStream> = (0..watches).map(|n| watch(&server, n)).collect();
        let mut most = 0;
        for n in 0..WRITES {
            let name = format!("busy-{}", n % 10);
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": "default"}, "data": {"text": format!("{round} {n} ").repeat(4000)}});
            let _ = call(&server.socket(), "delete", named(&name));
            call(&server.socket(), "create", json!({"resource": "configmaps", "namespace": "default", "body": body}))
                .unwrap();
            most = most.max(resident(server.pid()));
        }
        for stream in all {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
        most
    };
    // The window of past changes is full of such objects, even without watchers.
    storm(0, 1);
    let before = at_rest(server.pid());
    let most = storm(1, WATCHES);
    let after = eventually("it has given back what it took", TIMEOUT, || match resident(server.pid()) {
        now if now < before + STAYS => Ok(now),
        now => Err(format!("{before} KiB before, {most} at the most, {now} now")),
    });
    println!("{WATCHES} watches: {before} KiB before, {most} at the most, {after} after");
}

/// Frontends of one Pod: 46,800 elements of the node's tables, and as many endpoints.
const SERVICES: usize = 12;
const PORTS: usize = 100;
const ADDRESSES: usize = 39;

#[test]
fn a_pod_that_many_services_lead_to_is_inspected_for_little() {
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: small, labels: {app: small}}, spec: {terminationGracePeriodSeconds: 0, \
         containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]}}",
    );
    node.wait("condition=Ready", &["pod/small"], TIMEOUT);
    for number in 0..SERVICES {
        let ports: Vec<_> = (0..PORTS).map(|port| json!({"name": format!("p{port}"), "port": 1000 + port})).collect();
        let addresses: Vec<_> = (1..=ADDRESSES).map(|last| format!("203.0.{number}.{last}")).collect();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("many-{number}")},
            "spec": {"selector": {"app": "small"}, "ports": ports, "externalIPs": addresses}});
        let create = json!({"resource": "services", "namespace": "default", "body": service});
        call(&node.socket(), "create", create).unwrap();
    }
    let inspect = || node.ok(&["inspect", "pod", "small", "-o", "json"]);
    // An address, a list and an endpoint for each port, besides the frontends; and the Pod's own entries.
    let all = SERVICES * PORTS * (ADDRESSES + 3);
    let found = eventually("the node has all of them", TIMEOUT, || {
        let found: serde_json::Value = serde_json::from_str(&inspect()).unwrap();
        let errors = found["errors"].to_string();
        let words = errors.split(' ').collect::<Vec<_>>();
        let told = words.windows(3).find(|w| w[0] == "the" && w[2] == "nftables").and_then(|w| w[1].parse().ok());
        if told.is_some_and(|told: usize| told >= all) { Ok(found) } else { Err(errors) }
    });
    let elements = found["services"].as_array().unwrap();
    assert!((900..=1000).contains(&elements.len()), "{}", elements.len());
    assert!(elements.iter().any(|e| e["map"] == "external-ips" && e["service"] == "default/many-0:p0"), "{elements:?}");
    // The node compares all of its tables periodically, which needs more than the limit: wait for a period without.
    let mut before = u64::MAX;
    eventually("many are answered at once for little", 3 * TIMEOUT, || {
        before = before.min(at_rest(node.pid()));
        let (most, longest) = most_during(node.pid(), || {
            let answers = std::thread::scope(|scope| {
                let at_once: Vec<_> = (0..6).map(|_| scope.spawn(|| inspect().len())).collect();
                at_once.into_iter().map(|one| one.join().unwrap()).max()
            });
            answers.unwrap_or_default()
        });
        let told = format!("{all} elements: {before} KiB before, {most} at the most, {longest} bytes");
        assert!(longest < 1 << 20, "{told}");
        println!("{told}");
        if most < before + STAYS { Ok(()) } else { Err(told) }
    });
}

/// A process's peak memory during some work.
fn most_during<T: Send>(pid: u32, work: impl FnOnce() -> T + Send) -> (u64, T) {
    std::thread::scope(|scope| {
        let (mut most, working) = (resident(pid), scope.spawn(work));
        while !working.is_finished() {
            most = most.max(resident(pid));
            std::thread::sleep(Duration::from_millis(1));
        }
        (most, working.join().unwrap())
    })
}
