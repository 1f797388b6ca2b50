//! ServiceAccount tokens: the `token` subresource signs them, with a key kept in the store; `verify` reads them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use p256::ecdsa::SigningKey;
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::api::{Env, Object, Response, Status, User, kinds};
use crate::store::{Compare, Outcome, Store, Txn, Write};

use super::call::{Call, bad_value};
use super::{Server, get, store_error};

/// Who signs, and the audience of tokens that name none.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const KEY: &str = "/registry/keys/serviceaccount";
const DEFAULT_SECONDS: i64 = 3600;
const SHORTEST_SECONDS: i64 = 600;
const LONGEST_SECONDS: i64 = 1 << 32;

/// The key that tokens are signed with.
pub(super) struct Signer {
    header: Header,
    encoding: EncodingKey,
    decoding: DecodingKey,
}

impl Signer {
    /// Reads the key from the store, or makes it.
    pub async fn open(store: &dyn Store, env: &Env) -> Result<Signer, Status> {
        if let Some(entry) = store.get(KEY).await.map_err(store_error)? {
            return Signer::of_stored(&entry.value);
        }
        let stored = generate(env)?;
        let txn = Txn {
            compares: vec![Compare::Absent(KEY.into())],
            writes: vec![Write::Put(KEY.into(), stored.clone())],
            ..Txn::default()
        };
        match store.commit(txn).await.map_err(store_error)? {
            Outcome::Committed(_) => Signer::of_stored(&stored),
            Outcome::Refused(found) => match found.into_iter().next().flatten() {
                Some(entry) => Signer::of_stored(&entry.value),
                None => Err(Status::internal("the signing key vanished while it was made")),
            },
        }
    }

    fn of_stored(stored: &[u8]) -> Result<Signer, Status> {
        let broken = |why: String| Status::internal(format!("the stored signing key: {why}"));
        let value: Value = serde_json::from_slice(stored).map_err(|e| broken(e.to_string()))?;
        let der = STANDARD.decode(value["pkcs8"].as_str().unwrap_or("")).map_err(|e| broken(e.to_string()))?;
        let key = SigningKey::from_pkcs8_der(&der).map_err(|e| broken(e.to_string()))?;
        let public = key.verifying_key().to_encoded_point(false);
        let id = Sha256::digest(public.as_bytes());
        let kid = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&id[..16]);
        Ok(Signer {
            header: Header { kid: Some(kid), ..Header::new(Algorithm::ES256) },
            encoding: EncodingKey::from_ec_der(&der),
            decoding: DecodingKey::from_ec_der(public.as_bytes()),
        })
    }
}

fn generate(env: &Env) -> Result<Bytes, Status> {
    loop {
        let mut bytes = [0u8; 32];
        env.fill(&mut bytes);
        // Nearly every number is a key; those that are none are drawn again.
        let Ok(key) = SigningKey::from_slice(&bytes) else { continue };
        let der = key.to_pkcs8_der().map_err(Status::internal)?;
        return Ok(json!({"algorithm": "ES256", "pkcs8": STANDARD.encode(der.as_bytes())}).to_string().into());
    }
}

