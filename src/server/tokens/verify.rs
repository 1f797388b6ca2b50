//! Authenticates bearer tokens.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, Validation};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::ISSUER;
use crate::Server;
use crate::cache::item::Item;
use podwright_api::{Status, User, kinds};

/// The issuer of such tokens, as upstream.
pub(super) const OLD_ISSUER: &str = "kubernetes/serviceaccount";

/// The cache of verified signatures: its most entries, and the most bytes of their tokens: claims take ten times as many.
const REMEMBERED: usize = 10_000;
const REMEMBERED_BYTES: usize = 8 << 20;
/// The longest token that is cached: users who request a token for many audiences have it verified each time.
const LONGEST_REMEMBERED: usize = 4 << 10;
/// How long a token outlives the deletion of its bound object, for graceful shutdown.
const LEEWAY: SignedDuration = SignedDuration::from_secs(60);
const EXTRA: &str = "authentication.kubernetes.io/";

/// Claims with verified signatures, by the token's digest: verification takes a quarter of a millisecond.
#[derive(Default)]
pub(crate) struct Verified(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    claims: HashMap<[u8; 32], Arc<Value>>,
    /// The bytes of their tokens.
    bytes: usize,
}

impl Verified {
    fn find(&self, digest: &[u8; 32]) -> Option<Arc<Value>> {
        self.lock().claims.get(digest).cloned()
    }

