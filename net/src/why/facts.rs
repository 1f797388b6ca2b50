//! What is known of the kernel's state, and what is to be asked next.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

/// A chain or set: family and table, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub family: String,
    pub table: String,
    pub name: String,
}

impl Place {
    pub fn new(family: &str, table: &str, name: &str) -> Place {
        Place { family: family.to_owned(), table: table.to_owned(), name: name.to_owned() }
    }

    /// Another one of the same table.
    pub fn beside(&self, name: &str) -> Place {
        Place::new(&self.family, &self.table, name)
    }
}

/// One field of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Address(IpAddr),
    Number(u64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// The chains of all tables that have hooks.
    Hooks,
    Rules(Place),
    Element(Place, Vec<Part>),
    Route {
        from: Option<IpAddr>,
        link: Option<String>,
        to: IpAddr,
    },
}

/// A chain on a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub place: Place,
    pub hook: String,
    pub priority: i64,
    pub is_nat: bool,
    pub drops: bool,
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq)]
pub enum Element {
    Missing,
    /// With its value, as `nft -j` has it; null for a set's.
    Present(Value),
    /// It cannot be read.
    Unknown,
}

/// The way to an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// `unicast`, `local`, ...
    pub kind: &'static str,
    pub link: String,
    pub next_hop: Option<IpAddr>,
    /// The source that the node picks for it.
    pub source: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    Hooks(Vec<Hook>),
    /// Statements by rule, as `nft -j` has them; `None`: there is no such chain.
    Rules(Option<Vec<Vec<Value>>>),
    Element(Element),
    /// Or the error of the lookup.
    Route(Result<Route, String>),
}

/// The answers so far.
#[derive(Clone, Debug, Default)]
pub struct Facts(BTreeMap<Question, Fact>);

impl Facts {
    pub fn learn(&mut self, question: Question, fact: Fact) {
        self.0.insert(question, fact);
    }

    pub fn hooks(&self) -> Result<&[Hook], Question> {
        match self.0.get(&Question::Hooks) {
            Some(Fact::Hooks(hooks)) => Ok(hooks),
            _ => Err(Question::Hooks),
        }
    }

    pub fn rules(&self, place: &Place) -> Result<Option<&[Vec<Value>]>, Question> {
        let question = Question::Rules(place.clone());
        match self.0.get(&question) {
            Some(Fact::Rules(rules)) => Ok(rules.as_deref()),
            _ => Err(question),
        }
    }

    pub fn element(&self, set: Place, key: &[Part]) -> Result<&Element, Question> {
        let question = Question::Element(set, key.to_vec());
        match self.0.get(&question) {
            Some(Fact::Element(element)) => Ok(element),
            _ => Err(question),
        }
    }

    pub fn route(
        &self,
        from: Option<IpAddr>,
        link: Option<&str>,
        to: IpAddr,
    ) -> Result<&Result<Route, String>, Question> {
        let question = Question::Route { from, link: link.map(str::to_owned), to };
        match self.0.get(&question) {
            Some(Fact::Route(route)) => Ok(route),
            _ => Err(question),
        }
    }
}
