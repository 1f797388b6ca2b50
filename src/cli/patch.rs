//! `patch`: changes fields of objects.

use std::{path::PathBuf, process::ExitCode};

use serde_json::Value;

use super::{
    Outcome, Session,
    error::Failure,
    target::{Selection, Target},
    write::Writing,
};
use podwright_api::{Object, Options, Verb, request::PatchType, yaml};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// The patch to be applied to the resource, in JSON or YAML
    #[arg(long, short = 'p', value_name = "PATCH")]
    patch: Option<String>,
    /// A file containing a patch to be applied to the resource
    #[arg(long, value_name = "FILE", conflicts_with = "patch")]
    patch_file: Option<PathBuf>,
    /// The type of patch being provided: json (RFC 6902), merge (RFC 7386), strategic
    #[arg(long = "type", default_value = "strategic", value_parser = ["json", "merge", "strategic"])]
    patch_type: String,
    /// Patch this subresource of the object: status, scale, resize
    #[arg(long)]
    subresource: Option<String>,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let patch = read(&args)?;
    let patch_type = match args.patch_type.as_str() {
        "json" => PatchType::Json,
        "merge" => PatchType::Merge,
        _ => PatchType::Strategic,
    };
    let mut code = ExitCode::SUCCESS;
    for target in args.selection.several(false, session).await? {
        if let Err(failure) = each(&args, &target, patch_type, &patch, session).await {
            code = failure.report();
        }
    }
    Ok(code)
}

fn read(args: &Args) -> Result<Value, Failure> {
    let text = match (&args.patch, &args.patch_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => std::fs::read_to_string(path)
            .map_err(|e| Failure::usage(format!("unable to read patch file {}: {e}", path.display())))?,
        (None, None) => {
            return Err(Failure::usage("must specify --patch or --patch-file containing the contents of the patch"));
        }
    };
    let mut documents =
        yaml::documents(&text).map_err(|e| Failure::usage(format!("unable to parse \"{text}\": {e}")))?;
    if documents.len() != 1 {
        return Err(Failure::usage("one patch is needed"));
    }
    Ok(documents.remove(0))
}

async fn each(
    args: &Args,
    target: &Target,
    patch_type: PatchType,
    patch: &Value,
    session: &Session,
) -> Result<(), Failure> {
    for before in args.selection.fetch(target, session).await? {
        let after = match &args.subresource {
            Some(part) => subresource(target, &before, part, patch_type, patch, session).await?,
            None => args.writing.patch(session, target.kind, &before, patch_type, patch.clone()).await?,
        };
        let same = before.0 == after.0
            || (after.resource_version() == before.resource_version() && !args.writing.is_client_side());
        args.writing.tell(target.kind, &after, if same { "patched (no change)" } else { "patched" })?;
    }
    Ok(())
}

async fn subresource(
    target: &Target,
    object: &Object,
    part: &str,
    patch_type: PatchType,
    patch: &Value,
    session: &Session,
) -> Result<Object, Failure> {
    let mut request = session.request(Verb::Patch, target.kind, object.namespace(), Some(object.name()));
    request.subresource = Some(part.to_owned());
    request.body = Some(patch.clone());
    request.options = Options { patch_type: Some(patch_type), ..Options::default() };
    Ok(session.object(request).await?)
}
