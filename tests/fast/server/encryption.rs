//! Values at rest: what lies in the store's file, other keys, and bytes that somebody has changed.

use std::sync::Arc;

use bytes::Bytes;
use podwright::api::{Env, Options};
use podwright::server::encryption::{Rules, first_sealed};
use podwright::server::{Config, Server};
use podwright::store::{Memory, Sqlite, Store, Txn, Write};
use serde_json::{Value, json};

use super::{Api, config_map};

const KEY: &str = "/registry/secrets/default/s";
/// "a secret text" as the API tells it.
const DATA: &str = "YSBzZWNyZXQgdGV4dA==";

fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"word": DATA}})
}

/// One row for Secrets, with these providers.
fn rules(providers: &str) -> Arc<Rules> {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{providers}]\n"
    );
    Arc::new(Rules::parse(&text).unwrap())
}

/// A provider with one key: 32 times the byte.
fn key(provider: &str, name: &str, byte: u8) -> String {
    use base64::Engine;
    let secret = base64::engine::general_purpose::STANDARD.encode([byte; 32]);
    format!("{{{provider}: {{keys: [{{name: {name}, secret: {secret}}}]}}}}")
}

async fn open(store: Arc<dyn Store>, rules: Option<Arc<Rules>>) -> Result<Api, String> {
    let config = Config { encryption: rules, ..Config::default() };
    Server::open(store, Env::system(), config).await.map(Api).map_err(|status| status.message)
}

async fn raw(store: &dyn Store, key: &str) -> Bytes {
    store.get(key).await.unwrap().unwrap().value
}

/// Waits until a value in the store begins so.
async fn sealed_as(store: &dyn Store, key: &str, head: &str) {
    for _ in 0..200 {
        if raw(store, key).await.starts_with(head.as_bytes()) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{key} does not begin with {head}: {:?}", raw(store, key).await);
}

#[tokio::test]
async fn what_lies_in_the_file_does_not_tell_the_secret() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Arc::new(Sqlite::open(&path).unwrap());
    let text = Rules::generate(&Env::system());
    let own = Arc::new(Rules::parse(&text).unwrap());
    let api = open(store.clone(), Some(own.clone())).await.unwrap();
    let mut watch = api.watch("secrets", Options::default()).await.unwrap();
    let made = api.create("secrets", secret()).await.unwrap();
    api.patch("secrets", "s", json!({"data": {"more": DATA}})).await.unwrap();
    api.create("configmaps", config_map("plain")).await.unwrap();
    for _ in 0..2 {
        assert!(String::from_utf8_lossy(&watch.recv().await.unwrap().object).contains(DATA), "watchers are told");
    }
    assert_eq!(api.list("secrets", Options::default()).await.unwrap().items.len(), 1);
    let mut copy = store.backup().await.unwrap();
    std::io::copy(&mut copy, &mut std::fs::File::create(dir.path().join("backup")).unwrap()).unwrap();
    drop((watch, api));
    store.close().await.unwrap();
    drop(store);
    for file in ["store.db", "backup"] {
        let bytes = std::fs::read(dir.path().join(file)).unwrap();
        let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(holds("plain") && holds("k8s:enc:aesgcm:v2:key1:"), "{file} is not what is looked for");
        assert!(!holds(DATA) && !holds("\"pkcs8\""), "{file} tells a secret, or the key that tokens are signed with");
    }
    // The next process reads it, if it has the key.
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&path).unwrap());
    let api = open(store.clone(), Some(own)).await.unwrap();
    let read = api.get("secrets", "s").await.unwrap();
    assert_eq!((read.uid(), &read.0["data"]["more"]), (made.uid(), &json!(DATA)));
    assert!(first_sealed(&*store).await.unwrap().is_some());
}

