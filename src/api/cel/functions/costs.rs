//! The cost of a call before it starts, by the strings that it reads: one per ten characters, as upstream. Upstream:
//! `k8s.io/apiserver/pkg/cel/library/cost.go`, `cel-go/interpreter/runtimecost.go`.
//!
//! Functions charge for their results, and for lists and their items, themselves.

use super::super::Budget;
use super::super::value::{Value, name_cost};

/// The longest regular expression of Kubernetes' named formats, divided by four.
const NAMED_REGEX: u64 = 128 / 4;

/// Which of a call's arguments are read, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Nothing of relevant length.
    Nothing,
    /// These, once each.
    Once(&'static [usize]),
    /// The first one twice: it is read, and compared or copied.
    Twice,
    /// The second within the first: the product.
    Within,
    /// The first one, with the second one as a regular expression.
    Pattern,
    /// The second one, with the first one as a format.
    Format,
    /// The first one, counting its characters.
    Counted,
}

use Reads::{Counted, Format, Nothing, Once, Pattern, Twice, Within};

/// How many bytes of a string are counted for a cost of 1. Upstream's `size()` costs nothing by length: neither does it here for
/// names and the like. But a string of megabytes must not be counted a million times for free.
const COUNTED: u64 = 1024;

const FIRST: Reads = Once(&[0]);
const SECOND: Reads = Once(&[1]);
const BOTH: Reads = Once(&[0, 1]);

/// All functions, sorted by name.
pub const COSTS: &[(&str, Reads)] = &[
    ("add", Nothing),
    ("asApproximateFloat", Nothing),
    ("asInteger", Nothing),
    ("bool", FIRST),
    ("bytes", FIRST),
    ("charAt", FIRST),
    ("cidr", FIRST),
    ("compareTo", BOTH),
    ("contains", Within),
    ("containsCIDR", SECOND),
    ("containsIP", SECOND),
    ("double", FIRST),
    ("duration", FIRST),
    ("dyn", Nothing),
    ("endsWith", SECOND),
    ("family", Nothing),
    ("find", Pattern),
    ("findAll", Pattern),
    ("format", FIRST),
    ("format.byte", Nothing),
    ("format.date", Nothing),
    ("format.datetime", Nothing),
    ("format.dns1035Label", Nothing),
    ("format.dns1035LabelPrefix", Nothing),
    ("format.dns1123Label", Nothing),
    ("format.dns1123LabelPrefix", Nothing),
    ("format.dns1123Subdomain", Nothing),
    ("format.dns1123SubdomainPrefix", Nothing),
    ("format.labelValue", Nothing),
    ("format.named", FIRST),
    ("format.qualifiedName", Nothing),
    ("format.uri", Nothing),
    ("format.uuid", Nothing),
    ("getDate", SECOND),
    ("getDayOfMonth", SECOND),
    ("getDayOfWeek", SECOND),
    ("getDayOfYear", SECOND),
    ("getEscapedPath", FIRST),
    ("getFullYear", SECOND),
    ("getHost", FIRST),
    ("getHostname", FIRST),
    ("getHours", SECOND),
    ("getMilliseconds", SECOND),
    ("getMinutes", SECOND),
    ("getMonth", SECOND),
    ("getPort", FIRST),
    ("getQuery", Twice),
    ("getScheme", FIRST),
    ("getSeconds", SECOND),
    ("hasValue", Nothing),
    ("indexOf", BOTH),
    ("int", FIRST),
    ("ip", FIRST),
    ("ip.isCanonical", Twice),
    ("isCIDR", FIRST),
    ("isGlobalUnicast", Nothing),
    ("isGreaterThan", BOTH),
    ("isIP", FIRST),
    ("isInteger", Nothing),
    ("isLessThan", BOTH),
    ("isLinkLocalMulticast", Nothing),
    ("isLinkLocalUnicast", Nothing),
    ("isLoopback", Nothing),
    ("isQuantity", FIRST),
    ("isSemver", FIRST),
    ("isSorted", Nothing),
    ("isURL", FIRST),
    ("isUnspecified", Nothing),
    ("join", SECOND),
    ("lastIndexOf", BOTH),
    ("lowerAscii", FIRST),
    ("major", Nothing),
    ("masked", Nothing),
    ("matches", Pattern),
    ("max", Nothing),
    ("min", Nothing),
    ("minor", Nothing),
    ("optional.none", Nothing),
    ("optional.of", Nothing),
    ("optional.ofNonZeroValue", Nothing),
    ("or", Nothing),
    ("orValue", Nothing),
    ("patch", Nothing),
    ("prefixLength", Nothing),
    ("quantity", FIRST),
    ("replace", Once(&[0, 0, 1, 2])),
    ("reverse", FIRST),
    ("semver", FIRST),
    ("sets.contains", Nothing),
    ("sets.equivalent", Nothing),
    ("sets.intersects", Nothing),
    ("sign", Nothing),
    ("size", Counted),
    ("split", Once(&[0, 0, 1])),
    ("startsWith", SECOND),
    ("string", FIRST),
    ("strings.quote", FIRST),
    ("sub", Nothing),
    ("substring", FIRST),
    ("sum", Nothing),
    ("timestamp", FIRST),
    ("trim", FIRST),
    ("type", Nothing),
    ("uint", FIRST),
    ("upperAscii", FIRST),
    ("url", FIRST),
    ("validate", Format),
    ("value", Nothing),
];

