//! `logs`: prints the output of containers, once or continuously.

use std::{process::ExitCode, time::Duration};

use futures::future::join_all;
use serde_json::Value;

use super::{Outcome, Session, error::Failure, exec, out, pods, stream, target, wait};
use podwright_api::{Object, rpc::LogOptions, stream::STDOUT};

#[derive(clap::Args)]
pub struct Args {
    /// POD or TYPE/NAME
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// The container, as with --container
    #[arg(value_name = "CONTAINER")]
    positional_container: Option<String>,
    /// Container name; if omitted, the default container or the first one in the Pod
    #[arg(long, short = 'c', value_name = "NAME")]
    container: Option<String>,
    /// Selector (label query) to filter on
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<String>,
    /// Get the logs of all containers in the Pod
    #[arg(long)]
    all_containers: bool,
    /// Get the logs of all Pods of a deployment, replica set or service
    #[arg(long)]
    all_pods: bool,
    /// Stream the logs
    #[arg(long, short = 'f')]
    follow: bool,
    /// Print the logs for the previous instance of the container in a Pod
    #[arg(long, short = 'p')]
    previous: bool,
    /// Only return logs newer than a relative duration, as 5s, 2m, 3h
    #[arg(long, value_parser = wait::duration)]
    since: Option<Duration>,
    /// Only return logs after a specific date (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since_time: Option<String>,
    /// Lines of recent log file to display; -1: all [default: -1, with a selector 10]
    #[arg(long, allow_negative_numbers = true, value_name = "COUNT")]
    tail: Option<i64>,
    /// Maximum bytes of logs to return
    #[arg(long, value_name = "BYTES")]
    limit_bytes: Option<i64>,
    /// Include timestamps on each line in the log output
    #[arg(long)]
    timestamps: bool,
    /// Prefix each log line with the log source (Pod name and container name)
    #[arg(long)]
    prefix: bool,
    /// Continue if the log of a container cannot be fetched
    #[arg(long)]
    ignore_errors: bool,
    /// Maximum number of concurrent logs to follow with a selector
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    max_log_requests: usize,
}

/// One container's log.
struct Source {
    pod: Object,
    /// Empty: the server chooses.
    container: String,
}

