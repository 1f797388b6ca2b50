//! Policies as the proxy's task follows them: what has happened to them and to Pods, and who waits at the gate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright_client::Key;
use podwright_net::Network;
use podwright_net::dataplane::PolicyChanges;
use tokio::sync::oneshot;

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
        }
    }

    /// Waits until all is known that there is at the start.
    pub async fn known(&mut self, questions: &mut Questions) {
        self.events.drain(&mut self.policies);
        self.events.drain(&mut self.policies);
        let deadline = tokio::time::Instant::now() + RECOVERY;
        let is_late = || tokio::time::Instant::now() >= deadline;
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
        let Outcome { changes: compiled, troubled } = self.policies.update();
        changes.extend(compiled);
        let compiled = troubled.into_iter().take(MOST);
        compiled
            .filter_map(|(uid, why)| {
                self.notice(&uid, &format!("traffic that only such policies allow is dropped: {why}"))
            })
            .collect()
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
        tokio::select! {
            Some(asked) = questions.recv() => self.note(asked),
            () = self.events.next(&mut self.policies) => {}
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
                self.told.insert(uid, Arc::new(PodView::of(pod).on_its_node()));
            }
        }
        let local = |(uid, addresses): (String, Vec<_>)| {
            let pod = self.told.get(&uid).cloned();
            (uid, Local { pod, addresses })
        };
        owners.into_iter().map(local).collect()
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
