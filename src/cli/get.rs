//! `get`: shows objects, once or as they change.

use std::process::ExitCode;

use jiff::Timestamp;

use super::{
    Outcome, Session,
    error::Failure,
    jsonpath, out,
    print::{self, Format, Layout, Table},
    target::{Selection, Target},
};
use podwright_api::{Object, Status, Verb, WatchEvent, request::EventKind};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Output format: wide, yaml, json, name, jsonpath=TEMPLATE, jsonpath-file=FILE, custom-columns=HEADING:PATH,...
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
    /// After listing the requested objects, watch for changes
    #[arg(long, short = 'w')]
    watch: bool,
    /// Watch for changes to the requested objects, without listing them first
    #[arg(long)]
    watch_only: bool,
    /// Do not print headers in the default output format
    #[arg(long)]
    no_headers: bool,
    /// List the resource type for the requested objects
    #[arg(long)]
    show_kind: bool,
    /// Show all labels as the last column
    #[arg(long)]
    show_labels: bool,
    /// Labels that are presented as columns
    #[arg(long, short = 'L', value_delimiter = ',', value_name = "LABEL")]
    label_columns: Vec<String>,
    /// Sort list types using this field, as .metadata.creationTimestamp
    #[arg(long, value_name = "JSONPATH")]
    sort_by: Option<jsonpath::Template>,
    /// Treat "resource not found" as a successful retrieval
    #[arg(long)]
    ignore_not_found: bool,
    /// Keep the managedFields when printing objects in JSON or YAML format
    #[arg(long)]
    show_managed_fields: bool,
    /// Raw URI to request from the server, as /readyz?verbose
    #[arg(long, value_name = "PATH")]
    raw: Option<String>,
    /// Get this subresource of the requested objects: status, scale
    #[arg(long)]
    subresource: Option<String>,
}

impl Args {
    fn shown(&self, format: &Format, object: &Object) -> Result<String, Failure> {
        if self.show_managed_fields { print::whole(format, object) } else { print::object(format, object) }
    }

