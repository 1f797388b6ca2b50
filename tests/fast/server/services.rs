//! Services: ClusterIPs and NodePorts that are handed out once, kept, and given back.

use std::collections::HashSet;
use std::sync::Arc;

use podwright::api::{Env, Options, Request, Verb, kinds};
use podwright::server::{Config, Server};
use podwright::store::{Memory, Range, Store, Txn, Write};
use serde_json::{Value, json};

use super::{Api, request, service};

fn small() -> Config {
    Config { service_cidrs: vec!["10.96.0.0/28".parse().unwrap()], node_ports: 30000..=30003, ..Config::default() }
}

async fn allocations(store: &Memory) -> Vec<String> {
    let range = Range { prefix: "/registry/ranges/".into(), ..Range::default() };
    store.list(range).await.unwrap().entries.into_iter().map(|entry| entry.key.to_string()).collect()
}

#[tokio::test]
async fn addresses_and_ports_are_chosen_kept_and_freed() {
    let store = Arc::new(Memory::new());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    let before = allocations(&store).await;
    let made = api.create("services", service("a", json!({"type": "NodePort"}))).await.unwrap();
    let ip = made.0["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(ip.starts_with("10.96."), "{ip}");
    assert_eq!(made.0["spec"]["clusterIPs"], json!([ip]));
    assert_eq!(made.0["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(made.0["spec"]["ipFamilyPolicy"], "SingleStack");
    let port = made.0["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
    assert_eq!(allocations(&store).await.len(), before.len() + 2);

    // A manifest without what was allocated changes nothing of it.
    let kept = api
        .update("services", &podwright::api::Object(service("a", json!({"type": "NodePort", "selector": {"a": "b"}}))))
        .await
        .unwrap();
    assert_eq!(
        (&kept.0["spec"]["clusterIP"], &kept.0["spec"]["ports"]),
        (&made.0["spec"]["clusterIP"], &made.0["spec"]["ports"])
    );
    let plain = api.patch("services", "a", json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
    assert!(plain.0["spec"]["ports"][0]["nodePort"].is_null(), "{}", plain.0["spec"]);
    assert_eq!(allocations(&store).await.len(), before.len() + 1);
    api.delete("services", "a", Options::default()).await.unwrap();
    assert_eq!(allocations(&store).await, before);
}

#[tokio::test]
async fn what_is_asked_for_must_be_free_and_in_range() {
    let api = Api::new().await;
    api.create(
        "services",
        service("a", json!({"clusterIP": "10.96.7.7", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]})),
    )
    .await
    .unwrap();
    for (spec, why) in [
        (
            json!({"clusterIP": "10.96.7.7"}),
            "spec.clusterIPs: Invalid value: [\"10.96.7.7\"]: failed to allocate IP 10.96.7.7: provided IP is already allocated",
        ),
        (
            json!({"clusterIP": "10.97.0.1"}),
            "the provided IP (10.97.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16",
        ),
        (
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}),
            "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated",
        ),
        (
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
            "provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
    ] {
        let refused = api.create("services", service("b", spec)).await.unwrap_err();
        assert!(refused.code == 422 && refused.message.contains(why), "{refused}");
    }
    let taken = api.create("services", service("a", json!({"clusterIP": "10.96.7.7"}))).await.unwrap_err();
    assert!(taken.is_already_exists(), "{taken}");
    let headless = api.create("services", service("h", json!({"clusterIP": "None"}))).await.unwrap();
    assert_eq!(headless.0["spec"]["clusterIPs"], json!(["None"]));
    let dns =
        json!({"type": "NodePort", "ports": [{"name": "u", "port": 53, "protocol": "UDP"}, {"name": "t", "port": 53}]});
    let dns = api.create("services", service("dns", dns)).await.unwrap();
    assert_eq!(dns.0["spec"]["ports"][0]["nodePort"], dns.0["spec"]["ports"][1]["nodePort"]);
}

#[tokio::test]
async fn a_small_range_is_used_up_without_handing_out_twice() {
    let store = Arc::new(Memory::new());
    let api = Arc::new(Api(Server::open(store.clone(), Env::system(), small()).await.unwrap()));
    // 14 addresses, of which `kubernetes` has .1 and `kube-dns` .10.
    let creators = (0..40).map(|i| {
        let api = api.clone();
        tokio::spawn(async move { api.create("services", service(&format!("s{i}"), json!({}))).await })
    });
    let (mut given, mut refused) = (HashSet::new(), 0);
    for creator in creators.collect::<Vec<_>>() {
        match creator.await.unwrap() {
            Ok(made) => assert!(given.insert(made.0["spec"]["clusterIP"].as_str().unwrap().to_owned())),
            Err(why) => {
                assert!(why.message.contains("failed to allocate a serviceIP: range is full"), "{why}");
                refused += 1;
            }
        }
    }
    assert_eq!((given.len(), refused), (12, 28));
    assert_eq!(allocations(&store).await.len(), 14);
    let everything = request(Verb::DeleteCollection, "services", "", None, Options::default());
    api.0.handle(everything).await.unwrap();
    assert_eq!(allocations(&store).await, ["/registry/ranges/serviceips/10.96.0.10"], "only kube-dns is left");
}

/// Whoever had them would answer the questions of all Pods, and take what they send to the API.
#[tokio::test]
async fn addresses_of_the_api_and_of_dns_are_kept_while_nobody_has_them() {
    let store = Arc::new(Memory::new());
    let config = || Config { cluster_dns: vec!["10.96.0.12".parse().unwrap()], ..small() };
    let open = || async { Server::open(store.clone(), Env::system(), config()).await.map(Api) };
    let api = open().await.unwrap();
    for (namespace, name) in [("default", "kubernetes"), ("kube-system", "kube-dns")] {
        let gone = Request {
            namespace: Some(namespace.into()),
            ..request(Verb::Delete, "services", name, None, Options::default())
        };
        api.0.handle(gone).await.unwrap();
    }
    let at = |namespace: &str, name: &str, ip: &str| {
        let mut wanted = service(name, json!({"clusterIP": ip}));
        wanted["metadata"]["namespace"] = namespace.into();
        wanted
    };
    for ip in ["10.96.0.1", "10.96.0.10", "10.96.0.12"] {
        let refused = api.create("services", at("default", "thief", ip)).await.unwrap_err();
        let why = format!(
            "spec.clusterIPs: Invalid value: [\"{ip}\"]: failed to allocate IP {ip}: provided IP is already allocated"
        );
        assert!(refused.code == 422 && refused.message.contains(&why), "{refused}");
    }
    // 14 addresses, of which three are kept.
    for number in 0..14 {
        let made = api.create("services", service(&format!("s{number}"), json!({}))).await;
        match made {
            Ok(_) => assert!(number < 11, "{number}"),
            Err(why) => assert!(number >= 11 && why.message.contains("range is full"), "{why}"),
        }
    }
    // An operator's own DNS has it, whatever its name; the server starts nevertheless.
    api.create("services", at("kube-system", "coredns", "10.96.0.10")).await.unwrap();
    let refused = api.create("services", at("kube-system", "other", "10.96.0.1")).await.unwrap_err();
    assert!(refused.message.contains("provided IP is already allocated"), "{refused}");
    let api = open().await.unwrap();
    assert_eq!(api.get("services", "kubernetes").await.unwrap().0["spec"]["clusterIP"], "10.96.0.1");
}

/// What has an address from before it was kept has it until it is deleted.
#[tokio::test]
async fn a_service_with_a_kept_address_is_updated_as_others() {
    let store = Arc::new(Memory::new());
    let api = Api(Server::open(store.clone(), Env::system(), small()).await.unwrap());
    let wanted = json!({"clusterIP": "10.96.0.12"});
    api.create("services", service("old", wanted.clone())).await.unwrap();
    let config = Config { cluster_dns: vec!["10.96.0.12".parse().unwrap()], ..small() };
    let api = Api(Server::open(store, Env::system(), config).await.unwrap());
    let changed = api.patch("services", "old", json!({"spec": {"selector": {"a": "b"}}})).await.unwrap();
    assert_eq!(
        (&changed.0["spec"]["clusterIP"], &changed.0["spec"]["selector"]["a"]),
        (&json!("10.96.0.12"), &json!("b"))
    );
    api.delete("services", "old", Options::default()).await.unwrap();
    let refused = api.create("services", service("old", wanted)).await.unwrap_err();
    assert!(refused.message.contains("provided IP is already allocated"), "{refused}");
}

/// Nodes answer DNS at the tenth address of each family.
#[tokio::test]
async fn the_address_of_dns_is_kept_in_both_ranges() {
    let service_cidrs = ["10.96.0.0/16", "fd00:96::/112"].map(|range| range.parse().unwrap()).to_vec();
    let config = Config { service_cidrs, ..Config::default() };
    let api = Api(Server::open(Arc::new(Memory::new()), Env::system(), config).await.unwrap());
    let spec = |ip: &str| json!({"clusterIP": ip, "ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"});
    let refused = api.create("services", service("thief", spec("fd00:96::a"))).await.unwrap_err();
    assert!(refused.message.contains("provided IP is already allocated"), "{refused}");
    api.create("services", service("other", spec("fd00:96::b"))).await.unwrap();
}

/// That kube-dns is not there because another has its address is one thing, that it cannot be at all another.
#[tokio::test]
async fn a_range_that_has_no_room_for_dns_is_refused() {
    let config = Config { service_cidrs: vec!["10.96.0.0/29".parse().unwrap()], ..Config::default() };
    let refused = Server::open(Arc::new(Memory::new()), Env::system(), config).await.err().expect("it is refused");
    assert!(refused.to_string().contains("10.96.0.10) is not in the valid range"), "{refused}");
}

#[tokio::test]
async fn aborted_requests_leak_nothing() {
    let store = Arc::new(Memory::new());
    let api = Arc::new(Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap()));
    for round in 0..200 {
        let api = api.clone();
        let name = format!("s{round}");
        let mut call =
            Box::pin(async move { api.create("services", service(&name, json!({"type": "NodePort"}))).await });
        // Polled a few times, then dropped wherever it is, as when a connection or the process dies.
        for _ in 0..round % 5 {
            if futures::poll!(&mut call).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let list = api.ask(Verb::List, "services", "", Options::default()).await.unwrap();
    let podwright::api::request::Body::List(list) = list.body else { panic!("not a list") };
    let services = list.items.iter().map(|item| serde_json::from_slice::<Value>(item).unwrap());
    let held: HashSet<String> = services
        .flat_map(|s| {
            let port =
                s["spec"]["ports"][0]["nodePort"].as_u64().map(|p| format!("/registry/ranges/servicenodeports/{p}"));
            let ip = format!("/registry/ranges/serviceips/{}", s["spec"]["clusterIP"].as_str().unwrap());
            [Some(ip), port].into_iter().flatten()
        })
        .collect();
    let mut kept: HashSet<String> = allocations(&store).await.into_iter().collect();
    kept.remove("/registry/ranges/serviceips/10.96.0.10");
    assert_eq!(kept, held, "what is allocated is what Services hold");
}

#[tokio::test]
async fn two_families_get_an_address_each() {
    let cidrs = vec!["10.96.0.0/16".parse().unwrap(), "fd00:10::/108".parse().unwrap()];
    let api = Api::with(Config { service_cidrs: cidrs, ..Config::default() }).await;
    let both = api.create("services", service("a", json!({"ipFamilyPolicy": "PreferDualStack"}))).await.unwrap();
    assert_eq!(both.0["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let ips: Vec<&str> = both.0["spec"]["clusterIPs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(ips[0].starts_with("10.96.") && ips[1].starts_with("fd00:10::"), "{ips:?}");
    let six = api.create("services", service("b", json!({"ipFamilies": ["IPv6"]}))).await.unwrap();
    assert!(six.0["spec"]["clusterIP"].as_str().unwrap().starts_with("fd00:10::"));
    let single = Api::new().await;
    let refused = single.create("services", service("c", json!({"ipFamilies": ["IPv6"]}))).await.unwrap_err();
    assert!(refused.message.contains("not configured"), "{refused}");
}

#[tokio::test]
async fn an_external_address_of_another_namespace_is_not_to_be_had_port_by_port() {
    let api = Api::new().await;
    let ns = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "thief"}});
    api.create("namespaces", ns).await.unwrap();
    let of = |namespace: &str, name: &str, ip: &str, port: u16| {
        let mut service = service(name, json!({"externalIPs": [ip], "ports": [{"port": port}]}));
        service["metadata"]["namespace"] = namespace.into();
        service
    };
    let ask = async |verb, namespace: &str, name: &str, body: Value| {
        let asked = request(verb, "services", name, Some(body), Options::default());
        api.0.handle(Request { namespace: Some(namespace.into()), ..asked }).await
    };
    let create = async |namespace: &str, body: Value| ask(Verb::Create, namespace, "", body).await;
    // The thief's Service is the older one: it comes to name the address later.
    create("thief", of("thief", "aaa", "198.51.100.8", 80)).await.unwrap();
    create("default", of("default", "web", "198.51.100.7", 80)).await.unwrap();
    // A list has seen what was written before it, and so has what comes after it.
    let seen = async || drop(api.list("services", Options::default()).await.unwrap());
    seen().await;
    let taken = "spec.externalIPs: Invalid value: \"198.51.100.7\": TCP port 80 of it leads to a Service of another namespace \
                 already";
    for (verb, name, body) in [
        (Verb::Create, "", of("thief", "new", "198.51.100.7", 80)),
        (Verb::Update, "aaa", of("thief", "aaa", "198.51.100.7", 80)),
    ] {
        let why = ask(verb, "thief", name, body).await.map(drop).unwrap_err();
        assert!(why.code == 422 && why.message.contains(taken), "{verb:?}: {why}");
    }
    // Another port, and people of one namespace among themselves.
    create("thief", of("thief", "other-port", "198.51.100.7", 81)).await.unwrap();
    create("default", of("default", "again", "198.51.100.7", 80)).await.unwrap();
    // What has it may be written as it is.
    ask(Verb::Update, "default", "web", of("default", "web", "198.51.100.7", 80)).await.unwrap();
    // Once nobody has it any more, it is free.
    for name in ["web", "again"] {
        api.delete("services", name, Options::default()).await.unwrap();
    }
    seen().await;
    create("thief", of("thief", "new", "198.51.100.7", 80)).await.unwrap();
}

/// They would be looked for in all Services of others.
#[tokio::test]
async fn too_many_external_addresses_are_refused_before_anything_is_made_of_them() {
    let api = Api::new().await;
    api.create("services", service("web", json!({}))).await.unwrap();
    let many: Vec<String> = (0..4097).map(|n| format!("203.0.{}.{}", n / 250, n % 250 + 1)).collect();
    let spec = json!({"externalIPs": many});
    let mut web = api.get("services", "web").await.unwrap();
    web.0["spec"]["externalIPs"] = spec["externalIPs"].clone();
    for (how, outcome) in [
        ("create", api.create("services", service("new", spec.clone())).await),
        ("update", api.update("services", &web).await),
        ("patch", api.patch("services", "web", json!({"spec": spec})).await),
    ] {
        let causes = outcome.unwrap_err().details.unwrap().causes;
        // Validation as a whole would name its ways in, too.
        let told: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
        assert_eq!(told, ["Too many: 4097: must have at most 4096 items"], "{how}");
    }
}

/// An IPv6 address is written in many ways, and a load balancer's is in the status: each leads to a Service all the same.
#[tokio::test]
async fn an_external_address_is_the_same_however_and_wherever_it_is_written() {
    let api = Api::new().await;
    let ns = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "thief"}});
    api.create("namespaces", ns).await.unwrap();
    api.create("services", service("six", json!({"externalIPs": ["2001:db8::7"]}))).await.unwrap();
    api.create("services", service("balanced", json!({"type": "LoadBalancer"}))).await.unwrap();
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.9"}]}}});
    api.sub(Verb::Patch, "services", "balanced", "status", status).await.unwrap();
    drop(api.list("services", Options::default()).await.unwrap());
    for address in ["2001:db8::7", "2001:0db8:0::0:7", "198.51.100.9"] {
        let mut body = service("thief", json!({"externalIPs": [address]}));
        body["metadata"]["namespace"] = "thief".into();
        let asked = request(Verb::Create, "services", "", Some(body), Options::default());
        let why = api.0.handle(Request { namespace: Some("thief".into()), ..asked }).await.map(drop).unwrap_err();
        assert!(why.code == 422 && why.message.contains("leads to a Service of another namespace"), "{address}: {why}");
    }
}

