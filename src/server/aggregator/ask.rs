//! Translates a request of the pipeline for an extension API server: which one serves the resource, and the HTTP request.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use super::table::{Registration, Table};
use podwright_api::kinds::version_rank;
use podwright_api::request::PatchType;
use podwright_api::validation::names;
use podwright_api::{FieldValidation, Options, Request, Status, Verb};

const JSON: &str = "application/json";
/// The longest options of a session, which have to fit into a request line.
const MAX_OPTIONS: usize = 32 << 10;

impl Table {
    /// The registration and plural for a resource name: `things.ext.example.com/v1`; with the group's preferred version
    /// `things.ext.example.com/` and `things.ext.example.com`; `things.v1.ext.example.com`.
    pub fn named(&self, name: &str) -> Option<(Arc<Registration>, String)> {
        let (named, version) = match name.rsplit_once('/') {
            Some((named, version)) => (named, Some(version).filter(|version| !version.is_empty())),
            None => (name, None),
        };
        let remote = self.all().filter_map(|it| self.remote(&it.group, &it.version));
        let fits = |it: &&Arc<Registration>| {
            version.is_none_or(|version| version == it.version) && within(named, &it.group).is_some()
        };
        // A group's name may end with another's: the longest match wins, with its preferred version.
        let rank = |it: &&Arc<Registration>| (it.group.len(), it.version_priority, version_rank(&it.version));
        let found = remote.filter(fits).max_by_key(rank)?;
        let plural = within(named, &found.group)?;
        if version.is_none() && !name.ends_with('/') {
            // A version may stand between the two.
            let versions = self.all().filter(|it| it.group == found.group);
            for it in versions.filter_map(|it| self.remote(&it.group, &it.version)) {
                if let Some(plural) = plural.strip_suffix(&format!(".{}", it.version)) {
                    return Some((it.clone(), plural.to_owned()));
                }
            }
        }
        Some((found.clone(), plural.to_owned()))
    }
}

/// The part of a resource name before the group.
fn within<'a>(named: &'a str, group: &str) -> Option<&'a str> {
    named.strip_suffix(group)?.strip_suffix('.').filter(|plural| !plural.is_empty())
}

