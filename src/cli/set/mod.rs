//! `set`: changes properties of containers, in Pods and templates of workloads.

mod env;
mod image;
mod resources;
mod service_account;

use serde_json::Value;

use super::{Outcome, Session, error::Failure, target::Target, write::Writing};
use podwright_api::{Object, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Update the image of a Pod template: TYPE/NAME CONTAINER=IMAGE...
    Image(image::Args),
    /// Update environment variables on a Pod template: TYPE/NAME KEY=VALUE... KEY-...
    Env(env::Args),
    /// Update resource requests and limits on objects with Pod templates
    Resources(resources::Args),
    /// Update the ServiceAccount of a resource: TYPE/NAME SERVICEACCOUNT
    #[command(visible_alias = "sa")]
    Serviceaccount(service_account::Args),
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    match args.what {
        What::Image(args) => image::run(args, session).await,
        What::Env(args) => env::run(args, session).await,
        What::Resources(args) => resources::run(args, session).await,
        What::Serviceaccount(args) => service_account::run(args, session).await,
    }
}

/// The path of the PodSpec in an object that has one.
fn base(object: &Object) -> &'static str {
    let ways = ["spec.jobTemplate.spec.template.spec", "spec.template.spec"];
    ways.into_iter().find(|way| object.at(way).is_some()).unwrap_or("spec")
}

/// Whether an argument matches a container's name: `*`, the name, or with `*` at its ends.
fn is_meant(word: &str, name: &str) -> bool {
    match (word.strip_prefix('*'), word.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(word.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => word == name,
    }
}

/// The matching containers, by list and index; an error if there are none.
fn containers<'a>(object: &'a Object, word: &str, lists: &[&'static str]) -> Result<Vec<(String, &'a Value)>, Failure> {
    let base = base(object);
    let mut found = Vec::new();
    for list in lists {
        let all = object.at(&format!("{base}.{list}")).and_then(Value::as_array);
        for (at, container) in all.into_iter().flatten().enumerate() {
            if is_meant(word, container["name"].as_str().unwrap_or_default()) {
                found.push((format!("/{}/{list}/{at}", base.replace('.', "/")), container));
            }
        }
    }
    if found.is_empty() {
        let what = object.name();
        return Err(Failure::usage(format!(
            "{} {what} does not have any containers matching \"{word}\"",
            object.kind()
        )));
    }
    Ok(found)
}

/// Sends a JSON patch, and reports the result; an empty one is not sent.
async fn send(
    writing: &Writing,
    session: &Session,
    target: &Target,
    object: &Object,
    patch: Vec<Value>,
    done: &str,
) -> Result<(), Failure> {
    if patch.is_empty() {
        return Ok(());
    }
    let changed = writing.patch(session, target.kind, object, PatchType::Json, Value::Array(patch)).await?;
    writing.tell(target.kind, &changed, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_meant_by_patterns() {
        let meant = |word: &str| {
            ["web", "web-proxy", "log"].into_iter().filter(|name| is_meant(word, name)).collect::<Vec<_>>()
        };
        assert_eq!(meant("*"), ["web", "web-proxy", "log"]);
        assert_eq!(meant("web"), ["web"]);
        assert_eq!(meant("web*"), ["web", "web-proxy"]);
        assert_eq!(meant("*proxy"), ["web-proxy"]);
        assert_eq!(meant("*o*"), ["web-proxy", "log"]);
        assert!(meant("none").is_empty());
    }
}
