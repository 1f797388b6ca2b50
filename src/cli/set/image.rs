//! `set image`: changes the images of containers.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::base;
use crate::{
    Outcome, Session,
    error::Failure,
    target::{Selection, Target},
    write::Writing,
};
use podwright_api::{Object, request::PatchType};

#[derive(clap::Args)]
pub struct Args {
    /// TYPE NAME... or TYPE/NAME..., then CONTAINER=IMAGE; the container * is all
    #[command(flatten)]
    selection: Selection,
    /// Select all resources in the namespace of the specified types
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (images, names): (Vec<_>, Vec<_>) = args.selection.names.iter().cloned().partition(|word| word.contains('='));
    let images: Vec<(&str, &str)> = images.iter().filter_map(|word| word.split_once('=')).collect();
    if images.is_empty() {
        return Err(Failure::usage("at least one image update is required"));
    }
    let selection = Selection { names, ..args.selection.clone() };
    let mut code = ExitCode::SUCCESS;
    for target in selection.several(args.all, session).await? {
        for object in selection.fetch(&target, session).await? {
            if let Err(failure) = change(&args, &images, &target, &object, session).await {
                code = failure.report();
            }
        }
    }
    Ok(code)
}

async fn change(
    args: &Args,
    images: &[(&str, &str)],
    target: &Target,
    object: &Object,
    session: &Session,
) -> Result<(), Failure> {
    let patch = patch(object, images).map_err(Failure::usage)?;
    if patch.is_empty() {
        return Ok(());
    }
    let changed = args.writing.patch(session, target.kind, object, PatchType::Json, Value::Array(patch)).await?;
    args.writing.tell(target.kind, &changed, "image updated")
}

/// The JSON patch that sets the containers' images; an argument that matches no container is an error.
fn patch(object: &Object, images: &[(&str, &str)]) -> Result<Vec<Value>, String> {
    let base = base(object);
    let (mut patch, mut unused) = (Vec::new(), images.to_vec());
    for list in ["initContainers", "containers"] {
        let containers = object.at(&format!("{base}.{list}")).and_then(Value::as_array);
        for (at, container) in containers.into_iter().flatten().enumerate() {
            let name = container["name"].as_str().unwrap_or("");
            for (of, image) in images.iter().filter(|(of, _)| *of == name || *of == "*") {
                unused.retain(|(other, _)| other != of);
                if container["image"] != *image {
                    let path = format!("/{}/{list}/{at}/image", base.replace('.', "/"));
                    patch.push(json!({ "op": "replace", "path": path, "value": image }));
                }
            }
        }
    }
    match unused.first() {
        Some((name, _)) => Err(format!("unable to find container named \"{name}\"")),
        None => Ok(patch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_patched() {
        let spec = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]});
        let object = Object(json!({"spec": {"template": {"spec": spec}}}));
        let wanted = json!({"op": "replace", "path": "/spec/template/spec/containers/1/image", "value": "3"});
        assert_eq!(patch(&object, &[("b", "3"), ("a", "1")]), Ok(vec![wanted]));
        assert_eq!(patch(&object, &[("c", "3")]), Err("unable to find container named \"c\"".to_owned()));
        assert_eq!(patch(&object, &[("*", "3")]).map(|p| p.len()), Ok(2));
    }
}
