//! `attach`: connects to the standard streams of a container's main process.

use serde_json::Value;

use super::{
    Outcome, Session, exec, pods,
    stream::{self, Ends},
};
use podwright_api::Object;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: stream::SessionArgs,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let stream::SessionArgs { pod, container, stdin, tty, quiet } = args.target;
    let pod = pods::one(session, &pod).await?;
    let container = container.unwrap_or_default();
    let has_tty = has_tty(&pod, &container);
    if tty && !has_tty {
        errln!("error: Unable to use a TTY - container {} did not allocate one", name(&pod, &container));
    }
    to(session, &pod, container, Ends::wanted(stdin, tty && has_tty), quiet).await
}

/// Attaches until the container ends or the caller disconnects.
pub async fn to(session: &Session, pod: &Object, container: String, ends: Ends, quiet: bool) -> Outcome {
    let options = exec::options(container, Vec::new(), ends);
    let frames = stream::open(session, exec::request(session, pod, "attach", &options)?).await?;
    if ends.stdin && !quiet {
        errln!("If you don't see a command prompt, try pressing enter.");
    }
    let status = stream::join(frames, ends).await?;
    stream::exit(status)
}

fn spec<'a>(pod: &'a Object, container: &str) -> Option<&'a Value> {
    let mut all = pod.at("spec.containers").and_then(Value::as_array).into_iter().flatten();
    all.find(|c| container.is_empty() || c["name"] == container)
}

fn has_tty(pod: &Object, container: &str) -> bool {
    spec(pod, container).is_some_and(|c| c["tty"] == true)
}

fn name(pod: &Object, container: &str) -> String {
    spec(pod, container).and_then(|c| c["name"].as_str()).unwrap_or(container).to_owned()
}
