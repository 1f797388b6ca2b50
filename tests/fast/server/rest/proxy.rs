//! The proxy to Pods and Services: where it leads, what it passes on, and what a backend cannot do with it.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use podwright::api::rpc::Task;
use podwright::api::stream::{Frame, FrameCodec, STATUS, STDIN, STDOUT};
use podwright::api::{Env, Verb};
use podwright::client::rpc;
use podwright::server::listen::{bind, serve};
use podwright::server::{Config, Server};
use podwright::store::{Memory, Store, Txn, Write};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::codec::Framed;

use super::super::{Api, pod, service};

/// A served socket and a node's agent, whose every backend gives the same answer and then sends back what it hears.
pub(super) struct World {
    dir: tempfile::TempDir,
    pub api: Api,
    /// The addresses that the node was asked to dial, and the bytes that backends got.
    dialled: Arc<Mutex<Vec<String>>>,
    heard: Arc<Mutex<Vec<u8>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

impl World {
    async fn answering(answer: &'static str) -> World {
        World::of(Api::new().await, answer).await
    }

    pub async fn of(api: Api, answer: &'static str) -> World {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let (listener, server) = (bind(&path).unwrap(), api.0.clone());
        let serving = tokio::spawn(async move { serve(server, listener, None, std::future::pending()).await.unwrap() });
        let client = rpc::client(rpc::Address(path), "test");
        let mut sessions = client.sessions("n").await.unwrap();
        let (dialled, heard): (Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<u8>>>) = Default::default();
        let (addresses, bytes) = (dialled.clone(), heard.clone());
        let agent = tokio::spawn(async move {
            while let Some(session) = sessions.recv().await {
                addresses.lock().unwrap().push(match session.task {
                    Task::Dial { address, pod } => match pod {
                        Some(pod) => format!("{address} of {}/{}", pod.namespace, pod.name),
                        None => address,
                    },
                    Task::Endpoints => ENDPOINTS.to_owned(),
                    other => panic!("{other:?}"),
                });
                let frames = Framed::new(client.dial(&session.id).await.unwrap(), FrameCodec);
                match answer.strip_prefix(TLS) {
                    Some(answer) => drop(tokio::spawn(by_tls(frames, answer, bytes.clone()))),
                    None => drop(tokio::spawn(backend(frames, answer, bytes.clone()))),
                }
            }
        });
        World { dir, api, dialled, heard, tasks: vec![serving, agent] }
    }

    /// A Pod that runs on the node and says to have this address.
    pub async fn pod_at(&self, name: &str, ip: &str) {
        let mut object = pod(name);
        object["spec"]["nodeName"] = "n".into();
        self.api.create("pods", object).await.unwrap();
        let running = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        self.api.sub(Verb::Patch, "pods", name, "status", running).await.unwrap();
    }

    /// A Service `web`, and a slice of it that a user wrote.
    pub async fn endpoint(&self, endpoint: Value) {
        self.api.create("services", service("web", json!({"ports": [{"port": 80}]}))).await.unwrap();
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "", "port": 8080, "protocol": "TCP"}], "endpoints": [endpoint]});
        self.api.create("endpointslices", slice).await.unwrap();
    }

    pub async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("api.sock")).await.unwrap()
    }

    /// Sends a request as it stands, and reads until the connection ends.
    async fn raw(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(std::time::Duration::from_secs(10), stream.read_to_end(&mut answer));
        read.await.expect("the connection ends").unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn get(&self, what: &str, headers: &str) -> String {
        let line = format!("GET /api/v1/namespaces/default/{what}/proxy/page HTTP/1.1");
        self.raw(&format!("{line}\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")).await
    }

    fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).to_lowercase()
    }
}

async fn backend(
    mut frames: Framed<podwright::client::Stream, FrameCodec>,
    answer: &'static str,
    heard: Arc<Mutex<Vec<u8>>>,
) {
    let mut answered = false;
    while let Some(Ok(frame)) = frames.next().await {
        if frame.channel != STDIN {
            break;
        }
        heard.lock().unwrap().extend_from_slice(&frame.payload);
        let payload = if answered { frame.payload } else { Bytes::from_static(answer.as_bytes()) };
        answered = true;
        if frames.send(Frame { channel: STDOUT, payload }).await.is_err() {
            return;
        }
    }
    let _ = frames.send(Frame { channel: STATUS, payload: Bytes::from_static(b"{}") }).await;
}

/// What begins the answers of backends that speak TLS.
const TLS: &str = "TLS ";

