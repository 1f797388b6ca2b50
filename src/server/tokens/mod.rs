//! ServiceAccount tokens: [`issue`] signs them with a key kept in the store, [`verify`] verifies them, and the documents here tell
//! others how to.
//!
//! Other bearer tokens: those stored in a [`secret`], [`static_tokens`] from a file, [`bootstrap`] tokens, and those of an [`oidc`]
//! issuer.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use p256::ecdsa::SigningKey;
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use podwright_api::{Env, Status};
use podwright_store::{Compare, Outcome, Store, Txn, Write};

use super::{Server, store_error};

mod bootstrap;
mod issue;
pub(super) mod oidc;
mod secret;
mod static_tokens;
mod verify;

pub use oidc::{Oidc, OidcConfig};
pub(super) use secret::{fill, unfilled};
pub use static_tokens::StaticTokens;
pub use verify::Authenticated;
pub(super) use verify::Verified;

/// The issuer, and the default audience.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const KEY: &str = "/registry/keys/serviceaccount";

/// The key that signs tokens.
pub(super) struct Signer {
    header: Header,
    encoding: EncodingKey,
    decoding: DecodingKey,
    /// Its public half as a JSON Web Key.
    public: Value,
}

impl Signer {
    /// Reads the key from the store, or generates it.
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
        let kid = URL_SAFE_NO_PAD.encode(&id[..16]);
        let coordinate =
            |part: Option<&p256::FieldBytes>| URL_SAFE_NO_PAD.encode(part.map_or(&[][..], |bytes| &bytes[..]));
        let jwk = json!({
            "use": "sig", "kty": "EC", "kid": kid, "crv": "P-256", "alg": "ES256",
            "x": coordinate(public.x()), "y": coordinate(public.y()),
        });
        Ok(Signer {
            header: Header { kid: Some(kid), ..Header::new(Algorithm::ES256) },
            encoding: EncodingKey::from_ec_der(&der),
            decoding: DecodingKey::from_ec_der(public.as_bytes()),
            public: jwk,
        })
    }
}

fn generate(env: &Env) -> Result<Bytes, Status> {
    loop {
        let mut bytes = [0u8; 32];
        env.fill(&mut bytes);
        // Nearly every number is a valid key; others are drawn again.
        let Ok(key) = SigningKey::from_slice(&bytes) else { continue };
        let der = key.to_pkcs8_der().map_err(Status::internal)?;
        return Ok(json!({"algorithm": "ES256", "pkcs8": STANDARD.encode(der.as_bytes())}).to_string().into());
    }
}

/// The content of `/.well-known/openid-configuration` and `/openid/v1/jwks`.
impl Server {
    /// The discovery document of the issuer of ServiceAccount tokens.
    pub fn openid_configuration(&self) -> Value {
        json!({
            "issuer": ISSUER,
            "jwks_uri": format!("{ISSUER}/openid/v1/jwks"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    /// The keys that verify ServiceAccount tokens.
    pub fn openid_keys(&self) -> Value {
        json!({"keys": [self.signer.public]})
    }
}
