//! Whole requests to an API server in memory: by its faces, by its socket, and with credentials.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use podwright::api::Env;
use podwright::server::listen::{bind, serve};
use podwright::server::pki::{Authority, user_of};
use podwright::server::rest::authenticate::Peer;
use podwright::server::rest::{Face, boxed};
use podwright::server::{Config, Server, StaticTokens, fuzz};
use podwright::store::Memory;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use super::{Target, parts};

pub const TARGETS: &[Target] = &[
    Target::bytes("rest_request", rest_request, rest_seeds),
    Target::bytes("connection", connection, connection_seeds),
    Target::bytes("token", token, || {
        vec![FIXED.into(), b"eyJhbGciOiJub25lIn0.e30.".to_vec(), b"@".to_vec(), b"@\0\x05a".to_vec()]
    }),
    Target::text("issuer_keys", issuer_keys, &[ISSUER_KEYS]),
    Target::bytes("certificate", certificate, || vec![PAPERS.certificate.to_vec()]),
    Target::text("certificate_request", certificate_request, &[]),
    Target::bytes("certificate_request_der", certificate_request_der, || vec![PAPERS.request.to_vec()]),
];

/// A server, and how it is asked. A new one comes now and then, so that what is stored stays small.
struct World {
    runtime: Runtime,
    face: Arc<Face>,
    /// Where it listens.
    socket: tempfile::TempDir,
    /// The tokens that are good.
    tokens: Vec<String>,
    asked: usize,
}

const REQUESTS: usize = 2000;
const FIXED: &str = "0123456789abcdef0123456789";

impl World {
    fn new() -> World {
        // Its time passes at once where everything waits: nothing here waits for a clock.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let socket = tempfile::tempdir().unwrap();
        let (face, tokens) = runtime.block_on(async {
            let authority = Authority::generate(jiff::Timestamp::now()).unwrap();
            let tokens = StaticTokens::parse(&format!("{FIXED},ann,1,people")).unwrap();
            let config = Config { tokens, authority: Some(authority), ..Config::default() };
            let server = Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap();
            let listener = bind(&socket.path().join("s")).unwrap();
            tokio::spawn(serve(server.clone(), listener, None, std::future::pending()));
            let face = Face::new(server);
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
            let accounts = "POST /api/v1/namespaces/default/serviceaccounts";
            ask(&face, &format!("{accounts}\ncontent-type: application/json\n\n{account}")).await;
            let answer = ask(&face, &format!("{accounts}/robot/token\ncontent-type: application/json\n\n{{}}")).await;
            let answer: serde_json::Value = serde_json::from_slice(&answer.unwrap().1).unwrap();
            (face, vec![FIXED.to_owned(), answer["status"]["token"].as_str().unwrap().to_owned()])
        });
        World { runtime, face, socket, tokens, asked: 0 }
    }

    fn with<T>(use_it: impl FnOnce(&mut World) -> T) -> T {
        thread_local!(static WORLD: RefCell<Option<World>> = const { RefCell::new(None) });
        WORLD.with_borrow_mut(|world| {
            if world.as_ref().is_some_and(|world| world.asked >= REQUESTS) {
                *world = None;
            }
            let world = world.get_or_insert_with(World::new);
            world.asked += 1;
            use_it(world)
        })
    }
}

/// `METHOD PATH`, headers, an empty line, the body; the answer's code and body, as far as it comes. `None`: no request.
async fn ask(face: &Face, text: impl AsRef<[u8]>) -> Option<(u16, Bytes)> {
    let text = text.as_ref();
    let head = text.windows(2).position(|two| two == b"\n\n").unwrap_or(text.len());
    let (head, body) = (&text[..head], text.get(head + 2..).unwrap_or_default());
    let mut lines = head.split(|byte| *byte == b'\n');
    let (method, path) = std::str::from_utf8(lines.next()?).ok()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(path);
    for line in lines {
        let colon = line.windows(2).position(|two| two == b": ")?;
        request = request.header(&line[..colon], &line[colon + 2..]);
    }
    let request = request.body(Full::new(Bytes::copy_from_slice(body))).ok()?;
    let root = Peer { root: true, certificate: None, until: None };
    let (head, mut body) = face.answer(&root, boxed(request)).await.into_parts();
    let mut read = Vec::new();
    // A watch goes on.
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(Duration::from_millis(10), body.frame()).await {
        read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
    }
    Some((head.status.as_u16(), read.into()))
}

