//! Root CA: gives every Namespace the ConfigMap `kube-root-ca.crt`, by which its Pods verify the server.
//!
//! Upstream: `pkg/controller/certificates/rootcacertpublisher`.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Map, Value};

use super::{Context, Plan, Row, Writes, meta, write::Write};
use podwright_api::{Request, Verb, root_ca};
use podwright_client::Key;

pub const ROW: Row = Row {
    name: "root-ca-certificate-publisher-controller",
    workers: 2,
    writes: Writes::Of(&["configmaps"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.namespaces);
        watches.on(&informers.root_cas, |_, queue, change| queue.add(Key::new("", &change.key.namespace)));
    },
    reconcile,
};

/// `key` is a namespace.
fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let alive = informers.namespaces.get(key).is_some_and(|namespace| !meta::is_terminating(&namespace.metadata));
    let Some(ca) = context.world.config.root_ca.as_deref().filter(|_| alive) else { return Plan::default() };
    let held = informers.root_cas.get(&Key::new(&key.name, root_ca::NAME));
    plan(&key.name, held.as_deref(), ca)
}

/// Plans a namespace, given its current ConfigMap.
pub fn plan(namespace: &str, held: Option<&ConfigMap>, ca: &str) -> Plan {
    let mut plan = Plan::default();
    let Some(held) = held else {
        let request = Request {
            verb: Verb::Create,
            resource: "configmaps".into(),
            namespace: Some(namespace.to_owned()),
            body: Some(root_ca::config_map(ca)),
            ..Request::default()
        };
        plan.then(vec![Write::new(request)]);
        return plan;
    };
    let data: Map<String, Value> = held.data.iter().flatten().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    let mut wanted = root_ca::config_map(ca);
    if Value::Object(data.clone()) == wanted["data"] {
        return plan;
    }
    // Other keys are removed.
    for key in data.keys().filter(|key| *key != root_ca::KEY) {
        wanted["data"][key] = Value::Null;
    }
    plan.then(vec![Write::patch("configmaps".into(), &Key::of(held), wanted)]);
    plan
}
