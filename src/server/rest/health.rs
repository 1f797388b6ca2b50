//! `/healthz`, `/livez`, `/readyz` and `/version`.

use hyper::StatusCode;

use super::query::Query;
use super::reply::{self, Reply};
use crate::{
    Server,
    health::{self, Checked},
};
use podwright_api::User;
pub use podwright_api::version::version;

/// Runs all checks, or the named one, except those in `exclude`.
pub async fn answer(server: &Server, user: &User, path: &str, only: Option<&str>, query: &Query) -> Reply {
    let of = path.trim_matches('/').split('/').next().unwrap_or("healthz").to_owned();
    let excluded: Vec<&str> = query.all("exclude").collect();
    let Some(results) = server.health(&of, only, &excluded).await else { return reply::not_found() };
    let mut report = String::new();
    for Checked { name, result } in &results {
        match result {
            None => report += &format!("[+]{name} excluded: ok\n"),
            Some(Ok(())) => report += &format!("[+]{name} ok\n"),
            Some(Err(why)) => report += &format!("[-]{name} failed: {}\n", health::shown(why, user)),
        }
    }
    match results.iter().all(Checked::is_good) {
        true if query.all("verbose").next().is_some() => {
            reply::text(StatusCode::OK, format!("{report}{of} check passed\n"))
        }
        true => reply::text(StatusCode::OK, "ok"),
        false => reply::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{report}{of} check failed\n")),
    }
}