    fn remember(&self, token: &str, digest: [u8; 32], claims: &Arc<Value>) {
        if token.len() > LONGEST_REMEMBERED {
            return;
        }
        let mut remembered = self.lock();
        if remembered.claims.len() >= REMEMBERED || remembered.bytes + token.len() > REMEMBERED_BYTES {
            *remembered = Remembered::default();
        }
        if remembered.claims.insert(digest, claims.clone()).is_none() {
            remembered.bytes += token.len();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        // After a panic at most a token's bytes are missing from the count.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// An authenticated bearer token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    pub user: User,
    /// The requested audiences that it is valid for; empty for tokens without audiences.
    pub audiences: Vec<String>,
}

pub(super) fn refuse(why: impl std::fmt::Display) -> Status {
    Status::unauthorized(format!("invalid bearer token: {why}"))
}

impl Server {
    /// Authenticates a token of any supported type. `audiences`: it must be valid for one of them, if it has any; an empty list
    /// means the API server's own.
    pub async fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Authenticated, Status> {
        let own = [ISSUER.to_owned()];
        let audiences = if audiences.is_empty() { &own[..] } else { audiences };
        let issuer = issuer_of(token);
        if issuer.as_deref() == Some(ISSUER) {
            return self.verify_account_token(token, audiences).await;
        }
        if issuer.as_deref() == Some(OLD_ISSUER) {
            return self.verify_secret_token(token, audiences).await;
        }
        let oidc = self.config.oidc.as_ref().filter(|oidc| issuer.as_deref().is_some_and(|iss| oidc.is_issuer(iss)));
        let user = match (oidc, self.config.tokens.find(token)) {
            (_, Some(user)) => Some(user),
            (Some(oidc), None) => Some(oidc.user(token, self.env.now()).await?),
            (None, None) => self.bootstrap_user(token).await?,
        };
        let user = user.ok_or_else(|| refuse("it is unknown"))?;
        // These are for this server only.
        let own = audiences.iter().filter(|audience| *audience == ISSUER).cloned().collect::<Vec<_>>();
        match own.is_empty() {
            true => Err(refuse("it is not for this audience")),
            false => Ok(Authenticated { user, audiences: own }),
        }
    }

    /// The same for one audience.
    pub async fn verify_token(&self, token: &str, audience: &str) -> Result<User, Status> {
        self.authenticate_token(token, &[audience.to_owned()]).await.map(|it| it.user)
    }

    /// A ServiceAccount token: signed here, for one of these audiences, not expired, and bound to objects that still exist.
    async fn verify_account_token(&self, token: &str, audiences: &[String]) -> Result<Authenticated, Status> {
        let claims = self.signed_claims(token)?;
        let now = self.env.now();
        if claims["exp"].as_i64().is_none_or(|exp| exp <= now.as_second()) {
            return Err(refuse("it has expired"));
        }
        if claims["nbf"].as_i64().is_some_and(|from| from > now.as_second() + 60) {
            return Err(refuse("it is not valid yet"));
        }
        let of: Vec<&str> = match &claims["aud"] {
            Value::String(one) => vec![one],
            list => list.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
        };
        let audiences: Vec<String> = audiences.iter().filter(|wanted| of.contains(&wanted.as_str())).cloned().collect();
        if audiences.is_empty() {
            return Err(refuse(format!("its audiences are {of:?}")));
        }
        self.cache.fresh().await?;
        let account = self.alive(&claims, now)?;
        let namespace = claims["kubernetes.io"]["namespace"].as_str().unwrap_or("");
        Ok(Authenticated { user: account_user(&claims, namespace, &account), audiences })
    }

    fn signed_claims(&self, token: &str) -> Result<Arc<Value>, Status> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(claims) = self.verified.find(&digest) {
            return Ok(claims);
        }
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_issuer(&[ISSUER]);
        // Time and audiences are checked below.
        validation.validate_exp = false;
        validation.validate_aud = false;
        let decoded = jsonwebtoken::decode::<Value>(token, &self.signer.decoding, &validation).map_err(refuse)?;
        let claims = Arc::new(decoded.claims);
        self.verified.remember(token, digest, &claims);
        Ok(claims)
    }

    /// The ServiceAccount, if it and the bound object are still the same as when the token was issued.
    fn alive(&self, claims: &Value, now: Timestamp) -> Result<Arc<Item>, Status> {
        let bound = &claims["kubernetes.io"];
        let namespace = bound["namespace"].as_str().unwrap_or("");
        let account = self.is_alive("serviceaccounts", namespace, &bound["serviceaccount"], now)?;
        // A Pod's token names its node too; the node is a bound object only if there is no other.
        let node_binds = bound.get("pod").is_none();
        for (resource, of, binds) in [("pods", "pod", true), ("secrets", "secret", true), ("nodes", "node", node_binds)]
        {
            if let Some(reference) = bound.get(of).filter(|_| binds) {
                self.is_alive(resource, namespace, reference, now)?;
            }
        }
        Ok(account)
    }

    fn is_alive(&self, resource: &str, namespace: &str, of: &Value, now: Timestamp) -> Result<Arc<Item>, Status> {
        let kind = kinds::lookup(resource).ok_or_else(|| Status::internal(format!("no kind {resource}")))?;
        let name = of["name"].as_str().unwrap_or("");
        let gone = || refuse(format!("its {} {namespace}/{name} is gone", kind.singular));
        let item = self.cache.resource(kind).get(&kind.key(Some(namespace), name)).ok_or_else(gone)?;
        if of["uid"] != item.uid() || has_ended(&item, now) {
            return Err(gone());
        }
        Ok(item)
    }
}

/// Whether a bound object was deleted so long ago that the token is invalid, even if finalizers keep the object.
pub(super) fn has_ended(item: &Item, now: Timestamp) -> bool {
    item.deletion_timestamp().is_some_and(|at| now.duration_since(at) > LEEWAY)
}

fn account_user(claims: &Value, namespace: &str, account: &Item) -> User {
    let bound = &claims["kubernetes.io"];
    let mut extra = BTreeMap::new();
    let mut tell = |name: &str, value: &Value| {
        if let Some(value) = value.as_str() {
            extra.insert(format!("{EXTRA}{name}"), vec![value.to_owned()]);
        }
    };
    if let Some(id) = claims["jti"].as_str() {
        tell("credential-id", &format!("JTI={id}").into());
    }
    for of in ["pod", "node"] {
        tell(&format!("{of}-name"), &bound[of]["name"]);
        tell(&format!("{of}-uid"), &bound[of]["uid"]);
    }
    let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    let name = format!("system:serviceaccount:{namespace}:{}", account.name());
    let mut user = User::new(name, groups);
    user.groups.push("system:authenticated".to_owned());
    User { uid: account.uid().to_owned(), extra, ..user }
}

/// The unverified issuer of a token.
pub(super) fn issuer_of(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    Some(claims["iss"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verified_tokens_are_remembered_within_bounds() {
        let (verified, claims) = (Verified::default(), Arc::new(Value::Null));
        let digest = |n: usize| <[u8; 32]>::from(Sha256::digest(n.to_string()));
        let known = |n: usize| verified.find(&digest(n)).is_some();
        verified.remember(&"x".repeat(LONGEST_REMEMBERED + 1), digest(0), &claims);
        assert!(!known(0));
        let longest = "x".repeat(LONGEST_REMEMBERED);
        for n in 1..=3 * REMEMBERED_BYTES / LONGEST_REMEMBERED {
            verified.remember(&longest, digest(n), &claims);
            // Adding the same again takes no space.
            verified.remember(&longest, digest(n), &claims);
            assert!(known(n));
            let held = verified.lock();
            assert!(held.bytes <= REMEMBERED_BYTES && held.bytes == held.claims.len() * LONGEST_REMEMBERED);
        }
        for n in 0..2 * REMEMBERED {
            verified.remember("short", digest(n), &claims);
            assert!(known(n) && verified.lock().claims.len() <= REMEMBERED);
        }
    }
}
