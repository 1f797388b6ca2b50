//! What an operator may turn off: admission plugins by their names; and who is asked whether something may be done.

use podwright::api::{Options, Request, User, Verb};
use podwright::server::{AuthorizationMode, Config, DisabledAdmission};
use serde_json::{Value, json};

use super::{Api, config_map, pod, request};

fn without(plugins: &[&str]) -> Config {
    let names: Vec<String> = plugins.iter().map(|name| (*name).to_owned()).collect();
    Config { disabled_admission: DisabledAdmission::of(&[], &names).unwrap(), ..Config::default() }
}

/// A quota that leaves no room, as its controller has counted.
async fn quota(api: &Api) {
    let hard = json!({"configmaps": "0"});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}});
    api.create("resourcequotas", quota).await.unwrap();
    let status = json!({"status": {"hard": hard, "used": hard}});
    api.sub(Verb::Patch, "resourcequotas", "q", "status", status).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_is_off_says_nothing() {
    let token = |pod: &podwright::api::Object| pod.0["spec"]["serviceAccountName"].clone();
    let api = Api::new().await;
    api.create(
        "serviceaccounts",
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
    )
    .await
    .unwrap();
    assert_eq!(token(&api.create("pods", pod("p")).await.unwrap()), "default");
    quota(&api).await;
    assert_eq!(api.create("configmaps", config_map("a")).await.unwrap_err().code, 403);

    let api = Api::with(without(&["ServiceAccount", "ResourceQuota", "TaintNodesByCondition"])).await;
    assert_eq!(token(&api.create("pods", pod("p")).await.unwrap()), Value::Null);
    quota(&api).await;
    api.create("configmaps", config_map("a")).await.expect("nobody counts");
    let gone = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "nowhere"}});
    assert_eq!(api.create("configmaps", gone).await.unwrap_err().code, 404, "the others are on");
}

async fn may(api: &Api, user: User) -> Result<(), String> {
    let asked = Request { user, ..request(Verb::List, "configmaps", "", None, Options::default()) };
    api.0.handle(asked).await.map(drop).map_err(|why| why.message)
}

#[tokio::test]
async fn authorizers_are_asked_in_the_order_that_is_given() {
    let modes = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        AuthorizationMode::parse_all(&names)
    };
    let with =
        async |names: &[&str]| Api::with(Config { authorization: modes(names).unwrap(), ..Config::default() }).await;
    let jane = || User::new("jane", ["system:authenticated"]);
    let root = || User::new("root", ["system:masters"]);
    let no = "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API group \"\" in the namespace \
              \"default\"";
    for (names, told) in [
        (&["Node", "RBAC"][..], Err(no.to_owned())),
        (&["RBAC", "AlwaysAllow"], Ok(())),
        (&["AlwaysAllow"], Ok(())),
        (&["AlwaysDeny"], Err(format!("{no}: Everything is forbidden."))),
        (&["AlwaysDeny", "AlwaysAllow"], Ok(())),
    ] {
        let api = with(names).await;
        assert_eq!(may(&api, jane()).await, told, "{names:?}");
        assert_eq!(may(&api, root()).await, Ok(()), "{names:?}: as upstream, whatever is asked of others");
    }
    for (names, why) in [
        (&["rbac"][..], "authorization-mode \"rbac\" is not a valid mode"),
        (&["Webhook"], "authorization-mode \"Webhook\" is not a valid mode"),
        (&["RBAC", "RBAC"], "authorization-mode [\"RBAC\", \"RBAC\"] has mode specified more than once"),
        (&[], "at least one authorization-mode must be passed"),
    ] {
        assert_eq!(modes(names).unwrap_err().to_string(), why);
    }
}

/// Who is asked for everything that a user may do says so too.
#[tokio::test]
async fn where_all_is_allowed_reviews_say_so() {
    let api = Api::with(Config { authorization: vec![AuthorizationMode::AlwaysAllow], ..Config::default() }).await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"}});
    let jane = User::new("jane", ["system:authenticated"]);
    let asked = request(Verb::Create, "selfsubjectrulesreviews", "", Some(review), Options::default());
    let told = api.0.handle(Request { user: jane, namespace: None, ..asked }).await.map(super::object_of).unwrap();
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    assert_eq!(told.0["status"]["resourceRules"], everything);
}
