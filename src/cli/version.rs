//! `version`: the versions of client and server.

use std::process::ExitCode;

use super::{Outcome, Session};

#[derive(clap::Args)]
pub struct Args {
    /// The client's alone; no server is asked
    #[arg(long)]
    client: bool,
}

pub async fn run(_args: Args, _session: &Session) -> Outcome {
    outln!("Client Version: v{}", env!("CARGO_PKG_VERSION"));
    Ok(ExitCode::SUCCESS)
}
