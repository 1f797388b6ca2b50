//! `version`: this binary's version.

use super::Global;

#[derive(clap::Args)]
pub struct Args {}

pub async fn run(_args: Args, _global: &Global) -> anyhow::Result<()> {
    println!("Client Version: v{}", env!("CARGO_PKG_VERSION"));
    Ok(())
}
