//! Pods call the API: through the Service `kubernetes`, with their CA and token.

use std::time::Duration;

use crate::support::{TestNode, contains, eventually, netns::at, tls};

const TIMEOUT: Duration = Duration::from_secs(30);
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const PODS: &str = "/api/v1/namespaces/default/pods";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}]
";

const VIEWER: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: callers-view, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: default, namespace: default}]
";

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: ['system:serviceaccount:default:default'], resources: [{group: ''}]}
";

/// What a Pod needs to reach the API.
struct Caller {
    netns: std::path::PathBuf,
    ca: String,
    token: String,
}

impl Caller {
    /// As seen by the Pod `caller`.
    fn of(node: &TestNode) -> Caller {
        let inside = |script: &str| node.ok(&["exec", "caller", "--", "sh", "-c", script]);
        assert_eq!(inside(&format!("cat {ACCOUNT}/namespace")), "default");
        let env = inside("echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT $KUBERNETES_SERVICE_PORT_HTTPS");
        assert_eq!(env, "10.96.0.1:443 443\n");
        let (ca, token) = (inside(&format!("cat {ACCOUNT}/ca.crt")), inside(&format!("cat {ACCOUNT}/token")));
        Caller { netns: node.netns_of("caller"), ca, token }
    }

    fn get(&self, name: &str, token: Option<&str>, path: &str) -> Result<(u16, String), String> {
        let answer = tls::get(&self.netns, at("10.96.0.1", 443), name, &self.ca, token, path);
        answer.map_err(|why| why.to_string())
    }

    /// Requests until the server responds with this code.
    #[track_caller]
    fn is_answered(&self, name: &str, token: Option<&str>, path: &str, wanted: u16) -> String {
        eventually(&format!("{path} is answered {wanted}"), TIMEOUT, || match self.get(name, token, path) {
            Ok((code, body)) if code == wanted => Ok(body),
            other => Err(format!("{other:?}")),
        })
    }
}

#[test]
fn a_pod_reaches_the_api_and_may_do_what_its_roles_say() {
    let dir = tempfile::tempdir().unwrap();
    let (policy, log) = (dir.path().join("policy.yaml"), dir.path().join("audit.log"));
    std::fs::write(&policy, POLICY).unwrap();
    let audit = ["--audit-policy-file", policy.to_str().unwrap(), "--audit-log-path", log.to_str().unwrap()];
    let node = TestNode::start(&audit);
    node.import_busybox();
    node.apply(POD);
    node.wait("condition=Ready", &["pod/caller"], TIMEOUT);
    let caller = Caller::of(&node);
    let token = Some(caller.token.as_str());

    let refused = caller.is_answered("kubernetes.default.svc", token, PODS, 403);
    let why = "User \\\"system:serviceaccount:default:default\\\" cannot list resource \\\"pods\\\"";
    contains(&refused, why).unwrap();
    caller.is_answered("kubernetes", None, PODS, 403);
    caller.is_answered("kubernetes.default", Some("forged"), PODS, 401);
    node.apply(VIEWER);
    for name in ["kubernetes.default.svc.cluster.local", "10.96.0.1"] {
        contains(&caller.is_answered(name, token, PODS, 200), "\"name\":\"caller\"").unwrap();
    }
    // Audited: who it was, from where, and by what right; what the policy omits is not.
    let pod = node.field(&["pod", "caller"], ".status.podIP");
    let told = eventually("the log tells of the Pod", TIMEOUT, || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let is_it = |line: &&str| line.contains("serviceaccount:default:default") && line.contains("\"code\":200");
        text.lines().find(is_it).map(str::to_owned).ok_or(text)
    });
    for part in [
        &format!("\"sourceIPs\":[\"{pod}\"]") as &str,
        "\"requestURI\":\"/api/v1/namespaces/default/pods\"",
        "RBAC: allowed by RoleBinding \\\"callers-view/default\\\" of ClusterRole \\\"view\\\"",
    ] {
        contains(&told, part).unwrap();
    }
    let whole = std::fs::read_to_string(&log).unwrap();
    assert!(whole.lines().all(|line| line.contains("serviceaccount:default:default")), "{whole}");
    let stranger =
        Caller { ca: node.ok(&["get", "cm", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}"]), ..caller };
    assert_eq!(stranger.ca.trim(), std::fs::read_to_string(node.dir.path().join("pki/ca.crt")).unwrap().trim());

    // The objects behind it show the address, and are repaired when changed or removed.
    let slice = ["endpointslices", "kubernetes"];
    assert_eq!(node.field(&slice, ".endpoints[*].addresses[*]"), "192.0.2.1");
    assert_eq!(node.field(&["endpoints", "kubernetes"], ".subsets[0].addresses[0].ip"), "192.0.2.1");
    node.ok(&["delete", "endpointslices", "kubernetes"]);
    node.ok(&["patch", "endpoints", "kubernetes", "--type", "merge", "-p", "{\"subsets\":null}"]);
    node.ok(&["create", "namespace", "other"]);
    node.ok(&["delete", "cm", "kube-root-ca.crt"]);
    for namespace in ["default", "other"] {
        eventually("every namespace has the CA", TIMEOUT, || {
            let answer = node.run(&["-n", namespace, "get", "cm", "kube-root-ca.crt", "-o", "yaml"]);
            contains(&answer.all(), "BEGIN CERTIFICATE")
        });
    }
    eventually("the slice is there again", TIMEOUT, || {
        contains(&node.run(&["get", "endpointslices", "kubernetes"]).all(), "192.0.2.1")
    });
    node.wait_field(&["endpoints", "kubernetes"], ".subsets[0].addresses[0].ip", "192.0.2.1", TIMEOUT);
    caller_again(&stranger);
}

/// Access still works.
fn caller_again(caller: &Caller) {
    caller.is_answered("kubernetes.default.svc", Some(&caller.token), PODS, 200);
}

#[test]
fn a_pod_of_a_node_of_its_own_reaches_a_server_elsewhere() {
    let server = TestNode::server(&["--listen", "127.0.0.1:0"]);
    let agent = TestNode::agent(&server, "away");
    let tar = crate::support::node::busybox_tar();
    server.ok(&["image", "import", tar.to_str().unwrap(), "localhost/busybox:1"]);
    server.apply(POD);
    server.wait("condition=Ready", &["pod/caller"], TIMEOUT);
    server.apply(VIEWER);
    let caller = Caller::of(&server);
    contains(&caller.is_answered("kubernetes.default.svc", Some(&caller.token), PODS, 200), "\"name\":\"caller\"")
        .unwrap();
    drop(agent);
}

pub const TOKEN: &str = "
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: 0123456789abcdef, usage-bootstrap-authentication: 'true'}
";