#[tokio::test]
async fn a_new_first_key_seals_all_anew_and_the_old_one_may_go() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    // From nothing sealed at all, over one key and another provider, back to none.
    let (one, two, three) = (key("aesgcm", "one", 1), key("secretbox", "two", 2), key("aescbc", "three", 3));
    let api = open(store.clone(), None).await.unwrap();
    api.create("secrets", secret()).await.unwrap();
    assert!(raw(&*store, KEY).await.starts_with(b"{"));
    assert!(first_sealed(&*store).await.unwrap().is_none());
    drop(api);
    for (providers, head) in [
        (format!("{one}, {{identity: {{}}}}"), "k8s:enc:aesgcm:v2:one:"),
        (format!("{two}, {one}"), "k8s:enc:secretbox:v2:two:"),
        (two.clone(), "k8s:enc:secretbox:v2:two:"),
        (format!("{three}, {two}"), "k8s:enc:aescbc:v2:three:"),
        (three.clone(), "k8s:enc:aescbc:v2:three:"),
        (format!("{{identity: {{}}}}, {three}"), "{"),
    ] {
        let api = open(store.clone(), Some(rules(&providers))).await.unwrap();
        assert_eq!(api.get("secrets", "s").await.unwrap().0["data"]["word"], DATA, "read before it is sealed anew");
        for place in [KEY, "/registry/keys/serviceaccount"] {
            sealed_as(&*store, place, head).await;
        }
        assert_eq!(api.get("secrets", "s").await.unwrap().0["data"]["word"], DATA);
    }
}

#[tokio::test]
async fn what_does_not_open_is_an_error_that_names_the_object() {
    for provider in ["aesgcm", "aescbc", "secretbox"] {
        does_not_open(provider).await;
    }
}

async fn does_not_open(provider: &str) {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let one = key(provider, "one", 1);
    let api = open(store.clone(), Some(rules(&one))).await.unwrap();
    api.create("secrets", secret()).await.unwrap();
    let mut other = secret();
    other["metadata"]["name"] = "t".into();
    api.create("secrets", other).await.unwrap();
    drop(api);
    let good = raw(&*store, KEY).await;
    let put = async |value: Bytes| {
        let writes = vec![Write::Put(KEY.into(), value)];
        store.commit(Txn { writes, ..Txn::default() }).await.unwrap();
    };
    let refused = async |rules: Option<Arc<Rules>>, why: &str| {
        let Err(error) = open(store.clone(), rules).await else { panic!("opened in spite of: {why}") };
        assert!(error.contains("/registry/") && error.contains(why), "{error}\nis not about: {why}");
    };
    // The key is missing, is another one of that name, or is not asked at all.
    refused(Some(rules(&key(provider, "three", 1))), &format!("is encrypted with the key \"one\" of {provider}")).await;
    refused(Some(rules(&key(provider, "one", 9))), "does not open with the key \"one\"").await;
    refused(Some(rules("{identity: {}}")), "is encrypted with the key \"one\"").await;
    refused(Some(Arc::default()), "is encrypted with the key \"one\"").await;
    // One bit; the bytes of another object; a text in the clear where none may be.
    let mut flipped = good.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    put(flipped.into()).await;
    refused(Some(rules(&one)), &format!("{KEY} does not open")).await;
    put(raw(&*store, "/registry/secrets/default/t").await).await;
    refused(Some(rules(&one)), &format!("{KEY} does not open")).await;
    put(good.slice(..30)).await;
    refused(Some(rules(&one)), &format!("{KEY} does not open")).await;
    put("{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"s\"}}".into()).await;
    refused(Some(rules(&one)), &format!("{KEY} is not encrypted")).await;
    put(good).await;
    let api = open(store.clone(), Some(rules(&one))).await.unwrap();
    // While it is served: who reads the store is told so, not what lies there.
    let moved = raw(&*store, "/registry/secrets/default/t").await;
    put(moved).await;
    let mut again = api.get("secrets", "s").await;
    for _ in 0..100 {
        if again.is_err() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        again = api.get("secrets", "s").await;
    }
    assert_ne!(again.map(|object| object.name() == "t"), Ok(true), "never another object's bytes");
}

