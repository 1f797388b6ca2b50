//! EncryptionConfiguration (apiserver.config.k8s.io/v1): which resources are encrypted, and with which keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::seal::{AESCBC, AESGCM, Cipher, SECRETBOX, Sealer};
use podwright_api::Env;
use podwright_api::configuration::{ConfigError, FieldError, Problem, document};

const API_VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";

/// The rules of a configuration, in order: the first that covers a resource applies.
#[derive(Default)]
pub struct Rules(pub(super) Vec<Rule>);

/// Some resources and their providers: the first one encrypts, all decrypt.
pub(super) struct Rule {
    masks: Vec<String>,
    pub providers: Vec<Provider>,
}

pub(super) enum Provider {
    /// Unencrypted.
    Identity,
    Key(Sealer),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    resources: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    resources: Vec<String>,
    providers: Vec<Named>,
}

/// A provider: exactly one of these.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    identity: Option<Value>,
    aesgcm: Option<Keys>,
    aescbc: Option<Keys>,
    secretbox: Option<Keys>,
    kms: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    name: String,
    secret: String,
}

impl Rules {
    /// Parses a configuration.
    ///
    /// # Errors
    ///
    /// It is not YAML, not a single configuration, or has an invalid rule: the error names the field.
    pub fn parse(text: &str) -> Result<Rules, ConfigError> {
        let file = File::deserialize(document(text, KIND)?).map_err(ConfigError::Decode)?;
        if (file.api_version.as_str(), file.kind.as_str()) != (API_VERSION, KIND) {
            let got = format!("{} {}", file.api_version, file.kind);
            return Err(ConfigError::Kind { expected: format!("{API_VERSION} {KIND}"), got });
        }
        let rows = file.resources.iter().enumerate();
        let read = |(i, row): (usize, &Value)| {
            let at = format!("resources[{i}]");
            match Row::deserialize(row) {
                Ok(row) => rule(&row).map_err(|why| why.below(&format!("{at}."))),
                Err(why) => Err(FieldError::new(at, Problem::Decode(why))),
            }
        };
        Ok(Rules(rows.map(read).collect::<Result<_, FieldError>>()?))
    }

    /// The text of a configuration that encrypts Secrets with a new key, and still reads unencrypted ones.
    pub fn generate(env: &Env) -> String {
        let mut secret = [0; 32];
        env.fill(&mut secret);
        format!(
            "# Secrets are sealed with the first key; every key opens. To change keys put a new one first and restart the \
             server:\n# it seals all anew and says so, then the old key may go. A backup is worth nothing without this \
             file.\napiVersion: {API_VERSION}\nkind: {KIND}\nresources:\n- resources: [secrets]\n  providers:\n  - aesgcm:\n      \
             keys:\n      - name: key1\n        secret: {}\n  - identity: {{}}\n",
            STANDARD.encode(secret)
        )
    }

    /// The rule for a resource as the store's keys name it: `secrets`, `deployments.apps`.
    pub(super) fn of(&self, resource: &str) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.masks.iter().any(|mask| covers(mask, resource)))
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rules of encryption", self.0.len())
    }
}

/// `secrets`, `deployments.apps`, `*.apps`, `*.` (the core group), `*.*`.
fn covers(mask: &str, resource: &str) -> bool {
    let group = |text: &str| text.split_once('.').map_or(String::new(), |(_, group)| group.to_owned());
    match mask.strip_prefix("*.") {
        Some("*") => true,
        Some(wanted) => group(resource) == wanted,
        None => mask == resource,
    }
}

fn rule(row: &Row) -> Result<Rule, FieldError> {
    if row.resources.is_empty() {
        return Err(FieldError::required("resources", "at least one resource is required"));
    }
    if let Some(i) = row.resources.iter().position(|mask| mask.is_empty() || mask == "*") {
        let why = format!("{:?}: use '*.*' for all resources", row.resources[i]);
        return Err(FieldError::invalid(format!("resources[{i}]"), why));
    }
    if row.providers.is_empty() {
        return Err(FieldError::required("providers", "at least one provider is required"));
    }
    let mut providers = Vec::new();
    for (i, named) in row.providers.iter().enumerate() {
        providers.extend(provider(named).map_err(|why| why.below(&format!("providers[{i}]")))?);
    }
    let mut names: Vec<_> =
        providers.iter().filter_map(Provider::key).map(|key| (key.cipher.name, &key.name)).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let why = format!("{:?}: keys of one provider need different names", twice[0].1);
        return Err(FieldError::new("providers", Problem::Duplicate(why)));
    }
    Ok(Rule { masks: row.resources.clone(), providers })
}

impl Provider {
    pub fn key(&self) -> Option<&Sealer> {
        match self {
            Provider::Identity => None,
            Provider::Key(sealer) => Some(sealer),
        }
    }
}

/// Errors name the field after the provider's.
fn provider(named: &Named) -> Result<Vec<Provider>, FieldError> {
    if named.kms.is_some() {
        let supported = "supported values: \"aescbc\", \"aesgcm\", \"identity\", \"secretbox\"";
        return Err(FieldError::new(".kms", Problem::Unsupported(supported.to_owned())));
    }
    let by_keys = [(&AESGCM, &named.aesgcm), (&AESCBC, &named.aescbc), (&SECRETBOX, &named.secretbox)];
    let given: Vec<_> = by_keys.into_iter().filter_map(|(cipher, keys)| Some((cipher, keys.as_ref()?))).collect();
    match (&named.identity, given.as_slice()) {
        (Some(_), []) => Ok(vec![Provider::Identity]),
        (None, [(cipher, keys)]) => sealers(cipher, keys),
        (None, []) => Err(FieldError::required("", "one provider is required")),
        _ => Err(FieldError::invalid("", "more than one provider specified in a single element")),
    }
}

fn sealers(cipher: &'static Cipher, keys: &Keys) -> Result<Vec<Provider>, FieldError> {
    let at = format!(".{}.keys", cipher.name);
    if keys.keys.is_empty() {
        return Err(FieldError::required(at, "at least one key is required"));
    }
    let read = |(i, key): (usize, &Key)| {
        if key.name.is_empty() || key.name.contains(':') {
            let why = format!("{:?}: must be a name without ':'", key.name);
            return Err(FieldError::invalid(format!("{at}[{i}].name"), why));
        }
        // Error messages do not contain the secret.
        let wrong = |why: String| FieldError::invalid(format!("{at}[{i}].secret"), why);
        let secret = STANDARD.decode(key.secret.trim()).map_err(|_| wrong("must be base64".into()))?;
        if !cipher.lengths.contains(&secret.len()) {
            let why = format!("must be of {:?} bytes, not {}", cipher.lengths, secret.len());
            return Err(wrong(why));
        }
        Ok(Provider::Key(Sealer::new(cipher, &key.name, &secret)))
    };
    keys.keys.iter().enumerate().map(read).collect()
}
