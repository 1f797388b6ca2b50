//! Discovery: who knows a token and the hash of an authority finds that authority, whoever else answers, and however.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use podwright::api::bootstrap_token::Token;
use podwright::api::cluster_info::{CaHash, hashes};
use podwright::api::{Env, Request, Verb};
use podwright::client::discovery::Discovery;
use podwright::client::{Informers, local};
use podwright::controllers;
use podwright::server::listen::{Tls, bind, serve};
use podwright::server::pki::{Names, Pki};
use podwright::server::{AdvertiseAddress, Config, Server};
use podwright::store::Memory;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::Api;

const TOKEN: &str = "abcdef.0123456789abcdef";
/// Enough for what succeeds, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(20);

fn authority() -> (tempfile::TempDir, Pki) {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(&dir.path().join("pki"), &Names::new("cluster.local", None, []), Timestamp::now()).unwrap();
    (dir, pki)
}

fn hash(pki: &Pki) -> CaHash {
    hashes(pki.authority()).unwrap()[0].0
}

fn discovery(url: &str, token: &str, hashes: &[CaHash]) -> Discovery {
    Discovery { url: url.to_owned(), token: token.parse().unwrap(), hashes: hashes.to_vec() }
}

async fn refused(discovery: Discovery, patience: Duration) -> String {
    format!("{:#}", discovery.authority(patience).await.expect_err("it is refused"))
}

fn secret(id: &str, change: Value) -> Value {
    let mut secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
        "stringData": {
            "token-id": id, "token-secret": "0123456789abcdef",
            "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
        },
    });
    json_patch::merge(&mut secret["stringData"], &change);
    secret
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_knows_a_token_and_the_hash_finds_the_authority() {
    let (dir, pki) = authority();
    let config = Config { authority: Some(pki.signer()), ..Config::default() };
    let server = Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let tls = Tls::new(listener, pki.server_config().unwrap());
    let socket = bind(&dir.path().join("api.sock")).unwrap();
    let serving = tokio::spawn(serve(server.clone(), socket, Some(tls), std::future::pending()));
    server.advertise(AdvertiseAddress { endpoint: None, url: Some(url.clone()) });
    let informers = Informers::start(local::client(server.clone(), "informers"));
    let stop = CancellationToken::new();
    let client = local::worker(server.clone(), "kube-controller-manager");
    let (config, ended) = (controllers::Config::default(), stop.clone());
    let loops = tokio::spawn(controllers::run(client, Env::system(), informers, config, ended));
    let api = Api(server);
    for (id, change) in [
        ("abcdef", json!({})),
        ("nosign", json!({"usage-bootstrap-signing": null})),
        ("ended0", json!({"expiration": "2020-01-01T00:00:00Z"})),
    ] {
        api.create("secrets", secret(id, change)).await.unwrap();
    }

    let (_other, stranger) = authority();
    let found = discovery(&url, TOKEN, &[hash(&stranger), hash(&pki)]).authority(PATIENCE).await.unwrap();
    assert_eq!(hashes(&found).unwrap(), hashes(pki.authority()).unwrap());
    // The server looks after the kubeconfig, and the signer after its signatures: neither takes away what is the other's.
    api.0.advertise(AdvertiseAddress { endpoint: None, url: Some("https://192.0.2.1:6443".into()) });
    let signed = async || {
        let get = super::request(Verb::Get, "configmaps", "cluster-info", None, Default::default());
        let info =
            api.0.handle(Request { namespace: Some("kube-public".into()), ..get }).await.map(super::object_of).unwrap();
        let text = |key: &str| info.0["data"][key].as_str().unwrap_or_default().to_owned();
        let kubeconfig = text("kubeconfig");
        let token: Token = TOKEN.parse().unwrap();
        kubeconfig.contains("192.0.2.1") && token.has_signed(&kubeconfig, &text("jws-kubeconfig-abcdef"))
    };
    while !signed().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (token, hashes, why) in [
        (TOKEN, vec![hash(&stranger)], format!("none of the hashes of --ca-hash, but {}", hash(&pki))),
        ("abcdef.0123456789abcdee", vec![hash(&pki)], "the token's secret is another one".to_owned()),
        ("nosign.0123456789abcdef", vec![hash(&pki)], "is not signed by the token \"nosign\"".to_owned()),
        ("ended0.0123456789abcdef", vec![hash(&pki)], "is not signed by the token \"ended0\"".to_owned()),
        ("nobody.0123456789abcdef", vec![hash(&pki)], "is not signed by the token \"nobody\"".to_owned()),
        (TOKEN, vec![], "trusts anybody".to_owned()),
    ] {
        let told = refused(discovery(&url, token, &hashes), Duration::from_secs(3)).await;
        assert!(told.contains(&why) && !told.contains("0123456789"), "{token}: {told}");
    }
    // The ended one is deleted.
    let gone = async || {
        let get = super::request(Verb::Get, "secrets", "bootstrap-token-ended0", None, Default::default());
        api.0.handle(Request { namespace: Some("kube-system".into()), ..get }).await.is_err()
    };
    while !gone().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    loops.await.unwrap();
    serving.abort();
}

/// What somebody else answers, once he has read the question.
type Answer = Arc<dyn Fn(usize) -> Reply + Send + Sync>;

