//! Who someone is: tokens and what they are bound to, the reviews, impersonation, certificates.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use podwright::api::{Env, Object, Options, Request, Response, Status, User, Verb};
use podwright::server::pki::{Authority, user_of};
use podwright::server::{Config, ISSUER, Impersonation, StaticTokens};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::{Api, bootstrap_token, object_of, pod, request};

impl Api {
    async fn account(&self, name: &str) -> Object {
        self.create(
            "serviceaccounts",
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}),
        )
        .await
        .unwrap()
    }

    async fn token(&self, account: &str, spec: Value) -> Result<String, Status> {
        let answer = self.sub(Verb::Create, "serviceaccounts", account, "token", json!({"spec": spec})).await?;
        Ok(object_of(answer).0["status"]["token"].as_str().unwrap().to_owned())
    }

    async fn review(&self, user: User, resource: &str, kind: &str, group: &str, spec: Value) -> Result<Value, Status> {
        let body = json!({"apiVersion": format!("{group}.k8s.io/v1"), "kind": kind, "spec": spec});
        let body = if spec.is_null() { json!({"apiVersion": body["apiVersion"], "kind": kind}) } else { body };
        let request = Request { user, ..request(Verb::Create, resource, "", Some(body), Options::default()) };
        self.0.handle(request).await.map(|answer| object_of(answer).0["status"].clone())
    }
}

fn reference(kind: &str, object: &Object) -> Value {
    json!({"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": object.name(), "uid": object.uid()}})
}

#[tokio::test]
async fn a_token_ends_with_what_it_is_bound_to() {
    let api = Api::new().await;
    let account = api.account("robot").await;
    let mut running = pod("p");
    running["spec"]["serviceAccountName"] = "robot".into();
    let running = api.create("pods", running).await.unwrap();
    let node =
        api.create("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).await.unwrap();
    let secret =
        api.create("secrets", json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})).await.unwrap();
    let now = Options { grace_period_seconds: Some(0), ..Options::default() };
    for (resource, kind, object) in
        [("pods", "Pod", &running), ("nodes", "Node", &node), ("secrets", "Secret", &secret)]
    {
        let token = api.token("robot", reference(kind, object)).await.unwrap();
        let user = api.0.verify_token(&token, ISSUER).await.unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:serviceaccount:default:robot", account.uid()));
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
        let mut other = reference(kind, object);
        other["boundObjectRef"]["uid"] = "another".into();
        assert_eq!(api.token("robot", other).await.unwrap_err().code, 409);
        api.delete(resource, object.name(), now.clone()).await.unwrap();
        assert_eq!(api.0.verify_token(&token, ISSUER).await.unwrap_err().code, 401, "{kind}");
        assert_eq!(api.token("robot", reference(kind, object)).await.unwrap_err().code, 404);
    }
    assert_eq!(
        api.token("robot", json!({"boundObjectRef": {"kind": "Service", "name": "x"}})).await.unwrap_err().code,
        400
    );
    let token = api.token("robot", json!({})).await.unwrap();
    assert!(api.0.verify_token(&token, ISSUER).await.is_ok());
    api.delete("serviceaccounts", "robot", now).await.unwrap();
    api.account("robot").await;
    assert!(api.0.verify_token(&token, ISSUER).await.is_err(), "an account of the same name is another one");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_for_its_audiences_and_its_time() {
    let start = "2026-01-01T00:00:00Z".parse().unwrap();
    let store = std::sync::Arc::new(podwright::store::Memory::new());
    let api = Api(podwright::server::Server::open(store, Env::simulated(start, 1), Config::default()).await.unwrap());
    api.account("robot").await;
    let token = api.token("robot", json!({"audiences": ["vault", "shop"], "expirationSeconds": 600})).await.unwrap();
    assert!(api.0.verify_token(&token, "vault").await.is_ok());
    assert!(api.0.verify_token(&token, ISSUER).await.is_err());
    let wanted = ["shop".to_owned(), "bank".to_owned()];
    assert_eq!(api.0.authenticate_token(&token, &wanted).await.unwrap().audiences, ["shop"]);
    tokio::time::advance(std::time::Duration::from_secs(599)).await;
    assert!(api.0.verify_token(&token, "vault").await.is_ok());
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    assert!(api.0.verify_token(&token, "vault").await.unwrap_err().message.contains("expired"));

    // Forged: another payload under the same signature, no signature, another algorithm.
    let parts: Vec<&str> = token.split('.').collect();
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    claims["exp"] = 4_000_000_000_u64.into();
    let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
    for forged in
        [format!("{}.{payload}.{}", parts[0], parts[2]), format!("{none}.{payload}."), format!("{none}.{payload}")]
    {
        assert_eq!(api.0.verify_token(&forged, "vault").await.unwrap_err().code, 401, "{forged}");
    }
}

