//! What is open ends: with the certificate, the account or the right that opened it; and a watch that names no end has one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use jiff::Timestamp;
use podwright::api::{Env, Options, User, Verb};
use podwright::server::listen::{Tls, bind, serve};
use podwright::server::pki::Pki;
use podwright::server::rest::Face;
use podwright::server::rest::authenticate::Peer;
use podwright::server::{Config, ISSUER, Limits, Server, StaticTokens};
use podwright::store::{Asked, Error, Memory, Revision, Store};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::{Instant, timeout};

use super::super::{Api, object_of};
use super::{Rest, proxy, tls};
use crate::twisted::{Twist, Twisted};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TIMEOUT: Duration = Duration::from_secs(40);

/// ann may look at everything in all namespaces.
async fn let_ann_look(api: &Api, subject: Value) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "look"}, "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}});
    api.create("clusterrolebindings", binding).await.unwrap();
}

/// ann's certificate, which lasts for so many seconds, and its key.
fn certificate(pki: &Pki, seconds: i64) -> (String, String) {
    let mut asked = CertificateParams::default();
    asked.distinguished_name = DistinguishedName::new();
    asked.distinguished_name.push(DnType::CommonName, "ann");
    let key = KeyPair::generate().unwrap();
    let asked = asked.serialize_request(&key).unwrap().pem().unwrap();
    let usages = ["client auth".to_owned(), "digital signature".to_owned()];
    (pki.signer().sign(&asked, &usages, seconds, Timestamp::now()).unwrap(), key.serialize_pem())
}

