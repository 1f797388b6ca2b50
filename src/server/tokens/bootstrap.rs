//! Bootstrap tokens for joining nodes: Secrets of type `bootstrap.kubernetes.io/token` in `kube-system`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::Server;
use crate::large::Weighed;
use podwright_api::bootstrap_token::{self, Token};
use podwright_api::{Object, Status, User, kinds};

const GROUP: &str = "system:bootstrappers";

impl Server {
    /// The user of a bootstrap token: `id.secret`, 6 and 16 characters.
    pub(super) async fn bootstrap_user(&self, token: &str) -> Result<Option<User>, Status> {
        let Ok(token) = token.parse::<Token>() else { return Ok(None) };
        self.cache.fresh().await?;
        let kind = kinds::lookup("secrets").ok_or_else(|| Status::internal("no kind Secret"))?;
        let key = kind.key(Some(bootstrap_token::NAMESPACE), &format!("{}{}", bootstrap_token::PREFIX, token.id()));
        let Some(item) = self.cache.resource(kind).get(&key) else { return Ok(None) };
        let stored = item.decode(Weighed::own())?.object;
        Ok(user_of(&stored, &token, self.env.now()))
    }
}

fn user_of(stored: &Object, token: &Token, now: jiff::Timestamp) -> Option<User> {
    let data = |key: &str| {
        let bytes = STANDARD.decode(stored.0["data"][key].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    if stored.0["type"] != bootstrap_token::TYPE || stored.is_terminating() {
        return None;
    }
    // Compares digests, so that timing reveals nothing about the secret.
    let same = |a: &str, b: &str| Sha256::digest(a.as_bytes()) == Sha256::digest(b.as_bytes());
    if data(bootstrap_token::ID)? != token.id() || !same(&data(bootstrap_token::SECRET)?, token.secret()) {
        return None;
    }
    if data("usage-bootstrap-authentication")? != "true" {
        return None;
    }
    if bootstrap_token::end(data(bootstrap_token::EXPIRATION).as_deref()).is_some_and(|end| end <= now) {
        return None;
    }
    let more = data(bootstrap_token::GROUPS).unwrap_or_default();
    let more: Vec<&str> = more.split(',').map(str::trim).filter(|group| !group.is_empty()).collect();
    if !more.iter().all(|group| bootstrap_token::is_group(group)) {
        return None;
    }
    Some(User::new(format!("system:bootstrap:{}", token.id()), [GROUP].into_iter().chain(more)))
}