/// As it was stored before such a spelling was refused.
#[tokio::test]
async fn an_external_address_that_is_written_as_one_of_ipv6_is_not_to_be_had() {
    let store = Arc::new(Memory::new());
    let open = async || Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    let api = open().await;
    let ns = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "thief"}});
    api.create("namespaces", ns).await.unwrap();
    api.create("services", service("old", json!({"externalIPs": ["203.0.113.50"]}))).await.unwrap();
    let key = kinds::lookup("services").unwrap().key(Some("default"), "old");
    let stored = store.get(&key).await.unwrap().unwrap();
    let text = String::from_utf8(stored.value.to_vec()).unwrap().replace("203.0.113.50", "::FFFF:cb00:7132");
    let writes = vec![Write::Put(key, text.into())];
    store.commit(Txn { writes, ..Txn::default() }).await.unwrap();
    let api = open().await;
    let mut body = service("thief", json!({"externalIPs": ["203.0.113.50"]}));
    body["metadata"]["namespace"] = "thief".into();
    let asked = request(Verb::Create, "services", "", Some(body), Options::default());
    let why = api.0.handle(Request { namespace: Some("thief".into()), ..asked }).await.map(drop).unwrap_err();
    assert!(why.code == 422 && why.message.contains("leads to a Service of another namespace"), "{why}");
}

