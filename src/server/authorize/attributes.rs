//! The question to an authorizer, and its answer.

use podwright_api::User;

/// The group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";

/// What an authorizer decides on; upstream's `authorizer.Attributes`. Unset strings are empty.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `get`, `list`, ..., `impersonate`, `bind`; for a path, the HTTP method in lower case.
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub field_selector: &'a str,
    pub label_selector: &'a str,
    /// A non-resource path, `/healthz`; then everything from `group` on is empty.
    pub path: &'a str,
}

impl<'a> Attributes<'a> {
    /// For a verb on all objects of a resource, to be narrowed down.
    pub fn new(user: &'a User, verb: &'a str, group: &'a str, resource: &'a str) -> Attributes<'a> {
        Attributes {
            user,
            verb,
            group,
            resource,
            subresource: "",
            namespace: "",
            name: "",
            field_selector: "",
            label_selector: "",
            path: "",
        }
    }
    pub fn of_path(user: &'a User, verb: &'a str, path: &'a str) -> Attributes<'a> {
        Attributes { path, ..Attributes::new(user, verb, "", "") }
    }
    pub fn is_path(&self) -> bool {
        !self.path.is_empty()
    }

    /// An owned copy, for later checks.
    pub fn keep(&self) -> Kept {
        let words = [
            self.verb,
            self.group,
            self.resource,
            self.subresource,
            self.namespace,
            self.name,
            self.field_selector,
            self.label_selector,
            self.path,
        ];
        Kept { user: self.user.clone(), words: words.map(Into::into) }
    }

    /// The message of a refusal, as upstream words it.
    pub fn refusal(&self) -> String {
        let user = if self.user.name.is_empty() { "system:anonymous" } else { &self.user.name };
        if self.is_path() {
            return format!("User {user:?} cannot {} path {:?}", self.verb, self.path);
        }
        let resource = match self.subresource {
            "" => self.resource.to_owned(),
            sub => format!("{}/{sub}", self.resource),
        };
        let scope = match self.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!("User {user:?} cannot {} resource {resource:?} in API group {:?} {scope}", self.verb, self.group)
    }
}

/// [`Attributes`] that outlive their request.
pub struct Kept {
    user: User,
    words: [Box<str>; 9],
}

impl Kept {
    pub fn attributes(&self) -> Attributes<'_> {
        let [verb, group, resource, subresource, namespace, name, field_selector, label_selector, path] = &self.words;
        let user = &self.user;
        Attributes { user, verb, group, resource, subresource, namespace, name, field_selector, label_selector, path }
    }
}

/// An authorizer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allow,
    /// Not allowed, with a reason if there is one.
    NoOpinion(String),
}
