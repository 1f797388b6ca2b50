//! `certificate approve` and `deny`: an administrator's decision on CertificateSigningRequests.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    manifest::{self, Files},
    pods::kind_of,
    target::{self, Selection, Target},
};
use podwright_api::{Object, Verb, status::qualified};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    word: Word,
}

#[derive(clap::Subcommand)]
enum Word {
    /// Approve certificate signing requests
    Approve(Requests),
    /// Deny certificate signing requests
    Deny(Requests),
}

#[derive(clap::Args)]
struct Requests {
    /// The names of the certificate signing requests
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only names are read from the file; the requests are those on the server
    #[command(flatten)]
    files: Files,
    /// Selector (label query) to filter on
    #[arg(long, short = 'l', value_name = "LABELS", conflicts_with_all = ["names", "filename"])]
    selector: Option<String>,
    /// Update the CSR even if it is already approved or denied
    #[arg(long)]
    force: bool,
}

impl Requests {
    /// The names of the requests in the files, which must not contain anything else.
    async fn in_files(&self, session: &Session) -> Result<Vec<String>, Failure> {
        if self.files.is_empty() {
            return Ok(Vec::new());
        }
        let requests = kind_of("certificatesigningrequests");
        let named = |document: manifest::Document| {
            if std::ptr::eq(document.kind, requests) {
                return Ok(document.object.name().to_owned());
            }
            let got = qualified(document.kind.kind, document.kind.group);
            Err(Failure::usage(format!(
                "can only handle CertificateSigningRequest.certificates.k8s.io objects, got {got}"
            )))
        };
        self.files.documents(session).await?.into_iter().map(named).collect()
    }
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (requests, verb, decision) = match &args.word {
        Word::Approve(requests) => (requests, "approve", ("Approved", "KubectlApprove", "approved")),
        Word::Deny(requests) => (requests, "deny", ("Denied", "KubectlDeny", "denied")),
    };
    let (condition, reason, done) = decision;
    if requests.names.is_empty() && requests.files.is_empty() && requests.selector.is_none() {
        return Err(Failure::usage("one or more CSRs must be specified as <name> or -f <filename>"));
    }
    let kind = kind_of("certificatesigningrequests");
    let selection = Selection { selector: requests.selector.clone(), ..Selection::default() };
    let named = requests.in_files(session).await?.into_iter().chain(requests.names.iter().cloned()).map(Some);
    let names: Vec<Option<String>> = if requests.selector.is_some() { vec![None] } else { named.collect() };
    let message = format!("This CSR was {done} by podwright certificate {verb}.");
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let target = Target { kind, namespace: None, name };
        let objects = match selection.fetch(&target, session).await {
            Ok(objects) => objects,
            Err(status) => {
                code = Failure::from(status).report();
                continue;
            }
        };
        for object in objects {
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
