//! Bootstrap tokens for joining nodes: Secrets of type `bootstrap.kubernetes.io/token` in `kube-system`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::Server;
use crate::large::Weighed;
use podwright_api::bootstrap_token::{self, Token};
use podwright_api::{Object, Status, User, kinds};

const GROUP: &str = "system:bootstrappers";
const USER_PREFIX: &str = "system:bootstrap:";

impl Server {
    /// The user of a bootstrap token: `id.secret`, 6 and 16 characters.
    pub(super) async fn bootstrap_user(&self, token: &str) -> Result<Option<User>, Status> {
        let Ok(token) = token.parse::<Token>() else { return Ok(None) };
        let stored = self.bootstrap_secret(token.id()).await?;
        Ok(stored
            .filter(|stored| has_secret(stored, &token))
            .and_then(|stored| user_of(&stored, token.id(), self.env.now())))
    }

    /// Whether the token by which this user asked for something could still be used for it: as it is, with these groups. All other
    /// users have no such token.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub(crate) async fn still_bootstraps(&self, user: &User) -> Result<bool, Status> {
        let Some(id) = user.name.strip_prefix(USER_PREFIX) else { return Ok(true) };
        let stored = self.bootstrap_secret(id).await?;
        let now = stored.and_then(|stored| user_of(&stored, id, self.env.now()));
        let of_token = |group: &&String| group.starts_with("system:bootstrappers");
        Ok(now.is_some_and(|now| user.groups.iter().filter(of_token).all(|group| now.groups.contains(group))))
    }

    /// The Secret of a token, if there is one.
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

fn has_secret(stored: &Object, token: &Token) -> bool {
    // Compares digests, so that timing reveals nothing about the secret.
    let same = |a: &str, b: &str| Sha256::digest(a.as_bytes()) == Sha256::digest(b.as_bytes());
    data(stored, bootstrap_token::SECRET).is_some_and(|secret| same(&secret, token.secret()))
}

/// Whom the token of this id stands for now.
fn user_of(stored: &Object, id: &str, now: jiff::Timestamp) -> Option<User> {
    let data = |key: &str| data(stored, key);
    if stored.0["type"] != bootstrap_token::TYPE || stored.is_terminating() {
        return None;
    }
    if data(bootstrap_token::ID)? != id {
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
    Some(User::new(format!("{USER_PREFIX}{id}"), [GROUP].into_iter().chain(more)))
}
