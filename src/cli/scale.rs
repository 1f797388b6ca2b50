//! `scale`: sets the number of replicas.

use std::process::ExitCode;

use serde_json::json;

use super::{
    Outcome, Session,
    error::Failure,
    target::{self, Selection, Target},
};
use podwright_api::{Object, Status, Verb, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    /// The new desired number of replicas
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    replicas: Option<i64>,
    /// Precondition for the current size; -1: none
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true)]
    current_replicas: i64,
    /// Require this resource version on the live object
    #[arg(long, value_name = "VERSION")]
    resource_version: Option<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let mut code = ExitCode::SUCCESS;
    let replicas = count(args.replicas)?;
    let targets = args.selection.several(args.all, session).await?;
    for target in &targets {
        let objects = match args.selection.fetch(target, session).await {
            Ok(objects) => objects,
            Err(status) if status.is_not_found() && targets.len() == 1 => {
                return Err(Failure::usage(format!("no objects passed to scale {}", status.message)));
            }
            Err(status) => {
                code = Failure::from(status).report();
                continue;
            }
        };
        for object in objects {
            match scale(&args, replicas, target, &object, session).await {
                Ok(()) => outln!("{} scaled", target::display(target.kind, object.name())),
                Err(failure) => code = failure.report(),
            }
        }
    }
    Ok(code)
}

/// The flag's value; errors have kubectl's words.
fn count(replicas: Option<i64>) -> Result<i32, Failure> {
    let Some(replicas) = replicas else { return Err(Failure::usage("required flag(s) \"replicas\" not set")) };
    let count = i32::try_from(replicas).ok().filter(|count| *count >= 0);
    count.ok_or_else(|| {
        Failure::usage("The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0")
    })
}

async fn scale(args: &Args, replicas: i32, target: &Target, object: &Object, session: &Session) -> Result<(), Failure> {
    if target.kind.scale().is_none() {
        return Err(Failure::usage(format!("cannot scale {}: it has no replicas", target.kind.plural)));
    }
    let mut view = json!({ "spec": { "replicas": replicas } });
    if args.current_replicas >= 0 {
        let now = object.at("spec.replicas").and_then(|n| n.as_i64()).unwrap_or(0);
        if now != args.current_replicas {
            return Err(Failure::usage(format!("Expected replicas to be {}, was {now}", args.current_replicas)));
        }
        // It must not change between our read and our write.
        view["metadata"] = json!({ "resourceVersion": object.resource_version() });
    }
    if let Some(version) = &args.resource_version {
        view["metadata"] = json!({ "resourceVersion": version });
    }
    let mut request = session.request(Verb::Patch, target.kind, object.namespace(), Some(object.name()));
    request.subresource = Some("scale".to_owned());
    request.body = Some(view);
    request.options.patch_type = Some(PatchType::Merge);
    session.object(request).await.map(drop).map_err(|status: Status| status.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_count_is_refused_as_kubectl_does() {
        let parse = |flags: &[&str]| {
            let words = ["deployment/web"].iter().chain(flags).copied();
            count(crate::flags::<Args>(words).replicas)
        };
        let words = |flags: &[&str]| format!("{:?}", parse(flags).expect_err("it is refused"));
        let negative = "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0";
        assert!(words(&["--replicas=-1"]).contains(negative));
        assert!(words(&["--replicas", "-1"]).contains(negative));
        assert!(words(&[]).contains("required flag(s)"));
        assert_eq!(parse(&["--replicas=3"]).ok(), Some(3));
    }
}