/// The cost of the arguments that a call of this function reads.
pub fn of(name: &str, values: &[Value]) -> u64 {
    let reads = COSTS.binary_search_by_key(&name, |(known, _)| known).map_or(BOTH, |at| COSTS[at].1);
    let read = |at: usize| values.get(at).map_or(0, length);
    match reads {
        Nothing => 0,
        Once(places) => places.iter().fold(0_u64, |sum, at| sum.saturating_add(read(*at).div_ceil(10))),
        Twice => (read(0) * 2).div_ceil(10),
        // The product with an empty string is free, so the other one is not counted.
        Within | Pattern if read(1) == 0 => 0,
        Within => read(0).div_ceil(10).saturating_mul(read(1).div_ceil(10)),
        Pattern => (read(0) + 1).div_ceil(10).saturating_mul(read(1).div_ceil(4)),
        Format => read(1).div_ceil(10).saturating_mul(NAMED_REGEX),
        Counted => match values.first() {
            Some(Value::String(text)) => text.len() as u64 / COUNTED,
            _ => 0,
        },
    }
}

/// The length of a string in characters; lists and maps are not traversed.
fn length(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.chars().count() as u64,
        Value::Bytes(bytes) => bytes.len() as u64,
        Value::Url(url) => url.length() as u64,
        Value::Semver(version) => version.pre.len() as u64,
        _ => 0,
    }
}

impl Budget {
    /// Charges for looking up a name.
    pub fn charge_name(&mut self, name: &str) -> Result<(), super::super::Error> {
        self.charge(name_cost(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cel::functions::FUNCTIONS;

    #[test]
    fn each_function_has_its_cost() {
        assert!(COSTS.is_sorted_by(|a, b| a.0 < b.0), "they are found by their order");
        for row in FUNCTIONS.iter() {
            assert!(COSTS.iter().any(|(name, _)| *name == row.name), "{} has none", row.name);
        }
        for (name, _) in COSTS {
            assert!(!super::super::named(name).is_empty(), "there is no {name}");
        }
    }

    #[test]
    fn a_text_costs_by_its_characters() {
        for character in ["a", "\u{6f22}"] {
            let [text, few, none] = [2000, 20, 0].map(|count| Value::string(character.repeat(count)));
            let cost = |name: &str, of: &[&Value]| super::of(name, &of.iter().copied().cloned().collect::<Vec<_>>());
            assert_eq!(cost("trim", &[&text]), 200);
            assert_eq!(cost("startsWith", &[&few, &text]), 200);
            assert_eq!(cost("contains", &[&text, &few]), 400);
            assert_eq!(cost("contains", &[&text, &none]), 0);
            assert_eq!(cost("matches", &[&text, &few]), 201 * 5);
            assert_eq!(cost("size", &[&few]), 0);
        }
        // Counted by bytes, all of which are read.
        for (character, cost) in [("a", 1 << 10), ("\u{6f22}", 3 << 10)] {
            let long = Value::string(character.repeat(1 << 20));
            assert_eq!(super::of("size", &[long]), cost);
        }
    }
}
