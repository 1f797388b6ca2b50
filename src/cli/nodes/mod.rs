//! Commands about nodes: close and open them, empty them, taint them, have them leave.

mod cordon;
mod drain;
mod leave;
mod taint;

pub use cordon::{Args as CordonArgs, run as cordon};
pub use drain::{Args as DrainArgs, run as drain};
pub use leave::{Args as LeaveArgs, Leaving};
pub use taint::{Args as TaintArgs, run as taint};

use serde_json::json;

use super::{
    Session,
    error::Failure,
    pods::kind_of,
    target::{Selection, Target},
    write::Writing,
};
use podwright_api::{Object, request::PatchType};

/// The nodes named by the arguments: by name, as `x` or `node/x`, or by label.
async fn named(session: &Session, names: &[String], selector: Option<&String>) -> Result<Vec<Object>, Failure> {
    let kind = kind_of("nodes");
    let mut nodes = Vec::new();
    for name in names {
        let name = name.strip_prefix("node/").or(name.strip_prefix("nodes/")).unwrap_or(name);
        nodes.push(session.get(kind, None, name).await?);
    }
    if let Some(selector) = selector {
        let selection = Selection { selector: Some(selector.clone()), ..Selection::default() };
        nodes.extend(selection.list(&Target { kind, namespace: None, name: None }, session).await?.0);
    }
    Ok(nodes)
}

fn is_closed(node: &Object) -> bool {
    node.0["spec"]["unschedulable"] == true
}

/// Cordons or uncordons a node, and reports it.
async fn close(session: &Session, writing: &Writing, node: &Object, closed: bool) -> Result<(), Failure> {
    let (kind, done) = (kind_of("nodes"), if closed { "cordoned" } else { "uncordoned" });
    if is_closed(node) == closed {
        return writing.tell(kind, node, &format!("already {done}"));
    }
    let patch = json!({ "spec": { "unschedulable": if closed { json!(true) } else { json!(null) } } });
    let changed = writing.patch(session, kind, node, PatchType::Merge, patch).await?;
    writing.tell(kind, &changed, done)
}
