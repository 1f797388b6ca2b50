//! Pod selection by namespaces and labels; and a Pod's affinities as such terms.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, WeightedPodAffinityTerm};

use podwright_api::selector::{LabelSelector, Requirement};

/// The labels of every namespace.
#[derive(Default)]
pub struct Namespaces(pub HashMap<String, BTreeMap<String, String>>);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    pub namespaces: BTreeSet<String>,
    /// Namespaces with matching labels, in addition to the named ones.
    pub namespace_selector: Option<LabelSelector>,
    /// `None` matches nothing.
    pub selector: Option<LabelSelector>,
}

impl Who {
    /// The Pods of one namespace.
    pub fn within(namespace: &str, selector: Option<LabelSelector>) -> Who {
        Who { namespaces: [namespace.to_owned()].into(), namespace_selector: None, selector }
    }

    /// The bytes that it takes, more or less: whoever makes a Pod decides how much it names.
    pub fn weight(&self) -> usize {
        let namespaces: usize = self.namespaces.iter().map(|name| 2 * size_of::<String>() + name.len()).sum();
        let selectors = [&self.namespace_selector, &self.selector].into_iter().flatten();
        size_of::<Who>() + namespaces + selectors.map(LabelSelector::weight).sum::<usize>()
    }

    /// The most that is looked up and compared to judge one Pod.
    pub fn lookups(&self) -> usize {
        let selectors = [&self.namespace_selector, &self.selector].into_iter().flatten();
        1 + selectors.map(LabelSelector::lookups).sum::<usize>()
    }

    /// Whether a Pod in this namespace with these labels matches.
    pub fn means(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>, namespaces: &Namespaces) -> bool {
        let matches = |selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>| {
            selector.matches(|key| labels?.get(key).map(String::as_str))
        };
        let labelled = |selector: &LabelSelector| matches(selector, namespaces.0.get(namespace));
        (self.namespaces.contains(namespace) || self.namespace_selector.as_ref().is_some_and(labelled))
            && self.selector.as_ref().is_some_and(|selector| matches(selector, labels))
    }
}

/// The domain of Pods that match: nodes that share a value of the label `key` with them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub who: Who,
    pub key: String,
}

/// The type of an existing Pod's term for incoming ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AffinityKind {
    /// Anti-affinity: it must not be near them.
    Anti,
    /// Required affinity; for incoming Pods that is a preference.
    Required,
    /// Preferred affinity; a negative weight is anti-affinity.
    Prefers(i64),
}

/// A term of a Pod on a node, which affects others.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Carried {
    pub affinity: AffinityKind,
    pub term: Term,
}

/// A Pod's affinities to other Pods.
#[derive(Debug, Default)]
pub struct Affinity {
    pub required: Vec<Term>,
    pub anti: Vec<Term>,
    /// With weights; a negative one is anti-affinity.
    pub preferred: Vec<(i64, Term)>,
    /// All of them, in the form that matters to others once it is on a node.
    pub carried: Vec<Arc<Carried>>,
}

impl Affinity {
    pub fn of(pod: &Pod) -> Affinity {
        let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else {
            return Affinity::default();
        };
        let (near, far) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
        let terms = |list: Option<&Vec<PodAffinityTerm>>| list.into_iter().flatten().map(|t| term(pod, t)).collect();
        let weighted = |list: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| {
            let one = |t: &WeightedPodAffinityTerm| (sign * i64::from(t.weight), term(pod, &t.pod_affinity_term));
            list.into_iter().flatten().map(one).collect::<Vec<_>>()
        };
        let required: Vec<Term> =
            terms(near.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()));
        let anti: Vec<Term> = terms(far.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()));
        let mut preferred =
            weighted(near.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()), 1);
        preferred
            .extend(weighted(far.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()), -1));
        let carry = |affinity, term: &Term| Arc::new(Carried { affinity, term: term.clone() });
        let carried = anti.iter().map(|term| carry(AffinityKind::Anti, term));
        let carried = carried.chain(required.iter().map(|term| carry(AffinityKind::Required, term)));
        let carried = carried.chain(preferred.iter().map(|(weight, term)| carry(AffinityKind::Prefers(*weight), term)));
        Affinity { carried: carried.collect(), required, anti, preferred }
    }
}

fn term(pod: &Pod, term: &PodAffinityTerm) -> Term {
    let own = pod.metadata.namespace.clone().unwrap_or_default();
    let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
    if namespaces.is_empty() && term.namespace_selector.is_none() {
        namespaces.insert(own);
    }
    let mut selector = term.label_selector.as_ref().and_then(LabelSelector::of);
    if let Some(selector) = &mut selector {
        narrow(selector, pod, term.match_label_keys.as_deref(), Requirement::In);
        narrow(selector, pod, term.mismatch_label_keys.as_deref(), Requirement::NotIn);
    }
    let namespace_selector = term.namespace_selector.as_ref().and_then(LabelSelector::of);
    Term { who: Who { namespaces, namespace_selector, selector }, key: term.topology_key.clone() }
}

/// `matchLabelKeys` and `mismatchLabelKeys`: adds the Pod's own label values to the selector.
pub fn narrow(
    selector: &mut LabelSelector,
    pod: &Pod,
    keys: Option<&[String]>,
    how: fn(String, Vec<String>) -> Requirement,
) {
    for key in keys.into_iter().flatten() {
        if let Some(value) = pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)) {
            selector.0.push(how(key.clone(), vec![value.clone()]));
        }
    }
}
