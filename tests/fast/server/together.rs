//! What holds of several objects together, also of those that are written at one moment.

use base64::Engine;
use futures::future::join_all;
use podwright::api::request::PatchType;
use podwright::api::{Object, Options, Request, Response, Status, User, Verb};
use podwright::server::Config;
use serde_json::{Value, json};

use super::nodes::node;
use super::{Api, mirror, object_of, request};

const CSRS: &str = "certificatesigningrequests.certificates.k8s.io";
const WAITS: &str = "podwright/waits-for-approval";

async fn as_user(api: &Api, user: User, request: Request) -> Result<Response, Status> {
    api.0.handle(Request { user, ..request }).await
}

async fn with_nodes(names: &[&str]) -> (Api, Vec<Object>) {
    let api = Api::new().await;
    let mut nodes = Vec::new();
    for name in names {
        let made = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        nodes.push(api.create("nodes", made).await.unwrap());
    }
    (api, nodes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_two_nodes_report_at_once_is_one_nodes() {
    let (api, _) = with_nodes(&["n1", "n2"]).await;
    let report = async |name: &str, address: &str| {
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let asked = request(Verb::Patch, "nodes", name, Some(status), options);
        as_user(&api, node(name), Request { subresource: Some("status".into()), ..asked }).await
    };
    for n in 1..100 {
        let address = format!("198.51.100.{n}");
        let (one, other) = tokio::join!(report("n1", &address), report("n2", &address));
        let refused = [one, other].into_iter().filter_map(Result::err).map(|why| (why.code, why.message));
        let refused: Vec<(u16, String)> = refused.collect();
        assert!(
            matches!(refused.as_slice(), [(403, why)] if why.contains(&format!("cannot report the address \"{address}\""))),
            "{n}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn a_node_has_mirror_pods_for_what_it_has_room_for() {
    let (api, nodes) = with_nodes(&["n1", "n2"]).await;
    let room = async |pods: &str| {
        let status = json!({"status": {"capacity": {"pods": pods}}});
        api.sub(Verb::Patch, "nodes", "n1", "status", status).await.unwrap();
    };
    let make = async |name: &str, of: &Object, text: usize| {
        let mut pod = mirror(name, of);
        pod["metadata"]["annotations"]["text"] = "x".repeat(text).into();
        as_user(&api, node(of.name()), request(Verb::Create, "pods", "", Some(pod), Options::default())).await
    };
    room("2").await;
    let names: Vec<String> = (0..12).map(|n| format!("m{n}")).collect();
    let made = join_all(names.iter().map(|name| make(name, &nodes[0], 0))).await;
    let refused: Vec<Status> = made.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 4, "8 of 12 are made");
    for why in &refused {
        let told = "node \"n1\" has 8 mirror pods already; it may have 8";
        assert!(why.code == 403 && why.message.ends_with(told), "{why}");
    }
    make("of-another", &nodes[1], 0).await.unwrap();
    // What it says of its room is its word.
    room("1000000000").await;
    let mut why = None;
    for n in 0..1000 {
        if let Err(refused) = make(&format!("large{n}"), &nodes[0], 250_000).await {
            why = Some((n, refused.message));
            break;
        }
    }
    let (n, why) = why.unwrap();
    assert!((100..140).contains(&n) && why.contains("the mirror pods of node \"n1\" would have"), "{n}: {why}");
}

#[tokio::test]
async fn a_mirror_goes_at_once() {
    let (api, nodes) = with_nodes(&["n1"]).await;
    for (n, grace) in [None, Some(30)].into_iter().enumerate() {
        let name = format!("m{n}");
        let made = request(Verb::Create, "pods", "", Some(mirror(&name, &nodes[0])), Options::default());
        as_user(&api, node("n1"), made).await.unwrap();
        api.delete("pods", &name, Options { grace_period_seconds: grace, ..Options::default() }).await.unwrap();
        assert_eq!(api.get("pods", &name).await.unwrap_err().code, 404, "nobody has to say that it has ended");
    }
}

fn bootstrapper() -> User {
    User::new("system:bootstrap:abcdef", ["system:bootstrappers", "system:authenticated"])
}

fn pem(node: &str) -> String {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{node}"));
    params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

fn csr(signer: &str, pem: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"generateName": "csr-"},
        "spec": {
            "request": base64::engine::general_purpose::STANDARD.encode(pem), "signerName": signer,
            "usages": ["client auth", "digital signature"],
        },
    })
}

async fn ask(api: &Api, csr: Value) -> Result<Object, Status> {
    let asked = request(Verb::Create, CSRS, "", Some(csr), Options::default());
    as_user(api, bootstrapper(), asked).await.map(object_of)
}

#[tokio::test]
async fn who_asks_for_certificates_has_a_hundred_that_wait() {
    let api = Api::new().await;
    let plain = csr("example.com/other", &pem("n"));
    let made = join_all((0..103).map(|_| ask(&api, plain.clone()))).await;
    let refused: Vec<Status> = made.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 3);
    for why in &refused {
        assert!(
            why.code == 429 && why.message.starts_with("100 requests of \"system:bootstrap:abcdef\" wait"),
            "{why}"
        );
    }
    // Neither the superuser nor anyone else waits for them; nor does he, once some are settled.
    api.create(CSRS, plain.clone()).await.unwrap();
    let other = request(Verb::Create, CSRS, "", Some(plain.clone()), Options::default());
    let other = as_user(&api, User { name: "system:bootstrap:ghijkl".into(), ..bootstrapper() }, other).await;
    other.unwrap();
    let first = &api.list(CSRS, Options::default()).await.unwrap().items[0];
    let mut denied = Object::from_slice(first).unwrap();
    denied.0["status"]["conditions"] = json!([{"type": "Denied", "status": "True", "reason": "No"}]);
    let name = denied.name().to_owned();
    api.sub(Verb::Update, CSRS, &name, "approval", denied.0).await.unwrap();
    ask(&api, plain.clone()).await.unwrap();
    assert_eq!(ask(&api, plain).await.unwrap_err().code, 429);
}

