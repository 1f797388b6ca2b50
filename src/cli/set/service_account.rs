//! `set serviceaccount`: changes the ServiceAccount of Pods.

use std::process::ExitCode;

use serde_json::json;

use super::base;
use crate::{Outcome, Session, error::Failure, target::Selection, write::Writing};
use podwright_api::request::PatchType;

#[derive(clap::Args)]
pub struct Args {
    /// TYPE NAME... or TYPE/NAME..., then the name of the ServiceAccount
    #[command(flatten)]
    selection: Selection,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let mut selection = args.selection.clone();
    let Some(account) = selection.names.pop() else {
        return Err(Failure::usage("serviceaccount is required"));
    };
    if account.contains('/') {
        return Err(Failure::usage("serviceaccount is required"));
    }
    let mut code = ExitCode::SUCCESS;
    for target in selection.several(args.all, session).await? {
        for object in selection.fetch(&target, session).await? {
            let spec = json!({ "serviceAccountName": account });
            // Built from the innermost part of the path to the outermost.
            let patch = base(&object).rsplit('.').fold(spec, |inner, part| json!({ part: inner }));
            let changed = args.writing.patch(session, target.kind, &object, PatchType::Strategic, patch).await;
            let told = changed.and_then(|changed| args.writing.tell(target.kind, &changed, "serviceaccount updated"));
            if let Err(failure) = told {
                code = failure.report();
            }
        }
    }
    Ok(code)
}
