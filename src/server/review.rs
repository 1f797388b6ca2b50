//! The review APIs: questions about who a user is and what they may do, answered in the status of the submitted object.

use serde_json::{Value, json};

use super::admission::{self, operation::Operation};
use super::authorize::attributes::{Attributes, Decision};
use super::resolved_request::ResolvedRequest;
use super::{Server, get};
use podwright_api::{Object, Response, Status, User};

impl Server {
    /// Answers a review; nothing is stored.
    pub(super) async fn review(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let body = call.take_body()?;
        let validation = call.options.field_validation.unwrap_or_default();
        let (mut object, warnings) = call.kind.decode(body, validation)?;
        call.align_namespace(&mut object)?;
        admission::admit(self, &call, Operation::Create, &mut object).await?;
        let status = match call.kind.built_in() {
            "TokenReview" => self.review_token(&object.0["spec"]).await?,
            "SelfSubjectReview" => {
                object.set_meta("creationTimestamp", Value::from(self.timestamp()));
                json!({"userInfo": info(&call.user)?})
            }
            "SelfSubjectRulesReview" => {
                let namespace = object.0["spec"]["namespace"].as_str().unwrap_or("");
                self.authorizer.bound_named(&call.user, namespace)?;
                let visit = self.authorizer.weight_of_decision(&call.user, namespace);
                let weigh = |_| async { self.authorizer.weight_of_rules(&call.user, namespace) };
                let size = self.large.part(&call.user, visit, weigh).await?;
                let _place = self.large.enter_part(&call.user, size).await?;
                let work = async {
                    object.0["status"] = self.review_rules(&call, &object.0["spec"]).await?;
                    Ok(answered(&call, object, warnings))
                };
                return self.large.run(&call.user, size, work).await;
            }
            _ => self.review_access(&call, &object.0["spec"]).await?,
        };
        object.0["status"] = status;
        Ok(answered(&call, object, warnings))
    }

    async fn review_token(&self, spec: &Value) -> Result<Value, Status> {
        let token = spec["token"].as_str().unwrap_or("");
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        Ok(match self.authenticate_token(token, &strings(&spec["audiences"])).await {
            Ok(it) => json!({"authenticated": true, "user": info(&it.user)?, "audiences": it.audiences}),
            Err(why) if why.code == 401 => json!({"user": {}, "error": why.message}),
            Err(why) => return Err(why),
        })
    }

    /// SubjectAccessReview, and its variants for oneself and for one namespace.
    async fn review_access(&self, call: &ResolvedRequest, spec: &Value) -> Result<Value, Status> {
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let invalid = |field: &str, value: &Value, why: &str| {
            call.invalid("", vec![super::resolved_request::bad_value(field, value, why)])
        };
        if resource.is_object() && path.is_object() {
            let why = "cannot be specified in combination with resourceAttributes";
            return Err(invalid("spec.nonResourceAttributes", path, why));
        }
        if !resource.is_object() && !path.is_object() {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return Err(invalid("spec.resourceAttributes", resource, why));
        }
        if call.kind.built_in() == "LocalSubjectAccessReview" {
            if path.is_object() {
                return Err(invalid("spec.nonResourceAttributes", path, "disallowed on this kind of request"));
            }
            if resource["namespace"].as_str().unwrap_or("") != call.within() {
                let why = format!("spec.resourceAttributes.namespace must match namespace: {}", call.within());
                return Err(Status::bad_request(why));
            }
        }
        let subject = match call.kind.built_in() {
            "SelfSubjectAccessReview" => call.user.clone(),
            _ => subject_of(spec),
        };
        if subject.name.is_empty() && subject.groups.is_empty() {
            return Err(invalid("spec.user", &spec["user"], "at least one of user or group must be specified"));
        }
        let selector = field_selector(&resource["fieldSelector"]);
        let asked = asked(&subject, resource, path, &selector);
        self.authorizer.bound(&subject, asked.namespace)?;
        let size = self.authorizer.weight_of_decision(&subject, asked.namespace);
        Ok(match self.large.part(&call.user, size, |_| self.decide(&asked)).await?? {
            Decision::Allow => json!({"allowed": true}),
            Decision::NoOpinion(why) if why.is_empty() => json!({"allowed": false}),
            Decision::NoOpinion(why) => json!({"allowed": false, "reason": why}),
        })
    }

    async fn review_rules(&self, call: &ResolvedRequest, spec: &Value) -> Result<Value, Status> {
        let namespace = spec["namespace"].as_str().unwrap_or("");
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        self.cache.fresh().await?;
        let granted = self.authorizer.rules(&call.user, namespace);
        let (paths, resources): (Vec<_>, Vec<_>) = granted.rules().partition(|rule| !rule.non_resource_urls.is_empty());
        let mut status = json!({
            "resourceRules": resources, "nonResourceRules": paths, "incomplete": granted.incomplete,
        });
        if !granted.errors.is_empty() {
            status["evaluationError"] = granted.errors.join(", ").into();
        }
        Ok(status)
    }
}

/// A review with its status.
fn answered(call: &ResolvedRequest, mut object: Object, warnings: Vec<String>) -> Response {
    object.0["apiVersion"] = call.kind.api_version().into();
    object.0["kind"] = call.kind.kind.into();
    if object.0["metadata"].is_null() {
        object.0["metadata"] = json!({});
    }
    Response { warnings, ..get::object(object.to_vec().into(), true) }
}

/// A user as reviews represent it.
fn info(user: &User) -> Result<Value, Status> {
    serde_json::to_value(user).map_err(Status::internal)
}

fn subject_of(spec: &Value) -> User {
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: spec["user"].as_str().unwrap_or("").to_owned(),
        uid: spec["uid"].as_str().unwrap_or("").to_owned(),
        groups: strings(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.to_lowercase(), strings(values))).collect(),
        ..User::default()
    }
}

fn asked<'a>(user: &'a User, resource: &'a Value, path: &'a Value, selector: &'a str) -> Attributes<'a> {
    let text = |of: &'a Value, field: &str| of[field].as_str().unwrap_or("");
    if path.is_object() {
        return Attributes::of_path(user, text(path, "verb"), text(path, "path"));
    }
    Attributes {
        subresource: text(resource, "subresource"),
        namespace: text(resource, "namespace"),
        name: text(resource, "name"),
        field_selector: selector,
        ..Attributes::new(user, text(resource, "verb"), text(resource, "group"), text(resource, "resource"))
    }
}

/// The part of a `fieldSelector` that authorizers understand: equality with one value.
fn field_selector(given: &Value) -> String {
    if let Some(raw) = given["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let requirements = given["requirements"].as_array().into_iter().flatten();
    let equal =
        requirements.filter(|one| one["operator"] == "In").filter_map(|one| match strings(&one["values"]).as_slice() {
            [value] => Some(format!("{}={value}", one["key"].as_str()?)),
            _ => None,
        });
    equal.collect::<Vec<_>>().join(",")
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}
