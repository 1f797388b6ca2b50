//! What the table is called, and its families as nft names them.

use crate::Family;

/// The name of our table in both families.
pub const TABLE: &str = "podwright";

/// `ip` or `ip6`, as nft names the family.
pub fn nft_family(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}
