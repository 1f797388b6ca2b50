//! Joining by TLS: a node asks for its certificate with a token, and for the next one with the one it has.

use std::net::Ipv4Addr;

use base64::Engine;
use jiff::{SignedDuration, Timestamp};
use podwright::api::{Env, Object, Request, User, Verb};
use podwright::client::join::{Joining, Membership};
use podwright::server::listen::{Tls, bind, serve};
use podwright::server::pki::{Names, Pki};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::json;
use tokio::net::TcpListener;

use super::Api;

/// A server that is reached by TLS, with a token that nodes join by.
struct Cluster {
    dir: tempfile::TempDir,
    pki: Pki,
    api: Api,
    url: String,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Cluster {
    /// Its own certificates are of the time `now`, whatever its clock says.
    async fn start(env: Env, now: Timestamp) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(&dir.path().join("pki"), &Names::new("cluster.local", None, []), now).unwrap();
        let config = Config { authority: Some(pki.signer()), ..Config::default() };
        let server = Server::open(std::sync::Arc::new(Memory::new()), env, config).await.unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let tls = Tls::new(listener, pki.server_config().unwrap());
        let socket = bind(&dir.path().join("api.sock")).unwrap();
        let serving = tokio::spawn(serve(server.clone(), socket, Some(tls), std::future::pending()));
        let api = Api(server);
        api.bootstrap_token("abcdef").await;
        Cluster { dir, pki, api, url, serving }
    }
}

