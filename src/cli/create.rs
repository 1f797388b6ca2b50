//! `create`: makes objects from manifests; one that exists already is an error.

use std::process::ExitCode;

use super::{
    Outcome, Session,
    apply::{check_namespace, field_validation},
    error::Failure,
    manifest::{Document, Files},
    print::{self, Format},
    target,
};
use crate::api::Verb;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// Show the result: json, yaml, name
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
    /// none, client: show what would be sent; server: validate, but store nothing
    #[arg(long, default_value = "none", value_parser = ["none", "client", "server"])]
    dry_run: String,
    /// What to do with unknown fields: strict, warn, ignore
    #[arg(long, default_value = "strict", value_parser = ["strict", "true", "warn", "ignore", "false"])]
    validate: String,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.files.is_empty() {
        return Err(Failure::usage("must specify one of -f and -k"));
    }
    let mut code = ExitCode::SUCCESS;
    for document in args.files.documents()? {
        if let Err(failure) = create(document, &args, session).await {
            code = failure.report();
        }
    }
    Ok(code)
}

async fn create(document: Document, args: &Args, session: &Session) -> Result<(), Failure> {
    check_namespace(session, &document)?;
    let object = if args.dry_run == "client" {
        document.object.clone()
    } else {
        let mut request = session.request(Verb::Create, document.kind, document.object.namespace(), None);
        request.body = Some(document.object.0.clone());
        request.options.dry_run = args.dry_run == "server";
        request.options.field_validation = Some(field_validation(&args.validate));
        session.object(request).await.map_err(|status| Failure::doing(status, document.doing("creating")))?
    };
    match &args.output {
        None => outln!("{} created", target::display(document.kind, object.name())),
        Some(format) => out!("{}", print::object(format, &object)?),
    }
    Ok(())
}
