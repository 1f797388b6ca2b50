//! `delete`: deletes objects and, unless told otherwise, waits until they are gone.

use std::{process::ExitCode, time::Duration};

use super::{
    Outcome, Session,
    error::Failure,
    target::{self, Selection, Target},
    wait,
};
use podwright_api::{Object, Options, Status, Verb, request::Preconditions};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    /// Period of time in seconds given to the resource to terminate gracefully; -1: the resource's own
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    grace_period: i64,
    /// Signal resources for immediate shutdown, same as --grace-period=1
    #[arg(long)]
    now: bool,
    /// Immediately remove resources from the API and bypass graceful deletion, with --grace-period=0
    #[arg(long)]
    force: bool,
    /// Deletion cascading strategy for the dependents: background, foreground, orphan
    #[arg(long, default_value = "background", value_parser = ["background", "foreground", "orphan", "true", "false"])]
    cascade: String,
    /// Wait for resources to be gone before returning
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    wait: bool,
    /// The length of time to wait; 0s: wait forever
    #[arg(long, default_value = "0s", value_parser = wait::duration)]
    timeout: Duration,
    /// Treat "resource not found" as a successful retrieval
    #[arg(long)]
    ignore_not_found: bool,
    /// Must be "none", "client" (only print what would be deleted) or "server" (submit the request without deleting)
    #[arg(long, default_value = "none", value_parser = ["none", "client", "server"], num_args = 0..=1, default_missing_value = "client", require_equals = true)]
    dry_run: String,
    /// Output format: name
    #[arg(long, short = 'o', value_parser = ["name"])]
    output: Option<String>,
}

impl Args {
    fn options(&self, uid: &str) -> Options {
        let grace = match (self.now, self.force, self.grace_period) {
            (true, ..) => Some(1),
            (false, true, -1) => Some(0),
            (false, _, grace) => Some(grace).filter(|g| *g >= 0),
        };
        let policy = match self.cascade.as_str() {
            "foreground" => "Foreground",
            "orphan" | "false" => "Orphan",
            _ => "Background",
        };
        Options {
            grace_period_seconds: grace,
            propagation_policy: Some(policy.to_owned()),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() }),
            dry_run: self.dry_run == "server",
            ..Options::default()
        }
    }

    fn note(&self) -> &'static str {
        match self.dry_run.as_str() {
            "none" => "",
            "client" => " (dry run)",
            _ => " (server dry run)",
        }
    }
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.all && (args.selection.selector.is_some() || args.selection.field_selector.is_some()) {
        return Err(Failure::usage("setting 'all' parameter but found a non empty selector. "));
    }
    let targets = args.selection.several(args.all, session).await?;
    let broad = targets.iter().any(|t| t.name.is_none());
    if args.force && args.grace_period <= 0 {
        errln!(
            "Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. \
             The resource may continue to run on the cluster indefinitely."
        );
    }
    let (mut going, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for target in &targets {
        match delete(&args, target, session).await {
            Ok(objects) => going.extend(objects.into_iter().map(|o| (target.kind, o))),
            Err(status) if status.is_not_found() && args.ignore_not_found => {}
            Err(status) => code = Failure::from(status).report(),
        }
    }
    if going.is_empty() && broad && code == ExitCode::SUCCESS {
        outln!("No resources found");
    }
    if args.wait && args.dry_run == "none" {
        let deadline = (!args.timeout.is_zero()).then(|| tokio::time::Instant::now() + args.timeout);
        for (kind, object) in &going {
            wait::gone(session, kind, object, deadline).await?;
        }
    }
    Ok(code)
}

/// Deletes a target's objects; returns them as they were.
async fn delete(args: &Args, target: &Target, session: &Session) -> Result<Vec<Object>, Status> {
    let objects = args.selection.fetch(target, session).await?;
    let mut deleted = Vec::new();
    for object in objects {
        let mut request = session.request(Verb::Delete, target.kind, object.namespace(), Some(object.name()));
        request.options = args.options(object.uid());
        if args.dry_run != "client" {
            match session.call(request).await {
                Err(status) if status.is_not_found() && target.name.is_none() => continue,
                outcome => drop(outcome?),
            }
        }
        match args.output {
            Some(_) => outln!("{}", target::display(target.kind, object.name())),
            None => {
                let how = if args.force { "force deleted" } else { "deleted" };
                outln!("{} \"{}\" {how}{}", target::singular(target.kind), object.name(), args.note());
            }
        }
        deleted.push(object);
    }
    Ok(deleted)
}
