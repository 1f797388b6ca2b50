//! Incremental counts for frequent queries: which Pods match a class, which have which terms, and each node's value of a label.
//! Everything is indexed by slot, the number of a node.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use super::{
    carriers::{self, Carriers, Slots},
    pod::PodInfo,
    term::{AffinityKind, Carried, Namespaces, Who},
};

/// The id for a missing value.
pub const NONE: u32 = u32::MAX;
/// The most classes that are kept; the least recently used one is dropped. Each has a number per node.
const MOST_CLASSES: usize = 1024;
/// So much all of them take together, whoever has asked for them and is gone: each Pod that comes to a node or leaves it is judged by all.
/// One alone takes a quarter at most. What is not kept is counted each time that it is asked for.
const MOST_COST: Cost = Cost { bytes: 16 << 20, lookups: 16 << 10 };
/// The same for topologies: Pods choose the labels. Others are computed on demand.
const MOST_TOPOLOGIES: usize = 128;
/// How many more values than nodes a label may have before unused ones are dropped.
const SPARE_VALUES: usize = 64;

/// A node label in numeric form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    values: HashMap<String, u32>,
    /// The value's id by slot; `NONE`: the node lacks the label.
    ids: Vec<u32>,
}

impl Topology {
    /// The id of a node's value, below [`Topology::len`].
    pub fn of(&self, slot: usize) -> Option<usize> {
        self.ids.get(slot).filter(|id| **id != NONE).map(|id| *id as usize)
    }

    /// The number of values, including recently unused ones.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn set(&mut self, slot: usize, value: Option<&str>) {
        // What is missing at the end is missing.
        if value.is_none() && self.ids.len() <= slot {
            return;
        }
        if self.ids.len() <= slot {
            self.ids.resize(slot + 1, NONE);
        }
        self.ids[slot] = value.map_or(NONE, |value| match self.values.get(value) {
            Some(id) => *id,
            None => {
                let id = self.values.len() as u32;
                self.values.insert(value.to_owned(), id);
                id
            }
        });
        if self.values.len() > self.ids.len() + SPARE_VALUES {
            self.forget_unused();
        }
    }

    /// Renumbers the values in use, and drops the others.
    fn forget_unused(&mut self) {
        let mut renamed = vec![NONE; self.values.len()];
        let mut next = 0;
        for id in self.ids.iter_mut().filter(|id| **id != NONE) {
            let new = &mut renamed[*id as usize];
            if *new == NONE {
                *new = next;
                next += 1;
            }
            *id = *new;
        }
        self.values.retain(|_, id| {
            *id = renamed[*id as usize];
            *id != NONE
        });
    }

    /// Sums numbers by slot to numbers by value.
    pub fn sums(&self, counts: &[u32]) -> Vec<i64> {
        let mut sums = vec![0; self.len()];
        for (id, count) in self.ids.iter().zip(counts) {
            if *id != NONE {
                sums[*id as usize] += i64::from(*count);
            }
        }
        sums
    }
}

/// The Pods that match all of several terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    pub all: Vec<Who>,
    /// Whether terminating ones count.
    pub terminating: bool,
}

impl Class {
    pub fn matches(&self, pod: &PodInfo, namespaces: &Namespaces) -> bool {
        (self.terminating || !pod.is_terminating()) && self.all.iter().all(|who| pod.is_meant_by(who, namespaces))
    }

    fn cost(&self) -> Cost {
        let one = |who: &Who| Cost { bytes: who.weight(), lookups: who.lookups() };
        self.all.iter().map(one).fold(Cost::default(), Cost::and)
    }

    /// Whether to judge a Pod by it takes long.
    pub fn is_long(&self) -> bool {
        self.cost().lookups > LONG
    }

    fn asks_for_namespaces(&self) -> bool {
        self.all.iter().any(|who| who.namespace_selector.is_some())
    }
}

/// More lookups than most classes need.
const LONG: usize = 64;

/// What it takes to keep classes: their bytes besides their numbers, and to judge a Pod by all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub bytes: usize,
    pub lookups: usize,
}

impl Cost {
    fn and(self, other: Cost) -> Cost {
        Cost { bytes: self.bytes + other.bytes, lookups: self.lookups + other.lookups }
    }

    fn without(self, other: Cost) -> Cost {
        Cost { bytes: self.bytes - other.bytes, lookups: self.lookups - other.lookups }
    }

    fn is_within(self, most: Cost) -> bool {
        self.bytes <= most.bytes && self.lookups <= most.lookups
    }
}

struct Kept {
    topology: Topology,
    used: u64,
}

struct Census {
    /// The number of matching Pods, by slot; missing slots have none.
    counts: Vec<u32>,
    used: u64,
    /// Of its class.
    cost: Cost,
}

