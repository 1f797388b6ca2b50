//! `exec`: runs a command in a container, and exits with its exit code.

use super::{
    Outcome, Session,
    error::Failure,
    pods,
    stream::{self, Ends},
};
use podwright_api::{Object, Request, Verb, rpc::ExecOptions};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: stream::SessionArgs,
    /// The command and its arguments, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.command.is_empty() {
        return Err(Failure::usage("you must specify at least one command for the container"));
    }
    let target = args.target;
    let pod = pods::one(session, &target.pod).await?;
    let ends = Ends::wanted(target.stdin, target.tty);
    let options = options(target.container.unwrap_or_default(), args.command, ends);
    let frames = stream::open(session, request(session, &pod, "exec", &options)?).await?;
    let status = stream::join(frames, ends).await?;
    stream::exit(status)
}

/// A terminal merges both outputs into one channel.
pub fn options(container: String, command: Vec<String>, ends: Ends) -> ExecOptions {
    ExecOptions { container, command, stdin: ends.stdin, stdout: true, stderr: !ends.tty, tty: ends.tty }
}

/// A `connect` request on a Pod.
pub fn request(
    session: &Session,
    pod: &Object,
    subresource: &str,
    options: &impl serde::Serialize,
) -> Result<Request, Failure> {
    let mut request = session.request(Verb::Connect, pods::kind_of("pods"), pod.namespace(), Some(pod.name()));
    request.subresource = Some(subresource.to_owned());
    request.body = Some(serde_json::to_value(options).map_err(anyhow::Error::from)?);
    Ok(request)
}
