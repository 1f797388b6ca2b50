//! A node that its link has left: what is on it goes on among itself, by Services, names, host ports and probes.

use std::time::{Duration, Instant};

use crate::support::{
    cluster::{Cluster, Layout},
    contains, eventually,
    leftovers::Machine,
    netns::{Server, ask, at},
    told_slowness,
};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than a failing probe would take to be noticed.
const AWAY: Duration = Duration::from_secs(5);

const MANIFEST: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    ports: [{containerPort: 8080, hostPort: 8090}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 1}
    livenessProbe: {tcpSocket: {port: 8080}, initialDelaySeconds: 10, periodSeconds: 1, failureThreshold: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: far}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, clusterIP: 10.96.7.7, ports: [{port: 80, targetPort: 8080}]}
";

#[test]
fn a_partitioned_node_keeps_its_pods_serving_each_other() {
    let mut cluster = Cluster::start(2, Layout::OneLink, &[]);
    let untouched = Machine::untouched(cluster.server.dir.path());
    cluster.server.apply(MANIFEST);
    cluster.server.wait("condition=PodScheduled", &["pods", "--all"], TIMEOUT);
    cluster.server.wait("jsonpath={.status.podIP}", &["pod/web"], TIMEOUT);
    let answering = Server::start(&cluster.server.netns_of("web"), "web", 8080);
    cluster.server.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let ip = cluster.server.field(&["pod", "web"], ".status.podIP");
    let (client, far) = (cluster.server.netns_of("client"), cluster.server.netns_of("far"));
    let ready = r#".status.conditions[?(@.type=="Ready")]"#;
    let state = |cluster: &Cluster| {
        let all = [
            &format!("{ready}.status"),
            &format!("{ready}.lastTransitionTime"),
            ".status.containerStatuses[0].restartCount",
        ];
        all.map(|path| cluster.server.field(&["pod", "web"], path))
    };
    let before = state(&cluster);
    assert_eq!((before[0].as_str(), before[2].as_str()), ("True", "0"));
    // By address, Service and host port.
    let reached = |from: &std::path::Path| -> Result<(), String> {
        for to in [at(&ip, 8080), at("10.96.7.7", 80), at("192.168.50.2", 8090)] {
            ask(from, to).and_then(|answer| contains(&answer, "web "))?;
        }
        Ok(())
    };
    let by_name = |cluster: &Cluster| {
        let command = ["exec", "client", "--", "sh", "-c", "echo who | nc -w 5 web 80"];
        contains(&cluster.server.run(&command).all(), "web ")
    };
    eventually("all is reached", TIMEOUT, || {
        reached(&client).and_then(|()| reached(&far)).and_then(|()| by_name(&cluster))
    });

    // 1. As systemd-networkd has it: no carrier, no address.
    ["link set eth0 down", "address flush dev eth0"].iter().for_each(|words| drop(cluster.machines[1].ip(words)));
    let begun = Instant::now();
    eventually("its own Pods reach each other", TIMEOUT, || reached(&client));
    let took = begun.elapsed();
    println!("its own Pods reach each other after {} ms", took.as_millis());
    assert!(took < Duration::from_secs(4) * told_slowness(), "{took:?}");
    by_name(&cluster).unwrap();
    reached(&far).unwrap_err();
    // 2. Also with another agent.
    cluster.agents[0].kill();
    reached(&client).unwrap();
    cluster.agents[0].spawn();
    let until = Instant::now() + AWAY * told_slowness();
    while Instant::now() < until {
        reached(&client).unwrap_or_else(|why| panic!("{why}\n{}", cluster.agents[0].log()));
        std::thread::sleep(Duration::from_millis(100));
    }
    eventually("names are served", TIMEOUT, || by_name(&cluster));
    assert_eq!(state(&cluster), before, "no probe has failed\n{}", cluster.agents[0].log());
    // 3. It is back, and nothing is left of it.
    ["link set eth0 up", "address add 192.168.50.2/24 dev eth0"]
        .iter()
        .for_each(|words| drop(cluster.machines[1].ip(words)));
    let begun = Instant::now();
    eventually("others reach them", TIMEOUT, || reached(&far));
    println!("others reach them after {} ms", begun.elapsed().as_millis());
    eventually("lo has the address no longer", TIMEOUT, || {
        let lo = cluster.machines[1].ip("-br address show lo");
        if lo.contains("192.168.50.2") { Err(lo) } else { Ok(()) }
    });
    eventually("their way is the link again", TIMEOUT, || {
        contains(&cluster.machines[0].ip("route"), "via 192.168.50.2 dev eth0")
    });
    reached(&client).unwrap();
    assert_eq!(state(&cluster), before);
    drop(answering);
    cluster.server.ok(&["delete", "pods", "--all"]);
    drop(cluster);
    untouched.assert_unchanged();
}
