//! What a storm of watches takes of the server's memory, it gives back.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use serde_json::json;

use crate::support::{TestNode, api::call, eventually};

const PATIENCE: Duration = Duration::from_secs(60);
const WATCHES: usize = 200;
const WRITES: usize = 300;
/// What may stay: caches that have grown, and what an allocator keeps for the next time.
const STAYS: u64 = 24 << 10;

/// What a process has in memory, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A watch of all ConfigMaps; one in ten is read by nobody.
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
    // The window of past changes is full of such objects, whoever watches.
    storm(0, 1);
    let before = eventually("it rests", PATIENCE, || {
        let first = resident(server.pid());
        std::thread::sleep(Duration::from_secs(3));
        let second = resident(server.pid());
        if first.abs_diff(second) < 1024 { Ok(second) } else { Err(format!("{first} {second}")) }
    });
    let most = storm(1, WATCHES);
    let after = eventually("it has given back what it took", PATIENCE, || match resident(server.pid()) {
        now if now < before + STAYS => Ok(now),
        now => Err(format!("{before} KiB before, {most} at the most, {now} now")),
    });
    println!("{WATCHES} watches: {before} KiB before, {most} at the most, {after} after");
}
