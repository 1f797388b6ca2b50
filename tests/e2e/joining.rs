//! A machine joins by the command that `token create --print-join-command` prints, works, and leaves.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{TestNode, contains, eventually, leftovers::Machine, node::busybox_tar};

const TIMEOUT: Duration = Duration::from_secs(30);

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

/// The words behind `podwright agent` of a join command.
fn words(command: &str) -> Vec<&str> {
    let words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(words[..2], ["podwright", "agent"], "{command}");
    words[2..].to_vec()
}

/// A node that runs the command, isolated, under a name.
fn joining(words: &[&str], name: &str) -> TestNode {
    TestNode::of_joining(&[&["--isolated", "--node-name", name], words].concat())
}

/// Tries to join in vain: what is said.
fn refused(words: &[&str]) -> String {
    let mut agent = joining(words, "stranger");
    agent.spawn();
    eventually("it gives up", Duration::from_secs(60), || contains(&agent.log(), "podwright: "));
    assert!(!agent.wait_ended().success());
    assert!(!agent.dir.path().join("agent/ca.crt").exists(), "nothing is trusted");
    agent.log()
}

fn leave(server: &TestNode, agent: &TestNode, more: &[&str]) -> Output {
    let kubeconfig = server.dir.path().join("admin.kubeconfig");
    let mut command = Command::new(crate::support::node::binary());
    command.args(["node", "leave", "--yes", "--kubeconfig"]).arg(kubeconfig).arg("--state-dir").arg(agent.dir.path());
    command.args(["--node-name", "member"]).args(more).output().unwrap()
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_machine_joins_by_the_printed_command_works_and_leaves() {
    let server = TestNode::server(&["--listen", "127.0.0.1:0"]);
    let command = server.ok(&["token", "create", "--print-join-command", "--description", "for a test"]);
    let words = words(&command);
    let mut agent = joining(&words, "member");
    let untouched = Machine::untouched(agent.dir.path());
    agent.spawn();
    agent.wait_registered(&server, "member");
    let secret = words[words.iter().position(|word| *word == "--token").unwrap() + 1].split_once('.').unwrap().1;
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", agent.pid())).unwrap();
    assert!(!arguments.contains(secret) && !agent.log().contains(secret), "{arguments:?}\n{}", agent.log());
    contains(&server.ok(&["token", "list"]), "authentication,signing   for a test").unwrap();
    assert_eq!(server.ok(&["token", "list", "-o", "jsonpath={.kind}/{.description}"]), "BootstrapToken/for a test");
    let tar = busybox_tar();
    server.ok(&["image", "import", tar.to_str().unwrap(), "localhost/busybox:1"]);
    server.apply(WEB);
    server.wait("condition=Available", &["deployment/web"], TIMEOUT);
    assert_eq!(server.field(&["pods"], ".items[0].spec.nodeName"), "member");

    // Its name is taken, and the token is of no use any more once it is deleted.
    let mut second = joining(&words, "member");
    second.spawn();
    eventually("the second waits", TIMEOUT, || contains(&second.log(), "waits for an administrator: there is a Node"));
    second.kill();
    let id = words[words.iter().position(|word| *word == "--token").unwrap() + 1].split_once('.').unwrap().0;
    assert_eq!(server.ok(&["token", "delete", id]), format!("bootstrap token \"{id}\" deleted\n"));
    agent.kill();
    agent.spawn();
    eventually("it is back without the token", TIMEOUT, || contains(&server.ok(&["get", "node", "member"]), " Ready "));

    // Another machine's node is drained, but not deleted while its agent runs.
    let early = server.run(&["node", "leave", "member", "--timeout", "60s"]);
    assert!(early.code == 1 && early.err.contains("its agent still runs"), "{}", early.all());
    let early = leave(&server, &agent, &[]);
    assert!(!early.status.success() && told(&early).contains("its agent still runs here"), "{}", told(&early));
    assert_eq!(server.field(&["node", "member"], ".spec.unschedulable"), "true");
    assert_eq!(server.field(&["pods"], ".items[*].spec.nodeName"), "", "they wait for another node");
    let dir = agent.dir.path().to_str().unwrap().to_owned();
    let reset = server.run(&["reset", "--state-dir", &dir, "--yes"]);
    assert!(reset.code == 1 && reset.err.contains("an agent is running"), "{}", reset.all());

    agent.terminate();
    let done = leave(&server, &agent, &[]);
    assert!(done.status.success(), "{}", told(&done));
    contains(&told(&done), "the node member has left the cluster").unwrap();
    assert_eq!(server.run(&["get", "node", "member"]).code, 1);
    assert_eq!(server.run(&["-n", "kube-node-lease", "get", "lease", "member"]).code, 1);
    let left: Vec<_> = std::fs::read_dir(agent.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["up.log"], "{}", told(&done));
    // Whoever died on the way runs it again; what registers just now under that name keeps its Lease.
    server.apply(
        "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: member, namespace: kube-node-lease}, spec: {}}",
    );
    let again = server.run(&["node", "leave", "member"]);
    assert_eq!(again.code, 0, "{}", again.all());
    server.ok(&["-n", "kube-node-lease", "get", "lease", "member"]);
    server.ok(&["-n", "kube-node-lease", "delete", "lease", "member"]);
    untouched.assert_unchanged();
    // Its name is free.
    let command = server.ok(&["token", "create", "--print-join-command"]);
    let mut next = joining(&self::words(&command), "member");
    next.spawn();
    next.wait_registered(&server, "member");
}

#[test]
fn a_machine_joins_no_cluster_that_it_does_not_know() {
    let server = TestNode::server(&["--listen", "127.0.0.1:0"]);
    let other = TestNode::server(&["--listen", "127.0.0.1:0"]);
    let command = server.ok(&["token", "create", "abcdef.0123456789abcdef", "--print-join-command"]);
    let words = words(&command);
    let [_, url, _, token, _, hash] = words[..] else { panic!("{command}") };
    let other_command = other.ok(&["token", "create", "abcdef.0123456789abcdef", "--print-join-command"]);
    let other_hash = other_command.split_whitespace().last().unwrap();
    let other_url = other_command.split_whitespace().nth(3).unwrap();

    let why = refused(&["--join", url, "--token", token, "--ca-hash", other_hash]);
    assert!(why.contains("has none of the hashes of --ca-hash") && why.contains(hash), "{why}");
    // Another server, that knows the token.
    let why = refused(&["--join", other_url, "--token", token, "--ca-hash", hash]);
    assert!(why.contains("has none of the hashes of --ca-hash"), "{why}");
    // A secret that was guessed.
    let why = refused(&["--join", url, "--token", "abcdef.0000000000000000", "--ca-hash", hash]);
    assert!(why.contains("the token's secret is another one"), "{why}");
    let why = refused(&["--join", url, "--token", token]);
    assert!(why.contains("--ca-hash sha256:HEX or --ca-file FILE is needed"), "{why}");
    let silent = Silent::start();
    let why = refused(&["--join", &silent.url, "--token", token, "--ca-hash", hash]);
    assert!(why.contains("did not answer within"), "{why}");
    assert!(!server.ok(&["get", "csr", "-o", "name"]).contains("csr"), "nobody has asked for a certificate");
}

/// Somebody whose first record of TLS comes a byte at a time, and never ends.
struct Silent {
    url: String,
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Silent {
    fn start() -> Silent {
        use std::sync::atomic::{AtomicBool, Ordering};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((mut stream, _)) = listener.accept() {
                    // A handshake's record of 16 KiB.
                    let _ = stream.write_all(&[22, 3, 3, 64, 0]);
                    open.push(stream);
                }
                for stream in &mut open {
                    let _ = stream.write_all(&[2]);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Silent { url, stop, thread: Some(thread) }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
