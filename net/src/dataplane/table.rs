//! The table's name, and nft's names for the families.

use crate::Family;

/// The name of our table in both families.
pub const TABLE: &str = "podwright";

/// `ip` or `ip6`, nft's name for the family.
pub fn nft_family(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}
