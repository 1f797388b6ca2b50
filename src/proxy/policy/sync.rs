//! Policies as the proxy's task follows them: what has happened to them and to Pods, and who waits at the gate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright_api::pod_identity::MOST_BYTES;
use podwright_client::Key;
use podwright_net::Network;
use podwright_net::dataplane::PolicyChanges;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::gate::{Asked, Questions};
use super::pod::PodView;
use super::policies::{Local, Outcome, Policies};
use super::sources::{PolicyEvents, PolicySources};
use crate::config::ProxyConfig;
use crate::facts::pod_ranges;
use crate::notices::{MOST, Notice};
use crate::owner::Owner;

/// How long an agent may take to say which Pods it has found, where there are policies.
const RECOVERY: Duration = Duration::from_secs(30);

/// When room is looked for again, where there was none for a policy.
const RECONSIDERED: Duration = Duration::from_secs(60);

/// How long a namespace rests after it was decided, as a multiple of what that took: whoever has his policies compiled all the time
/// leaves the others theirs.
const REST: u32 = 10;
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// What takes less is no matter.
const AT_ONCE: Duration = Duration::from_millis(5);
/// How long namespaces are decided in one go, before Services and others have their turn.
const TURN: Duration = Duration::from_millis(50);

/// Follows policies.
pub struct PolicySync {
    policies: Policies,
    events: PolicyEvents,
    network: Network,
    /// The Pods that the agent has told of, by uid.
    told: HashMap<String, Arc<PodView>>,
    recovered: bool,
    waiting: Waiting,
    /// Whether what was compiled last was compiled from all that there is.
    is_complete: bool,
    /// Who is judged by a policy that the kernel has refused, and why.
    refused: BTreeMap<String, String>,
    /// The Pods that other nodes are not told of.
    untold: BTreeSet<String>,
    /// Until when namespaces rest.
    rests: HashMap<String, Instant>,
    /// When policies that there was no room for are looked at again.
    due: Option<Instant>,
}

/// Who waits for what was asked, by uid.
#[derive(Default)]
struct Waiting(Vec<(String, Answer)>);

type Answer = oneshot::Sender<Result<(), String>>;

impl Waiting {
    /// Who has given up is forgotten: all ask again, and for long nothing may be in force.
    fn add(&mut self, uid: &str, answer: Answer) {
        self.0.retain(|(_, answer)| !answer.is_closed());
        self.0.push((uid.to_owned(), answer));
    }
}

impl PolicySync {
    pub fn new(sources: &PolicySources, config: &ProxyConfig, network: Network) -> PolicySync {
        PolicySync {
            policies: Policies::new(&config.node, &config.dns),
            events: PolicyEvents::of(sources),
            network,
            told: HashMap::new(),
            recovered: false,
            waiting: Waiting::default(),
            is_complete: false,
            refused: BTreeMap::new(),
            untold: BTreeSet::new(),
            rests: HashMap::new(),
            due: None,
        }
    }

    /// Waits until all is known that there is at the start.
    pub async fn known(&mut self, questions: &mut Questions) {
        self.events.drain(&mut self.policies);
        self.events.drain(&mut self.policies);
        let deadline = Instant::now() + RECOVERY;
        let is_late = || Instant::now() >= deadline;
        while !self.events.is_complete() || !(self.policies.is_empty() || self.recovered || is_late()) {
            tokio::select! {
                () = self.next(questions) => {}
                () = tokio::time::sleep_until(deadline), if !is_late() => {
                    tracing::warn!("Pods that nobody tells of are cut off, as their policies are not known");
                }
            }
            self.events.drain(&mut self.policies);
        }
    }

    /// Compiles what has changed. `nodes`: all of them; `pods`: this node's.
    pub fn update(
        &mut self,
        nodes: &[Arc<Node>],
        pods: &[Arc<Pod>],
        questions: &mut Questions,
        changes: &mut PolicyChanges,
    ) -> Vec<Notice> {
        while let Ok(asked) = questions.try_recv() {
            self.note(asked);
        }
        self.events.drain(&mut self.policies);
        self.is_complete = self.events.is_complete();
        if !self.is_complete {
            return Vec::new();
        }
        if !self.policies.is_empty() {
            let name = |node: &Node| node.metadata.name.clone().unwrap_or_default();
            self.policies.set_nodes(nodes.iter().map(|node| (name(node), pod_ranges(node))).collect());
        }
        let locals = self.locals(pods);
        self.policies.set_locals(locals);
        let Outcome { changes: compiled, troubled } = self.decide();
        changes.extend(compiled);
        self.due = self.policies.has_left_out().then(|| self.due.unwrap_or_else(|| Instant::now() + RECONSIDERED));
        let text = |why: &str| format!("traffic that only such policies allow is dropped: {why}");
        let troubled = troubled.iter().take(MOST).filter_map(|(uid, why)| self.notice(uid, &text(why)));
        let mut notices: Vec<Notice> = troubled.collect();
        notices.extend(self.note_untold());
        notices
    }