/// A request to an extension API server.
#[derive(Debug, PartialEq)]
pub struct Wanted {
    pub method: Method,
    pub path: String,
    /// Without the `?`; may be empty.
    pub query: String,
    /// Its media type, and the bytes.
    pub body: Option<(&'static str, Bytes)>,
}

impl Wanted {
    pub fn target(&self) -> String {
        match self.query.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }
}

/// The HTTP request for a request on a remotely served resource; an error if no path expresses it.
pub fn wanted(registration: &Registration, plural: &str, request: &Request) -> Result<Wanted, Status> {
    let given = |part: &Option<String>| part.clone().filter(|part| !part.is_empty());
    let of_body = |field: &str| request.body.as_ref()?["metadata"][field].as_str().map(str::to_owned);
    let writes = matches!(request.verb, Verb::Create | Verb::Update) && request.subresource.is_none();
    let namespace = given(&request.namespace).or_else(|| of_body("namespace").filter(|_| writes));
    let name = given(&request.name).or_else(|| of_body("name").filter(|_| request.verb == Verb::Update));
    // On create the name is in the body only.
    let name = name.filter(|_| request.verb != Verb::Create || request.subresource.is_some());
    let named = matches!(request.verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete | Verb::Connect);
    if (named || request.subresource.is_some()) && name.is_none() {
        return Err(Status::bad_request("name is required"));
    }
    let mut path = format!("/apis/{}/{}", registration.group, registration.version);
    if let Some(namespace) = namespace {
        path += "/namespaces/";
        path += &segment(&namespace)?;
    }
    for part in [Some(plural.to_owned()), name, given(&request.subresource)].into_iter().flatten() {
        path.push('/');
        path += &segment(&part)?;
    }
    let (method, body) = match request.verb {
        Verb::Get | Verb::List | Verb::Watch => (Method::GET, None),
        Verb::Create => (Method::POST, Some((JSON, sent(request)?))),
        Verb::Update => (Method::PUT, Some((JSON, sent(request)?))),
        Verb::Patch => (Method::PATCH, Some((media_type(request)?, sent(request)?))),
        Verb::Delete | Verb::DeleteCollection => {
            (Method::DELETE, Some((JSON, Bytes::from(delete_options(&request.options).to_string()))))
        }
        // Sessions are on subresources of an object; a proxy carries HTTP, which frames cannot.
        Verb::Connect if matches!(request.subresource.as_deref(), None | Some("" | "proxy")) => {
            return Err(Status::method_not_allowed(plural, &registration.group, "connect"));
        }
        Verb::Connect => (Method::GET, None),
    };
    let query = match request.verb {
        Verb::Connect => options(request.body.as_ref())?,
        _ => query(request),
    };
    Ok(Wanted { method, path, query, body })
}

/// A path segment that every parser reads alike.
fn segment(part: &str) -> Result<String, Status> {
    let why = names::path_segment(part);
    let odd = |byte: u8| b"\\;?#".contains(&byte) || byte.is_ascii_control();
    if !why.is_empty() || part.is_empty() || part.bytes().any(odd) {
        return Err(Status::bad_request(format!("invalid resource name {part:?}: [{}]", why.join(" "))));
    }
    Ok(escaped(part))
}

fn sent(request: &Request) -> Result<Bytes, Status> {
    let body = request.body.as_ref().ok_or_else(|| Status::bad_request("the request has no body"))?;
    Ok(Bytes::from(body.to_string()))
}

fn media_type(request: &Request) -> Result<&'static str, Status> {
    match request.options.patch_type {
        Some(PatchType::Json) => Ok("application/json-patch+json"),
        Some(PatchType::Merge) => Ok("application/merge-patch+json"),
        Some(PatchType::Strategic) => Ok("application/strategic-merge-patch+json"),
        // JSON is YAML.
        Some(PatchType::Apply) => Ok("application/apply-patch+yaml"),
        Some(PatchType::ThreeWay) | None => {
            Err(Status::failure(415, "UnsupportedMediaType", "the patch names no patchType that others know"))
        }
    }
}

fn query(request: &Request) -> String {
    let options = &request.options;
    let flag = |is: bool, value: &str| is.then(|| value.to_owned());
    let number = |value: Option<u64>| value.map(|n| n.to_string());
    let validation = options.field_validation.map(|validation| match validation {
        FieldValidation::Strict => "Strict".to_owned(),
        FieldValidation::Warn => "Warn".to_owned(),
        FieldValidation::Ignore => "Ignore".to_owned(),
    });
    let writes = matches!(request.verb, Verb::Create | Verb::Update | Verb::Patch);
    let watches = request.verb == Verb::Watch;
    let pairs = [
        ("watch", flag(watches, "true")),
        ("labelSelector", options.label_selector.clone()),
        ("fieldSelector", options.field_selector.clone()),
        ("metricLabelSelector", options.metric_label_selector.clone()),
        ("limit", number(options.limit)),
        ("continue", options.continue_token.clone()),
        ("resourceVersion", options.resource_version.clone()),
        ("resourceVersionMatch", options.resource_version_match.clone()),
        ("sendInitialEvents", flag(options.send_initial_events, "true")),
        ("allowWatchBookmarks", flag(options.allow_watch_bookmarks && watches, "true")),
        ("timeoutSeconds", number(options.timeout_seconds)),
        ("dryRun", flag(options.dry_run && writes, "All")),
        ("fieldValidation", validation.filter(|_| writes)),
        ("fieldManager", options.field_manager.clone().filter(|_| writes)),
        ("force", flag(options.force && options.patch_type == Some(PatchType::Apply), "true")),
    ];
    let mut out = String::new();
    for (key, value) in pairs {
        if let Some(value) = value {
            // Writing to a String does not fail.
            let _ = write!(out, "{}{key}={}", if out.is_empty() { "" } else { "&" }, escaped(&value));
        }
    }
    out
}

