//! `edit`: opens an object in the user's editor, and saves the result.

use std::{io::Write as _, process::ExitCode};

use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use super::{
    Outcome, Session,
    error::Failure,
    target::{self, Selection, Target},
};
use podwright_api::{Object, Options, Status, Verb, request::PatchType, status::qualified, yaml};

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
    for target in args.selection.several(false, session).await? {
        for object in args.selection.fetch(&target, session).await? {
            if let Err(failure) = edit(&target, object, session).await {
                code = failure.report();
            }
        }
    }
    Ok(code)
}

/// Opens the editor until the result is accepted, empty, unchanged, or refused permanently. Rejected input is kept in a file.
async fn edit(target: &Target, mut object: Object, session: &Session) -> Result<(), Failure> {
    object.set_meta("managedFields", None);
    let original = yaml::to_string(&object.0).map_err(Failure::usage)?;
    let (mut text, mut reason, mut last): (String, Option<String>, Option<NamedTempFile>) =
        (original.clone(), None, None);
    loop {
        let file = match open(&format!("{HEADER}{}{text}", reason.as_deref().unwrap_or_default())) {
            Ok(file) => file,
            Err(failure) => return Err(kept(last, failure)),
        };
        // By path: editors may replace the file.
        let edited = without_comments(&std::fs::read_to_string(file.path())?);
        if reason.is_some() && edited == text {
            return Err(kept(Some(file), Failure::usage("Edit cancelled, no valid changes were saved.")));
        }
        if edited == original {
            errln!("Edit cancelled, no changes made.");
            return Ok(());
        }
        if edited.trim().is_empty() {
            errln!("Edit cancelled, saved file was empty.");
            return Ok(());
        }
        match save(target, &object, &edited, session).await {
            Ok(false) => {
                errln!("Edit cancelled, no changes made.");
                return Ok(());
            }
            Ok(true) => {
                outln!("{} edited", target::display(target.kind, object.name()));
                return Ok(());
            }
            Err(Refusal::Again(why)) => reason = Some(why),
            Err(Refusal::Final(failure)) => return Err(kept(Some(file), failure)),
            Err(Refusal::Gone) => {
                let path = keep(file)?;
                errln!("error: {} could not be found on the server", named(target, &object));
                errln!("The edits you made on deleted resources have been saved to \"{path}\"");
                return Err(Failure::Said(1));
            }
            Err(Refusal::Later(why)) => {
                let path = keep(file)?;
                errln!("error: {} could not be patched: {why}", named(target, &object));
                errln!("You can run `podwright replace -f {path}` to try this update again.");
                return Err(Failure::Said(1));
            }
        }
        (text, last) = (edited, Some(file));
    }
}

/// Why an edit was not saved.
enum Refusal {
    /// The user can fix it: comments for the top of the file with the errors.
    Again(String),
    Gone,
    /// Unrelated to its content: it may succeed later.
    Later(String),
    Final(Failure),
}

/// `deployments.apps "web"`
fn named(target: &Target, object: &Object) -> String {
    format!("{} \"{}\"", qualified(target.kind.plural, target.kind.group), object.name())
}

/// Sends the changes; returns whether there were any.
async fn save(target: &Target, before: &Object, text: &str, session: &Session) -> Result<bool, Refusal> {
    let syntax = |why: &dyn std::fmt::Display| {
        Refusal::Again(comment(&format!("The edited file had a syntax error: {why}"), &[]))
    };
    let mut documents = yaml::documents(text).map_err(|why| syntax(&why))?;
    let (Some(after), true) = (documents.pop(), documents.is_empty()) else {
        return Err(syntax(&"one object is needed"));
    };
    let Some(patch) = difference(&before.0, &after) else { return Ok(false) };
    let same = |path: &str| after.pointer(path) == before.0.pointer(path);
    if !["/apiVersion", "/kind", "/metadata/name"].into_iter().all(same) {
        return Err(Refusal::Final(Failure::usage("At least one of apiVersion, kind and name was changed")));
    }
    if !same("/metadata/namespace") {
        let given = after["metadata"]["namespace"].as_str().unwrap_or_default();
        let own = before.namespace().unwrap_or_default();
        let why = format!(
            "the namespace from the provided object \"{given}\" does not match the namespace \"{own}\". You must pass \
             '--namespace={given}' to perform this operation."
        );
        return Err(Refusal::Final(Failure::usage(why)));
    }
    let mut request = session.request(Verb::Patch, target.kind, before.namespace(), Some(before.name()));
    request.body = Some(patch);
    request.options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
    match session.object(request).await {
        Ok(_) => Ok(true),
        Err(status) if status.code == 422 => {
            // The reopened file shows the reason; scripted editors get it here.
            let name = named(target, before);
            errln!("error: {name} is invalid");
            Err(Refusal::Again(comment(&format!("{name} was not valid"), &causes(&status))))
        }
        Err(status) if status.is_not_found() => Err(Refusal::Gone),
        Err(status) => Err(Refusal::Later(status.message)),
    }
}

fn causes(status: &Status) -> Vec<String> {
    let all = status.details.iter().flat_map(|d| &d.causes).map(|c| format!("{}: {}", c.field, c.message));
    let all: Vec<String> = all.collect();
    if all.is_empty() { vec![status.message.clone()] } else { all }
}

/// The merge patch (RFC 7386) from `before` to `after`; `None` if they are equal.
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

/// A reason as comment lines, each of its causes on a line of its own.
fn comment(what: &str, causes: &[String]) -> String {
    let colon = if causes.is_empty() { "" } else { ":" };
    let head = format!("{what}{colon}");
    let lines = std::iter::once(head).chain(causes.iter().map(|cause| format!("* {cause}")));
    let text: String = lines.map(|line| format!("# {}\n", line.trim_end().replace('\n', "\n# "))).collect();
    text + "#\n"
}

fn without_comments(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect()
}

/// The text in a file, after editing.
fn open(text: &str) -> Result<NamedTempFile, Failure> {
    let mut file = tempfile::Builder::new().prefix("podwright-edit-").suffix(".yaml").tempfile()?;
    file.write_all(text.as_bytes())?;
    let editor = ["KUBE_EDITOR", "EDITOR"].iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    let status =
        std::process::Command::new("sh").arg("-c").arg(format!("{editor} \"$0\"")).arg(file.path()).status()?;
    if !status.success() {
        return Err(Failure::usage(format!("there was a problem with the editor \"{editor}\"")));
    }
    Ok(file)
}

/// Keeps the edited file, reports its path, and passes the failure on.
fn kept(file: Option<NamedTempFile>, failure: Failure) -> Failure {
    match file.map(keep) {
        Some(Ok(path)) => errln!("A copy of your changes has been stored to \"{path}\""),
        Some(Err(why)) => return why,
        None => {}
    }
    failure
}

fn keep(file: NamedTempFile) -> Result<String, Failure> {
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
        assert_eq!(podwright_api::patch::merge(&before, &patch), after);
        assert_eq!(difference(&before, &before), None);
    }
}
