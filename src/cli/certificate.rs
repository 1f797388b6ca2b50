//! `certificate approve` and `deny`: an administrator's word on a CertificateSigningRequest.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    pods::kind_of,
    target::{self, Selection, Target},
};
use crate::api::{Object, Verb};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    word: Word,
}

#[derive(clap::Subcommand)]
enum Word {
    /// Approve certificate signing requests: their signers then issue what they ask for
    Approve(Requests),
    /// Deny certificate signing requests
    Deny(Requests),
}

#[derive(clap::Args)]
struct Requests {
    /// The names of the requests
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only requests whose labels match
    #[arg(long, short = 'l', value_name = "LABELS", conflicts_with = "names")]
    selector: Option<String>,
    /// Write the condition again where it is there already
    #[arg(long)]
    force: bool,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (requests, verb, decision) = match &args.word {
        Word::Approve(requests) => (requests, "approve", ("Approved", "KubectlApprove", "approved")),
        Word::Deny(requests) => (requests, "deny", ("Denied", "KubectlDeny", "denied")),
    };
    let (condition, reason, done) = decision;
    if requests.names.is_empty() && requests.selector.is_none() {
        return Err(Failure::usage("one or more CSRs must be specified as <name> or -f <filename>"));
    }
    let kind = kind_of("certificatesigningrequests");
    let selection = Selection { selector: requests.selector.clone(), ..Selection::default() };
    let named = requests.names.iter().cloned().map(Some);
    let names: Vec<Option<String>> = if requests.names.is_empty() { vec![None] } else { named.collect() };
    let message = format!("This CSR was {done} by podwright certificate {verb}.");
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let target = Target { kind, namespace: None, name };
        for object in selection.fetch(&target, session).await? {
            let name = object.name().to_owned();
            match decide(session, object, condition, reason, &message, requests.force).await {
                Ok(()) => outln!("{} {done}", target::display(kind, &name)),
                Err(failure) => code = failure.report(),
            }
        }
    }
    Ok(code)
}

async fn decide(
    session: &Session,
    mut object: Object,
    condition: &str,
    reason: &str,
    message: &str,
    force: bool,
) -> Result<(), Failure> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let all = object.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if !force && all.iter().any(|c| c["type"] == condition) {
        return Ok(());
    }
    let mut all: Vec<Value> = all.into_iter().filter(|c| c["type"] != condition).collect();
    all.push(json!({
        "type": condition, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now,
    }));
    object.0["status"]["conditions"] = Value::Array(all);
    let mut request = session.request(Verb::Update, kind_of("certificatesigningrequests"), None, Some(object.name()));
    request.subresource = Some("approval".to_owned());
    request.body = Some(object.0);
    session.object(request).await?;
    Ok(())
}
