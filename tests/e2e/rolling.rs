//! Rollouts under load: every call to a Service is answered while its Pods are replaced.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::support::{
    TestNode, eventually,
    leftovers::Machine,
    netns::{at, within},
    node::busybox_tar,
    readiness, slowness,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const ROLLING: &str = include_str!("../../manifests/rolling-update.yaml");
/// Pause between two calls of a client: each starts processes, and the machine has other work.
const PAUSE: Duration = Duration::from_millis(25);

/// The results of a client: counts per version, and failures.
#[derive(Debug, Default)]
struct Heard {
    answers: BTreeMap<String, usize>,
    failures: Vec<String>,
}

/// Clients that call a Service continuously until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Heard>>,
}

impl Load {
    /// This many clients in each of these network namespaces. Connections are tracked in the node's namespace.
    fn start(node: &Path, from: &[PathBuf], each: usize, make: fn(SocketAddr) -> Client, to: SocketAddr) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let namespaces = from.iter().flat_map(|netns| std::iter::repeat_n(netns, each));
        let client = |netns: &PathBuf| {
            let (node, netns, stop) = (node.to_owned(), netns.clone(), stop.clone());
            std::thread::spawn(move || within(&netns, || call_on(make(to), &node, &stop)))
        };
        Load { clients: namespaces.map(client).collect(), stop }
    }

    fn end(self) -> Heard {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Heard::default();
        for client in self.clients {
            let heard = client.join().unwrap();
            all.failures.extend(heard.failures);
            for (version, count) in heard.answers {
                *all.answers.entry(version).or_default() += count;
            }
        }
        all
    }
}

