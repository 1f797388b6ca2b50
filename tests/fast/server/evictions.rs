//! Evictions: what disruption budgets allow, count down and refuse.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::future::BoxFuture;
use podwright::api::request::PatchType;
use podwright::api::{Env, Object, Options, Request, Status, Verb};
use podwright::server::{Config, Server};
use podwright::store::{Error, Memory, Outcome, Store, Txn, Write};
use serde_json::{Value, json};

use super::{Api, pod, request};
use crate::twisted::{Twist, Twisted};

async fn evict(api: &Api, name: &str, options: Value) -> Result<(), Status> {
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options});
    api.sub(Verb::Create, "pods", name, "eviction", eviction).await.map(drop)
}

async fn report(api: &Api, resource: &str, name: &str, status: Value) {
    api.sub(Verb::Patch, resource, name, "status", json!({"status": status})).await.unwrap();
}

/// A Pod on a node that runs, and is ready if it shall be.
async fn run(api: &Api, name: &str, ready: bool) {
    let mut made = pod(name);
    made["metadata"]["labels"] = json!({"app": "web"});
    made["spec"]["nodeName"] = "n1".into();
    api.create("pods", made).await.unwrap();
    let ready = if ready { "True" } else { "False" };
    report(api, "pods", name, json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]})).await;
}

/// A budget as its controller has counted it.
async fn budget(api: &Api, name: &str, spec: Value, counts: [i64; 3]) {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    let budget =
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec});
    api.create("poddisruptionbudgets.policy", budget).await.unwrap();
    let [healthy, desired, allowed] = counts;
    let (is, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    report(
        api,
        "poddisruptionbudgets.policy",
        name,
        json!({
            "currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": allowed, "expectedPods": 3,
            "observedGeneration": 1, "conditions": [{"type": "DisruptionAllowed", "status": is, "reason": reason,
                "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"}],
        }),
    )
    .await;
}

async fn status(api: &Api) -> Value {
    api.get("poddisruptionbudgets.policy", "b").await.unwrap().0["status"].clone()
}

fn refusal(outcome: Result<(), Status>) -> (u16, String, String) {
    let status = outcome.expect_err("a refusal");
    let cause = status.details.as_ref().and_then(|details| details.causes.first());
    assert!(cause.is_none_or(|cause| cause.reason == "DisruptionBudget"), "{status:?}");
    (status.code, status.message.clone(), cause.map(|cause| cause.message.clone()).unwrap_or_default())
}

const VIOLATED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

