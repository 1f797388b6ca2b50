//! Policy (audit.k8s.io/v1): what is logged for which requests. The first matching rule decides; without one nothing is logged.

use serde::Deserialize;
use serde_json::Value;

use super::Facts;
use podwright_api::configuration::{ConfigError, FieldError, Problem, document};

const API_VERSION: &str = "audit.k8s.io/v1";
const KIND: &str = "Policy";

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// When it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Stage {
    RequestReceived,
    /// For long-running requests: watches, sessions.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// What is logged of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub level: Level,
    pub omit_stages: Vec<Stage>,
    pub omit_managed_fields: bool,
}

#[derive(Debug)]
pub struct Policy {
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
    rules: Vec<Value>,
}

/// All of its fields must match; an empty list matches everything.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    ///
    /// It is not YAML, not a single policy, or has an invalid rule: the error names the field.
    pub fn parse(text: &str) -> Result<Policy, ConfigError> {
        let file = File::deserialize(document(text, KIND)?).map_err(ConfigError::Decode)?;
        if (file.api_version.as_str(), file.kind.as_str()) != (API_VERSION, KIND) {
            let got = format!("{} {}", file.api_version, file.kind);
            return Err(ConfigError::Kind { expected: format!("{API_VERSION} {KIND}"), got });
        }
        if file.rules.is_empty() {
            return Err(FieldError::required("rules", "a policy without rules tells nothing").into());
        }
        let read = |(i, rule): (usize, &Value)| {
            let rule =
                Rule::deserialize(rule).map_err(|why| FieldError::new(format!("rules[{i}]"), Problem::Decode(why)))?;
            rule.check().map_err(|why| why.below(&format!("rules[{i}].")))?;
            Ok(rule)
        };
        let rules = file.rules.iter().enumerate().map(read).collect::<Result<_, FieldError>>()?;
        Ok(Policy { omit_stages: file.omit_stages, omit_managed_fields: file.omit_managed_fields, rules })
    }

    /// What is logged of a request.
    pub fn of(&self, facts: &Facts<'_>) -> Verdict {
        let rule = self.rules.iter().find(|rule| rule.fits(facts));
        let mut omit_stages = self.omit_stages.clone();
        omit_stages.extend(rule.iter().flat_map(|rule| &rule.omit_stages));
        Verdict {
            level: rule.map_or(Level::None, |rule| rule.level),
            omit_stages,
            omit_managed_fields: rule.and_then(|rule| rule.omit_managed_fields).unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn check(&self) -> Result<(), FieldError> {
        let of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if of_resources && !self.non_resource_urls.is_empty() {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            return Err(FieldError::invalid("nonResourceURLs", why));
        }
        for (i, url) in self.non_resource_urls.iter().enumerate() {
            let wrong =
                |why: &str| Err(FieldError::invalid(format!("nonResourceURLs[{i}]"), format!("{url:?}: {why}")));
            if url != "*" && !url.starts_with('/') {
                return wrong("non-resource URL rules must begin with a '/' character");
            }
            if url.trim_end_matches('*').contains('*') || url.ends_with("**") {
                return wrong("non-resource URL wildcards '*' must be the final character of the rule");
            }
        }
        for (i, row) in self.resources.iter().enumerate() {
            if row.group.contains('/') {
                let why = format!("{:?}: a group has no version", row.group);
                return Err(FieldError::invalid(format!("resources[{i}].group"), why));
            }
            if !row.resource_names.is_empty() && row.resources.is_empty() {
                let why = "using resourceNames requires at least one resource";
                return Err(FieldError::invalid(format!("resources[{i}].resourceNames"), why));
            }
        }
        Ok(())
    }

    fn fits(&self, facts: &Facts<'_>) -> bool {
        let named = |list: &[String], word: &str| list.is_empty() || list.iter().any(|one| one == word);
        let in_group = || facts.user.is_some_and(|user| self.user_groups.iter().any(|group| user.is_in(group)));
        if !named(&self.users, facts.user.map_or("", |user| &user.name))
            || !(self.user_groups.is_empty() || in_group())
            || !named(&self.verbs, facts.verb)
        {
            return false;
        }
        if !self.resources.is_empty() || !self.namespaces.is_empty() {
            return !facts.resource.is_empty()
                && named(&self.namespaces, facts.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|row| row.fits(facts)));
        }
        let fits_path = |url: &String| match url.strip_suffix('*') {
            Some(head) => facts.path.starts_with(head),
            None => facts.path == url,
        };
        self.non_resource_urls.is_empty() || (facts.resource.is_empty() && self.non_resource_urls.iter().any(fits_path))
    }
}