/// See the module.
#[derive(Default)]
pub struct Index {
    topologies: HashMap<String, Kept>,
    classes: HashMap<Class, Census>,
    /// Of all classes.
    cost: Cost,
    /// Only required anti-affinity, which every decision queries.
    repelled: Carriers,
    /// All other terms.
    inclined: Carriers,
    /// How many nodes have each label, whatever its value.
    labels: HashMap<String, usize>,
    /// How many terms of Pods on nodes are about each label.
    carried: HashMap<String, usize>,
    /// The terms about labels that no node has had since they came, by label: they mean nobody yet, and no decision looks at them.
    dormant: HashMap<String, HashMap<Arc<Carried>, Slots>>,
    clock: u64,
}

/// One more, or one less, of a name; returns whether it is the first or was the last.
fn count(counts: &mut HashMap<String, usize>, name: &str, more: bool) -> bool {
    match counts.get_mut(name) {
        Some(count) if more => *count += 1,
        Some(count) if *count > 1 => *count -= 1,
        Some(_) => return counts.remove(name).is_some(),
        None if more => return counts.insert(name.to_owned(), 1).is_none(),
        None => {}
    }
    false
}

impl Index {
    /// Whether the label is indexed; marks it as used.
    pub fn knows_topology(&mut self, key: &str) -> bool {
        self.clock += 1;
        let kept = self.topologies.get_mut(key);
        kept.map(|kept| kept.used = self.clock).is_some()
    }

    pub fn add_topology(&mut self, key: &str, topology: Topology) {
        if self.topologies.len() >= MOST_TOPOLOGIES {
            let oldest = self.topologies.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone());
            oldest.map(|key| self.topologies.remove(&key));
        }
        self.topologies.insert(key.to_owned(), Kept { topology, used: self.clock });
    }

    pub fn topology(&self, key: &str) -> Option<&Topology> {
        self.topologies.get(key).map(|kept| &kept.topology)
    }

    /// The number of indexed labels.
    pub fn topologies(&self) -> usize {
        self.topologies.len()
    }

    /// Whether the class is counted; marks it as used.
    pub fn knows_class(&mut self, class: &Class) -> bool {
        self.clock += 1;
        let census = self.classes.get_mut(class);
        census.map(|census| census.used = self.clock).is_some()
    }

    /// Whether a class may be kept at all.
    pub fn may_keep(class: &Class) -> bool {
        let quarter = Cost { bytes: MOST_COST.bytes / 4, lookups: MOST_COST.lookups / 4 };
        class.cost().is_within(quarter)
    }

    /// Keeps a class that [may be](Index::may_keep); those go for it that nobody has asked for the longest.
    pub fn add_class(&mut self, class: &Class, counts: Vec<u32>) {
        let cost = class.cost();
        self.drop_class(class);
        while self.classes.len() >= MOST_CLASSES || !self.cost.and(cost).is_within(MOST_COST) {
            let oldest = self.classes.iter().min_by_key(|(_, census)| census.used).map(|(class, _)| class.clone());
            let Some(oldest) = oldest else { break };
            self.drop_class(&oldest);
        }
        self.classes.insert(class.clone(), Census { counts, used: self.clock, cost });
        self.cost = self.cost.and(cost);
    }

    fn drop_class(&mut self, class: &Class) {
        if let Some(census) = self.classes.remove(class) {
            self.cost = self.cost.without(census.cost);
        }
    }

    /// The number of classes that are counted, and what they cost.
    pub fn classes(&self) -> (usize, Cost) {
        (self.classes.len(), self.cost)
    }

    pub fn class(&self, class: &Class) -> Option<Cow<'_, [u32]>> {
        self.classes.get(class).map(|census| Cow::Borrowed(census.counts.as_slice()))
    }

    /// Namespace labels have changed: classes that depend on them are dropped, and counted again when needed.
    pub fn namespaces_changed(&mut self) {
        self.classes.retain(|class, _| !class.asks_for_namespaces());
        self.cost = self.classes.values().map(|census| census.cost).fold(Cost::default(), Cost::and);
        self.repelled.namespaces_changed();
        self.inclined.namespaces_changed();
    }

    /// Whether any node has the label: terms about others concern no node, and cost nothing.
    pub fn has_label(&self, key: &str) -> bool {
        self.labels.contains_key(key)
    }

    /// A node has other labels than before; returns those that no node had, and that Pods on nodes have terms about.
    pub fn labels_changed<'a>(
        &mut self,
        old: impl Iterator<Item = &'a String>,
        new: impl Iterator<Item = &'a String>,
    ) -> Vec<String> {
        let first: Vec<&String> = new.filter(|key| count(&mut self.labels, key, true)).collect();
        old.for_each(|key| _ = count(&mut self.labels, key, false));
        for key in &first {
            for (carried, slots) in self.dormant.remove(*key).into_iter().flatten() {
                slots
                    .iter()
                    .for_each(|(slot, count)| (0..*count).for_each(|_| self.carriers(&carried).came(&carried, *slot)));
            }
        }
        first.into_iter().filter(|key| self.carried.contains_key(*key)).cloned().collect()
    }

    pub fn node_labels<'a>(&mut self, slot: usize, label: impl Fn(&str) -> Option<&'a str>) {
        for (key, kept) in &mut self.topologies {
            kept.topology.set(slot, label(key));
        }
    }

    /// A Pod was added to a slot.
    pub fn came(&mut self, slot: usize, pod: &PodInfo, namespaces: &Namespaces) {
        for (class, census) in &mut self.classes {
            if class.matches(pod, namespaces) {
                if census.counts.len() <= slot {
                    census.counts.resize(slot + 1, 0);
                }
                census.counts[slot] += 1;
            }
        }
        for carried in &pod.affinity.carried {
            let key = &carried.term.key;
            count(&mut self.carried, key, true);
            if self.has_label(key) || self.carriers(carried).has(carried) {
                self.carriers(carried).came(carried, slot);
            } else {
                let terms = self.dormant.entry(key.clone()).or_default();
                *terms.entry(carried.clone()).or_default().entry(slot).or_default() += 1;
            }
        }
    }

    /// A Pod was removed from its slot.
    pub fn left(&mut self, slot: usize, pod: &PodInfo, namespaces: &Namespaces) {
        for (class, census) in &mut self.classes {
            if class.matches(pod, namespaces)
                && let Some(count) = census.counts.get_mut(slot)
            {
                *count = count.saturating_sub(1);
            }
        }
        for carried in &pod.affinity.carried {
            count(&mut self.carried, &carried.term.key, false);
            match self.carriers(carried).has(carried) {
                true => self.carriers(carried).left(carried, slot),
                false => self.slept(carried, slot),
            }
        }
    }

    /// One Pod less carries a term that is dormant.
    fn slept(&mut self, carried: &Carried, slot: usize) {
        let Some(terms) = self.dormant.get_mut(&carried.term.key) else { return };
        if let Some(slots) = terms.get_mut(carried) {
            carriers::one_less(slots, slot);
            if slots.is_empty() {
                terms.remove(carried);
            }
        }
        if terms.is_empty() {
            self.dormant.remove(&carried.term.key);
        }
    }

    fn carriers(&mut self, carried: &Carried) -> &mut Carriers {
        if carried.affinity == AffinityKind::Anti { &mut self.repelled } else { &mut self.inclined }
    }

    /// Has what Pods on nodes say of such a Pod judged once.
    pub fn prepare_carried(&mut self, pod: &PodInfo, namespaces: &Namespaces) {
        self.repelled.prepare(pod, namespaces);
        self.inclined.prepare(pod, namespaces);
    }

    /// The required anti-affinity terms of Pods on nodes.
    pub fn repelled(&self) -> &Carriers {
        &self.repelled
    }

    /// The other terms of Pods on nodes.
    pub fn inclined(&self) -> &Carriers {
        &self.inclined
    }
}

