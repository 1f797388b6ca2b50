//! The terms that Pods on nodes carry, found by what a Pod must have for a term to mean it: a decision costs what may mean its Pod, not
//! what there is. Whoever may make Pods makes as many terms as he likes, and every decision about anybody's Pod asks for all of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    pod::PodInfo,
    term::{Carried, Namespaces, Who},
};
use podwright_api::selector::Requirement;

/// A term is found in so many places at most; one with more names and values is found by less of what it says.
const MOST_DOORS: usize = 64;
/// Answers about so many different Pods are kept; the one that was not asked for the longest goes.
const MOST_ANSWERS: usize = 1024;
/// And so many terms in all of them.
const MOST_MEANT: usize = 1 << 20;
/// An answer is kept if so many terms had to be judged for it.
const WORTH_KEEPING: usize = 16;
/// Only answers about Pods whose namespace and labels together are at most this long are kept: they are the answers' keys.
const LONGEST_IDENTITY: usize = 4096;
/// Stands for what is not asked for: the namespace of terms that go by labels of namespaces, the key of those that ask for no label,
/// and the value of those that ask for any. (Of a value that is empty this finds more, and all that is found is judged.)
const ANY: &str = "";

/// How many Pods carry a term, by slot.
pub type Slots = BTreeMap<usize, u32>;
/// Terms as they are numbered.
type Numbers = BTreeSet<u64>;
/// By namespace, key and value of a label.
type Doors = HashMap<String, HashMap<String, HashMap<String, Numbers>>>;

/// Which terms mean a Pod of some namespace and labels.
struct Answer {
    /// All terms with lower numbers are judged.
    judged: u64,
    /// Some may be gone.
    meant: Vec<u64>,
    used: u64,
}

/// See the module.
#[derive(Default)]
pub struct Carriers {
    terms: BTreeMap<u64, (Arc<Carried>, Slots)>,
    numbers: HashMap<Arc<Carried>, u64>,
    doors: Doors,
    answers: HashMap<String, Answer>,
    /// How many terms all answers hold.
    meant: usize,
    next: u64,
    clock: u64,
}

impl Carriers {
    /// Whether any Pod carries it.
    pub fn has(&self, carried: &Carried) -> bool {
        self.numbers.contains_key(carried)
    }

    /// One more Pod on a node carries it.
    pub fn came(&mut self, carried: &Arc<Carried>, slot: usize) {
        let number = self.numbers.get(carried).copied().unwrap_or_else(|| self.number(carried));
        if let Some((_, slots)) = self.terms.get_mut(&number) {
            *slots.entry(slot).or_default() += 1;
        }
    }

    fn number(&mut self, carried: &Arc<Carried>) -> u64 {
        let number = self.next;
        self.next += 1;
        for (namespace, key, value) in doors(&carried.term.who) {
            let keys = self.doors.entry(namespace.to_owned()).or_default();
            let values = keys.entry(key.to_owned()).or_default();
            values.entry(value.to_owned()).or_default().insert(number);
        }
        self.numbers.insert(carried.clone(), number);
        self.terms.insert(number, (carried.clone(), Slots::new()));
        number
    }

    /// One Pod less carries it.
    pub fn left(&mut self, carried: &Carried, slot: usize) {
        let Some(&number) = self.numbers.get(carried) else { return };
        let Some((_, slots)) = self.terms.get_mut(&number) else { return };
        one_less(slots, slot);
        if slots.is_empty() {
            self.terms.remove(&number);
            self.numbers.remove(carried);
            doors(&carried.term.who).into_iter().for_each(|door| self.close(door, number));
        }
    }

    fn close(&mut self, (namespace, key, value): Door<'_>, number: u64) {
        let Some(keys) = self.doors.get_mut(namespace) else { return };
        let Some(values) = keys.get_mut(key) else { return };
        let Some(numbers) = values.get_mut(value) else { return };
        numbers.remove(&number);
        if numbers.is_empty() {
            values.remove(value);
        }
        if values.is_empty() {
            keys.remove(key);
        }
        if keys.is_empty() {
            self.doors.remove(namespace);
        }
    }

