//! `api-resources`: lists the kinds.

use std::process::ExitCode;

use super::{Outcome, error::Failure, known, print::Table};
use podwright_api::{Kind, status::qualified};

#[derive(clap::Args)]
pub struct Args {
    /// Output format: wide, name
    #[arg(long, short = 'o', value_parser = ["wide", "name"])]
    output: Option<String>,
    /// If false, only resources that are not namespaced are returned, otherwise those that are
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    namespaced: Option<bool>,
    /// Limit to resources in the specified API group; "" is the core group
    #[arg(long, value_name = "GROUP")]
    api_group: Option<String>,
    /// Limit to resources that belong to the specified categories
    #[arg(long, value_delimiter = ',', value_name = "CATEGORY")]
    categories: Vec<String>,
    /// Do not print headers in the default output format
    #[arg(long)]
    no_headers: bool,
    /// Sort by this field: name, kind
    #[arg(long, value_parser = ["name", "kind"])]
    sort_by: Option<String>,
}

impl Args {
    fn wants(&self, kind: &Kind) -> bool {
        self.namespaced.is_none_or(|wanted| wanted == kind.namespaced)
            && self.api_group.as_ref().is_none_or(|group| group == kind.group)
            && self.categories.iter().all(|category| kind.categories().contains(category))
    }
}

pub async fn run(args: Args) -> Outcome {
    let mut kinds: Vec<&Kind> = known::kinds().all().filter(|kind| kind.is_preferred() && args.wants(kind)).collect();
    match args.sort_by.as_deref() {
        Some("name") => kinds.sort_by_key(|k| k.plural),
        Some(_) => kinds.sort_by_key(|k| k.kind),
        None => kinds.sort_by_key(|k| (k.group, k.plural)),
    }
    if args.output.as_deref() == Some("name") {
        kinds.iter().for_each(|kind| outln!("{}", qualified(kind.plural, kind.group)));
        return Ok(ExitCode::SUCCESS);
    }
    let wide = args.output.is_some();
    let shown = if wide { 7 } else { 5 };
    let mut rows = Vec::new();
    if !args.no_headers {
        let headings = ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND", "VERBS", "CATEGORIES"];
        rows.push(headings[..shown].iter().map(|h| h.to_string()).collect());
    }
    rows.extend(kinds.iter().map(|kind| row(kind)[..shown].to_vec()));
    out!("{}", Table::default().render(&rows));
    Ok::<_, Failure>(ExitCode::SUCCESS)
}

fn row(kind: &Kind) -> [String; 7] {
    [
        kind.plural.to_owned(),
        kind.short_names().join(","),
        kind.api_version(),
        kind.namespaced.to_string(),
        kind.kind.to_owned(),
        known::verbs(kind).join(","),
        kind.categories().join(","),
    ]
}
