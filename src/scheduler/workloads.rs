//! Services, controllers and disruption budgets of Pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::{core::v1::Service, policy::v1::PodDisruptionBudget};

use super::pod::PodInfo;
use podwright_api::selector::{LabelSelector, Requirement};
use podwright_client::Key;

/// A PodDisruptionBudget.
pub struct Budget {
    /// `None` matches nothing.
    selector: Option<LabelSelector>,
    pub allowed: i32,
    /// The names of Pods whose disruption is counted already.
    disrupted: BTreeSet<String>,
}

/// The budgets of a namespace that are judged for each of its Pods, in lookups: one decision may be about all of them.
const MOST_LOOKUPS: usize = 16 << 10;

/// The budgets of a namespace.
#[derive(Default)]
struct Budgets {
    all: BTreeMap<String, Budget>,
    /// To judge one Pod by all of them.
    lookups: usize,
}

/// See the module.
#[derive(Default)]
pub struct Workloads {
    /// The selectors of Services, by namespace and name.
    services: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>,
    /// The selectors of controllers, by uid.
    owners: HashMap<String, LabelSelector>,
    budgets: BTreeMap<String, Budgets>,
}

impl Budget {
    fn of(budget: &PodDisruptionBudget) -> Budget {
        let status = budget.status.as_ref();
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        Budget {
            // As upstream, a nil or empty one matches nothing here.
            selector: selector.and_then(LabelSelector::of).filter(|selector| !selector.is_empty()),
            allowed: status.map_or(0, |status| status.disruptions_allowed),
            disrupted: disrupted.map(|pods| pods.keys().cloned().collect()).unwrap_or_default(),
        }
    }

    fn lookups(&self) -> usize {
        1 + self.selector.as_ref().map_or(0, LabelSelector::lookups)
    }
}

impl Workloads {
    pub fn set_service(&mut self, key: &Key, service: Option<&Service>) {
        let selector = service.and_then(|service| service.spec.as_ref()?.selector.clone());
        let within = self.services.entry(key.namespace.clone()).or_default();
        match selector.filter(|selector| !selector.is_empty()) {
            Some(selector) => within.insert(key.name.clone(), selector),
            None => within.remove(&key.name),
        };
        if within.is_empty() {
            self.services.remove(&key.namespace);
        }
    }

    /// A controller by its uid.
    pub fn set_owner(&mut self, uid: &str, selector: Option<LabelSelector>) {
        match selector {
            Some(selector) => self.owners.insert(uid.to_owned(), selector),
            None => self.owners.remove(uid),
        };
    }

    /// The selector of Pods that belong with this one: those of its Services and controller. `None`: there are none.
    pub fn selector_of(&self, pod: &PodInfo) -> Option<LabelSelector> {
        let mut all = BTreeMap::new();
        let services = self.services.get(&pod.key.namespace).into_iter().flat_map(BTreeMap::values);
        for selector in services.filter(|s| s.iter().all(|(key, value)| pod.label(key) == Some(value))) {
            all.extend(selector.iter());
        }
        let equal = |(key, value): (&String, &String)| Requirement::In(key.clone(), vec![value.clone()]);
        let mut requirements: Vec<Requirement> = all.into_iter().map(equal).collect();
        let owners = pod.pod.metadata.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true));
        if let Some(selector) = owner.and_then(|owner| self.owners.get(&owner.uid)) {
            requirements.extend(selector.0.iter().cloned());
        }
        (!requirements.is_empty()).then_some(LabelSelector(requirements))
    }

    pub fn set_budget(&mut self, key: &Key, budget: Option<&PodDisruptionBudget>) {
        let within = self.budgets.entry(key.namespace.clone()).or_default();
        let new = budget.map(Budget::of);
        within.lookups += new.as_ref().map_or(0, Budget::lookups);
        let old = match new {
            Some(new) => within.all.insert(key.name.clone(), new),
            None => within.all.remove(&key.name),
        };
        within.lookups -= old.as_ref().map_or(0, Budget::lookups);
        if within.all.is_empty() {
            self.budgets.remove(&key.namespace);
        }
    }

    /// Whether a namespace has more budgets than one decision can go through: none of its Pods is known to be unprotected.
    pub fn has_countless_budgets(&self, namespace: &str) -> bool {
        self.budgets.get(namespace).is_some_and(|within| within.lookups > MOST_LOOKUPS)
    }

    /// The budgets that match a Pod, each with its namespace and name.
    pub fn budgets_of<'a>(&'a self, pod: &'a PodInfo) -> impl Iterator<Item = ((&'a str, &'a str), &'a Budget)> {
        let within = self.budgets.get_key_value(&pod.key.namespace).into_iter();
        let all = within.flat_map(|(ns, within)| {
            within.all.iter().map(move |(name, budget)| ((ns.as_str(), name.as_str()), budget))
        });
        // As upstream, Pods without labels match nothing.
        let labelled = pod.pod.metadata.labels.as_ref().is_some_and(|labels| !labels.is_empty());
        all.filter(move |(_, budget)| {
            let selector = budget.selector.as_ref();
            let matches = selector.is_some_and(|selector| selector.matches(|key| pod.label(key)));
            labelled && matches && !budget.disrupted.contains(&pod.key.name)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn budgets_are_judged_up_to_what_they_cost_together() {
        let mut workloads = Workloads::default();
        let set = |workloads: &mut Workloads, n: usize, requirements: Option<usize>| {
            let expressions = |count: usize| -> Vec<_> {
                (0..count).map(|n| json!({ "key": format!("k{n}"), "operator": "DoesNotExist" })).collect()
            };
            let budget =
                requirements.map(|count| json!({ "spec": { "selector": { "matchExpressions": expressions(count) } } }));
            let budget = budget.map(|budget| serde_json::from_value(budget).expect("a budget"));
            workloads.set_budget(&Key::new("a", format!("b{n}")), budget.as_ref());
        };
        for n in 0..64 {
            set(&mut workloads, n, Some(254));
        }
        assert!(!workloads.has_countless_budgets("a"));
        set(&mut workloads, 64, Some(254));
        assert!(workloads.has_countless_budgets("a") && !workloads.has_countless_budgets("b"));
        set(&mut workloads, 0, Some(1));
        assert!(!workloads.has_countless_budgets("a"), "one was changed");
        set(&mut workloads, 0, Some(254));
        set(&mut workloads, 1, None);
        assert!(!workloads.has_countless_budgets("a"), "one has gone");
        (0..65).for_each(|n| set(&mut workloads, n, None));
        assert!(workloads.budgets.is_empty());
    }
}
