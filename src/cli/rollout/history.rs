//! `rollout history`: lists the revisions of a workload, or shows the template of one.

use std::process::ExitCode;

use super::{history, revision, template, workloads};
use crate::{
    Outcome, Session, describe,
    error::Failure,
    page::Page,
    print::{self, Format},
    target::{self, Selection},
};
use podwright_api::Object;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// See the details, including the Pod template, of the revision specified
    #[arg(long, default_value_t = 0)]
    revision: i64,
    /// Output format: json, yaml, name
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    for (target, workload) in workloads(&args.selection, session, "history viewer").await? {
        let history = history(session, &target, &workload).await?;
        let shown = target::display(target.kind, workload.name());
        if let Some(format) = &args.output {
            let chosen = history.iter().filter(|one| args.revision == 0 || revision(one) == args.revision);
            chosen.into_iter().try_for_each(|one| {
                raw!("{}", print::object(format, one)?);
                Ok::<_, Failure>(())
            })?;
            continue;
        }
        if args.revision == 0 {
            outln!("{shown} \n{}", table(&history));
            continue;
        }
        let found = history.iter().find(|one| revision(one) == args.revision);
        let found = found.ok_or_else(|| Failure::usage("unable to find the specified revision"))?;
        outln!("{shown} with revision #{}\n{}", args.revision, pod_template(found));
    }
    Ok(ExitCode::SUCCESS)
}

/// `REVISION  CHANGE-CAUSE`
fn table(history: &[Object]) -> String {
    let mut page = Page::default();
    page.line(0, "REVISION\tCHANGE-CAUSE");
    for one in history {
        let cause = one.annotation("kubernetes.io/change-cause").unwrap_or("<none>");
        page.line(0, format!("{}\t{cause}", revision(one)));
    }
    page.to_string()
}

fn pod_template(revision: &Object) -> String {
    let mut page = Page::default();
    let template = match revision.at("data") {
        Some(_) => template(revision),
        None => revision.0["spec"]["template"].clone(),
    };
    describe::pod_template(&mut page, &template);
    page.to_string()
}