/// What is given out is named by nobody as his own, in whatever spelling; what he has had, he keeps.
#[tokio::test]
async fn an_address_of_the_pool_is_no_external_ip() {
    let store = Arc::new(Memory::new());
    let open = async |config: Config| Api(Server::open(store.clone(), Env::system(), config).await.unwrap());
    open(Config::default())
        .await
        .create("services", service("old", json!({"externalIPs": ["192.0.2.7"]})))
        .await
        .unwrap();
    let pool = Some("192.0.2.0/24".parse().unwrap());
    let api = open(Config { load_balancer_pool: pool, ..Config::default() }).await;
    for address in ["192.0.2.9", "64:ff9b::c000:209"] {
        let why = api.create("services", service("new", json!({"externalIPs": [address]}))).await.unwrap_err();
        assert!(why.code == 422 && why.message.contains("it is in the pool of load balancer addresses"), "{why}");
    }
    api.create("services", service("new", json!({"externalIPs": ["198.51.100.9"]}))).await.unwrap();
    api.patch("services", "old", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    api.patch("services", "old", json!({"spec": {"externalIPs": ["192.0.2.7", "192.0.2.8"]}})).await.unwrap_err();
}

/// Nobody with the roles of a tenant says where the world's traffic goes.
#[tokio::test]
async fn a_services_status_is_no_tenants_to_write() {
    for role in ["edit", "admin", "view"] {
        let api = Api::new().await;
        let role = api.get("clusterroles.rbac.authorization.k8s.io", role).await.unwrap();
        let rules = role.0["rules"].as_array().unwrap();
        let has = |rule: &&Value, field: &str, what: &[&str]| {
            rule[field].as_array().into_iter().flatten().any(|it| what.iter().any(|what| it == what))
        };
        let writes = rules.iter().find(|rule| {
            has(rule, "resources", &["services/status", "*", "*/status"])
                && has(rule, "verbs", &["create", "update", "patch", "*"])
        });
        assert_eq!(writes, None);
    }
}
