//! `version`: the versions of client and server.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    Outcome, Session,
    print::{self, Format},
};
use podwright_api::Object;

#[derive(clap::Args)]
pub struct Args {
    /// Show the client version only; no server required
    #[arg(long)]
    client: bool,
    /// Output format: json, yaml
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let client = format!("v{}", env!("CARGO_PKG_VERSION"));
    let asked = match args.client {
        true => None,
        false => Some(session.client.method("rpc.discover", json!({})).await),
    };
    let server = asked.as_ref().and_then(|a| a.as_ref().ok()).and_then(|d| d["info"]["version"].as_str());
    let server = server.map(|version| format!("v{version}"));
    match args.output {
        None => {
            outln!("Client Version: {client}");
            server.iter().for_each(|version| outln!("Server Version: {version}"));
        }
        Some(format) => {
            let mut versions = json!({ "clientVersion": info(&client) });
            if let Some(version) = &server {
                versions["serverVersion"] = info(version);
            }
            raw!("{}", print::object(&format, &Object(versions))?);
        }
    }
    asked.transpose()?;
    Ok(ExitCode::SUCCESS)
}

fn info(version: &str) -> Value {
    let mut numbers = version.trim_start_matches('v').split('.');
    let [major, minor] = [numbers.next(), numbers.next()].map(Option::unwrap_or_default);
    let platform = format!("linux/{}", std::env::consts::ARCH);
    json!({ "gitVersion": version, "major": major, "minor": minor, "platform": platform })
}
