//! The way of a packet through a node: its routes, and the hooks that it passes.

use std::net::IpAddr;

use super::evaluate::State;
use super::facts::{Facts, Question, Route};
use super::rules::{Traveller, Verdict};
use super::{End, Entry, Packet, Step, Walk};
use crate::Family;
use crate::dataplane::TABLE;

/// Follows a packet as far as it comes. `pick`: what stands for random numbers.
///
/// # Errors
///
/// What is to be known first.
pub fn walk(facts: &Facts, packet: &Packet, entry: &Entry, pick: u32) -> Result<Walk, Question> {
    let mut steps = Vec::new();
    let mut link_in = String::new();
    let mut source = packet.source;
    let mut is_own = *entry == Entry::Node;
    // 1. By which link it comes, or with which source it goes.
    match entry {
        Entry::Link(link) => link_in.clone_from(link),
        Entry::WayBack => {
            let of = source.unwrap_or(packet.destination);
            match facts.route(None, None, of)? {
                // The node's own packets come by no link.
                Ok(route) if route.kind == "local" => is_own = true,
                Ok(route) => link_in.clone_from(&route.link),
                Err(why) => return Ok(lost(packet, steps, format!("back to {of}: {why}"))),
            }
        }
        Entry::Node => match facts.route(source, None, packet.destination)? {
            Ok(route) => {
                steps.push(step_of(packet.destination, route));
                source = source.or(route.source);
            }
            Err(why) => return Ok(lost(packet, steps, why.clone())),
        },
    }
    let Some(source) = source else { return Ok(lost(packet, steps, "the node has no source for it".to_owned())) };
    let Packet { protocol, destination, port, .. } = *packet;
    let state = State {
        family: Family::of(&destination),
        protocol,
        source,
        destination,
        port,
        original: (source, destination, port),
        link_in,
        link_out: String::new(),
        next_hop: None,
        connection_mark: 0,
        mark: 0,
        is_translated: false,
        is_tracked: true,
        pick,
        choices: 0,
        added: Vec::new(),
    };
    let mut traveller = Traveller::new(facts, state);
    traveller.steps = steps;
    let ip = crate::dataplane::nft_family(Family::of(&destination));
    if !facts.hooks()?.iter().any(|hook| hook.place.table == TABLE && hook.place.family == ip) {
        let (lookup, found) = (format!("table {ip} {TABLE}"), "missing: nothing of it judges or translates".to_owned());
        traveller.step(Step { hook: "tables".into(), lookup, found, ..Step::default() });
    }
    let end = if is_own { send(&mut traveller)? } else { receive(&mut traveller)? };
    let Traveller { state, steps, uncertain, .. } = traveller;
    Ok(Walk { steps, end, destination: state.destination, port: state.port, uncertain, choices: state.choices.max(1) })
}

/// A packet that came by a link: to the node, or through it.
fn receive(packet: &mut Traveller<'_>) -> Result<End, Question> {
    // 2. What judges it before its way is looked for.
    if let Some(verdict) = packet.pass("prerouting")? {
        return Ok(ended(verdict));
    }
    // 3. Its way, which also asks whether its source may come by that link.
    let state = &packet.state;
    let (source, link, to) = (state.source, state.link_in.clone(), state.destination);
    let route = match packet.facts.route(Some(source), Some(&link), to)? {
        Ok(route) => route.clone(),
        Err(why) => return Ok(no_route(packet, why.clone())),
    };
    packet.step(step_of(to, &route));
    match route.kind {
        "local" => {
            if let Some(verdict) = packet.pass("input")? {
                return Ok(ended(verdict));
            }
            Ok(End::Local)
        }
        "unicast" => {
            packet.state.link_out.clone_from(&route.link);
            packet.state.next_hop = route.next_hop;
            // 4. What judges what goes through.
            if let Some(verdict) = packet.pass("forward")? {
                return Ok(ended(verdict));
            }
            leave(packet, &route)
        }
        kind => Ok(no_route(packet, kind.to_owned())),
    }
}

/// A packet of the node itself.
fn send(packet: &mut Traveller<'_>) -> Result<End, Question> {
    let way = |packet: &Traveller<'_>| {
        let (source, to) = (packet.state.source, packet.state.destination);
        packet.facts.route(Some(source), None, to).cloned()
    };
    let first = match way(packet)? {
        Ok(route) => route,
        Err(why) => return Ok(no_route(packet, why)),
    };
    packet.state.link_out.clone_from(&first.link);
    packet.state.next_hop = first.next_hop;
    if let Some(verdict) = packet.pass("output")? {
        return Ok(ended(verdict));
    }
    // Whoever has translated it looks for its way once more.
    let route = match way(packet)? {
        Ok(route) => route,
        Err(why) => return Ok(no_route(packet, why)),
    };
    if route != first {
        packet.step(step_of(packet.state.destination, &route));
    }
    match route.kind {
        "local" => Ok(End::Local),
        "unicast" => {
            packet.state.link_out.clone_from(&route.link);
            packet.state.next_hop = route.next_hop;
            leave(packet, &route)
        }
        kind => Ok(no_route(packet, kind.to_owned())),
    }
}

/// 5. What happens to what goes out.
fn leave(packet: &mut Traveller<'_>, route: &Route) -> Result<End, Question> {
    if let Some(verdict) = packet.pass("postrouting")? {
        return Ok(ended(verdict));
    }
    let mut source = packet.state.source;
    if packet.is_masqueraded {
        let own = packet.facts.route(None, None, packet.state.destination)?;
        source = own.as_ref().ok().and_then(|route| route.source).unwrap_or(source);
    }
    let link = route.link.clone();
    Ok(match crate::links::is_pod_link(&link) {
        true => End::Delivered { link },
        false => End::Leaves { link, next_hop: route.next_hop, source },
    })
}

fn ended(verdict: Verdict) -> End {
    match verdict {
        Verdict::Reject(with) => End::Rejected { with },
        Verdict::TooMany => End::NoRoute { why: "there are more rules than are followed".to_owned() },
        // Those that let it through end no way.
        Verdict::Drop | Verdict::Accept | Verdict::Through => End::Dropped,
    }
}

fn no_route(packet: &mut Traveller<'_>, why: String) -> End {
    let to = packet.state.destination;
    packet.step(Step { hook: "route".into(), lookup: to.to_string(), found: why.clone(), ..Step::default() });
    End::NoRoute { why }
}

fn lost(packet: &Packet, mut steps: Vec<Step>, why: String) -> Walk {
    let lookup = packet.destination.to_string();
    steps.push(Step { hook: "route".into(), lookup, found: why.clone(), ..Step::default() });
    let Packet { destination, port, .. } = *packet;
    Walk { steps, end: End::NoRoute { why }, destination, port, uncertain: Vec::new(), choices: 1 }
}

fn step_of(to: IpAddr, route: &Route) -> Step {
    let via = route.next_hop.map(|hop| format!("via {hop} ")).unwrap_or_default();
    let found = match route.kind {
        "unicast" => format!("{via}dev {}", route.link),
        kind => format!("{kind} dev {}", route.link),
    };
    Step { hook: "route".into(), lookup: to.to_string(), found, ..Step::default() }
}
