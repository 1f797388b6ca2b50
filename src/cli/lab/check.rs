//! Evaluates a check: what it looks at, and whether that is as wanted.

use std::time::Duration;

use super::course::{Check, Subject, Wanted};
use super::shell::{Output, Shell};

/// How long a check's own command may take.
const LIMIT: Duration = Duration::from_secs(20);
/// The most of an output that a message shows.
const MOST_SHOWN: usize = 600;

/// A check's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// It does not concern this host.
    Skipped,
    /// What is missing, in words.
    Missing(String),
}

/// Evaluates one check; `look` is a script whose output it may be about.
pub async fn evaluate(check: &Check, look: Option<&str>, shell: &Shell) -> anyhow::Result<Verdict> {
    if !concerns(check, shell).await? {
        return Ok(Verdict::Skipped);
    }
    let script = match &check.subject {
        Subject::Object { object, namespace, path } => get(object, namespace.as_deref(), path),
        Subject::Command(script) => script.clone(),
        Subject::Inspect(pod) => format!("podwright inspect pod {}", quoted(pod)),
        Subject::Trace(pod) => format!("podwright trace pod {}", quoted(pod)),
        Subject::Look => look.unwrap_or_default().to_owned(),
    };
    // One that takes too long is missing as any other.
    let found = match shell.run(&script, LIMIT).await {
        Ok(found) => found,
        Err(why) => Output { code: None, text: format!("{why:#}") },
    };
    Ok(judge(check, &found))
}

/// Whether the check's condition holds on this host.
pub async fn concerns(check: &Check, shell: &Shell) -> anyhow::Result<bool> {
    let Some(condition) = &check.when else { return Ok(true) };
    Ok(shell.run(condition, LIMIT).await?.code == Some(0))
}

fn get(object: &str, namespace: Option<&str>, path: &str) -> String {
    let namespace = namespace.map(|name| format!(" -n {}", quoted(name))).unwrap_or_default();
    // A list of words, as `pods -l app=web`.
    let words: Vec<String> = object.split_whitespace().map(quoted).collect();
    format!("podwright get{namespace} {} -o jsonpath={}", words.join(" "), quoted(path))
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Whether what was found is what the check wants.
pub fn judge(check: &Check, found: &Output) -> Verdict {
    let text = found.text.trim_end();
    let worked = found.code == Some(0);
    let is_so = match &check.wanted {
        Wanted::Equals(value) => worked && text == value,
        Wanted::Matches(pattern) => worked && pattern.is_match(text),
        Wanted::Lacks(pattern) => worked && !pattern.is_match(text),
        Wanted::Absent if worked => text.is_empty(),
        // Any other failure, as that of a server that does not answer, says nothing about the object.
        Wanted::Absent => text.contains("(NotFound)"),
        Wanted::Exit(code) => found.code == Some(*code),
    };
    match (is_so, &check.missing) {
        (true, _) => Verdict::Passed,
        (false, Some(words)) => Verdict::Missing(words.clone()),
        (false, None) => Verdict::Missing(format!("{}; found: {}", describe(check), shown(found))),
    }
}

/// What a check wants, in words.
pub fn describe(check: &Check) -> String {
    format!("{} {}", subject(check), wanted(check))
}

fn subject(check: &Check) -> String {
    match &check.subject {
        Subject::Object { object, path, .. } => format!("{object} {path}"),
        Subject::Command(script) => format!("`{}`", script.trim().lines().next().unwrap_or_default()),
        Subject::Inspect(pod) => format!("`podwright inspect pod {pod}`"),
        Subject::Trace(pod) => format!("`podwright trace pod {pod}`"),
        Subject::Look => "the step's output".to_owned(),
    }
}

fn wanted(check: &Check) -> String {
    match &check.wanted {
        Wanted::Equals(value) => format!("should be {value:?}"),
        Wanted::Matches(pattern) => format!("should match {:?}", pattern.as_str()),
        Wanted::Lacks(pattern) => format!("should not match {:?}", pattern.as_str()),
        Wanted::Absent => "should not exist".to_owned(),
        Wanted::Exit(code) => format!("should exit with {code}"),
    }
}

fn shown(found: &Output) -> String {
    let text = found.text.trim_end();
    // The end of a long output says most.
    let cut = text.char_indices().rev().map(|(at, _)| at).nth(MOST_SHOWN);
    let text = cut.map_or(text.to_owned(), |at| format!("...{}", &text[at..]));
    match (found.code, text.is_empty()) {
        (Some(0), true) => "nothing".to_owned(),
        (Some(0), false) => format!("{text:?}"),
        (Some(code), _) => format!("{text:?} (exit code {code})"),
        (None, _) => text,
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    fn check(wanted: Wanted) -> Check {
        let subject = Subject::Object { object: "pod/web".into(), namespace: None, path: "{.status.phase}".into() };
        Check { subject, wanted, when: None, missing: None }
    }

    fn passes(wanted: Wanted, code: i32, text: &str) -> bool {
        judge(&check(wanted), &Output { code: Some(code), text: text.into() }) == Verdict::Passed
    }

    #[test]
    fn each_kind_of_check_can_fail() {
        let pattern = || Regex::new("^Run").unwrap();
        assert!(passes(Wanted::Equals("Running".into()), 0, "Running\n"));
        assert!(!passes(Wanted::Equals("Running".into()), 0, "Pending"));
        assert!(!passes(Wanted::Equals("Running".into()), 1, "Running"));
        assert!(passes(Wanted::Matches(pattern()), 0, "Running"));
        assert!(!passes(Wanted::Matches(pattern()), 0, "Pending"));
        assert!(!passes(Wanted::Matches(pattern()), 1, "Running"));
        assert!(passes(Wanted::Lacks(pattern()), 0, "Pending"));
        assert!(!passes(Wanted::Lacks(pattern()), 0, "Running"));
        assert!(!passes(Wanted::Lacks(pattern()), 1, "Pending"), "a command that fails shows nothing");
        assert!(passes(Wanted::Absent, 0, "") && !passes(Wanted::Absent, 0, "Running"));
        assert!(passes(Wanted::Absent, 1, "Error from server (NotFound): pods \"web\" not found"));
        assert!(!passes(Wanted::Absent, 1, "The connection to the server x was refused"));
        assert!(passes(Wanted::Exit(3), 3, "") && !passes(Wanted::Exit(3), 0, ""));
    }

    #[test]
    fn what_is_missing_is_said_in_words() {
        let found = Output { code: Some(0), text: "Pending".into() };
        let said = judge(&check(Wanted::Equals("Running".into())), &found);
        let words = "pod/web {.status.phase} should be \"Running\"; found: \"Pending\"";
        assert_eq!(said, Verdict::Missing(words.into()));
        let own = Check { missing: Some("The Pod does not run yet.".into()), ..check(Wanted::Exit(0)) };
        let found = Output { code: Some(1), text: String::new() };
        assert_eq!(judge(&own, &found), Verdict::Missing("The Pod does not run yet.".into()));
    }

    #[test]
    fn words_are_words_to_the_shell() {
        let script = get("pods -l app=web", Some("a'; reboot; '"), "{.items[*].metadata.name}");
        let expected = "podwright get -n 'a'\\''; reboot; '\\''' 'pods' '-l' 'app=web' -o \
                        jsonpath='{.items[*].metadata.name}'";
        assert_eq!(script, expected);
    }
}