    /// Judges the terms that have come since the last time, and keeps the answer where that is work.
    pub fn prepare(&mut self, pod: &PodInfo, namespaces: &Namespaces) {
        if self.terms.is_empty() {
            return;
        }
        self.clock += 1;
        let identity = identity(pod);
        if identity.len() > LONGEST_IDENTITY {
            return;
        }
        let known = self.answers.get(&identity).map_or(0, |answer| answer.judged);
        let candidates = self.candidates(pod, known);
        if known == 0 && candidates.len() < WORTH_KEEPING {
            return;
        }
        let new = self.judge(candidates, pod, namespaces);
        let (terms, clock, judged) = (&self.terms, self.clock, self.next);
        let answer = self.answers.entry(identity).or_insert(Answer { judged, meant: Vec::new(), used: clock });
        let before = answer.meant.len();
        answer.meant.retain(|number| terms.contains_key(number));
        answer.meant.extend(new);
        (answer.judged, answer.used) = (judged, clock);
        self.meant = self.meant - before + answer.meant.len();
        self.forget();
    }

    /// Keeps the answers that were asked for last.
    fn forget(&mut self) {
        while self.answers.len() > MOST_ANSWERS || (self.meant > MOST_MEANT && self.answers.len() > 1) {
            let oldest =
                self.answers.iter().min_by_key(|(_, answer)| answer.used).map(|(identity, _)| identity.clone());
            let Some(answer) = oldest.and_then(|identity| self.answers.remove(&identity)) else { return };
            self.meant -= answer.meant.len();
        }
    }

    /// What namespaces are called has changed.
    pub fn namespaces_changed(&mut self) {
        self.answers.clear();
        self.meant = 0;
    }

    /// The terms that mean a Pod, with how many carry each, by slot.
    pub fn meaning(&self, pod: &PodInfo, namespaces: &Namespaces) -> Vec<(&Carried, &Slots)> {
        if self.terms.is_empty() {
            return Vec::new();
        }
        let answer = if self.answers.is_empty() { None } else { self.answers.get(&identity(pod)) };
        let known = answer.map_or(0, |answer| answer.judged);
        let new = self.judge(self.candidates(pod, known), pod, namespaces);
        let meant = answer.into_iter().flat_map(|answer| &answer.meant).copied().chain(new);
        meant.filter_map(|number| self.terms.get(&number)).map(|(carried, slots)| (&**carried, slots)).collect()
    }

    /// All terms.
    pub fn all(&self) -> impl Iterator<Item = (&Carried, &Slots)> {
        self.terms.values().map(|(carried, slots)| (&**carried, slots))
    }

    fn judge(&self, candidates: Vec<u64>, pod: &PodInfo, namespaces: &Namespaces) -> Vec<u64> {
        let means = |number: &u64| {
            self.terms.get(number).is_some_and(|(carried, _)| pod.is_meant_by(&carried.term.who, namespaces))
        };
        candidates.into_iter().filter(means).collect()
    }