#[tokio::test]
async fn others_can_verify_a_token_by_the_published_key() {
    let api = Api::new().await;
    api.account("robot").await;
    let token = api.token("robot", json!({"audiences": ["shop"]})).await.unwrap();
    let document = api.0.openid_configuration();
    assert_eq!(document["issuer"], ISSUER);
    assert!(document["jwks_uri"].as_str().unwrap().ends_with("/openid/v1/jwks"));
    let key: jsonwebtoken::jwk::Jwk = serde_json::from_value(api.0.openid_keys()["keys"][0].clone()).unwrap();
    let mut validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::ES256);
    validation.set_audience(&["shop"]);
    validation.set_issuer(&[ISSUER]);
    let decoded =
        jsonwebtoken::decode::<Value>(&token, &jsonwebtoken::DecodingKey::from_jwk(&key).unwrap(), &validation);
    let decoded = decoded.unwrap();
    assert_eq!(decoded.claims["sub"], "system:serviceaccount:default:robot");
    assert_eq!(decoded.header.kid, key.common.key_id);
}

#[tokio::test]
async fn fixed_and_bootstrap_tokens_are_recognized() {
    let file = "abc,ann,u1,\"people,devs\"\n\n\"d,e\",bob\n";
    let config = Config { tokens: StaticTokens::parse(file).unwrap(), ..Config::default() };
    let api = Api::with(config).await;
    let ann = api.0.authenticate_token("abc", &[]).await.unwrap().user;
    assert_eq!(ann, User { uid: "u1".into(), ..User::new("ann", ["people", "devs"]) });
    assert_eq!(api.0.authenticate_token("d,e", &[]).await.unwrap().user.name, "bob");
    assert!(api.0.authenticate_token("abc", &["elsewhere".into()]).await.is_err());
    for unknown in ["", "ab", "abcd", "x.y.z", "abcdef.0123456789abcdef"] {
        assert_eq!(api.0.authenticate_token(unknown, &[]).await.unwrap_err().code, 401, "{unknown}");
    }
    assert!(StaticTokens::parse("abc").is_err());
    assert!(StaticTokens::parse("a,b\na,c").is_err());

    let cases = [
        ("aaaaaa", json!({"auth-extra-groups": "system:bootstrappers:workers"}), true),
        ("bbbbbb", json!({"usage-bootstrap-authentication": "false"}), false),
        ("cccccc", json!({"expiration": "2020-01-01T00:00:00Z"}), false),
        ("dddddd", json!({"expiration": "2999-01-01T00:00:00Z"}), true),
        ("eeeeee", json!({"auth-extra-groups": "system:masters"}), false),
        ("ffffff", json!({"token-secret": "another"}), false),
    ];
    for (id, more, good) in cases {
        api.create("secrets", bootstrap_token(id, more)).await.unwrap();
        let user = api.0.authenticate_token(&format!("{id}.0123456789abcdef"), &[]).await.map(|it| it.user);
        assert_eq!(user.is_ok(), good, "{id}: {user:?}");
        assert!(user.is_err() || user.unwrap().name == format!("system:bootstrap:{id}"));
    }
    let user = api.0.authenticate_token("aaaaaa.0123456789abcdef", &[]).await.unwrap().user;
    assert_eq!(user.groups, ["system:bootstrappers", "system:bootstrappers:workers"]);
}

