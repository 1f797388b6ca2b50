//! The ConfigMap by which Pods verify the server: the cluster's CA, in every Namespace.

use serde_json::{Value, json};

/// Its name, upstream's.
pub const NAME: &str = "kube-root-ca.crt";
/// Its only key; also the file beside a Pod's token.
pub const KEY: &str = "ca.crt";

/// The object without name and namespace. `ca`: the CA's certificate in PEM.
pub fn config_map(ca: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "annotations": {
            "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using \
                                          internal endpoints such as the internal service IP or \
                                          kubernetes.default.svc. No other usage is guaranteed across distributions of \
                                          Kubernetes clusters.",
        }},
        "data": {KEY: ca},
    })
}
