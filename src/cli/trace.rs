//! `trace pod NAME`: the history of a Pod in order, from the API write to now: what the control plane stored, and the node's system
//! calls, each with its time, duration and cause.

use std::process::ExitCode;

use jiff::Timestamp;
use podwright_journal::{Record, Role};
use serde::Serialize;
use serde_json::json;

use super::{
    Outcome, Session,
    error::Failure,
    exec, inspect,
    pods::kind_of,
    print::{self, Format, Table},
    stream,
};
use podwright_api::{Object, Status, Verb, rpc::Step};

#[derive(clap::Args)]
pub struct Args {
    /// The Pod, as pod NAME or pod/NAME
    #[arg(required = true, num_args = 1..=2, value_name = "POD")]
    names: Vec<String>,
    /// Output format: json, yaml, jsonpath=TEMPLATE
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
    /// Show everything that is recorded, including what came before the write that led to the Pod
    #[arg(long)]
    all: bool,
    /// Do not print headers in the default output format
    #[arg(long)]
    no_headers: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moment {
    /// RFC 3339.
    time: String,
    /// Since the initial write; negative before it.
    since_us: i64,
    duration_us: f64,
    /// The component: `kubectl`, `kube-scheduler`, `node/shim`.
    who: String,
    /// `create Pod default/web`, `clone3(CLONE_NEWPID)`.
    call: String,
    /// `ok`, or the error.
    result: String,
    /// The revision that was created, or acted on; 0: none.
    revision: u64,
    /// The field of the manifest that caused it.
    field: String,
    #[serde(skip)]
    nanoseconds: i128,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let pod = inspect::pod(session, &args.names).await?;
    let steps = steps(session, &pod).await?;
    let records = match pod.at("spec.nodeName") {
        Some(_) => records(session, &pod).await?,
        None => Vec::new(),
    };
    let story = story(&steps, &records, pod.uid(), args.all);
    match args.output {
        None | Some(Format::Table | Format::Wide) => out!("{}", table(&story, args.no_headers)),
        Some(format) => {
            let trace = json!({ "kind": "Trace", "apiVersion": "podwright/v1", "metadata": {
                "name": pod.name(), "namespace": pod.namespace(), "uid": pod.uid() }, "items": story });
            raw!("{}", print::object(&format, &Object(trace))?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The stored writes of the Pod and its owners.
async fn steps(session: &Session, pod: &Object) -> Result<Vec<Step>, Failure> {
    let mut request = session.request(Verb::Get, kind_of("pods"), pod.namespace(), Some(pod.name()));
    request.subresource = Some("trace".to_owned());
    let trace = session.object(request).await?;
    Ok(serde_json::from_value(trace.0["items"].clone()).map_err(Status::internal)?)
}

/// The node's records for it.
async fn records(session: &Session, pod: &Object) -> Result<Vec<Record>, Failure> {
    let frames = stream::open(session, exec::request(session, pod, "trace", &json!({}))?).await?;
    let bytes = stream::collect(frames).await?;
    let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(serde_json::from_slice).collect::<Result<_, _>>().map_err(Status::internal)?)
}

fn nanoseconds(step: &Step) -> i128 {
    step.time.parse::<Timestamp>().map_or(0, |t| t.as_nanosecond())
}

/// When the history starts: the last write by a user before the Pod was created, or else its creation.
fn beginning(steps: &[Step], uid: &str) -> i128 {
    let made = steps.iter().find(|s| s.uid == uid && s.verb == "create" && s.subresource.is_empty());
    let Some(made) = made else { return steps.first().map_or(0, nanoseconds) };
    let of_the_system = |s: &Step| s.user.starts_with("system:kube-") || s.manager == "kubelet";
    let asked = steps.iter().rev().find(|s| s.revision <= made.revision && !of_the_system(s));
    nanoseconds(asked.unwrap_or(made))
}

fn story(steps: &[Step], records: &[Record], uid: &str, all: bool) -> Vec<Moment> {
    let mut moments: Vec<Moment> = steps.iter().map(of_step).chain(records.iter().map(of_record)).collect();
    moments.sort_by_key(|m| m.nanoseconds);
    let records_begin = records.first().map_or(0, |r| i128::from(r.wall_ns));
    let zero = if steps.is_empty() { records_begin } else { beginning(steps, uid) };
    for moment in &mut moments {
        moment.since_us = i64::try_from((moment.nanoseconds - zero) / 1000).unwrap_or(0);
    }
    moments.retain(|m| all || m.since_us >= 0);
    moments
}

fn of_step(step: &Step) -> Moment {
    let place = if step.namespace.is_empty() { String::new() } else { format!("{}/", step.namespace) };
    let part = if step.subresource.is_empty() { String::new() } else { format!(" {}", step.subresource) };
    let note = if step.note.is_empty() { String::new() } else { format!(" ({})", step.note) };
    Moment {
        time: step.time.clone(),
        since_us: 0,
        duration_us: step.duration_us as f64,
        who: if step.manager.is_empty() { step.user.clone() } else { step.manager.clone() },
        call: format!("{} {} {place}{}{part}{note}", step.verb, step.kind, step.name),
        result: "ok".to_owned(),
        revision: step.revision,
        field: String::new(),
        nanoseconds: nanoseconds(step),
    }
}

fn of_record(record: &Record) -> Moment {
    let who = match record.role {
        Role::Agent => "node",
        Role::Shim => "node/shim",
        Role::Init => "node/init",
        Role::Net => "node/net",
        Role::Server => "server",
    };
    let nanoseconds = i128::from(record.wall_ns);
    let time = Timestamp::from_nanosecond(nanoseconds).map(|t| t.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string());
    Moment {
        time: time.unwrap_or_default(),
        since_us: 0,
        duration_us: record.duration_ns as f64 / 1000.0,
        who: who.to_owned(),
        call: format!("{}({})", record.call, record.args),
        result: record.error.clone().unwrap_or_else(|| "ok".to_owned()),
        revision: record.revision,
        field: record.field.clone(),
        nanoseconds,
    }
}

fn table(story: &[Moment], no_headers: bool) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    if !no_headers {
        rows.push(["SINCE", "TOOK", "WHO", "REVISION", "FIELD", "CALL"].map(str::to_owned).to_vec());
    }
    rows.extend(story.iter().map(|m| {
        let result = if m.result == "ok" { String::new() } else { format!(" = {}", m.result) };
        let revision = if m.revision == 0 { "-".to_owned() } else { m.revision.to_string() };
        let field = if m.field.is_empty() { "-".to_owned() } else { m.field.clone() };
        let since = format!("{:+.3}ms", m.since_us as f64 / 1000.0);
        let took = format!("{:.3}ms", m.duration_us / 1000.0);
        vec![since, took, m.who.clone(), revision, field, format!("{}{result}", m.call)]
    }));
    Table::default().render(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(time: &str, revision: u64, user: &str, manager: &str, kind: &str, uid: &str) -> Step {
        Step {
            time: format!("2026-11-20T12:00:{time}Z"),
            revision,
            verb: "create".into(),
            kind: kind.into(),
            name: "web".into(),
            uid: uid.into(),
            user: user.into(),
            manager: manager.into(),
            ..Step::default()
        }
    }

    #[test]
    fn the_story_begins_with_what_a_person_wrote() {
        let steps = [
            step("00.500000", 4, "system:admin", "kubectl", "Deployment", "d"),
            step("01.000000", 7, "system:admin", "kubectl", "Deployment", "d"),
            step("01.002000", 8, "system:kube-controller-manager", "replicaset-controller", "Pod", "p"),
        ];
        let began = i128::from(1_795_176_001_001_500_000_u64);
        let record = Record {
            sequence: 0,
            wall_ns: u64::try_from(began).expect("a time of this century"),
            monotonic_ns: 0,
            duration_ns: 1500,
            pid: 1,
            role: Role::Shim,
            call: "clone3".into(),
            args: "CLONE_NEWNET".into(),
            error: None,
            subject: "p".into(),
            revision: 8,
            field: "spec".into(),
        };
        let told = story(&steps, &[record], "p", false);
        let brief: Vec<(i64, &str)> = told.iter().map(|m| (m.since_us, m.who.as_str())).collect();
        assert_eq!(brief, [(0, "kubectl"), (1500, "node/shim"), (2000, "replicaset-controller")]);
        assert_eq!(story(&steps, &[], "p", true).len(), 3);
    }
}