#[tokio::test]
async fn reviews_answer_who_and_what() {
    let api = Api::new().await;
    api.account("robot").await;
    let token = api.token("robot", json!({})).await.unwrap();
    let admin = || User::system("test");
    let (authentication, authorization) = ("authentication", "authorization");

    let told =
        api.review(admin(), "tokenreviews", "TokenReview", authentication, json!({"token": token})).await.unwrap();
    assert_eq!((&told["authenticated"], &told["audiences"]), (&json!(true), &json!([ISSUER])));
    assert_eq!(told["user"]["username"], "system:serviceaccount:default:robot");
    assert_eq!(told["user"]["groups"][1], "system:serviceaccounts:default");
    let told = api.review(admin(), "tokenreviews", "TokenReview", authentication, json!({"token": "x"})).await.unwrap();
    assert!(told["authenticated"].is_null() && !told["error"].as_str().unwrap().is_empty(), "{told}");

    let robot = api.0.verify_token(&token, ISSUER).await.unwrap();
    let told = api
        .review(robot.clone(), "selfsubjectreviews", "SelfSubjectReview", authentication, Value::Null)
        .await
        .unwrap();
    assert_eq!(told["userInfo"]["username"], robot.name);
    assert!(
        told["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0]
            .as_str()
            .unwrap()
            .starts_with("JTI=")
    );

    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
        "roleRef": {"kind": "ClusterRole", "name": "view"},
    });
    api.create("rolebindings", binding).await.unwrap();
    let access = |verb: &str, resource: &str| json!({"resourceAttributes": {"verb": verb, "resource": resource, "namespace": "default"}});
    let own = "selfsubjectaccessreviews";
    for (verb, resource, yes) in [("get", "pods", true), ("get", "secrets", false), ("delete", "pods", false)] {
        let told = api
            .review(robot.clone(), own, "SelfSubjectAccessReview", authorization, access(verb, resource))
            .await
            .unwrap();
        assert_eq!(told["allowed"], yes, "{verb} {resource}");
    }
    let refused =
        api.review(robot.clone(), "subjectaccessreviews", "SubjectAccessReview", authorization, access("get", "pods"));
    assert_eq!(refused.await.unwrap_err().code, 403, "others' rights are not for everyone");
    let mut both = access("get", "pods");
    both["nonResourceAttributes"] = json!({"path": "/x", "verb": "get"});
    for spec in [json!({}), both] {
        let refused = api.review(admin(), own, "SelfSubjectAccessReview", authorization, spec).await.unwrap_err();
        assert_eq!(refused.code, 422, "{refused}");
    }
    let mut local = access("get", "pods");
    local["user"] = robot.name.as_str().into();
    let kind = "LocalSubjectAccessReview";
    let told = api.review(admin(), "localsubjectaccessreviews", kind, authorization, local.clone()).await.unwrap();
    assert_eq!(told["allowed"], true);
    local["resourceAttributes"]["namespace"] = "other".into();
    assert_eq!(
        api.review(admin(), "localsubjectaccessreviews", kind, authorization, local).await.unwrap_err().code,
        400
    );

    let rules = json!({"namespace": "default"});
    let told =
        api.review(robot, "selfsubjectrulesreviews", "SelfSubjectRulesReview", authorization, rules).await.unwrap();
    let resources: Vec<String> = told["resourceRules"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert!(resources.iter().any(|rule| rule.contains("deployments/scale")), "{resources:?}");
    assert!(
        told["nonResourceRules"]
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| rule["nonResourceURLs"].to_string().contains("/healthz"))
    );
    assert_eq!(told["incomplete"], false);
    assert_eq!(api.get("selfsubjectreviews", "x").await.unwrap_err().code, 405);
}

