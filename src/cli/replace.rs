//! `replace`: replaces existing objects with those in manifests.

use std::process::ExitCode;

use super::{
    Outcome, Session,
    apply::check_namespace,
    error::Failure,
    manifest::{Document, Files},
    wait,
    write::Writing,
};
use podwright_api::{FieldValidation, Verb};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// Delete the resources and create them anew
    #[arg(long)]
    force: bool,
    /// With --force: period of time in seconds given to the old resource to terminate gracefully; -1: its own
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    grace_period: i64,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.files.is_empty() {
        return Err(Failure::usage("must specify --filename to replace"));
    }
    let mut code = ExitCode::SUCCESS;
    for document in args.files.documents(session).await? {
        if let Err(failure) = replace(&args, document, session).await {
            code = failure.report();
        }
    }
    Ok(code)
}

async fn replace(args: &Args, document: Document, session: &Session) -> Result<(), Failure> {
    check_namespace(session, &document)?;
    let Document { kind, object, .. } = &document;
    if !args.force {
        let replaced = args.writing.update(session, kind, object).await;
        return args.writing.tell(kind, &replaced.map_err(|f| f.while_doing(document.doing("replacing")))?, "replaced");
    }
    match session.get(kind, object.namespace(), object.name()).await {
        Err(status) if status.is_not_found() => {}
        Err(status) => return Err(status.into()),
        Ok(live) => {
            let mut request = session.request(Verb::Delete, kind, object.namespace(), Some(object.name()));
            request.options.grace_period_seconds = Some(args.grace_period).filter(|g| *g >= 0);
            session.call(request).await?;
            outln!("{} \"{}\" deleted", super::target::singular(kind), object.name());
            wait::gone(session, kind, &live, None).await?;
        }
    }
    let created = args.writing.create(session, kind, object, FieldValidation::Strict).await;
    args.writing.tell(kind, &created.map_err(|f| f.while_doing(document.doing("creating")))?, "replaced")
}
