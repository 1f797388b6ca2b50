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
        let Some(stored) = self.bootstrap_secret(token.id()).await? else { return Ok(None) };
        // Compares digests, so that timing reveals nothing about the secret.
        let same = |a: &str, b: &str| Sha256::digest(a.as_bytes()) == Sha256::digest(b.as_bytes());
        match data(&stored, bootstrap_token::SECRET).is_some_and(|secret| same(&secret, token.secret())) {
            true => Ok(user_of(&stored, token.id(), self.env.now())),
            false => Ok(None),
        }
    }

    /// The user that the token with this id makes of its holder at this moment; `None` once it is withdrawn.
    pub(crate) async fn bootstrap_holder(&self, id: &str) -> Result<Option<User>, Status> {
        let stored = match bootstrap_token::is_id(id) {
            true => self.bootstrap_secret(id).await?,
            false => None,
        };
        Ok(stored.and_then(|stored| user_of(&stored, id, self.env.now())))
    }

    async fn bootstrap_secret(&self, id: &str) -> Result<Option<Object>, Status> {
        self.cache.fresh().await?;
        let kind = kinds::lookup("secrets").ok_or_else(|| Status::internal("no kind Secret"))?;
        let key = kind.key(Some(bootstrap_token::NAMESPACE), &format!("{}{id}", bootstrap_token::PREFIX));
        let Some(item) = self.cache.resource(kind).get(&key) else { return Ok(None) };
        Ok(Some(item.decode(Weighed::own())?.object))
    }
}

fn data(stored: &Object, key: &str) -> Option<String> {
    let bytes = STANDARD.decode(stored.0["data"][key].as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

/// The user of a token, if its Secret lets it authenticate anybody.
fn user_of(stored: &Object, id: &str, now: jiff::Timestamp) -> Option<User> {
    let data = |key: &str| data(stored, key);
    if stored.0["type"] != bootstrap_token::TYPE || stored.is_terminating() || data(bootstrap_token::ID)? != id {
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
    Some(User::new(format!("{}{id}", bootstrap_token::USER), [GROUP].into_iter().chain(more)))
}
