//! What an extension API server serves, through the face of this one: who may ask, what gets there, what comes back.

mod controllers;
mod metrics;
mod pipeline;
mod sessions;
mod things;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use podwright::api::{Options, User};
use podwright::server::SessionLimits;
use podwright::server::rest::authenticate::Peer;
use podwright::server::rest::boxed;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use world::{GROUP, NAME, THINGS, World};

fn somebody(name: &str) -> Peer {
    Peer { root: false, certificate: Some(User::new(name, ["devs"])), until: None }
}

#[tokio::test]
async fn a_request_is_authorized_here_and_passed_on_with_a_front_proxys_word() {
    let world = World::ready().await;
    let ask = async |name: &str, line: &str, headers: &[(&str, &str)], body: &str| {
        world.rest.ask_as(&somebody(name), line, headers, body.to_owned()).await
    };
    let refused = ask("ann", &format!("GET {THINGS}/one"), &[], "").await;
    assert_eq!(refused.code, 403);
    let why = "things.ext.example.com \"one\" is forbidden: User \"ann\" cannot get resource \"things\" in API group \
               \"ext.example.com\" in the namespace \"default\"";
    assert_eq!(refused.json()["message"], why);
    world.let_ann().await;
    let forged = [
        ("x-remote-user", "root"),
        ("X-Remote-Group", "system:masters"),
        ("X-Remote-Extra-Scopes", "all"),
        ("x-remote-uid", "0"),
        ("X_Remote_Group", "system:masters"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Original-URL", "/apis/ext.example.com/v1/secrets"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("cookie", "a=b"),
    ];
    let told = ask("ann", &format!("GET {THINGS}/one?x=%2F1"), &forged, "").await;
    assert_eq!(
        (told.code, told.json()["path"].as_str()),
        (200, Some("/apis/ext.example.com/v1/namespaces/default/things/one"))
    );
    let (headers, _) = world.heard(&format!("GET {THINGS}/one?x=%2F1"));
    let remote: Vec<&String> = headers.iter().filter(|line| line.starts_with("x-remote-")).collect();
    assert_eq!(remote, ["x-remote-user: ann", "x-remote-group: devs", "x-remote-group: system:authenticated"]);
    assert!(headers.contains(&"host: hook.default.svc:443".to_owned()), "{headers:?}");
    for gone in ["x_remote", "x-http-method", "x-original", "traceparent", "x-forwarded"] {
        assert!(!headers.iter().any(|line| line.starts_with(gone)), "{gone}: {headers:?}");
    }
    let told = ask("ann", &format!("POST {THINGS}"), &[("content-type", "application/json")], "{\"a\": 1}").await;
    assert_eq!(told.code, 200);
    assert_eq!(world.heard(&format!("POST {THINGS}")).1, "{\"a\": 1}");
    // Whoever acts as somebody else is that one there; how he came to be is nobody's business.
    let acting =
        [("impersonate-user", "bob"), ("impersonate-group", "system:masters"), ("authorization", "Basic eDp5")];
    let told = world.rest.ask(&format!("GET {THINGS}/two"), &acting, "").await;
    assert_eq!(told.code, 200);
    let (headers, _) = world.heard(&format!("GET {THINGS}/two"));
    assert!(headers.contains(&"x-remote-user: bob".to_owned()), "{headers:?}");
    assert!(
        !headers.iter().any(|line| line.starts_with("impersonate") || line.starts_with("authorization")),
        "{headers:?}"
    );
    // Paths that the other server may read otherwise than they were authorized.
    for path in [
        "things/..%2f..%2fsecrets",
        "things/%2e%2e/x",
        "things//x",
        "../v1/things",
        "things/a%252fb",
        "things/a;b",
        "things/a%3Fb",
    ] {
        let told = world.rest.get(&format!("/apis/ext.example.com/v1/namespaces/default/{path}")).await;
        assert_eq!(told.code, 400, "{path}: {}", told.text());
    }
    for path in ["/apis/ext%2Eexample.com/v1/things", "/apis/ext.example.com/%761/things"] {
        let told = world.rest.get(path).await;
        assert_eq!(told.code, 400, "{path}: {}", told.text());
    }
    // One that names no resource where it should is no plain path either, to which others have a right; nor is of two values the
    // one authorized and the other done.
    for path in
        ["watch", "watch/", "things?watch=false&watch=1", "things?fieldSelector=metadata.name%3Done&fieldSelector="]
    {
        let told = ask("ann", &format!("GET /apis/ext.example.com/v1/{path}"), &[], "").await;
        assert_eq!(told.code, 400, "{path}: {}", told.text());
    }
    let told = world.rest.get(&format!("{THINGS}/away")).await;
    assert_eq!(told.code, 502);
    assert_eq!(told.text(), "the backend attempted to redirect this request, which is not permitted\n");
    assert_eq!(told.header("location"), "");
    let large = "x".repeat((3 << 20) + 1);
    assert_eq!(world.rest.ask(&format!("POST {THINGS}"), &[], large).await.code, 413);
}

#[tokio::test]
async fn what_it_serves_is_discovered_and_described_with_ours() {
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let world = World::ready().await;
    let groups = world.document("/apis", "application/json", GROUP).await;
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["apiregistration.k8s.io", "apps"]);
    assert_eq!(names[names.len() - 3..], [GROUP, "network.podwright.io", "metrics.k8s.io"]);
    let group = world.rest.get("/apis/ext.example.com").await.json();
    assert_eq!(group["preferredVersion"]["groupVersion"], "ext.example.com/v1");
    let version = async |freshness: &str| {
        let freshness = format!(
            "\"resource\":\"things\",\"responseKind\":{{\"group\":\"ext.example.com\",\"version\":\"v1\",\"kind\":\"Thing\"}},\"scope\":\"Namespaced\",\"singularResource\":\"thing\",\"verbs\":[\"get\",\"list\"]}}],\"freshness\":\"{freshness}\""
        );
        world.document("/apis", AGGREGATED, &freshness).await
    };
    version("Current").await;
    let plain = world.rest.get("/apis/ext.example.com/v1").await.json();
    assert_eq!(plain["resources"][0]["name"], "things");
    let v2 = world.document("/openapi/v2", "application/json", "ext.example.com/v1/things").await;
    assert!(v2["definitions"]["Thing"].is_object() && v2["definitions"]["Unused"].is_null());
    assert!(
        v2["paths"]["/apis/ext.example.com/v1/things"].is_object() && v2["paths"]["/api/v1/pods"]["get"].is_object()
    );
    let index = world.document("/openapi/v3", "application/json", "apis/ext.example.com/v1").await;
    let at = index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(world.rest.get(at).await.json()["of"], "things");
    // Then it has trouble: it is still known, as it was, and nobody is passed on.
    *world.broken.lock().unwrap() = true;
    world.rest.api.patch("services", "hook", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    let why = world.until(NAME, "FailedDiscoveryCheck").await;
    let url = "https://hook.default.svc:443/apis/ext.example.com/v1";
    assert_eq!(why, format!("failing or missing response from {url}: bad status from {url}: 500"));
    version("Stale").await;
    let told = world.rest.get("/apis/ext.example.com/v1").await;
    assert_eq!((told.code, told.text()), (503, "service unavailable\n".to_owned()));
    // The core group and our own are as they were.
    assert_eq!(world.rest.get("/apis/apps/v1").await.code, 200);
    world.rest.api.delete("apiservices", NAME, Options::default()).await.unwrap();
    assert_eq!(world.rest.get("/apis/ext.example.com/v1").await.code, 404);
    assert!(!world.rest.get("/apis").await.text().contains(GROUP));
}

#[tokio::test]
async fn a_version_of_ours_is_somebody_elses_for_as_long_as_he_says_so() {
    let world = World::new().await;
    world.serve().await;
    let ours = async || world.rest.get("/apis/metrics.k8s.io/v1beta1").await;
    assert_eq!(ours().await.json()["resources"][0]["kind"], "NodeMetrics");
    world.register(json!({"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1"}})).await;
    // At once, before anybody has looked whether it is there.
    assert_eq!(ours().await.code, 503);
    let why = world.until("v1beta1.metrics.k8s.io", "FailedDiscoveryCheck").await;
    assert!(why.ends_with(": 404"), "{why}");
    world.rest.api.delete("apiservices", "v1beta1.metrics.k8s.io", Options::default()).await.unwrap();
    assert_eq!(ours().await.json()["resources"][0]["kind"], "NodeMetrics");
    // Nobody else is asked about APIServices: who could not delete them again would be shut out.
    world
        .register(
            json!({"metadata": {"name": "v1.apiregistration.k8s.io"}, "spec": {"group": "apiregistration.k8s.io"}}),
        )
        .await;
    assert_eq!(world.rest.get("/apis/apiregistration.k8s.io/v1/apiservices").await.code, 200);
    let local = world.rest.api.get("apiservices", "v1.apps").await.unwrap();
    assert_eq!(local.label("kube-aggregator.kubernetes.io/automanaged"), Some("onstart"));
    world.rest.api.delete("apiservices", "v1.apps", Options::default()).await.unwrap();
    assert_eq!(world.rest.get("/apis/apps/v1").await.code, 200);
    for _ in 0..600 {
        if world.rest.api.get("apiservices", "v1.apps").await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("v1.apps is not made again");
}

#[tokio::test]
async fn a_certificate_that_the_bundle_does_not_vouch_for_is_no_answer() {
    let world = World::new().await;
    world.serve().await;
    let other = rcgen::generate_simple_self_signed(["hook.default.svc".to_owned()]).unwrap();
    world.register(json!({"spec": {"caBundle": STANDARD.encode(other.cert.pem())}})).await;
    let why = world.until(NAME, "FailedDiscoveryCheck").await;
    assert!(why.contains("certificate"), "{why}");
    assert!(world.heard.lock().unwrap().is_empty(), "nothing was asked by such a connection");
    let insecure = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    world.rest.api.patch("apiservices", NAME, insecure).await.unwrap();
    world.until(NAME, "Passed").await;
}

/// An extension server that switches to whatever is asked for, and then sends back what it is sent.
async fn echo() -> (u16, tokio::task::JoinHandle<()>) {
    let made = rcgen::generate_simple_self_signed(["hook.default.svc".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let head = head(&mut stream).await;
                let switches = head.to_ascii_lowercase().contains("upgrade: echo");
                let told = match switches {
                    true => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
                    false => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
                };
                stream.write_all(told.as_bytes()).await.unwrap();
                let (mut from, mut to) = tokio::io::split(stream);
                if switches {
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                }
                let _ = to.shutdown().await;
            });
        }
    });
    (port, task)
}

