//! `diff`: shows what `apply` would change, using `diff`; the exit code is 1 if there is anything.

use std::{io::Write as _, path::Path, process::ExitCode};

use super::{
    Outcome, Session,
    apply::check_namespace,
    error::Failure,
    manifest::{Document, Files},
    object_of, out, warn,
};
use podwright_api::{Object, Options, Verb, patch::apply::unapplied, request::PatchType, yaml};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    files: Files,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.files.is_empty() {
        return Err(Failure::usage("must specify one of -f and -k"));
    }
    let live = tempfile::Builder::new().prefix("LIVE-").tempdir()?;
    let merged = tempfile::Builder::new().prefix("MERGED-").tempdir()?;
    for document in args.files.documents(session).await? {
        let (before, after) = versions(&document, session).await?;
        let name = file_name(&document, &after);
        if let Some(before) = before {
            write(&live.path().join(&name), before)?;
        }
        write(&merged.path().join(&name), after)?;
    }
    show(live.path(), merged.path())
}

/// The live object, if it exists, and the result of applying.
async fn versions(document: &Document, session: &Session) -> Result<(Option<Object>, Object), Failure> {
    check_namespace(session, document)?;
    let (kind, object) = (document.kind, &document.object);
    let before = match session.get(kind, object.namespace(), object.name()).await {
        Ok(live) => Some(live),
        Err(status) if status.is_not_found() => None,
        Err(status) => return Err(status.into()),
    };
    let mut request = session.request(Verb::Patch, kind, object.namespace(), Some(object.name()));
    request.body = Some(object.0.clone());
    request.options = Options { patch_type: Some(PatchType::ThreeWay), dry_run: true, ..Options::default() };
    let mut response = session.client.call(request).await?;
    // It is shown what apply would do, which is to tell this.
    let told = before.as_ref().and_then(|live| unapplied(kind.plural, live));
    response.warnings.retain(|warning| Some(warning) != told.as_ref());
    warn(&response);
    Ok((before, object_of(response)?))
}

/// `apps.v1.Deployment.default.web`
fn file_name(document: &Document, object: &Object) -> String {
    let kind = document.kind;
    let parts = [kind.group, kind.version, kind.kind, object.namespace().unwrap_or(""), object.name()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
}

/// Fields that always differ are dropped.
fn write(path: &Path, mut object: Object) -> Result<(), Failure> {
    object.set_meta("managedFields", None);
    let text = yaml::to_string(&object.0).map_err(Failure::usage)?;
    Ok(std::fs::File::create(path)?.write_all(text.as_bytes())?)
}

/// Runs `diff`, or the program in `KUBECTL_EXTERNAL_DIFF`.
fn show(live: &Path, merged: &Path) -> Outcome {
    let program = std::env::var("KUBECTL_EXTERNAL_DIFF").unwrap_or_else(|_| "diff -u -N".to_owned());
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg(format!("{program} \"$0\" \"$1\"")).args([live, merged]);
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    out::bytes(&output.stdout);
    match output.status.code() {
        Some(0) => Ok(ExitCode::SUCCESS),
        code => Err(Failure::Said(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(2))),
    }
}
