//! Who may do what: the hook between authentication and the verbs.

use crate::api::{Status, User, Verb};

/// What an authorizer decides on; upstream's `authorizer.Attributes`.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub verb: Verb,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
}

/// Decides whether a request may go on; a refusal is the `Status` that the caller gets.
pub trait Authorizer: Send + Sync + 'static {
    fn authorize(&self, request: &Attributes<'_>) -> Result<(), Status>;
}

/// Members of `system:masters` may do everything, others nothing.
pub struct ClusterAdmin;

impl Authorizer for ClusterAdmin {
    fn authorize(&self, request: &Attributes<'_>) -> Result<(), Status> {
        if request.user.groups.iter().any(|g| g == "system:masters") {
            return Ok(());
        }
        let user = if request.user.name.is_empty() { "system:anonymous" } else { &request.user.name };
        let verb = format!("{:?}", request.verb).to_lowercase();
        let resource = match request.subresource {
            Some(sub) => format!("{}/{sub}", request.resource),
            None => request.resource.to_owned(),
        };
        let scope = match request.namespace {
            Some(ns) => format!("in the namespace \"{ns}\""),
            None => "at the cluster scope".to_owned(),
        };
        let why =
            format!("User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{}\" {scope}", request.group);
        Err(Status::forbidden(request.resource, request.group, request.name.unwrap_or(""), why))
    }
}
