//! Image names, normalised as docker and Kubernetes do: `nginx` is `docker.io/library/nginx:latest`.

use std::fmt;
use std::net::IpAddr;

use oci_spec::distribution::Reference;

use super::{ImageError, Result};

/// The registry of names without one.
const HUB: &str = "docker.io";

/// A parsed and normalised image name. Displays as `registry/repository[:tag][@digest]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageName(Reference);

impl ImageName {
    /// Parses a name as users write it (`distribution/reference`'s `ParseDockerRef`): `[registry/]repository[:tag][@digest]`.
    ///
    /// By hand: compiling oci-spec's regular expression takes longer than all else about a name, and megabytes.
    pub fn parse(name: &str) -> Result<ImageName> {
        let parsed =
            parse(name).map_err(|why| ImageError::InvalidName { name: name.to_owned(), reason: why.into() })?;
        Ok(ImageName(parsed))
    }

    /// Whether the text is an image id, `sha256:<hex>`, which is looked up among local images.
    pub fn is_id(name: &str) -> bool {
        super::digest::is_digest(name)
    }

    /// `docker.io`, `localhost:5000`, ...
    pub fn registry(&self) -> &str {
        self.0.registry()
    }

    /// `library/nginx`
    pub fn repository(&self) -> &str {
        self.0.repository()
    }

    pub fn tag(&self) -> Option<&str> {
        self.0.tag()
    }

    /// The digest that the name requires, `sha256:<hex>`.
    pub fn digest(&self) -> Option<&str> {
        self.0.digest()
    }

    /// `registry/repository`, the part that credentials match on.
    pub fn family(&self) -> String {
        format!("{}/{}", self.registry(), self.repository())
    }

    /// The canonical name by digest: `registry/repository@digest`.
    pub fn with_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.family())
    }

    /// The key under which the store files the image: a digest takes precedence over a tag, as in containerd.
    pub fn key(&self) -> String {
        match self.digest() {
            Some(digest) => self.with_digest(digest),
            None => self.to_string(),
        }
    }

    /// Registry `localhost` without a port means "created on this host": such names are never pulled.
    pub fn is_local_only(&self) -> bool {
        self.registry() == "localhost"
    }

    /// Whether the registry is on this host's loopback, which uses plain HTTP.
    pub fn is_loopback(&self) -> bool {
        is_loopback(split_port(self.registry()).0.trim_matches(['[', ']']))
    }

    pub(super) fn reference(&self) -> &Reference {
        &self.0
    }
}

/// Whether a host, without port and brackets, is loopback by its name alone.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

const FORMAT: &str = "invalid reference format";

fn parse(text: &str) -> std::result::Result<Reference, &'static str> {
    let (named, digest) = text.split_once('@').map_or((text, None), |(named, digest)| (named, Some(digest)));
    digest.map_or(Ok(()), check_digest)?;
    // A colon before a slash belongs to the registry's port.
    let (name, tag) = match named.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (named, None),
    };
    if name.is_empty() || !tag.is_none_or(is_tag) {
        return Err(FORMAT);
    }
    let (registry, path) = name
        .split_once('/')
        .filter(|(first, _)| first.contains(['.', ':']) || *first == "localhost" || *first != first.to_lowercase())
        .unwrap_or((HUB, name));
    if !is_registry(registry) || !path.split('/').all(is_component) {
        let upper = path.chars().any(char::is_uppercase);
        return Err(if upper { "invalid reference format: repository name must be lowercase" } else { FORMAT });
    }
    let registry = if registry == "index.docker.io" { HUB } else { registry };
    let official = if registry == HUB && !path.contains('/') { "library/" } else { "" };
    let (registry, repository) = (registry.to_owned(), format!("{official}{path}"));
    if repository.len() > 255 {
        return Err("repository name must not be more than 255 characters");
    }
    Ok(match (tag, digest) {
        (tag, None) => Reference::with_tag(registry, repository, tag.unwrap_or("latest").to_owned()),
        (None, Some(digest)) => Reference::with_digest(registry, repository, digest.to_owned()),
        (Some(tag), Some(digest)) => {
            Reference::with_tag_and_digest(registry, repository, tag.to_owned(), digest.to_owned())
        }
    })
}