/// A backend with a certificate that nobody has signed, for another name.
async fn by_tls(frames: Framed<podwright::client::Stream, FrameCodec>, answer: &str, heard: Arc<Mutex<Vec<u8>>>) {
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["other.test".into()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![cert.der().clone()], key).unwrap();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (mut from, mut to) = tokio::io::split(ours);
    let (mut sink, mut source) = frames.split();
    let carry = async {
        let up = async {
            while let Some(Ok(frame)) = source.next().await {
                if to.write_all(&frame.payload).await.is_err() {
                    break;
                }
            }
        };
        let down = async {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                let payload = Bytes::copy_from_slice(&buffer[..count]);
                if sink.send(Frame { channel: STDOUT, payload }).await.is_err() {
                    break;
                }
            }
        };
        tokio::join!(up, down);
    };
    let serve = async {
        let mut stream = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(theirs).await.unwrap();
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        heard.lock().unwrap().extend_from_slice(&buffer[..count]);
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = carry => {}
        () = serve => {}
    }
}

const PAGE: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nAccess-Control-Allow-Origin: *\r\nSet-Cookie: a=b\r\n\r\npage";

#[tokio::test]
async fn a_backend_gets_no_credentials_and_says_nothing_in_the_servers_name() {
    let world = World::answering(PAGE).await;
    world.pod_at("p", "10.244.0.5").await;
    let token = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2VjcmV0\r\n";
    let more = "Impersonate-User: someone\r\nImpersonate-Group: system:masters\r\nX-Remote-User: admin\r\n\
        Proxy-Authorization: Basic hidden\r\nKeep-Alive: 5\r\nCookie: c=d\r\n";
    let answer = world.get("pods/p:80", &format!("{token}{more}")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("page"), "{answer}");
    let lower = answer.to_lowercase();
    assert!(!lower.contains("access-control") && lower.contains("x-content-type-options: nosniff"), "{answer}");
    let heard = world.heard();
    assert!(heard.starts_with("get /page http/1.1\r\n") && heard.contains("cookie: c=d"), "{heard}");
    for kept in ["impersonate", "x-remote", "authorization", "keep-alive", "bearer"] {
        assert!(!heard.contains(kept), "{kept} was passed on: {heard}");
    }
    assert_eq!(*world.dialled.lock().unwrap(), ["10.244.0.5:80 of default/p"]);
}

/// What stands for an address where the agent itself is asked.
const ENDPOINTS: &str = "the node's own endpoints";

#[tokio::test]
async fn a_nodes_endpoints_are_its_agents_and_other_ports_are_dialled() {
    let world = World::answering(PAGE).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    world.api.create("nodes", node).await.unwrap();
    let status = |port: u16| {
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}})
    };
    let get = async |id: &str, more: &str| {
        let line =
            format!("GET /api/v1/nodes/{id}/proxy/metrics?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n");
        let answer = world.raw(&line).await;
        (answer, std::mem::take(&mut *world.dialled.lock().unwrap()))
    };
    world.api.sub(Verb::Patch, "nodes", "n", "status", status(10250)).await.unwrap();
    for id in ["n", "n:10250", "n:", "http:n:10250", "https:n:10250", "https:n:"] {
        let (answer, asked) = get(id, "").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("page"), "{id}: {answer}");
        assert_eq!(asked, [ENDPOINTS], "{id}");
    }
    assert!(world.heard().starts_with("get /metrics?a=b http/1.1\r\n"), "{}", world.heard());
    let (answer, asked) = get("n:9100", "").await;
    assert!(answer.ends_with("page"), "{answer}");
    assert_eq!(asked, ["10.0.0.9:9100"]);
    // As upstream's: `nodes/proxy` is what the server asks, and no finer one will do.
    for allowed in [None, Some("nodes/metrics"), Some("nodes/proxy")] {
        if let Some(resource) = allowed {
            let rules = json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]);
            let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": resource.replace('/', "-")}, "rules": rules});
            world.api.create("clusterroles", role).await.unwrap();
            let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": resource.replace('/', "-")},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": resource.replace('/', "-")},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}]});
            world.api.create("clusterrolebindings", binding).await.unwrap();
        }
        let (answer, asked) = get("n", "Impersonate-User: tenant\r\n").await;
        let may = allowed == Some("nodes/proxy");
        assert!(answer.starts_with(if may { "HTTP/1.1 200" } else { "HTTP/1.1 403" }), "{allowed:?}: {answer}");
        assert_eq!(asked.len(), usize::from(may), "{allowed:?}");
    }
    // One that names no port of its own has none that its agent answers for.
    world.api.sub(Verb::Patch, "nodes", "n", "status", status(0)).await.unwrap();
    assert_eq!(get("n", "").await.1, ["10.0.0.9:10250"]);
}

