//! `label` and `annotate`: set and remove labels and annotations.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    target::{self, Selection, Target},
    write::Writing,
};
use podwright_api::{Object, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    /// TYPE NAME... or TYPE/NAME..., then KEY=VALUE to set and KEY- to remove
    #[command(flatten)]
    selection: Selection,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    /// Allow existing values to be overwritten
    #[arg(long)]
    overwrite: bool,
    /// Display the labels or annotations of the resources
    #[arg(long)]
    list: bool,
    /// Require this resource version on the live object
    #[arg(long, value_name = "VERSION")]
    resource_version: Option<String>,
    #[command(flatten)]
    writing: Writing,
}

/// Which of the two maps is edited.
#[derive(Clone, Copy, PartialEq)]
pub enum What {
    Labels,
    Annotations,
}

impl What {
    fn field(self) -> &'static str {
        if self == What::Labels { "labels" } else { "annotations" }
    }
    fn singular(self) -> &'static str {
        if self == What::Labels { "label" } else { "annotation" }
    }
}

/// The changes in the arguments: keys with their new values, `None` to remove.
type Edits = Vec<(String, Option<String>)>;

pub async fn run(args: Args, session: &Session, what: What) -> Outcome {
    let (names, edits) = split(&args.selection.names).map_err(Failure::usage)?;
    if edits.is_empty() && !args.list {
        return Err(Failure::usage(format!("at least one {} update is required", what.singular())));
    }
    let selection = Selection { names, ..args.selection.clone() };
    let mut code = ExitCode::SUCCESS;
    for target in selection.several(args.all, session).await? {
        let objects = match selection.fetch(&target, session).await {
            Ok(objects) => objects,
            Err(status) => {
                code = Failure::from(status).report();
                continue;
            }
        };
        let several = objects.len() > 1;
        for object in objects {
            if args.list {
                list(&target, &object, what, several);
            } else if let Err(failure) = edit(&args, &edits, &target, &object, session, what).await {
                code = failure.report();
            }
        }
    }
    Ok(code)
}

/// Splits the arguments: names of objects, then edits.
fn split(words: &[String]) -> Result<(Vec<String>, Edits), String> {
    let is_edit = |word: &String| word.contains('=') || word.ends_with('-');
    let first = words.iter().position(is_edit).unwrap_or(words.len());
    let mut edits = Edits::new();
    for word in &words[first..] {
        let edit = match (word.split_once('='), word.strip_suffix('-')) {
            (Some((key, value)), _) if !key.is_empty() => (key.to_owned(), Some(value.to_owned())),
            (None, Some(key)) if !key.is_empty() => (key.to_owned(), None),
            _ => return Err(format!("all resources must be specified before changes: {word}")),
        };
        if edits.iter().any(|(key, value)| *key == edit.0 && value.is_some() != edit.1.is_some()) {
            return Err(format!("can not both modify and remove \"{}\" in the same command", edit.0));
        }
        edits.push(edit);
    }
    Ok((words[..first].to_vec(), edits))
}

/// The changes to an object as a merge patch of the map; and their description.
fn changes(
    edits: &Edits,
    now: &Map<String, Value>,
    overwrite: bool,
    what: What,
) -> Result<(Map<String, Value>, &'static str), String> {
    let mut patch = Map::new();
    let mut kept = Vec::new();
    for (key, value) in edits {
        match (value, now.get(key)) {
            (Some(new), Some(old)) if old != new && !overwrite => {
                let old = old.as_str().unwrap_or("");
                kept.push(format!("'{key}' already has a value ({old})"));
            }
            (Some(new), old) if old.is_none_or(|old| old != new) => drop(patch.insert(key.clone(), json!(new))),
            (None, Some(_)) => drop(patch.insert(key.clone(), Value::Null)),
            (None, None) if what == What::Labels => outln!("label \"{key}\" not found."),
            _ => {}
        }
    }
    if let Some(first) = kept.first() {
        return Err(match what {
            What::Labels => format!("{first}, and --overwrite is false"),
            What::Annotations => {
                let all = kept.join(", ");
                format!("--overwrite is false but found the following declared annotation(s): {all}")
            }
        });
    }
    let removes_alone = edits.iter().all(|(_, value)| value.is_none());
    let done = match what {
        What::Annotations => "annotated",
        What::Labels if patch.is_empty() => "not labeled",
        What::Labels if removes_alone => "unlabeled",
        What::Labels => "labeled",
    };
    Ok((patch, done))
}

async fn edit(
    args: &Args,
    edits: &Edits,
    target: &Target,
    object: &Object,
    session: &Session,
    what: What,
) -> Result<(), Failure> {
    let path = format!("metadata.{}", what.field());
    let now = object.at(&path).and_then(Value::as_object).cloned().unwrap_or_default();
    let (patch, done) = changes(edits, &now, args.overwrite, what).map_err(Failure::usage)?;
    if patch.is_empty() {
        return args.writing.tell(target.kind, object, done);
    }
    let mut metadata = json!({ what.field(): patch });
    if let Some(version) = &args.resource_version {
        metadata["resourceVersion"] = version.as_str().into();
    }
    let patch = json!({ "metadata": metadata });
    let changed = args.writing.patch(session, target.kind, object, PatchType::Merge, patch).await?;
    args.writing.tell(target.kind, &changed, done)
}

fn list(target: &Target, object: &Object, what: What, several: bool) {
    if several {
        outln!("Listing {} for {}:", what.field(), target::display(target.kind, object.name()));
    }
    let map = object.at(&format!("metadata.{}", what.field())).and_then(Value::as_object);
    let mut all: Vec<String> =
        map.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect();
    all.sort();
    all.iter().for_each(|line| outln!("{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn names_come_before_edits() {
        let (names, edits) = split(&words("pods web a=b c- d=e=f")).expect("well-formed words");
        assert_eq!(names, ["pods", "web"]);
        let wanted = [("a", Some("b")), ("c", None), ("d", Some("e=f"))];
        assert_eq!(edits, wanted.map(|(k, v)| (k.to_owned(), v.map(str::to_owned))));
        assert!(split(&words("pods a=b web")).is_err());
        assert!(split(&words("pods web a=b a-")).is_err());
    }

    #[test]
    fn a_value_is_not_overwritten_unasked() {
        let now = json!({"a": "b"}).as_object().cloned().expect("an object");
        let edits = vec![("a".to_owned(), Some("c".to_owned()))];
        let why = changes(&edits, &now, false, What::Labels).expect_err("refused");
        assert_eq!(why, "'a' already has a value (b), and --overwrite is false");
        let why = changes(&edits, &now, false, What::Annotations).expect_err("refused");
        let said = "--overwrite is false but found the following declared annotation(s): 'a' already has a value (b)";
        assert_eq!(why, said);
        let (patch, done) = changes(&edits, &now, true, What::Labels).expect("allowed");
        assert_eq!((Value::Object(patch), done), (json!({"a": "c"}), "labeled"));
    }

    #[test]
    fn removing_and_repeating_have_words_of_their_own() {
        let now = json!({"a": "b"}).as_object().cloned().expect("an object");
        let done = |edits: Edits| changes(&edits, &now, false, What::Labels).expect("allowed").1;
        assert_eq!(done(vec![("a".to_owned(), None)]), "unlabeled");
        assert_eq!(done(vec![("a".to_owned(), Some("b".to_owned()))]), "not labeled");
    }
}
