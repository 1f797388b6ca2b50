//! Service account tokens for projected volumes: requested from the server, cached, and renewed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Mutex,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Pod, ServiceAccountTokenProjection},
};
use serde_json::json;

use super::error::{Result, VolumeError};
use crate::spec::PodExt;
use podwright_api::{Env, Request, Verb};
use podwright_client::Client;

/// A token is renewed after 80 % of its lifetime, and after a day at the latest, as upstream.
const OLDEST: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_SECONDS: i64 = 3600;

/// Pod uid, audience, seconds.
type Key = (String, String, i64);

struct Kept {
    token: String,
    renew_at: Timestamp,
    expires: Timestamp,
}

pub struct Tokens {
    client: Client,
    env: Env,
    kept: Mutex<HashMap<Key, Kept>>,
}

impl Tokens {
    pub fn new(client: Client, env: Env) -> Tokens {
        Tokens { client, env, kept: Mutex::default() }
    }

    /// The Pod's token for an audience. An old one is used while the server cannot issue a new one.
    ///
    /// # Errors
    ///
    /// The server issues none, and there is no valid old one.
    pub async fn get(&self, pod: &Pod, wanted: &ServiceAccountTokenProjection) -> Result<String> {
        let seconds = wanted.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        let audience = wanted.audience.clone().unwrap_or_default();
        let key = (pod.uid().to_owned(), audience.clone(), seconds);
        let now = self.env.now();
        let old = self.lock().get(&key).map(|k| (k.token.clone(), k.renew_at, k.expires));
        if let Some((token, renew_at, _)) = &old
            && now < *renew_at
        {
            return Ok(token.clone());
        }
        match self.ask(pod, &audience, seconds).await {
            Ok(kept) => {
                let token = kept.token.clone();
                self.lock().insert(key, kept);
                Ok(token)
            }
            Err(why) => match old {
                Some((token, _, expires)) if now < expires => Ok(token),
                _ => Err(why),
            },
        }
    }

    async fn ask(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Kept> {
        let account = pod.spec().service_account_name.as_deref().filter(|n| !n.is_empty()).unwrap_or("default");
        let audiences: Vec<&str> = Some(audience).filter(|a| !a.is_empty()).into_iter().collect();
        let request = Request {
            verb: Verb::Create,
            resource: "serviceaccounts".into(),
            namespace: Some(pod.namespace().to_owned()),
            name: Some(account.to_owned()),
            subresource: Some("token".into()),
            body: Some(json!({
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {
                    "audiences": audiences,
                    "expirationSeconds": seconds,
                    "boundObjectRef": {
                        "apiVersion": "v1", "kind": "Pod", "name": pod.name(), "uid": pod.uid(),
                    },
                },
            })),
            ..Request::default()
        };
        let answer: TokenRequest = self.client.object(request).await.map_err(VolumeError::Token)?;
        let status = answer.status.ok_or(VolumeError::NoToken)?;
        let now = self.env.now();
        let life = Duration::try_from(status.expiration_timestamp.0.duration_since(now)).unwrap_or_default();
        let renew = SignedDuration::try_from((life * 4 / 5).min(OLDEST)).unwrap_or(SignedDuration::ZERO);
        let renew_at = now.checked_add(renew).unwrap_or(now);
        Ok(Kept { token: status.token, renew_at, expires: status.expiration_timestamp.0 })
    }

    /// The uids of Pods with a token to renew.
    pub fn stale(&self) -> BTreeSet<String> {
        let now = self.env.now();
        self.lock().iter().filter(|(_, k)| now >= k.renew_at).map(|((uid, _, _), _)| uid.clone()).collect()
    }

    pub fn forget(&self, uid: &str) {
        self.lock().retain(|(owner, _, _), _| owner != uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Kept>> {
        // The state is consistent even after a panic: each change is a single insertion or removal.
        self.kept.lock().unwrap_or_else(|p| p.into_inner())
    }
}
