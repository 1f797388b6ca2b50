//! What expressions see of a request: `object`, `request`, `variables`, `authorizer`, ...

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::admission::{operation::Operation, request, review::Review};
use crate::authorize::{
    Authorizer,
    attributes::{Attributes, Decision},
};
use crate::versions;
use podwright_api::cel::{Error, Host, SharedBudget, Value, Variables};
use podwright_api::policy::Policy;
use podwright_api::{Kind, Object, User};

/// The cost of an authorizer check.
const CHECK_COST: u64 = 350_000;

/// The values of one request, in the version that a rule matches.
#[derive(Clone, Debug)]
pub(in crate::admission) struct Seen(Vec<(&'static str, Value)>);

impl Seen {
    pub fn new(review: &Review<'_>, version: &'static Kind, object: &Object) -> Seen {
        let shown = |object: &Object| match request::is_whole(review) {
            true => Value::from_json(&versions::shown_as(version, object).0),
            false => Value::from_json(&object.0),
        };
        let (new, old) = match review.operation {
            Operation::Delete => (Value::Null, shown(object)),
            _ => (shown(object), review.old.map_or(Value::Null, shown)),
        };
        let is_namespace = review.call.kind.built_in() == "Namespace";
        let namespace = review.namespace_item().filter(|_| !is_namespace && !review.namespace().is_empty());
        let namespace = namespace.and_then(|item| Object::from_slice(&item.bytes).ok());
        let call = review.call;
        let resource = Resource {
            group: version.group.to_owned(),
            resource: version.plural.to_owned(),
            subresource: review.subresource().to_owned(),
            namespace: review.namespace().to_owned(),
            name: if call.name().is_empty() { object.name().to_owned() } else { call.name().to_owned() },
        };
        let asker = AuthorizerValue {
            authorizer: review.server.authorizer.clone(),
            user: Arc::new(call.user.clone()),
            about: About::Anything(resource),
        };
        Seen(vec![
            ("object", new),
            ("oldObject", old),
            ("request", Value::from_json(&request::describe(review, version, object))),
            ("namespaceObject", namespace.map_or(Value::Null, |namespace| Value::from_json(&namespace.0))),
            ("authorizer", Value::Host(Arc::new(asker))),
        ])
    }

    /// Adds the parameters and a policy's variables.
    pub fn with(&self, params: Value, policy: &Arc<Policy>, budget: &SharedBudget) -> Seen {
        let mut all = self.0.clone();
        all.push(("params", params));
        let (policy, budget) = (policy.clone(), budget.clone());
        let lazy = Lazy { policy, seen: Seen(all.clone()), known: Arc::default(), budget };
        all.push(("variables", Value::Host(Arc::new(lazy))));
        Seen(all)
    }
}

impl Variables for Seen {
    fn value(&self, name: &str) -> Option<Value> {
        self.0.as_slice().value(name)
    }
}

/// A policy's variables: each is computed on first use, and charged to the policy's budget.
#[derive(Clone)]
struct Lazy {
    policy: Arc<Policy>,
    seen: Seen,
    known: Arc<Mutex<HashMap<String, Result<Value, Error>>>>,
    budget: SharedBudget,
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("variables")
    }
}

impl Lazy {
    fn compute(&self, name: &str) -> Option<Result<Value, Error>> {
        let (_, expression) = self.policy.variables.iter().find(|(known, _)| **known == *name)?;
        let program = match &expression.program {
            Ok(program) => program,
            Err(why) => return Some(Err(Error::new(format!("compilation error: {why}")))),
        };
        // A variable refers only to earlier ones, so this ends.
        let mut all = self.seen.0.clone();
        all.push(("variables", Value::Host(Arc::new(self.clone()))));
        let value = self.budget.spend(|own| program.evaluate(&Seen(all), own));
        Some(value.map_err(|why| why.unwrap_or_else(Error::exhausted)))
    }
}

impl Host for Lazy {
    fn type_name(&self) -> &'static str {
        "kubernetes.variables"
    }
    fn field(&self, name: &str) -> Option<Result<Value, Error>> {
        let lock = || self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = lock().get(name) {
            return Some(known.clone());
        }
        let value = self.compute(name)?;
        lock().insert(name.to_owned(), value.clone());
        Some(value)
    }
}

/// `authorizer` and the values of its methods. <https://kubernetes.io/docs/reference/using-api/cel/#kubernetes-authorizer-library>
#[derive(Clone)]
struct AuthorizerValue {
    authorizer: Arc<Authorizer>,
    user: Arc<User>,
    about: About,
}

