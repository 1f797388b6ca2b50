//! `edit`: an object in the caller's editor, and back.

use std::{io::Write as _, process::ExitCode};

use serde_json::{Map, Value};

use super::{
    Outcome, Session,
    error::Failure,
    target::{self, Selection, Target},
};
use crate::api::{Object, Options, Status, Verb, request::PatchType, yaml};

const HEADER: &str = "\
# Please edit the object below. Lines beginning with a '#' will be ignored,
# and an empty file will abort the edit. If an error occurs while saving this file will be
# reopened with the relevant failures.
#
";

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let mut code = ExitCode::SUCCESS;
    for target in args.selection.several(false)? {
        for object in args.selection.fetch(&target, session).await? {
            if let Err(failure) = edit(&target, object, session).await {
                code = failure.report();
            }
        }
    }
    Ok(code)
}

/// Opens the editor until what comes back is accepted, empty, or no longer changed.
async fn edit(target: &Target, mut object: Object, session: &Session) -> Result<(), Failure> {
    object.set_meta("managedFields", None);
    let original = yaml::to_string(&object.0).map_err(Failure::usage)?;
    let (mut text, mut why) = (original.clone(), None);
    loop {
        let edited = open(&format!("{HEADER}{}{text}", comment(why.as_deref())))?;
        let edited = without_comments(&edited);
        if edited.trim().is_empty() || (why.is_none() && edited == original) {
            eprintln!("Edit cancelled, no changes made.");
            return Ok(());
        }
        if why.is_some() && edited == text {
            let kept = keep(&edited)?;
            eprintln!("A copy of your changes has been stored to \"{kept}\"");
            eprintln!("{}", why.unwrap_or_default());
            return Err(Failure::usage("Edit cancelled, no valid changes were saved."));
        }
        match save(target, &object, &edited, session).await {
            Ok(false) => {
                eprintln!("Edit cancelled, no changes made.");
                return Ok(());
            }
            Ok(true) => {
                outln!("{} edited", target::display(target.kind, object.name()));
                return Ok(());
            }
            Err(refusal) => {
                // The file says why when it is opened again; who drives the editor by a script reads it here.
                eprintln!("error: {} \"{}\" is invalid", target.kind.plural, object.name());
                let what = format!("{} \"{}\" was not valid:", target.kind.plural, object.name());
                why = Some(format!("{what}\n{refusal}"));
            }
        }
        text = edited;
    }
}

/// Sends what has changed; whether anything has. A refusal is a text for the one who edits.
async fn save(target: &Target, before: &Object, text: &str, session: &Session) -> Result<bool, String> {
    let mut documents = yaml::documents(text)?;
    let (Some(after), true) = (documents.pop(), documents.is_empty()) else {
        return Err("* one object is needed".to_owned());
    };
    let Some(patch) = difference(&before.0, &after) else { return Ok(false) };
    if after["metadata"]["name"] != before.0["metadata"]["name"] || after["kind"] != before.0["kind"] {
        return Err("* metadata.name and kind may not be changed".to_owned());
    }
    let mut request = session.request(Verb::Patch, target.kind, before.namespace(), Some(before.name()));
    request.body = Some(patch);
    request.options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
    session.object(request).await.map(|_| true).map_err(|status| causes(&status))
}

fn causes(status: &Status) -> String {
    let all = status.details.iter().flat_map(|d| &d.causes).map(|c| format!("* {}: {}", c.field, c.message));
    let all: Vec<String> = all.collect();
    if all.is_empty() { format!("* {}", status.message) } else { all.join("\n") }
}

/// The merge patch (RFC 7386) that makes `after` of `before`; none where nothing differs.
fn difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            None => drop(patch.insert(key.clone(), value.clone())),
            Some(was) => {
                if let Some(change) = difference(was, value) {
                    patch.insert(key.clone(), change);
                }
            }
        }
    }
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    patch.extend(gone.map(|key| (key.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn comment(why: Option<&str>) -> String {
    let Some(why) = why else { return String::new() };
    why.lines().map(|line| format!("# {line}\n")).collect::<String>() + "#\n"
}

fn without_comments(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect()
}

/// The text as the caller's editor leaves it.
fn open(text: &str) -> Result<String, Failure> {
    let mut file = tempfile::Builder::new().prefix("podwright-edit-").suffix(".yaml").tempfile()?;
    file.write_all(text.as_bytes())?;
    let editor = ["KUBE_EDITOR", "EDITOR"].iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    let status =
        std::process::Command::new("sh").arg("-c").arg(format!("{editor} \"$0\"")).arg(file.path()).status()?;
    if !status.success() {
        return Err(Failure::usage(format!("there was a problem with the editor \"{editor}\"")));
    }
    // By path: an editor may have put a new file in the place of ours.
    Ok(std::fs::read_to_string(file.path())?)
}

fn keep(text: &str) -> Result<String, Failure> {
    let mut file = tempfile::Builder::new().prefix("podwright-edit-").suffix(".yaml").tempfile()?;
    file.write_all(text.as_bytes())?;
    let (_, path) = file.keep().map_err(anyhow::Error::from)?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_difference_is_the_smallest_merge_patch() {
        let before = json!({"a": 1, "b": {"c": [1], "d": "x"}, "e": true});
        let after = json!({"a": 1, "b": {"c": [1, 2], "d": "x"}, "f": {}});
        let patch = difference(&before, &after).expect("they differ");
        assert_eq!(patch, json!({"b": {"c": [1, 2]}, "f": {}, "e": null}));
        assert_eq!(crate::api::patch::merge(&before, &patch), after);
        assert_eq!(difference(&before, &before), None);
    }
}