    /// Decides the namespaces that are due, for one turn.
    fn decide(&mut self) -> Outcome {
        let mut outcome = self.policies.settle();
        let begin = Instant::now();
        self.rests.retain(|_, until| *until > begin);
        let due = self.policies.dirty().filter(|namespace| !self.rests.contains_key(*namespace));
        for namespace in due.map(str::to_owned).collect::<Vec<_>>() {
            let at = Instant::now();
            self.policies.decide(&namespace);
            outcome.extend(self.policies.settle());
            let took = at.elapsed();
            if took >= AT_ONCE {
                self.rests.insert(namespace, Instant::now() + (took * REST).min(LONGEST_REST));
            }
            if begin.elapsed() >= TURN {
                break;
            }
        }
        outcome
    }

    /// When the next namespace is to be decided; `None`: nothing is.
    fn next_turn(&self) -> Option<Instant> {
        let at = |namespace: &str| self.rests.get(namespace).copied().unwrap_or_else(Instant::now);
        self.policies.dirty().map(at).min().filter(|_| self.is_complete)
    }

    /// Takes note of the Pods that other nodes are not told of; what is to be said to whom is not so yet.
    fn note_untold(&mut self) -> Vec<Notice> {
        let is_untold = |local: &Local| local.pod.as_ref().is_some_and(|pod| !pod.is_told());
        let untold = self.policies.locals().iter().filter(|(_, local)| is_untold(local) && !self.policies.is_empty());
        let untold: BTreeSet<String> = untold.map(|(uid, _)| uid.clone()).collect();
        let before = std::mem::replace(&mut self.untold, untold);
        let text = format!(
            "its labels and the names of its ports have more than {MOST_BYTES} bytes: policies on other nodes have it as no peer"
        );
        self.untold.difference(&before).take(MOST).filter_map(|uid| self.notice(uid, &text)).collect()
    }

    /// Takes note of who is judged by a policy that the kernel has refused; what is to be said to whom is not so yet.
    pub fn note_refused(&mut self, refused: BTreeMap<String, String>) -> Vec<Notice> {
        let before = std::mem::replace(&mut self.refused, refused);
        let new = self.refused.iter().filter(|(uid, why)| before.get(*uid) != Some(*why)).take(MOST);
        let text = |why: &str| format!("a policy lets nothing through, as the kernel refuses it: {why}");
        new.filter_map(|(uid, why)| self.notice(uid, &text(why))).collect()
    }

    fn notice(&self, uid: &str, message: &str) -> Option<Notice> {
        let pod = self.policies.locals().get(uid)?.pod.as_ref()?;
        Some(Notice::new(
            Owner::Pod(Key::new(pod.namespace(), pod.name())),
            "NetworkPolicyNotEnforced",
            message.to_owned(),
        ))
    }

    /// What was compiled is in force: who waits for that is told.
    pub fn answer(&mut self) {
        if !self.is_complete {
            return;
        }
        for (uid, answer) in std::mem::take(&mut self.waiting).0 {
            if self.policies.is_undecided(&uid) {
                self.waiting.0.push((uid, answer));
                continue;
            }
            let trouble = self.policies.trouble(&uid).or(self.refused.get(&uid).map(String::as_str));
            let found = match (trouble, self.policies.locals().get(&uid)) {
                (Some(why), _) => Err(why.to_owned()),
                (None, Some(_)) => Ok(()),
                (None, None) => Err("it has no addresses any more".to_owned()),
            };
            // Who has given up waiting asks again.
            answer.send(found).ok();
        }
    }

    /// Waits until something happens, and notes it.
    pub async fn next(&mut self, questions: &mut Questions) {
        let (due, turn) = (at(self.due), at(self.next_turn()));
        tokio::select! {
            Some(asked) = questions.recv() => self.note(asked),
            () = self.events.next(&mut self.policies) => {}
            () = self.network.released(), if !self.policies.is_empty() => {}
            () = turn => {}
            () = due => {
                self.due = None;
                self.policies.reconsider();
            }
        }
    }

    fn note(&mut self, asked: Asked) {
        match asked {
            Asked::Adopted(pod) => drop(self.told.insert(pod.uid().to_owned(), pod)),
            Asked::Recovered => self.recovered = true,
            Asked::Admit(pod, answer) => {
                self.waiting.add(pod.uid(), answer);
                self.told.insert(pod.uid().to_owned(), pod);
            }
        }
    }

    /// Whoever has addresses here. What the API says of a Pod now comes before what the agent was started with; who is gone there
    /// stays what it was until its addresses are given back.
    fn locals(&mut self, pods: &[Arc<Pod>]) -> BTreeMap<String, Local> {
        let owners = self.network.owners();
        self.told.retain(|uid, _| owners.contains_key(uid));
        for pod in pods {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if owners.contains_key(&uid) {
                self.told.insert(uid, Arc::new(PodView::of(pod)));
            }
        }
        let local = |(uid, addresses): (String, Vec<_>)| {
            let pod = self.told.get(&uid).cloned();
            (uid, Local { pod, addresses })
        };
        owners.into_iter().map(local).collect()
    }
}

/// Waits until then; without a time, for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_and_again_waits_once() {
        let mut waiting = Waiting::default();
        let (asks, other) = (oneshot::channel(), oneshot::channel());
        waiting.add("other", other.0);
        waiting.add("a", asks.0);
        let mut last = asks.1;
        for _ in 0..1_000 {
            drop(last);
            let (again, answer) = oneshot::channel();
            waiting.add("a", again);
            last = answer;
        }
        let uids: Vec<&str> = waiting.0.iter().map(|(uid, _)| uid.as_str()).collect();
        assert_eq!(uids, ["other", "a"]);
    }
}
