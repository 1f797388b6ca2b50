//! `/metrics/slis`, `/statusz`, `/flagz` and `/debug/pprof/`: what they tell, and whom.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use podwright::api::User;
use podwright::server::Config;
use podwright::server::profiling::{Measured, ProfileError, Profiler};
use podwright::server::rest::Face;
use podwright::server::rest::authenticate::Peer;

use super::super::Api;
use super::Rest;

/// Tells how long it was asked to look.
#[derive(Debug)]
struct Told;

#[async_trait]
impl Profiler for Told {
    async fn cpu(&self, time: Duration) -> Result<Bytes, ProfileError> {
        Ok(format!("cpu {}", time.as_secs()).into())
    }
    async fn heap(&self, _: Duration) -> Result<Bytes, ProfileError> {
        Err(ProfileError::Busy(Measured::Heap))
    }
}

async fn rest() -> Rest {
    let flags = vec![("listen".to_owned(), "127.0.0.1:0".to_owned()), ("token".to_owned(), "CLASSIFIED".to_owned())];
    let api = Api::with(Config { flags, profiler: Some(Arc::new(Told)), ..Config::default() }).await;
    Rest { face: Face::new(api.0.clone()), api }
}

fn user(groups: &[&str]) -> Peer {
    let certificate = Some(User::new("u", groups.iter().copied()));
    Peer { root: false, certificate, until: None }
}

#[tokio::test]
async fn checks_are_counted_by_name_question_and_result() {
    let rest = rest().await;
    rest.get("/healthz").await;
    let answer = rest.get("/metrics/slis").await;
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text();
    for line in [
        "# TYPE kubernetes_healthcheck gauge",
        r#"kubernetes_healthcheck{name="etcd",type="healthz"} 1"#,
        r#"kubernetes_healthcheck{name="etcd-readiness",type="readyz"} 1"#,
        "# TYPE kubernetes_healthchecks_total counter",
        r#"kubernetes_healthchecks_total{name="ping",type="healthz",status="success"} 1"#,
        r#"kubernetes_healthchecks_total{name="ping",type="livez",status="success"} 1"#,
        "# TYPE process_start_time_seconds gauge",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(!text.contains("workqueue") && !text.contains("apiserver_"), "{text}");
}

#[tokio::test]
async fn a_server_tells_since_when_it_runs_and_by_which_flags() {
    let rest = rest().await;
    let text = rest.get("/statusz").await;
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    let text = text.text();
    let warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and \
        is for debugging purposes only.\n";
    assert!(text.starts_with(&format!("\nkube-apiserver statusz\n{warning}\nStarted: ")), "{text}");
    for part in ["\nUp: 0 hr ", "\nBinary version: 1.", "\nEmulation version: 1.", "\nPaths: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let object = "application/json;as=Statusz;g=config.k8s.io;v=v1beta1";
    let told = rest.ask("GET /statusz", &[("accept", object)], "").await.json();
    assert_eq!((&told["kind"], &told["apiVersion"]), (&"Statusz".into(), &"config.k8s.io/v1beta1".into()));
    assert!(told["uptimeSeconds"].is_u64() && told["startTime"].as_str().unwrap().ends_with('Z'), "{told}");
    assert_eq!(rest.ask("GET /statusz", &[("accept", "application/json")], "").await.code, 406);
    let flags = rest.get("/flagz").await.text();
    assert_eq!(flags, format!("\nkube-apiserver flagz\n{warning}listen=127.0.0.1:0\ntoken=CLASSIFIED\n"));
    let object = "application/yaml;as=Flagz;g=config.k8s.io;v=v1alpha1";
    let told = rest.ask("GET /flagz", &[("accept", object)], "").await.text();
    assert!(told.contains("kind: Flagz") && told.contains("listen: 127.0.0.1:0"), "{told}");
}

#[tokio::test]
async fn profiles_are_those_that_mean_something_here() {
    let rest = rest().await;
    let moved = rest.get("/debug/pprof").await;
    assert_eq!((moved.code, moved.header("location")), (302, "/debug/pprof/"));
    let index = rest.get("/debug/pprof/").await;
    assert_eq!((index.code, index.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(index.text().contains("<a href='profile'>"), "{}", index.text());
    let arguments = rest.get("/debug/pprof/cmdline").await;
    let own: Vec<String> = std::env::args().collect();
    assert_eq!((arguments.code, arguments.text()), (200, own.join("\0")));
    assert_eq!(rest.get("/debug/pprof/profile").await.text(), "cpu 30");
    assert_eq!(rest.get("/debug/pprof/profile?seconds=0").await.text(), "cpu 30", "as Go");
    let profile = rest.get("/debug/pprof/profile?seconds=5").await;
    assert_eq!((profile.text().as_str(), profile.header("content-type")), ("cpu 5", "application/octet-stream"));
    assert_eq!(rest.get("/debug/pprof/profile?seconds=301").await.code, 400);
    assert_eq!(
        rest.get("/debug/pprof/heap").await.text(),
        "Could not enable heap profiling: a profile is being made\n"
    );
    for other in ["goroutine", "allocs", "block", "mutex", "threadcreate", "symbol", "trace", "x"] {
        let answer = rest.get(&format!("/debug/pprof/{other}")).await;
        assert_eq!((answer.code, answer.text().as_str()), (404, "Unknown profile\n"), "{other}");
    }
    // As with --profiling=false.
    let none = Rest::new().await;
    for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/profile?seconds=1"] {
        assert_eq!((none.get(path).await.code, none.get(path).await.text().as_str()), (404, "404 page not found\n"));
    }
}

#[tokio::test]
async fn only_who_may_get_the_path_is_told() {
    let rest = rest().await;
    let code =
        async |groups: &[&str], path: &str| rest.ask_as(&user(groups), &format!("GET {path}"), &[], "").await.code;
    for path in ["/metrics/slis", "/statusz", "/flagz", "/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/heap"] {
        assert_eq!(code(&["system:authenticated"], path).await, 403, "{path}");
        let looks_after = if path.starts_with("/debug") { 403 } else { 200 };
        assert_eq!(code(&["system:monitoring"], path).await, looks_after, "{path}");
    }
    let grant = |object: &str| serde_json::from_str::<serde_json::Value>(object).unwrap();
    let role = r#"{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "profiles"},
        "rules": [{"nonResourceURLs": ["/debug/pprof/*"], "verbs": ["get"]}]}"#;
    let binding = r#"{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "profiles"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "profiles"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tuners"}]}"#;
    let base = "/apis/rbac.authorization.k8s.io/v1";
    assert_eq!(rest.post(&format!("{base}/clusterroles"), grant(role)).await.code, 201);
    assert_eq!(rest.post(&format!("{base}/clusterrolebindings"), grant(binding)).await.code, 201);
    let granted = async || code(&["tuners"], "/debug/pprof/profile?seconds=1").await;
    for _ in 0..100 {
        if granted().await == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(granted().await, 200);
    assert_eq!(code(&["tuners"], "/flagz").await, 403);
}
