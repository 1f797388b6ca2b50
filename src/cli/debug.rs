//! `debug`: adds a debug container to a running Pod.

use std::process::ExitCode;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Outcome, Session, attach,
    error::Failure,
    pods::{self, kind_of},
    stream::Ends,
    target::Target,
    wait,
};
use podwright_api::{Object, Verb, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    /// POD or TYPE/NAME
    #[arg(value_name = "POD")]
    pod: String,
    /// Container image to use for the debug container
    #[arg(long)]
    image: String,
    /// Container name to use for the debug container [default: debugger-XXXXX]
    #[arg(long, short = 'c', value_name = "NAME")]
    container: Option<String>,
    /// Target processes in this container
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Environment variables to set in the container, as NAME=VALUE
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The image pull policy for the container: Always, IfNotPresent, Never
    #[arg(long, value_name = "POLICY")]
    image_pull_policy: Option<String>,
    /// Pass stdin to the container
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Allocate a TTY for the container
    #[arg(long, short = 't')]
    tty: bool,
    /// Wait for the container to start running, and then attach to it
    #[arg(long)]
    attach: bool,
    /// Only print output from the remote session
    #[arg(long, short = 'q')]
    quiet: bool,
    /// The command and its arguments, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The container for the flags, with the permissions of kubectl's profile `general`.
fn container(args: &Args, name: &str) -> Result<Value, String> {
    let one = |word: &String| match word.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok(json!({ "name": name, "value": value })),
        _ => Err(format!("invalid env: {word}")),
    };
    let env: Vec<Value> = args.env.iter().map(one).collect::<Result<_, _>>()?;
    let mut container = json!({
        "name": name, "image": args.image, "resources": {}, "stdin": args.stdin, "tty": args.tty,
        "securityContext": { "capabilities": { "add": ["SYS_PTRACE"] } },
    });
    let mut set = |field: &str, value: Value, given: bool| {
        if given {
            container[field] = value;
        }
    };
    set("targetContainerName", json!(args.target), args.target.is_some());
    set("imagePullPolicy", json!(args.image_pull_policy), args.image_pull_policy.is_some());
    set("command", json!(args.command), !args.command.is_empty());
    set("env", json!(env), !env.is_empty());
    Ok(container)
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if args.tty && !args.stdin {
        return Err(Failure::usage("-i/--stdin is required for containers with -t/--tty=true"));
    }
    let pod = pods::one(session, &args.pod).await?;
    let name = args.container.clone().unwrap_or_else(|| {
        let random = uuid::Uuid::new_v4().simple().to_string();
        format!("debugger-{}", &random[..5])
    });
    if args.container.is_none() && !args.quiet {
        errln!("Defaulting debug container name to {name}.");
    }
    let joining = container(&args, &name).map_err(Failure::usage)?;
    let there = pod.0["spec"]["ephemeralContainers"].as_array().into_iter().flatten();
    if there.into_iter().any(|c| c["name"] == name.as_str()) {
        return Err(Failure::usage(format!("the Pod has an ephemeral container {name:?} already")));
    }
    let mut request = session.request(Verb::Patch, kind_of("pods"), pod.namespace(), Some(pod.name()));
    request.subresource = Some("ephemeralcontainers".to_owned());
    request.body = Some(json!({ "spec": { "ephemeralContainers": [joining] } }));
    request.options.patch_type = Some(PatchType::Strategic);
    let pod = session.object(request).await?;
    if !args.attach && !args.stdin {
        return Ok(ExitCode::SUCCESS);
    }
    stay(&args, &name, &pod, session).await
}

/// Attaches once the container runs; if it has ended already, its output is in the log.
async fn stay(args: &Args, name: &str, pod: &Object, session: &Session) -> Outcome {
    let target = Target {
        kind: kind_of("pods"),
        namespace: pod.namespace().map(str::to_owned),
        name: Some(pod.name().to_owned()),
    };
    let mut state = Value::Null;
    let never: Option<Instant> = None;
    wait::observe(session, &target, never, |pod| {
        let pod = pod.ok_or_else(|| Failure::usage("the pod was deleted"))?;
        let all = pod.0["status"]["ephemeralContainerStatuses"].as_array().into_iter().flatten();
        state = all.into_iter().find(|s| s["name"] == name).map(|s| s["state"].clone()).unwrap_or_default();
        Ok(state["running"].is_object() || state["terminated"].is_object())
    })
    .await?;
    if state["running"].is_object() {
        let ends = Ends::wanted(args.stdin, args.tty);
        match attach::to(session, pod, name.to_owned(), ends, args.quiet).await {
            Err(Failure::Server { .. }) => {}
            ended => return ended,
        }
    }
    super::run::show_log(session, pod, name).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_a_container() {
        let line = "web --image=i --target=c -i --env=A=b=c -- sh -c true";
        let args: Args = crate::flags(line.split(' '));
        let made = container(&args, "d").expect("a container");
        assert_eq!(
            (&made["name"], &made["targetContainerName"], &made["stdin"]),
            (&json!("d"), &json!("c"), &json!(true))
        );
        assert_eq!(made["command"], json!(["sh", "-c", "true"]));
        assert_eq!(made["env"], json!([{ "name": "A", "value": "b=c" }]));
        assert_eq!(made["imagePullPolicy"], Value::Null);
    }
}
