//! Authorization: the stage between authentication and the verbs.
//!
//! Members of `system:masters` may do everything, without lookups. For others the authorizers are asked in turn: [`node`] knows
//! what a node's agent needs for its own Pods, [`rbac`] what roles grant. Both keep an index of the watch cache, which is updated
//! when a question finds it behind.

use std::sync::Arc;

use podwright_api::{Kind, Request, Status, User, Verb};
use podwright_store::Revision;

use super::Server;
use super::cache::Cache;
use super::resolved_request::ResolvedRequest;

mod admin_access;
mod aggregate;
pub(super) mod attributes;
mod bound;
mod defaults;
pub(super) mod escalate;
mod follow;
pub(super) mod grants;
mod graph;
mod missing;
mod needs;
pub(super) mod node;
mod params;
mod rbac;
pub mod rule;
mod rule_index;

pub use attributes::Attributes;
pub(super) use attributes::{Decision, MASTERS};
use grants::{GROUP, Role};
use rbac::Granted;

/// Why a list of modes is invalid, in the words of upstream's flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    #[error("authorization-mode {0:?} is not a valid mode")]
    Unknown(String),
    /// These occur more than once.
    #[error("authorization-mode {0:?} has mode specified more than once")]
    Twice(Vec<String>),
    /// The list is empty.
    #[error("at least one authorization-mode must be passed")]
    Missing,
}

/// An authorization mode, by upstream's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Node,
    Rbac,
    AlwaysAllow,
    AlwaysDeny,
}

impl Mode {
    /// The default.
    pub const DEFAULT: [Mode; 2] = [Mode::Node, Mode::Rbac];
    const NAMES: [(&str, Mode); 4] = [
        ("Node", Mode::Node),
        ("RBAC", Mode::Rbac),
        ("AlwaysAllow", Mode::AlwaysAllow),
        ("AlwaysDeny", Mode::AlwaysDeny),
    ];

    /// Parses upstream's flag `--authorization-mode`.
    ///
    /// # Errors
    ///
    /// The list is empty, or a mode is unknown or occurs twice.
    pub fn parse_all(names: &[String]) -> Result<Vec<Mode>, ModeError> {
        let mut modes = Vec::new();
        for name in names {
            let found = Mode::NAMES.iter().find(|(known, _)| known == name);
            let (_, mode) = found.ok_or_else(|| ModeError::Unknown(name.clone()))?;
            if modes.contains(mode) {
                return Err(ModeError::Twice(names.to_vec()));
            }
            modes.push(*mode);
        }
        match modes.is_empty() {
            true => Err(ModeError::Missing),
            false => Ok(modes),
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Mode::NAMES.iter().find(|(_, mode)| mode == self).map_or("", |(name, _)| name))
    }
}

/// The most lookups for one decision about a user named in a request.
const MOST_LOOKUPS: usize = 4_000_000;

/// This many lookups, a few milliseconds, are free in any request: users with many groups decide like others, without waiting for a
/// place. Their CPU time is still measured.
const FREE_LOOKUPS: usize = 100_000;

/// The authorizers.
pub(super) struct Authorizer {
    modes: Vec<Mode>,
    pub(super) node: node::NodeAuthorizer,
    pub(super) rbac: rbac::Rbac,
}

impl Authorizer {
    pub fn new(cache: &Arc<Cache>, modes: Vec<Mode>) -> Authorizer {
        Authorizer { modes, node: node::NodeAuthorizer::new(cache), rbac: rbac::Rbac::new(cache) }
    }

    fn decide_by(&self, mode: Mode, asked: &Attributes<'_>) -> Decision {
        match mode {
            Mode::Node => self.node.decide(asked),
            Mode::Rbac => self.rbac.decide(asked),
            Mode::AlwaysAllow => Decision::Allow,
            Mode::AlwaysDeny => Decision::NoOpinion("Everything is forbidden.".to_owned()),
        }
    }

    /// Decides by the current cache.
    pub fn decide(&self, asked: &Attributes<'_>) -> Decision {
        if asked.user.is_in(MASTERS) {
            return Decision::Allow;
        }
        let mut why = String::new();
        for mode in &self.modes {
            match self.decide_by(*mode, asked) {
                Decision::Allow => return Decision::Allow,
                Decision::NoOpinion(reason) if why.is_empty() => why = reason,
                Decision::NoOpinion(reason) if reason.is_empty() => {}
                Decision::NoOpinion(reason) => why = format!("{why}\n{reason}"),
            }
        }
        Decision::NoOpinion(why)
    }

    /// The refusal, if it is one, as sent to the caller.
    pub fn authorize(&self, asked: &Attributes<'_>) -> Result<(), Status> {
        let Decision::NoOpinion(reason) = self.decide(asked) else { return Ok(()) };
        let mut why = asked.refusal();
        if !reason.is_empty() {
            why = format!("{why}: {reason}");
        }
        if asked.is_path() {
            return Err(Status::failure(403, "Forbidden", format!("forbidden: {why}")));
        }
        Err(Status::forbidden(asked.resource, asked.group, asked.name, why))
    }