const MEMBER: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {word: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'echo from the inside; sleep 1000']
    volumeMounts: [{name: words, mountPath: /words}]
  volumes: [{name: words, configMap: {name: words}}]
";

const STATIC: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'echo of a file; exec sleep 1000']}]
";

#[test]
fn a_node_joins_by_tls_with_a_token_and_comes_back_without() {
    use std::os::unix::fs::PermissionsExt;
    let server = TestNode::server(&["--listen", "127.0.0.1:0"]);
    server.apply(TOKEN);
    let mut stranger = TestNode::joining(&server, "stranger", "abcdef.fedcba9876543210");
    stranger.spawn();
    eventually("a wrong token is refused", TIMEOUT, || contains(&stranger.log(), "joining"));
    stranger.wait_ended();

    let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
    agent.spawn();
    let ready = |agent: &TestNode| {
        eventually("the node is ready", TIMEOUT, || {
            let answer = server.run(&["wait", "--for=condition=Ready", "node/member", "--timeout=1s"]);
            if answer.code == 0 { Ok(()) } else { Err(answer.all() + &agent.log()) }
        });
    };
    ready(&agent);
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", agent.pid())).unwrap();
    assert!(arguments.contains("--token") && !arguments.contains("0123456789abcdef"), "{arguments:?}");
    let csr = server.field(&["csr"], ".items[*].spec.username");
    assert_eq!(csr, "system:bootstrap:abcdef");
    for file in ["client.key", "client.crt", "ca.crt"] {
        let mode = std::fs::metadata(agent.dir.path().join("agent").join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    // It may do what a node may, so its Pods run: image, token, ConfigMap, logs, exec, API access.
    let tar = crate::support::node::busybox_tar();
    server.ok(&["image", "import", tar.to_str().unwrap(), "localhost/busybox:1"]);
    server.apply(MEMBER);
    server.wait("condition=Ready", &["pod/caller"], TIMEOUT);
    assert_eq!(server.ok(&["exec", "caller", "--", "cat", "/words/word"]), "hello");
    eventually("its log is told", TIMEOUT, || contains(&server.ok(&["logs", "caller"]), "from the inside"));
    // Its own credential shows and resolves its static Pods.
    std::fs::write(agent.dir.path().join("manifests/web.yaml"), STATIC).unwrap();
    server.wait("create", &["pod/web-member"], TIMEOUT);
    server.wait("condition=Ready", &["pod/web-member"], TIMEOUT);
    assert_eq!(server.ok(&["exec", "web-member", "--", "hostname"]), "web-member\n");
    eventually("its log is told", TIMEOUT, || contains(&server.ok(&["logs", "web-member"]), "of a file"));
    let caller = Caller::of(&server);
    caller.is_answered("kubernetes.default.svc", Some(&caller.token), PODS, 403);
    let refused: Vec<String> =
        agent.log().lines().filter(|line| line.contains("orbidden")).map(str::to_owned).collect();
    assert!(refused.is_empty(), "the agent asks for what it may not have: {refused:#?}");

    // It keeps its identity: no token any more, and the same Pod.
    let before = server.field(&["pod", "caller"], ".status.containerStatuses[0].containerID");
    agent.kill();
    server.ok(&["-n", "kube-system", "delete", "secret", "bootstrap-token-abcdef"]);
    agent.without_token();
    agent.spawn();
    eventually("the agent is back", TIMEOUT, || {
        let answer = server.run(&["exec", "caller", "--", "cat", "/words/word"]);
        if answer.out == "hello" { Ok(()) } else { Err(answer.all() + &agent.log()) }
    });
    assert_eq!(server.field(&["pod", "caller"], ".status.containerStatuses[0].containerID"), before);
    assert_eq!(server.field(&["csr"], ".items[*].spec.username"), "system:bootstrap:abcdef", "it asked once");
    server.ok(&["delete", "pod", "caller", "--now"]);
    drop(agent);
}

#[test]
fn the_endpoint_is_of_the_services_family() {
    let ranges = ["--service-cidr", "fd00:96::/112,10.96.0.0/16", "--cluster-cidr", "fd00:244::/56,10.244.0.0/16"];
    let node = TestNode::start(&[&ranges[..], &["--cluster-dns", "10.96.0.10"]].concat());
    assert_eq!(node.field(&["service", "kubernetes"], ".spec.clusterIP"), "fd00:96::1");
    node.wait_field(&["endpointslices", "kubernetes"], ".addressType", "IPv6", TIMEOUT);
    let ca = std::fs::read_to_string(node.dir.path().join("pki/ca.crt")).unwrap();
    eventually("the node itself reaches it", TIMEOUT, || {
        match tls::get(&node.netns(), at("fd00:96::1", 443), "fd00:96::1", &ca, None, "/healthz") {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}