    fn layout(&self, targets: &[Target]) -> Layout {
        let mut others = targets.iter().skip(1).map(|target| target.kind);
        let several = others.any(|kind| !std::ptr::eq(kind, targets[0].kind));
        Layout {
            wide: matches!(self.output, Some(Format::Wide)),
            namespaces: self.selection.all_namespaces,
            no_headers: self.no_headers,
            show_labels: self.show_labels,
            label_columns: self.label_columns.clone(),
            prefix: self.show_kind || several,
        }
    }
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    if let Some(path) = &args.raw {
        if !args.selection.names.is_empty() {
            return Err(Failure::usage("arguments may not be passed when --raw is specified"));
        }
        out::bytes(&session.client.raw(path).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let targets = args.selection.targets(session).await?;
    if args.watch || args.watch_only {
        return watch(&args, &targets, session).await;
    }
    let (mut groups, mut failures) = (Vec::new(), Vec::new());
    for target in &targets {
        match fetch(&args, target, session).await {
            Ok(objects) => groups.push((target, objects)),
            Err(status) if status.is_not_found() && args.ignore_not_found => {}
            Err(status) => failures.push(Failure::from(status)),
        }
    }
    if let Some(template) = &args.sort_by {
        groups.iter_mut().for_each(|(_, objects)| sort(objects, template));
    }
    show(&args, &targets, groups, session)?;
    Ok(failures.into_iter().map(Failure::report).next_back().unwrap_or(ExitCode::SUCCESS))
}

async fn fetch(args: &Args, target: &Target, session: &Session) -> Result<Vec<Object>, Status> {
    match (&args.subresource, &target.name) {
        (Some(subresource), Some(name)) => {
            let mut request = session.request(Verb::Get, target.kind, target.namespace.as_deref(), Some(name));
            request.subresource = Some(subresource.clone());
            Ok(vec![session.object(request).await?])
        }
        _ => args.selection.fetch(target, session).await,
    }
}

fn sort(objects: &mut [Object], template: &jsonpath::Template) {
    objects.sort_by(|a, b| {
        let key = |o: &Object| template.values(&o.0).first().map(|v| (v.as_f64(), jsonpath::text(v)));
        key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
    });
}

fn show(
    args: &Args,
    targets: &[Target],
    groups: Vec<(&Target, Vec<Object>)>,
    session: &Session,
) -> Result<(), Failure> {
    let total: usize = groups.iter().map(|(_, objects)| objects.len()).sum();
    match &args.output {
        None | Some(Format::Wide) => {
            tables(args, targets, &groups);
            if total == 0 && !groups.is_empty() && !args.ignore_not_found {
                let everywhere = args.selection.all_namespaces || !targets.iter().any(|t| t.kind.namespaced);
                let place = if everywhere { String::new() } else { format!(" in {} namespace", session.namespace) };
                errln!("No resources found{}{}", place, if everywhere { "" } else { "." });
            }
        }
        Some(Format::CustomColumns(columns)) => {
            let objects: Vec<Object> = groups.into_iter().flat_map(|(_, objects)| objects).collect();
            out!("{}", print::custom(columns, &objects, args.no_headers));
        }
        Some(Format::Name) => {
            groups.iter().flat_map(|(_, objects)| objects).for_each(|o| outln!("{}", print::name(o)));
        }
        Some(format) => {
            let one = targets.len() == 1 && targets[0].name.is_some();
            let mut objects: Vec<Object> = groups.into_iter().flat_map(|(_, objects)| objects).collect();
            match (one, objects.pop()) {
                (true, None) => {}
                (true, Some(object)) => raw!("{}", args.shown(format, &object)?),
                (false, last) => {
                    objects.extend(last);
                    raw!("{}", args.shown(format, &print::list(objects))?);
                }
            }
        }
    }
    Ok(())
}

/// One table per kind, separated by empty lines.
fn tables(args: &Args, targets: &[Target], groups: &[(&Target, Vec<Object>)]) {
    let (layout, now, mut first) = (args.layout(targets), Timestamp::now(), true);
    let mut at = 0;
    while at < groups.len() {
        let kind = groups[at].0.kind;
        let run = groups[at..].iter().take_while(|(target, _)| std::ptr::eq(target.kind, kind));
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut next = at;
        for (_, objects) in run {
            rows.extend(objects.iter().map(|o| print::row(kind, &layout, o, now)));
            next += 1;
        }
        at = next;
        if rows.is_empty() {
            continue;
        }
        if !layout.no_headers {
            rows.insert(0, print::headings(kind, &layout));
        }
        if !first {
            outln!("");
        }
        first = false;
        out!("{}", Table::default().render(&rows));
    }
}

/// Shows the objects of one kind, then every change, until interrupted.
async fn watch(args: &Args, targets: &[Target], session: &Session) -> Outcome {
    let [target] = targets else {
        return Err(Failure::usage("you may only specify a single resource type when watching"));
    };
    let (layout, mut table) = (args.layout(targets), Table::default());
    let mut selection = args.selection.clone();
    if let Some(name) = &target.name {
        let own = format!("metadata.name={name}");
        selection.field_selector = Some(selection.field_selector.map_or(own.clone(), |other| format!("{other},{own}")));
    }
    let (objects, revision) = selection.list(target, session).await?;
    if let (Some(name), true) = (&target.name, objects.is_empty()) {
        return Err(Status::not_found(target.kind.plural, target.kind.group, name).into());
    }
    let mut headed = layout.no_headers;
    let mut print = |objects: &[Object]| -> Result<(), Failure> {
        match &args.output {
            None | Some(Format::Wide) => {
                let mut rows = Vec::new();
                if !std::mem::replace(&mut headed, true) {
                    rows.push(print::headings(target.kind, &layout));
                }
                rows.extend(objects.iter().map(|o| print::row(target.kind, &layout, o, Timestamp::now())));
                out!("{}", table.render(&rows));
            }
            Some(format) => objects.iter().try_for_each(|o| {
                raw!("{}", args.shown(format, o)?);
                Ok::<_, Failure>(())
            })?,
        }
        Ok(std::io::Write::flush(&mut std::io::stdout())?)
    };
    if !args.watch_only && !objects.is_empty() {
        print(&objects)?;
    }
    let mut request = session.request(Verb::Watch, target.kind, target.namespace.as_deref(), None);
    request.options = selection.options();
    request.options.resource_version = Some(revision);
    if selection.all_namespaces {
        request.namespace = None;
    }
    let mut events = session.client.watch(request).await?;
    while let Some(WatchEvent { kind, object }) = events.recv().await {
        match kind {
            EventKind::Bookmark => {}
            EventKind::Error => {
                let status: Status = serde_json::from_slice(&object).map_err(Status::internal)?;
                return Err(status.into());
            }
            _ => print(&[super::target::typed(target.kind, Object::from_slice(&object)?)?])?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
