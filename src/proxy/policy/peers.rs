//! Whom rules name: groups of Pods, by selectors.

use std::sync::Arc;

use podwright_api::selector::LabelSelector;
use podwright_net::dataplane::Protocol;

/// Pods that a peer selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pods {
    pub namespaces: Namespaces,
    pub pods: LabelSelector,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Namespaces {
    One(String),
    Of(LabelSelector),
}

impl Pods {
    pub fn all() -> Pods {
        Pods { namespaces: Namespaces::Of(LabelSelector::default()), pods: LabelSelector::default() }
    }
}

/// A group of addresses, or of addresses and ports: whoever is of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    pub pods: Arc<Pods>,
    /// The port that a member has by this name.
    pub port: Option<(Protocol, String)>,
}

impl Group {
    /// What the dataplane calls it: all that it is.
    pub fn name(&self) -> Arc<str> {
        format!("{self:?}").into()
    }
}

/// A peer's Pods with the name of their group: named once for all that is compiled of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPods {
    pub name: Arc<str>,
    pub pods: Arc<Pods>,
}

impl NamedPods {
    pub fn new(pods: Pods) -> NamedPods {
        let pods = Arc::new(pods);
        NamedPods { name: Group { pods: pods.clone(), port: None }.name(), pods }
    }
}