enum Reply {
    /// A ConfigMap with this data.
    Data(Value),
    /// These bytes, again and again.
    Endless(&'static [u8]),
    /// Nothing.
    Silence,
}

/// Somebody who answers with a certificate of an authority's.
async fn somebody(pki: &Pki, answer: Answer) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = tokio_rustls::TlsAcceptor::from(pki.server_config().unwrap());
    let serving = tokio::spawn(async move {
        for n in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            tokio::spawn(reply(stream, answer(n)));
        }
    });
    (url, serving)
}

async fn reply(mut stream: TlsStream<tokio::net::TcpStream>, reply: Reply) {
    let mut question = vec![0; 4096];
    let read = stream.read(&mut question).await.unwrap_or(0);
    let question = String::from_utf8_lossy(&question[..read]).to_lowercase();
    assert!(question.starts_with("get /api/v1/namespaces/kube-public/configmaps/cluster-info "), "{question}");
    assert!(!question.contains("authorization") && !question.contains("abcdef"), "no secret is told: {question}");
    match reply {
        Reply::Silence => std::future::pending().await,
        Reply::Data(data) => {
            let body = json!({"kind": "ConfigMap", "data": data}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        Reply::Endless(bytes) => {
            let head = if bytes.starts_with(b"x: ") { "HTTP/1.1 200 OK\r\n" } else { "HTTP/1.1 200 OK\r\n\r\n" };
            let _ = stream.write_all(head.as_bytes()).await;
            while stream.write_all(bytes).await.is_ok() {}
        }
    }
}

/// A signed ConfigMap that names these authorities.
fn told(url: &str, token: &str, authorities: &str) -> Value {
    use base64::Engine;
    let encoded = base64::engine::general_purpose::STANDARD.encode(authorities);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: ''\n  cluster: {{server: '{url}', certificate-authority-data: {encoded}}}\n"
    );
    let token: Token = token.parse().unwrap();
    json!({"kubeconfig": kubeconfig, format!("jws-kubeconfig-{}", token.id()): token.sign(&kubeconfig)})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_man_in_the_middle_is_found_out() {
    let ((_a, own), (_b, his)) = (authority(), authority());
    let both = format!("{}{}", own.authority(), his.authority());
    let pins = [hash(&own)];
    for (what, data, why) in [
        ("what the cluster says, passed on", told("https://a:1", TOKEN, own.authority()), "invalid peer certificate"),
        (
            "his own authority, signed by guessing",
            told("https://a:1", "abcdef.0000000000000000", his.authority()),
            "invalid",
        ),
        // Another machine that joins has a token, too.
        ("his own authority, with the token", told("https://a:1", TOKEN, his.authority()), "none of the hashes"),
        ("his own authority beside the cluster's", told("https://a:1", TOKEN, &both), "invalid peer certificate"),
        ("no authority", told("https://a:1", TOKEN, "none"), "unreadable"),
    ] {
        let (url, serving) = somebody(&his, Arc::new(move |_| Reply::Data(data.clone()))).await;
        let begin = Instant::now();
        let told = refused(discovery(&url, TOKEN, &pins), PATIENCE).await;
        assert!(told.contains(why), "{what}: {told}");
        assert!(begin.elapsed() < PATIENCE, "{what}: nothing better is waited for");
        serving.abort();
    }
    // The cluster itself, that says something else the second time.
    let changing: Answer = Arc::new({
        let authority = own.authority().to_owned();
        move |n| Reply::Data(told(&format!("https://a:{n}"), TOKEN, &authority))
    });
    let (url, serving) = somebody(&own, changing).await;
    let told = refused(discovery(&url, TOKEN, &pins), PATIENCE).await;
    assert!(told.contains("differs from the first"), "{told}");
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_has_an_end_in_size_and_time() {
    let (_dir, pki) = authority();
    let short = Duration::from_secs(4);
    for (what, answer, why) in [
        ("an endless body", (|_| Reply::Endless(&[b' '; 1 << 16])) as fn(usize) -> Reply, "is too large"),
        ("a body of single bytes", |_| Reply::Endless(b" "), "did not answer within"),
        ("an endless head", |_| Reply::Endless(b"x: y\r\n"), ""),
        ("nothing at all", |_| Reply::Silence, "did not answer within"),
        ("no ConfigMap", |_| Reply::Data(json!(7)), "did not answer with a ConfigMap"),
        ("no kubeconfig", |_| Reply::Data(json!({})), "has no kubeconfig"),
        ("no signature", |_| Reply::Data(json!({"kubeconfig": "x"})), "is not signed by the token"),
    ] {
        let (url, serving) = somebody(&pki, Arc::new(answer)).await;
        let begin = Instant::now();
        let told = refused(discovery(&url, TOKEN, &[hash(&pki)]), short).await;
        assert!(told.contains(why), "{what}: {told}");
        assert!(begin.elapsed() < 10 * short, "{what}");
        serving.abort();
    }
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let told = refused(discovery(&url, TOKEN, &[hash(&pki)]), short).await;
    assert!(told.contains("did not answer within"), "no handshake: {told}");
    drop(silent);
    let told = refused(discovery(&url, TOKEN, &[hash(&pki)]), short).await;
    assert!(told.contains("connecting to"), "nobody: {told}");
}