impl Server {
    /// Answers a TokenRequest for a ServiceAccount.
    pub(super) async fn issue_token(&self, mut call: Call) -> Result<Response, Status> {
        let mut request = call.take_body()?;
        self.cache.fresh().await?;
        let item = self.cache.shelf(call.kind).get(&call.key()).ok_or_else(|| call.not_found())?;
        let account = item.current()?.object;

        let seconds = match &request["spec"]["expirationSeconds"] {
            Value::Null => DEFAULT_SECONDS,
            value => value.as_i64().unwrap_or(0),
        };
        let asked = &request["spec"]["expirationSeconds"];
        let refuse = |why: &str| {
            let cause = bad_value("spec.expirationSeconds", asked, why);
            Err(Status::invalid("TokenRequest", "authentication.k8s.io", account.name(), vec![cause]))
        };
        if seconds < SHORTEST_SECONDS {
            return refuse("may not specify a duration less than 10 minutes");
        }
        if seconds > LONGEST_SECONDS {
            return refuse("may not specify a duration larger than 2^32 seconds");
        }
        let audiences = match request["spec"]["audiences"].as_array().filter(|list| !list.is_empty()) {
            Some(list) => list.clone(),
            None => vec![ISSUER.into()],
        };

        let now = self.env.now();
        let (issued, expires) = (now.as_second(), now.as_second() + seconds);
        let namespace = account.namespace().unwrap_or("");
        let mut bound = Map::new();
        bound.insert("namespace".into(), namespace.into());
        bound.insert("serviceaccount".into(), json!({"name": account.name(), "uid": account.uid()}));
        if let Some(reference) = request["spec"].get("boundObjectRef").filter(|r| !r.is_null()) {
            self.bind_token(&call, &account, reference, &mut bound)?;
        }
        let claims = json!({
            "aud": audiences, "exp": expires, "iat": issued, "nbf": issued, "iss": ISSUER, "jti": self.env.uid(),
            "sub": format!("system:serviceaccount:{namespace}:{}", account.name()),
            "kubernetes.io": bound,
        });
        let token = jsonwebtoken::encode(&self.signer.header, &claims, &self.signer.encoding)
            .map_err(|e| Status::internal(format!("a token cannot be signed: {e}")))?;

        let expiration = jiff::Timestamp::from_second(expires).map(super::create::timestamp);
        request["apiVersion"] = "authentication.k8s.io/v1".into();
        request["kind"] = "TokenRequest".into();
        request["metadata"]["name"] = account.name().into();
        request["metadata"]["namespace"] = namespace.into();
        request["spec"]["audiences"] = audiences.into();
        request["spec"]["expirationSeconds"] = seconds.into();
        request["status"] = json!({"token": token, "expirationTimestamp": expiration.unwrap_or_default()});
        Ok(get::object(request.to_string().into(), true))
    }

    /// Ties a token to a Pod, so that it ends with the Pod.
    fn bind_token(
        &self,
        call: &Call,
        account: &Object,
        reference: &Value,
        bound: &mut Map<String, Value>,
    ) -> Result<(), Status> {
        if reference["kind"] != "Pod" {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount to {}: only Pods can be bound",
                reference["kind"]
            )));
        }
        let kind = kinds::lookup("pods").ok_or_else(|| Status::internal("no kind Pod"))?;
        let name = reference["name"].as_str().unwrap_or("");
        let key = kind.key(account.namespace(), name);
        let item = self.cache.shelf(kind).get(&key).ok_or_else(|| Status::not_found("pods", "", name))?;
        let pod = item.current()?.object;
        let uid = reference["uid"].as_str().unwrap_or("");
        if !uid.is_empty() && uid != pod.uid() {
            return Err(call.conflict(format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            )));
        }
        if pod.0["spec"]["serviceAccountName"] != account.name() {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount \"{}\" to pod running with different serviceaccount name.",
                account.name()
            )));
        }
        bound.insert("pod".into(), json!({"name": pod.name(), "uid": pod.uid()}));
        if let Some(node) = pod.0["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
            bound.insert("node".into(), json!({"name": node}));
        }
        Ok(())
    }

    /// Whose token it is: signed here, for this audience, not expired, and of an account and a Pod that still exist.
    pub async fn verify_token(&self, token: &str, audience: &str) -> Result<User, Status> {
        let refuse = |why: String| Status::unauthorized(format!("invalid bearer token: {why}"));
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_issuer(&[ISSUER]);
        validation.set_audience(&[audience]);
        // The clock is ours, see below.
        validation.validate_exp = false;
        let decoded = jsonwebtoken::decode::<Value>(token, &self.signer.decoding, &validation);
        let claims = decoded.map_err(|e| refuse(e.to_string()))?.claims;
        if claims["exp"].as_i64().is_none_or(|exp| exp <= self.env.now().as_second()) {
            return Err(refuse("it has expired".into()));
        }
        self.cache.fresh().await?;
        let bound = &claims["kubernetes.io"];
        let namespace = bound["namespace"].as_str().unwrap_or("");
        for (resource, of) in [("serviceaccounts", "serviceaccount"), ("pods", "pod")] {
            let Some(kind) = kinds::lookup(resource).filter(|_| bound.get(of).is_some()) else { continue };
            let name = bound[of]["name"].as_str().unwrap_or("");
            let item = self.cache.shelf(kind).get(&kind.key(Some(namespace), name));
            let alive = match item {
                Some(item) => item.current()?.object.uid() == bound[of]["uid"],
                None => false,
            };
            if !alive {
                return Err(refuse(format!("its {of} {namespace}/{name} is gone")));
            }
        }
        let group = |name: String| format!("system:serviceaccounts{name}");
        Ok(User {
            name: claims["sub"].as_str().unwrap_or("").to_owned(),
            groups: vec![group(String::new()), group(format!(":{namespace}")), "system:authenticated".into()],
        })
    }
}
