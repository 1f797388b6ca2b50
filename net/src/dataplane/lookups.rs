//! Single elements of our tables by their keys, as currently in the kernel; and what in the model they come from.

use ipnet::IpNet;
use serde_json::Value as Json;

use super::carriers::{Wanted, ask};
use super::elements::Key;
use super::model::Protocol;
use super::{Dataplane, fixed};
use crate::netlink::Socket;
use crate::why::{Cause, Element, Part, Step};
use crate::{Family, Result};

/// Whether the elements of a set are intervals: those of node facts.
pub fn is_interval(set: &str) -> bool {
    fixed::FACTS.contains(&set)
}

/// The element of a set or map for a key. The fields of the key tell how it is written.
///
/// # Errors
///
/// The kernel cannot be asked.
pub fn element_at(socket: &mut Socket, family: &str, set: &str, key: &[Part]) -> Result<Element> {
    let family = if family == "ip" { Family::V4 } else { Family::V6 };
    let key = match written(key) {
        Written::Key(key) => key,
        Written::Nothing => return Ok(Element::Missing),
        Written::Unknown => return Ok(Element::Unknown),
    };
    let wanted = Wanted::new(family, set.to_owned(), key);
    let found = ask(socket, &[wanted])?;
    Ok(found.into_iter().next().map_or(Element::Missing, |carrier| {
        let value = carrier.element.get(1).cloned().unwrap_or(Json::Null);
        Element::Present(value)
    }))
}

enum Written {
    Key(Key),
    /// No element has such a key.
    Nothing,
    Unknown,
}

fn written(key: &[Part]) -> Written {
    let id = |number: &u64| u32::try_from(*number).unwrap_or_default();
    let port = |number: &u64| u16::try_from(*number).unwrap_or_default();
    let protocol = |name: &str| Protocol::ALL.into_iter().find(|protocol| protocol.name() == name);
    let key = match key {
        [Part::Address(address), Part::Text(name), Part::Number(number)] => {
            protocol(name).map(|protocol| Key::Frontend(*address, protocol, port(number)))
        }
        [Part::Text(name), Part::Number(number)] => protocol(name).map(|protocol| Key::Port(protocol, port(number))),
        [Part::Number(number)] => Some(Key::Id(id(number))),
        [Part::Number(list), Part::Number(slot)] => Some(Key::Slot(id(list), id(slot))),
        [Part::Number(list), Part::Number(length), Part::Address(network)] => {
            let length = u8::try_from(*length).ok();
            length.and_then(|length| IpNet::new(*network, length).ok()).map(|net| Key::Source(id(list), net))
        }
        [Part::Number(list), Part::Address(client)] => Some(Key::Client(id(list), *client)),
        [Part::Address(address), Part::Number(number)] => Some(Key::Endpoint(*address, port(number))),
        // Such sets hold pairs of equals.
        [Part::Address(one), Part::Address(other)] if one == other => Some(Key::Own(*one)),
        [Part::Address(_), Part::Address(_)] => return Written::Nothing,
        [Part::Address(address)] => Some(Key::Address(*address)),
        _ => None,
    };
    key.map_or(Written::Unknown, Written::Key)
}

impl Dataplane {
    /// What a step of a packet comes from: the keys of Services, the names of policies.
    fn objects_of(&self, cause: &Cause) -> Vec<String> {
        match cause {
            Cause::List(id) => {
                let mut of = self
                    .services
                    .iter()
                    .filter_map(|(key, compiled)| compiled.lists.get(id).map(|list| format!("{key}:{}", list.port)));
                of.next().into_iter().collect()
            }
            Cause::Policies { address, direction, chain } => self.policies.names(address, *direction, chain.as_deref()),
            Cause::Unjudged { .. } => Vec::new(),
        }
    }

    /// Names what a step of a packet comes from, and says where the kernel has not what it should have.
    pub fn explain(&self, step: &mut Step) {
        let Some(cause) = &step.cause else { return };
        match cause {
            Cause::Unjudged { address, direction } => {
                if self.policies.is_judged(address, *direction) {
                    step.objects = self.policies.names(address, *direction, None);
                    step.found += ", although it should be: the kernel lacks what podwright has for it";
                }
            }
            cause => step.objects = self.objects_of(cause),
        }
    }
}
