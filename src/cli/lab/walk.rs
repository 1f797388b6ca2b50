//! Does a step for its learner, or a whole lab as CI does, and waits until its checks pass.

use std::time::{Duration, Instant};

use super::check::{self, Verdict};
use super::course::{Check, Lab, Step, Subject};
use super::shell::{Output, Running, Shell};

/// The pause between two evaluations of a check.
const OFTEN: Duration = Duration::from_millis(100);
/// How long what a second terminal shows may come later than what it shows.
const LATE: Duration = Duration::from_secs(5);

/// What a step's commands printed.
#[derive(Default)]
pub struct Shown {
    pub run: String,
    pub look: String,
    pub watch: String,
}

/// Why a step is not done: what is missing, in words, with what was printed until then.
pub struct Undone {
    pub missing: String,
    pub shown: Shown,
}

/// Does a step: 1. starts what a second terminal would show, 2. runs its commands, 3. waits for its checks, 4. looks until the output
/// is as expected, 5. ends the second terminal.
pub async fn perform(step: &Step, shell: &Shell, patience: Duration) -> anyhow::Result<Result<Shown, Undone>> {
    let deadline = Instant::now() + patience;
    let mut shown = Shown::default();
    let watch = step.watch.as_deref().map(|script| shell.start(script)).transpose()?;
    let done = attempt(step, shell, deadline, patience, &mut shown).await?;
    if let Some(watch) = watch {
        shown.watch = end(watch).await?;
    }
    let done = done.and_then(|()| match step.watch.is_some() && shown.watch.trim().is_empty() {
        true => Err("the command for a second terminal shows nothing".to_owned()),
        false => Ok(()),
    });
    Ok(match done {
        Ok(()) => Ok(shown),
        Err(missing) => Err(Undone { missing, shown }),
    })
}

async fn attempt(
    step: &Step,
    shell: &Shell,
    deadline: Instant,
    patience: Duration,
    shown: &mut Shown,
) -> anyhow::Result<Result<(), String>> {
    if let Some(script) = &step.run {
        let output = shell.run(script, patience).await?;
        shown.run = output.text;
        if output.code != Some(0) {
            return Ok(Err(failed("the step's commands", output.code)));
        }
    }
    for check in step.checks.iter().filter(|check| check.subject != Subject::Look) {
        while let Verdict::Missing(why) = check::evaluate(check, None, shell).await? {
            if Instant::now() > deadline {
                return Ok(Err(why));
            }
            tokio::time::sleep(OFTEN).await;
        }
    }
    let Some(script) = &step.look else { return Ok(Ok(())) };
    loop {
        let output = shell.run(script, patience).await?;
        let verdict = looked(step, &output, shell).await?;
        shown.look = output.text;
        match verdict {
            Ok(()) => return Ok(Ok(())),
            Err(why) if Instant::now() > deadline => return Ok(Err(why)),
            Err(_) => tokio::time::sleep(OFTEN).await,
        }
    }
}

/// Whether the output of `look` is what all checks of it expect.
async fn looked(step: &Step, output: &Output, shell: &Shell) -> anyhow::Result<Result<(), String>> {
    if output.code != Some(0) {
        return Ok(Err(format!("{}: {}", failed("what shows the step", output.code), output.text.trim_end())));
    }
    for check in step.checks.iter().filter(|check| check.subject == Subject::Look) {
        if check::concerns(check, shell).await?
            && let Verdict::Missing(why) = check::judge(check, output)
        {
            return Ok(Err(why));
        }
    }
    Ok(Ok(()))
}

fn failed(what: &str, code: Option<i32>) -> String {
    match code {
        Some(code) => format!("{what} exited with {code}"),
        None => format!("a signal ended {what}"),
    }
}

/// Gives a second terminal the time to show something, and ends it.
async fn end(mut watch: Running) -> anyhow::Result<String> {
    let deadline = Instant::now() + LATE;
    while watch.is_silent() && !watch.has_ended()? && Instant::now() < deadline {
        tokio::time::sleep(OFTEN).await;
    }
    watch.stop().await
}

/// Evaluates a step's checks once: each with its verdict.
pub async fn evaluate<'a>(step: &'a Step, shell: &Shell) -> anyhow::Result<Vec<(&'a Check, Verdict)>> {
    let mut verdicts = Vec::new();
    for check in &step.checks {
        verdicts.push((check, check::evaluate(check, step.look.as_deref(), shell).await?));
    }
    Ok(verdicts)
}

/// The checks that pass although their step was not done: they could not fail. Those of output are tried on nodes on which nothing was
/// done at all, before the first step (`at` 0); those of state just before their step.
pub async fn idle_checks(lab: &Lab, at: usize, shell: &Shell) -> anyhow::Result<Vec<String>> {
    let mut idle = Vec::new();
    for (number, step) in (1..).zip(&lab.steps) {
        for check in &step.checks {
            let due = if check.subject == Subject::Look { 0 } else { number };
            if due == at && check::evaluate(check, step.look.as_deref(), shell).await? == Verdict::Passed {
                idle.push(format!("step {number}: {} passes before the step is done", check::describe(check)));
            }
        }
    }
    Ok(idle)
}
