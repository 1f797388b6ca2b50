//! How much policies may take of a node: what exceeds it lets nothing through, and is told.
//!
//! A packet to or from a Pod is compared with the rules of all its policies, one by one; a group's members are elements of a set.

/// The rules of all policies that isolate a Pod in one direction: some 20 microseconds a packet.
pub const RULES: usize = 512;

/// The groups that the policies of one namespace name on a node: each new one looks at all Pods of the cluster.
pub const GROUPS: usize = 256;

/// The groups whose members are counted to find whether there is room for them: each goes through all Pods of the cluster.
pub const COUNTED: usize = 2 * GROUPS;

/// The members of those groups, and ranges and ports: as much as the Services of a namespace have.
pub const ELEMENTS: usize = crate::shares::ELEMENTS;

/// The peers of a rule times its ports, in all rules of a policy that are about one direction: what it takes to compile them.
pub const PAIRS: usize = ELEMENTS;

/// What the policies of a namespace look up at most to find which of them select a Pod.
pub const SELECTING: usize = 65_536;

/// What of a namespace's policies is more than a node has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    #[error("with what is older in its namespace it takes more than {GROUPS} groups of Pods: it lets nothing through")]
    Groups,
    #[error(
        "with what is older in its namespace it takes more than {ELEMENTS} addresses, ranges and ports: it lets nothing through"
    )]
    Elements,
    #[error(
        "with what is older in its namespace it looks up more than {SELECTING} labels and values to select Pods: it selects \
         all, and lets nothing through"
    )]
    Selectors,
}

/// What a selector looks up at most to match one Pod or namespace: its labels, and the values that they may have.
pub const LOOKUPS: usize = 1024;
