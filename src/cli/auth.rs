//! `auth can-i` and `auth whoami`: the user's permissions and identity, according to the server.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    known,
    pods::kind_of,
    print::{self, Format, Table},
};
use podwright_api::{Object, Verb};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Check whether an action is allowed
    CanI(CanI),
    /// Check self subject attributes
    Whoami(Whoami),
}

#[derive(clap::Args)]
struct CanI {
    /// VERB TYPE[/NAME], or VERB /path
    #[arg(value_name = "VERB TYPE", required_unless_present = "list")]
    words: Vec<String>,
    /// Print all allowed actions in the namespace
    #[arg(long)]
    list: bool,
    /// Suppress output and just return the exit code; 1: not allowed
    #[arg(long, short = 'q')]
    quiet: bool,
    /// The subresource, as log or scale
    #[arg(long)]
    subresource: Option<String>,
    /// Check the specified action in all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// The user to check
    #[arg(long = "as", value_name = "USER", conflicts_with = "list")]
    user: Option<String>,
    /// The groups to check
    #[arg(long = "as-group", value_name = "GROUP", requires = "user")]
    groups: Vec<String>,
    /// Do not print headers in the default output format
    #[arg(long)]
    no_headers: bool,
}

#[derive(clap::Args)]
struct Whoami {
    /// Output format: json, yaml, jsonpath=TEMPLATE
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    match args.what {
        What::CanI(args) if args.list => list(&args, session).await,
        What::CanI(args) => can_i(&args, session).await,
        What::Whoami(args) => whoami(&args, session).await,
    }
}

/// Sends a review of this kind, whose `spec` may be null; returns the response.
async fn review(session: &Session, name: &str, api_version: &str, spec: Value) -> Result<Object, Failure> {
    let kind = kind_of(name);
    let mut request = session.request(Verb::Create, kind, None, None);
    let mut body = json!({ "apiVersion": api_version, "kind": kind.kind });
    if !spec.is_null() {
        body["spec"] = spec;
    }
    request.body = Some(body);
    Ok(session.object(request).await?)
}

const AUTHORIZATION: &str = "authorization.k8s.io/v1";

/// The question as the `spec` of a review.
fn question(args: &CanI, namespace: &str) -> Result<Value, String> {
    let [verb, what] = args.words.as_slice() else {
        return Err("you must specify two arguments: verb resource or verb resource/resourceName.".into());
    };
    if what.starts_with('/') {
        if args.subresource.is_some() {
            return Err("--subresource can not be used with NonResourceURL".into());
        }
        return Ok(json!({ "nonResourceAttributes": { "verb": verb, "path": what } }));
    }
    let (word, name) = what.split_once('/').unwrap_or((what, ""));
    let (mut resource, mut group) = word.split_once('.').unwrap_or((word, ""));
    let mut namespace = if args.all_namespaces { "" } else { namespace };
    match known::kinds().lookup(word) {
        Some(kind) => {
            (resource, group) = (kind.plural, kind.group);
            if !kind.namespaced {
                namespace = "";
                errln!("Warning: resource '{}' is not namespace scoped", kind.resource());
            }
        }
        None if word == "*" => {}
        None => errln!("Warning: the server doesn't have a resource type '{word}'"),
    }
    let group = if word == "*" { "*" } else { group };
    Ok(json!({ "resourceAttributes": {
        "verb": verb, "resource": resource, "group": group, "name": name, "namespace": namespace,
        "subresource": args.subresource.as_deref().unwrap_or_default(),
    }}))
}

async fn can_i(args: &CanI, session: &Session) -> Outcome {
    // An argument with a leading slash is a path of the server.
    let word =
        args.words.get(1).and_then(|what| what.split('/').next()).filter(|word| !word.is_empty() && *word != "*");
    known::learn_of(session, word).await;
    let mut spec = question(args, &session.namespace).map_err(Failure::usage)?;
    let answer = match &args.user {
        Some(user) => {
            spec["user"] = json!(user);
            spec["groups"] = json!([&args.groups[..], &["system:authenticated".to_owned()]].concat());
            review(session, "subjectaccessreviews", AUTHORIZATION, spec).await?
        }
        None => review(session, "selfsubjectaccessreviews", AUTHORIZATION, spec).await?,
    };
    let status = &answer.0["status"];
    let allowed = status["allowed"] == true;
    if !args.quiet {
        let why = status["reason"].as_str().filter(|why| !why.is_empty() && !allowed);
        outln!("{}{}", if allowed { "yes" } else { "no" }, why.map(|why| format!(" - {why}")).unwrap_or_default());
    }
    if allowed { Ok(ExitCode::SUCCESS) } else { Err(Failure::Said(1)) }
}

