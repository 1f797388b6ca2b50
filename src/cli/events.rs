//! `events`: lists events, oldest first, once or continuously.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Outcome, Session,
    describe::seen,
    error::Failure,
    known,
    pods::kind_of,
    print::{self, Format, Table},
    target::{self, Selection, Target},
};
use podwright_api::{Object, Verb, WatchEvent, request::EventKind};

#[derive(clap::Args)]
pub struct Args {
    /// Filter events to only those that belong to the specified resource: TYPE/NAME
    #[arg(long = "for", value_name = "TYPE/NAME")]
    about: Option<String>,
    /// Output only events of the given types: Normal, Warning
    #[arg(long, value_delimiter = ',')]
    types: Vec<String>,
    /// After listing the requested events, watch for more events
    #[arg(long, short = 'w')]
    watch: bool,
    /// List the requested objects across all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Do not print headers in the default output format
    #[arg(long)]
    no_headers: bool,
    /// Output format: json, yaml, name, jsonpath=TEMPLATE
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

impl Args {
    fn selection(&self) -> Result<Selection, Failure> {
        let field_selector = match &self.about {
            None => None,
            Some(about) => {
                let (of, name) =
                    about.split_once('/').ok_or_else(|| Failure::usage("--for must be in resource/name form"))?;
                let kind = target::kind(of)?;
                Some(format!("involvedObject.kind={},involvedObject.name={name}", kind.kind))
            }
        };
        Ok(Selection { field_selector, all_namespaces: self.all_namespaces, ..Selection::default() })
    }

    fn wants(&self, event: &Object) -> bool {
        let of_type = event.at("type").and_then(Value::as_str).unwrap_or("");
        self.types.is_empty() || self.types.iter().any(|t| t.eq_ignore_ascii_case(of_type))
    }

    fn row(&self, event: &Object, now: Timestamp) -> Vec<String> {
        let text = |path: &str| event.at(path).and_then(Value::as_str).unwrap_or("").to_owned();
        let mut row = Vec::new();
        if self.all_namespaces {
            row.push(text("metadata.namespace"));
        }
        let object = format!("{}/{}", text("involvedObject.kind"), text("involvedObject.name"));
        let message = text("message").trim().to_owned();
        row.extend([seen(event, now), text("type"), text("reason"), object, message]);
        row
    }

    fn headings(&self) -> Vec<String> {
        let all = ["NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
        all[usize::from(!self.all_namespaces)..].iter().map(|h| h.to_string()).collect()
    }
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if let Some(unknown) = args.types.iter().find(|t| !["normal", "warning"].contains(&t.to_lowercase().as_str())) {
        return Err(Failure::usage(format!("valid --types are Normal or Warning, not {unknown}")));
    }
    let target = Target { kind: kind_of("events"), namespace: None, name: None };
    known::learn_of(session, args.about.iter().filter_map(|about| about.split('/').next())).await;
    let selection = args.selection()?;
    let (mut events, revision) = selection.list(&target, session).await?;
    events.retain(|event| args.wants(event));
    events.sort_by_key(super::describe::when);
    let mut table = Table::default();
    if let (Some(format), false) = (&args.output, args.watch) {
        raw!("{}", print::object(format, &print::list(events))?);
        return Ok(ExitCode::SUCCESS);
    }
    if events.is_empty() && !args.watch {
        let place = if args.all_namespaces { ".".to_owned() } else { format!(" in {} namespace.", session.namespace) };
        errln!("No events found{place}");
        return Ok(ExitCode::SUCCESS);
    }
    show(&args, &mut table, &events, !args.no_headers)?;
    if args.watch {
        follow(&args, &target, &selection, revision, table, session).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Args, table: &mut Table, events: &[Object], headed: bool) -> Result<(), Failure> {
    if let Some(format) = &args.output {
        return events.iter().try_for_each(|event| {
            raw!("{}", print::object(format, event)?);
            Ok(())
        });
    }
    let mut rows: Vec<Vec<String>> = events.iter().map(|event| args.row(event, Timestamp::now())).collect();
    if headed {
        rows.insert(0, args.headings());
    }
    out!("{}", table.render(&rows));
    Ok(())
}

async fn follow(
    args: &Args,
    target: &Target,
    selection: &Selection,
    revision: String,
    mut table: Table,
    session: &Session,
) -> Result<(), Failure> {
    let mut request = session.request(Verb::Watch, target.kind, None, None);
    request.options = selection.options();
    request.options.resource_version = Some(revision);
    if args.all_namespaces {
        request.namespace = None;
    }
    let mut changes = session.client.watch(request).await?;
    while let Some(WatchEvent { kind, object }) = changes.recv().await {
        let event = Object::from_slice(&object)?;
        match kind {
            EventKind::Added | EventKind::Modified if args.wants(&event) => {
                show(args, &mut table, &[target::typed(target.kind, event)?], false)?;
            }
            EventKind::Error => return Err(event.typed::<podwright_api::Status>()?.into()),
            _ => {}
        }
    }
    Ok(())
}
