//! Which grants a user lacks among rules to be granted to others.

use super::rule::{Rule, compact};
use super::rule_index::{Asked, Patience, RuleIndex, TooMuch};

/// The most parts that are checked individually, and their total bytes. Beyond that, each rule must be covered by one rule as a
/// whole.
const MOST_PARTS: usize = 8192;
const MOST_BYTES: usize = 4 << 20;
/// The most lookups of a word in a rule: a few tenths of a second.
const MOST_LOOKS: usize = 2_000_000;

/// The grants of `wanted` that `owned` does not cover, grouped by resource; an error if there is too much to compare.
pub fn missing<'r>(owned: impl IntoIterator<Item = &'r Rule>, wanted: &[Rule]) -> Result<Vec<Rule>, TooMuch> {
    let (owned, mut patience) = (RuleIndex::<&str>::from_iter(owned), Patience(MOST_LOOKS));
    let (mut left, mut bytes, mut parts, mut whole) = (MOST_PARTS, MOST_BYTES, Vec::new(), Vec::new());
    for rule in wanted {
        let rest = left.checked_sub(rule.size()).zip(bytes.checked_sub(rule.size().saturating_mul(rule.longest())));
        match rest {
            Some(rest) => {
                (left, bytes) = rest;
                for part in rule.parts() {
                    let covered = match asked(&part) {
                        Some(asked) => owned.allow(asked, &mut patience)?,
                        None => owned.cover(&part, &mut patience)?,
                    };
                    parts.extend((!covered).then_some(part));
                }
            }
            None if owned.cover(rule, &mut patience)? => {}
            None => whole.push(rule.clone()),
        }
    }
    let mut missing = compact(parts);
    missing.extend(whole);
    Ok(missing)
}

/// One of the `parts` of a rule, as a question; `None` if a list has several words, or none.
fn asked(part: &Rule) -> Option<Asked<'_>> {
    let verb = part.verbs.first().filter(|_| part.verbs.len() == 1)?;
    if let [path] = part.non_resource_urls.as_slice() {
        return part.resources.is_empty().then_some(Asked::Path { verb, path });
    }
    let (group, resource) = (part.api_groups.first()?, part.resources.first()?);
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let name = part.resource_names.first().map(String::as_str);
    Some(Asked::Resource { verb, group, resource, subresource, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &str, resources: &str, names: &str, verbs: &str) -> Rule {
        let split = |text: &str| text.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        let api_groups = groups.split(',').map(str::to_owned).collect();
        Rule {
            api_groups,
            resources: split(resources),
            resource_names: split(names),
            verbs: split(verbs),
            ..Rule::default()
        }
    }

    #[test]
    fn what_is_missing_is_told_by_resource() {
        let owned = [rule("", "pods", "", "get,list"), rule("apps", "*", "x", "get")];
        let wanted = [
            rule("", "pods,pods/log", "", "get,watch,delete"),
            rule("apps", "deployments", "x,y", "get"),
            rule("apps", "deployments", "", "get"),
        ];
        let told: Vec<String> = missing(&owned, &wanted).unwrap().iter().map(Rule::to_string).collect();
        assert_eq!(
            told,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["watch" "delete"]}"#,
                r#"{APIGroups:[""], Resources:["pods/log"], Verbs:["get" "watch" "delete"]}"#,
                r#"{APIGroups:["apps"], Resources:["deployments"], ResourceNames:["y"], Verbs:["get"]}"#,
                r#"{APIGroups:["apps"], Resources:["deployments"], Verbs:["get"]}"#,
            ]
        );
        assert!(missing(&[rule("*", "*", "", "*")], &wanted).unwrap().is_empty());
        assert!(missing(&[rule("", "*/scale", "", "get")], &[rule("", "pods/scale", "", "get")]).unwrap().is_empty());
        // Each part would contain the long word.
        let long = Rule { api_groups: vec!["x".repeat(1 << 20)], ..rule("", "a,b,c,d,e", "", "get") };
        assert_eq!(missing(&[], std::slice::from_ref(&long)).unwrap(), [long.clone()], "it is looked at as it is");
        assert!(missing(&[rule("*", "*", "", "*")], &[long]).unwrap().is_empty());
        // Upstream: a resource that ends with a slash matches nothing.
        for nothing in ["*/", "pods/"] {
            for wanted in ["*", "pods", "*/log"] {
                assert_eq!(missing(&[rule("*", nothing, "", "*")], &[rule("", wanted, "", "get")]).unwrap().len(), 1);
            }
        }
        let all_urls = Rule { non_resource_urls: vec!["*".into()], verbs: vec!["*".into()], ..Rule::default() };
        let some = Rule { non_resource_urls: vec!["/a*".into()], verbs: vec!["get".into()], ..Rule::default() };
        assert!(missing(std::slice::from_ref(&all_urls), std::slice::from_ref(&some)).unwrap().is_empty());
        assert_eq!(missing(&[some], &[all_urls]).unwrap().len(), 1);
    }

    /// As many rules as fit into several roles, none of which has both of the requested words.
    #[test]
    fn comparing_takes_no_longer_than_there_is_to_compare() {
        let owned: Vec<Rule> = (0..50_000)
            .map(|n| match n % 2 {
                0 => rule("", &format!("r{n}"), "", &format!("get,v{n}")),
                _ => rule("", &format!("pods,s{n}"), "", &format!("list,v{n}")),
            })
            .collect();
        let names: Vec<String> = (0..8_000).map(|n| format!("n{n}")).collect();
        let wanted = [rule("", "pods", &names.join(","), "get")];
        let begun = std::time::Instant::now();
        assert_eq!(missing(&owned, &wanted), Err(TooMuch));
        let own = [rule("", "r2,s1", "", "get,list"), rule("", "pods", "", "list"), rule("", "s1", "", "get")];
        assert_eq!(
            missing(&owned, &own).unwrap().iter().map(Rule::to_string).collect::<Vec<_>>(),
            [
                r#"{APIGroups:[""], Resources:["r2"], Verbs:["list"]}"#,
                r#"{APIGroups:[""], Resources:["s1"], Verbs:["get"]}"#,
            ]
        );
        // The same for rules with too many parts to check individually.
        let many = rule("", &(0..50_000).map(|n| format!("r{n}")).collect::<Vec<_>>().join(","), "", "get");
        assert_eq!(missing(&owned, &[many]).map(|missing| missing.len()), Ok(1));
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    }
}
