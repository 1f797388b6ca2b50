//! `backup`: a consistent copy of the server's store, while it serves.

use std::{path::PathBuf, process::ExitCode};

use serde_json::json;

use super::{Outcome, Session};

#[derive(clap::Args)]
pub struct Args {
    /// A new file on the server's machine. Its Secrets stay encrypted: keep the server's encryption-config.yaml with it
    file: PathBuf,
    /// Replace the file if there is one
    #[arg(long)]
    force: bool,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    // The server works in a folder of its own.
    let path = std::path::absolute(&args.file)?;
    session.client.method("backup", json!({ "path": path, "force": args.force })).await?;
    outln!("backup written to {}", path.display());
    Ok(ExitCode::SUCCESS)
}
