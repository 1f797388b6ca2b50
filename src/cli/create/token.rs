//! `create token`: requests a token of a ServiceAccount.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::{Outcome, Session, error::Failure, pods::kind_of, wait};
use podwright_api::{Status, Verb};

/// The kinds that a token can be bound to, with their versions, sorted by name.
const BOUND: [(&str, &str); 3] = [("Node", "v1"), ("Pod", "v1"), ("Secret", "v1")];

#[derive(clap::Args)]
pub struct Args {
    /// The name of the service account
    name: String,
    /// Requested lifetime of the issued token [default: the server's]
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, allow_hyphen_values = true)]
    duration: String,
    /// Audience of the requested token
    #[arg(long, value_name = "NAME")]
    audience: Vec<String>,
    /// Kind of an object to bind the token to: Node, Pod, Secret
    #[arg(long, value_name = "KIND", default_value = "", hide_default_value = true)]
    bound_object_kind: String,
    /// Name of an object to bind the token to
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    bound_object_name: String,
    /// UID of an object to bind the token to [default: that of the existing object]
    #[arg(long, value_name = "UID", default_value = "", hide_default_value = true)]
    bound_object_uid: String,
}

impl Args {
    /// The `spec` of a TokenRequest.
    fn spec(&self) -> Result<Value, String> {
        if self.audience.iter().any(String::is_empty) {
            return Err("--audience must not be an empty string".into());
        }
        let mut spec = json!({ "audiences": self.audience });
        let wrong = |why| format!("invalid argument \"{}\" for \"--duration\" flag: {why}", self.duration);
        let duration = wait::duration(&self.duration).map_err(wrong)?;
        if self.duration.starts_with('-') {
            return Err("--duration must be greater than or equal to 0".into());
        }
        if duration.subsec_nanos() > 0 {
            return Err("--duration cannot be expressed in units less than seconds".into());
        }
        if !duration.is_zero() {
            spec["expirationSeconds"] = duration.as_secs().into();
        }
        let (kind, name, uid) = (&self.bound_object_kind, &self.bound_object_name, &self.bound_object_uid);
        if kind.is_empty() {
            let needless = [("name", name), ("uid", uid)].into_iter().find(|(_, value)| !value.is_empty());
            return match needless {
                Some((flag, _)) => {
                    Err(format!("--bound-object-{flag} can only be set if --bound-object-kind is provided"))
                }
                None => Ok(spec),
            };
        }
        let Some((kind, version)) = BOUND.iter().find(|(known, _)| known == kind) else {
            let known: Vec<&str> = BOUND.iter().map(|(kind, _)| *kind).collect();
            return Err(format!("supported --bound-object-kind values are {}", known.join(", ")));
        };
        if name.is_empty() {
            return Err("--bound-object-name is required if --bound-object-kind is provided".into());
        }
        spec["boundObjectRef"] = json!({ "kind": kind, "apiVersion": version, "name": name, "uid": uid });
        Ok(spec)
    }
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let spec = args.spec().map_err(Failure::usage)?;
    let mut request = session.request(Verb::Create, kind_of("serviceaccounts"), None, Some(&args.name));
    request.subresource = Some("token".to_owned());
    request.body = Some(json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec }));
    let refused = |status: Status| Failure::usage(format!("failed to create token: {}", status.message));
    let answer = session.object(request).await.map_err(refused)?;
    outln!("{}", answer.0["status"]["token"].as_str().unwrap_or(""));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(line: &str) -> Result<Value, String> {
        crate::flags::<Args>(line.split(' ')).spec()
    }

    #[test]
    fn what_is_asked_for_is_asked_of_the_server() {
        for (line, wanted) in [
            ("x", json!({"audiences": []})),
            ("x --duration=0s", json!({"audiences": []})),
            ("x --duration=10m --audience=a", json!({"audiences": ["a"], "expirationSeconds": 600})),
            (
                "x --bound-object-kind=Pod --bound-object-name=p",
                json!({"audiences": [], "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": ""}}),
            ),
            (
                "x --bound-object-kind=Node --bound-object-name=n --bound-object-uid=u",
                json!({"audiences": [], "boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "n", "uid": "u"}}),
            ),
        ] {
            assert_eq!(spec(line), Ok(wanted), "{line}");
        }
    }

    /// In kubectl's words.
    #[test]
    fn what_makes_no_sense_is_refused_before_the_server_is_asked() {
        for (line, why) in [
            ("x --bound-object-name=a", "--bound-object-name can only be set if --bound-object-kind is provided"),
            ("x --bound-object-uid=u", "--bound-object-uid can only be set if --bound-object-kind is provided"),
            (
                "x --bound-object-kind=Foo --bound-object-name=a",
                "supported --bound-object-kind values are Node, Pod, Secret",
            ),
            ("x --bound-object-kind=Pod", "--bound-object-name is required if --bound-object-kind is provided"),
            ("x --duration=-1s", "--duration must be greater than or equal to 0"),
            ("x --duration=10ms", "--duration cannot be expressed in units less than seconds"),
            ("x --audience=", "--audience must not be an empty string"),
        ] {
            assert_eq!(spec(line), Err(why.to_owned()), "{line}");
        }
    }
}