#[tokio::test]
async fn a_request_for_a_certificate_is_small_and_gives_no_reasons() {
    let api = Api::new().await;
    let one = pem("n");
    for (text, why) in [
        (one.clone() + &"x".repeat(100), "must have nothing behind the certificate request"),
        (one.clone() + &"\n".repeat(70_000), "must not have more than 65536 bytes"),
    ] {
        let refused = ask(&api, csr("example.com/other", &text)).await.unwrap_err();
        assert!(refused.code == 422 && refused.message.contains(why) && refused.message.len() < 1000, "{refused}");
    }
    let mut csr = csr("example.com/other", &one);
    csr["metadata"]["annotations"] = json!({WAITS: "safe, approve", "own": "word"});
    let made = ask(&api, csr).await.unwrap();
    assert_eq!((made.annotation(WAITS), made.annotation("own")), (None, Some("word")));
    let said = json!({"metadata": {"annotations": {WAITS: "safe, approve"}}});
    let patched = api.patch(CSRS, made.name(), said).await.unwrap();
    assert_eq!(patched.annotation(WAITS), None);
}

/// Who may join takes names of nodes to come; not all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_nodes_to_come_are_taken_in_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let names = podwright::server::pki::Names::new("cluster.local", None, []);
    let pki = podwright::server::pki::Pki::open(dir.path(), &names, jiff::Timestamp::now()).unwrap();
    let api = Api::with(Config { authority: Some(pki.signer()), ..Config::default() }).await;
    api.bootstrap_token("abcdef").await;
    let node_csr = |name: &str| csr("kubernetes.io/kube-apiserver-client-kubelet", &pem(name));
    let settled = async |name: &str| {
        loop {
            let now = api.get(CSRS, name).await.unwrap();
            if now.at("status.certificate").is_some() || now.annotation(WAITS).is_some() {
                return now;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    for n in 0..100 {
        let made = ask(&api, node_csr(&format!("n{n}"))).await.unwrap();
        assert!(settled(made.name()).await.annotation(WAITS).is_none(), "{n}");
    }
    let made = ask(&api, node_csr("n100")).await.unwrap();
    let told = settled(made.name()).await;
    let why = told.annotation(WAITS).unwrap();
    assert!(why.starts_with("certificates of 100 nodes that have not come yet were signed for"), "{why}");
    // A Node comes, and there is room for one more: the one that waits.
    api.create("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}})).await.unwrap();
    while api.get(CSRS, made.name()).await.unwrap().at("status.certificate").is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let made = ask(&api, node_csr("n101")).await.unwrap();
    assert!(settled(made.name()).await.annotation(WAITS).is_some());
}
