//! ServiceAccounts: gives every namespace one named `default`.

use k8s_openapi::{api::core::v1::ServiceAccount, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{Context, Plan, Row, Writes, meta, write::Write};
use podwright_client::Key;

pub const ROW: Row = Row {
    name: "service-account-controller",
    workers: 2,
    writes: Writes::Of(&["serviceaccounts"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.namespaces);
        watches.on(&informers.service_accounts, |_, queue, change| {
            if change.new.is_none() {
                queue.add(Key::new("", &change.key.namespace));
            }
        });
    },
    reconcile,
};

/// `key` is a namespace.
fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let mut plan = Plan::default();
    let informers = &context.world.informers;
    let alive = informers.namespaces.get(key).is_some_and(|namespace| !meta::is_terminating(&namespace.metadata));
    if alive && informers.service_accounts.get(&Key::new(&key.name, "default")).is_none() {
        let metadata =
            ObjectMeta { name: Some("default".into()), namespace: Some(key.name.clone()), ..ObjectMeta::default() };
        plan.then(vec![Write::create(&ServiceAccount { metadata, ..ServiceAccount::default() })]);
    }
    plan
}
