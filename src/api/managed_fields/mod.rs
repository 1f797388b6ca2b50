//! `metadata.managedFields`: who has set which fields, and server-side apply, which rests on it (KEP-555).
//!
//! A field set ([`Set`]) is a tree of path elements. A plain write ([`update`]) gives its manager the fields that it
//! changed and takes them from all others. An apply ([`Apply`]) merges the manifest into the object by the schema's list
//! types, conflicts where that changes what others own, and removes what the manager applied before and no longer does.
//! All is pure and works on decoded objects of one version.

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

/// The manager that owns what was there before the first apply of an object whose fields were not tracked.
pub const BEFORE_FIRST_APPLY: &str = "before-first-apply";
