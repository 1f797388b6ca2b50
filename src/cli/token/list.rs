//! `token list`: the bootstrap tokens that there are, in kubeadm's columns.

use std::process::ExitCode;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;

use super::super::{
    Outcome, Session,
    pods::kind_of,
    print::Table,
    target::{Selection, Target},
};
use podwright_api::{
    Object,
    bootstrap_token::{self, USAGES},
    duration,
};

const HEADINGS: [&str; 6] = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"];

pub async fn run(session: &Session) -> Outcome {
    let target =
        Target { kind: kind_of("secrets"), namespace: Some(bootstrap_token::NAMESPACE.to_owned()), name: None };
    let of_tokens = Some(format!("type={}", bootstrap_token::TYPE));
    let selection = Selection { field_selector: of_tokens, ..Selection::default() };
    let (secrets, _) = selection.list(&target, session).await?;
    let now = Timestamp::now();
    let rows: Vec<Vec<String>> = secrets.iter().filter_map(|secret| row(secret, now)).collect();
    if !rows.is_empty() {
        let rows = [vec![HEADINGS.map(str::to_owned).to_vec()], rows].concat();
        out!("{}", Table::default().render(&rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// A token's row; none of a Secret that is no whole token.
fn row(secret: &Object, now: Timestamp) -> Option<Vec<String>> {
    let data = |key: &str| {
        let bytes = STANDARD.decode(secret.0["data"][key].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let token = bootstrap_token::Token::new(&data(bootstrap_token::ID)?, &data(bootstrap_token::SECRET)?).ok()?;
    let end = bootstrap_token::end(data(bootstrap_token::EXPIRATION).as_deref());
    let (ttl, expires) = match end {
        None => ("<forever>".to_owned(), "<never>".to_owned()),
        Some(end) => {
            let left = end.duration_since(now).as_secs();
            (duration::human(left), end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        }
    };
    let mut usages = USAGES.to_vec();
    usages.retain(|usage| data(&format!("{}{usage}", bootstrap_token::USAGE)).as_deref() == Some("true"));
    usages.sort_unstable();
    let or_none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
    let [description, groups] =
        [bootstrap_token::DESCRIPTION, bootstrap_token::GROUPS].map(|key| or_none(data(key).unwrap_or_default()));
    Some(vec![token.to_string(), ttl, expires, or_none(usages.join(",")), description, groups])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_is_kubeadms() {
        let row = |data: serde_json::Value| {
            let data = data.as_object().expect("a map").iter();
            let data: serde_json::Map<_, _> =
                data.map(|(key, text)| (key.clone(), STANDARD.encode(text.as_str().expect("a text")).into())).collect();
            row(&Object(json!({ "data": data })), Timestamp::UNIX_EPOCH)
        };
        let whole = json!({
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": "1970-01-01T23:00:00Z",
            "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true", "description": "mine",
            "auth-extra-groups": "system:bootstrappers:a",
        });
        assert_eq!(
            row(whole).expect("a token"),
            [
                "abcdef.0123456789abcdef",
                "23h",
                "1970-01-01T23:00:00Z",
                "authentication,signing",
                "mine",
                "system:bootstrappers:a"
            ]
        );
        let bare = row(json!({"token-id": "abcdef", "token-secret": "0123456789abcdef"})).expect("a token");
        assert_eq!(bare[1..], ["<forever>", "<never>", "<none>", "<none>", "<none>"]);
        assert_eq!(row(json!({"token-id": "abcdef"})), None);
    }
}
