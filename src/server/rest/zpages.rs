//! `/statusz` and `/flagz`: the running version and its start time, and its flags (KEP-4827, KEP-4828).

use hyper::StatusCode;
use hyper::header::HeaderMap;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};

use super::health;
use super::negotiate::{self, Wanted};
use super::reply::{self, Reply};
use crate::Server;
use podwright_api::{Status, process};

/// Upstream's name of this component.
const COMPONENT: &str = "kube-apiserver";
const GROUP: &str = "config.k8s.io";
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];
/// Paths for diagnosis.
const PATHS: [&str; 8] = ["/debug", "/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"];

/// The form of a page.
enum Page {
    Text,
    /// A versioned object.
    Object(&'static str, Wanted),
}

impl Page {
    /// The client's preference; objects only if it names their kind, as upstream.
    fn wanted(headers: &HeaderMap, kind: &str) -> Result<Page, Status> {
        let clauses = negotiate::clauses(headers);
        if clauses.is_empty() {
            return Ok(Page::Text);
        }
        let page = |clause: &negotiate::Clause| match (clause.media.as_str(), clause.turned_into()) {
            ("text/plain" | "text/*" | "*/*", None) => Some(Page::Text),
            (_, Some((of, GROUP, version))) if of == kind => {
                let version = VERSIONS.into_iter().find(|known| *known == version)?;
                Some(Page::Object(version, Wanted { form: clause.form()?, ..Wanted::PLAIN }))
            }
            _ => None,
        };
        let why = "only the following media types are accepted: application/json, application/yaml, text/plain";
        clauses.iter().find_map(page).ok_or_else(|| Status::failure(406, "NotAcceptable", why))
    }
}

/// The first lines of a text, upstream's.
fn head(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
         guarantees and is for debugging purposes only.\n"
    )
}

fn object(kind: &str, version: &str, fields: Value) -> Value {
    let mut object = json!({"kind": kind, "apiVersion": format!("{GROUP}/{version}"), "metadata": {"name": COMPONENT}});
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    object
}

/// `/statusz`
pub fn statusz(server: &Server, headers: &HeaderMap) -> Result<Reply, Status> {
    let now = server.env.now();
    let start = process::start().and_then(|at| Timestamp::from_second(at as i64).ok()).unwrap_or(now);
    let up = now.duration_since(start).max(SignedDuration::ZERO);
    let version = health::version();
    let text = |field: &str| version[field].as_str().unwrap_or("").to_owned();
    let (go, binary) = (text("goVersion"), text("gitVersion").trim_start_matches('v').to_owned());
    let emulated = format!("{}.{}", text("major"), text("minor"));
    let page = match Page::wanted(headers, "Statusz")? {
        Page::Text => {
            let began = start.to_zoned(TimeZone::UTC).strftime("%a %b %e %H:%M:%S UTC %Y").to_string();
            let paths = PATHS.join(" ");
            reply::text(
                StatusCode::OK,
                format!(
                    "{}\nStarted: {began}\nUp: {}\nGo version: {go}\nBinary version: {binary}\n\
                     Emulation version: {emulated}\nPaths: {paths}\n",
                    head("statusz"),
                    uptime(up),
                ),
            )
        }
        Page::Object(version, wanted) => {
            let fields = json!({
                "startTime": start.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "uptimeSeconds": up.as_secs(),
                "goVersion": go, "binaryVersion": binary, "emulationVersion": emulated, "paths": PATHS,
            });
            reply::value(200, &object("Statusz", version, fields), &wanted)
        }
    };
    Ok(page)
}

/// In upstream's format.
fn uptime(up: SignedDuration) -> String {
    let seconds = up.as_secs();
    format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// `/flagz`
pub fn flagz(server: &Server, headers: &HeaderMap) -> Result<Reply, Status> {
    let flags = &server.config.flags;
    Ok(match Page::wanted(headers, "Flagz")? {
        Page::Text => {
            let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            reply::text(StatusCode::OK, head("flagz") + &lines)
        }
        Page::Object(version, wanted) => {
            let flags: Map<String, Value> =
                flags.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
            reply::value(200, &object("Flagz", version, json!({"flags": flags})), &wanted)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::negotiate::Form;
    use super::*;

    #[test]
    fn time_is_told_as_upstream_tells_it() {
        assert_eq!(uptime(SignedDuration::from_secs(16)), "0 hr 00 min 16 sec");
        assert_eq!(uptime(SignedDuration::from_secs(100 * 3600 + 61)), "100 hr 01 min 01 sec");
    }

    #[test]
    fn objects_are_for_those_who_name_their_kind() {
        let of = |accept: &str| {
            let headers = HeaderMap::from_iter([(hyper::header::ACCEPT, accept.parse().unwrap())]);
            match Page::wanted(&headers, "Statusz") {
                Ok(Page::Text) => "text".to_owned(),
                Ok(Page::Object(version, wanted)) => format!("{version} {:?}", wanted.form),
                Err(status) => status.code.to_string(),
            }
        };
        assert_eq!(of("*/*"), "text");
        assert_eq!(of("text/plain"), "text");
        assert_eq!(of("application/json"), "406");
        assert_eq!(of("application/json;as=Statusz;g=config.k8s.io;v=v1beta1"), format!("v1beta1 {:?}", Form::Json));
        assert_eq!(of("application/yaml;as=Statusz;g=config.k8s.io;v=v1alpha1"), format!("v1alpha1 {:?}", Form::Yaml));
        assert_eq!(of("application/json;as=Statusz;g=config.k8s.io;v=v2"), "406");
        assert_eq!(of("application/json;as=Flagz;g=config.k8s.io;v=v1beta1, text/plain;q=0.5"), "text");
    }
}
