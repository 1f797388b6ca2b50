//! `scale`: sets how many replicas there shall be.

use std::process::ExitCode;

use serde_json::json;

use super::{
    Outcome, Session,
    error::Failure,
    target::{self, Selection, Target},
};
use crate::api::{Object, Status, Verb, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// All objects of the type
    #[arg(long)]
    all: bool,
    /// The new number
    #[arg(long, value_name = "COUNT")]
    replicas: u32,
    /// Only if there are so many now
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true)]
    current_replicas: i64,
    /// Only if this is still the object's version
    #[arg(long, value_name = "VERSION")]
    resource_version: Option<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let mut code = ExitCode::SUCCESS;
    for target in args.selection.several(args.all)? {
        let objects = match args.selection.fetch(&target, session).await {
            Ok(objects) => objects,
            Err(status) => {
                code = Failure::from(status).report();
                continue;
            }
        };
        for object in objects {
            match scale(&args, &target, &object, session).await {
                Ok(()) => outln!("{} scaled", target::display(target.kind, object.name())),
                Err(failure) => code = failure.report(),
            }
        }
    }
    Ok(code)
}

async fn scale(args: &Args, target: &Target, object: &Object, session: &Session) -> Result<(), Failure> {
    if target.kind.scale.is_none() {
        return Err(Failure::usage(format!("cannot scale {}: it has no replicas", target.kind.plural)));
    }
    let mut view = json!({ "spec": { "replicas": args.replicas } });
    if args.current_replicas >= 0 {
        let now = object.at("spec.replicas").and_then(|n| n.as_i64()).unwrap_or(0);
        if now != args.current_replicas {
            return Err(Failure::usage(format!("Expected replicas to be {}, was {now}", args.current_replicas)));
        }
        // Nobody shall change it between our look and our write.
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