/// Reads an answer's head; its code.
pub(super) async fn code(stream: &mut (impl AsyncRead + Unpin)) -> u16 {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

pub(super) async fn ended(stream: &mut (impl AsyncRead + Unpin), patience: Duration) -> bool {
    let mut rest = Vec::new();
    timeout(patience, stream.read_to_end(&mut rest)).await.is_ok()
}

/// By HTTP again and again on one connection, by a watch, and by a WebSocket of JSON-RPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_certificate_has_opened_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let pki = tls::open(dir.path(), Timestamp::now());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A connection that is kept may ask for nothing until the certificate has ended, on a busy machine too.
    let headers = Duration::from_secs(120);
    let limits = Limits { ask_again: Duration::from_millis(200), headers, ..Limits::default() };
    let api = Api::with(Config { limits, ..Config::default() }).await;
    let_ann_look(&api, json!({"kind": "User", "name": "ann"})).await;
    let tls = Tls::new(listener, pki.server_config().unwrap());
    let socket = bind(&dir.path().join("api.sock")).unwrap();
    let _serving = tokio::spawn(serve(api.0.clone(), socket, Some(tls), std::future::pending()));

    let kubeconfig = pki.kubeconfig("https://127.0.0.1:1");
    let (signed, key) = certificate(&pki, 8);
    let (config, root) = (tls::client_with(&kubeconfig, &signed, &key), tls::client(&kubeconfig, true));
    let dial = async |config: &rustls::ClientConfig| tls::handshake(address, config.clone()).await.unwrap();
    let (mut kept, mut watch, mut socket) = (dial(&config).await, dial(&config).await, dial(&config).await);
    let mut roots = dial(&root).await;
    let get = format!("GET {MAPS}?limit=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    let follow = format!("GET {MAPS}?watch=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    kept.write_all(get.as_bytes()).await.unwrap();
    assert_eq!(code(&mut kept).await, 200);
    for watch in [&mut watch, &mut roots] {
        watch.write_all(follow.as_bytes()).await.unwrap();
        assert_eq!(code(watch).await, 200);
    }
    let upgrade = "GET /rpc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(upgrade.as_bytes()).await.unwrap();
    assert_eq!(code(&mut socket).await, 101);
    // Half of its time.
    assert!(!ended(&mut watch, Duration::from_secs(2)).await && !ended(&mut socket, Duration::from_secs(1)).await);

    assert!(ended(&mut watch, TIMEOUT).await, "the watch goes on");
    assert!(ended(&mut socket, TIMEOUT).await, "the WebSocket goes on");
    // Behind the list of before, on the same connection.
    let mut rest = Vec::new();
    let last = get.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    kept.write_all(last.as_bytes()).await.unwrap();
    // Whether its end is announced by TLS is not what this is about.
    let _ = timeout(TIMEOUT, kept.read_to_end(&mut rest)).await.unwrap();
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(rest.contains("HTTP/1.1 401"), "{rest}");
    assert!(!ended(&mut roots, Duration::from_millis(500)).await, "an administrator's watch has ended too");
}

/// Watches of ann, for whom no end is named, by REST and by JSON-RPC; the server's own go on.
#[tokio::test(start_paused = true)]
async fn a_watch_that_names_no_end_has_one() {
    let api = Api::new().await;
    let_ann_look(&api, json!({"kind": "User", "name": "ann"})).await;
    let rest = Rest { face: Face::new(api.0.clone()), api };
    let ann = Peer { certificate: Some(User::new("ann", ["people"])), ..Peer::default() };
    let line = format!("GET {MAPS}?watch=true");
    for _ in 0..3 {
        let begun = Instant::now();
        let told = timeout(Duration::from_secs(10_000), rest.ask_as(&ann, &line, &[], "")).await.expect("it goes on");
        let took = begun.elapsed().as_secs();
        assert!(told.code == 200 && (1_800..3_601).contains(&took), "{} after {took} s", told.code);
    }
    let own = timeout(Duration::from_secs(10_000), rest.ask(&line, &[], ""));
    assert!(own.await.is_err(), "the superuser's ends");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_names_no_end_has_one() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = StaticTokens::parse("token-ann,ann,1,people\n").unwrap();
    let api = Api::with(Config { tokens, ..Config::default() }).await;
    let_ann_look(&api, json!({"kind": "User", "name": "ann"})).await;
    let path = dir.path().join("api.sock");
    let _serving = tokio::spawn(serve(api.0.clone(), bind(&path).unwrap(), None, std::future::pending()));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let upgrade = "GET /rpc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer token-ann\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    assert_eq!(code(&mut stream).await, 101);
    let params = json!({"resource": "configmaps", "namespace": "default"});
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "watch", "params": params}).to_string();
    // One text frame, masked with zeros.
    let mut frame = vec![0x81, 0x80 | 126];
    frame.extend((ask.len() as u16).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(ask.as_bytes());
    stream.write_all(&frame).await.unwrap();
    let (begun, mut said) = (Instant::now(), Vec::new());
    let until = async {
        while !String::from_utf8_lossy(&said).contains("the watch has ended") {
            assert!(stream.read_buf(&mut said).await.unwrap() > 0, "{}", String::from_utf8_lossy(&said));
        }
    };
    let over = timeout(Duration::from_secs(10_000), until).await;
    let took = begun.elapsed().as_secs();
    assert!(over.is_ok() && (1_800..3_601).contains(&took), "{took} s: {}", String::from_utf8_lossy(&said));
}

impl Rest {
    async fn account(&self) -> Value {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
        let made = self.post("/api/v1/namespaces/default/serviceaccounts", account).await;
        assert_eq!(made.code, 201, "{}", made.text());
        made.json()
    }

    async fn without(&self, path: &str) {
        let gone = self.ask(&format!("DELETE {path}?gracePeriodSeconds=0"), &[], "").await;
        assert_eq!(gone.code, 200, "{}", gone.text());
    }
}

