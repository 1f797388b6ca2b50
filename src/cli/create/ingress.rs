//! `create ingress`.

use serde_json::{Map, Value, json};

use super::object::{named, with};
use crate::error::Failure;

#[derive(clap::Args)]
pub struct Ingress {
    /// The name of the object to create
    name: String,
    /// Ingress class to be used
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// Rule as HOST/PATH=SERVICE:PORT[,tls[=SECRET]]; a path that ends with * has the path type Prefix
    #[arg(long, value_name = "RULE")]
    rule: Vec<String>,
    /// Default service for the backend, as SERVICE:PORT
    #[arg(long, value_name = "SERVICE:PORT")]
    default_backend: Option<String>,
    /// Annotation to insert in the ingress object
    #[arg(long, value_name = "KEY=VALUE")]
    annotation: Vec<String>,
}

impl Ingress {
    pub fn object(&self) -> Result<Value, Failure> {
        if self.rule.is_empty() && self.default_backend.is_none() {
            return Err(Failure::usage(
                "not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)",
            ));
        }
        let mut spec = Map::new();
        if let Some(class) = &self.class {
            spec.insert("ingressClassName".to_owned(), class.as_str().into());
        }
        if let Some(service) = &self.default_backend {
            spec.insert("defaultBackend".to_owned(), backend(service)?);
        }
        // One entry for each host or secret, in order of first occurrence.
        let (mut rules, mut tls): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        for text in &self.rule {
            let rule = Rule::of(text)?;
            let path = json!({ "backend": backend(rule.service)?, "path": rule.path, "pathType": rule.path_type });
            let mut fresh = json!({ "http": { "paths": [] } });
            if !rule.host.is_empty() {
                fresh["host"] = rule.host.into();
            }
            push(entry(&mut rules, fresh, |had, fresh| had["host"] == fresh["host"]), "/http/paths", path);
            if let Some(secret) = rule.tls {
                let mut fresh = json!({ "hosts": [] });
                if !secret.is_empty() {
                    fresh["secretName"] = secret.into();
                }
                let entry = entry(&mut tls, fresh, |had, fresh| had["secretName"] == fresh["secretName"]);
                if entry["hosts"].as_array().is_some_and(|hosts| !hosts.contains(&rule.host.into())) {
                    push(entry, "/hosts", rule.host.into());
                }
            }
        }
        for (field, list) in [("rules", rules), ("tls", tls)] {
            if !list.is_empty() {
                spec.insert(field.to_owned(), Value::Array(list));
            }
        }
        let mut object = named("networking.k8s.io/v1", "Ingress", &self.name);
        for pair in &self.annotation {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(Failure::usage(format!("{pair} is an invalid annotation, expected KEY=VALUE")));
            };
            object["metadata"]["annotations"][key] = value.into();
        }
        Ok(with(object, json!({ "spec": spec, "status": { "loadBalancer": {} } })))
    }
}

/// A parsed rule.
struct Rule<'a> {
    host: &'a str,
    path: String,
    path_type: &'static str,
    service: &'a str,
    /// The secret of its certificate; may be empty for the controller's own.
    tls: Option<&'a str>,
}

impl Rule<'_> {
    fn of(text: &str) -> Result<Rule<'_>, Failure> {
        let broken = || {
            Failure::usage(format!(
                "rule {text} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
            ))
        };
        let (rule, tls) = match text.split_once(",tls") {
            None => (text, None),
            Some((rule, "")) => (rule, Some("")),
            Some((rule, secret)) => (rule, Some(secret.strip_prefix('=').ok_or_else(broken)?)),
        };
        let (at, service) =
            rule.split_once('=').filter(|(_, service)| !service.contains(['=', ','])).ok_or_else(broken)?;
        let (host, path) = at.split_once('/').ok_or_else(broken)?;
        let (path, path_type) = match path.strip_suffix('*') {
            Some(prefix) => (prefix, "Prefix"),
            None => (path, "Exact"),
        };
        Ok(Rule { host, path: format!("/{path}"), path_type, service, tls })
    }
}

/// `SERVICE:PORT`, the port by number or name.
fn backend(text: &str) -> Result<Value, Failure> {
    let (name, port) =
        text.split_once(':').filter(|(name, port)| !name.is_empty() && !port.is_empty()).ok_or_else(|| {
            Failure::usage(format!("backend {text} is invalid and should be in format servicename:serviceport"))
        })?;
    let port = port.parse::<u16>().map_or_else(|_| json!({ "name": port }), |number| json!({ "number": number }));
    Ok(json!({ "service": { "name": name, "port": port } }))
}

/// The matching entry, or a new one at the end.
fn entry(all: &mut Vec<Value>, fresh: Value, is_same: impl Fn(&Value, &Value) -> bool) -> &mut Value {
    let at = all.iter().position(|had| is_same(had, &fresh)).unwrap_or_else(|| {
        all.push(fresh);
        all.len() - 1
    });
    &mut all[at]
}

fn push(into: &mut Value, list: &str, item: Value) {
    if let Some(Value::Array(items)) = into.pointer_mut(list) {
        items.push(item);
    }
}