impl Args {
    fn options(&self, container: &str) -> LogOptions {
        let tail = self.tail.or((self.selector.is_some()).then_some(10));
        LogOptions {
            container: container.to_owned(),
            follow: self.follow,
            previous: self.previous,
            since_seconds: self.since.map(|s| s.as_secs_f64().ceil() as i64).filter(|s| *s > 0),
            since_time: self.since_time.clone(),
            timestamps: self.timestamps,
            tail_lines: tail.filter(|n| *n >= 0),
            limit_bytes: self.limit_bytes,
            stream: None,
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let wrong = match (&self.pod, &self.selector) {
            (None, None) => {
                "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command\nSee 'podwright logs -h' for help and examples"
            }
            (Some(_), Some(_)) => "only a selector (-l) or a POD name is allowed",
            _ if self.since.is_some() && self.since_time.is_some() => {
                "at most one of `sinceTime` or `sinceSeconds` may be specified"
            }
            _ if self.all_containers && self.named_container().is_some() => {
                "--all-containers=true should not be specified with container name"
            }
            _ if self.container.is_some() && self.positional_container.is_some() => {
                "only one of -c or an inline [CONTAINER] arg is allowed"
            }
            _ if self.tail.is_some_and(|n| n < -1) => "--tail must be greater than or equal to -1",
            _ => return Ok(()),
        };
        Err(Failure::usage(wrong))
    }

    fn named_container(&self) -> Option<&str> {
        self.container.as_deref().or(self.positional_container.as_deref())
    }
}

/// The complete log of a container (empty: the default one), followed until it ends.
pub fn whole(container: &str) -> LogOptions {
    LogOptions { container: container.to_owned(), follow: true, ..LogOptions::default() }
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    args.check()?;
    let sources = sources(&args, session).await?;
    if sources.is_empty() {
        errln!("No resources found in {} namespace.", session.namespace);
        return Ok(ExitCode::SUCCESS);
    }
    if args.follow && sources.len() > args.max_log_requests {
        return Err(Failure::usage(format!(
            "you are attempting to follow {} log streams, but maximum allowed concurrency is {}, use --max-log-requests to increase the limit",
            sources.len(),
            args.max_log_requests
        )));
    }
    let by_line = args.prefix || (args.follow && sources.len() > 1);
    if args.follow {
        let all = join_all(sources.iter().map(|source| one(&args, source, by_line, session))).await;
        let failed = all.into_iter().filter_map(Result::err).map(Failure::report).next_back();
        return Ok(failed.filter(|_| !args.ignore_errors).unwrap_or(ExitCode::SUCCESS));
    }
    for source in &sources {
        match one(&args, source, by_line, session).await {
            Err(failure) if args.ignore_errors => drop(failure.report()),
            outcome => outcome?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn sources(args: &Args, session: &Session) -> Result<Vec<Source>, Failure> {
    let pods = match (&args.selector, &args.pod) {
        (Some(selector), _) => pods::select(session, None, selector).await?,
        (None, word) => {
            let word = word.as_deref().unwrap_or("");
            let missing = |failure| match failure {
                Failure::Server { status, .. } if status.is_not_found() => {
                    let (why, namespace) = (status.message, &session.namespace);
                    Failure::usage(format!("error from server (NotFound): {why} in namespace \"{namespace}\""))
                }
                other => other,
            };
            let mut found = pods::find(session, word).await.map_err(missing)?;
            if found.len() > 1 && !args.all_pods {
                let chosen = target::display(pods::kind_of("pods"), found[0].name());
                errln!("Found {} pods, using {chosen}", found.len());
                found.truncate(1);
            }
            if found.is_empty() {
                return Err(Failure::usage(format!("timed out waiting for the condition: {word} has no Pods")));
            }
            found
        }
    };
    if let (Some(name), [pod]) = (args.named_container(), pods.as_slice())
        && !containers(pod).iter().any(|container| container == name)
    {
        return Err(Failure::usage(format!("container {name} is not valid for pod {}", pod.name())));
    }
    let several = pods.len() > 1;
    let mut sources = Vec::new();
    for pod in pods {
        let containers = match args.named_container() {
            Some(name) => vec![name.to_owned()],
            None if args.all_containers => containers(&pod),
            None if several || args.prefix => vec![default_container(&pod)],
            None => vec![String::new()],
        };
        sources.extend(containers.into_iter().map(|container| Source { pod: pod.clone(), container }));
    }
    Ok(sources)
}

/// All containers, in the order in which they run.
fn containers(pod: &Object) -> Vec<String> {
    let lists = ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"];
    let all = lists.iter().filter_map(|list| pod.at(list).and_then(Value::as_array)).flatten();
    all.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
}

fn default_container(pod: &Object) -> String {
    let annotated = pod.annotation("kubectl.kubernetes.io/default-container").map(str::to_owned);
    let first = || pod.0["spec"]["containers"][0]["name"].as_str().map(str::to_owned);
    annotated.filter(|name| containers(pod).contains(name)).or_else(first).unwrap_or_default()
}

/// Prints one log. With `by_line` only complete lines are written, so that several logs do not mix.
async fn one(args: &Args, source: &Source, by_line: bool, session: &Session) -> Result<(), Failure> {
    let Source { pod, container } = source;
    let prefix = if args.prefix { format!("[pod/{}/{container}] ", pod.name()) } else { String::new() };
    let request = exec::request(session, pod, "log", &args.options(container))?;
    let frames = stream::open(session, request).await?;
    let mut pending = Vec::new();
    let each = |channel: u8, bytes: &[u8]| match channel {
        STDOUT if by_line => out::bytes(&lines(&mut pending, bytes, prefix.as_bytes())),
        STDOUT => out::bytes(bytes),
        _ => {}
    };
    let status = stream::exchange(frames, stream::no_input(), each).await?;
    if !pending.is_empty() {
        out::bytes(&[prefix.as_bytes(), &pending, b"\n"].concat());
    }
    stream::succeeded(status)
}

/// The lines completed by `bytes`, each with the prefix; the rest stays in `pending`.
fn lines(pending: &mut Vec<u8>, bytes: &[u8], prefix: &[u8]) -> Vec<u8> {
    pending.extend_from_slice(bytes);
    let end = pending.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let whole: Vec<u8> = pending.drain(..end).collect();
    let each = whole.split_inclusive(|b| *b == b'\n');
    each.fold(Vec::with_capacity(whole.len()), |mut text, line| {
        text.extend_from_slice(prefix);
        text.extend_from_slice(line);
        text
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_whole_lines_are_shown() {
        let mut pending = Vec::new();
        assert_eq!(super::lines(&mut pending, b"one\ntw", b"> "), b"> one\n");
        assert_eq!(super::lines(&mut pending, b"o", b"> "), b"");
        assert_eq!(super::lines(&mut pending, b"\n\nthree", b"> "), b"> two\n> \n");
        assert_eq!(pending, b"three");
    }
}
