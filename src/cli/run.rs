//! `run`: creates a Pod from an image, and optionally attaches to it.

use std::{process::ExitCode, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    Outcome, Session, attach,
    error::Failure,
    exec, logs, out,
    pods::kind_of,
    stream::{self, Ends},
    target::Target,
    wait,
    write::Writing,
};
use podwright_api::{FieldValidation, Object, Verb, patch, stream::STDOUT, yaml};

#[derive(clap::Args)]
pub struct Args {
    /// The name of the Pod
    name: String,
    /// The image for the container to run
    #[arg(long)]
    image: String,
    /// The restart policy for this Pod: Always, OnFailure, Never
    #[arg(long, default_value = "Always", value_parser = ["Always", "OnFailure", "Never"])]
    restart: String,
    /// Use the extra arguments as the command, instead of as its arguments
    #[arg(long)]
    command: bool,
    /// Environment variables to set in the container, as NAME=VALUE
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The port that this container exposes
    #[arg(long)]
    port: Option<u16>,
    /// Labels to apply to the Pod, as KEY=VALUE,... [default: run=NAME]
    #[arg(long, short = 'l', value_name = "KEY=VALUE")]
    labels: Option<String>,
    /// Annotations to apply to the Pod
    #[arg(long, value_name = "KEY=VALUE")]
    annotations: Vec<String>,
    /// The image pull policy for the container: Always, IfNotPresent, Never
    #[arg(long, value_name = "POLICY")]
    image_pull_policy: Option<String>,
    /// Run the container in privileged mode
    #[arg(long)]
    privileged: bool,
    /// An inline JSON or YAML override for the generated object
    #[arg(long, value_name = "JSON")]
    overrides: Option<String>,
    /// Pass stdin to the container
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Allocate a TTY for the container
    #[arg(long, short = 't')]
    tty: bool,
    /// Wait for the container to start running, and then attach to it
    #[arg(long)]
    attach: bool,
    /// Leave stdin open after the first attach completes
    #[arg(long)]
    leave_stdin_open: bool,
    /// Delete the Pod after it exits
    #[arg(long)]
    rm: bool,
    /// Suppress prompt messages
    #[arg(long, short = 'q')]
    quiet: bool,
    /// The length of time to wait until the Pod is running
    #[arg(long, default_value = "1m", value_parser = wait::duration, value_name = "DURATION")]
    pod_running_timeout: Duration,
    #[command(flatten)]
    writing: Writing,
    /// Arguments, or with --command the command and its arguments
    #[arg(value_name = "WORD", trailing_var_arg = true)]
    words: Vec<String>,
}

/// Parses `a=b` arguments to a map.
fn pairs<'a>(words: impl Iterator<Item = &'a str>) -> Result<Map<String, Value>, String> {
    let one = |word: &'a str| match word.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), json!(value))),
        _ => Err(format!("unexpected label or annotation spec: {word}")),
    };
    words.filter(|w| !w.is_empty()).map(one).collect()
}

/// The Pod for the flags.
fn pod(args: &Args) -> Result<Object, String> {
    let mut container = json!({ "name": args.name, "image": args.image, "resources": {} });
    if !args.words.is_empty() {
        container[if args.command { "command" } else { "args" }] = json!(args.words);
    }
    let one = |word: &String| match word.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok(json!({ "name": name, "value": value })),
        _ => Err(format!("invalid env: {word}")),
    };
    let env: Vec<Value> = args.env.iter().map(one).collect::<Result<_, _>>()?;
    if !env.is_empty() {
        container["env"] = json!(env);
    }
    if let Some(port) = args.port {
        container["ports"] = json!([{ "containerPort": port }]);
    }
    if let Some(policy) = &args.image_pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    if args.privileged {
        container["securityContext"] = json!({ "privileged": true });
    }
    if args.stdin {
        container["stdin"] = json!(true);
        container["stdinOnce"] = json!(!args.leave_stdin_open);
    }
    if args.tty {
        container["tty"] = json!(true);
    }
    let default = format!("run={}", args.name);
    let labels = pairs(args.labels.as_ref().unwrap_or(&default).split(','))?;
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": args.name, "labels": labels },
        "spec": { "containers": [container], "restartPolicy": args.restart, "dnsPolicy": "ClusterFirst" },
    });
    let annotations = pairs(args.annotations.iter().flat_map(|a| a.split(',')))?;
    if !annotations.is_empty() {
        pod["metadata"]["annotations"] = Value::Object(annotations);
    }
    if let Some(text) = &args.overrides {
        let overrides = yaml::documents(text).map_err(|e| format!("invalid --overrides: {e}"))?;
        pod = overrides.iter().fold(pod, |pod, one| patch::merge(&pod, one));
    }
    Ok(Object(pod))
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let stays = args.attach || args.stdin || args.tty;
    if args.rm && !stays {
        return Err(Failure::usage("--rm should only be used for attached containers"));
    }
    if stays && args.writing.is_dry() {
        let why =
            "--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)";
        return Err(Failure::usage(why));
    }
    if args.tty && !args.stdin {
        return Err(Failure::usage("-i/--stdin is required for containers with -t/--tty=true"));
    }
    let kind = kind_of("pods");
    let object = pod(&args).map_err(Failure::usage)?;
    let made = args.writing.create(session, kind, &object, FieldValidation::Strict).await?;
    if !stays {
        args.writing.tell(kind, &made, "created")?;
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = stay(&args, &made, session).await;
    if args.rm {
        let mut request = session.request(Verb::Delete, kind, made.namespace(), Some(made.name()));
        request.options.grace_period_seconds = Some(0).filter(|_| outcome.is_err());
        session.call(request).await?;
        if !args.quiet {
            outln!("pod \"{}\" deleted", made.name());
        }
    }
    outcome
}

