//! A cache of compiled expressions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use podwright_api::Object;
use podwright_api::cel::Type;
use podwright_api::policy::{Expression, Known, Policy, conditions};

/// By the uid of the object that contains them, at one revision of it.
#[derive(Default)]
pub(crate) struct Programs {
    policies: Mutex<Kept<Policy>>,
    /// The conditions of each webhook of a configuration.
    webhooks: Mutex<Kept<Vec<Conditions>>>,
}

pub(crate) type Conditions = Vec<(String, Expression)>;
type Kept<T> = HashMap<String, (String, Arc<T>)>;

/// The most that are kept; beyond that the cache is emptied.
const MOST: usize = 1024;

fn lock<T>(kept: &Mutex<Kept<T>>) -> MutexGuard<'_, Kept<T>> {
    kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn look_up<T>(kept: &Mutex<Kept<T>>, object: &Object, compile: impl FnOnce() -> T) -> Arc<T> {
    let revision = object.resource_version();
    if let Some((at, known)) = lock(kept).get(object.uid())
        && at == revision
    {
        return known.clone();
    }
    let made = Arc::new(compile());
    let mut kept = lock(kept);
    if kept.len() >= MOST {
        kept.clear();
    }
    kept.insert(object.uid().to_owned(), (revision.to_owned(), made.clone()));
    made
}

impl Programs {
    pub fn policy(&self, policy: &Object) -> Arc<Policy> {
        look_up(&self.policies, policy, || {
            let spec = &policy.0["spec"];
            let params = (!spec["paramKind"].is_null()).then_some(Type::Dyn);
            Policy::compile(spec, &Known { object: Type::Dyn, params })
        })
    }

    pub fn webhooks(&self, configuration: &Object) -> Arc<Vec<Conditions>> {
        look_up(&self.webhooks, configuration, || {
            let all = configuration.0["webhooks"].as_array().into_iter().flatten();
            all.map(|hook| conditions(&hook["matchConditions"], "", &Known::default())).collect()
        })
    }
}