/// The options of a session as a query: lists are repeated.
fn options(given: Option<&Value>) -> Result<String, Status> {
    let of_one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    let fields = match given {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(Status::bad_request("the options of a session are an object")),
    };
    let mut out = String::new();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            let value = of_one(value).ok_or_else(|| {
                Status::bad_request(format!(
                    "the option {key:?} of a session is neither a text, a number, nor a list of those"
                ))
            })?;
            // Writing to a String does not fail.
            let _ = write!(out, "{}{}={}", if out.is_empty() { "" } else { "&" }, escaped(key), escaped(&value));
        }
        if out.len() > MAX_OPTIONS {
            return Err(Status::failure(
                413,
                "RequestEntityTooLarge",
                format!("options of a session with an extension API server may have {MAX_OPTIONS} bytes"),
            ));
        }
    }
    Ok(out)
}

fn delete_options(options: &Options) -> Value {
    let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    if let Some(seconds) = options.grace_period_seconds {
        body["gracePeriodSeconds"] = seconds.into();
    }
    if let Some(policy) = &options.propagation_policy {
        body["propagationPolicy"] = policy.as_str().into();
    }
    if let Some(preconditions) = &options.preconditions {
        body["preconditions"] = json!(preconditions);
    }
    if options.dry_run {
        body["dryRun"] = json!(["All"]);
    }
    body
}

