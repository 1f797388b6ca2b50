//! `apply`: creates or updates objects according to manifests.

use std::process::ExitCode;

use super::{
    Outcome, Session,
    error::Failure,
    manifest::{Document, Files},
    object_of,
    print::{self, Format},
    target,
};
use podwright_api::{
    FieldValidation, Object, Response, Status, Verb,
    patch::apply::unapplied,
    request::{Body, PatchType},
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// Output format: json, yaml, name
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
    /// Must be "none", "server" or "client"; with "server" the request is submitted without persisting the resource
    #[arg(long, default_value = "none", value_parser = ["none", "client", "server"])]
    dry_run: String,
    /// How to treat unknown and duplicate fields: strict (fail), warn, ignore
    #[arg(long, default_value = "strict", value_parser = ["strict", "true", "warn", "ignore", "false"])]
    validate: String,
    /// Selector (label query) to filter on
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<String>,
    /// Run the apply on the server instead of the client
    #[arg(long)]
    server_side: bool,
    /// Force changes against conflicts in server-side apply
    #[arg(long, requires = "server_side")]
    force_conflicts: bool,
    /// The name of the manager used to track field ownership [default: kubectl, kubectl-client-side-apply]
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
}

impl Args {
    fn manager(&self) -> String {
        let default = if self.server_side { "kubectl" } else { "kubectl-client-side-apply" };
        self.field_manager.clone().unwrap_or_else(|| default.to_owned())
    }
}

/// kubectl's hint after a conflict.
const CONFLICT: &str = "
Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
* You may co-own fields by updating your manifest to match the existing
  value; in this case, you'll become the manager if the other manager(s)
  stop managing the field (remove it from their configuration).
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts";

/// What apply did with an object, or would have done.
fn verdict(response: &Response) -> &'static str {
    match response.body {
        Body::Object { created: true, .. } => "created",
        _ if response.unchanged => "unchanged",
        _ => "configured",
    }
}

pub fn field_validation(flag: &str) -> FieldValidation {
    match flag {
        "warn" => FieldValidation::Warn,
        "ignore" | "false" => FieldValidation::Ignore,
        _ => FieldValidation::Strict,
    }
}

/// Applies each object; a refused one does not stop the others.
pub async fn run(args: Args, session: &Session) -> Outcome {
    let mut documents = args.files.documents(session).await?;
    if let Some(text) = &args.selector {
        let selector = podwright_api::selector::LabelSelector::parse(text)?;
        documents.retain(|d| selector.matches(|key| d.object.label(key)));
    }
    let mut code = ExitCode::SUCCESS;
    for document in documents {
        if let Err(failure) = apply(document, &args, session).await {
            code = failure.report();
        }
    }
    Ok(code)
}

async fn apply(document: Document, args: &Args, session: &Session) -> Result<(), Failure> {
    let (kind, object) = (document.kind, &document.object);
    let name = Some(object.name()).filter(|n| !n.is_empty());
    let name = name.ok_or_else(|| {
        Failure::usage(format!(
            "error when retrieving current configuration of \"{}\": resource name may not be empty",
            document.source
        ))
    })?;
    check_namespace(session, &document)?;
    let namespace = object.namespace();
    let response = match args.dry_run.as_str() {
        "client" => {
            let live = live(session, &document).await?;
            let warning = live.as_ref().filter(|_| !args.server_side).and_then(|live| unapplied(kind.plural, live));
            warning.iter().for_each(|warning| errln!("Warning: {warning}"));
            Body::Object { bytes: document.object.to_vec().into(), created: live.is_none() }.into()
        }
        dry_run => {
            let mut request = session.request(Verb::Patch, kind, namespace, Some(name));
            request.body = Some(object.0.clone());
            request.options.patch_type = Some(if args.server_side { PatchType::Apply } else { PatchType::ThreeWay });
            request.options.field_manager = Some(args.manager());
            request.options.force = args.force_conflicts;
            request.options.dry_run = dry_run == "server";
            request.options.field_validation = Some(field_validation(&args.validate));
            match session.call(request).await {
                Ok(response) => response,
                Err(status) => return Err(refused(session, &document, status).await),
            }
        }
    };
    let note = match args.dry_run.as_str() {
        "none" => "",
        "client" => " (dry run)",
        _ => " (server dry run)",
    };
    match &args.output {
        None if args.server_side => outln!("{} serverside-applied{note}", target::display(kind, name)),
        None => outln!("{} {}{note}", target::display(kind, name), verdict(&response)),
        Some(format) => raw!("{}", print::object(format, &object_of(response)?)?),
    }
    Ok(())
}

/// The object as the server has it.
async fn live(session: &Session, document: &Document) -> Result<Option<Object>, Failure> {
    match session.get(document.kind, document.object.namespace(), document.object.name()).await {
        Ok(live) => Ok(Some(live)),
        Err(status) if status.is_not_found() => Ok(None),
        Err(status) => Err(Failure::doing(status, document.doing("retrieving current configuration of"))),
    }
}

/// kubectl's words for what the server refused, which depend on whether the object is there.
async fn refused(session: &Session, document: &Document, status: Status) -> Failure {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    if causes.into_iter().any(|cause| cause.reason == "FieldManagerConflict") {
        return Failure::usage(format!("{}{CONFLICT}", status.message));
    }
    match live(session, document).await {
        Ok(live) => {
            let what = if live.is_some() { "applying patch to" } else { "creating" };
            Failure::doing(status, document.doing(what))
        }
        Err(failure) => failure,
    }
}

/// `-n` and the manifest's own namespace must agree.
pub fn check_namespace(session: &Session, document: &Document) -> Result<(), Failure> {
    match document.object.namespace() {
        Some(own) if session.namespace_given && document.kind.namespaced && own != session.namespace => {
            Err(Failure::usage(format!(
                "the namespace from the provided object \"{own}\" does not match the namespace \"{}\". \
                 You must pass '--namespace={own}' to perform this operation.",
                session.namespace
            )))
        }
        _ => Ok(()),
    }
}