fn check_digest(digest: &str) -> std::result::Result<(), &'static str> {
    let (algorithm, digits) = digest.split_once(':').ok_or(FORMAT)?;
    match algorithm {
        "sha256" if digits.len() != 64 => Err("invalid checksum digest length"),
        "sha256" if digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) => Ok(()),
        "sha256" => Err("invalid checksum digest format"),
        _ => Err("unsupported digest algorithm"),
    }
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128 && tag.bytes().next().is_some_and(word) && tag.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

/// A host name, an IPv4 address or a bracketed IPv6 one; optionally a port.
fn is_registry(registry: &str) -> bool {
    let (host, port) = split_port(registry);
    let label = |l: &str| {
        let inner = l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        inner && !l.is_empty() && !l.starts_with('-') && !l.ends_with('-')
    };
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let fine = bracketed.map_or_else(|| host.split('.').all(label), |h| h.parse::<std::net::Ipv6Addr>().is_ok());
    fine && port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
}

fn split_port(registry: &str) -> (&str, Option<&str>) {
    match registry.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (registry, None),
    }
}

/// Lower-case letters and digits, with `.`, `_`, `__` or any number of `-` between them.
fn is_component(component: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let between = |s: &str| matches!(s, "" | "." | "_" | "__") || s.bytes().all(|b| b == b'-');
    component.starts_with(plain) && component.ends_with(plain) && component.split(plain).all(between)
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_normalise_as_upstream() {
        for (written, normal) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.25", "docker.io/library/nginx:1.25"),
            ("user/app", "docker.io/user/app:latest"),
            ("index.docker.io/library/nginx", "docker.io/library/nginx:latest"),
            ("localhost/busybox:1", "localhost/busybox:1"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("127.0.0.1:5000/x:y", "127.0.0.1:5000/x:y"),
            ("[::1]:5000/x", "[::1]:5000/x:latest"),
            ("test.com:5000", "docker.io/library/test.com:5000"),
            ("foo/foo_bar.com:8080", "docker.io/foo/foo_bar.com:8080"),
            ("sub-dom1.foo.com/bar/b--az/q__ux:some-Tag_1.2", "sub-dom1.foo.com/bar/b--az/q__ux:some-Tag_1.2"),
            ("xn--n3h.com/myimage:xn--n3h.com", "xn--n3h.com/myimage:xn--n3h.com"),
            ("MyHost/app", "MyHost/app:latest"),
        ] {
            assert_eq!(ImageName::parse(written).map(|n| n.to_string()).as_deref(), Ok(normal), "{written}");
        }
        let digest = format!("sha256:{}", "a".repeat(64));
        let both = ImageName::parse(&format!("nginx:1@{digest}")).unwrap();
        assert_eq!(both.key(), format!("docker.io/library/nginx@{digest}"));
        assert_eq!(both.tag(), Some("1"));
    }

    #[test]
    fn bad_names_are_invalid() {
        let bad_hex = format!("nginx@sha256:{}", "Z".repeat(64));
        let (long_tag, sha512) = (format!("a:{}", "t".repeat(129)), format!("a@sha512:{}", "f".repeat(128)));
        let names =
            ["", "Nginx", "a b", "nginx:", ":5", "a//b", "nginx:-x", "/x", "a/", "a:é", "localhost/A", "-a", "a-"];
        let more =
            ["a._b", "a___b", "a.b:x/c", "x.-y.com/a", "[::z]/a", "nginx@sha256:12", "nginx@", "a@b@c", "@", "a:1:2"];
        for bad in names.iter().chain(&more).chain(&[&*bad_hex, &*long_tag, &*sha512]) {
            assert!(matches!(ImageName::parse(bad), Err(ImageError::InvalidName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn loopback_is_recognised() {
        for (name, loopback, local) in [
            ("localhost:5000/a", true, false),
            ("localhost/a", true, true),
            ("127.1.2.3:80/a", true, false),
            ("[::1]/a", true, false),
            ("[::1]:80/a", true, false),
            ("10.0.0.1:5000/a", false, false),
            ("nginx", false, false),
        ] {
            let Ok(parsed) = ImageName::parse(name) else { panic!("{name}") };
            assert_eq!((parsed.is_loopback(), parsed.is_local_only()), (loopback, local), "{name}");
        }
    }
}
