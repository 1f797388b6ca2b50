//! Derives a request's attributes from its path without knowing the kinds: for other servers' resources, and for unauthenticated
//! clients. These must not learn which kinds exist: they are authorized before checking whether the resource exists, which methods
//! and subresources it has, or whether the query is valid. Upstream does so for all requests (`RequestInfoFactory`).

use hyper::Method;

use super::query::Query;
use super::streams::verb_of;
use crate::authorize::attributes::Attributes;
use podwright_api::selector::FieldSelector;
use podwright_api::{Status, User};

/// The group of clients without credentials.
const STRANGERS: &str = "system:unauthenticated";

/// The attributes of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read {
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    selector: String,
}

impl Read {
    /// The query parameters that affect authorization. Of several values the first is used here; others may use the last.
    pub const OF_QUERY: [&str; 2] = ["fieldSelector", "watch"];

    /// The attributes of a request without credentials. `None` for authenticated users, and for non-resource paths.
    pub fn of_stranger(user: &User, method: &Method, path: &str, query: &Query) -> Result<Option<Read>, Status> {
        if user.is_in(STRANGERS) { Read::of(method, path, query) } else { Ok(None) }
    }

    /// `None` for a non-resource path; an error if it is an incomplete resource path.
    pub fn of(method: &Method, path: &str, query: &Query) -> Result<Option<Read>, Status> {
        let decoded = |part: &str| {
            let bytes = super::paths::percent_decode(part, false).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let parts: Vec<String> = path.trim_matches('/').split('/').map(decoded).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Ok(None),
        };
        // The deprecated watch prefix applies to every method, and also with a name.
        let (old, rest) = match rest {
            ["watch"] => {
                let why = format!("unable to determine kind and namespace from url, {path}");
                return Err(Status::bad_request(why));
            }
            ["watch", rest @ ..] => (true, rest),
            _ => (false, rest),
        };
        let (namespace, rest) = match rest {
            ["namespaces", name] | ["namespaces", name, "status" | "finalize"] => (*name, rest),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            _ => ("", rest),
        };
        let Some((resource, rest)) = rest.split_first() else { return Ok(None) };
        let name = rest.first().copied().unwrap_or("");
        let selector = query.first("fieldSelector").unwrap_or("");
        let verb = match verb_of(method) {
            _ if old => "watch",
            "get" if name.is_empty() && query.flag("watch") => "watch",
            "get" if name.is_empty() => "list",
            "delete" if name.is_empty() => "deletecollection",
            other => other,
        };
        let named = || FieldSelector::parse(selector).ok()?.exact("metadata.name").map(str::to_owned);
        // A name in the path takes precedence over the query.
        let of_many = name.is_empty() && matches!(verb, "list" | "watch" | "deletecollection");
        Ok(Some(Read {
            verb,
            group: group.to_owned(),
            version: version.to_owned(),
            resource: (*resource).to_owned(),
            subresource: rest.get(1).copied().unwrap_or("").to_owned(),
            namespace: namespace.to_owned(),
            name: Some(selector).filter(|_| of_many).and_then(|_| named()).unwrap_or_else(|| name.to_owned()),
            selector: selector.to_owned(),
        }))
    }

    pub fn attributes<'a>(&'a self, user: &'a User) -> Attributes<'a> {
        Attributes {
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            field_selector: &self.selector,
            ..Attributes::new(user, self.verb, &self.group, &self.resource)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_without_the_kinds() {
        let stranger = User::new("system:anonymous", [STRANGERS]);
        let read = |method: Method, path: &str, query: &str| {
            let asked = Read::of_stranger(&stranger, &method, path, &Query::parse(query)).unwrap()?;
            let Read { verb, group, resource, subresource, namespace, name, .. } = asked;
            Some(format!("{verb} {group} {resource} {subresource} {namespace} {name}"))
        };
        for (method, path, query, told) in [
            (Method::GET, "/api/v1/pods", "", "list  pods   "),
            (Method::GET, "/apis/a.b/v1/namespaces/n/things/x/scale", "", "get a.b things scale n x"),
            (Method::GET, "/apis/a.b/v1/watch/namespaces/n/things", "", "watch a.b things  n "),
            (Method::GET, "/apis/a.b/v1/watch/namespaces/n/things/x", "", "watch a.b things  n x"),
            (Method::GET, "/api/v1/watch/pods/x", "fieldSelector=metadata.name=p", "watch  pods   x"),
            (Method::POST, "/apis/a.b/v1/watch/things", "", "watch a.b things   "),
            (Method::DELETE, "/apis/a.b/v1/watch/things/x", "", "watch a.b things   x"),
            (Method::GET, "/api/v1/pods", "watch=1", "watch  pods   "),
            (Method::GET, "/api/v1/namespaces/n", "", "get  namespaces  n n"),
            (Method::PUT, "/api/v1/namespaces/n/finalize", "", "update  namespaces finalize n n"),
            (Method::DELETE, "/api/v1/namespaces/n/pods", "", "deletecollection  pods  n "),
            (Method::DELETE, "/api/v1/namespaces/n/pods/p", "", "delete  pods  n p"),
            (Method::GET, "/api/v1/pods", "fieldSelector=metadata.name=p", "list  pods   p"),
            (Method::OPTIONS, "/api/v1/pods", "", "  pods   "),
        ] {
            assert_eq!(read(method.clone(), path, query).as_deref(), Some(told), "{method} {path} {query}");
        }
        assert_eq!(read(Method::GET, "/apis/a.b/v1", ""), None);
        assert_eq!(read(Method::GET, "/healthz", ""), None);
        let ann = User::new("ann", ["system:authenticated"]);
        assert_eq!(Read::of_stranger(&ann, &Method::GET, "/api/v1/pods", &Query::default()), Ok(None));
        for path in ["/apis/a.b/v1/watch", "/apis/a.b/v1/watch/", "/api/v1/watch"] {
            let refused = Read::of(&Method::GET, path, &Query::default()).unwrap_err();
            let why = format!("unable to determine kind and namespace from url, {path}");
            assert_eq!((refused.code, refused.message), (400, why));
        }
    }
}