impl GroupResources {
    /// `pods` excludes its subresources, `pods/log` is one of them, `pods/*` all of them, `*/scale` that of all resources.
    fn fits(&self, facts: &Facts<'_>) -> bool {
        let fits_resource = |mask: &String| match mask.split_once('/') {
            None => mask == "*" || (mask == facts.resource && facts.subresource.is_empty()),
            Some(("*", sub)) => sub == facts.subresource,
            Some((resource, "*")) => resource == facts.resource,
            Some((resource, sub)) => resource == facts.resource && sub == facts.subresource,
        };
        self.group == facts.group
            && (self.resources.is_empty() || self.resources.iter().any(fits_resource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|name| name == facts.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_api::User;

    #[test]
    fn the_first_rule_that_fits_counts() {
        let text = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ['system:kube-proxy'], verbs: [watch], resources: [{resources: [endpoints, services]}]}
- {level: None, userGroups: ['system:authenticated'], nonResourceURLs: ['/api*', /version]}
- {level: Request, resources: [{resources: [configmaps], resourceNames: [one]}], namespaces: [kube-system]}
- {level: Metadata, resources: [{resources: [secrets, 'pods/log', '*/scale']}, {group: apps, resources: ['deployments/*']}]}
- {level: RequestResponse, resources: [{group: batch}], omitManagedFields: true, omitStages: [ResponseStarted]}
- {level: Request, namespaces: ['']}
";
        let policy = Policy::parse(text).unwrap();
        let proxy = User::new("system:kube-proxy", ["system:authenticated"]);
        let ann = User::new("ann", ["people"]);
        let of = |user: &User, verb: &'static str, at: &'static str| {
            let [group, resource, sub, namespace, name, path] =
                at.split('|').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{at}"));
            let user = Some(user);
            let facts =
                Facts { user, verb, group, resource, subresource: sub, namespace, name, path, ..Facts::default() };
            policy.of(&facts)
        };
        for (user, verb, at, level) in [
            (&proxy, "watch", "|services||a||", Level::None),
            (&proxy, "list", "|services||a||", Level::None),
            (&proxy, "watch", "|services||||", Level::None),
            (&ann, "watch", "|services||||", Level::Request),
            (&proxy, "get", "|||||/apis/apps", Level::None),
            (&ann, "get", "|configmaps||kube-system|one|", Level::Request),
            (&ann, "get", "|configmaps||kube-system|two|", Level::None),
            (&ann, "get", "|secrets||a|s|", Level::Metadata),
            (&ann, "get", "|secrets|status|a|s|", Level::None),
            (&ann, "get", "|pods|log|a|s|", Level::Metadata),
            (&ann, "get", "|pods||a|s|", Level::None),
            (&ann, "get", "apps|statefulsets|scale|a|s|", Level::None),
            (&ann, "get", "|replicationcontrollers|scale|a|s|", Level::Metadata),
            (&ann, "get", "apps|deployments||a|s|", Level::Metadata),
            (&ann, "get", "batch|jobs|status|a|s|", Level::RequestResponse),
        ] {
            assert_eq!(of(user, verb, at).level, level, "{} {verb} {at}", user.name);
        }
        let job = of(&ann, "get", "batch|jobs||a|s|");
        assert_eq!(job.omit_stages, [Stage::RequestReceived, Stage::ResponseStarted]);
        assert!(job.omit_managed_fields && !of(&ann, "get", "|secrets||a|s|").omit_managed_fields);
    }

    #[test]
    fn a_wrong_policy_is_refused_with_the_field() {
        let with = |rules: &str| format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{rules}]}}");
        for (text, why) in [
            (with(""), "rules: Required value"),
            (with("{level: Much}"), "rules[0]: unknown variant `Much`"),
            (with("{level: None, stages: []}"), "unknown field `stages`"),
            (with("{level: None, omitStages: [Later]}"), "rules[0]: unknown variant `Later`"),
            (with("{level: None, namespaces: [a], nonResourceURLs: [/x]}"), "rules[0].nonResourceURLs: Invalid value"),
            (with("{level: None, nonResourceURLs: [x]}"), "rules[0].nonResourceURLs[0]: Invalid value"),
            (with("{level: None, nonResourceURLs: ['/a*b']}"), "must be the final character"),
            (with("{level: None, resources: [{resourceNames: [x]}]}"), "rules[0].resources[0].resourceNames"),
            (with("{level: None, resources: [{group: apps/v1}]}"), "rules[0].resources[0].group"),
            (with("{level: None}").replace("audit.k8s.io/v1", "v1"), "expected audit.k8s.io/v1 Policy"),
        ] {
            let error = Policy::parse(&text).unwrap_err();
            assert!(error.to_string().contains(why), "{text}\n{error}\nis not: {why}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_can_be_told_apart() {
        let of = |text: &str| Policy::parse(text).unwrap_err();
        assert!(matches!(of("a: ["), ConfigError::Yaml(_)));
        assert!(matches!(of("{}\n---\n{a: 1}\n---\n{b: 1}"), ConfigError::Documents(KIND)));
        assert!(matches!(of("{a: 1}"), ConfigError::Decode(_)));
        assert!(matches!(of("{apiVersion: v1, kind: Pod, rules: []}"), ConfigError::Kind { .. }));
        let field = |rules: &str| match of(&format!("{{apiVersion: {API_VERSION}, kind: Policy, rules: [{rules}]}}")) {
            ConfigError::Field(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(matches!(field("").problem, Problem::Required(_)));
        let why = field("{level: None}, {level: None, nonResourceURLs: [/a, x]}");
        assert_eq!(why.field, "rules[1].nonResourceURLs[1]");
        assert!(matches!(why.problem, Problem::Invalid(_)), "{why:?}");
    }
}