#[tokio::test]
async fn who_may_impersonates() {
    let api = Api::new().await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "actor"},
        "rules": [
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["ann"]},
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["groups"], "resourceNames": ["devs"]},
            {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["userextras/a.b/c", "uids"]},
        ],
    });
    api.create("clusterroles", role).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "actor"},
        "subjects": [{"kind": "User", "name": "actor"}], "roleRef": {"kind": "ClusterRole", "name": "actor"},
    });
    api.create("clusterrolebindings", binding).await.unwrap();
    let ask = |user: User, headers: &[(&str, &str)]| {
        let mut asked = Impersonation::default();
        headers.iter().for_each(|(name, value)| asked.add(name, value));
        let server = api.0.clone();
        async move { server.impersonate(user, &asked).await }
    };
    let actor = || User::new("actor", ["system:authenticated"]);
    assert_eq!(ask(actor(), &[("accept", "x")]).await.unwrap(), actor());
    let headers = [
        ("Impersonate-User", "ann"),
        ("Impersonate-Group", "devs"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Extra-a.b%2Fc", "v"),
    ];
    let ann = ask(actor(), &headers).await.unwrap();
    assert_eq!((ann.name.as_str(), ann.uid.as_str()), ("ann", "7"));
    assert_eq!(ann.groups, ["devs", "system:authenticated"]);
    assert_eq!(ann.extra["a.b/c"], ["v"]);
    let refused = ask(actor(), &[("Impersonate-User", "bob")]).await.unwrap_err();
    assert_eq!(
        refused.message,
        r#"users "bob" is forbidden: User "actor" cannot impersonate resource "users" in API group "" at the cluster scope"#
    );
    let masters = [("Impersonate-User", "ann"), ("Impersonate-Group", "system:masters")];
    assert_eq!(ask(actor(), &masters).await.unwrap_err().code, 403);
    assert_eq!(ask(actor(), &[("Impersonate-Group", "devs")]).await.unwrap_err().code, 400);
    let robot = ask(User::system("admin"), &[("Impersonate-User", "system:serviceaccount:a:b")]).await.unwrap();
    assert_eq!(robot.groups, ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]);
    let nobody = ask(User::system("admin"), &[("Impersonate-User", "system:anonymous")]).await.unwrap();
    assert_eq!(nobody.groups, ["system:unauthenticated"]);
    // No ServiceAccount has such a name: it is a user's, and being him is another right.
    for name in ["system:serviceaccount:a:b:c", "system:serviceaccount:a:", "system:serviceaccount::b"] {
        let other = ask(User::system("admin"), &[("Impersonate-User", name)]).await.unwrap();
        assert_eq!(other.groups, ["system:authenticated"], "{name}");
    }
    // Limits count who does the work: not the names that he gives himself.
    assert_eq!((ann.counted_as(), robot.counted_as()), ("actor", "system:serviceaccount:a"));
    let account = |name: &str| User::new(name, ["system:serviceaccounts"]).counted_as().to_owned();
    assert_eq!(account("system:serviceaccount:a:one"), account("system:serviceaccount:a:two"));
    assert_ne!(account("system:serviceaccount:a:one"), account("system:serviceaccount:b:one"));
    assert_ne!(account("system:serviceaccount:kube-system:one"), account("system:serviceaccount:kube-system:two"));
}

/// A certificate signing request for a subject, in base64 of PEM.
fn csr(name: &str, group: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, group);
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    STANDARD.encode(request.pem().unwrap())
}

async fn as_user(api: &Api, user: &User, verb: Verb, name: &str, sub: &str, body: Value) -> Result<Response, Status> {
    let subresource = Some(sub.to_owned()).filter(|sub| !sub.is_empty());
    let body = Some(body).filter(|body| !body.is_null());
    let request = request(verb, "certificatesigningrequests", name, body, Options::default());
    api.0.handle(Request { user: user.clone(), subresource, ..request }).await
}

