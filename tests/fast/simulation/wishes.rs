//! Deployments as a user wishes them.

use podwright::{api::Verb, client::Key};
use serde_json::{Value, json};

use super::cluster::{Cluster, request};

/// A Deployment as it is wished.
#[derive(Clone, Debug)]
pub struct Wish {
    pub replicas: i32,
    pub image: String,
    pub surge: i32,
    pub unavailable: i32,
    pub recreate: bool,
    pub paused: bool,
}

impl Wish {
    pub fn new(replicas: i32, image: &str) -> Wish {
        Wish { replicas, image: image.into(), surge: 1, unavailable: 0, recreate: false, paused: false }
    }

    fn spec(&self, name: &str) -> Value {
        let rolling = json!({ "maxSurge": self.surge, "maxUnavailable": self.unavailable });
        json!({
            "replicas": self.replicas, "paused": self.paused, "selector": { "matchLabels": { "app": name } },
            "strategy": match self.recreate {
                true => json!({ "type": "Recreate", "rollingUpdate": null }),
                false => json!({ "type": "RollingUpdate", "rollingUpdate": rolling }),
            },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "image": self.image }] },
            },
        })
    }
}

impl Cluster {
    /// Creates a Deployment and its Service.
    pub async fn deploy(&mut self, key: &Key, wish: Wish) {
        if self.seen.deployments.get(key).is_some() {
            // The one of that name that was deleted is still going.
            return;
        }
        let ns = Key::new(key.namespace.clone(), "");
        let deployment = json!({ "metadata": { "name": key.name }, "spec": wish.spec(&key.name) });
        self.must(request(Verb::Create, "deployments.apps", &ns, Some(deployment))).await;
        let ports = json!([{ "port": 80, "targetPort": 8080 }]);
        let service =
            json!({ "metadata": { "name": key.name }, "spec": { "selector": { "app": key.name }, "ports": ports } });
        match self.client.call(request(Verb::Create, "services", &ns, Some(service))).await {
            Err(status) if !status.is_already_exists() => panic!("{status}"),
            _ => {}
        }
        self.wishes.insert(key.clone(), wish);
    }

    pub async fn change(&mut self, key: &Key, change: impl FnOnce(&mut Wish)) {
        let Some(mut new) = self.wishes.get(key).cloned() else { return };
        change(&mut new);
        let patch = json!({ "spec": new.spec(&key.name) });
        self.must(request(Verb::Patch, "deployments.apps", key, Some(patch))).await;
        self.wishes.insert(key.clone(), new);
    }

    pub async fn undeploy(&mut self, key: &Key, policy: &str) {
        self.wishes.remove(key);
        let mut delete = request(Verb::Delete, "deployments.apps", key, None);
        delete.options.propagation_policy = Some(policy.into());
        self.must(delete).await;
    }
}
