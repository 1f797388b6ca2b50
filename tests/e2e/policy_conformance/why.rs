//! `podwright why` beside the probes: what it says of a connection is what becomes of it.

use serde_json::Value;

use super::{
    cluster::{Cluster, Probe},
    world::OUTSIDE,
};

/// Asks for some of the probes, each `every`th from the `first` on, and compares with what was seen.
///
/// # Errors
///
/// Those that it says otherwise of.
pub fn agrees(
    cluster: &Cluster,
    probes: &[Probe<'_>],
    seen: &[bool],
    first: usize,
    every: usize,
) -> Result<(), String> {
    let sample = probes.iter().zip(seen).skip(first % every).step_by(every);
    let mut wrong = String::new();
    for (probe, seen) in sample {
        let told = ask(cluster, probe);
        if told.allowed != Some(*seen) {
            wrong += &format!("{}\nwas {seen}, and why says {:?}\n{}\n", told.command, told.allowed, told.text);
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

struct Told {
    command: String,
    /// `None`: nothing of it.
    allowed: Option<bool>,
    text: String,
}

fn ask(cluster: &Cluster, probe: &Probe<'_>) -> Told {
    let (flow, address) = (&probe.flow, probe.question.address);
    let from = match flow.from.name.as_str() {
        OUTSIDE => flow.source.to_string(),
        name => pod(name),
    };
    let to = match flow.to.name.as_str() {
        _ if probe.question.by_service => cluster.service(probe),
        OUTSIDE => address.to_string(),
        name => format!("{}:{}", pod(name), flow.port),
    };
    let protocol = flow.protocol.name();
    let said = cluster.node().run(&["why", &from, &to, "--protocol", protocol, "-o", "json"]);
    let command = format!("why {from} {to} --protocol {protocol}");
    let story: Value = serde_json::from_str(&said.out).unwrap_or_default();
    let ways = story["ways"].as_array().into_iter().flatten();
    let is_of = |way: &&Value| way["to"].as_str().is_some_and(|to| to.contains(':') == address.is_ipv6());
    let ways: Vec<&Value> = ways.filter(is_of).collect();
    let allowed = (!ways.is_empty()).then(|| ways.iter().all(|way| way["allowed"] == true));
    Told { command, allowed, text: format!("{story:#}\n{}", said.err) }
}

fn pod(name: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("x/{name}") }
}
