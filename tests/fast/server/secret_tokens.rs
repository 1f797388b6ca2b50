//! Tokens that Secrets keep: they end with their Secret, and with their account.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use podwright::api::{Env, Options, Verb};
use podwright::server::{Config, ISSUER, Server};
use podwright::store::Memory;
use serde_json::{Value, json};

use super::{Api, object_of, request};

async fn account(api: &Api, name: &str) {
    let made = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    api.create("serviceaccounts", made).await.unwrap();
}

fn secret(name: &str, account: &str, finalizers: &[&str]) -> Value {
    let annotations = json!({"kubernetes.io/service-account.name": account});
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": name, "finalizers": finalizers, "annotations": annotations},
    })
}

async fn token_of(api: &Api, secret: &str) -> String {
    let made = api.get("secrets", secret).await.unwrap();
    let token = STANDARD.decode(made.0["data"]["token"].as_str().unwrap()).unwrap();
    String::from_utf8(token).unwrap()
}

#[tokio::test]
async fn a_secret_keeps_a_token_for_as_long_as_it_is_there() {
    let api = Api::new().await;
    account(&api, "robot").await;
    let secret = secret("s", "robot", &[]);
    let answered = api.create("secrets", secret.clone()).await.unwrap();
    assert_eq!(answered.at("data"), None, "who may create Secrets may not read them by that");
    let dry = Options { dry_run: true, ..Options::default() };
    let mut another = secret;
    another["metadata"]["name"] = "dry".into();
    let answered = api.0.handle(request(Verb::Create, "secrets", "", Some(another), dry)).await.map(object_of).unwrap();
    assert_eq!(answered.at("data"), None);
    let token = token_of(&api, "s").await;
    assert_eq!(api.0.verify_token(&token, ISSUER).await.unwrap().name, "system:serviceaccount:default:robot");
    assert!(api.0.verify_token(&token, "elsewhere").await.is_err());
    api.delete("secrets", "s", Options::default()).await.unwrap();
    assert_eq!(api.0.verify_token(&token, ISSUER).await.unwrap_err().code, 401);
}

/// Who may set finalizers keeps what is deleted, but no token by that.
#[tokio::test(start_paused = true)]
async fn a_finalizer_keeps_no_token_of_what_is_deleted() {
    let start = "2026-01-01T00:00:00Z".parse().unwrap();
    let server = Server::open(Arc::new(Memory::new()), Env::simulated(start, 1), Config::default()).await.unwrap();
    let api = Api(server);
    for (resource, name) in [("secrets", "s1"), ("serviceaccounts", "a2")] {
        let (robot, kept) = (format!("a{}", &name[1..]), format!("s{}", &name[1..]));
        account(&api, &robot).await;
        api.create("secrets", secret(&kept, &robot, &[])).await.unwrap();
        let token = token_of(&api, &kept).await;
        api.patch(resource, name, json!({"metadata": {"finalizers": ["example.com/stay"]}})).await.unwrap();
        api.delete(resource, name, Options::default()).await.unwrap();
        assert!(api.get(resource, name).await.unwrap().is_terminating());
        assert!(api.0.verify_token(&token, ISSUER).await.is_ok(), "{resource}: it may say goodbye");
        tokio::time::advance(Duration::from_secs(62)).await;
        let refused = api.0.verify_token(&token, ISSUER).await.map(drop).unwrap_err();
        assert_eq!(refused.code, 401, "{resource}");
    }
}