/// Secret `t` comes to lie where `s` was, or another server has another key.
#[tokio::test]
async fn what_does_not_open_stops_reads_of_itself_alone_and_can_be_deleted() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let api = open(store.clone(), Some(rules(&key("aesgcm", "one", 1)))).await.unwrap();
    api.create("secrets", secret()).await.unwrap();
    let mut other = secret();
    other["metadata"]["name"] = "t".into();
    api.create("secrets", other).await.unwrap();
    let mut watch = api.watch("secrets", Options::default()).await.unwrap();
    let moved = raw(&*store, "/registry/secrets/default/t").await;
    let writes = vec![Write::Put(KEY.into(), moved)];
    store.commit(Txn { writes, ..Txn::default() }).await.unwrap();
    // Others are made, changed and shown.
    let made = api.create("configmaps", config_map("plain")).await.unwrap();
    assert_eq!(api.get("configmaps", "plain").await.unwrap(), made);
    assert_eq!(api.list("configmaps", Options::default()).await.unwrap().items.len(), 1);
    assert_eq!(api.get("secrets", "t").await.unwrap().name(), "t");
    // What would show it fails, and says which it is.
    let told = |status: podwright::api::Status| (status.code, status.message.contains(&format!("{KEY} does not open")));
    assert_eq!(told(api.get("secrets", "s").await.unwrap_err()), (500, true));
    assert_eq!(told(api.list("secrets", Options::default()).await.unwrap_err()), (500, true));
    assert_eq!(told(api.watch("secrets", Options::default()).await.map(drop).unwrap_err()), (500, true));
    assert_eq!(told(api.patch("secrets", "s", json!({"data": {}})).await.unwrap_err()), (500, true));
    assert_eq!(told(api.create("secrets", secret()).await.unwrap_err()), (500, true));
    while let Some(event) = watch.recv().await {
        assert_ne!(event.kind, podwright::api::request::EventKind::Deleted, "nobody is told that it is gone");
    }
    // Who is no administrator cannot delete it.
    let mut request = super::request(podwright::api::Verb::Delete, "secrets", "s", None, Options::default());
    request.user = podwright::api::User::new("somebody", ["system:nobodies"]);
    assert!(api.0.handle(request).await.is_err());
    api.delete("secrets", "s", Options::default()).await.unwrap();
    assert!(api.get("secrets", "s").await.unwrap_err().is_not_found());
    assert_eq!(api.list("secrets", Options::default()).await.unwrap().items.len(), 1);
    api.create("secrets", secret()).await.unwrap();
    assert_eq!(api.get("secrets", "s").await.unwrap().0["data"]["word"], DATA);
}

#[test]
fn a_wrong_configuration_is_refused_with_the_field() {
    let file = |rows: &str| {
        format!("{{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: [{rows}]}}")
    };
    let row = |providers: &str| file(&format!("{{resources: [secrets], providers: [{providers}]}}"));
    let short = "{aesgcm: {keys: [{name: a, secret: c2hvcnQ=}]}}";
    let one = key("aesgcm", "one", 1);
    for (text, why) in [
        ("{}".to_owned(), "missing field `apiVersion`"),
        (file("").replace("Encryption", "Other"), "expected apiserver.config.k8s.io/v1 EncryptionConfiguration"),
        (file("{resources: [], providers: [{identity: {}}]}"), "resources[0].resources: Required value"),
        (file("{resources: ['*'], providers: [{identity: {}}]}"), "resources[0].resources[0]: Invalid value"),
        (row(""), "resources[0].providers: Required value"),
        (row("{}"), "resources[0].providers[0]: Required value"),
        (row("{aescbc: {keys: []}}"), "resources[0].providers[0].aescbc.keys: Required value"),
        (row("{kms: {name: x}}"), "resources[0].providers[0].kms: Unsupported value"),
        (row("{rot13: {}}"), "unknown field `rot13`"),
        (row("{aesgcm: {keys: []}}"), "resources[0].providers[0].aesgcm.keys: Required value"),
        (row(short), "resources[0].providers[0].aesgcm.keys[0].secret: Invalid value: must be of"),
        (row(&short.replace("c2hvcnQ=", "'?'")), "aesgcm.keys[0].secret: Invalid value: must be base64"),
        (row(&one.replace("one", "'a:b'")), "aesgcm.keys[0].name: Invalid value"),
        (row(&format!("{one}, {one}")), "resources[0].providers: Duplicate value: \"one\""),
        (row(&format!("{}, identity: {{}}}}", &one[..one.len() - 1])), "more than one provider"),
    ] {
        let error = Rules::parse(&text).err().unwrap_or_else(|| panic!("accepted: {text}"));
        let error = error.to_string();
        assert!(error.contains(why), "{text}\n{error}\nis not: {why}");
        assert!(!error.contains("c2hvcnQ="), "the secret is not told");
    }
}
