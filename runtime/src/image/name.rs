//! Image names, normalised as docker and Kubernetes do: `nginx` is `docker.io/library/nginx:latest`.

use std::fmt;
use std::net::IpAddr;

use oci_client::Reference;

use super::{ImageError, Result};

/// A parsed and normalised image name. Displays as `registry/repository[:tag][@digest]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageName(Reference);

impl ImageName {
    /// Parses what a person wrote (`distribution/reference`'s `ParseDockerRef`).
    pub fn parse(name: &str) -> Result<ImageName> {
        let invalid = |reason: String| ImageError::InvalidName { name: name.to_owned(), reason };
        let reference = Reference::try_from(name).map_err(|e| invalid(e.to_string()))?;
        let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        match reference.digest().and_then(|d| d.split_once(':')) {
            Some(("sha256", digits)) if digits.chars().all(hex) => {}
            Some(_) => return Err(invalid("unsupported digest algorithm".into())),
            None => {}
        }
        Ok(ImageName(reference))
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

    /// The digest that the name insists on, `sha256:<hex>`.
    pub fn digest(&self) -> Option<&str> {
        self.0.digest()
    }

    /// `registry/repository`, the part that credentials match on.
    pub fn family(&self) -> String {
        format!("{}/{}", self.registry(), self.repository())
    }

    /// The canonical name that goes by `digest`: `registry/repository@digest`.
    pub fn with_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.family())
    }

    /// The key that the store files the image under: a digest outweighs a tag, as in containerd.
    pub fn key(&self) -> String {
        match self.digest() {
            Some(digest) => self.with_digest(digest),
            None => self.to_string(),
        }
    }

    /// Registry `localhost` without a port means "made on this host": such names are never pulled.
    pub fn is_local_only(&self) -> bool {
        self.registry() == "localhost"
    }

    /// Whether the registry is on this host's loopback, where plain HTTP is spoken.
    pub fn is_loopback(&self) -> bool {
        let host = self.registry().rsplit_once(':').map_or(self.registry(), |(host, _port)| host);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    pub(super) fn reference(&self) -> &Reference {
        &self.0
    }
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
        for bad in ["", "Nginx", "a b", "nginx:", "nginx@sha256:12", ":5", "a//b", "nginx:-x", "/x", bad_hex.as_str()] {
            assert!(matches!(ImageName::parse(bad), Err(ImageError::InvalidName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn loopback_is_recognised() {
        for (name, loopback, local) in [
            ("localhost:5000/a", true, false),
            ("localhost/a", true, true),
            ("127.1.2.3:80/a", true, false),
            ("10.0.0.1:5000/a", false, false),
            ("nginx", false, false),
        ] {
            let Ok(parsed) = ImageName::parse(name) else { panic!("{name}") };
            assert_eq!((parsed.is_loopback(), parsed.is_local_only()), (loopback, local), "{name}");
        }
    }
}
