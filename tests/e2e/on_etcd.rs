//! A control plane with its state in a real etcd: the main path, and recovery when etcd and the server are killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::support::{
    TestNode, contains,
    etcd::{EtcdServer, Signed},
    eventually,
    leftovers::Machine,
};

const TIMEOUT: Duration = Duration::from_secs(60);

const LAB: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: lab}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: 'localhost/busybox:1', command: [sleep, '1000']}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, namespace: lab}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: localhost/busybox:1
        command: [sh, -c, 'hostname > /www/index.html; exec httpd -f -p 8080 -h /www']
        ports: [{containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: lab}
spec:
  selector: {app: app}
  ports: [{port: 80, targetPort: 8080}]
";

/// Every Pod of the Deployment responds through the Service.
fn serves(server: &TestNode) {
    let backends = server.field(&["-n", "lab", "pods", "-l", "app=app"], ".items[*].metadata.name");
    let backends: BTreeSet<&str> = backends.split(' ').collect();
    let mut heard = BTreeSet::new();
    eventually("all backends answer", TIMEOUT, || {
        // Debian's static busybox wget crashes on names; its nc does not.
        let fetch = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 app 80";
        let answer = server.run(&["-n", "lab", "exec", "web", "--", "sh", "-c", fetch]);
        contains(&answer.out, " 200 OK").map_err(|_| answer.all())?;
        heard.insert(answer.out.lines().last().unwrap_or("").trim().to_owned());
        let all = heard.iter().map(String::as_str).collect::<BTreeSet<_>>() == backends;
        if all { Ok(()) } else { Err(format!("heard {heard:?} of {backends:?}")) }
    });
}

/// Creates objects until told to stop; returns the revision of each acknowledged one.
fn write_on(server: &TestNode, stop: &AtomicBool, prefix: &str) -> BTreeMap<String, u64> {
    let mut acknowledged = BTreeMap::new();
    let mut last = 0;
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("{prefix}-{n}");
        let wanted = ["create", "configmap", &name, "--from-literal=n=1", "-o", "jsonpath={.metadata.resourceVersion}"];
        let answer = server.run(&wanted);
        if answer.code != 0 {
            continue;
        }
        let revision: u64 = answer.out.trim().parse().expect("a resourceVersion");
        assert!(revision > last, "{name}: revision {revision} comes behind {last}");
        last = revision;
        acknowledged.insert(name, revision);
    }
    acknowledged
}

#[test]
fn the_main_path_on_a_real_etcd_that_is_killed_as_the_server_is() {
    let mut etcd = EtcdServer::start_with_tls(&Signed::new());
    let (ca, cert, key, url) = (etcd.file("ca"), etcd.file("cert"), etcd.file("key"), etcd.url().to_owned());
    let flags = ["--etcd-servers", &url, "--etcd-cafile", &ca, "--etcd-certfile", &cert, "--etcd-keyfile", &key];
    let mut server = TestNode::server(&[&flags[..], &["--etcd-prefix", "/lab"]].concat());
    let agent = TestNode::agent(&server, "n1");
    let untouched = Machine::untouched(agent.dir.path());
    server.import_busybox();
    server.apply(LAB);
    server.wait("condition=Ready", &["-n", "lab", "pods", "--all"], TIMEOUT);
    server.wait("condition=Available", &["-n", "lab", "deployment/app"], TIMEOUT);
    serves(&server);
    // Everything is in etcd, and Secrets are encrypted there.
    assert!(!server.dir.path().join("store.db").exists());
    server.apply("{apiVersion: v1, kind: Secret, metadata: {name: hidden}, stringData: {word: sesame}}");
    let keys = etcd.ctl(&["get", "--prefix", "--keys-only", "/"]);
    for key in ["/lab/pods/lab/web\n", "/lab/deployments.apps/lab/app\n", "/lab/secrets/default/hidden\n"] {
        contains(&keys, key).unwrap();
    }
    assert!(keys.split_whitespace().all(|key| key.starts_with("/lab/")), "{keys}");
    let secret = etcd.ctl(&["get", "/lab/secrets/default/hidden"]);
    assert!(secret.contains("hidden") && !secret.contains("c2VzYW1l"), "{secret}");

    let before = containers(&server);
    let mut acknowledged = BTreeMap::new();
    // Etcd is killed under load, and restarted.
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&server, &stop, "etcd"));
        for _ in 0..2 {
            std::thread::sleep(Duration::from_secs(1));
            etcd.kill();
            std::thread::sleep(Duration::from_millis(300));
            etcd.spawn();
        }
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::SeqCst);
        writer.join().unwrap()
    });
    assert!(written.len() > 5, "{} were acknowledged", written.len());
    acknowledged.extend(written);
    eventually("the server is ready again", TIMEOUT, || {
        contains(&server.run(&["get", "--raw", "/readyz"]).all(), "ok")
    });
    // The server is killed and restarted; then both at once.
    server.kill();
    server.spawn();
    server.wait_answering();
    let newest = acknowledged.values().copied().max().unwrap_or_default();
    server.ok(&["create", "configmap", "later", "--from-literal=n=1"]);
    let later: u64 = server.field(&["configmap", "later"], ".metadata.resourceVersion").parse().unwrap();
    assert!(later > newest, "revisions never go back");
    etcd.kill();
    server.kill();
    etcd.spawn();
    server.spawn();
    server.wait_answering();
    for (name, revision) in &acknowledged {
        let found = server.field(&["configmap", name], ".metadata.resourceVersion");
        assert_eq!(found, revision.to_string(), "{name} is as it was acknowledged");
    }
    // Running containers were not affected; and controllers, scheduler and node continue.
    assert_eq!(containers(&server), before);
    server.ok(&["-n", "lab", "scale", "deployment/app", "--replicas=3"]);
    eventually("the third replica runs", TIMEOUT, || {
        match server.field(&["-n", "lab", "deployment", "app"], ".status.readyReplicas").as_str() {
            "3" => Ok(()),
            now => Err(now.to_owned()),
        }
    });
    serves(&server);
    server.ok(&["delete", "namespace", "lab", "--timeout", "60s"]);
    drop(agent);
    drop(server);
    untouched.assert_unchanged();
}

/// The ids of the containers that run.
fn containers(server: &TestNode) -> String {
    server.field(&["-n", "lab", "pods"], ".items[*].status.containerStatuses[0].containerID")
}

#[test]
fn what_is_wrong_with_etcds_flags_is_told() {
    let etcd = EtcdServer::start();
    let url = etcd.url().to_owned();
    let https = url.replace("http://", "https://");
    let wrong: [(&[&str], &str); 4] = [
        (&["--etcd-servers", &https], "an authority to check the server's certificate by is missing"),
        (&["--etcd-servers", "127.0.0.1:2379"], "a URL begins with http:// or https://"),
        (&["--etcd-servers", &url, "--restore", "/nowhere"], "cannot be used with"),
        (&["--etcd-servers", &url, "--etcd-prefix", "registry"], "expected a path, as /registry"),
    ];
    for (flags, why) in wrong {
        let mut server = TestNode::of_control_plane(flags);
        server.spawn();
        assert!(!server.wait_ended().success(), "{flags:?}");
        contains(&server.log(), why).unwrap();
    }
}
