//! Whom an extension API server may believe: the ConfigMap `kube-system/extension-apiserver-authentication`, with the client CA,
//! and the CA of the front proxy with its headers. Upstream: `clusterauthenticationtrust`; changes by others are overwritten.

use std::sync::Weak;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::pki::FRONT_PROXY_NAME;
use crate::{Config, Server};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// How often it is checked.
const EVERY: Duration = Duration::from_secs(10);

/// The headers of a front proxy.
pub const USER: &str = "x-remote-user";
pub const UID: &str = "x-remote-uid";
pub const GROUP: &str = "x-remote-group";
pub const EXTRA: &str = "x-remote-extra-";

/// The ConfigMap's data; `None` without any CA.
fn wanted(config: &Config) -> Option<Value> {
    let mut data = Map::new();
    if let Some(authority) = &config.authority {
        data.insert("client-ca-file".into(), authority.certificate().into());
    }
    if let Some(front_proxy) = &config.front_proxy {
        let list = |word: &str| json!([word]).to_string();
        data.insert("requestheader-allowed-names".into(), list(FRONT_PROXY_NAME).into());
        data.insert("requestheader-client-ca-file".into(), front_proxy.authority().into());
        data.insert("requestheader-extra-headers-prefix".into(), list("X-Remote-Extra-").into());
        data.insert("requestheader-group-headers".into(), list("X-Remote-Group").into());
        data.insert("requestheader-uid-headers".into(), list("X-Remote-Uid").into());
        data.insert("requestheader-username-headers".into(), list("X-Remote-User").into());
    }
    (!data.is_empty()).then(|| json!({"data": data}))
}

impl Server {
    pub(crate) async fn tell_whom_to_believe(&self) -> Result<(), podwright_api::Status> {
        match wanted(&self.config) {
            Some(wanted) => self.keep("configmaps", NAMESPACE, NAME, Some(wanted)).await,
            None => Ok(()),
        }
    }
}

pub(super) async fn run(server: Weak<Server>) {
    while let Some(server) = server.upgrade() {
        if let Err(why) = server.tell_whom_to_believe().await {
            tracing::warn!("failed to write the ConfigMap {NAMESPACE}/{NAME}: {why}");
        }
        drop(server);
        tokio::time::sleep(EVERY).await;
    }
}
