//! `set env`: changes and lists environment variables of containers.

use std::{io::Read, process::ExitCode};

use serde_json::{Value, json};

use super::{containers, send};
use crate::{
    Outcome, Session,
    error::Failure,
    known,
    pods::kind_of,
    target::{self, Selection},
    write::Writing,
};
use podwright_api::Object;

#[derive(clap::Args)]
pub struct Args {
    /// TYPE NAME... or TYPE/NAME..., then KEY=VALUE to set, KEY- to remove, - to read KEY=VALUE from standard input
    #[command(flatten)]
    selection: Selection,
    /// A key-value pair for an environment variable to set into each container
    #[arg(long, short = 'e', value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// The name of a resource from which to inject environment variables: configmap/NAME, secret/NAME
    #[arg(long, value_name = "TYPE/NAME")]
    from: Option<String>,
    /// Keys to import from the resource that --from names
    #[arg(long, value_delimiter = ',', value_name = "KEY", requires = "from")]
    keys: Vec<String>,
    /// Prefix to append to variable names
    #[arg(long, default_value = "", value_name = "TEXT")]
    prefix: String,
    /// The names of containers to change; wildcards are supported
    #[arg(long, short = 'c', default_value = "*", value_name = "NAME")]
    containers: String,
    /// Display the environment variables, and do not change anything
    #[arg(long)]
    list: bool,
    /// Allow environment variables to be overwritten
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    overwrite: bool,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    writing: Writing,
}

/// The changes to the variables.
struct Change {
    /// Entries of `env`, in order.
    set: Vec<Value>,
    removed: Vec<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let is_variable = |word: &String| word.contains('=') || word.ends_with('-');
    let (words, names): (Vec<String>, Vec<String>) = args.selection.names.iter().cloned().partition(is_variable);
    let mut change = change(words.into_iter().chain(args.env.iter().cloned()))?;
    if let Some(from) = &args.from {
        change.set.extend(from_object(&args, from, session).await?);
    }
    if change.set.is_empty() && change.removed.is_empty() && !args.list {
        return Err(Failure::usage("at least one environment variable must be provided"));
    }
    let selection = Selection { names, ..args.selection.clone() };
    let mut code = ExitCode::SUCCESS;
    for target in selection.several(args.all, session).await? {
        for object in selection.fetch(&target, session).await? {
            if args.list {
                list(&object, &args.containers)?;
                continue;
            }
            let patch = patch(&object, &args, &change)?;
            if let Err(failure) = send(&args.writing, session, &target, &object, patch, "env updated").await {
                code = failure.report();
            }
        }
    }
    Ok(code)
}

/// Parses arguments: `A=b`, `A-`, and `-` for standard input.
fn change(words: impl Iterator<Item = String>) -> Result<Change, Failure> {
    let mut change = Change { set: Vec::new(), removed: Vec::new() };
    let set = |word: &str, change: &mut Change| match word.split_once('=') {
        Some((name, value)) if is_name(name) => {
            change.set.push(json!({ "name": name, "value": value }));
            Ok(())
        }
        _ => Err(Failure::usage(format!("environment variables must be of the form key=value and name one: {word:?}"))),
    };
    for word in words {
        if word == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.try_for_each(|line| set(line, &mut change))?;
        } else if let (Some(name), false) = (word.strip_suffix('-'), word.contains('=')) {
            change.removed.push(name.to_owned());
        } else {
            set(&word, &mut change)?;
        }
    }
    let both = change.set.iter().find(|entry| change.removed.iter().any(|name| entry["name"] == **name));
    match both {
        Some(entry) => {
            let name = entry["name"].as_str().unwrap_or_default();
            Err(Failure::usage(format!("can not both modify and remove the environment variable: {name}")))
        }
        None => Ok(change),
    }
}

/// Upstream's relaxed rule: printable ASCII without `=`.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

/// One reference for each key of a ConfigMap or Secret.
async fn from_object(args: &Args, from: &str, session: &Session) -> Result<Vec<Value>, Failure> {
    let (word, name) = from.split_once('/').ok_or_else(|| Failure::usage("--from must be TYPE/NAME"))?;
    known::learn_of(session, [word]).await;
    let kind = target::kind(word)?;
    let reference = match kind.built_in() {
        "ConfigMap" => "configMapKeyRef",
        "Secret" => "secretKeyRef",
        _ => return Err(Failure::usage(format!("unsupported resource specified in --from: {from}"))),
    };
    let object = session.get(kind_of(kind.plural), None, name).await?;
    let mut keys: Vec<String> =
        object.0["data"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
    keys.sort();
    keys.retain(|key| args.keys.is_empty() || args.keys.contains(key));
    let entry = |key: &String| {
        let letters =
            key.to_uppercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect::<String>();
        json!({ "name": format!("{}{letters}", args.prefix), "valueFrom": { reference: { "name": name, "key": key } } })
    };
    Ok(keys.iter().map(entry).collect())
}

fn patch(object: &Object, args: &Args, change: &Change) -> Result<Vec<Value>, Failure> {
    let mut patch = Vec::new();
    for (at, container) in containers(object, &args.containers, &["initContainers", "containers"])? {
        let before = container["env"].as_array().cloned().unwrap_or_default();
        let mut after = before.clone();
        for entry in &change.set {
            match after.iter_mut().find(|had| had["name"] == entry["name"]) {
                Some(had) if args.overwrite || had == entry => *had = entry.clone(),
                Some(_) => {
                    let name = entry["name"].as_str().unwrap_or_default();
                    return Err(Failure::usage(format!("{name} is already set, and --overwrite is false")));
                }
                None => after.push(entry.clone()),
            }
        }
        after.retain(|entry| !change.removed.iter().any(|name| entry["name"] == **name));
        if before != after {
            patch.push(json!({ "op": "add", "path": format!("{at}/env"), "value": after }));
        }
    }
    Ok(patch)
}

/// In shell syntax; references are shown in comments.
fn list(object: &Object, word: &str) -> Result<(), Failure> {
    for (_, container) in containers(object, word, &["initContainers", "containers"])? {
        let name = container["name"].as_str().unwrap_or_default();
        outln!("# {} {}, container {name}", object.kind(), object.name());
        for entry in container["env"].as_array().into_iter().flatten() {
            let variable = entry["name"].as_str().unwrap_or_default();
            match entry["valueFrom"].as_object().and_then(|from| from.iter().next()) {
                None => outln!("{variable}={}", entry["value"].as_str().unwrap_or_default()),
                Some((from, what)) => {
                    let text = |field: &str| what[field].as_str().unwrap_or_default().to_owned();
                    let source = match from.as_str() {
                        "configMapKeyRef" => format!("configmap {}, key {}", text("name"), text("key")),
                        "secretKeyRef" => format!("secret {}, key {}", text("name"), text("key")),
                        "fieldRef" => format!("field path {}", text("fieldPath")),
                        _ => format!("resource field {}", text("resource")),
                    };
                    outln!("# {variable} from {source}");
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Change, String> {
        change(words.iter().map(|word| (*word).to_owned())).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn words_say_what_is_set_and_what_goes() {
        let all = of(&["A=b=c", "B-", "C="]).unwrap();
        assert_eq!(all.set, [json!({"name": "A", "value": "b=c"}), json!({"name": "C", "value": ""})]);
        assert_eq!(all.removed, ["B"]);
        assert!(of(&["=x"]).is_err());
        assert!(of(&["A=b", "A-"]).err().unwrap().contains("can not both modify and remove"));
    }
}