fn rest_request(bytes: &[u8]) {
    World::with(|world| {
        let World { runtime, face, .. } = world;
        let Some((code, body)) = runtime.block_on(ask(face, bytes)) else { return };
        let shown = || String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
        assert!(code != 500, "no request is our own error: {}", shown());
        if code >= 400 && body.starts_with(b"{") {
            let status: serde_json::Value = serde_json::from_slice(&body).expect("a Status is JSON");
            assert_eq!(status["code"], code, "{}", shown());
        }
    });
}

fn rest_seeds() -> Vec<Vec<u8>> {
    const JSON: &str = "content-type: application/json";
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let pod =
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    let rest = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    [
        format!("POST {MAPS}?dryRun=All&fieldManager=m&fieldValidation=Strict\n{JSON}\n\n{{\"metadata\":{{\"generateName\":\"a-\"}},\"data\":{{\"a\":\"1\"}}}}"),
        format!("GET {MAPS}?limit=1&continue=x&labelSelector=a%3Db\naccept: application/json;as=Table;g=meta.k8s.io;v=v1\n\n"),
        format!("GET {MAPS}?watch=1&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\n\n"),
        format!("PATCH {MAPS}/a?fieldManager=m&force=true\ncontent-type: application/apply-patch+yaml\n\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, data: {{b: c}}}}"),
        format!("PATCH {MAPS}/a\ncontent-type: application/json-patch+json\n\n[{{\"op\":\"add\",\"path\":\"/data/x\",\"value\":\"y\"}}]"),
        format!("DELETE {MAPS}/a\n{JSON}\n\n{{\"propagationPolicy\":\"Foreground\",\"preconditions\":{{\"uid\":\"u\"}}}}"),
        format!("POST /api/v1/namespaces/default/pods\n{JSON}\n\n{pod}"),
        format!("POST /api/v1/namespaces/default/pods/p/binding\n{JSON}\n\n{{\"target\":{{\"kind\":\"Node\",\"name\":\"n\"}}}}"),
        format!("POST /api/v1/namespaces/default/pods/p/eviction\n{JSON}\n\n{{}}"),
        format!("POST /api/v1/namespaces/default/serviceaccounts/robot/token\n{JSON}\n\n{{\"spec\":{{\"audiences\":[\"a\"],\"boundObjectRef\":{{\"kind\":\"Pod\",\"name\":\"p\"}}}}}}"),
        format!("PUT /apis/apps/v1/namespaces/default/replicasets/r/scale\n{JSON}\n\n{{\"spec\":{{\"replicas\":1}}}}"),
        format!("PUT /api/v1/namespaces/default/pods/p/resize\n{JSON}\n\n{pod}"),
        "GET /api/v1/namespaces/default/pods/p/log?tailLines=1&sinceTime=2024-01-01T00:00:00Z&limitBytes=5\n\n".into(),
        format!("POST {rest}\n{JSON}\nimpersonate-user: ann\nimpersonate-group: people\nimpersonate-extra-a%2fb: c\n\n{{\"metadata\":{{\"name\":\"r\"}},\"rules\":[{{\"apiGroups\":[\"\"],\"resources\":[\"pods\"],\"verbs\":[\"get\"]}}]}}"),
        format!("POST /apis/authorization.k8s.io/v1/subjectaccessreviews\n{JSON}\n\n{{\"spec\":{{\"user\":\"a\",\"resourceAttributes\":{{\"verb\":\"get\",\"resource\":\"pods\"}}}}}}"),
        format!("POST /apis/authentication.k8s.io/v1/tokenreviews\n{JSON}\n\n{{\"spec\":{{\"token\":\"a.b.c\"}}}}"),
        format!("POST /api/v1/namespaces\n{JSON}\n\n{{\"metadata\":{{\"name\":\"x\",\"labels\":{{\"pod-security.kubernetes.io/enforce\":\"restricted\"}}}}}}"),
        "GET /openapi/v2\naccept: application/com.github.proto-openapi.spec.v2@v1.0+protobuf\n\n".into(),
        "GET /apis\naccept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList\nauthorization: Bearer x\n\n".into(),
        "GET /api/v1/watch/namespaces/default/pods/p\n\n".into(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}

/// Raw bytes to the socket: HTTP itself, JSON-RPC, WebSockets.
fn connection(bytes: &[u8]) {
    World::with(|world| {
        let World { runtime, socket, .. } = world;
        let path = socket.path().join("s");
        runtime.block_on(async {
            let mut stream = UnixStream::connect(&path).await.expect("the server still listens");
            // It may hang up at any time.
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = tokio::time::timeout(Duration::from_secs(120), stream.read_to_end(&mut answer)).await;
            let answer = String::from_utf8_lossy(&answer);
            // JSON-RPC's answer to who hangs up within a call.
            let cut =
                answer.ends_with(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}"#);
            assert!(cut || !answer.contains("HTTP/1.1 500"), "{answer}");
        });
    });
}

fn connection_seeds() -> Vec<Vec<u8>> {
    let rpc = |body: &str| {
        let length = body.len();
        format!(
            "POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let upgrade = "GET /rpc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"get","params":{"resource":"pods","namespace":"default","name":"p"}}"#;
    let mut frame = vec![0x81, 0x80 | 126, 0, call.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(call.as_bytes());
    vec![
        rpc(call).into_bytes(),
        rpc(r#"[{"jsonrpc":"2.0","id":1,"method":"list","params":{"resource":"pods","options":{"limit":1}}},{"jsonrpc":"2.0","method":"x"}]"#).into_bytes(),
        rpc(r#"{"jsonrpc":"2.0","id":"a","method":"create","params":{"resource":"configmaps","namespace":"default","body":{"metadata":{"name":"a"}}}}"#).into_bytes(),
        b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n1\r\n{\r\n0\r\n\r\n".to_vec(),
        b"GET /api/v1/pods?limit=1 HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nAccept-Encoding: gzip\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        b"GET /stream/abc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: podwright-stream\r\n\r\n".to_vec(),
        [upgrade.as_bytes(), &frame].concat(),
    ]
}

/// No token is good but those that were issued. An input is a token, or what is changed in a good one: a byte, and where.
fn token(bytes: &[u8]) {
    World::with(|world| {
        let World { runtime, face, tokens, .. } = world;
        let mut token = bytes.to_vec();
        if let Some(changes) = bytes.strip_prefix(b"@") {
            token = tokens[1].clone().into_bytes();
            for change in changes.chunks_exact(3) {
                let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % token.len();
                token[at] = change[2];
            }
        }
        let token = token.trim_ascii();
        // A header's value is one line, and no token at all is root on the socket.
        if token.is_empty() || token.iter().any(|byte| byte.is_ascii_control()) {
            return;
        }
        let asked = ask(face, [b"GET /version\nauthorization: Bearer ", token, b"\n\n"].concat());
        let Some((code, _)) = runtime.block_on(asked) else { return };
        let good = tokens.iter().any(|good| good.as_bytes() == token);
        assert!((code == 401) != good, "{code} for {:?}", String::from_utf8_lossy(token));
    });
}

/// What an OpenID Connect issuer publishes, and a token that none of its keys has signed.
fn issuer_keys(text: &str) {
    let [document, token] = parts(text);
    if let Ok((keys, signed)) = fuzz::issuer_keys(document.as_bytes(), token) {
        assert!(!signed, "a forged token, with {keys} keys");
    }
}

const ISSUER_KEYS: &str = concat!(
    r#"{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"a","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"},"#,
    r#"{"kty":"RSA","alg":"RS256","n":"sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri","e":"AQAB"},{"kty":"oct","k":"AAAA"}]}"#,
    "\0",
    "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLCJleHAiOjEzMDA4MTkzODB9.",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
);

/// A certificate and a request for one, as a client makes them, in DER.
struct Papers {
    certificate: CertificateDer<'static>,
    request: Vec<u8>,
    authority: Authority,
}

static PAPERS: LazyLock<Papers> = LazyLock::new(|| {
    let authority = Authority::generate(jiff::Timestamp::now()).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "ann");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "people");
    let request = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let usages = ["client auth".to_owned()];
    let signed = authority.sign(&request.pem().unwrap(), &usages, 3600, jiff::Timestamp::now()).unwrap();
    let certificate = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
    Papers { certificate, request: request.der().to_vec(), authority }
});

fn certificate(bytes: &[u8]) {
    if let Some(user) = user_of(&CertificateDer::from(bytes)) {
        assert!(!user.name.is_empty(), "nobody has no name");
    }
}

fn certificate_request(text: &str) {
    let [pem, usages] = parts(text);
    let usages: Vec<String> = usages.split(',').map(str::to_owned).collect();
    let _ = fuzz::certificate_request(pem);
    let _ = PAPERS.authority.sign(pem, &usages, 3600, jiff::Timestamp::now());
}

fn certificate_request_der(bytes: &[u8]) {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    certificate_request(&format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n\0client auth"
    ));
}
