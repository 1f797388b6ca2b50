//! `cordon` and `uncordon`: mark nodes as unschedulable, and schedulable again.

use std::process::ExitCode;

use super::{super::Outcome, Failure, Session, Writing, close, named};

#[derive(clap::Args)]
pub struct Args {
    /// The names of the nodes
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Selector (label query) to filter on
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<String>,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session, closed: bool) -> Outcome {
    if args.nodes.is_empty() == args.selector.is_none() {
        let verb = if closed { "cordon" } else { "uncordon" };
        return Err(Failure::usage(format!("USAGE: {verb} NODE [flags]: name nodes, or select them by -l")));
    }
    for node in named(session, &args.nodes, args.selector.as_ref()).await? {
        close(session, &args.writing, &node, closed).await?;
    }
    Ok(ExitCode::SUCCESS)
}