/// The head of a message, to the empty line behind it.
async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn a_connection_that_has_been_switched_ends_with_the_right_to_it() {
    let world = World::with(SessionLimits { of_user_with_object: 1, ..SessionLimits::default() }).await;
    let (port, echoing) = echo().await;
    world.port.store(port, Ordering::Relaxed);
    world.serve().await;
    world.register(json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}})).await;
    world.until(NAME, "Passed").await;
    world.let_ann().await;
    let face = world.rest.face.clone();
    let (mut client, ours) = tokio::io::duplex(4096);
    let serving = tokio::spawn(async move {
        let answer = hyper::service::service_fn(move |request| {
            let face = face.clone();
            async move { Ok::<_, std::convert::Infallible>(face.answer(&somebody("ann"), boxed(request)).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        let io = hyper_util::rt::TokioIo::new(ours);
        connection.serve_connection(io, answer).with_upgrades().await.unwrap();
    });
    let asked = format!("GET {THINGS}/one HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    client.write_all(asked.as_bytes()).await.unwrap();
    let told = head(&mut client).await;
    assert!(told.starts_with("HTTP/1.1 101"), "{told}");
    // While he may, it goes on, however often he is asked about.
    for _ in 0..3 {
        client.write_all(b"a").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'a');
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // It counts as a session for as long as it is open.
    let another = world.rest.ask_as(&somebody("ann"), &format!("GET {THINGS}/two"), &[], "").await;
    assert_eq!(another.code, 429, "{}", another.text());
    world.rest.api.delete("clusterrolebindings", "things", Options::default()).await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "it goes on without the right to it");
    serving.await.unwrap();
    echoing.abort();
}