/// Percent-encodes a string for a path or query: everything that is not unreserved.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~*".contains(&byte) {
            true => out.push(char::from(byte)),
            false => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_api::Object;
    use podwright_api::request::Preconditions;

    fn table(served: &[(&str, &str, i64)]) -> Table {
        let object = |(group, version, priority): &(&str, &str, i64)| {
            Object(json!({"metadata": {"name": format!("{version}.{group}"), "uid": "u"}, "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": priority,
                "service": {"namespace": "n", "name": "s"},
            }}))
        };
        Table::of(1, served.iter().map(object), &Table::default())
    }

    #[test]
    fn a_name_says_whose_resource_it_is() {
        let table = table(&[
            ("ext.example.com", "v1", 15),
            ("ext.example.com", "v2beta1", 15),
            ("ext.example.com", "v1alpha1", 100),
            ("metrics.k8s.io", "v1beta1", 15),
            ("custom.metrics.k8s.io", "v1beta1", 10),
            ("custom.metrics.k8s.io", "v1beta2", 20),
        ]);
        for (name, told) in [
            ("things.ext.example.com/v1", Some("v1.ext.example.com things")),
            ("things.ext.example.com/v2", None),
            ("things.ext.example.com/", Some("v1alpha1.ext.example.com things")),
            ("things.ext.example.com", Some("v1alpha1.ext.example.com things")),
            ("things.v1.ext.example.com", Some("v1.ext.example.com things")),
            ("pods.metrics.k8s.io", Some("v1beta1.metrics.k8s.io pods")),
            ("deployments.apps.custom.metrics.k8s.io/", Some("v1beta2.custom.metrics.k8s.io deployments.apps")),
            ("ext.example.com/v1", None),
            (".ext.example.com/v1", None),
            ("things.text.example.com/v1", None),
            ("things", None),
            ("", None),
        ] {
            let found = table.named(name).map(|(registration, plural)| format!("{} {plural}", registration.name));
            assert_eq!(found.as_deref(), told, "{name}");
        }
    }

    fn asked(verb: Verb, change: impl FnOnce(&mut Request)) -> Result<Wanted, Status> {
        let table = table(&[("ext.example.com", "v1", 15)]);
        let (registration, plural) = table.named("things.ext.example.com/v1").unwrap();
        let mut request = Request { verb, namespace: Some("a".into()), name: Some("x".into()), ..Request::default() };
        change(&mut request);
        wanted(&registration, &plural, &request)
    }

    #[test]
    fn a_request_is_asked_as_rest_asks_it() {
        const THINGS: &str = "/apis/ext.example.com/v1/namespaces/a/things";
        let line = |asked: Result<Wanted, Status>| {
            let asked = asked.unwrap();
            let body = asked.body.as_ref().map(|(of, bytes)| format!(" {of} {}", String::from_utf8_lossy(bytes)));
            format!("{} {}{}", asked.method, asked.target(), body.unwrap_or_default())
        };
        assert_eq!(line(asked(Verb::Get, |_| ())), format!("GET {THINGS}/x"));
        let listed = asked(Verb::List, |request| {
            request.name = None;
            request.options.label_selector = Some("a in (b,ü)".into());
            request.options.limit = Some(1);
            request.options.field_manager = Some("me".into());
        });
        assert_eq!(line(listed), format!("GET {THINGS}?labelSelector=a%20in%20%28b%2C%C3%BC%29&limit=1"));
        let made = asked(Verb::Create, |request| {
            (request.namespace, request.body) = (None, Some(json!({"metadata": {"namespace": "a", "name": "x"}})));
            request.options.dry_run = true;
        });
        let body = r#"{"metadata":{"namespace":"a","name":"x"}}"#;
        assert_eq!(line(made), format!("POST {THINGS}?dryRun=All application/json {body}"));
        let patched = asked(Verb::Patch, |request| {
            request.subresource = Some("status".into());
            (request.body, request.options.patch_type) = (Some(json!({})), Some(PatchType::Apply));
            request.options.force = true;
        });
        assert_eq!(line(patched), format!("PATCH {THINGS}/x/status?force=true application/apply-patch+yaml {{}}"));
        let deleted = asked(Verb::Delete, |request| {
            request.options.preconditions = Some(Preconditions { uid: Some("u".into()), resource_version: None });
            request.options.propagation_policy = Some("Orphan".into());
        });
        let body =
            r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan","preconditions":{"uid":"u"}}"#;
        assert_eq!(line(deleted), format!("DELETE {THINGS}/x application/json {body}"));
        let metric = asked(Verb::Get, |request| {
            (request.name, request.subresource) = (Some("*".into()), Some("http_requests:rate".into()));
            request.options.metric_label_selector = Some("verb=GET".into());
        });
        assert_eq!(line(metric), format!("GET {THINGS}/*/http_requests%3Arate?metricLabelSelector=verb%3DGET"));
    }

    #[test]
    fn no_part_of_a_request_leads_to_another_path() {
        for odd in ["..", ".", "a/b", "a%2Fb", "a;b", "a?b", "a#b", "a\\b", "a\r\nHost: b"] {
            assert!(asked(Verb::Get, |request| request.name = Some(odd.into())).is_err(), "{odd}");
            assert!(asked(Verb::Get, |request| request.namespace = Some(odd.into())).is_err(), "{odd}");
            assert!(asked(Verb::Get, |request| request.subresource = Some(odd.into())).is_err(), "{odd}");
        }
        assert!(asked(Verb::Get, |request| request.name = None).is_err());
        assert!(asked(Verb::Update, |_| ()).is_err(), "it has no body");
        assert_eq!(asked(Verb::Connect, |_| ()).unwrap_err().code, 405);
        assert_eq!(asked(Verb::Connect, |request| request.subresource = Some("proxy".into())).unwrap_err().code, 405);
    }

    #[test]
    fn options_of_a_session_are_a_query() {
        let with = |body: Value| {
            asked(Verb::Connect, |request| (request.subresource, request.body) = (Some("exec".into()), Some(body)))
        };
        let told = with(json!({"command": ["echo", "a&b"], "stdin": true, "tailLines": 3, "container": null})).unwrap();
        let line =
            "/apis/ext.example.com/v1/namespaces/a/things/x/exec?command=echo&command=a%26b&stdin=true&tailLines=3";
        assert_eq!((told.method.clone(), told.target().as_str()), (Method::GET, line));
        for odd in [json!([1]), json!("a"), json!({"a": {"b": 1}}), json!({"a": [[]]})] {
            assert_eq!(with(odd).unwrap_err().code, 400);
        }
        assert_eq!(with(json!({"a": "a".repeat(MAX_OPTIONS)})).unwrap_err().code, 413);
    }
}
