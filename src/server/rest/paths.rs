//! Parses URL paths, in upstream's layout.

use podwright_api::kinds::registry::Kinds;
use podwright_api::{Kind, Status};

/// What a path refers to.
#[derive(Debug, PartialEq)]
pub enum Route {
    /// Objects, or a subresource.
    Resource(Target),
    /// `/`: a list of all paths.
    Root,
    /// `/api` and `/apis`.
    Versions,
    Groups,
    /// `/apis/apps`
    Group(String),
    /// `/api/v1`, `/apis/apps/v1`: the group and the version.
    GroupVersion(String, String),
    /// `/version`
    Version,
    /// `/healthz`, `/livez`, `/readyz`, and one check of them.
    Health(Option<String>),
    Metrics,
    /// `/metrics/slis`
    Slis,
    /// `/statusz`, `/flagz`
    Statusz,
    Flagz,
    /// `/debug/pprof/`, or one of its profiles.
    Profile(Option<String>),
    /// How others verify ServiceAccount tokens.
    OpenIdConfiguration,
    OpenIdKeys,
    OpenApiV2,
    /// The index, or one group version's document: `api/v1`, `apis/apps/v1`.
    OpenApiV3(Option<String>),
}

/// A resource, its scope, and the object and subresource.
pub struct Target {
    pub kind: &'static Kind,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    /// What follows `/proxy`, as received: `/a%20b`.
    pub rest: Option<String>,
    /// The deprecated `/api/v1/watch/...`.
    pub watch: bool,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let (ns, name, sub) = (part(&self.namespace), part(&self.name), part(&self.subresource));
        let (rest, watch) = (part(&self.rest), if self.watch { " watch" } else { "" });
        write!(f, "{}.{} ns={ns} name={name} sub={sub} rest={rest}{watch}", self.kind.plural, self.kind.group)
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Target) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Target {
    /// The resource's name in a `Request`, for this version.
    pub fn resource(&self) -> String {
        resource_name(self.kind)
    }
}

/// `pods.v1`, `deployments.v1.apps`, `widgets.example.com/v1`.
pub fn resource_name(kind: &Kind) -> String {
    match kind.group {
        _ if kind.is_custom() => kind.exact(),
        "" => format!("{}.{}", kind.plural, kind.version),
        group => format!("{}.{}.{group}", kind.plural, kind.version),
    }
}

/// The kind that a group version serves under this plural.
fn kind_of(kinds: &Kinds, group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    kinds.all().find(|kind| kind.plural == plural && kind.group == group && kind.version == version)
}

/// Parses a path; `None` if upstream has no such path either. Fails if its encoding is invalid.
pub fn parse(kinds: &Kinds, path: &str) -> Result<Option<Route>, Status> {
    // The parts as received, without the empty one before the first slash.
    let raw: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let decoded = raw.iter().map(|part| decode(part)).collect::<Result<Vec<String>, Status>>()?;
    let mut parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
    while parts.len() > 1 && parts.last() == Some(&"") {
        parts.pop();
    }
    Ok(match parts.as_slice() {
        [""] => Some(Route::Root),
        ["api"] => Some(Route::Versions),
        ["apis"] => Some(Route::Groups),
        ["apis", group] => Some(Route::Group((*group).to_owned())),
        ["api", version] => Some(Route::GroupVersion(String::new(), (*version).to_owned())),
        ["apis", group, version] => Some(Route::GroupVersion((*group).to_owned(), (*version).to_owned())),
        ["api", version, rest @ ..] => resource(kinds, "", version, rest, raw.get(2..).unwrap_or_default()),
        ["apis", group, version, rest @ ..] => resource(kinds, group, version, rest, raw.get(3..).unwrap_or_default()),
        ["version"] => Some(Route::Version),
        ["healthz" | "livez" | "readyz"] => Some(Route::Health(None)),
        ["healthz" | "livez" | "readyz", check] => Some(Route::Health(Some((*check).to_owned()))),
        ["metrics"] => Some(Route::Metrics),
        ["metrics", "slis"] => Some(Route::Slis),
        ["statusz"] => Some(Route::Statusz),
        ["flagz"] => Some(Route::Flagz),
        ["debug", "pprof"] => Some(Route::Profile(None)),
        ["debug", "pprof", name] => Some(Route::Profile(Some((*name).to_owned()))),
        [".well-known", "openid-configuration"] => Some(Route::OpenIdConfiguration),
        ["openid", "v1", "jwks"] => Some(Route::OpenIdKeys),
        ["openapi", "v2"] => Some(Route::OpenApiV2),
        ["openapi", "v3"] => Some(Route::OpenApiV3(None)),
        ["openapi", "v3", of @ ..] => Some(Route::OpenApiV3(Some(of.join("/")))),
        _ => None,
    })
}

fn resource(kinds: &Kinds, group: &str, version: &str, parts: &[&str], raw: &[&str]) -> Option<Route> {
    let own = |s: &str| Some(s.to_owned());
    let (watch, parts, raw) = match parts {
        ["watch", rest @ ..] => (true, rest, raw.get(1..).unwrap_or_default()),
        _ => (false, parts, raw),
    };
    // In the core group a Namespace is an object as well as a scope.
    let (namespace, plural, rest, behind) = match parts {
        ["namespaces"] | ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => {
            (None, "namespaces", &parts[1..], 1)
        }
        ["namespaces", namespace, plural, rest @ ..] => (own(namespace), *plural, rest, 3),
        [plural, rest @ ..] => (None, *plural, rest, 1),
        [] => return None,
    };
    let kind = kind_of(kinds, group, version, plural)?;
    let (name, subresource, rest) = match rest {
        [] => (None, None, None),
        [name] => (own(name), None, None),
        [name, "proxy", ..] => {
            let rest = raw.get(behind + 2..).unwrap_or_default();
            (own(name), own("proxy"), (!rest.is_empty()).then(|| format!("/{}", rest.join("/"))))
        }
        [name, subresource] => (own(name), own(subresource), None),
        _ => return None,
    };
    let fits = match (kind.namespaced, &namespace) {
        (true, None) => name.is_none(),
        (true, Some(namespace)) => !namespace.is_empty(),
        (false, namespace) => namespace.is_none(),
    };
    let named = name.as_deref().is_none_or(|name| !name.is_empty());
    (fits && named).then_some(Route::Resource(Target { kind, namespace, name, subresource, rest, watch }))
}

/// Percent-decodes one part of a path.
fn decode(part: &str) -> Result<String, Status> {
    let bytes = percent_decode(part, false).ok_or_else(|| Status::bad_request("invalid URL escape in the path"))?;
    String::from_utf8(bytes).map_err(|_| Status::bad_request("the path is not UTF-8"))
}

/// Decodes `%XX`, and `+` in a query; `None` for an invalid escape.
pub fn percent_decode(text: &str, plus_is_space: bool) -> Option<Vec<u8>> {
    let hex = |byte: u8| (byte as char).to_digit(16);
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let (high, low) = (hex(bytes.next()?)?, hex(bytes.next()?)?);
                // Two hexadecimal digits make a byte.
                (high * 16 + low) as u8
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    Some(out)
}
