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

    /// The same for a path that names no resource: `/healthz`, `/apis`. The verb is the HTTP method in lower case.
    fn authorize_path(&self, user: &User, verb: &str, path: &str) -> Result<(), Status>;
}

/// Members of `system:masters` may do everything; others may see what is served, and whether it is well.
pub struct ClusterAdmin;

/// The paths of upstream's `system:public-info-viewer` and `system:discovery`: who may read them, and what they begin with.
const OPEN_PATHS: &[(&str, &[&str])] =
    &[("", &["/healthz", "/livez", "/readyz", "/version"]), ("system:authenticated", &["/api", "/apis", "/openapi"])];

fn is_master(user: &User) -> bool {
    user.groups.iter().any(|group| group == "system:masters")
}

impl Authorizer for ClusterAdmin {
    fn authorize_path(&self, user: &User, verb: &str, path: &str) -> Result<(), Status> {
        let below = |top: &str| path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let open = OPEN_PATHS.iter().any(|(group, paths)| {
            let belongs = group.is_empty() || user.groups.iter().any(|g| g == group);
            belongs && matches!(verb, "get" | "head") && paths.iter().any(|top| below(top))
        });
        if open || is_master(user) {
            return Ok(());
        }
        let name = if user.name.is_empty() { "system:anonymous" } else { &user.name };
        Err(Status::failure(403, "Forbidden", format!("forbidden: User \"{name}\" cannot {verb} path \"{path}\"")))
    }

    fn authorize(&self, request: &Attributes<'_>) -> Result<(), Status> {
        if is_master(request.user) {
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
