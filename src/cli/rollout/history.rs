//! `rollout history`: the revisions of a Deployment, or the template of one.

use std::process::ExitCode;

use super::{deployments, revision, sets};
use crate::{
    api::Object,
    cli::{
        Outcome, Session, describe,
        error::Failure,
        page::Page,
        print::{self, Format},
        target::{self, Selection},
    },
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Show this revision's Pod template
    #[arg(long, default_value_t = 0)]
    revision: i64,
    /// Show the revision's ReplicaSet: json, yaml, name
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    for (target, deployment) in deployments(&args.selection, session, "history viewer").await? {
        let sets = sets(session, &deployment).await?;
        let shown = target::display(target.kind, deployment.name());
        if let Some(format) = &args.output {
            let chosen = sets.iter().filter(|set| args.revision == 0 || revision(set) == args.revision);
            chosen.into_iter().try_for_each(|set| {
                out!("{}", print::object(format, set)?);
                Ok::<_, Failure>(())
            })?;
            continue;
        }
        if args.revision == 0 {
            outln!("{shown} \n{}", table(&sets));
            continue;
        }
        let set = sets.iter().find(|set| revision(set) == args.revision);
        let set = set.ok_or_else(|| Failure::usage("unable to find the specified revision"))?;
        outln!("{shown} with revision #{}\n{}", args.revision, pod_template(set));
    }
    Ok(ExitCode::SUCCESS)
}

/// `REVISION  CHANGE-CAUSE`
fn table(sets: &[Object]) -> String {
    let mut page = Page::default();
    page.line(0, "REVISION\tCHANGE-CAUSE");
    for set in sets {
        let cause = set.annotation("kubernetes.io/change-cause").unwrap_or("<none>");
        page.line(0, format!("{}\t{cause}", revision(set)));
    }
    page.to_string()
}

fn pod_template(set: &Object) -> String {
    let mut page = Page::default();
    describe::pod_template(&mut page, &set.0["spec"]["template"]);
    page.to_string()
}
