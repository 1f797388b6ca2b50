//! Tokens without expiry, in Secrets of type `kubernetes.io/service-account-token`: valid as long as the Secret and the account
//! exist, and briefly longer if finalizers delay their deletion.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Value, json};

use super::ISSUER;
use super::verify::{Authenticated, OLD_ISSUER, has_ended, refuse};
use crate::Server;
use crate::cache::item::Item;
use crate::resolved_request::ResolvedRequest;
use podwright_api::{Object, Status, User, kinds};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";

/// The generated fields.
const FILLED: [&str; 3] = ["token", "namespace", "ca.crt"];

/// The Secret in the response to its writer: upstream's controller fills it in later, so a user who may create but not read Secrets
/// must not get a token this way.
pub(crate) fn unfilled(mut secret: Object) -> Object {
    let data = secret.0.get_mut("data").and_then(Value::as_object_mut);
    let is_empty = data.is_some_and(|data| {
        FILLED.iter().for_each(|field| drop(data.shift_remove(*field)));
        data.is_empty()
    });
    if let Some(whole) = secret.0.as_object_mut().filter(|_| is_empty) {
        whole.shift_remove("data");
    }
    secret
}

/// Adds a token to such a Secret, if its ServiceAccount exists; returns whether it did.
pub(crate) async fn fill(server: &Server, call: &ResolvedRequest, secret: &mut Object) -> Result<bool, Status> {
    if call.kind.built_in() != "Secret" || secret.0["type"] != TYPE || secret.at("data.token").is_some() {
        return Ok(false);
    }
    let Some(name) = secret.annotation(NAME).map(str::to_owned) else { return Ok(false) };
    // The account may have just been created.
    server.cache.fresh().await?;
    let Some(account) = stored(server, "serviceaccounts", call.within(), &name)? else { return Ok(false) };
    let claims = json!({
        "iss": OLD_ISSUER,
        "sub": format!("system:serviceaccount:{}:{name}", call.within()),
        "kubernetes.io/serviceaccount/namespace": call.within(),
        "kubernetes.io/serviceaccount/secret.name": secret.name(),
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": account.uid(),
    });
    let token = jsonwebtoken::encode(&server.signer.header, &claims, &server.signer.encoding)
        .map_err(|why| Status::internal(format!("a token cannot be signed: {why}")))?;
    secret.0["metadata"]["annotations"][UID] = account.uid().into();
    if !secret.0["data"].is_object() {
        secret.0["data"] = json!({});
    }
    let data = &mut secret.0["data"];
    data["token"] = STANDARD.encode(token).into();
    data["namespace"] = STANDARD.encode(call.within()).into();
    if let Some(authority) = &server.config.authority {
        data["ca.crt"] = STANDARD.encode(authority.certificate()).into();
    }
    Ok(true)
}

impl Server {
    /// The user of a token, if its Secret still contains it.
    pub(super) async fn verify_secret_token(&self, token: &str, audiences: &[String]) -> Result<Authenticated, Status> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_issuer(&[OLD_ISSUER]);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let decoded = jsonwebtoken::decode::<Value>(token, &self.signer.decoding, &validation).map_err(refuse)?;
        let claim = |name: &str| {
            decoded.claims[format!("kubernetes.io/serviceaccount/{name}")].as_str().unwrap_or("").to_owned()
        };
        let (namespace, name) = (claim("namespace"), claim("service-account.name"));
        if !audiences.iter().any(|audience| audience == ISSUER) {
            return Err(refuse("it is not for this audience"));
        }
        self.cache.fresh().await?;
        let now = self.env.now();
        let account = stored(self, "serviceaccounts", &namespace, &name)?;
        let is_same = |account: &Arc<Item>| account.uid() == claim("service-account.uid");
        let account = account.filter(|account| is_same(account) && !has_ended(account, now));
        let account = account.ok_or_else(|| refuse("its serviceaccount is gone"))?;
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        let mut user = User::new(format!("system:serviceaccount:{namespace}:{name}"), groups);
        let secret = stored(self, "secrets", &namespace, &claim("secret.name"))?;
        let secret = secret.filter(|secret| !has_ended(secret, now));
        let secret = secret.ok_or_else(|| refuse("its secret is gone"))?;
        let token = STANDARD.encode(token);
        let is_held = |secret: &Object| secret.at("data.token").and_then(Value::as_str) == Some(&token);
        if !self.look(&user, &secret, is_held).await? {
            return Err(refuse("its secret is gone"));
        }
        user.groups.push("system:authenticated".to_owned());
        user.uid = account.uid().to_owned();
        Ok(Authenticated { user, audiences: vec![ISSUER.to_owned()] })
    }
}

fn stored(server: &Server, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Item>>, Status> {
    let kind = kinds::lookup(resource).ok_or_else(|| Status::internal(format!("no kind {resource}")))?;
    Ok(server.cache.resource(kind).get(&kind.key(Some(namespace), name)))
}