async fn settled(api: &Api, name: &str, done: impl Fn(&Object) -> bool) -> Object {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let csr = api.get("certificatesigningrequests", name).await.unwrap();
        if done(&csr) {
            return csr;
        }
        assert!(tokio::time::Instant::now() < deadline, "{}", csr.0);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_joining_node_gets_its_certificate_by_a_bootstrap_token() {
    let authority = Authority::generate(Env::system().now()).unwrap();
    let api = Api::with(Config { authority: Some(authority), ..Config::default() }).await;
    let request = |name: &str, request: &str, signer: &str| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {
                "request": request, "signerName": signer, "expirationSeconds": 3600,
                "usages": ["client auth", "digital signature"], "username": "someone else",
            },
        })
    };
    let node = "kubernetes.io/kube-apiserver-client-kubelet";
    api.bootstrap_token("abcdef").await;
    let joining = User::new("system:bootstrap:abcdef", ["system:bootstrappers", "system:authenticated"]);
    let issued = |csr: &Object| csr.at("status.certificate").is_some();
    let asked = csr("system:node:n1", "system:nodes");
    as_user(&api, &joining, Verb::Create, "", "", request("join", &asked, node)).await.unwrap();
    let done = settled(&api, "join", issued).await;
    assert_eq!(done.0["spec"]["username"], "system:bootstrap:abcdef");
    let pem = STANDARD.decode(done.0["status"]["certificate"].as_str().unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_slice(&pem).unwrap();
    assert_eq!(user_of(&certificate).unwrap(), User::new("system:node:n1", ["system:nodes"]));
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    let ends = parsed.validity().not_after.timestamp() - Env::system().now().as_second();
    assert!((3500..=3600).contains(&ends), "{ends}");

    // It renews its own by itself, not another's.
    api.create("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).await.unwrap();
    let itself = User::new("system:node:n1", ["system:nodes", "system:authenticated"]);
    as_user(&api, &itself, Verb::Create, "", "", request("renew", &asked, node)).await.unwrap();
    settled(&api, "renew", issued).await;
    let other = csr("system:node:n2", "system:nodes");
    as_user(&api, &itself, Verb::Create, "", "", request("steal", &other, node)).await.unwrap();

    // A person's needs someone who approves.
    let client = "kubernetes.io/kube-apiserver-client";
    as_user(&api, &joining, Verb::Create, "", "", request("ann", &csr("ann", "people"), client)).await.unwrap();
    let approve = |object: &Object| {
        let mut object = object.clone();
        object.0["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "ok"}]});
        object.0
    };
    let pending = api.get("certificatesigningrequests", "ann").await.unwrap();
    let refused = as_user(&api, &joining, Verb::Update, "ann", "approval", approve(&pending)).await.unwrap_err();
    assert_eq!(refused.code, 403);
    as_user(&api, &User::system("admin"), Verb::Update, "ann", "approval", approve(&pending)).await.unwrap();
    settled(&api, "ann", issued).await;
    let refused =
        as_user(&api, &joining, Verb::Create, "", "", request("root", &csr("x", "system:masters"), client)).await;
    assert!(refused.unwrap_err().message.contains("system:masters group is not allowed"));
    let mixed = request("mixed", &csr("system:node:n1", "people"), node);
    as_user(&api, &joining, Verb::Create, "", "", mixed).await.unwrap();
    let pending = api.get("certificatesigningrequests", "mixed").await.unwrap();
    as_user(&api, &User::system("admin"), Verb::Update, "mixed", "approval", approve(&pending)).await.unwrap();
    let failed = settled(&api, "mixed", |csr| csr.0["status"]["conditions"][1]["type"] == "Failed").await;
    assert!(failed.at("status.certificate").is_none());
    let stolen = api.get("certificatesigningrequests", "steal").await.unwrap();
    assert!(stolen.at("status.conditions").is_none() && !issued(&stolen), "{}", stolen.0);
}

/// The one that is signed for would be one, and the one that is recognized another.
#[test]
fn a_certificate_is_asked_for_by_one_name() {
    let signing = |names: &[(DnType, &str)]| {
        let mut asked = CertificateParams::default();
        asked.distinguished_name = DistinguishedName::new();
        names.iter().for_each(|(of, name)| asked.distinguished_name.push(of.clone(), *name));
        let pem = asked.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        podwright::server::fuzz::certificate_request(&pem)
    };
    let again = DnType::CustomDnType(vec![2, 5, 4, 3]);
    assert_eq!(signing(&[(DnType::CommonName, "ann")]), Ok(()));
    let refused = signing(&[(DnType::CommonName, "ann"), (again, "root")]).unwrap_err();
    assert!(refused.contains("one common name"), "{refused}");
}

/// A subject's groups are asked of each binding that has many subjects: that has a bound, whoever asks.
#[tokio::test]
async fn a_review_of_too_many_groups_is_refused() {
    let api = Api::new().await;
    let rbac = "rbac.authorization.k8s.io";
    let many: Vec<Value> =
        (0..65).map(|n| json!({"apiGroup": rbac, "kind": "User", "name": format!("u{n}")})).collect();
    for n in 0..400 {
        let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("b{n}")}, "subjects": many,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "view"}});
        api.create("clusterrolebindings", binding).await.unwrap();
    }
    let review = async |groups: usize| {
        let groups: Vec<String> = (0..groups).map(|n| format!("g{n}")).collect();
        let spec = json!({"user": "ann", "groups": groups, "resourceAttributes": {"verb": "get", "resource": "pods"}});
        let admin = User::system("test");
        api.review(admin, "subjectaccessreviews", "SubjectAccessReview", "authorization", spec).await
    };
    assert_eq!(review(1_000).await.unwrap()["allowed"], false);
    let refused = review(10_000).await.unwrap_err();
    assert_eq!(refused.code, 400);
    assert!(refused.message.contains("a subject of 10000 groups cannot be asked about"), "{refused}");
    // So it is with who wants to be somebody of so many groups.
    let mut asked = Impersonation::default();
    asked.add("Impersonate-User", "ann");
    (0..10_000).for_each(|n| asked.add("Impersonate-Group", &format!("g{n}")));
    assert_eq!(api.0.impersonate(User::system("test"), &asked).await.unwrap_err().code, 400);
}

