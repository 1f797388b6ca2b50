//! `api-versions`: lists the groups and versions that the server serves.

use std::{collections::BTreeSet, process::ExitCode};

use super::{Outcome, known};

#[derive(clap::Args)]
pub struct Args {}

pub async fn run(_: Args) -> Outcome {
    let versions: BTreeSet<String> = known::kinds().all().map(|kind| kind.api_version()).collect();
    versions.iter().for_each(|version| outln!("{version}"));
    Ok(ExitCode::SUCCESS)
}
