//! PodSecurity's defaults and exemptions, read from upstream's PodSecurityConfiguration.
//! <https://kubernetes.io/docs/tasks/configure-pod-container/enforce-standards-admission-controller/>

use serde_json::Value;

use super::DOMAIN;
use super::standards::{Level, Standard, StandardError};
use podwright_api::configuration::FieldError;

/// The configuration of PodSecurity.
#[derive(Clone, Debug, Default)]
pub struct PodSecurity {
    pub(super) defaults: Policy,
    usernames: Vec<String>,
    runtime_classes: Vec<String>,
    namespaces: Vec<String>,
}

/// What a namespace requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    pub enforce: Standard,
    pub audit: Standard,
    pub warn: Standard,
}

/// An invalid label: its key, its value, the error.
pub(super) type LabelError = (String, String, StandardError);

impl Policy {
    /// From a namespace's labels; `label` looks one up by its name after the domain. Invalid values count as the strictest standard
    /// for `enforce`, and as the laxest for the others.
    pub fn of_labels<'a>(defaults: &Policy, label: impl Fn(&str) -> Option<&'a str>) -> (Policy, Vec<LabelError>) {
        let (mut policy, mut errors) = (*defaults, Vec::new());
        let mut note = |name: &str, value: &str, why: StandardError| {
            errors.push((format!("{DOMAIN}/{name}"), value.to_owned(), why));
        };
        let modes = [
            ("enforce", &mut policy.enforce, Level::Restricted),
            ("audit", &mut policy.audit, Level::Privileged),
            ("warn", &mut policy.warn, Level::Privileged),
        ];
        for (mode, standard, otherwise) in modes {
            if let Some(text) = label(mode) {
                standard.level = text.parse().unwrap_or_else(|why| {
                    note(mode, text, why);
                    otherwise
                });
            }
            let name = format!("{mode}-version");
            if let Some(text) = label(&name) {
                standard.version = text.parse().unwrap_or_else(|why| {
                    note(&name, text, why);
                    Default::default()
                });
            }
        }
        // `warn` defaults to what is enforced.
        let enforces = label("enforce").is_some_and(|text| text.parse::<Level>().is_ok());
        if enforces && label("warn").is_none() && policy.enforce.level > policy.warn.level {
            policy.warn = policy.enforce;
        }
        (policy, errors)
    }
}

impl PodSecurity {
    /// Whether Pods may have host ports in a namespace that names no level.
    pub fn allows_host_ports(&self) -> bool {
        self.defaults.enforce.level == Level::Privileged
    }

    /// Reads upstream's `PodSecurityConfiguration` (pod-security.admission.config.k8s.io/v1).
    ///
    /// # Errors
    ///
    /// A default is not a valid standard, or an exemption not a valid name.
    pub fn from_json(value: &Value) -> Result<PodSecurity, FieldError> {
        let text = |name: &str| value["defaults"][name].as_str().filter(|text| !text.is_empty());
        let (defaults, errors) = Policy::of_labels(&Policy::default(), text);
        if let Some((key, value, why)) = errors.into_iter().next() {
            let field = key.trim_start_matches(DOMAIN).trim_start_matches('/');
            return Err(FieldError::invalid(format!("defaults.{field}"), format!("{value:?}: {why}")));
        }
        let list = |name: &str| -> Result<Vec<String>, FieldError> {
            let all = match &value["exemptions"][name] {
                Value::Null => return Ok(Vec::new()),
                Value::Array(all) => all,
                _ => return Err(FieldError::must_be(format!("exemptions.{name}"), "a list")),
            };
            let each = all.iter().enumerate().map(|(i, it)| match it.as_str() {
                Some(it) if !it.is_empty() => Ok(it.to_owned()),
                _ => Err(FieldError::invalid(format!("exemptions.{name}[{i}]"), format!("{it}: must be a name"))),
            });
            each.collect()
        };
        Ok(PodSecurity {
            defaults,
            usernames: list("usernames")?,
            runtime_classes: list("runtimeClasses")?,
            namespaces: list("namespaces")?,
        })
    }

    /// Why a request is exempt, if it is. An empty user is never exempt.
    pub(super) fn exempts(&self, namespace: &str, user: &str, runtime_class: &str) -> Option<&'static str> {
        let lists = [
            (&self.namespaces, namespace, "namespace"),
            (&self.usernames, user, "user"),
            (&self.runtime_classes, runtime_class, "runtimeClass"),
        ];
        lists.into_iter().find(|(list, it, _)| list.iter().any(|known| known == it)).map(|(.., what)| what)
    }
}