fn call_on(mut client: Client, node: &Path, stop: &AtomicBool) -> Heard {
    let (mut heard, begun) = (Heard::default(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let called = begun.elapsed();
        match client.call() {
            Ok(version) => *heard.answers.entry(version).or_default() += 1,
            Err(why) => {
                let (failed, from) = (begun.elapsed(), client.from);
                let tracked = from.map(|from| within(node, || tracked(from))).unwrap_or_default();
                let told = format!(
                    "called after {called:?} from {from:?}, failed after {failed:?}: {why}; tracked: {tracked:?}"
                );
                heard.failures.push(told);
            }
        }
        std::thread::sleep(PAUSE);
    }
    heard
}

/// The conntrack state of a connection from this address: its target and its state.
fn tracked(from: SocketAddr) -> String {
    let table = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap_or_default();
    let ours = [format!("src={} ", from.ip()), format!("sport={} ", from.port())];
    table.lines().filter(|line| ours.iter().all(|word| line.contains(word))).collect::<Vec<_>>().join("\n")
}

/// An HTTP/1.1 client, with persistent connections as the server allows, or without.
struct Client {
    to: SocketAddr,
    keeps: bool,
    connection: Option<BufReader<TcpStream>>,
    /// Its own end of the latest connection, if any.
    from: Option<SocketAddr>,
}

impl Client {
    fn brief(to: SocketAddr) -> Client {
        Client { to, keeps: false, connection: None, from: None }
    }

    fn lasting(to: SocketAddr) -> Client {
        Client { to, keeps: true, connection: None, from: None }
    }

    /// The version that responds. Without retries: a broken connection is a failure.
    fn call(&mut self) -> std::io::Result<String> {
        let patience = Duration::from_secs(10) * slowness();
        let mut stream = match self.connection.take() {
            Some(stream) => stream,
            None => {
                self.from = None;
                let stream = TcpStream::connect_timeout(&self.to, patience)?;
                self.from = Some(stream.local_addr()?);
                stream.set_read_timeout(Some(patience))?;
                BufReader::new(stream)
            }
        };
        let connection = if self.keeps { "keep-alive" } else { "close" };
        write!(stream.get_mut(), "GET / HTTP/1.1\r\nHost: web\r\nConnection: {connection}\r\n\r\n")?;
        let (mut length, mut stays, mut line) = (0, self.keeps, String::new());
        stream.read_line(&mut line)?;
        let strange = |what: &str| Err(std::io::Error::other(format!("not an answer: {what:?}")));
        if line.split(' ').nth(1) != Some("200") {
            return strange(&line);
        }
        loop {
            line.clear();
            stream.read_line(&mut line)?;
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("content-length", number)) => length = number.parse().unwrap_or(0),
                Some(("connection", "close")) => stays = false,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        self.connection = stays.then_some(stream);
        let body = String::from_utf8_lossy(&body).into_owned();
        match body.trim().strip_prefix("version ") {
            Some(version) => Ok(version.to_owned()),
            None => strange(&body),
        }
    }
}

/// A node with both images, running the manifest.
fn node(manifest: &str) -> TestNode {
    let node = TestNode::start(&[]);
    for image in ["localhost/busybox:1", "localhost/busybox:2"] {
        node.ok(&["image", "import", busybox_tar().to_str().unwrap(), image]);
    }
    node.apply(manifest);
    rolled(&node);
    node.wait("condition=Ready", &["-n", "rolling", "pod/visitor"], TIMEOUT);
    node
}

fn rolled(node: &TestNode) {
    let timeout = format!("--timeout={}s", 100 * slowness());
    let told = node.ok(&["-n", "rolling", "rollout", "status", "deployment/web", &timeout]);
    assert_eq!(told.lines().last(), Some("deployment \"web\" successfully rolled out"), "{told}");
}

/// `rollout undo` by the real kubectl, or podwright if there is none.
fn kubectl_undoes(node: &TestNode) {
    let args = ["-n", "rolling", "rollout", "undo", "deployment/web"];
    let Some(kubectl) = crate::kubectl::newest() else { return drop(node.ok(&args)) };
    let kubeconfig = node.dir.path().join("admin.kubeconfig");
    let said = Command::new(kubectl).args(args).env("KUBECONFIG", kubeconfig).env("HOME", node.dir.path()).output();
    let said = said.unwrap();
    assert!(said.status.success(), "{said:?}");
}

/// The responses from everywhere in a stable state.
fn now(node: &TestNode, netns: &Path) -> String {
    let to = at(&node.field(&["-n", "rolling", "service", "web"], ".spec.clusterIP"), 80);
    within(netns, || Client::brief(to).call()).unwrap()
}

/// Forward and back, by both clients and both kinds of change, under the load of such clients.
fn rolls_unnoticed(manifest: &str, client: fn(SocketAddr) -> Client, each: usize) {
    let node = node(manifest);
    let untouched = Machine::untouched(node.dir.path());
    let service = at(&node.field(&["-n", "rolling", "service", "web"], ".spec.clusterIP"), 80);
    let visitor = node.netns_in("rolling", "visitor");
    let load = Load::start(&node.netns(), &[visitor.clone(), node.netns()], each, client, service);
    let version = |wanted: &str| {
        rolled(&node);
        // The status may precede the node's update.
        eventually("everybody hears it", Duration::from_secs(10), || match now(&node, &visitor) {
            version if version == wanted => Ok(()),
            version => Err(version),
        });
    };
    let ((), seen) = readiness::meanwhile(&node, "rolling", "app=web", || {
        node.apply(&manifest.replace("value: one", "value: two"));
        version("two");
        node.ok(&["-n", "rolling", "rollout", "undo", "deployment/web"]);
        version("one");
        node.ok(&["-n", "rolling", "set", "image", "deployment/web", "web=localhost/busybox:2"]);
        version("one");
        kubectl_undoes(&node);
        version("one");
    });
    let images = node.field(&["-n", "rolling", "pods", "-l", "app=web"], ".items[*].spec.containers[0].image");
    assert!(images.contains("localhost/busybox:1"), "{images}");
    let heard = load.end();
    let calls: usize = heard.answers.values().sum();
    eprintln!("{calls} calls were answered: {:?}", heard.answers);
    let some: Vec<_> = heard.failures.iter().take(3).collect();
    assert!(some.is_empty(), "{} failed of {calls}: {some:?}\n{}", heard.failures.len(), node.log());
    assert_eq!(heard.answers.keys().collect::<Vec<_>>(), ["one", "two"], "{heard:?}");
    assert_eq!(seen, 3..=4, "the fewest that were ready, and the most there were");
    node.ok(&["delete", "namespace", "rolling"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn nobody_who_calls_anew_notices_a_rollout() {
    rolls_unnoticed(ROLLING, Client::brief, 6);
}

/// A server that keeps connections open until it is about to end: then it asks its clients to reconnect.
const TALKER: &str = r#"
              cat >/www/talk <<'END'
              #!/bin/sh
              while read -r request; do
                while read -r header && [ "$header" != "$(printf '\r')" ]; do :; done
                connection=keep-alive
                [ ! -e /tmp/leaving ] || connection=close
                printf 'HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: %s\r\n\r\nversion %s' $connection $VERSION
                [ $connection = keep-alive ] || exit
              done
              END
              chmod +x /www/talk
              nc -llllllllllllllll -p 8080 -e /www/talk &"#;

#[test]
fn nobody_who_stays_connected_notices_a_rollout() {
    let server = "httpd -f -p 8080 -h /www & # and it ends at once when it is told to";
    let hook = "sleep:\n                seconds: 10";
    assert!(ROLLING.contains(server) && ROLLING.contains(hook));
    let talker = ROLLING.replace(server, TALKER.trim_start());
    let talker = talker.replace(hook, "exec:\n                command: [sh, -c, 'touch /tmp/leaving; sleep 10']");
    rolls_unnoticed(&talker, Client::lasting, 4);
}
