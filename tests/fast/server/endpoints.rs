//! The endpoints of the Service `kubernetes` follow where the server is reached, and are put right.

use std::net::SocketAddr;
use std::time::Duration;

use podwright::api::{Options, Verb};
use podwright::server::{AdvertiseAddress, Config, Server, pki::Authority};
use serde_json::json;

use super::{Api, object_of, request};

/// Waits, by the paused clock, until a field of an object has a value.
async fn settled(api: &Api, resource: &str, pointer: &str, wanted: &serde_json::Value) {
    for _ in 0..100 {
        let found = api.get(resource, "kubernetes").await.map(|o| o.0.pointer(pointer).cloned().unwrap_or_default());
        if found.as_ref() == Ok(wanted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("{resource} {pointer} is not {wanted}: {:?}", api.get(resource, "kubernetes").await);
}

#[tokio::test(start_paused = true)]
async fn the_services_endpoints_are_where_the_server_says() {
    let now = jiff::Timestamp::now();
    let config = Config { authority: Some(Authority::generate(now).unwrap()), ..Config::default() };
    let store = std::sync::Arc::new(podwright::store::Memory::new());
    let api = Api(Server::open(store, podwright::api::Env::simulated(now, 1), config).await.unwrap());
    assert!(api.get("endpoints", "kubernetes").await.unwrap_err().is_not_found(), "nothing before it is told");

    let advertised = |endpoint: Option<&str>| AdvertiseAddress {
        endpoint: endpoint.map(|at| at.parse::<SocketAddr>().unwrap()),
        url: Some("https://192.0.2.1:6443".into()),
    };
    api.0.advertise(advertised(Some("192.0.2.1:6443")));
    let (slices, address) = ("endpointslices", "/endpoints/0/addresses/0");
    settled(&api, slices, address, &json!("192.0.2.1")).await;
    settled(&api, "endpoints", "/subsets/0/ports/0/port", &json!(6443)).await;
    let slice = api.get(slices, "kubernetes").await.unwrap();
    assert_eq!(slice.label("kubernetes.io/service-name"), Some("kubernetes"));
    assert_eq!(slice.0["ports"], json!([{"name": "https", "port": 6443, "protocol": "TCP"}]));
    let mut info = request(Verb::Get, "configmaps", "cluster-info", None, Options::default());
    info.namespace = Some("kube-public".into());
    let info = object_of(api.0.handle(info).await.unwrap());
    assert!(info.0["data"]["kubeconfig"].as_str().unwrap().contains("server: https://192.0.2.1:6443\n"));

    // Changed by somebody: put right. Kept: not written again.
    let changed = api.patch(slices, "kubernetes", json!({"endpoints": [{"addresses": ["192.0.2.66"]}]})).await.unwrap();
    settled(&api, slices, address, &json!("192.0.2.1")).await;
    let right = api.get(slices, "kubernetes").await.unwrap();
    assert_ne!(right.resource_version(), changed.resource_version());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(api.get(slices, "kubernetes").await.unwrap().resource_version(), right.resource_version());

    // It moves, to the other family too; and is reached no more.
    api.0.advertise(advertised(Some("[2001:db8::1]:7443")));
    settled(&api, slices, address, &json!("2001:db8::1")).await;
    settled(&api, slices, "/addressType", &json!("IPv6")).await;
    api.0.advertise(advertised(None));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for resource in [slices, "endpoints"] {
        assert!(api.get(resource, "kubernetes").await.unwrap_err().is_not_found());
    }
}
