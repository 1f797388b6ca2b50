//! Talking to a registry: credentials turned into what it wants, and its answers into errors that say enough.

use std::error::Error;

use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, RegistryOperation};
use serde::Deserialize;

use super::{Auth, ImageError, ImageName, Result};

/// Gives the client its credentials for `name`: asks the registry how it wants them, gets a token where it says so.
pub(super) async fn connect(client: &Client, name: &ImageName, auth: &Auth) -> Result<()> {
    let auth = match auth {
        Auth::Anonymous => RegistryAuth::Anonymous,
        Auth::Basic { username, password } => RegistryAuth::Basic(username.clone(), password.clone()),
        Auth::RegistryToken(token) => RegistryAuth::Bearer(token.clone()),
        Auth::IdentityToken(token) => exchange(name, token).await?,
    };
    let asked = client.auth(name.reference(), &auth, RegistryOperation::Pull).await;
    asked.map(|_| ()).map_err(|e| describe(e, name))
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: Option<String>,
    token: Option<String>,
}

/// Swaps an identity token for an access token (OAuth2 `refresh_token` grant, distribution's token spec).
async fn exchange(name: &ImageName, identity_token: &str) -> Result<RegistryAuth> {
    let http = reqwest::Client::builder().build().map_err(|e| ImageError::Network(chain(&e)))?;
    let scheme = if name.is_loopback() { "http" } else { "https" };
    let url = format!("{scheme}://{}/v2/", name.reference().resolve_registry());
    let hello = http.get(&url).send().await.map_err(|e| ImageError::Network(chain(&e)))?;
    let wanted = hello.headers().get("www-authenticate").and_then(|h| h.to_str().ok()).unwrap_or_default();
    let Some(realm) = bearer_parameter(wanted, "realm") else {
        return Err(ImageError::Unauthorized(format!("{url} takes no identity token (it wants {wanted:?})")));
    };
    let scope = format!("repository:{}:pull", name.repository());
    let service = bearer_parameter(wanted, "service").unwrap_or_default();
    let form = [
        ("grant_type", "refresh_token"),
        ("service", &service),
        ("client_id", "podwright"),
        ("scope", &scope),
        ("refresh_token", identity_token),
    ];
    let form: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", percent_encode(value))).collect();
    let request =
        http.post(&realm).header("content-type", "application/x-www-form-urlencoded").body(form.join("&")).send();
    let answer = request.await.map_err(|e| ImageError::Network(chain(&e)))?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(|e| ImageError::Network(chain(&e)))?;
    if !status.is_success() {
        let what = format!("failed to authorize: unexpected status from POST request to {realm}: {status}");
        return Err(if status.is_client_error() { ImageError::Unauthorized(what) } else { ImageError::Network(what) });
    }
    let answer: TokenAnswer =
        serde_json::from_slice(&body).map_err(|e| ImageError::Network(format!("token from {realm}: {e}")))?;
    let token = answer.access_token.or(answer.token);
    token.map(RegistryAuth::Bearer).ok_or_else(|| ImageError::Unauthorized(format!("{realm} gave no token")))
}

/// The value of `key="value"` in a `Bearer` challenge.
fn bearer_parameter(challenge: &str, key: &str) -> Option<String> {
    let (scheme, mut rest) = challenge.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        if name.trim_matches([',', ' ']).eq_ignore_ascii_case(key) {
            return Some(value.to_owned());
        }
        rest = after;
    }
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => (byte as char).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// A registry's failure as ours, in containerd's words where it has some.
pub(super) fn describe(error: OciDistributionError, name: &ImageName) -> ImageError {
    use OciDistributionError as E;
    let denied = |detail: String| {
        let what = "pull access denied, repository does not exist or may require authorization";
        ImageError::Unauthorized(format!("{what}: {detail}"))
    };
    match error {
        E::UnauthorizedError { url } => denied(format!("authorization failed: {url}: 401 Unauthorized")),
        E::AuthenticationFailure(reason) => denied(format!("failed to fetch token: {}", reason.trim())),
        E::RegistryError { envelope, url } => {
            let said: Vec<String> =
                envelope.errors.iter().map(|e| format!("{}: {}", code(&e.code), e.message)).collect();
            let has = |codes: &[OciErrorCode]| envelope.errors.iter().any(|e| codes.contains(&e.code));
            use OciErrorCode as C;
            if has(&[C::Unauthorized, C::Denied]) {
                denied(format!("server message: {}", said.join(", ")))
            } else if has(&[C::ManifestUnknown, C::NameUnknown, C::NotFound, C::BlobUnknown, C::ManifestBlobUnknown]) {
                ImageError::NotFound(format!("{name}: not found"))
            } else {
                ImageError::Network(format!("{url}: server message: {}", said.join(", ")))
            }
        }
        E::ServerError { code: 404, .. } => ImageError::NotFound(format!("{name}: not found")),
        E::ServerError { code: 401 | 403, message, url } => denied(format!("{url}: {}", message.trim())),
        E::ServerError { code, url, message } => {
            let message: String = message.trim().chars().take(200).collect();
            ImageError::Network(format!("unexpected status from {url}: {code}: {message}"))
        }
        E::ImageManifestNotFoundError(_) => ImageError::NotFound(format!("{name}: not found")),
        E::DigestError(error) => digest_error(error, name),
        E::IoError(error) => match error.get_ref().and_then(|inner| inner.downcast_ref::<DigestError>()) {
            Some(DigestError::VerificationError { expected, actual }) => digest_error(
                DigestError::VerificationError { expected: expected.clone(), actual: actual.clone() },
                name,
            ),
            _ => ImageError::Network(chain(&error)),
        },
        E::RequestError(error) => ImageError::Network(format!("failed to do request: {}", chain(&error))),
        E::RegistryTokenDecodeError(reason) => ImageError::Network(format!("bad answer of the token server: {reason}")),
        other => ImageError::Invalid(other.to_string()),
    }
}

fn digest_error(error: DigestError, name: &ImageName) -> ImageError {
    match error {
        DigestError::VerificationError { expected, actual } => {
            ImageError::DigestMismatch { what: format!("content of {}", name.family()), expected, actual }
        }
        other => ImageError::Invalid(other.to_string()),
    }
}

fn code(code: &OciErrorCode) -> String {
    serde_json::to_value(code).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// An error with its causes, which carry what matters ("connection refused").
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let challenge = r#"Bearer realm="https://auth.example/token",service="reg,x",scope="repository:a:pull""#;
        assert_eq!(bearer_parameter(challenge, "realm").as_deref(), Some("https://auth.example/token"));
        assert_eq!(bearer_parameter(challenge, "service").as_deref(), Some("reg,x"));
        assert_eq!(bearer_parameter(challenge, "other"), None);
        assert_eq!(bearer_parameter("Basic realm=\"x\"", "realm"), None);
        assert_eq!(percent_encode("a b/ä"), "a%20b%2F%C3%A4");
    }
}
