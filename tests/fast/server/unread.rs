//! Watches that are not read: what they are to be told is kept by the cache, or on their users' account.

use podwright::api::request::EventKind;
use podwright::api::{Options, Request, User, Verb};
use podwright::server::{AuthorizationMode, Config, Watch};
use serde_json::json;

use super::{Api, config_map, request};

/// A ConfigMap has no more than a MiB.
const SIZE: usize = 900 << 10;

async fn api() -> Api {
    Api::with(Config { authorization: vec![AuthorizationMode::AlwaysAllow], ..Config::default() }).await
}

async fn change(api: &Api, name: &str, turn: usize) {
    let patch = json!({"data": {"a": format!("{turn}{}", "x".repeat(SIZE))}});
    api.patch("configmaps", name, patch).await.unwrap();
}

async fn watch(api: &Api, options: Options) -> Watch {
    let user = User::new("reader", Vec::<String>::new());
    api.0.watch(Request { user, ..request(Verb::Watch, "configmaps", "", None, options) }).await.unwrap()
}

/// What there was when a watch began is read as the cache has it; what nobody has any more ends the watch.
#[tokio::test]
async fn what_has_changed_long_before_it_was_read_is_not_kept() {
    let api = api().await;
    for name in ["a", "b"] {
        api.create("configmaps", config_map(name)).await.unwrap();
        change(&api, name, 0).await;
    }
    let present = || Options { resource_version: Some("0".to_owned()), ..Options::default() };
    // Whatever version will do for a watch: the cache is to have both.
    api.get("configmaps", "b").await.unwrap();
    let mut read = watch(&api, present()).await;
    let (first, second) = (read.recv().await.unwrap(), read.recv().await.unwrap());
    assert_eq!([first.kind, second.kind], [EventKind::Added; 2]);
    let mut unread = watch(&api, present()).await;
    // More than the window of changes has.
    for turn in 1..40 {
        change(&api, "b", turn).await;
    }
    assert_eq!(unread.recv().await.unwrap().kind, EventKind::Added, "it is still so");
    let end = unread.recv().await.unwrap();
    let why: serde_json::Value = serde_json::from_slice(&end.object).unwrap();
    assert_eq!((end.kind, &why["code"]), (EventKind::Error, &json!(410)));
    assert!(unread.recv().await.is_none());
}

/// What is told and not read is the reader's: he has room for so much, by however many watches.
#[tokio::test]
async fn what_watches_are_behind_is_on_their_users_account() {
    let mut config = Config { authorization: vec![AuthorizationMode::AlwaysAllow], ..Config::default() };
    config.limits.answers_of_one = 8 * SIZE;
    let api = Api::with(config).await;
    api.create("configmaps", config_map("a")).await.unwrap();
    let options = || Options { resource_version: Some("0".to_owned()), ..Options::default() };
    let mut watches = Vec::new();
    for _ in 0..6 {
        let mut watch = watch(&api, options()).await;
        assert_eq!(watch.recv().await.unwrap().kind, EventKind::Added);
        watches.push(watch);
    }
    for turn in 0..4 {
        change(&api, "a", turn).await;
    }
    let mut told = Vec::new();
    for watch in &mut watches {
        let mut events = 0;
        while tokio::time::timeout(std::time::Duration::from_millis(300), watch.recv())
            .await
            .is_ok_and(|it| it.is_some())
        {
            events += 1;
        }
        told.push(events);
    }
    assert!(told.iter().sum::<usize>() < 12, "{told:?}");
    // What was read is no longer on his account.
    let mut again = watch(&api, options()).await;
    assert_eq!(again.recv().await.unwrap().kind, EventKind::Added);
    change(&api, "a", 9).await;
    assert_eq!(again.recv().await.unwrap().kind, EventKind::Modified);
}

/// Who does not read for a while, though much changes, is told the beginning, and goes on from there: nothing is missing, and what
/// he was behind is no longer on his account.
#[tokio::test]
async fn who_was_behind_goes_on_from_what_he_was_told_last() {
    const CHANGES: usize = 25;
    let api = api().await;
    api.create("configmaps", config_map("a")).await.unwrap();
    let mut version = Some("0".to_owned());
    let mut events = watch(&api, Options { resource_version: version.clone(), ..Options::default() }).await;
    assert_eq!(events.recv().await.unwrap().kind, EventKind::Added);
    for turn in 0..CHANGES {
        change(&api, "a", turn).await;
    }
    let (mut told, mut ends) = (0, 0);
    while told < CHANGES {
        match tokio::time::timeout(std::time::Duration::from_secs(10), events.recv()).await.expect("it goes on") {
            Some(event) => {
                assert_eq!(event.kind, EventKind::Modified);
                let object: serde_json::Value = serde_json::from_slice(&event.object).unwrap();
                let begin = object["data"]["a"].as_str().unwrap().trim_end_matches('x');
                assert_eq!(begin, told.to_string(), "each change, in its order");
                version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
                told += 1;
            }
            None => {
                ends += 1;
                events = watch(&api, Options { resource_version: version.clone(), ..Options::default() }).await;
            }
        }
    }
    assert_eq!(ends, 1, "he was too far behind, once");
}
