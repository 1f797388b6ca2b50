//! `/healthz`, `/livez`, `/readyz` and `/version`.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::query::Query;
use super::reply::{self, Reply};
use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(2);
const CHECKS: &[&str] = &["ping", "store", "watch-cache"];

/// Runs the checks, or the one that is named, but those that `exclude` names.
pub async fn answer(server: &Server, path: &str, only: Option<&str>, query: &Query) -> Reply {
    if only.is_some_and(|name| !CHECKS.contains(&name)) {
        return reply::not_found();
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut report = String::new();
    let mut failed = Vec::new();
    for name in CHECKS.iter().filter(|name| only.is_none_or(|only| only == **name)) {
        if excluded.contains(name) {
            report += &format!("[+]{name} excluded: ok\n");
            continue;
        }
        match tokio::time::timeout(PATIENCE, check(server, name)).await {
            Ok(Ok(())) => report += &format!("[+]{name} ok\n"),
            Ok(Err(why)) => {
                report += &format!("[-]{name} failed: {why}\n");
                failed.push(*name);
            }
            Err(_) => {
                report += &format!("[-]{name} failed: no answer within {} s\n", PATIENCE.as_secs());
                failed.push(*name);
            }
        }
    }
    let of = path.trim_matches('/').split('/').next().unwrap_or("healthz").to_owned();
    match failed.is_empty() {
        true if query.all("verbose").next().is_some() => {
            reply::text(StatusCode::OK, format!("{report}{of} check passed\n"))
        }
        true => reply::text(StatusCode::OK, "ok"),
        false => reply::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{report}{of} check failed\n")),
    }
}

async fn check(server: &Server, name: &str) -> Result<(), String> {
    match name {
        "store" => server.store.get("/registry/namespaces/default").await.map(drop).map_err(|why| why.to_string()),
        "watch-cache" => server.cache.fresh().await.map_err(|status| status.message),
        _ => Ok(()),
    }
}

/// The version of Kubernetes whose API this is, which k8s-openapi's types have.
pub const MINOR: &str = "35";

/// `/version`
pub fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR,
        "gitVersion": format!("v1.{MINOR}.0+podwright.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": env!("BUILT_COMMIT"), "gitTreeState": env!("BUILT_TREE"), "buildDate": env!("BUILT_DATE"),
        "goVersion": "none", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }),
    })
}