/// Rules as table rows, one per resource, like kubectl.
fn rows(status: &Value) -> Vec<Vec<String>> {
    let words = |rule: &Value, field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let shown = |list: Vec<String>| format!("[{}]", list.join(" "));
    let rules = |field: &str| status[field].as_array().cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for rule in rules("resourceRules") {
        for group in words(&rule, "apiGroups") {
            for resource in words(&rule, "resources") {
                let name = if group.is_empty() { resource } else { format!("{resource}.{group}") };
                let (names, verbs) = (words(&rule, "resourceNames"), words(&rule, "verbs"));
                rows.push(vec![name, "[]".to_owned(), shown(names), shown(verbs)]);
            }
        }
    }
    for rule in rules("nonResourceRules") {
        for path in words(&rule, "nonResourceURLs") {
            rows.push(vec![String::new(), format!("[{path}]"), "[]".to_owned(), shown(words(&rule, "verbs"))]);
        }
    }
    rows
}

async fn list(args: &CanI, session: &Session) -> Outcome {
    let spec = json!({ "namespace": session.namespace });
    let answer = review(session, "selfsubjectrulesreviews", AUTHORIZATION, spec).await?;
    let status = &answer.0["status"];
    if status["incomplete"] == true {
        errln!("Warning: the list may be incomplete: {}", status["evaluationError"].as_str().unwrap_or_default());
    }
    let mut rows = rows(status);
    if !args.no_headers {
        rows.insert(0, ["Resources", "Non-Resource URLs", "Resource Names", "Verbs"].map(str::to_owned).to_vec());
    }
    out!("{}", Table::default().render(&rows));
    Ok(ExitCode::SUCCESS)
}

async fn whoami(args: &Whoami, session: &Session) -> Outcome {
    let answer = review(session, "selfsubjectreviews", "authentication.k8s.io/v1", Value::Null).await?;
    if let Some(format) = &args.output {
        raw!("{}", print::object(format, &answer)?);
        return Ok(ExitCode::SUCCESS);
    }
    out!("{}", Table::default().render(&told(&answer.0["status"]["userInfo"])));
    Ok(ExitCode::SUCCESS)
}

fn told(user: &Value) -> Vec<Vec<String>> {
    let list = |value: &Value| {
        let words = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        format!("[{}]", words.collect::<Vec<_>>().join(" "))
    };
    let mut rows = vec![vec!["ATTRIBUTE".to_owned(), "VALUE".to_owned()]];
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    row("Username", user["username"].as_str().unwrap_or_default().to_owned());
    if let Some(uid) = user["uid"].as_str().filter(|uid| !uid.is_empty()) {
        row("UID", uid.to_owned());
    }
    if user["groups"].is_array() {
        row("Groups", list(&user["groups"]));
    }
    for (key, values) in user["extra"].as_object().into_iter().flatten() {
        row(&format!("Extra: {key}"), list(values));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Value, String> {
        question(&crate::flags::<CanI>(line.split(' ')), "lab")
    }

    #[test]
    fn words_become_questions() {
        let of = |line: &str| {
            let asked = asked(line).expect("a question")["resourceAttributes"].clone();
            let word = |field: &str| asked[field].as_str().unwrap_or_default().to_owned();
            ["verb", "group", "resource", "subresource", "name", "namespace"].map(word).join(" ")
        };
        assert_eq!(of("get deploy/web"), "get apps deployments  web lab");
        assert_eq!(of("get pods --subresource=log -A"), "get  pods log  ");
        assert_eq!(of("list nodes"), "list  nodes   ");
        assert_eq!(of("* *"), "* * *   lab");
        assert_eq!(of("get things.example.com"), "get example.com things   lab");
        assert_eq!(asked("get /logs"), Ok(json!({ "nonResourceAttributes": { "verb": "get", "path": "/logs" } })));
        assert!(asked("get").is_err());
    }

    #[test]
    fn rules_are_broken_down() {
        let status = json!({
            "resourceRules": [{ "verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["a"], "resourceNames": ["x"] }],
            "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": ["/healthz"] }],
        });
        let lines: Vec<String> = rows(&status).iter().map(|row| row.join("|")).collect();
        assert_eq!(lines, ["a|[]|[x]|[get list]", "a.apps|[]|[x]|[get list]", "|[/healthz]|[]|[get]"]);
    }
}