/// Of the same name, with the same rights, and with the old token's Secret or Pod made anew.
#[tokio::test]
async fn an_account_that_is_made_anew_has_none_of_the_former_ones_tokens() {
    const ROBOT: &str = "/api/v1/namespaces/default/serviceaccounts/robot";
    let limits = Limits { ask_again: Duration::from_secs(2), ..Limits::default() };
    let api = Api::with(Config { limits, ..Config::default() }).await;
    let rest = Arc::new(Rest { face: Face::new(api.0.clone()), api });
    let_ann_look(&rest.api, json!({"kind": "ServiceAccount", "name": "robot", "namespace": "default"})).await;
    rest.account().await;
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let asked = rest.post(&format!("{ROBOT}/token"), asked).await.json();
    let asked = asked["status"]["token"].as_str().unwrap().to_owned();
    let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "robot"}}});
    rest.api.create("secrets", secret.clone()).await.unwrap();
    let kept = rest.api.get("secrets", "s").await.unwrap().0["data"]["token"].as_str().unwrap().to_owned();
    let in_secret = String::from_utf8(STANDARD.decode(&kept).unwrap()).unwrap();
    for token in [&asked, &in_secret] {
        assert!(rest.api.0.verify_token(token, ISSUER).await.is_ok());
    }
    let watch = {
        let (rest, bearer) = (rest.clone(), format!("Bearer {asked}"));
        let ask = async move {
            rest.ask_as(&Peer::default(), &format!("GET {MAPS}?watch=true"), &[("authorization", &bearer)], "").await
        };
        tokio::spawn(ask)
    };
    // It has been opened by then, and nobody has asked again whose it is.
    tokio::time::sleep(Duration::from_millis(500)).await;
    rest.without(ROBOT).await;
    rest.account().await;
    let told = timeout(TIMEOUT, watch).await.expect("the former one's watch goes on").unwrap();
    assert_eq!(told.code, 200);

    // Whatever has become of the Secret: it says what it said, and it is there.
    let _ = rest.ask("DELETE /api/v1/namespaces/default/secrets/s", &[], "").await;
    secret["data"] = json!({"token": kept});
    rest.api.create("secrets", secret).await.unwrap();
    for (what, token) in [("asked for", asked), ("in a Secret", in_secret)] {
        let refused = rest.api.0.verify_token(&token, ISSUER).await.map(|user| user.name);
        assert_eq!(refused.unwrap_err().code, 401, "the one {what}");
    }
}

#[tokio::test]
async fn a_pod_that_is_made_anew_has_none_of_the_former_ones_tokens() {
    let rest = Rest::new().await;
    rest.account().await;
    let mut object = super::super::pod("p");
    object["spec"]["serviceAccountName"] = "robot".into();
    let made = rest.api.create("pods", object.clone()).await.unwrap();
    let spec = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": made.uid()}});
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let token = rest.post("/api/v1/namespaces/default/serviceaccounts/robot/token", asked).await.json();
    let token = token["status"]["token"].as_str().unwrap();
    assert!(rest.api.0.verify_token(token, ISSUER).await.is_ok());
    rest.without("/api/v1/namespaces/default/pods/p").await;
    rest.api.create("pods", object).await.unwrap();
    assert_eq!(rest.api.0.verify_token(token, ISSUER).await.unwrap_err().code, 401);
}

/// A ServiceAccount `robot`, and a token of it.
pub(super) async fn robot(api: &Api) -> String {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    api.create("serviceaccounts", account).await.unwrap();
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let made = api.sub(Verb::Create, "serviceaccounts", "robot", "token", asked).await.map(object_of).unwrap();
    made.0["status"]["token"].as_str().unwrap().to_owned()
}

/// Lets everybody do this with these, for as long as there is the binding `all`.
pub(super) async fn let_all(api: &Api, resources: &[&str], verbs: &[&str]) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": "all"},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": verbs}]});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "all"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "all"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:authenticated"}]});
    api.create("clusterroles", role).await.unwrap();
    api.create("clusterrolebindings", binding).await.unwrap();
}

/// What somebody may lose while what he has opened goes on.
pub(super) const LOST: [(&str, &str); 2] = [("clusterrolebindings", "all"), ("serviceaccounts", "robot")];

/// All of them go on while nothing is lost, and end once this is; others' go on.
pub(super) async fn all_end_without(
    api: &Api,
    (resource, name): (&str, &str),
    open: &mut [(String, UnixStream)],
    others: &mut UnixStream,
) {
    let going = open.iter_mut().map(async |(what, stream)| {
        assert!(!ended(stream, Duration::from_secs(1)).await, "{what} ends with nothing lost");
    });
    futures::future::join_all(going).await;
    api.delete(resource, name, Options::default()).await.unwrap();
    let ending = open.iter_mut().map(async |(what, stream)| match ended(stream, TIMEOUT).await {
        true => None,
        false => Some(what.clone()),
    });
    let on: Vec<String> = futures::future::join_all(ending).await.into_iter().flatten().collect();
    assert!(on.is_empty(), "without {resource} {name} these go on: {on:?}");
    assert!(!ended(others, Duration::from_millis(500)).await, "an administrator's has ended too");
}