/// The same of a namespace, whose own bindings count only for who asks about it.
#[tokio::test]
async fn who_is_named_with_too_many_groups_is_refused_where_there_are_many_bindings() {
    let api = Api::new().await;
    let rbac = "rbac.authorization.k8s.io";
    let many: Vec<Value> =
        (0..65).map(|n| json!({"apiGroup": rbac, "kind": "User", "name": format!("u{n}")})).collect();
    for n in 0..400 {
        let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": format!("b{n}"), "namespace": "default"}, "subjects": many,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "view"}});
        api.create("rolebindings", binding).await.unwrap();
    }
    let groups = (0..10_000).map(|n| format!("g{n}")).chain(["system:authenticated".to_owned()]);
    let own = User::new("ann", groups);
    let named = User { impersonator: Some("bob".into()), ..own.clone() };
    let code = async |user: &User, namespace: &str| {
        let asked = request(Verb::List, "pods", "", None, Options::default());
        let asked = Request { name: None, namespace: Some(namespace.into()), user: user.clone(), ..asked };
        api.0.handle(asked).await.unwrap_err().code
    };
    assert_eq!((code(&named, "default").await, code(&named, "other").await), (400, 403));
    assert_eq!(code(&own, "default").await, 403, "nobody has chosen these groups for the occasion");
    let rules = json!({"namespace": "default"});
    let told = api.review(named, "selfsubjectrulesreviews", "SelfSubjectRulesReview", "authorization", rules).await;
    assert_eq!(told.unwrap_err().code, 400);
}
