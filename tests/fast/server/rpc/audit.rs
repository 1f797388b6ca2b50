//! What the audit log has of calls, as of those that do not go through the pipeline.

use podwright::server::audit::{Audit, LogTarget, Policy};

use super::*;

/// What does not go through the pipeline is told by the path that it is authorized as.
#[tokio::test]
async fn the_audit_log_has_backups_too() {
    let dir = tempfile::tempdir().unwrap();
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata, nonResourceURLs: [/backup]}]}";
    let path = dir.path().join("audit.log");
    let place = LogTarget { path: Some(path.clone()), ..LogTarget::default() };
    let audit = Arc::new(Audit::open(Policy::parse(policy).unwrap(), place, Env::system()).unwrap());
    let served = Served::with(Config { audit: Some(audit), ..Config::default() }).await;
    assert!(served.post("backup", json!({})).await["result"]["stream"].is_string());
    for _ in 0..500 {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.contains("ResponseComplete")) {
            let event: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&event["requestURI"], &event["verb"]), (&json!("/backup"), &json!("post")), "{event}");
            assert_eq!(event["user"]["username"], "system:admin");
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody was told");
}

/// Each call is told to the audit log, one that cannot be read and one of no method too.
#[tokio::test]
async fn each_call_is_told_to_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let rules = "{level: Metadata, nonResourceURLs: ['*']}";
    let policy =
        format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{rules}]}}");
    let target = LogTarget { path: Some(path.clone()), ..LogTarget::default() };
    let audit = Audit::open(Policy::parse(&policy).unwrap(), target, Env::system()).unwrap();
    let served = Served::with(Config { audit: Some(Arc::new(audit)), ..Config::default() }).await;
    for (method, params) in [
        ("health", json!({"of": "livez"})),
        ("rpc.discover", json!({})),
        ("nosuch", json!({})),
        ("list", json!([1, 2])),
        ("create", json!({"resource": 5})),
        ("backup", json!({"other": 1})),
    ] {
        served.post(method, params).await;
    }
    let batch = json!([{"jsonrpc": "2.0", "id": 1, "method": "of-a-batch", "params": {}}]).to_string();
    assert_eq!(served.http("POST /rpc", &batch).await.0, 200);
    let wanted =
        ["/livez", "/rpc/rpc.discover", "/rpc/nosuch", "/rpc/list", "/rpc/create", "/rpc/backup", "/rpc/of-a-batch"];
    let begun = std::time::Instant::now();
    let told = || -> Vec<String> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter_map(|event| event["requestURI"].as_str().map(str::to_owned)).collect()
    };
    while !wanted.iter().all(|uri| told().iter().filter(|told| told == uri).count() == 1) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", told());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