#[cfg(test)]
mod tests {
    use podwright_api::selector::{LabelSelector, Requirement};

    use super::*;

    fn class(who: Who) -> Class {
        Class { all: vec![who], terminating: true }
    }

    /// Names of namespaces, some 100 bytes each.
    fn heavy(first: usize, count: usize) -> Class {
        let namespaces = (first..first + count).map(|n| format!("{n:060}")).collect();
        class(Who { namespaces, namespace_selector: None, selector: None })
    }

    /// Requirements that every Pod meets.
    fn long(first: usize, count: usize) -> Class {
        let selector = (first..first + count).map(|n| Requirement::DoesNotExist(format!("k{n}"))).collect();
        class(Who {
            namespaces: Default::default(),
            namespace_selector: Some(LabelSelector::default()),
            selector: Some(LabelSelector(selector)),
        })
    }

    /// Pods that nobody schedules come and go, each with others: what they ask about costs all that come after them.
    #[test]
    fn classes_are_kept_by_what_they_cost() {
        for of in [heavy as fn(usize, usize) -> Class, long] {
            let (mut index, light) = (Index::default(), heavy(0, 1));
            for n in 1..100 {
                let new = of(n, 4_000);
                assert!(Index::may_keep(&new) && Index::may_keep(&light));
                for class in [&light, &new] {
                    if !index.knows_class(class) {
                        index.add_class(class, Vec::new());
                    }
                }
                let (count, cost) = index.classes();
                assert!(index.knows_class(&light) && cost.is_within(MOST_COST), "{count} classes cost {cost:?}");
            }
            assert!((4..100).contains(&index.classes().0), "{:?}", index.classes());
            assert!(!Index::may_keep(&of(0, 100_000)), "one alone is too much");
            let all = index.classes.values().map(|census| census.cost).fold(Cost::default(), Cost::and);
            assert_eq!(index.classes().1, all);
            index.add_class(&light, Vec::new());
            assert_eq!(index.classes().1, all, "the same anew");
        }
    }
}