#[tokio::test]
async fn an_eviction_takes_what_its_budget_allows() {
    let api = Api::new().await;
    run(&api, "a", true).await;
    run(&api, "b", true).await;
    budget(&api, "b", json!({"minAvailable": 1}), [2, 1, 1]).await;
    // Only tried, twice.
    for _ in 0..2 {
        evict(&api, "a", json!({"dryRun": ["All"]})).await.unwrap();
    }
    assert_eq!(status(&api).await["disruptionsAllowed"], 1);
    assert!(!api.get("pods", "a").await.unwrap().is_terminating());

    // What its deletion would refuse costs nothing.
    let refused = evict(&api, "a", json!({"propagationPolicy": "Never"})).await.unwrap_err();
    assert_eq!((refused.code, status(&api).await["disruptionsAllowed"].as_i64()), (400, Some(1)), "{refused:?}");
    assert!(!api.get("pods", "a").await.unwrap().0["status"].to_string().contains("DisruptionTarget"));

    evict(&api, "a", json!({"gracePeriodSeconds": 7})).await.unwrap();
    let gone = api.get("pods", "a").await.unwrap();
    assert_eq!(gone.0["metadata"]["deletionGracePeriodSeconds"], 7);
    let target = gone.0["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "DisruptionTarget");
    let target = target.expect("a condition");
    assert_eq!(
        (target["status"].as_str(), target["reason"].as_str(), target["message"].as_str()),
        (Some("True"), Some("EvictionByEvictionAPI"), Some("Eviction API: evicting"))
    );
    let after = status(&api).await;
    assert_eq!(after["disruptionsAllowed"], 0);
    assert!(after["disruptedPods"]["a"].as_str().is_some_and(|at| at.ends_with('Z')), "{after}");
    let condition = &after["conditions"][0];
    assert_eq!((condition["status"].as_str(), condition["reason"].as_str()), (Some("False"), Some("InsufficientPods")));
    assert_ne!(condition["lastTransitionTime"], "2020-01-01T00:00:00Z");

    let cause = "The disruption budget b needs 1 healthy pods and has 2 currently";
    assert_eq!(refusal(evict(&api, "b", json!({})).await), (429, VIOLATED.into(), cause.into()));
    assert_eq!(refusal(evict(&api, "b", json!({"dryRun": ["All"]})).await).0, 429);
    let kept = api.get("pods", "b").await.unwrap();
    assert!(!kept.is_terminating() && !kept.0["status"].to_string().contains("DisruptionTarget"), "{kept:?}");
    // One that is going already goes on, whatever the budget says.
    evict(&api, "a", json!({"gracePeriodSeconds": 0})).await.unwrap();
    assert!(api.get("pods", "a").await.unwrap_err().is_not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_evictions_at_once_as_many_get_through_as_are_allowed() {
    let api = Api::new().await;
    let names: Vec<String> = (0..12).map(|n| format!("p{n}")).collect();
    for name in &names {
        run(&api, name, true).await;
    }
    budget(&api, "b", json!({"minAvailable": 7}), [12, 7, 5]).await;
    let outcomes = futures::future::join_all(names.iter().map(|name| evict(&api, name, json!({})))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 5, "{outcomes:?}");
    let after = status(&api).await;
    assert_eq!((after["disruptionsAllowed"].clone(), after["disruptedPods"].as_object().unwrap().len()), (json!(0), 5));
}

#[tokio::test]
async fn a_budget_that_is_not_counted_yet_allows_nothing() {
    let api = Api::new().await;
    run(&api, "a", true).await;
    budget(&api, "b", json!({"minAvailable": 1}), [2, 1, 1]).await;
    api.patch("poddisruptionbudgets.policy", "b", json!({"spec": {"minAvailable": 2}})).await.unwrap();
    let refused = evict(&api, "a", json!({})).await;
    assert_eq!(refused.as_ref().unwrap_err().details.as_ref().unwrap().retry_after_seconds, Some(10));
    let cause = "The disruption budget b is still being processed by the server.";
    assert_eq!(refusal(refused), (429, VIOLATED.into(), cause.into()));
    report(&api, "poddisruptionbudgets.policy", "b", json!({
        "disruptionsAllowed": 0, "observedGeneration": 2, "conditions": [{"type": "DisruptionAllowed", "status": "False",
            "reason": "SyncFailed", "message": "no idea", "lastTransitionTime": "2020-01-01T00:00:00Z"}],
    })).await;
    let cause = "The disruption budget b does not allow evicting pods currently because it failed sync: no idea";
    assert_eq!(refusal(evict(&api, "a", json!({})).await).2, cause);
}

#[tokio::test]
async fn two_budgets_are_one_too_many() {
    let api = Api::new().await;
    run(&api, "a", true).await;
    budget(&api, "b", json!({"minAvailable": 0}), [1, 0, 1]).await;
    budget(&api, "c", json!({"minAvailable": 0}), [1, 0, 1]).await;
    let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(refusal(evict(&api, "a", json!({})).await), (500, why.into(), String::new()));
}

#[tokio::test]
async fn who_is_not_healthy_goes_by_policy() {
    // The policy, the counts, whether an unready Pod goes; it never costs anything.
    for (policy, counts, goes) in [
        (Value::Null, [1, 1, 0], true),
        (json!("IfHealthyBudget"), [1, 1, 0], true),
        (json!("IfHealthyBudget"), [0, 1, 0], false),
        (Value::Null, [0, 0, 0], false),
        (json!("AlwaysAllow"), [0, 1, 0], true),
    ] {
        let api = Api::new().await;
        run(&api, "sick", false).await;
        budget(&api, "b", json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": policy}), counts).await;
        let outcome = evict(&api, "sick", json!({})).await;
        assert_eq!(outcome.is_ok(), goes, "{policy} {counts:?}: {outcome:?}");
        assert_eq!(status(&api).await["disruptedPods"], Value::Null);
    }
    // A healthy one is protected whatever the policy.
    let api = Api::new().await;
    run(&api, "well", true).await;
    budget(&api, "b", json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}), [1, 1, 0]).await;
    assert_eq!(refusal(evict(&api, "well", json!({})).await).0, 429);
}

#[tokio::test]
async fn what_has_not_begun_or_has_ended_goes_at_once() {
    for phase in ["Pending", "Succeeded", "Failed"] {
        let api = Api::new().await;
        run(&api, "p", true).await;
        report(&api, "pods", "p", json!({"phase": phase})).await;
        budget(&api, "b", json!({"minAvailable": 1}), [0, 1, 0]).await;
        evict(&api, "p", json!({"gracePeriodSeconds": 0})).await.unwrap_or_else(|why| panic!("{phase}: {why}"));
        assert!(api.get("pods", "p").await.unwrap_err().is_not_found());
    }
}

#[tokio::test]
async fn an_eviction_keeps_to_its_preconditions() {
    let api = Api::new().await;
    run(&api, "p", true).await;
    budget(&api, "b", json!({"minAvailable": 0}), [1, 0, 1]).await;
    for wrong in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        assert!(evict(&api, "p", json!({"preconditions": wrong})).await.unwrap_err().is_conflict());
    }
    assert_eq!(status(&api).await["disruptionsAllowed"], 1, "a refused eviction costs nothing");
    let now: Object = api.get("pods", "p").await.unwrap();
    let right = json!({"uid": now.uid(), "resourceVersion": now.resource_version()});
    evict(&api, "p", json!({"preconditions": right})).await.unwrap();
    assert!(api.get("pods", "p").await.unwrap().is_terminating());
    assert!(evict(&api, "none", json!({})).await.unwrap_err().is_not_found());
    let other = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "q"}});
    let refused = api.sub(Verb::Create, "pods", "p", "eviction", other).await.unwrap_err();
    assert_eq!(refused.message, "name in URL does not match name in Eviction object");
    assert!(api.ask(Verb::Get, "pods", "p", Options::default()).await.is_ok());
}