    /// The terms, from a number on, that mean no Pod unless it is of this namespace and has one of these labels.
    fn candidates(&self, pod: &PodInfo, from: u64) -> Vec<u64> {
        if from == self.next {
            return Vec::new();
        }
        let mut found = Vec::new();
        let labels = pod.pod.metadata.labels.iter().flatten();
        let asked: Vec<(&str, &str)> = labels.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        for keys in [ANY, &pod.key.namespace].into_iter().filter_map(|namespace| self.doors.get(namespace)) {
            for (key, value) in asked.iter().copied().chain([(ANY, ANY)]) {
                let Some(values) = keys.get(key) else { continue };
                for numbers in [ANY, value].into_iter().filter_map(|value| values.get(value)) {
                    found.extend(numbers.range(from..));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// One Pod less in a slot.
pub fn one_less(slots: &mut Slots, slot: usize) {
    if let Some(count) = slots.get_mut(&slot) {
        *count -= 1;
        if *count == 0 {
            slots.remove(&slot);
        }
    }
}

/// What terms see of a Pod. No name, key or value has a NUL.
fn identity(pod: &PodInfo) -> String {
    let mut identity = pod.key.namespace.clone();
    for part in pod.pod.metadata.labels.iter().flatten().flat_map(|(key, value)| [key, value]) {
        identity.push('\0');
        identity.push_str(part);
    }
    identity
}

/// A namespace, and a label's key and value; see [`ANY`].
type Door<'a> = (&'a str, &'a str, &'a str);

/// Where a term is found: each Pod that it means comes by one of these.
fn doors(who: &Who) -> Vec<Door<'_>> {
    // It means nobody.
    let Some(selector) = &who.selector else { return Vec::new() };
    let mut labels = vec![(ANY, ANY)];
    let mut fewest = usize::MAX;
    for requirement in &selector.0 {
        match requirement {
            Requirement::In(key, values) if values.len() <= MOST_DOORS && values.len() < fewest => {
                fewest = values.len();
                labels = values.iter().map(|value| (key.as_str(), value.as_str())).collect();
            }
            Requirement::In(key, _)
            | Requirement::Exists(key)
            | Requirement::GreaterThan(key, _)
            | Requirement::LessThan(key, _)
                if fewest == usize::MAX =>
            {
                labels = vec![(key.as_str(), ANY)];
            }
            _ => (),
        }
    }
    let mut namespaces: Vec<&str> = who.namespaces.iter().map(String::as_str).collect();
    if who.namespace_selector.is_some() || namespaces.len() * labels.len() > MOST_DOORS {
        namespaces = vec![ANY];
    }
    let pairs =
        namespaces.into_iter().flat_map(|namespace| labels.iter().map(move |(key, value)| (namespace, *key, *value)));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(namespace: &str, labels: Value, selectors: &[Value]) -> Arc<PodInfo> {
        let term = |selector: &Value| json!({ "topologyKey": "zone", "namespaceSelector": {}, "labelSelector": { "matchExpressions": selector } });
        let terms: Vec<Value> = selectors.iter().map(term).collect();
        let pod = json!({
            "metadata": { "name": "x", "namespace": namespace, "labels": labels },
            "spec": { "containers": [], "affinity": {
                "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } } },
        });
        PodInfo::of(Arc::new(serde_json::from_value(pod).expect("a Pod")))
    }

    /// As many terms as that, none like the other; `of` makes the requirements of each.
    fn carriers(of: impl Fn(usize) -> Value) -> Carriers {
        let selectors: Vec<Value> = (0..1_000).map(of).collect();
        let mut carriers = Carriers::default();
        let carrier = pod("a", json!({}), &selectors);
        carrier.affinity.carried.iter().for_each(|carried| carriers.came(carried, 0));
        carriers
    }

    #[test]
    fn what_asks_for_other_labels_is_not_looked_at() {
        let asks = |n: usize| match n % 3 {
            0 => json!([{ "key": "app", "operator": "In", "values": [format!("x{n}")] }]),
            1 => json!([{ "key": format!("k{n}"), "operator": "DoesNotExist" }, { "key": "z", "operator": "Exists" }]),
            _ => json!([{ "key": "app", "operator": "NotIn", "values": ["b"] },
                { "key": "app", "operator": "In", "values": [format!("y{n}"), "z"] }]),
        };
        let carriers = carriers(asks);
        let looked_at = |labels: Value| carriers.candidates(&pod("b", labels, &[]), 0).len();
        assert_eq!(looked_at(json!({})), 0);
        assert_eq!(looked_at(json!({ "app": "b", "tier": "c" })), 0);
        assert_eq!(looked_at(json!({ "app": "x3" })), 1);
    }

    #[test]
    fn what_is_known_of_such_pods_is_not_judged_again() {
        let all_but = |n: usize| json!([{ "key": format!("k{n}"), "operator": "DoesNotExist" }, { "key": "app", "operator": "NotIn", "values": ["b"] }]);
        let mut carriers = carriers(all_but);
        let (asks, namespaces) = (pod("b", json!({ "app": "b" }), &[]), Namespaces::default());
        assert_eq!(carriers.candidates(&asks, 0).len(), 1_000);
        carriers.prepare(&asks, &namespaces);
        assert_eq!(carriers.answers[&identity(&asks)].judged, carriers.next);
        let more = pod("a", json!({}), &[json!([])]);
        carriers.came(&more.affinity.carried[0], 0);
        assert_eq!(carriers.candidates(&asks, carriers.answers[&identity(&asks)].judged).len(), 1, "what is new alone");
    }

    #[test]
    fn answers_are_bounded() {
        let mut carriers = carriers(|n| json!([{ "key": format!("k{n}"), "operator": "DoesNotExist" }]));
        for n in 0..2 * MOST_ANSWERS {
            carriers.prepare(
                &pod("b", json!({ "app": n.to_string() }), &[]),
                &Namespaces(HashMap::from([("b".to_owned(), BTreeMap::new())])),
            );
        }
        assert!(carriers.meant <= MOST_MEANT && carriers.answers.len() <= MOST_ANSWERS);
        assert_eq!(carriers.meant, carriers.answers.values().map(|answer| answer.meant.len()).sum::<usize>());
    }
}