    /// Why something is allowed, as in upstream's annotation; empty if no grant is needed.
    pub fn reason(&self, asked: &Attributes<'_>) -> String {
        let mut modes = self.modes.iter().filter(|_| !asked.user.is_in(MASTERS));
        match modes.find(|mode| self.decide_by(**mode, asked) == Decision::Allow) {
            Some(Mode::Rbac) => self.rbac.reason(asked).unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// Everything that a user may do in a namespace, as far as it can be listed.
    pub fn rules(&self, user: &User, namespace: &str) -> Granted {
        let mut granted = match self.modes.contains(&Mode::Rbac) {
            true => self.rbac.rules(user, namespace),
            false => Granted::default(),
        };
        if self.modes.contains(&Mode::AlwaysAllow) {
            granted.roles.push(Arc::new(Role::of(escalate::everything().into())));
        }
        if self.modes.contains(&Mode::Node) && node::node_of(user).is_some() {
            granted.incomplete = true;
            granted.errors.push("node authorizer does not support user rule resolution".to_owned());
        }
        granted
    }

    /// The cost, in bytes of a request, of authorizing it, and of comparing the user's grants with what it grants, if it grants
    /// anything. An error if even computing this costs too much.
    pub fn weight(&self, request: &Request, kind: &Kind) -> Result<usize, Status> {
        if request.user.is_in(MASTERS) {
            return Ok(0);
        }
        if kind.group != GROUP || !request.verb.writes() {
            let namespace = request.namespace.as_deref().unwrap_or("");
            self.bound_named(&request.user, namespace)?;
            return Ok(self.weight_of_decision(&request.user, namespace));
        }
        let of_body = || request.body.as_ref()?["metadata"]["namespace"].as_str();
        let namespace = request.namespace.as_deref().or_else(of_body).unwrap_or("");
        self.bound_named(&request.user, namespace)?;
        Ok(self.weight_of_rules(&request.user, namespace))
    }

    /// The cost of listing what a user may do in a namespace.
    pub fn weight_of_rules(&self, user: &User, namespace: &str) -> usize {
        super::large::of_lookups(self.rbac.words(user, namespace))
            .saturating_add(self.weight_of_decision(user, namespace))
    }

    /// The cost of a decision about a user in a namespace: the user's groups times the bindings to search for each.
    pub fn weight_of_decision(&self, user: &User, namespace: &str) -> usize {
        self.weight_of_decisions(user, namespace, 1)
    }

    /// The same for several decisions of one request.
    pub fn weight_of_decisions(&self, user: &User, namespace: &str, count: usize) -> usize {
        of_decisions(self.rbac.lookups(user, namespace), count)
    }

    /// Refuses what would look up too much at once: the lock blocks all other decisions and changes.
    pub fn bound(&self, user: &User, namespace: &str) -> Result<(), Status> {
        if self.rbac.lookups(user, namespace) <= MOST_LOOKUPS {
            return Ok(());
        }
        let groups = user.groups.len();
        Err(Status::bad_request(format!(
            "a subject of {groups} groups cannot be asked about: there are too many bindings"
        )))
    }

    /// The same for a user named in a request: its namespace, and so the number of bindings, is known only then.
    pub fn bound_named(&self, user: &User, namespace: &str) -> Result<(), Status> {
        match user.impersonator {
            Some(_) => self.bound(user, namespace),
            None => Ok(()),
        }
    }

    /// Like `authorize`, for a non-resource path: `/healthz`, `/apis`. The verb is the HTTP method in lower case.
    pub fn authorize_path(&self, user: &User, verb: &str, path: &str) -> Result<(), Status> {
        self.authorize(&Attributes::of_path(user, verb, path))
    }
}

/// The cost, in bytes of a request, of this many decisions with this many lookups each.
fn of_decisions(lookups: usize, count: usize) -> usize {
    super::large::of_lookups(lookups.saturating_mul(count).saturating_sub(FREE_LOOKUPS))
}

/// Waits, before a write with checks beyond authorization, until the cache has everything acknowledged.
pub(super) async fn guard(server: &Server, call: &ResolvedRequest) -> Result<(), Status> {
    let reads = matches!(call.verb, Verb::Get | Verb::List | Verb::Watch | Verb::Connect);
    let is_node = node::node_of(&call.user).is_some();
    let is_about_rights = matches!(call.kind.group, GROUP | "certificates.k8s.io" | "admissionregistration.k8s.io");
    if reads || call.user.is_in(MASTERS) || !(is_node || is_about_rights) {
        return Ok(());
    }
    server.cache.fresh().await
}

impl Server {
    /// Decides on everything acknowledged: a grant made a moment ago counts.
    pub(super) async fn decide(&self, asked: &Attributes<'_>) -> Result<Decision, Status> {
        self.authorizer.bound_named(asked.user, asked.namespace)?;
        let shown = self.cache.revision();
        let first = self.authorizer.decide(asked);
        if first == Decision::Allow || !self.has_moved(shown).await? {
            return Ok(first);
        }
        self.authorizer.bound_named(asked.user, asked.namespace)?;
        Ok(self.authorizer.decide(asked))
    }

    /// Waits until the cache has everything acknowledged; returns whether it moved on from `shown`.
    async fn has_moved(&self, shown: Revision) -> Result<bool, Status> {
        self.cache.fresh().await?;
        Ok(self.cache.revision() > shown)
    }

    /// The same as an error.
    pub(super) async fn authorize(&self, asked: &Attributes<'_>) -> Result<(), Status> {
        self.authorizer.bound_named(asked.user, asked.namespace)?;
        let shown = self.cache.revision();
        match self.authorizer.authorize(asked) {
            Err(_) if self.has_moved(shown).await? => {
                self.authorizer.bound_named(asked.user, asked.namespace)?;
                self.authorizer.authorize(asked)
            }
            decided => decided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::large::LARGE;

    #[test]
    fn who_has_many_groups_waits_for_no_place() {
        // 200 groups, each looked up in 40 large bindings.
        assert_eq!(of_decisions(201 * 41, 1), 0);
        assert!(of_decisions(FREE_LOOKUPS + LARGE, 1) >= LARGE);
        // The free lookups count once for all decisions together.
        assert!(of_decisions(201 * 41, 200) >= LARGE);
    }
}
