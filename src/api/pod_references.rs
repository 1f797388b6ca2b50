//! The objects that a Pod refers to by name: a single list for code that grants, refuses or follows such references.

use serde_json::Value;

use super::Object;

/// On a mirror Pod: the hash of the static Pod that it represents. Only nodes may set it; see `server::admission`.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// A resource's plural, and the object's name in the Pod's namespace; "" if the Pod names none.
pub type Reference = (&'static str, String);

/// Everything that the Pod's spec refers to, unordered, with duplicates.
pub fn all(pod: &Object) -> Vec<Reference> {
    let mut found = Found(Vec::new());
    let spec = &pod.0["spec"];
    found.given("serviceaccounts", &spec["serviceAccountName"]);
    items(&spec["imagePullSecrets"]).for_each(|secret| found.named("secrets", secret, "name"));
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        items(&spec[list]).for_each(|container| found.container(container));
    }
    for volume in items(&spec["volumes"]) {
        if volume["ephemeral"].is_object() {
            found.0.push(("persistentvolumeclaims", own_claim(pod, volume)));
        }
        found.volume(volume);
    }
    // The names of those generated from templates are in the status.
    items(&spec["resourceClaims"]).for_each(|claim| found.named("resourceclaims", claim, "resourceClaimName"));
    found.0
}

/// The claim that is created for a Pod's ephemeral volume.
pub fn own_claim(pod: &Object, volume: &Value) -> String {
    format!("{}-{}", pod.name(), volume["name"].as_str().unwrap_or(""))
}

struct Found(Vec<Reference>);

impl Found {
    /// A name that counts only if it is set.
    fn given(&mut self, resource: &'static str, name: &Value) {
        if name.as_str().is_some_and(|name| !name.is_empty()) {
            self.0.push((resource, text(name)));
        }
    }

    /// A source whose presence is a reference, whatever it names.
    fn named(&mut self, resource: &'static str, source: &Value, field: &str) {
        if source.is_object() {
            self.0.push((resource, text(&source[field])));
        }
    }

    fn container(&mut self, container: &Value) {
        for from in items(&container["envFrom"]) {
            self.named("secrets", &from["secretRef"], "name");
            self.named("configmaps", &from["configMapRef"], "name");
        }
        for env in items(&container["env"]) {
            self.named("secrets", &env["valueFrom"]["secretKeyRef"], "name");
            self.named("configmaps", &env["valueFrom"]["configMapKeyRef"], "name");
        }
    }

    fn volume(&mut self, volume: &Value) {
        self.named("secrets", &volume["secret"], "secretName");
        self.named("configmaps", &volume["configMap"], "name");
        self.named("persistentvolumeclaims", &volume["persistentVolumeClaim"], "claimName");
        for source in items(&volume["projected"]["sources"]) {
            self.named("secrets", &source["secret"], "name");
            self.named("configmaps", &source["configMap"], "name");
            self.named("clustertrustbundles", &source["clusterTrustBundle"], "name");
            for of_account in ["serviceAccountToken", "podCertificate"] {
                if source[of_account].is_object() {
                    self.0.push(("serviceaccounts", String::new()));
                }
            }
        }
        // The drivers' own sources: iscsi, rbd, cephfs, flexVolume, csi, azureFile and the like.
        for source in volume.as_object().into_iter().flatten().map(|(_, source)| source) {
            for field in ["secretRef", "nodePublishSecretRef"] {
                self.named("secrets", &source[field], "name");
            }
            if !source["shareName"].is_null() {
                self.given("secrets", &source["secretName"]);
            }
        }
    }
}

fn text(name: &Value) -> String {
    name.as_str().unwrap_or("").to_owned()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
