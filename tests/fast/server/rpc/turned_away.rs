//! Calls for which there is no room, as the audit log is told of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright::api::Env;
use podwright::server::audit::{Audit, LogTarget, Policy};
use podwright::server::{Config, Limits};
use serde_json::{Value, json};

use super::super::config_map;
use super::Served;

/// What is refused because there is too much is not made more of.
#[tokio::test]
async fn who_is_turned_away_is_told_of_without_what_he_has_brought() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let policy =
        "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Request}]}";
    let target = LogTarget { path: Some(path.clone()), ..LogTarget::default() };
    let audit = Some(Arc::new(Audit::open(Policy::parse(policy).unwrap(), target, Env::system()).unwrap()));
    let limits = Limits { mutating_inflight: 0, wait: Duration::from_millis(20), ..Limits::default() };
    let served = Served::with(Config { audit, limits, ..Config::default() }).await;
    let params = json!({"resource": "configmaps", "namespace": "default", "body": config_map("kept-out")});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "create", "params": params}).to_string();
    let (_, told) = served.http_with("POST /rpc", "Impersonate-User: nob\r\n", &call).await;
    assert!(told.contains("\"code\":429"), "{told}");
    let (_, told) = served.http("POST /rpc", &call).await;
    assert!(told.contains("\"created\":true"), "the administrator waits for nobody: {told}");
    let (begun, mut bodies) = (Instant::now(), Vec::new());
    while bodies.len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{bodies:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_maps = events.filter(|event| event["objectRef"]["name"] == "kept-out");
        let seen = |event: Value| (event["responseStatus"]["code"].clone(), event["requestObject"]["kind"].clone());
        bodies = of_maps.map(seen).collect();
    }
    assert_eq!(bodies, [(json!(429), Value::Null), (json!(201), json!("ConfigMap"))]);
}
