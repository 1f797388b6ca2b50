//! `metadata.managedFields`: which manager set which fields, and server-side apply, which is based on it (KEP-555).
//!
//! A field set ([`Set`]) is a tree of path elements. An update ([`update`]) gives its manager the changed fields and removes them
//! from all others. An apply ([`Apply`]) merges the manifest into the object by the schema's list types, conflicts if that changes
//! others' fields, and removes what the manager applied before and no longer does. All is pure and works on decoded objects of one
//! version.

mod check;
mod element;
mod entries;
mod set;
#[cfg(test)]
mod tests;
mod walk;
mod write;

pub use check::{TypedErrors, check};
pub use entries::{Entry, MAX_MANAGERS, Managed, Operation, Who};
pub use set::Set;
pub use walk::{Comparison, Scope, all_fields, compare, fields, without};
pub use write::{Apply, Conflict, refusal, update, update_with};

/// The manager of everything that existed before the first apply of an untracked object.
pub const BEFORE_FIRST_APPLY: &str = "before-first-apply";
