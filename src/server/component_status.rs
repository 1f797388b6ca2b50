//! `componentstatuses`: upstream's three components of a control plane beside the API server, checked on request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use super::resolved_request::ResolvedRequest;
use super::watch::selection::Selection;
use super::{Server, get, list};
use podwright_api::request::{Body, List};
use podwright_api::{Object, Response, Status, Verb};

/// Their names, in order. `etcd-0` is the store, whichever it is.
const STORE: &str = "etcd-0";
const NAMES: [&str; 3] = ["controller-manager", STORE, "scheduler"];
const DEPRECATED: &str = "v1 ComponentStatus is deprecated in v1.19+";
/// How long the store may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How many instances of each component run beside this server.
#[derive(Default)]
pub(super) struct Parts(Mutex<Vec<(&'static str, Arc<AtomicUsize>)>>);

/// A component that runs for as long as this is kept.
pub struct Runs(Arc<AtomicUsize>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, Vec<(&'static str, Arc<AtomicUsize>)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn of(&self, name: &'static str) -> Arc<AtomicUsize> {
        let mut all = self.lock();
        match all.iter().find(|(known, _)| *known == name) {
            Some((_, count)) => count.clone(),
            None => {
                let count = Arc::<AtomicUsize>::default();
                all.push((name, count.clone()));
                count
            }
        }
    }
}

impl Server {
    /// Registers the controllers (`controller-manager`) or the scheduler as running beside this server, until the result is
    /// dropped: with their task, however that ends.
    pub fn runs(&self, name: &'static str) -> Runs {
        let count = self.parts.of(name);
        count.fetch_add(1, Ordering::Relaxed);
        Runs(count)
    }

    /// `get` and `list` of ComponentStatus.
    pub(super) async fn read_components(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        let warnings = vec![DEPRECATED.to_owned()];
        if call.verb == Verb::Get {
            let name = NAMES.into_iter().find(|name| *name == call.name()).ok_or_else(|| call.not_found())?;
            let object = self.component(call, name).await;
            return Ok(Response { warnings, ..get::object(object.to_vec().into(), false) });
        }
        list::revision_option(call)?;
        let selection = Selection::of(call)?;
        let mut items = Vec::new();
        for name in NAMES {
            let object = self.component(call, name).await;
            let is_it = selection.name.as_deref().is_none_or(|wanted| wanted == name);
            if is_it && selection.labels.matches(|_| None) && selection.fields.matches_object(call.kind, &object) {
                items.push(object.to_vec().into());
            }
        }
        let (kind, api_version) = (call.kind.list_kind(), call.kind.api_version());
        Ok(Response { warnings, ..Body::List(List { kind, api_version, items, ..List::default() }).into() })
    }

    async fn component(&self, call: &ResolvedRequest, name: &'static str) -> Object {
        let found = match name {
            STORE => match tokio::time::timeout(TIMEOUT, self.store.get("/registry/namespaces/default")).await {
                Ok(answer) => answer.map(drop).map_err(|why| why.to_string()),
                Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
            },
            _ if self.parts.of(name).load(Ordering::Relaxed) > 0 => Ok(()),
            _ => Err("it does not run beside this server".to_owned()),
        };
        let condition: Value = match found {
            Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
            Err(why) => json!({"type": "Healthy", "status": "False", "message": why}),
        };
        Object(json!({
            "apiVersion": call.kind.api_version(), "kind": call.kind.kind,
            "metadata": {"name": name}, "conditions": [condition],
        }))
    }
}