const SECURED: &str = "TLS HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret";

#[tokio::test]
async fn a_name_says_whether_it_is_by_tls() {
    let plain = World::answering(PAGE).await;
    let secured = World::answering(SECURED).await;
    let port = json!({"name": "web", "protocol": "TCP", "port": 8080});
    for world in [&plain, &secured] {
        world.pod_at("p", "10.244.0.5").await;
        let reference = json!({"kind": "Pod", "name": "p", "namespace": "default"});
        let endpoint = json!({"addresses": ["10.244.0.5"], "conditions": {"ready": true}, "targetRef": reference});
        let spec = json!({"ports": [{"name": "web", "port": 80}]});
        world.api.create("services", service("web", spec)).await.unwrap();
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [port], "endpoints": [endpoint]});
        world.api.create("endpointslices", slice).await.unwrap();
    }
    for what in ["pods/p:80", "pods/http:p:80", "services/web:web", "services/http:web:80", "services/http:web:web"] {
        let answer = plain.get(what, "").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("page"), "{what}: {answer}");
    }
    for what in
        ["pods/https:p:443", "pods/https:p:", "services/https:web:web", "services/https:web:80", "services/https:web:"]
    {
        let answer = secured.get(what, "").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("secret"), "{what}: {answer}");
    }
    assert!(secured.heard().starts_with("get /page http/1.1\r\n"), "{}", secured.heard());
    assert_eq!(secured.dialled.lock().unwrap()[..2], ["10.244.0.5:443 of default/p", "10.244.0.5:443 of default/p"]);
    for what in ["pods/ftp:p:80", "pods/https::443", "services/a:b:c:d"] {
        let (_, id) = what.split_once('/').unwrap();
        let answer = plain.get(what, "").await;
        let kind = if what.starts_with("pods") { "pod" } else { "service" };
        let why = format!("invalid {kind} request \\\"{id}\\\"");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(&why), "{what}: {answer}");
    }
}

/// No status takes such an address, but one may be stored from before: that is not dialled either.
#[tokio::test]
async fn special_addresses_are_not_dialled_whoever_wrote_them() {
    let store = Arc::new(Memory::new());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    let world = World::of(api, PAGE).await;
    for (n, ip) in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "::ffff:127.0.0.1"].iter().enumerate()
    {
        let (name, key) = (format!("p{n}"), format!("/registry/pods/default/p{n}"));
        world.pod_at(&name, "10.244.0.5").await;
        let stored = store.get(&key).await.unwrap().unwrap().value;
        let stored = String::from_utf8(stored.to_vec()).unwrap().replace("10.244.0.5", ip);
        let writes = vec![Write::Put(key, stored.into())];
        store.commit(Txn { writes, ..Txn::default() }).await.unwrap();
        let answer = world.get(&format!("pods/{name}:80"), "").await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("address not allowed"), "{ip}: {answer}");
    }
    assert!(world.dialled.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_endpoint_that_a_user_wrote_leads_to_pods_of_the_namespace_alone() {
    let target = |name: &str, namespace: &str| json!({"kind": "Pod", "name": name, "namespace": namespace});
    for (endpoint, leads) in [
        (json!({"addresses": ["10.244.0.5"], "targetRef": target("p", "default")}), true),
        // The node's word is the Pod's.
        (json!({"addresses": ["10.244.0.5"], "nodeName": "other", "targetRef": target("p", "default")}), true),
        (json!({"addresses": ["10.244.0.5"], "nodeName": "n"}), false),
        (json!({"addresses": ["10.0.0.1"], "nodeName": "n", "targetRef": target("p", "default")}), false),
        (json!({"addresses": ["10.244.0.5"], "nodeName": "n", "targetRef": target("p", "kube-system")}), false),
        (json!({"addresses": ["10.244.0.5"], "nodeName": "n", "targetRef": target("none", "default")}), false),
    ] {
        let world = World::answering(PAGE).await;
        world.pod_at("p", "10.244.0.5").await;
        world.endpoint(endpoint.clone()).await;
        let answer = world.get("services/web", "").await;
        let wanted = if leads { "HTTP/1.1 200" } else { "HTTP/1.1 503" };
        assert!(answer.starts_with(wanted), "{endpoint}: {answer}");
        assert_eq!(world.dialled.lock().unwrap().len(), usize::from(leads), "{endpoint}");
    }
}

/// Its address is another's by now, maybe; of one that lives, the agent looks whether it has it still.
#[tokio::test]
async fn a_pod_that_has_ended_is_not_dialled() {
    for phase in ["Succeeded", "Failed"] {
        let world = World::answering(PAGE).await;
        world.pod_at("p", "10.244.0.5").await;
        let target = json!({"kind": "Pod", "name": "p", "namespace": "default"});
        world.endpoint(json!({"addresses": ["10.244.0.5"], "targetRef": target})).await;
        for what in ["pods/p:80", "services/web"] {
            assert!(world.get(what, "").await.starts_with("HTTP/1.1 200"), "{what}");
        }
        let dialled = std::mem::take(&mut *world.dialled.lock().unwrap());
        assert_eq!(dialled, ["10.244.0.5:80 of default/p", "10.244.0.5:8080 of default/p"]);
        world.api.sub(Verb::Patch, "pods", "p", "status", json!({"status": {"phase": phase}})).await.unwrap();
        let answer = world.get("pods/p:80", "").await;
        let why = format!("cannot proxy to a completed pod; current phase is {phase}");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(&why), "{answer}");
        assert!(world.get("services/web", "").await.starts_with("HTTP/1.1 503"));
        assert!(world.dialled.lock().unwrap().is_empty());
    }
}

