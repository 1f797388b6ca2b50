//! How often the others' rules, routes and tunnels follow the addresses that one node reports: a node that reports others all the time
//! would have every other node rewrite them each time, and look at all Services that name addresses. Pure.
//!
//! What is held back of a Node is what its agent reports. That the Node is gone, and the ranges of its Pods, which are the control
//! plane's word, count at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use podwright_api::node_networks;
use tokio::time::Instant;

/// So many changes of a node's addresses count at once ..
const AT_ONCE: u32 = 5;
/// .. and the interval of one more.
const EACH: Duration = Duration::from_secs(10);

/// What a node reports of where it is.
#[derive(Clone, Debug, Default, PartialEq)]
struct Report {
    addresses: Vec<NodeAddress>,
    /// [`node_networks::ANNOTATION`]
    networks: Option<String>,
}

struct Known {
    /// What counts; `None`: there is no such Node.
    counts: Option<Report>,
    /// When the changes that have counted will be within the pace.
    even_at: Instant,
}

/// What other nodes report, as it counts.
#[derive(Default)]
pub struct Reports(HashMap<String, Known>);

impl Report {
    fn of(node: &Node) -> Report {
        let addresses = node.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
        let networks = node.metadata.annotations.as_ref().and_then(|all| all.get(node_networks::ANNOTATION)).cloned();
        Report { addresses, networks }
    }

    /// The Node, as if its agent had reported this.
    fn instead(&self, node: &Node) -> Node {
        let mut node = node.clone();
        node.status.get_or_insert_default().addresses = Some(self.addresses.clone());
        let annotations = node.metadata.annotations.get_or_insert_default();
        match &self.networks {
            Some(networks) => drop(annotations.insert(node_networks::ANNOTATION.to_owned(), networks.clone())),
            None => drop(annotations.remove(node_networks::ANNOTATION)),
        }
        node
    }
}

impl Known {
    /// When one more change counts; `None`: now.
    fn waits(&self, now: Instant) -> Option<Instant> {
        let due = self.even_at.checked_sub((AT_ONCE - 1) * EACH)?;
        (due > now).then_some(due)
    }
}

impl Reports {
    /// The Nodes as they count for `own`, and when that may change though they do not.
    pub fn counting(&mut self, nodes: Vec<Arc<Node>>, own: &str, now: Instant) -> (Vec<Arc<Node>>, Option<Instant>) {
        let mut gone: HashMap<String, Known> = std::mem::take(&mut self.0);
        let (mut all, mut due) = (Vec::with_capacity(nodes.len()), None::<Instant>);
        for node in nodes {
            let name = node.metadata.name.clone().unwrap_or_default();
            if name == own {
                all.push(node);
                continue;
            }
            let report = Report::of(&node);
            let Some(mut known) = gone.remove(&name) else {
                self.0.insert(name, Known { counts: Some(report), even_at: now });
                all.push(node);
                continue;
            };
            if known.counts.as_ref() == Some(&report) {
                all.push(node);
            } else if let Some(later) = known.waits(now) {
                due = Some(due.map_or(later, |due| due.min(later)));
                all.extend(known.counts.as_ref().map(|counts| Arc::new(counts.instead(&node))));
            } else {
                known.even_at = known.even_at.max(now) + EACH;
                known.counts = Some(report);
                all.push(node);
            }
            self.0.insert(name, known);
        }
        // Who comes back at once has changed.
        let gone = gone.into_iter().filter(|(_, known)| known.even_at > now);
        self.0.extend(gone.map(|(name, known)| (name, Known { counts: None, ..known })));
        (all, due)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeSpec, NodeStatus};

    use super::*;
    use crate::facts::{node_addresses, pod_ranges};

    fn node(name: &str, address: &str, range: &str) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node.metadata.annotations = Some([(node_networks::ANNOTATION.to_owned(), format!("{address}/24"))].into());
        node.spec = Some(NodeSpec { pod_cidrs: Some(vec![range.to_owned()]), ..NodeSpec::default() });
        let address = NodeAddress { address: address.to_owned(), type_: "InternalIP".to_owned() };
        node.status = Some(NodeStatus { addresses: Some(vec![address]), ..NodeStatus::default() });
        Arc::new(node)
    }

    /// The addresses, networks and ranges of all.
    fn text(nodes: &[Arc<Node>]) -> Vec<String> {
        let one = |node: &Arc<Node>| {
            format!("{:?} {:?} {:?}", node_addresses(node), node_networks::published(node), pod_ranges(node))
        };
        nodes.iter().map(one).collect()
    }

    #[test]
    fn a_node_that_reports_other_addresses_all_the_time_is_followed_at_a_pace() {
        let (mut reports, begin) = (Reports::default(), Instant::now());
        let (own, still) = (node("own", "192.0.2.1", "10.1.0.0/24"), node("still", "192.0.2.2", "10.2.0.0/24"));
        let (mut before, mut followed) = (Vec::new(), 0);
        for second in 0..600 {
            let own = node("own", &format!("192.0.2.{}", 10 + second % 7), "10.1.0.0/24");
            let flips = node("flips", &format!("198.51.100.{}", second % 2), "10.3.0.0/24");
            let reported = text(std::slice::from_ref(&flips));
            let all = vec![own.clone(), still.clone(), flips];
            let (counting, due) = reports.counting(all, "own", begin + Duration::from_secs(second));
            assert_eq!(text(&counting[..2]), text(&[own, still.clone()]), "nobody else waits");
            let now = text(&counting[2..]);
            followed += usize::from(now != before);
            assert_eq!(due.is_some(), now != reported);
            before = now;
        }
        assert!((50..70).contains(&followed), "{followed}");
        // It rests, and what it has said last counts when that is due.
        let last = |address: &str, range: &str| vec![own.clone(), node("flips", address, range)];
        let at = begin + Duration::from_secs(601);
        reports.counting(last("198.51.100.7", "10.3.0.0/24"), "own", at);
        let (held, due) = reports.counting(last("198.51.100.8", "10.4.0.0/24"), "own", at);
        assert_ne!(text(&held), text(&last("198.51.100.8", "10.4.0.0/24")));
        assert!(text(&held)[1].ends_with("[10.4.0.0/24]"), "the control plane's word: {held:?}");
        let due = due.expect("it is held back");
        let (counts, none) = reports.counting(last("198.51.100.8", "10.4.0.0/24"), "own", due);
        assert_eq!((text(&counts), none), (text(&last("198.51.100.8", "10.4.0.0/24")), None));
    }

    #[test]
    fn a_node_that_comes_and_goes_has_the_same_pace() {
        let (mut reports, now) = (Reports::default(), Instant::now());
        let there = || vec![node("n", "192.0.2.1", "10.1.0.0/24")];
        reports.counting(there(), "own", now);
        // A first change, from where on it has a debt.
        reports.counting(vec![node("n", "192.0.2.2", "10.1.0.0/24")], "own", now);
        let mut seen = 0;
        for _ in 0..100 {
            assert!(reports.counting(Vec::new(), "own", now).0.is_empty(), "it is gone at once");
            seen += reports.counting(there(), "own", now).0.len();
        }
        assert_eq!(seen, AT_ONCE as usize - 1);
        reports.counting(Vec::new(), "own", now + 60 * EACH);
        assert!(reports.0.is_empty(), "and is forgotten");
    }
}
