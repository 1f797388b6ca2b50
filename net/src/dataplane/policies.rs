//! Policies in the tables: what the kernel refuses of one holds up neither the others nor any Service.

use std::collections::BTreeMap;
use std::time::Instant;

use super::difference::Difference;
use super::policy::PolicyChanges;
use super::{Change, Dataplane, report_refusal};
use crate::{Error, Result};

impl Dataplane {
    /// Changes who is isolated, by what, and who is of which group: one transaction, once the tables are loaded. An error leaves the
    /// wish in memory; the next call loads everything. A policy that the kernel refuses is no error: it lets nothing through
    /// ([`Dataplane::closed_owners`]).
    pub fn apply_policies(&mut self, changes: PolicyChanges) -> Result<Change> {
        let started = Instant::now();
        let difference = self.policies.decide(changes, &mut self.part_ids);
        let (added, deleted) = (difference.add.len(), difference.delete.len());
        let mut change = Change { added, deleted, ..Change::default() };
        if !self.is_to_be_loaded {
            return Ok(change);
        }
        let incremental = self.loaded && self.commit_policies(&difference).inspect_err(report_refusal).is_ok();
        if !incremental {
            self.loaded = false;
            self.reload()?;
            self.loaded = true;
            change.full = true;
        }
        self.remove_left_over_policies();
        change.took = started.elapsed();
        Ok(change)
    }

    /// The owners who are judged by a policy that the kernel has refused, and why: it lets nothing through.
    pub fn closed_owners(&self) -> BTreeMap<String, String> {
        self.policies.closed()
    }

    /// Tries what the kernel has refused once more.
    ///
    /// # Errors
    ///
    /// The kernel takes nothing at all. What it refuses again is none.
    pub fn try_policies_again(&mut self) -> Result<()> {
        let refused = self.policies.refused();
        if !self.loaded || refused.is_empty() {
            return Ok(());
        }
        self.open_policies(&refused)
    }

    /// Makes what is needed and not there yet. Nothing leads to it until the elements do.
    pub(super) fn make_policies(&mut self) -> Result<()> {
        let missing = self.policies.missing();
        if missing.is_empty() { Ok(()) } else { self.make_parts(&missing) }
    }

    /// Builds the tables anew by `script`, with all that policies need in the same transaction, and `elements` behind that. Where
    /// that is refused no policy lets anything through at first, and each that the kernel takes does after that.
    pub(super) fn replace_with_policies(&mut self, script: &str, elements: &str) -> Result<()> {
        self.policies.forget_made();
        let parts = self.policies.missing();
        let first = self.nft(format!("{script}{}{elements}", self.policies.script_of(&parts)));
        let error = match first {
            Ok(()) => {
                self.policies.add_made(&parts);
                return Ok(());
            }
            Err(error @ Error::Nft(_)) => error,
            Err(error) => return Err(error),
        };
        let suspects: Vec<u64> =
            self.policies.all().into_iter().filter(|policy| self.policies.refuse(*policy, "")).collect();
        if suspects.is_empty() {
            return Err(error);
        }
        let closed = self.nft(format!("{script}{}{elements}", self.policies.script_of(&parts)));
        if closed.is_err() {
            self.policies.allow(&suspects);
            return closed;
        }
        self.policies.add_made(&parts);
        self.open_policies(&suspects)
    }

    fn commit_policies(&mut self, difference: &Difference) -> Result<()> {
        self.make_policies()?;
        self.commit(difference)
    }

    /// Gives policies without rules those that they have, as far as the kernel takes them.
    fn open_policies(&mut self, policies: &[u64]) -> Result<()> {
        self.policies.allow(policies);
        self.make_parts(policies)
    }

    /// Makes chains and sets, those first that others name. What is refused is halved until it is one: if that is a policy, its chain
    /// has no rules.
    fn make_parts(&mut self, parts: &[u64]) -> Result<()> {
        let error = match self.nft(self.policies.script_of(parts)) {
            Ok(()) => {
                self.policies.add_made(parts);
                return Ok(());
            }
            Err(error @ Error::Nft(_)) => error,
            Err(error) => return Err(error),
        };
        if let [one] = *parts {
            if !self.policies.refuse(one, &first_line(&error)) {
                return Err(error);
            }
            tracing::warn!(error = first_line(&error), "the kernel refused a NetworkPolicy: it lets nothing through");
            // Not even without rules: it is not the policy.
            return self.make_parts(parts).inspect_err(|_| self.policies.allow(parts));
        }
        let (first, rest) = parts.split_at(parts.len() / 2);
        self.make_parts(first)?;
        self.make_parts(rest)
    }

    /// What cannot be removed is in nobody's way.
    fn remove_left_over_policies(&mut self) {
        let (left, script) = self.policies.left_over();
        let removed = if script.is_empty() { Ok(()) } else { self.nft(script) };
        match removed {
            Ok(()) => self.policies.forget(&left, &mut self.part_ids),
            Err(error) => tracing::warn!(%error, "chains that no policy needs stay"),
        }
    }
}

/// What `nft` says is wrong, without the rule that it quotes.
fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