/// Attaches once the Pod runs; exits with its exit code unless it is restarted.
async fn stay(args: &Args, pod: &Object, session: &Session) -> Outcome {
    let target = Target {
        kind: kind_of("pods"),
        namespace: pod.namespace().map(str::to_owned),
        name: Some(pod.name().to_owned()),
    };
    let running = reach(session, &target, args.pod_running_timeout, |phase| phase != "Pending").await?;
    let ends = Ends::wanted(args.stdin, args.tty);
    if running.0["status"]["phase"] == "Running" {
        match attach::to(session, &running, args.name.clone(), ends, args.quiet).await {
            Ok(_) => {}
            // It may have ended already; its output is still available.
            Err(Failure::Server { status, .. }) => {
                let name = &args.name;
                errln!("warning: couldn't attach to pod/{name}, falling back to streaming logs: {status}");
                show_log(session, &running, "").await?;
            }
            Err(failure) => return Err(failure),
        }
    } else {
        show_log(session, &running, "").await?;
    }
    if args.restart == "Always" || args.leave_stdin_open {
        return Ok(ExitCode::SUCCESS);
    }
    let over = |phase: &str| matches!(phase, "Succeeded" | "Failed");
    let ended = reach(session, &target, Duration::MAX, over).await?;
    exit_code(&ended)
}

/// Prints the log of a container (empty: the default one) until it ends.
pub async fn show_log(session: &Session, pod: &Object, container: &str) -> Result<(), Failure> {
    let frames = stream::open(session, exec::request(session, pod, "log", &logs::whole(container))?).await?;
    let status = stream::exchange(frames, stream::no_input(), |channel, bytes| {
        if channel == STDOUT {
            out::bytes(bytes);
        }
    })
    .await?;
    stream::succeeded(status)
}

/// Waits until the Pod reaches a phase; returns the Pod.
async fn reach(
    session: &Session,
    target: &Target,
    patience: Duration,
    wanted: impl Fn(&str) -> bool,
) -> Result<Object, Failure> {
    let deadline = Instant::now().checked_add(patience);
    let mut reached = None;
    let in_time = wait::observe(session, target, deadline, |object| {
        let object = object.ok_or_else(|| Failure::usage("the pod was deleted"))?;
        let done = wanted(object.at("status.phase").and_then(Value::as_str).unwrap_or("Pending"));
        if done {
            reached = Some(object.clone());
        }
        Ok(done)
    })
    .await?;
    match reached {
        Some(pod) if in_time => Ok(pod),
        _ => Err(Failure::usage("timed out waiting for the condition")),
    }
}

fn exit_code(pod: &Object) -> Outcome {
    if pod.0["status"]["phase"] == "Succeeded" {
        return Ok(ExitCode::SUCCESS);
    }
    let ended = &pod.0["status"]["containerStatuses"][0]["state"]["terminated"];
    let (namespace, name) = (pod.namespace().unwrap_or(""), pod.name());
    errln!("pod {namespace}/{name} terminated ({})", ended["reason"].as_str().unwrap_or("Error"));
    Err(Failure::Said(ended["exitCode"].as_u64().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(line: &str) -> Value {
        pod(&crate::flags(line.split(' '))).expect("a Pod").0
    }

    #[test]
    fn words_are_arguments_or_the_command() {
        let container = |line: &str| made(line)["spec"]["containers"][0].clone();
        assert_eq!(container("x --image=a -- b -c")["args"], json!(["b", "-c"]));
        assert_eq!(container("x --image=a --command -- b -c")["command"], json!(["b", "-c"]));
        let with = container("x --image=a --port=80 --env=A=b=c");
        assert_eq!(
            (&with["ports"], &with["env"]),
            (&json!([{"containerPort": 80}]), &json!([{"name": "A", "value": "b=c"}]))
        );
    }

    #[test]
    fn labels_and_overrides() {
        assert_eq!(made("x --image=a")["metadata"]["labels"], json!({"run": "x"}));
        assert_eq!(made("x --image=a -l a=b,c=d")["metadata"]["labels"], json!({"a": "b", "c": "d"}));
        let spec = made(r#"x --image=a --overrides={"spec":{"hostNetwork":true}}"#)["spec"].clone();
        assert_eq!((&spec["hostNetwork"], &spec["restartPolicy"]), (&json!(true), &json!("Always")));
    }
}