/// The user that a member is to the server, if it is let in.
async fn who(member: &Membership) -> Option<String> {
    let review = Request {
        verb: Verb::Create,
        resource: "selfsubjectreviews.authentication.k8s.io".into(),
        body: Some(json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})),
        ..Request::default()
    };
    let told = super::object_of(member.client().call(review).await.ok()?);
    told.0["status"]["userInfo"]["username"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_by_a_token_and_renews_by_its_certificate() {
    let now = Timestamp::now();
    let Cluster { dir, pki, api, url, serving } = &Cluster::start(Env::system(), now).await;

    let joining = |ca: bool, token: Option<&str>| Joining {
        folder: dir.path().join("agent"),
        node: "n1".into(),
        url: url.clone(),
        ca: ca.then(|| pki.authority().to_owned()),
        token: token.map(str::to_owned),
    };
    let open =
        async |ca, token| Membership::open(joining(ca, token), Env::system()).await.map_err(|e| format!("{e:#}"));
    for (ca, token, why) in [
        (false, Some("abcdef.0123456789abcdef"), "--ca-hash or --ca-file is needed"),
        (true, None, "--token-file is needed"),
        (true, Some("abcdef.fedcba9876543210"), "joining: "),
    ] {
        let error = open(ca, token).await.err().unwrap_or_else(|| panic!("joined in spite of: {why}"));
        assert!(error.contains(why), "{error}");
    }
    let stranger = tempfile::tempdir().unwrap();
    let other = Pki::open(stranger.path(), &Names::default(), now).unwrap();
    let fooled = Joining { ca: Some(other.authority().to_owned()), ..joining(true, Some("abcdef.0123456789abcdef")) };
    let error = Membership::open(fooled, Env::system()).await.err().unwrap();
    assert!(format!("{error:#}").contains("certificate"), "the token goes to no server of another CA: {error:#}");
    // Nothing of that is trusted by the next one, nor what one has left that died on the way.
    let files = || std::fs::read_dir(dir.path().join("agent")).unwrap().count();
    assert_eq!(files(), 0);
    std::fs::write(dir.path().join("agent/ca.crt"), other.authority()).unwrap();
    let error = open(false, Some("abcdef.0123456789abcdef")).await.err().unwrap();
    assert!(error.contains("--ca-hash or --ca-file is needed"), "{error}");

    let member = open(true, Some("abcdef.0123456789abcdef")).await.unwrap();
    assert_eq!(who(&member).await.as_deref(), Some("system:node:n1"));
    // With the token one may become another node; not one that there is.
    api.create("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).await.unwrap();
    let ask = async |name: &str, metadata: serde_json::Value| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{name}"));
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let csr = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": metadata,
            "spec": {
                "request": base64::engine::general_purpose::STANDARD.encode(pem),
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth", "digital signature"],
            },
        });
        let user = User::new("system:bootstrap:abcdef", ["system:bootstrappers", "system:authenticated"]);
        let asked = super::request(
            Verb::Create,
            "certificatesigningrequests.certificates.k8s.io",
            "",
            Some(csr),
            Default::default(),
        );
        let made = api.0.handle(Request { user, namespace: None, ..asked }).await.map(super::object_of);
        made.unwrap().name().to_owned()
    };
    let ask_for = async |name: &str| ask(name, json!({"generateName": "csr-"})).await;
    // One that cannot be left to an administrator, as it has no room for saying so, keeps no other waiting.
    let room = 256 * 1024 - "full".len();
    ask("n1", json!({"name": "a-full-one", "annotations": {"full": "x".repeat(room)}})).await;
    let now_of = async |name: &str| api.get("certificatesigningrequests.certificates.k8s.io", name).await.unwrap();
    const WAITS: &str = "podwright/waits-for-approval";
    // Of a name that is to come there is one certificate, also when the request for it is gone.
    let first = ask_for("n3").await;
    while now_of(&first).await.0["status"]["certificate"].is_null() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    api.delete("certificatesigningrequests.certificates.k8s.io", &first, Default::default()).await.unwrap();
    let told = async |name: &str| {
        while now_of(name).await.annotation(WAITS).is_none() {
            assert!(now_of(name).await.0["status"]["conditions"].is_null(), "{name} is approved");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        now_of(name).await.annotation(WAITS).unwrap().to_owned()
    };
    assert!(
        told(&ask_for("n3").await)
            .await
            .starts_with("a certificate was signed for the node \"n3\", which has not come yet")
    );
    // Once the Node has come, that is what counts; and once it is gone, its name is free.
    api.create("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}})).await.unwrap();
    assert!(told(&ask_for("n3").await).await.starts_with("there is a Node \"n3\""));
    api.delete("nodes", "n3", Default::default()).await.unwrap();
    let again = ask_for("n3").await;
    while now_of(&again).await.0["status"]["certificate"].is_null() {
        assert_eq!(now_of(&again).await.annotation(WAITS), None);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (taken, invalid, free) = (ask_for("n1").await, ask_for("Not_A.name").await, ask_for("n2").await);
    // They are looked at in this order.
    while now_of(&free).await.0["status"]["certificate"].is_null() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for name in [&taken, &invalid] {
        assert!(now_of(name).await.0["status"]["conditions"].is_null(), "{name} is left to an administrator");
    }
    // He may approve the first; the other is nobody's.
    for (name, outcome) in [(&taken, "Approved"), (&invalid, "Failed")] {
        let mut csr = now_of(name).await;
        csr.0["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "Manual"}]);
        api.sub(Verb::Update, "certificatesigningrequests.certificates.k8s.io", name, "approval", csr.0).await.unwrap();
        let last = async || now_of(name).await;
        let is_done =
            |csr: &Object| !csr.0["status"]["certificate"].is_null() || csr.0["status"]["conditions"][1].is_object();
        while !is_done(&last().await) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let status = last().await.0["status"].clone();
        let conditions = status["conditions"].as_array().unwrap();
        assert_eq!(conditions.last().unwrap()["type"], outcome, "{status}");
        assert_eq!(status["certificate"].is_string(), outcome == "Approved");
    }
    let file = dir.path().join("agent/client.crt");
    let [key, next] = ["client.key", "client.key.next"].map(|name| dir.path().join("agent").join(name));
    let (first, first_key) = (std::fs::read_to_string(&file).unwrap(), std::fs::read_to_string(&key).unwrap());
    assert!(!member.renew(now + SignedDuration::from_hours(24), 0).await.unwrap(), "it lasts");
    assert!(!member.renew(now + SignedDuration::from_hours(250 * 24), 1000).await.unwrap(), "not before 70 %");
    api.0
        .handle(Request {
            namespace: Some("kube-system".into()),
            ..super::request(Verb::Delete, "secrets", "bootstrap-token-abcdef", None, Default::default())
        })
        .await
        .unwrap();
    assert!(member.renew(now + SignedDuration::from_hours(330 * 24), 1000).await.unwrap(), "after 90 %");
    assert_ne!(std::fs::read_to_string(&file).unwrap(), first);
    assert_eq!(who(&member).await.as_deref(), Some("system:node:n1"), "the new certificate is shown");
    // Without its files it could not come back: what somebody takes away is written again.
    std::fs::remove_file(&key).unwrap();
    std::fs::write(&file, &first).unwrap();
    assert_eq!(member.mend().unwrap(), ["client.key", "client.crt"]);
    assert_eq!(member.mend().unwrap(), [""; 0]);
    drop(member);
    // The next process needs neither token nor CA.
    assert_eq!(who(&open(false, None).await.unwrap()).await.as_deref(), Some("system:node:n1"));
    // Nor does one whose predecessor died before the certificate was written that belongs to the next key, or after that.
    std::fs::write(&next, &first_key).unwrap();
    assert_eq!(who(&open(false, None).await.unwrap()).await.as_deref(), Some("system:node:n1"));
    std::fs::rename(&key, &next).unwrap();
    std::fs::write(&key, &first_key).unwrap();
    assert_eq!(who(&open(false, None).await.unwrap()).await.as_deref(), Some("system:node:n1"));
    assert!(!next.exists(), "the key is in its place");
    serving.abort();
}

/// A certificate that the server does not take, as its clock was wrong when it signed it, or as the node was away for too long: by its
/// token the node comes back, where an administrator lets it. The clock of the node is a simulated one, and the server's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_certificate_is_of_another_time_comes_back_by_its_token() {
    let real = Timestamp::now();
    let years = |n: i64| SignedDuration::from_hours(n * 366 * 24);
    let env = Env::simulated(real, 1);
    let Cluster { dir, pki, api, url, serving } = &Cluster::start(env.clone(), real).await;
    let joining = |token: Option<&str>| Joining {
        folder: dir.path().join("agent"),
        node: "n1".into(),
        url: url.clone(),
        ca: Some(pki.authority().to_owned()),
        token: token.map(str::to_owned),
    };
    let shown = || {
        let certificate = std::fs::read_to_string(dir.path().join("agent/client.crt")).unwrap();
        podwright::server::pki::Pair { certificate, key: String::new() }.validity().unwrap()
    };
    let works = async |member: &Membership| who(member).await.is_some();
    let token = Some("abcdef.0123456789abcdef");
    // Clocks five years ahead (the handshake goes by the real one): what is signed then has not begun.
    env.set_clock(years(5));
    let member = Membership::open(joining(token), env.clone()).await.unwrap();
    assert!(shown().0 > real && !works(&member).await);
    env.set_clock(years(-5));
    // As long as there is no Node, a name that was given is not given again without an administrator.
    let approve = async || loop {
        let csrs = "certificatesigningrequests.certificates.k8s.io";
        let all = super::request(Verb::List, csrs, "", None, Default::default());
        if let podwright::api::request::Body::List(list) =
            api.0.handle(Request { namespace: None, ..all }).await.unwrap().body
        {
            for mut csr in list.items.iter().map(|item| Object::from_slice(item).unwrap()) {
                if csr.annotation("podwright/waits-for-approval").is_some() && csr.at("status.conditions").is_none() {
                    let approved = json!([{"type": "Approved", "status": "True", "reason": "Manual"}]);
                    csr.0["status"]["conditions"] = approved;
                    let name = csr.name().to_owned();
                    api.sub(Verb::Update, csrs, &name, "approval", csr.0).await.ok();
                }
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let come_back = async |member: &Membership, now: Timestamp| {
        tokio::select! {
            renewed = member.renew(now, 0) => renewed.map_err(|why| format!("{why:#}")),
            () = approve() => unreachable!(),
        }
    };
    assert_eq!(come_back(&member, real).await, Ok(true));
    assert!(shown().0 <= real && works(&member).await, "it is renewed, now that the clock is right");
    assert_eq!(come_back(&member, real).await, Ok(false), "and lasts");
    drop(member);

    // One that has ended, with a token and without.
    env.set_clock(years(-3));
    std::fs::remove_dir_all(dir.path().join("agent")).unwrap();
    let opened = Membership::open(joining(token), env.clone());
    let member = tokio::select! {
        member = opened => member.unwrap(),
        () = approve() => unreachable!(),
    };
    assert!(shown().1 < real && !works(&member).await);
    env.set_clock(years(3));
    let refused = Membership::open(joining(None), env.clone()).await.err().map(|why| format!("{why:#}")).unwrap();
    assert!(refused.contains("--token-file is needed") && refused.contains("certificate approve"), "{refused}");
    assert_eq!(come_back(&member, real).await, Ok(true), "while it runs");
    assert!(works(&member).await);
    serving.abort();
}

/// A group that is left out by who reads it, and is signed all the same.
#[tokio::test]
async fn a_subject_that_not_all_read_alike_is_refused() {
    use rcgen::string::BmpString;
    use rcgen::{DistinguishedName, DnType, DnValue};
    let api = Api::new().await;
    let group = |value: DnValue| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "eve");
        params.distinguished_name.push(DnType::OrganizationName, value);
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"generateName": "csr-"},
            "spec": {
                "request": base64::engine::general_purpose::STANDARD.encode(pem),
                "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"],
            },
        })
    };
    let csrs = "certificatesigningrequests.certificates.k8s.io";
    let masters = "system:masters";
    for (value, why) in [
        (DnValue::BmpString(BmpString::try_from(masters).unwrap()), "UTF8String, PrintableString and IA5String alone"),
        (DnValue::Utf8String(masters.into()), "system:masters group is not allowed"),
        (DnValue::Utf8String("team".into()), ""),
    ] {
        let answer = api.create(csrs, group(value.clone())).await;
        match why {
            "" => drop(answer.unwrap()),
            why => {
                let refused = answer.unwrap_err();
                assert!(refused.code == 403 && refused.message.contains(why), "{value:?}: {refused}");
            }
        }
    }
}