#[derive(Clone)]
enum About {
    /// Nothing selected yet; holds the request's own resource.
    Anything(Resource),
    Path(String),
    Group(String),
    Resource(Resource),
    /// The decision and its reason.
    Answer(bool, String),
}

#[derive(Clone, Default)]
struct Resource {
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

impl Resource {
    fn length(&self) -> usize {
        let all = [&self.group, &self.resource, &self.subresource, &self.namespace, &self.name];
        all.map(String::len).into_iter().sum()
    }
}

impl fmt::Debug for AuthorizerValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

impl AuthorizerValue {
    fn about(&self, about: About) -> Value {
        Value::Host(Arc::new(AuthorizerValue { about, ..self.clone() }))
    }

    fn check(&self, asked: &Attributes<'_>) -> Value {
        let (allowed, why) = match self.authorizer.decide(asked) {
            Decision::Allow => (true, String::new()),
            Decision::NoOpinion(why) => (false, why),
        };
        self.about(About::Answer(allowed, why))
    }

    fn check_resource(&self, it: &Resource, verb: &str) -> Value {
        self.check(&Attributes {
            subresource: &it.subresource,
            namespace: &it.namespace,
            name: &it.name,
            ..Attributes::new(&self.user, verb, &it.group, &it.resource)
        })
    }
}

impl Host for AuthorizerValue {
    fn type_name(&self) -> &'static str {
        match self.about {
            About::Anything(_) => "kubernetes.authorization.Authorizer",
            About::Path(_) => "kubernetes.authorization.PathCheck",
            About::Group(_) => "kubernetes.authorization.GroupCheck",
            About::Resource(_) => "kubernetes.authorization.ResourceCheck",
            About::Answer(..) => "kubernetes.authorization.Decision",
        }
    }

    /// As upstream: checks are expensive. Each step copies the strings collected so far.
    fn cost(&self, name: &str) -> u64 {
        let asked = match &self.about {
            About::Anything(of) | About::Resource(of) => of.length(),
            About::Path(text) | About::Group(text) | About::Answer(_, text) => text.len(),
        };
        let check = if name == "check" { CHECK_COST } else { 0 };
        check + asked as u64 / 10
    }

    fn field(&self, name: &str) -> Option<Result<Value, Error>> {
        match (&self.about, name) {
            (About::Anything(own), "requestResource") => Some(Ok(self.about(About::Resource(own.clone())))),
            _ => None,
        }
    }

    fn call(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
        let mut texts = Vec::new();
        for argument in arguments {
            match argument {
                Value::String(text) => texts.push(text.to_string()),
                _ => return None,
            }
        }
        let text = |at: usize| texts.get(at).cloned().unwrap_or_default();
        let value = match (&self.about, name, texts.len()) {
            (About::Anything(_), "path", 1) => self.about(About::Path(text(0))),
            (About::Anything(_), "group", 1) => self.about(About::Group(text(0))),
            (About::Anything(own), "serviceAccount", 2) => {
                let (namespace, name) = (text(0), text(1));
                let groups = [
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated".to_owned(),
                ];
                let user = User::new(format!("system:serviceaccount:{namespace}:{name}"), groups);
                let user = Arc::new(user);
                Value::Host(Arc::new(AuthorizerValue { user, about: About::Anything(own.clone()), ..self.clone() }))
            }
            (About::Group(group), "resource", 1) => {
                self.about(About::Resource(Resource { group: group.clone(), resource: text(0), ..Resource::default() }))
            }
            (About::Resource(it), "subresource", 1) => {
                self.about(About::Resource(Resource { subresource: text(0), ..it.clone() }))
            }
            (About::Resource(it), "namespace", 1) => {
                self.about(About::Resource(Resource { namespace: text(0), ..it.clone() }))
            }
            (About::Resource(it), "name", 1) => self.about(About::Resource(Resource { name: text(0), ..it.clone() })),
            (About::Resource(it), "check", 1) => self.check_resource(it, &text(0)),
            (About::Path(path), "check", 1) => self.check(&Attributes::of_path(&self.user, &text(0), path)),
            (About::Answer(allowed, _), "allowed", 0) => Value::Bool(*allowed),
            (About::Answer(_, why), "reason", 0) => Value::string(why.as_str()),
            (About::Answer(..), "errored", 0) => Value::Bool(false),
            (About::Answer(..), "error", 0) => Value::string(""),
            _ => return None,
        };
        Some(Ok(value))
    }
}
