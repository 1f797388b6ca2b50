//! `inspect policy NAME`: the NetworkPolicies that select a Pod, and what the kernel of its node does by them.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::Value;

use crate::{Session, error::Failure, page::Page};
use podwright_api::selector::LabelSelector;
use podwright_api::{Object, Options};

/// The words for the Pod, if they ask for its policies: `policy NAME`, `policy/NAME`.
pub fn pod_of(words: &[String]) -> Option<Vec<String>> {
    let is_it = |word: &str| matches!(word, "policy" | "policies" | "networkpolicy" | "networkpolicies" | "netpol");
    match words {
        [of, name] if is_it(of) => Some(vec![name.clone()]),
        [one] => {
            let name = one.split_once('/').filter(|(of, _)| is_it(of))?.1;
            Some(vec![name.to_owned()])
        }
        _ => None,
    }
}

/// The policies that select a Pod, each with the directions that it is about.
///
/// # Errors
///
/// They cannot be listed.
pub async fn selecting(session: &Session, pod: &Object) -> Result<Vec<(String, String)>, Failure> {
    let all = session.client.list::<NetworkPolicy>(pod.namespace(), Options::default()).await?.items;
    let selects = |policy: &NetworkPolicy| {
        let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref());
        selector.is_none_or(|selector| LabelSelector::of(selector).is_some_and(|it| it.matches(|key| pod.label(key))))
    };
    let row = |policy: NetworkPolicy| {
        let types = policy.spec.and_then(|spec| spec.policy_types).unwrap_or_default();
        (policy.metadata.name.unwrap_or_default(), types.join(", "))
    };
    Ok(all.into_iter().filter(selects).map(row).collect())
}

pub fn page(found: &Value, selecting: &[(String, String)]) -> Page {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut page = Page::default();
    page.line(0, format!("Pod:\t{}/{}", word(&found["pod"]["namespace"]), word(&found["pod"]["name"])));
    page.line(0, format!("Policies that select it:{}", if selecting.is_empty() { "\t<none>" } else { "" }));
    selecting.iter().for_each(|(name, types)| page.line(1, format!("{name}\t{types}")));
    for address in list(&found["addresses"]) {
        for direction in ["Ingress", "Egress"] {
            let is_it = |it: &&Value| it["address"] == *address && it["direction"] == direction;
            let judged = list(&found["judged"]).iter().find(is_it);
            verdict(&mut page, &format!("{direction} of {}", word(address)), judged);
        }
    }
    page
}

fn verdict(page: &mut Page, title: &str, judged: Option<&Value>) {
    let Some(judged) = judged else { return page.line(0, format!("{title}:\teverything passes")) };
    let chains = list(&judged["chains"]);
    page.line(0, format!("{title}:{}", if chains.is_empty() { "\tnothing passes" } else { "" }));
    for chain in chains {
        page.line(1, format!("chain {}:", chain["name"].as_str().unwrap_or_default()));
        list(&chain["rules"]).iter().filter_map(Value::as_str).for_each(|rule| page.line(2, rule));
    }
    for (set, elements) in judged["sets"].as_object().into_iter().flatten() {
        page.line(1, format!("set {set}:\telements: {elements}"));
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pods_policies_are_named_by_a_word_before_it() {
        let of = |words: &[&str]| pod_of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["policy", "web"]), Some(vec!["web".to_owned()]));
        assert_eq!(of(&["netpol/web"]), Some(vec!["web".to_owned()]));
        assert_eq!((of(&["pod", "policy"]), of(&["policy"]), of(&["pod/web"])), (None, None, None));
    }

    #[test]
    fn what_passes_is_said_for_each_address_and_direction() {
        let found = json!({
            "pod": {"namespace": "a", "name": "web"}, "addresses": ["10.1.0.1"],
            "judged": [{
                "address": "10.1.0.1", "direction": "Ingress", "sets": {"group-3": 2},
                "chains": [{"name": "policies-1", "rules": ["jump policy-2", "goto forbid"]}],
            }],
        });
        let text = page(&found, &[("friends".to_owned(), "Ingress".to_owned())]).to_string();
        let expected = "Pod:  a/web\nPolicies that select it:\n  friends  Ingress\nIngress of 10.1.0.1:\n  chain policies-1:\n    \
                        jump policy-2\n    goto forbid\n  set group-3:       elements: 2\nEgress of 10.1.0.1:  everything passes\n";
        assert_eq!(text, expected);
    }
}