/// Something happens between an eviction's look at the Pod `p` and its deletion.
#[derive(Default)]
struct Between {
    meanwhile: Mutex<Option<BoxFuture<'static, ()>>>,
}

#[async_trait]
impl Twist for Between {
    async fn commit(&self, memory: &Memory, txn: Txn) -> Result<Outcome, Error> {
        let deletes =
            txn.writes.iter().any(|write| matches!(write, Write::Delete(key) if key.ends_with("/pods/default/p")));
        let meanwhile = if deletes { self.meanwhile.lock().unwrap().take() } else { None };
        if let Some(meanwhile) = meanwhile {
            meanwhile.await;
        }
        memory.commit(txn).await
    }
}

/// A Pod that has ended is judged; before it goes another one has its name, which a budget protects.
#[tokio::test]
async fn a_namesake_that_comes_meanwhile_is_judged_anew() {
    let store = Arc::new(Twisted::<Between>::default());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    run(&api, "p", true).await;
    report(&api, "pods", "p", json!({"phase": "Succeeded"})).await;
    let inside = Api(api.0.clone());
    let replace = async move {
        let at_once = Options { grace_period_seconds: Some(0), ..Options::default() };
        inside.ask(Verb::Delete, "pods", "p", at_once).await.unwrap();
        run(&inside, "p", true).await;
        budget(&inside, "b", json!({"minAvailable": 1}), [1, 1, 0]).await;
    };
    *store.meanwhile.lock().unwrap() = Some(Box::pin(replace));
    assert_eq!(refusal(evict(&api, "p", json!({"gracePeriodSeconds": 0})).await).0, 429);
    assert!(store.meanwhile.lock().unwrap().is_none(), "it has happened");
    let kept = api.get("pods", "p").await.unwrap();
    assert!(!kept.is_terminating() && kept.0["status"]["phase"] == "Running", "{kept:?}");
}

/// One user evicts, as a drain does: where there are a thousand budgets each of his evictions looks at all of them, and those
/// elsewhere go on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_with_many_budgets_stops_no_eviction_of_another() {
    let api = Arc::new(Api::new().await);
    let budgets = "poddisruptionbudgets.policy";
    api.create("namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "many"}}))
        .await
        .unwrap();
    let made = |name: &str, namespace: &str, spec: Value| {
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    };
    for n in 0..1000 {
        let selector = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": format!("a{n}")}}});
        api.create(budgets, made(&format!("b{n}"), "many", selector)).await.unwrap();
    }
    let ready = async |name: &str, namespace: &str| {
        let mut it = pod(name);
        it["metadata"]["namespace"] = namespace.into();
        it["spec"]["nodeName"] = "n1".into();
        api.create("pods", it).await.unwrap();
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let asked = request(Verb::Patch, "pods", name, Some(status), merge());
        let asked = Request { namespace: Some(namespace.into()), subresource: Some("status".into()), ..asked };
        api.0.handle(asked).await.unwrap();
    };
    for n in 0..40 {
        ready(&format!("m{n}"), "many").await;
    }
    ready("quiet", "default").await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let evicting = |name: String, namespace: &'static str| {
        let (api, done) = (api.clone(), done.clone());
        tokio::spawn(async move {
            let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
            let asked = request(Verb::Create, "pods", &name, Some(eviction), Options::default());
            let asked = Request { namespace: Some(namespace.into()), subresource: Some("eviction".into()), ..asked };
            api.0.handle(asked).await.unwrap();
            done.lock().unwrap().push(name);
        })
    };
    let mut all: Vec<_> = (0..40).map(|n| evicting(format!("m{n}"), "many")).collect();
    all.push(evicting("quiet".into(), "default"));
    for one in all {
        one.await.unwrap();
    }
    let place = done.lock().unwrap().iter().position(|name| name == "quiet").unwrap();
    assert!(place < 20, "it came {place}th of 41");
}

fn merge() -> Options {
    Options { patch_type: Some(PatchType::Merge), ..Options::default() }
}
