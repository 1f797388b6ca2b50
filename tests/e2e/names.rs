//! Names outside the cluster: forwarded to the host's name servers in its resolv.conf.

use std::{
    fs,
    net::UdpSocket,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::support::{TestNode, contains, eventually, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A name server of the host that returns one address for every name, and records the questions.
struct NameServer {
    asked: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    fn start(at: &str, answer: [u8; 4]) -> NameServer {
        let socket = UdpSocket::bind((at, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (asked, stop) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (asked.clone(), stop.clone());
        let serve = move || {
            let mut buffer = [0; 512];
            while !ended.load(Ordering::Relaxed) {
                let Ok((length, client)) = socket.recv_from(&mut buffer) else { continue };
                let (name, end) = question(&buffer[..length]);
                seen.lock().unwrap().push(name);
                // The question again, as a response; with one A record if requested.
                let mut message = buffer[..end + 4].to_vec();
                message[2] |= 0x80;
                message[6..12].fill(0);
                if message[end..] == [0, 1, 0, 1] {
                    message[7] = 1;
                    message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
                    message.extend(answer);
                }
                socket.send_to(&message, client).unwrap();
            }
        };
        NameServer { asked, stop, thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// The name in a query, and the position of its type.
fn question(query: &[u8]) -> (String, usize) {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
        at = end;
    }
    (labels.join("."), at + 1)
}

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

const PLAIN: &str = "
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  terminationGracePeriodSeconds: 0
  dnsPolicy: Default
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

#[test]
fn other_names_are_asked_of_the_hosts_name_servers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    fs::write(&file, "search corp.example\nnameserver 127.0.0.153\n").unwrap();
    let first = NameServer::start("127.0.0.153", [203, 0, 113, 80]);
    let node = TestNode::start(&["--resolv-conf", file.to_str().unwrap()]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    node.apply(PODS);
    node.apply(PLAIN);
    node.wait("condition=Ready", &["pods", "--all"], TIMEOUT);
    let look = |name: &str| node.run(&["exec", "client", "--", "nslookup", "-type=a", name]).out;
    contains(&look("www.example.org"), "Address: 203.0.113.80").unwrap();
    assert_eq!(*first.asked.lock().unwrap(), ["www.example.org"]);
    // The cluster's names are answered here, including nonexistent ones.
    contains(&look("kubernetes.default.svc.cluster.local"), "Address: 10.96.0.1").unwrap();
    contains(&look("nobody.default.svc.cluster.local"), "NXDOMAIN").unwrap();
    assert_eq!(first.asked.lock().unwrap().len(), 1, "nothing of the cluster is asked elsewhere");
    // A Pod with the host's DNS settings gets those, without the cluster.
    let own = node.ok(&["exec", "plain", "--", "cat", "/etc/resolv.conf"]);
    assert_eq!(own, "search corp.example\nnameserver 127.0.0.153\n");
    // Without an upstream answer it reports failure; and follows changes of the file.
    drop(first);
    contains(&look("www.example.net"), "SERVFAIL").unwrap();
    let second = NameServer::start("127.0.0.154", [203, 0, 113, 81]);
    fs::write(&file, "nameserver 127.0.0.154\n").unwrap();
    eventually("the other server is asked", TIMEOUT, || contains(&look("www.example.com"), "Address: 203.0.113.81"));
    // A Pod gets the file's content at its start.
    node.apply(&PLAIN.replace("plain", "later"));
    node.wait("condition=Ready", &["pod/later"], TIMEOUT);
    assert_eq!(node.ok(&["exec", "later", "--", "cat", "/etc/resolv.conf"]), "nameserver 127.0.0.154\n");
    drop(second);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn a_resolv_conf_that_is_not_there_is_refused() {
    let mut node = TestNode::stopped(&["--resolv-conf", "/nonexistent/resolv.conf"]);
    node.spawn();
    node.wait_ended();
    contains(&node.log(), "--resolv-conf /nonexistent/resolv.conf: No such file").unwrap();
}
