//! The owner of a part of the node's network: a Service or a Pod, and its key in the network.

use std::fmt;

use podwright_client::Key;

/// No Service has such a name.
const OF_POD: &str = "pod:";

/// An object that requests something from the network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Service(Key),
    /// A Pod of this node, with its host ports.
    Pod(Key),
}

impl Owner {
    /// The owner of this key, if it belongs to one.
    pub fn of(key: &str) -> Option<Owner> {
        let (pod, name) = key.strip_prefix(OF_POD).map_or((false, key), |name| (true, name));
        let (namespace, name) = name.split_once('/')?;
        let key = Key::new(namespace, name);
        Some(if pod { Owner::Pod(key) } else { Owner::Service(key) })
    }

    pub fn namespace(&self) -> &str {
        match self {
            Owner::Service(key) | Owner::Pod(key) => &key.namespace,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Service(key) => write!(f, "{key}"),
            Owner::Pod(key) => write!(f, "{OF_POD}{key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_known_again_by_its_key() {
        let owners = [Owner::Service(Key::new("a", "b")), Owner::Pod(Key::new("a", "b"))];
        assert_eq!(owners.each_ref().map(ToString::to_string), ["a/b", "pod:a/b"]);
        assert_eq!(owners.each_ref().map(|owner| Owner::of(&owner.to_string())), owners.map(Some));
        assert_eq!(Owner::of("b"), None);
    }
}
