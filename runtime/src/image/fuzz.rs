//! Entry points for `./dev fuzz`: responses of a registry and its token server, without one.

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use oci_spec::image::ImageIndex;
use url::Url;

use super::guard::Guard;
use super::manifest::{DocumentKind, Manifest, parse};
use super::registry::{Challenge, refusal, token_of};
use super::{ImageName, Result, digest};

/// The token URL that the registry `registry.example:5000` may direct us to by a `WWW-Authenticate`.
pub fn realm(challenge: &[u8]) -> Option<String> {
    let mut headers = HeaderMap::new();
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_bytes(challenge).ok()?);
    allowed(Url::parse(&Challenge::read(&headers)?.realm).ok()?)
}

/// Where it may redirect a blob request.
pub fn redirect(location: &str) -> Option<String> {
    allowed(Url::parse("https://registry.example:5000/v2/a/blobs/sha256:0").ok()?.join(location).ok()?)
}

/// The host of a URL, if a registry elsewhere may redirect to it.
fn allowed(url: Url) -> Option<String> {
    let host = url.host_str().unwrap_or_default().to_owned();
    Guard::new("registry.example:5000", false).check(&url).ok().map(|()| host)
}

/// The token in a token server's response.
pub fn token(body: &[u8]) -> Option<String> {
    token_of(body)
}

/// The part of a failed response shown in a Pod's events.
pub fn refused(code: u16, body: &[u8]) -> Option<String> {
    let name = ImageName::parse("registry.example:5000/a:1").ok()?;
    Some(refusal(&name, "https://registry.example:5000/v2/", StatusCode::from_u16(code).ok()?, body).to_string())
}

/// The digests that an image document refers to, each validated; and whether it is an index.
pub fn document(bytes: &[u8]) -> Result<(bool, Vec<String>)> {
    let index = parse::<DocumentKind>("manifest", bytes)?.is_index()?;
    let digests: Vec<String> = match index {
        true => parse::<ImageIndex>("index", bytes)?.manifests().iter().map(|m| m.digest().to_string()).collect(),
        false => {
            let Manifest { config, layers } = Manifest::parse("manifest", bytes)?;
            std::iter::once(config).chain(layers).map(|part| part.digest).collect()
        }
    };
    digests.iter().try_for_each(|found| digest::check(found).map(drop))?;
    Ok((index, digests))
}
