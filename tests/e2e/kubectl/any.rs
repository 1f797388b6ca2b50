//! What every kubectl can do, including a distribution's old one.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
};

use super::{
    Cluster, Ended, TIMEOUT,
    custom::{DEFINITION, OBJECT},
    kubectls, minor,
};
use crate::support::{Answer, TestNode, contains, eventually, missing};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, 'echo it serves > /www/index.html; echo started; exec httpd -f -p 80 -h /www']
    ports: [{containerPort: 80}]
";
const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: localhost/busybox:1
        command: [sleep, infinity]
        env: [{name: A, value: '1'}]
";

/// A node and the first installed kubectl, of any age. `None`, with a message, if there is none.
fn start() -> Option<Cluster> {
    let Some(kubectl) = kubectls().into_iter().next() else {
        missing::client("there is no kubectl here; `./dev test` gets one");
        return None;
    };
    let node = TestNode::start(&[]);
    node.import_busybox();
    Some(Cluster::of(node, kubectl))
}

impl Cluster {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.args(args).envs(self.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Answer {
        Answer::of(self.command(args).output().unwrap())
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let answer = self.run(args);
        assert_eq!(answer.code, 0, "kubectl {}: {}\n{}", args.join(" "), answer.all(), self.node.log());
        answer.out
    }

    #[track_caller]
    fn ok_with(&self, args: &[&str], input: &str) -> String {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let answer = Answer::of(child.wait_with_output().unwrap());
        assert_eq!(answer.code, 0, "kubectl {}: {}\n{}", args.join(" "), answer.all(), self.node.log());
        answer.out
    }

    #[track_caller]
    fn shows(&self, args: &[&str], part: &str) {
        contains(&self.ok(args), part).unwrap_or_else(|why| panic!("kubectl {}: {why}", args.join(" ")));
    }
}

#[test]
fn objects_are_made_shown_changed_and_deleted() {
    let Some(cluster) = start() else { return };
    cluster.shows(&["version"], "v1.35.0");
    cluster.shows(&["api-resources"], "deployments");
    cluster.shows(&["api-versions"], "apps/v1");
    cluster.shows(&["explain", "pod.spec.containers"], "FIELDS:");
    cluster.shows(&["explain", "deployment.spec.strategy.rollingUpdate.maxSurge"], "maxSurge");
    cluster.shows(&["get", "--raw", "/readyz?verbose"], "readyz check passed");

    // Create and apply.
    cluster.ok(&["create", "namespace", "lab"]);
    cluster.ok(&["create", "configmap", "settings", "--from-literal=a=1"]);
    cluster.ok(&["create", "secret", "generic", "hidden", "--from-literal=b=2"]);
    cluster.shows(&["create", "deployment", "plain", "--image=localhost/busybox:1"], "deployment.apps/plain created");
    cluster.ok(&["delete", "deployment", "plain"]);
    if minor(&cluster.kubectl) >= Some(24) {
        assert!(cluster.ok(&["create", "token", "default"]).len() > 100);
    }
    assert_eq!(cluster.ok_with(&["apply", "-f", "-"], DEPLOYMENT), "deployment.apps/app created\n");
    assert_eq!(cluster.ok_with(&["apply", "-f", "-"], DEPLOYMENT), "deployment.apps/app unchanged\n");
    let changed = DEPLOYMENT.replace("value: '1'", "value: '2'");
    cluster.ok_with(&["apply", "--dry-run=server", "-f", "-"], &changed);
    assert_eq!(cluster.ok_with(&["apply", "-f", "-"], &changed), "deployment.apps/app configured\n");
    let wrong = DEPLOYMENT.replace("replicas:", "replica:");
    let refused = {
        let mut child = cluster.command(&["apply", "-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(wrong.as_bytes()).unwrap();
        Answer::of(child.wait_with_output().unwrap())
    };
    assert_eq!(refused.code, 1, "{}", refused.all());
    // An old one validates fields itself, with its own messages.
    let field = if minor(&cluster.kubectl) >= Some(25) { "spec.replica" } else { "replica" };
    contains(&refused.err, &format!("unknown field \"{field}\"")).unwrap();

    // Show.
    cluster.ok(&["rollout", "status", "deployment/app", "--timeout=30s"]);
    cluster.shows(&["get", "deployments"], "2/2");
    cluster.shows(&["get", "pods", "-o", "wide"], "NOMINATED NODE");
    cluster.shows(&["get", "all", "-A"], "deployment.apps/app");
    cluster.shows(&["get", "deployment", "app", "-o", "yaml"], "kind: Deployment");
    cluster.shows(&["get", "deployment", "app", "-o", "json"], "\"kind\": \"Deployment\"");
    cluster.shows(&["get", "pods", "-o", "name"], "pod/app-");
    assert_eq!(cluster.ok(&["get", "deployment", "app", "-o", "jsonpath={.spec.replicas}"]), "2");
    cluster.shows(&["get", "pods", "-o", "custom-columns=N:.metadata.name"], "app-");
    cluster.shows(&["get", "pods", "-l", "app=app", "--show-labels"], "app=app");
    cluster.shows(&["get", "pods", "--field-selector=status.phase=Running", "--sort-by=.metadata.name"], "app-");
    cluster.shows(&["describe", "deployment", "app"], "ScalingReplicaSet");
    cluster.shows(&["describe", "pods", "-l", "app=app"], "localhost/busybox:1");
    cluster.shows(&["describe", "node"], "Allocatable:");
    cluster.shows(&["get", "events"], "Scheduled");

    // Change.
    cluster.ok(&["label", "deployment", "app", "tier=back"]);
    cluster.ok(&["annotate", "deployment", "app", "note=yes"]);
    cluster.ok(&["label", "deployment", "app", "tier-"]);
    for (of_type, patch) in [
        ("merge", "{\"metadata\":{\"labels\":{\"p\":\"merge\"}}}"),
        ("strategic", "{\"metadata\":{\"labels\":{\"p\":\"strategic\"}}}"),
        ("json", "[{\"op\":\"replace\",\"path\":\"/metadata/labels/p\",\"value\":\"json\"}]"),
    ] {
        cluster.ok(&["patch", "deployment", "app", "--type", of_type, "-p", patch]);
        assert_eq!(cluster.ok(&["get", "deployment", "app", "-o", "jsonpath={.metadata.labels.p}"]), of_type);
    }
    cluster.ok(&["scale", "deployment/app", "--replicas=3"]);
    cluster.ok(&["rollout", "status", "deployment/app", "--timeout=30s"]);
    cluster.ok(&["set", "env", "deployment/app", "B=3"]);
    cluster.ok(&["rollout", "status", "deployment/app", "--timeout=60s"]);
    cluster.shows(&["rollout", "history", "deployment/app"], "REVISION");
    cluster.ok(&["rollout", "undo", "deployment/app"]);
    cluster.ok(&["rollout", "restart", "deployment/app"]);
    cluster.ok(&["rollout", "status", "deployment/app", "--timeout=60s"]);
    cluster.ok(&["expose", "deployment", "app", "--port=80"]);
    cluster.shows(&["get", "service", "app"], "ClusterIP");
    let edit = ["edit", "configmap", "settings"];
    let edited = cluster.command(&edit).env("KUBE_EDITOR", "sed -i 's/a: \"1\"/a: \"edited\"/'").output().unwrap();
    contains(&Answer::of(edited).all(), "configmap/settings edited").unwrap();
    let diff = {
        let mut child = cluster.command(&["diff", "-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(DEPLOYMENT.replace("replicas: 2", "replicas: 7").as_bytes()).unwrap();
        Answer::of(child.wait_with_output().unwrap())
    };
    assert_eq!(diff.code, 1, "a difference: {}", diff.all());
    contains(&diff.out, "+  replicas: 7").unwrap();

    // Delete.
    cluster.ok(&["delete", "deployment", "app", "--cascade=foreground"]);
    // Old ones have no other condition for Pods that are already gone.
    let waited = cluster.run(&["wait", "--for=delete", "pods", "-l", "app=app", "--timeout=30s"]);
    assert!(waited.code == 0 || waited.err.contains("no matching resources found"), "{}", waited.all());
    cluster.ok(&["delete", "configmap,secret", "--all"]);
    cluster.ok(&["delete", "namespace", "lab"]);
    let gone = cluster.run(&["get", "namespace", "lab"]);
    assert_eq!((gone.code, gone.err.as_str()), (1, "Error from server (NotFound): namespaces \"lab\" not found\n"));

    // Custom resources.
    cluster.ok_with(&["apply", "-f", "-"], DEFINITION);
    cluster.ok(&["wait", "--for=condition=Established", "crd/crontabs.stable.example.com", "--timeout=20s"]);
    assert_eq!(cluster.ok_with(&["apply", "-f", "-"], OBJECT), "crontab.stable.example.com/nightly created\n");
    cluster.shows(&["get", "ct"], "0 3 * * *");
    cluster.ok(&["delete", "crd", "crontabs.stable.example.com", "--timeout=20s"]);
}

#[test]
fn sessions_reach_into_pods() {
    let Some(cluster) = start() else { return };
    cluster.ok_with(&["create", "-f", "-"], POD);
    cluster.ok(&["wait", "--for=condition=Ready", "pod/web", "--timeout=30s"]);

    assert_eq!(cluster.ok(&["logs", "web"]), "started\n");
    let mut follow = Ended(cluster.command(&["logs", "-f", "web"]).spawn().unwrap());
    let mut lines = BufReader::new(follow.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");

    assert_eq!(cluster.ok(&["exec", "web", "--", "cat", "/www/index.html"]), "it serves\n");
    assert_eq!(cluster.ok_with(&["exec", "-i", "web", "--", "sh"], "echo from stdin; echo err >&2\n"), "from stdin\n");
    let failed = cluster.run(&["exec", "web", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.code, 7, "{}", failed.all());
    let much = cluster.ok(&["exec", "web", "--", "sh", "-c", "yes | head -c 3000000"]);
    assert_eq!(much.len(), 3_000_000);
    let input = "x".repeat(2_000_000);
    assert_eq!(cluster.ok_with(&["exec", "-i", "web", "--", "wc", "-c"], &input).trim(), "2000000");

    let mut forward = Ended(cluster.command(&["port-forward", "pod/web", ":80"]).spawn().unwrap());
    let mut said = BufReader::new(forward.0.stdout.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    let port: u16 = first.split(':').nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    for _ in 0..3 {
        eventually("the forwarded port answers", TIMEOUT, || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|e| e.to_string())?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").map_err(|e| e.to_string())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map_err(|e| e.to_string())?;
            contains(&answer, "it serves")
        });
    }
    let raw = "/api/v1/namespaces/default/pods/web:80/proxy/index.html";
    assert_eq!(cluster.ok(&["get", "--raw", raw]), "it serves\n");

    cluster.ok(&["delete", "pod", "web", "--wait=false"]);
    assert!(lines.next().is_none(), "a followed log ends with its container");
}

#[test]
fn a_watch_and_a_kubeconfig_outlive_a_restart_of_the_server() {
    let Some(mut cluster) = start() else { return };
    let before = std::fs::read_to_string(cluster.node.dir.path().join("admin.kubeconfig")).unwrap();
    cluster.ok(&["create", "configmap", "kept", "--from-literal=a=1"]);
    cluster.node.kill();
    cluster.node.spawn();
    cluster.node.wait_ready();
    cluster.shows(&["get", "configmap", "kept"], "kept");
    let after = std::fs::read_to_string(cluster.node.dir.path().join("admin.kubeconfig")).unwrap();
    assert_eq!(before, after, "port and certificates stay");
    let printed = cluster.node.ok(&["kubeconfig"]);
    assert_eq!(printed, after);
}
