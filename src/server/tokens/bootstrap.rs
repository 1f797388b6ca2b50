//! Bootstrap tokens for joining nodes: Secrets of type `bootstrap.kubernetes.io/token` in `kube-system`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::Server;
use crate::large::Weighed;
use podwright_api::{Object, Status, User, kinds};

const GROUP: &str = "system:bootstrappers";

impl Server {
    /// The user of a bootstrap token: `id.secret`, 6 and 16 characters.
    pub(super) async fn bootstrap_user(&self, token: &str) -> Result<Option<User>, Status> {
        let is_word = |word: &str, length| {
            word.len() == length && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        let Some((id, secret)) = token.split_once('.').filter(|(id, secret)| is_word(id, 6) && is_word(secret, 16))
        else {
            return Ok(None);
        };
        self.cache.fresh().await?;
        let kind = kinds::lookup("secrets").ok_or_else(|| Status::internal("no kind Secret"))?;
        let key = kind.key(Some("kube-system"), &format!("bootstrap-token-{id}"));
        let Some(item) = self.cache.resource(kind).get(&key) else { return Ok(None) };
        let stored = item.decode(Weighed::own())?.object;
        Ok(user_of(&stored, id, secret, self.env.now()))
    }
}

fn user_of(stored: &Object, id: &str, secret: &str, now: jiff::Timestamp) -> Option<User> {
    let data = |key: &str| {
        let bytes = STANDARD.decode(stored.0["data"][key].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    if stored.0["type"] != "bootstrap.kubernetes.io/token" || stored.is_terminating() {
        return None;
    }
    // Compares digests, so that timing reveals nothing about the secret.
    let same = |a: &str, b: &str| Sha256::digest(a.as_bytes()) == Sha256::digest(b.as_bytes());
    if data("token-id")? != id || !same(&data("token-secret")?, secret) {
        return None;
    }
    if data("usage-bootstrap-authentication")? != "true" {
        return None;
    }
    if let Some(until) = data("expiration")
        && until.parse::<jiff::Timestamp>().ok().is_none_or(|until| until <= now)
    {
        return None;
    }
    let more = data("auth-extra-groups").unwrap_or_default();
    let more: Vec<&str> = more.split(',').map(str::trim).filter(|group| !group.is_empty()).collect();
    if !more.iter().all(|group| is_bootstrap_group(group)) {
        return None;
    }
    Some(User::new(format!("system:bootstrap:{id}"), [GROUP].into_iter().chain(more)))
}

/// A token may add its user only to groups with the bootstrap prefix.
fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-';
    let ends_well = rest.bytes().next_back().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    rest.len() <= 256 && rest.bytes().all(plain) && ends_well
}
