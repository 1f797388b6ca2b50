//! Health of the server: the checks behind `/healthz`, `/livez` and `/readyz`, by upstream's names, and JSON-RPC's `health`.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Server, authorize::attributes::MASTERS};
use podwright_api::{Status, User};
use podwright_store::Error as StoreError;

const TIMEOUT: Duration = Duration::from_secs(2);
const ALL: &[&str] = &["healthz", "livez", "readyz"];
/// Each check, and the endpoints that include it. `etcd` is the store, whichever it is: it answers, and its file has no problem.
/// `etcd-readiness` proves that writes can be made durable.
const CHECKS: &[(&str, &[&str])] =
    &[("ping", ALL), ("etcd", ALL), ("etcd-readiness", &["readyz"]), ("watch-cache", ALL)];

/// The result of a check; `None`: it was excluded.
pub struct Checked {
    pub name: &'static str,
    pub result: Option<Result<(), CheckError>>,
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// No answer in time.
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Late,
    #[error("{0}")]
    Store(StoreError),
    /// The watch cache does not follow the store.
    #[error("{}", .0.message)]
    Cache(Status),
}

/// Why a check failed, for privileged users only: it may name files, and anybody may call these endpoints. (Upstream hides it from
/// everybody.)
pub fn shown(why: &CheckError, user: &User) -> Cow<'static, str> {
    if user.is_in(MASTERS) { why.to_string().into() } else { "reason withheld".into() }
}

impl Checked {
    pub fn is_good(&self) -> bool {
        !matches!(self.result, Some(Err(_)))
    }
}

impl Server {
    /// Runs the checks of `healthz`, `livez` or `readyz`, or a single one by name; `None` if there is no such check.
    pub async fn health(&self, of: &str, only: Option<&str>, excluded: &[&str]) -> Option<Vec<Checked>> {
        let asked = CHECKS.iter().filter(|(name, parts)| parts.contains(&of) && only.is_none_or(|only| only == *name));
        let kind = ALL.iter().copied().find(|kind| *kind == of).unwrap_or("other");
        let mut results = Vec::new();
        for &(name, _) in asked {
            let result = match excluded.contains(&name) {
                true => None,
                false => Some(match tokio::time::timeout(TIMEOUT, self.check(name)).await {
                    Ok(result) => result,
                    Err(_) => Err(CheckError::Late),
                }),
            };
            if let Some(result) = &result {
                self.slis.observe(name, kind, result.is_ok());
            }
            results.push(Checked { name, result });
        }
        Some(results).filter(|results| !results.is_empty())
    }

    async fn check(&self, name: &str) -> Result<(), CheckError> {
        match name {
            "etcd" => match self.store.trouble() {
                Some(why) => Err(CheckError::Store(why)),
                None => self.store.get("/registry/namespaces/default").await.map(drop).map_err(CheckError::Store),
            },
            "etcd-readiness" => self.store.prove().await.map_err(CheckError::Store),
            "watch-cache" => self.cache.fresh().await.map_err(CheckError::Cache),
            _ => Ok(()),
        }
    }

    /// The same for JSON-RPC users who may `get` the path: `{"status": "ok", "checks": [{"name": ..., "status": ...}]}`.
    pub async fn health_report(&self, user: &User, of: &str, excluded: &[String]) -> Result<Value, Status> {
        self.authorizer.authorize_path(user, "get", &format!("/{of}"))?;
        let excluded: Vec<&str> = excluded.iter().map(String::as_str).collect();
        let unknown = || Status::bad_request(format!("of: {of:?} is not one of {}", ALL.join(", ")));
        let results = self.health(of, None, &excluded).await.ok_or_else(unknown)?;
        let is_good = results.iter().all(Checked::is_good);
        let checks: Vec<Value> = results
            .into_iter()
            .map(|checked| match checked.result {
                None => json!({"name": checked.name, "status": "excluded"}),
                Some(Ok(())) => json!({"name": checked.name, "status": "ok"}),
                Some(Err(why)) => json!({"name": checked.name, "status": "failed", "message": shown(&why, user)}),
            })
            .collect();
        Ok(json!({"status": if is_good { "ok" } else { "failed" }, "checks": checks}))
    }
}