fn upgrading(protocol: &str, then: &str) -> String {
    let line = "GET /api/v1/namespaces/default/pods/p:80/proxy/ws HTTP/1.1";
    format!("{line}\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n{then}")
}

/// CVE-2018-1002105: a backend that refuses to switch is not left open to what the client sends next.
#[tokio::test]
async fn a_refused_upgrade_leaves_no_way_to_the_backend() {
    let refusing = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    let world = World::answering(refusing).await;
    world.pod_at("p", "10.244.0.5").await;
    let answer = world.raw(&upgrading("websocket", "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.matches("HTTP/1.1").count() == 1, "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!(!world.heard().contains("smuggled"), "{}", world.heard());
}

#[tokio::test]
async fn a_backend_switches_to_what_was_asked_for_or_not_at_all() {
    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
    for (request, code) in [
        (upgrading("websocket", ""), 101),
        (upgrading("other", ""), 502),
        // Asked as a plain request, so that it is none of its business to switch.
        (upgrading("h2c", ""), 502),
        (
            "GET /api/v1/namespaces/default/pods/p:80/proxy/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into(),
            502,
        ),
    ] {
        let world = World::answering(switching).await;
        world.pod_at("p", "10.244.0.5").await;
        let mut stream = world.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{request}\n{answer}");
        assert!(code == 101 || !answer.contains("hello"), "{answer}");
        assert_eq!(world.heard().contains("\r\nupgrade: "), !request.contains("h2c") && request.contains("Upgrade"));
    }
}

/// A redirect is the client's to follow, never the server's (CVE-2020-8559).
#[tokio::test]
async fn a_redirect_is_handed_on() {
    let moved = "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n";
    let world = World::answering(moved).await;
    world.pod_at("p", "10.244.0.5").await;
    let answer = world.get("pods/p:80", "").await;
    assert!(answer.starts_with("HTTP/1.1 302"), "{answer}");
    assert_eq!(*world.dialled.lock().unwrap(), ["10.244.0.5:80 of default/p"]);
}

/// As upstream: who forbids to connect by a policy forbids the proxy too.
#[tokio::test]
async fn admission_is_asked_for_proxies() {
    let world = World::answering(PAGE).await;
    world.pod_at("p", "10.244.0.5").await;
    assert!(world.get("pods/p:80", "").await.contains("page"));
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "none"}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"],
                "resources": ["pods/proxy", "services/proxy", "nodes/proxy"]}]},
            "validations": [{"expression": "object.path != '/page'", "message": "not this page"}]}});
    world.api.create("validatingadmissionpolicies", policy).await.unwrap();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "none"}, "spec": {"policyName": "none", "validationActions": ["Deny"]}});
    world.api.create("validatingadmissionpolicybindings", binding).await.unwrap();
    let answer = world.get("pods/p:80", "").await;
    assert!(answer.contains("not this page"), "{answer}");
    let answer = world.get("services/web", "").await;
    assert!(answer.contains("not this page"), "{answer}");
    assert_eq!(world.dialled.lock().unwrap().len(), 1);
}
