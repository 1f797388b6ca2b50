//! `create token`: a token of a ServiceAccount.

use std::{process::ExitCode, time::Duration};

use serde_json::json;

use crate::{
    api::Verb,
    cli::{Outcome, Session, pods::kind_of, wait},
};

#[derive(clap::Args)]
pub struct Args {
    /// The ServiceAccount
    name: String,
    /// How long it shall be good [default: the server's]
    #[arg(long, value_parser = wait::duration)]
    duration: Option<Duration>,
    /// For whom
    #[arg(long, value_name = "NAME")]
    audience: Vec<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let mut spec = json!({ "audiences": args.audience });
    if let Some(duration) = args.duration {
        spec["expirationSeconds"] = duration.as_secs().into();
    }
    let mut request = session.request(Verb::Create, kind_of("serviceaccounts"), None, Some(&args.name));
    request.subresource = Some("token".to_owned());
    request.body = Some(json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec }));
    let answer = session.object(request).await?;
    outln!("{}", answer.0["status"]["token"].as_str().unwrap_or(""));
    Ok(ExitCode::SUCCESS)
}
