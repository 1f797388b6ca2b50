//! Projected tokens under a clock of the test's own: kept while they are young, renewed at 80 % of their life.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};
use podwright::{
    api::Env,
    client::{Client, local},
    node::volumes::Tokens,
    server::{Config, Server},
    store::Memory,
};
use serde_json::{Value, json};

use super::at;

fn claims(token: &str) -> Value {
    let body = token.split('.').nth(1).expect("a token has three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap()
}

async fn pod(client: &Client) -> Pod {
    let spec = json!({ "containers": [{ "name": "a", "image": "i:1" }] });
    let object = json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": spec });
    client.create(&serde_json::from_value::<Pod>(object).unwrap()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_before_it_ends() {
    let env = Env::simulated(at(0), 1);
    let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
    let client = local::client(server.clone(), "kubelet");
    let pod = pod(&client).await;
    let tokens = Tokens::new(client.clone(), env.clone());
    let wanted = ServiceAccountTokenProjection {
        audience: Some("vault".into()),
        expiration_seconds: Some(600),
        path: "token".into(),
    };
    let uid = pod.metadata.uid.clone().unwrap();
    let first = tokens.get(&pod, &wanted).await.unwrap();
    let found = claims(&first);
    assert_eq!((&found["aud"][0], &found["kubernetes.io"]["pod"]["uid"]), (&json!("vault"), &json!(uid)));
    let (issued, ends) = (found["iat"].as_i64().unwrap(), found["exp"].as_i64().unwrap());
    assert_eq!((issued, ends), (at(0).as_second(), at(600).as_second()));

    tokio::time::advance(Duration::from_secs(470)).await;
    assert_eq!(tokens.get(&pod, &wanted).await.unwrap(), first, "young");
    assert!(tokens.stale().is_empty());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(tokens.stale().into_iter().collect::<Vec<_>>(), [uid], "the Pod's volumes are to be refreshed");
    let second = tokens.get(&pod, &wanted).await.unwrap();
    assert_eq!(claims(&second)["exp"], at(481 + 600).as_second());
    assert!(tokens.stale().is_empty());
    server.verify_token(&second, "vault").await.unwrap();

    // While no new one can be had, the old one serves until its end, and no longer.
    client.delete::<Pod>(Some("default"), "web", None, podwright::api::Options::default()).await.unwrap();
    tokio::time::advance(Duration::from_secs(500)).await;
    assert_eq!(tokens.get(&pod, &wanted).await.unwrap(), second);
    tokio::time::advance(Duration::from_secs(101)).await;
    let why = tokens.get(&pod, &wanted).await.unwrap_err().to_string();
    assert!(why.starts_with("failed to fetch token: "), "{why}");
    tokens.forget(pod.metadata.uid.as_deref().unwrap());
    assert!(tokens.stale().is_empty());
}
