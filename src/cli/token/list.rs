//! `token list`: the bootstrap tokens that there are, in kubeadm's columns.

use std::process::ExitCode;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::json;

use super::super::{
    Outcome, Session,
    error::Failure,
    pods::kind_of,
    print::{self, Format, Table},
    target::{Selection, Target},
};
use podwright_api::{
    Object,
    bootstrap_token::{self, Token, USAGES},
    duration,
};

const HEADINGS: [&str; 6] = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"];

/// The version that kubeadm's own output has.
const API_VERSION: &str = "output.kubeadm.k8s.io/v1alpha3";

#[derive(clap::Args)]
pub struct Args {
    /// Output format: json, yaml, jsonpath=TEMPLATE; each token is an object of its own
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let format = checked(args.output)?;
    let target =
        Target { kind: kind_of("secrets"), namespace: Some(bootstrap_token::NAMESPACE.to_owned()), name: None };
    let of_tokens = Some(format!("type={}", bootstrap_token::TYPE));
    let selection = Selection { field_selector: of_tokens, ..Selection::default() };
    let (secrets, _) = selection.list(&target, session).await?;
    let tokens: Vec<Listed> = secrets.iter().filter_map(Listed::of).collect();
    match format {
        Some(format) => raw!("{}", objects(&format, &tokens)?),
        None if tokens.is_empty() => {}
        None => {
            let now = Timestamp::now();
            let rows = tokens.iter().map(|token| token.row(now));
            let rows: Vec<Vec<String>> = [HEADINGS.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
            out!("{}", Table::default().render(&rows));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A token has no name and no further columns.
fn checked(format: Option<Format>) -> Result<Option<Format>, Failure> {
    match format {
        None | Some(Format::Json | Format::Yaml | Format::JsonPath(_)) => Ok(format),
        Some(_) => Err(Failure::usage("-o: allowed formats are json, yaml and jsonpath=TEMPLATE")),
    }
}

/// One after another, YAML with a line between, as kubeadm prints them.
fn objects(format: &Format, tokens: &[Listed]) -> Result<String, Failure> {
    let texts: Vec<String> =
        tokens.iter().map(|token| print::whole(format, &token.object())).collect::<Result<_, _>>()?;
    Ok(texts.join(if matches!(format, Format::Yaml) { "---\n" } else { "" }))
}

/// A token, as its Secret has it.
struct Listed {
    token: Token,
    end: Option<Timestamp>,
    usages: Vec<&'static str>,
    description: String,
    groups: String,
}

impl Listed {
    /// None of a Secret that is no whole token.
    fn of(secret: &Object) -> Option<Listed> {
        let data = |key: &str| {
            let bytes = STANDARD.decode(secret.0["data"][key].as_str()?).ok()?;
            String::from_utf8(bytes).ok()
        };
        let token = Token::new(&data(bootstrap_token::ID)?, &data(bootstrap_token::SECRET)?).ok()?;
        let end = bootstrap_token::end(data(bootstrap_token::EXPIRATION).as_deref());
        let mut usages = USAGES.to_vec();
        usages.retain(|usage| data(&format!("{}{usage}", bootstrap_token::USAGE)).as_deref() == Some("true"));
        usages.sort_unstable();
        let [description, groups] =
            [bootstrap_token::DESCRIPTION, bootstrap_token::GROUPS].map(|key| data(key).unwrap_or_default());
        Some(Listed { token, end, usages, description, groups })
    }

    fn expires(&self) -> Option<String> {
        self.end.map(|end| end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    fn row(&self, now: Timestamp) -> Vec<String> {
        let ttl = self.end.map(|end| duration::human(end.duration_since(now).as_secs()));
        let or_none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
        vec![
            self.token.to_string(),
            ttl.unwrap_or_else(|| "<forever>".to_owned()),
            self.expires().unwrap_or_else(|| "<never>".to_owned()),
            or_none(self.usages.join(",")),
            or_none(self.description.clone()),
            or_none(self.groups.clone()),
        ]
    }

    /// What is empty is left out.
    fn object(&self) -> Object {
        let groups: Vec<&str> = self.groups.split(',').filter(|group| !group.is_empty()).collect();
        let mut object =
            json!({ "apiVersion": API_VERSION, "kind": "BootstrapToken", "token": self.token.to_string() });
        if !self.description.is_empty() {
            object["description"] = json!(self.description);
        }
        if let Some(expires) = self.expires() {
            object["expires"] = json!(expires);
        }
        for (field, all) in [("usages", &self.usages), ("groups", &groups)] {
            if !all.is_empty() {
                object[field] = json!(all);
            }
        }
        Object(object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn listed(data: &Value) -> Option<Listed> {
        let data = data.as_object().expect("a map").iter();
        let data: serde_json::Map<_, _> =
            data.map(|(key, text)| (key.clone(), STANDARD.encode(text.as_str().expect("a text")).into())).collect();
        Listed::of(&Object(json!({ "data": data })))
    }

    fn whole() -> Listed {
        let data = json!({
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": "1970-01-01T23:00:00Z",
            "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true", "description": "mine",
            "auth-extra-groups": "system:bootstrappers:a,system:bootstrappers:b",
        });
        listed(&data).expect("a token")
    }

    fn bare() -> Listed {
        listed(&json!({"token-id": "abcdef", "token-secret": "0123456789abcdef"})).expect("a token")
    }

    #[test]
    fn a_row_is_kubeadms() {
        assert_eq!(
            whole().row(Timestamp::UNIX_EPOCH),
            [
                "abcdef.0123456789abcdef",
                "23h",
                "1970-01-01T23:00:00Z",
                "authentication,signing",
                "mine",
                "system:bootstrappers:a,system:bootstrappers:b"
            ]
        );
        let row = bare().row(Timestamp::UNIX_EPOCH);
        assert_eq!(row[1..], ["<forever>", "<never>", "<none>", "<none>", "<none>"]);
        assert!(listed(&json!({"token-id": "abcdef"})).is_none());
    }

    #[test]
    fn each_is_an_object_of_kubeadms() {
        let object = json!({
            "apiVersion": "output.kubeadm.k8s.io/v1alpha3", "kind": "BootstrapToken", "token": "abcdef.0123456789abcdef",
            "description": "mine", "expires": "1970-01-01T23:00:00Z", "usages": ["authentication", "signing"],
            "groups": ["system:bootstrappers:a", "system:bootstrappers:b"],
        });
        let short = json!({
            "apiVersion": "output.kubeadm.k8s.io/v1alpha3", "kind": "BootstrapToken", "token": "abcdef.0123456789abcdef",
        });
        assert_eq!((whole().object().0, bare().object().0), (object.clone(), short.clone()));
        let two = [whole(), bare()];
        let yaml = objects(&Format::Yaml, &two).expect("YAML");
        assert_eq!(podwright_api::yaml::documents(&yaml).expect("YAML"), [object.clone(), short.clone()]);
        let json = objects(&Format::Json, &two).expect("JSON");
        let read: Vec<Value> =
            serde_json::Deserializer::from_str(&json).into_iter().map(|it| it.expect("JSON")).collect();
        assert_eq!(read, [object, short]);
        assert_eq!(objects(&Format::Json, &[]).expect("nothing"), "");
        assert!(checked(Some(Format::Name)).is_err() && checked(Some(Format::Wide)).is_err());
    }
}
