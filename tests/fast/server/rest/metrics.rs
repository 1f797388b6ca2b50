//! What `/metrics` tells: upstream's names, both formats, and no series by whoever asks.

use super::Rest;

/// The lines of one metric, without comments.
fn samples<'a>(text: &'a str, metric: &str) -> Vec<&'a str> {
    text.lines()
        .filter(|line| line.starts_with(&format!("{metric}{{")) || line.starts_with(&format!("{metric} ")))
        .collect()
}

#[tokio::test]
async fn requests_are_counted_under_upstreams_names() {
    let rest = Rest::new().await;
    rest.get("/api/v1/pods").await;
    rest.get("/api/v1/namespaces/default").await;
    rest.get("/healthz").await;
    let answer = rest.get("/metrics").await;
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text();
    let labels =
        r#"dry_run="",group="",version="v1",resource="pods",subresource="",scope="cluster",component="apiserver""#;
    let wanted = format!(r#"apiserver_request_total{{verb="LIST",{labels},code="200"}} 1"#);
    assert!(text.contains(&wanted), "{text}");
    for metric in
        ["apiserver_request_duration_seconds", "apiserver_request_sli_duration_seconds", "apiserver_response_sizes"]
    {
        let wanted = format!(r#"{metric}_count{{verb="LIST",{labels}}} 1"#);
        assert!(text.contains(&wanted), "{wanted}: {text}");
    }
    assert!(text.contains(r#"resource="namespaces",subresource="",scope="resource""#), "{text}");
    assert!(text.contains(r#"resource="",subresource="/healthz",scope="""#), "{text}");
    assert!(
        samples(&text, "apiserver_storage_objects").contains(&r#"apiserver_storage_objects{resource="namespaces"} 4"#),
        "{text}"
    );
    assert!(text.contains(r#"apiserver_current_inflight_requests{request_kind="readOnly"} 0"#), "{text}");
    assert_eq!(samples(&text, "kubernetes_build_info").len(), 1, "{text}");
    assert_eq!(samples(&text, "process_resident_memory_bytes").len(), 1, "{text}");
    // Each metric is described once, under the name that its samples have.
    let mut described: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(
        described.contains(&"apiserver_request_total") && !described.contains(&"apiserver_request"),
        "{described:?}"
    );
    let count = described.len();
    described.sort_unstable();
    described.dedup();
    assert_eq!(described.len(), count, "{described:?}");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
}

#[tokio::test]
async fn what_a_write_takes_is_counted_where_it_is_taken() {
    let rest = Rest::new().await;
    let map = |name: &str| serde_json::json!({"metadata": {"name": name}});
    let path = "/api/v1/namespaces/default/configmaps";
    assert_eq!(rest.post(path, map("a")).await.code, 201);
    assert_eq!(rest.post("/api/v1/namespaces/nowhere/configmaps", map("a")).await.code, 404);
    let text = rest.get("/metrics").await.text();
    for series in [
        r#"etcd_requests_total{operation="create",group="",resource="configmaps"}"#,
        r#"etcd_request_duration_seconds_count{operation="create",group="",resource="configmaps"}"#,
        r#"apiserver_admission_step_admission_duration_seconds_count{type="admit",operation="CREATE",rejected="false"}"#,
        r#"apiserver_admission_step_admission_duration_seconds_count{type="admit",operation="CREATE",rejected="true"}"#,
        r#"apiserver_admission_step_admission_duration_seconds_count{type="validate",operation="CREATE",rejected="false"}"#,
        r#"apiserver_admission_controller_admission_duration_seconds_count{name="NamespaceLifecycle",type="admit",operation="CREATE",rejected="true"}"#,
        r#"apiserver_resource_objects{group="",resource="configmaps"} 1"#,
        r#"apiserver_resource_objects{group="rbac.authorization.k8s.io",resource="clusterroles"}"#,
        "apiserver_audit_event_total ",
        "apiserver_client_certificate_expiration_seconds_count ",
    ] {
        assert!(text.lines().any(|line| line.starts_with(series)), "{series}: {text}");
    }
}

#[tokio::test]
async fn open_metrics_are_told_to_who_asks_for_them() {
    let rest = Rest::new().await;
    rest.get("/version").await;
    let answer = rest
        .ask("GET /metrics", &[("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")], "")
        .await;
    assert_eq!(answer.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = answer.text();
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    assert!(
        text.contains("# TYPE apiserver_request counter") && text.contains("# TYPE process_cpu_seconds counter"),
        "{text}"
    );
}

#[tokio::test]
async fn who_asks_for_what_is_not_there_makes_no_series() {
    let rest = Rest::new().await;
    // What other servers of this process count is no part of it.
    let own = |line: &&str| {
        ["apiserver_request", "apiserver_response", "apiserver_current"].iter().any(|name| line.starts_with(name))
    };
    let count = async || rest.get("/metrics").await.text().lines().filter(own).count();
    let ask = async |round: usize| {
        for path in [
            format!("/api/v1/namespaces/default/pods/a/sub-{round}"),
            format!("/api/v1/namespaces/ns-{round}/things-{round}"),
            format!("/apis/group-{round}/v1/things"),
            format!("/healthz/check-{round}"),
            format!("/path-{round}"),
        ] {
            rest.get(&path).await;
        }
    };
    count().await;
    ask(0).await;
    let before = count().await;
    for round in 1..20 {
        ask(round).await;
    }
    assert_eq!(count().await, before);
}
