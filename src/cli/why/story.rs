//! The ways of a packet, put together from what each node answers. Pure.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::ends::Target;

/// What a packet meets on one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    pub node: String,
    /// As the node has them: hook, table, chain, lookup, found, objects.
    pub steps: Vec<Value>,
    /// Rules of which it is unknown whether they hold.
    pub uncertain: Vec<String>,
}

impl Hop {
    pub fn of(node: &str, way: &Value) -> Hop {
        let uncertain = way["uncertain"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Hop {
            node: node.to_owned(),
            steps: way["steps"].as_array().cloned().unwrap_or_default(),
            uncertain: uncertain.map(str::to_owned).collect(),
        }
    }
}

/// The way to one endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    pub hops: Vec<Hop>,
    pub to: Option<IpAddr>,
    pub destination: Option<IpAddr>,
    pub port: u64,
    pub allowed: bool,
    pub verdict: String,
    /// Among how many endpoints this one is chosen.
    pub choices: u64,
    leaving: Option<Leaving>,
}

/// A packet that leaves its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub port: u16,
    /// Whether its source is still the sender's.
    pub is_own: bool,
}

impl Way {
    pub fn new(hop: Hop, answer: &Value) -> Way {
        let mut way = Way {
            hops: Vec::new(),
            to: address(answer, "to"),
            destination: address(answer, "destination"),
            port: answer["port"].as_u64().unwrap_or_default(),
            allowed: false,
            verdict: String::new(),
            choices: answer["choices"].as_u64().unwrap_or(1),
            leaving: leaving(answer),
        };
        way.add(hop, answer);
        way
    }

    pub fn leaves_for(&self) -> Option<Leaving> {
        self.leaving.clone()
    }

    /// What becomes of it on the next node.
    pub fn go_on(&mut self, hop: Hop, answer: &Value) {
        self.add(hop, answer);
        // No packet passes through a third node.
        if leaving(answer).is_some() {
            self.allowed = false;
            self.verdict = format!("unknown: it {} from there again", self.verdict);
        }
    }

    /// It leaves the cluster.
    pub fn ends_outside(&mut self) {
        self.verdict = "allowed: it leaves the cluster".to_owned();
    }

    pub fn ends_unknown(&mut self, why: &str) {
        (self.allowed, self.verdict) = (false, format!("unknown: {why}"));
    }

    fn add(&mut self, hop: Hop, answer: &Value) {
        self.hops.push(hop);
        self.allowed = answer["verdict"]["allowed"] == true;
        self.verdict = answer["verdict"]["text"].as_str().unwrap_or("unknown").to_owned();
    }
}

/// An address in an answer.
pub fn address(way: &Value, field: &str) -> Option<IpAddr> {
    way[field].as_str()?.parse().ok()
}

fn leaving(answer: &Value) -> Option<Leaving> {
    let end = &answer["end"];
    if end["is"] != "leaves" {
        return None;
    }
    let source = address(end, "source")?;
    Some(Leaving {
        source,
        destination: address(answer, "destination")?,
        port: u16::try_from(answer["port"].as_u64()?).ok()?,
        is_own: address(answer, "source") == Some(source),
    })
}

/// All ways of a packet, and what they come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    pub from: String,
    pub to: String,
    pub target: Target,
    pub ways: Vec<Way>,
}

impl Story {
    pub fn new(from: &str, to: &str, target: &Target) -> Story {
        Story { from: from.to_owned(), to: to.to_owned(), target: target.clone(), ways: Vec::new() }
    }

    /// Whether it arrives, whichever way is chosen.
    pub fn is_allowed(&self) -> bool {
        !self.ways.is_empty() && self.ways.iter().all(|way| way.allowed)
    }

    pub fn verdict(&self) -> String {
        let arriving = self.ways.iter().filter(|way| way.allowed).count();
        let first = self.ways.iter().find(|way| way.allowed == self.is_allowed());
        let text = first.map_or("unknown", |way| way.verdict.as_str());
        match arriving {
            0 => text.to_owned(),
            all if all == self.ways.len() => text.to_owned(),
            some => format!("allowed by {some} of {} ways, otherwise {text}", self.ways.len()),
        }
    }

    pub fn to_json(&self) -> Value {
        let hop = |hop: &Hop| json!({ "node": hop.node, "steps": hop.steps, "uncertain": hop.uncertain });
        let way = |way: &Way| {
            json!({
                "to": way.to, "destination": way.destination, "port": way.port, "allowed": way.allowed,
                "verdict": way.verdict, "choices": way.choices, "hops": way.hops.iter().map(hop).collect::<Vec<_>>(),
            })
        };
        json!({
            "apiVersion": "podwright/v1", "kind": "Why", "from": self.from, "to": self.to,
            "protocol": self.target.protocol, "port": self.target.port, "allowed": self.is_allowed(),
            "verdict": self.verdict(), "ways": self.ways.iter().map(way).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(end: &Value, verdict: &str) -> Value {
        json!({
            "source": "10.244.0.2", "to": "10.96.0.7", "destination": "10.244.1.5", "port": 8080, "steps": [],
            "choices": 2, "end": end, "verdict": {"allowed": verdict.starts_with("allowed"), "text": verdict},
        })
    }

    fn story(answers: &[Value]) -> Story {
        let mut story = Story::new("a", "b:80", &Target { port: 80, protocol: "TCP".into() });
        story.ways = answers.iter().map(|answer| Way::new(Hop::of("n1", answer), answer)).collect();
        story
    }

    #[test]
    fn what_leaves_a_node_goes_on_with_the_source_that_it_left_with() {
        let leaves = |source: &str| answer(&json!({"is": "leaves", "source": source}), "allowed to leave by eth0");
        let own = story(&[leaves("10.244.0.2")]).ways[0].leaves_for().unwrap();
        assert!(own.is_own && own.destination.to_string() == "10.244.1.5" && own.port == 8080);
        let masked = story(&[leaves("192.0.2.1")]).ways[0].leaves_for().unwrap();
        assert!(!masked.is_own && masked.source.to_string() == "192.0.2.1");
        let local = json!({"is": "local"});
        assert_eq!(story(&[answer(&local, "allowed")]).ways[0].leaves_for(), None);
        let mut way = story(&[leaves("10.244.0.2")]).ways.remove(0);
        way.go_on(Hop::of("n2", &Value::Null), &answer(&json!({"is": "dropped"}), "dropped by X"));
        assert_eq!((way.allowed, way.verdict.as_str(), way.hops.len()), (false, "dropped by X", 2));
    }

    #[test]
    fn all_ways_have_to_arrive() {
        let (yes, no) = (answer(&Value::Null, "allowed"), answer(&Value::Null, "dropped by X"));
        assert!(story(&[yes.clone(), yes.clone()]).is_allowed());
        let mixed = story(&[yes, no.clone()]);
        assert_eq!(
            (mixed.is_allowed(), mixed.verdict().as_str()),
            (false, "allowed by 1 of 2 ways, otherwise dropped by X")
        );
        assert_eq!((story(&[no]).verdict().as_str(), story(&[]).is_allowed()), ("dropped by X", false));
    }
}
