//! Who asks, over HTTP: what `kubectl auth can-i`, `auth whoami` and `--as` send, and bearer tokens of roles' subjects.

use jiff::{SignedDuration, Timestamp};
use podwright::api::User;
use podwright::server::rest::authenticate::Peer;
use serde_json::{Value, json};

use super::{Rest, Told};

const JSON: (&str, &str) = ("content-type", "application/json");
const ACCESS: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const RULES: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
const WHO: &str = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";

fn can_i(verb: &str, resource: &str) -> Value {
    let attributes = json!({"namespace": "default", "verb": verb, "resource": resource});
    json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "metadata": {"creationTimestamp": null}, "spec": {"resourceAttributes": attributes}, "status": {"allowed": false},
    })
}

async fn ask(rest: &Rest, peer: &Peer, line: &str, headers: &[(&str, &str)], body: Value) -> Told {
    let headers: Vec<(&str, &str)> = headers.iter().copied().chain([JSON]).collect();
    rest.ask_as(peer, line, &headers, body.to_string()).await
}

#[tokio::test]
async fn the_questions_of_kubectl_auth_are_answered() {
    let rest = Rest::new().await;
    let ann = Peer { certificate: Some(User::new("ann", ["people"])), ..Peer::default() };
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    assert_eq!(rest.post(BINDINGS, binding).await.code, 201);
    for (verb, resource, yes) in [("list", "pods", true), ("list", "secrets", false), ("create", "pods", false)] {
        let told = ask(&rest, &ann, ACCESS, &[], can_i(verb, resource)).await;
        assert_eq!((told.code, &told.json()["status"]["allowed"]), (201, &json!(yes)), "{verb} {resource}");
    }
    assert_eq!(rest.ask_as(&ann, "GET /api/v1/namespaces/default/pods", &[], "").await.code, 200);
    assert_eq!(rest.ask_as(&ann, "GET /api/v1/namespaces/default/secrets", &[], "").await.code, 403);
    assert_eq!(rest.ask_as(&ann, "GET /api/v1/namespaces/kube-system/pods", &[], "").await.code, 403);
    assert_eq!(rest.ask_as(&ann, "GET /api/v1/namespaces/default", &[], "").await.code, 200);

    let rules = json!({"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "spec": {"namespace": "default"}});
    let told = ask(&rest, &ann, RULES, &[], rules).await.json();
    assert!(told["status"]["resourceRules"].to_string().contains("deployments/scale"), "{told}");

    let who = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "status": {"userInfo": {}}});
    let told = ask(&rest, &ann, WHO, &[], who.clone()).await.json();
    assert_eq!(told["status"]["userInfo"], json!({"username": "ann", "groups": ["people", "system:authenticated"]}));
    // A connection, or a TLS session that is resumed, may last longer than its certificate.
    let (past, future) =
        (Timestamp::now() - SignedDuration::from_secs(1), Timestamp::now() + SignedDuration::from_hours(1));
    for (until, code) in [(past, 401), (future, 201)] {
        let ann = Peer { until: Some(until), ..ann.clone() };
        assert_eq!(ask(&rest, &ann, WHO, &[], who.clone()).await.code, code, "{until}");
    }
    let nobody = Peer::default();
    assert_eq!(ask(&rest, &nobody, WHO, &[], who.clone()).await.code, 403);

    // --as
    let root = Peer { root: true, certificate: None, until: None };
    let bob = [("impersonate-user", "bob"), ("impersonate-group", "people"), ("impersonate-group", "devs")];
    let told = ask(&rest, &root, WHO, &bob, who.clone()).await.json();
    assert_eq!(told["status"]["userInfo"]["groups"], json!(["people", "devs", "system:authenticated"]));
    assert_eq!(ask(&rest, &root, ACCESS, &bob, can_i("list", "pods")).await.json()["status"]["allowed"], true);
    let refused = ask(&rest, &ann, WHO, &bob, who).await;
    assert_eq!(refused.code, 403);
    assert!(refused.text().contains("cannot impersonate resource"), "{}", refused.text());
}

#[tokio::test]
async fn a_serviceaccount_does_what_its_role_says_and_its_key_is_published() {
    let rest = Rest::new().await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    rest.post("/api/v1/namespaces/default/serviceaccounts", account).await;
    let asked =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
    let token = rest.post("/api/v1/namespaces/default/serviceaccounts/robot/token", asked).await;
    assert_eq!(token.code, 201);
    let bearer = format!("Bearer {}", token.json()["status"]["token"].as_str().unwrap());
    let (nobody, headers) = (Peer::default(), [("authorization", bearer.as_str())]);
    let pods = "GET /api/v1/namespaces/default/pods";
    assert_eq!(rest.ask_as(&nobody, pods, &headers, "").await.code, 403);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "robot"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
    });
    rest.post(BINDINGS, binding).await;
    assert_eq!(rest.ask_as(&nobody, pods, &headers, "").await.code, 200);
    let document = rest.ask_as(&nobody, "GET /.well-known/openid-configuration", &headers, "").await;
    assert_eq!((document.code, &document.json()["id_token_signing_alg_values_supported"]), (200, &json!(["ES256"])));
    let keys = rest.ask_as(&nobody, "GET /openid/v1/jwks", &headers, "").await;
    assert_eq!((keys.code, keys.header("content-type")), (200, "application/jwk-set+json"));
    assert_eq!(keys.json()["keys"][0]["kty"], "EC");
    assert_eq!(rest.ask_as(&nobody, "GET /openid/v1/jwks", &[], "").await.code, 403);
}

/// What a watch was opened with ends: so does the watch.
#[tokio::test]
async fn a_watch_ends_with_the_account_whose_token_opened_it() {
    let limits = podwright::server::Limits { ask_again: std::time::Duration::from_millis(50), ..Default::default() };
    let config = podwright::server::Config { limits, ..Default::default() };
    let api = super::super::Api::with(config).await;
    let rest = Rest { face: podwright::server::rest::Face::new(api.0.clone()), api };
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    rest.post("/api/v1/namespaces/default/serviceaccounts", account).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "robot"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]});
    rest.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding).await;
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = rest.post("/api/v1/namespaces/default/serviceaccounts/robot/token", asked).await;
    let bearer = format!("Bearer {}", token.json()["status"]["token"].as_str().unwrap());
    let nobody = Peer::default();
    let shown = [("authorization", bearer.as_str())];
    let watch = rest.ask_as(&nobody, "GET /api/v1/namespaces/default/configmaps?watch=true", &shown, "");
    tokio::pin!(watch);
    let patience = std::time::Duration::from_millis(400);
    assert!(tokio::time::timeout(patience, &mut watch).await.is_err(), "it goes on while the account is there");
    rest.ask("DELETE /api/v1/namespaces/default/serviceaccounts/robot", &[], "").await;
    let ended = tokio::time::timeout(std::time::Duration::from_secs(10), watch).await.unwrap();
    assert_eq!(ended.code, 200);
}
