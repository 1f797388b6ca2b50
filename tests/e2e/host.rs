//! A node on the machine's own network, as on a real host: only in a guest, whose root namespace belongs to the test.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use crate::support::{TestNode, contains, eventually, missing, slowness};

const TIMEOUT: Duration = Duration::from_secs(30);

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'echo still here > /www/index.html; exec httpd -f -p 8080 -h /www']
---
apiVersion: v1
kind: Pod
metadata: {name: hostly}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'echo of the host > /www/index.html; exec httpd -f -p 8090 -h /www']
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
";

fn fetch(host: &str, port: u16) -> Result<String, String> {
    let address: SocketAddr = format!("{host}:{port}").parse().expect("an address");
    let patience = Duration::from_secs(2) * slowness();
    let fetch = || {
        let mut stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    fetch().map_err(|e: std::io::Error| format!("{address}: {e}"))
}

fn lines_of(args: &[&str]) -> BTreeSet<String> {
    let output = Command::new("ip").args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().map(|l| l.trim().to_owned()).collect()
}

#[test]
fn pods_on_the_host_network_outlive_their_agent_and_are_adopted() {
    if std::env::var_os("PODWRIGHT_TEST_GUEST").is_none() {
        missing::here("it changes the machine's own network; `./dev vm` runs it in a guest");
        return;
    }
    let (links, routes) = (lines_of(&["-br", "link"]), lines_of(&["route"]));
    let mut node = TestNode::stopped_on_host(&["--node-ip", "10.77.0.1"]);
    node.spawn();
    node.wait_ready();
    node.import_busybox();
    node.apply(WEB);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let ip = node.field(&["pod", "web"], ".status.podIP");
    let service = node.field(&["service", "web"], ".spec.clusterIP");
    let answers = || {
        for (host, port, part) in
            [(&*ip, 8080, "still here"), (&*service, 80, "still here"), ("127.0.0.1", 8090, "of the host")]
        {
            eventually(&format!("{host}:{port} answers"), TIMEOUT, || contains(&fetch(host, port)?, part));
        }
    };
    answers();
    let own_route = lines_of(&["route"]).into_iter().find(|r| r.starts_with(&format!("{ip} dev ")));
    assert!(own_route.is_some(), "no route to {ip}: {:#?}", lines_of(&["route"]));
    let facts = |node: &TestNode| {
        ["web", "hostly"].map(|pod| {
            let of = ["containerID", "restartCount", "state.running.startedAt"];
            of.map(|f| node.field(&["pod", pod], &format!(".status.containerStatuses[0].{f}")))
        })
    };
    let first = facts(&node);
    // Without its agent a Pod keeps running, and so does its Service.
    let ended = node.terminate().expect("it ran");
    assert!(ended.success(), "{ended}\n{}", node.log());
    answers();
    node.spawn();
    node.wait_ready();
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    assert_eq!(facts(&node), first);
    answers();
    node.ok(&["delete", "pods", "--all"]);
    eventually("the Pods' links and routes are gone", TIMEOUT, || {
        let new: Vec<String> = lines_of(&["-br", "link"]).difference(&links).cloned().collect();
        let routed = lines_of(&["route"]).difference(&routes).any(|r| r.starts_with(&ip));
        if new.is_empty() && !routed { Ok(()) } else { Err(format!("{new:#?} {:#?}", lines_of(&["route"]))) }
    });
}
