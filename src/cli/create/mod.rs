//! `create`: creates objects from manifests or flags; an existing one is an error.

mod access;
mod batch;
mod bounds;
mod generators;
mod ingress;
mod object;
mod sources;
mod token;

use std::process::ExitCode;

use self::generators::Generator;
use super::{
    Outcome, Session,
    apply::{check_namespace, field_validation},
    error::Failure,
    known,
    manifest::{Document, Files},
    write::Writing,
};
use podwright_api::{FieldValidation, Object, kinds, patch::apply::annotated};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// How to treat unknown and duplicate fields: strict (fail), warn, ignore
    #[arg(long, default_value = "strict", value_parser = ["strict", "true", "warn", "ignore", "false"])]
    validate: String,
    /// Save the configuration of the object in its annotation, for later use of apply
    #[arg(long)]
    save_config: bool,
    #[command(flatten)]
    writing: Writing,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(clap::Subcommand)]
enum What {
    #[command(flatten)]
    Object(Generator),
    /// Request a service account token
    Token(token::Args),
}

pub async fn run(mut args: Args, session: &Session) -> Outcome {
    match args.what.take() {
        None => {}
        Some(What::Token(args)) => return token::run(args, session).await,
        Some(What::Object(generator)) => return generated(&generator, &args.writing, session).await,
    }
    if args.files.is_empty() {
        return Err(Failure::usage("must specify one of -f and -k"));
    }
    let mut code = ExitCode::SUCCESS;
    for document in args.files.documents(session).await? {
        if let Err(failure) = create(document, &args, session).await {
            code = failure.report();
        }
    }
    Ok(code)
}

async fn create(document: Document, args: &Args, session: &Session) -> Result<(), Failure> {
    check_namespace(session, &document)?;
    let validation = field_validation(&args.validate);
    let mut object = document.object.clone();
    if args.save_config {
        object = Object(annotated(&object.0)?);
    }
    let made = args.writing.create(session, document.kind, &object, validation).await;
    let made = made.map_err(|failure| failure.while_doing(document.doing("creating")))?;
    args.writing.tell(document.kind, &made, "created")
}

/// Creates the object described by flags; a dry run shows its namespace only if given explicitly.
async fn generated(generator: &Generator, writing: &Writing, session: &Session) -> Outcome {
    let source = match generator {
        Generator::Job(job) => job.source(session).await?,
        _ => None,
    };
    known::learn_of(session, generator.resources()).await;
    let object = match (generator, &source) {
        (Generator::Job(job), Some(source)) => job.object(Some(source)).map(Object).map_err(Failure::usage),
        (generator, _) => generator.object(),
    };
    let mut object = object?;
    // The invariant: generators create built-in kinds.
    let kind = kinds::of(object.api_version(), object.kind()).expect("a kind of the table");
    if kind.namespaced && session.namespace_given {
        object.set_meta("namespace", serde_json::Value::from(session.namespace.as_str()));
    }
    let made = writing.create(session, kind, &object, FieldValidation::Strict).await;
    // In kubectl's words: a Namespace's error is unchanged, others have the attempted action.
    let made = made.map_err(|failure| match failure {
        Failure::Server { status, .. } if kind.built_in() != "Namespace" => {
            Failure::usage(format!("failed to create {}: {}", kind.singular, status.message))
        }
        other => other,
    })?;
    writing.tell(kind, &made, "created")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