/// By a proxy to a Pod, a Service and a node; and an answer of theirs that has no end by itself, or no beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_been_switched_ends_with_the_right_to_it() {
    const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    const ENDLESS: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nsaid";
    for (lost, (answer, wanted)) in
        LOST.into_iter().flat_map(|lost| [(SWITCHING, 101), (ENDLESS, 200), ("", 0)].map(|answer| (lost, answer)))
    {
        let limits = Limits { ask_again: Duration::from_millis(200), ..Limits::default() };
        let api = Api::with(Config { limits, ..Config::default() }).await;
        let world = proxy::World::of(api, answer).await;
        let_all(&world.api, &["pods/proxy", "services/proxy", "nodes/proxy"], &["get"]).await;
        let token = robot(&world.api).await;
        world.pod_at("p", "10.244.0.5").await;
        let target = json!({"kind": "Pod", "namespace": "default", "name": "p"});
        world.endpoint(json!({"addresses": ["10.244.0.5"], "nodeName": "n", "targetRef": target})).await;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        world.api.create("nodes", node).await.unwrap();
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}});
        world.api.sub(Verb::Patch, "nodes", "n", "status", status).await.unwrap();

        let upgrade = match wanted {
            101 => "Connection: Upgrade\r\nUpgrade: echo\r\n",
            200 => "",
            _ => "Connection: close\r\n",
        };
        let open = async |path: &str, more: &str| {
            let mut stream = world.connect().await;
            let head = format!("GET /api/v1/{path}/proxy/x HTTP/1.1\r\nHost: x\r\n{more}{upgrade}\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            if wanted != 0 {
                assert_eq!(code(&mut stream).await, wanted, "{path}");
            }
            stream
        };
        let shown = format!("Authorization: Bearer {token}\r\n");
        let mut opened = Vec::new();
        for path in ["namespaces/default/pods/p:80", "namespaces/default/services/web", "nodes/n:9100"] {
            opened.push((format!("{path}, {wanted}"), open(path, &shown).await));
        }
        let mut roots = open("namespaces/default/pods/p:80", "").await;
        all_end_without(&world.api, lost, &mut opened, &mut roots).await;
    }
}

/// A store that is away now and then: it cannot say how far it is.
#[derive(Default)]
struct Away(AtomicBool);

impl Twist for Away {
    fn revision<'a>(&'a self, memory: &'a Memory) -> Asked<'a, Revision> {
        match self.0.load(Ordering::Relaxed) {
            true => Asked::Right(async { Err(Error::Unavailable("no leader".to_owned())) }.boxed()),
            false => memory.revision(),
        }
    }
}

#[tokio::test]
async fn what_cannot_be_known_at_the_moment_ends_nothing() {
    let limits = Limits { ask_again: Duration::from_millis(200), ..Limits::default() };
    let store = Arc::new(Twisted::<Away>::default());
    let config = Config { limits, ..Config::default() };
    let api = Api(Server::open(store.clone(), Env::system(), config).await.unwrap());
    let_ann_look(&api, json!({"kind": "ServiceAccount", "name": "robot", "namespace": "default"})).await;
    let token = robot(&api).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let _serving = tokio::spawn(serve(api.0.clone(), bind(&path).unwrap(), None, std::future::pending()));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let head = format!(
        "GET {MAPS}?watch=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(code(&mut stream).await, 200);
    store.0.store(true, Ordering::Relaxed);
    assert_eq!(api.0.authenticate_token(&token, &[]).await.unwrap_err().code, 504);
    // Five rounds.
    assert!(!ended(&mut stream, Duration::from_secs(1)).await, "the store is away, not the account");
    store.0.store(false, Ordering::Relaxed);
    assert!(!ended(&mut stream, Duration::from_secs(1)).await);
    api.delete("serviceaccounts", "robot", Options::default()).await.unwrap();
    assert!(ended(&mut stream, TIMEOUT).await, "the account is gone");
}
