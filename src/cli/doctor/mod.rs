//! `doctor`: which protections are in force on this host and in its cluster, and why others are not.
//!
//! [`host`] and [`cluster`] gather facts; the tables of [`kernel`], [`files`], [`server`] and [`workloads`] evaluate them, with one
//! row per check, each a pure function of the facts.

mod cluster;
mod facts;
mod files;
mod host;
mod kernel;
mod server;
#[cfg(test)]
mod tests;
mod workloads;

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;
use serde_json::json;

use self::facts::Facts;
use super::{
    Outcome, Session,
    error::Failure,
    print::{Format, Table, whole},
};
use podwright_api::Object;

#[derive(clap::Args)]
pub struct Args {
    /// Output format: json, yaml, wide (with the part of the CIS Kubernetes Benchmark 1.9 that asks for each, how it was found
    /// and what to do)
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
    /// Show only what is not in force: WARN, FAIL
    #[arg(long)]
    problems: bool,
    /// The server's state directory [default: that of its socket, or /var/lib/podwright]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// The state of a protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    #[serde(rename = "PASS")]
    Pass,
    /// It does not apply to this host or cluster, or cannot be determined from here.
    #[serde(rename = "N/A")]
    NotApplicable,
    /// Weaker than possible; an operator may choose that.
    #[serde(rename = "WARN")]
    Warn,
    /// Open to somebody who must not have access.
    #[serde(rename = "FAIL")]
    Fail,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "PASS",
            Verdict::NotApplicable => "N/A",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        }
    }
}

/// The result of a check, with an explanation.
type CheckResult = (Verdict, String);

fn pass(why: impl Into<String>) -> CheckResult {
    (Verdict::Pass, why.into())
}
fn not_applicable(why: impl Into<String>) -> CheckResult {
    (Verdict::NotApplicable, why.into())
}
fn warn(why: impl Into<String>) -> CheckResult {
    (Verdict::Warn, why.into())
}
fn fail(why: impl Into<String>) -> CheckResult {
    (Verdict::Fail, why.into())
}

/// One row per check.
pub struct Check {
    /// `AREA.NAME`, for scripts.
    id: &'static str,
    /// The corresponding sections of the CIS Kubernetes Benchmark 1.9, if any.
    cis: &'static [&'static str],
    what: &'static str,
    /// The source of the facts.
    how: &'static str,
    rule: fn(&Facts) -> CheckResult,
    remedy: &'static str,
}

/// All checks, in display order.
fn checks() -> impl Iterator<Item = &'static Check> {
    [kernel::CHECKS, files::CHECKS, server::CHECKS, workloads::CHECKS].into_iter().flatten()
}

/// A check with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Line {
    id: &'static str,
    area: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cis: &'static [&'static str],
    what: &'static str,
    how: &'static str,
    verdict: Verdict,
    why: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'static str,
}

fn judge(facts: &Facts) -> Vec<Line> {
    let line = |check: &'static Check| {
        let (verdict, why) = (check.rule)(facts);
        let remedy = if verdict >= Verdict::Warn { check.remedy } else { "" };
        let area = check.id.split('.').next().unwrap_or_default();
        Line { id: check.id, area, cis: check.cis, what: check.what, how: check.how, verdict, why, remedy }
    };
    checks().map(line).collect()
}

/// Exit code 0 if nothing fails, otherwise 1.
pub async fn run(args: Args, session: &Session) -> Outcome {
    let format = args.output.unwrap_or_default();
    if !matches!(format, Format::Table | Format::Wide | Format::Json | Format::Yaml) {
        return Err(Failure::usage("doctor has the output formats json, yaml and wide"));
    }
    let facts = Facts { host: host::look(args.state_dir, session), cluster: cluster::look(session).await };
    let mut lines = judge(&facts);
    let failed = lines.iter().any(|line| line.verdict == Verdict::Fail);
    if args.problems {
        lines.retain(|line| line.verdict >= Verdict::Warn);
    }
    match format {
        Format::Json | Format::Yaml => {
            let report = Object(json!({"kind": "ProtectionReport", "checks": lines}));
            raw!("{}", whole(&format, &report)?);
        }
        _ => show(&lines, matches!(format, Format::Wide)),
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(lines: &[Line], wide: bool) {
    let mut headings = vec!["CHECK", "VERDICT", "WHAT", "WHY"];
    if wide {
        headings.extend(["CIS", "FOUND BY", "REMEDY"]);
    }
    let mut rows = vec![headings.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for line in lines {
        let mut row = vec![line.id.to_owned(), line.verdict.word().to_owned(), line.what.to_owned(), line.why.clone()];
        if wide {
            row.extend([line.cis.join(","), line.how.to_owned(), line.remedy.to_owned()]);
        }
        rows.push(row);
    }
    out!("{}", Table::default().render(&rows));
    let count = |verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    let [passed, warned, failed] = [Verdict::Pass, Verdict::Warn, Verdict::Fail].map(count);
    outln!("\n{passed} in force, {warned} weaker than they could be, {failed} failed");
    if !wide {
        for line in lines.iter().filter(|line| line.verdict == Verdict::Fail) {
            outln!("{}: {}", line.id, line.remedy);
        }
    }
}
