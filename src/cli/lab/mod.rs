//! `lab`: guided labs, each on isolated nodes of its own.
//!
//! `course` is a lab as it is written, `library` where labs come from, `place` a started one with its `nodes`; `shell` runs commands,
//! `check` evaluates what should be so, `walk` does steps, `render` shows text.

mod busybox;
mod check;
mod course;
mod library;
mod nodes;
mod place;
mod render;
mod shell;
mod walk;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::{Outcome, error::Failure, print::Table, terminal, wait};
use check::Verdict;
use course::{Lab, Step};
use library::Library;
use place::Place;
use render::Style;
use walk::{Shown, Undone};

#[derive(clap::Args)]
pub struct Args {
    /// The directory of started labs
    #[arg(long, global = true, value_name = "DIR", env = "PODWRIGHT_LABS_DIR", default_value = place::DEFAULT_ROOT)]
    folder: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List all labs
    List(From),
    /// Start a lab on isolated nodes of its own
    Start {
        /// The lab, by name or number
        lab: String,
        #[command(flatten)]
        from: From,
    },
    /// Show the current step of a started lab
    Show {
        #[command(flatten)]
        of: Started,
        #[command(flatten)]
        way: Way,
    },
    /// Go to the next step once the current one's checks pass
    Next {
        #[command(flatten)]
        of: Started,
        #[command(flatten)]
        way: Way,
        /// Go on even if checks do not pass
        #[arg(long)]
        skip: bool,
    },
    /// Run the current step's checks and show what is missing
    Check(Started),
    /// Show the answer to the current step's question
    Answer(Started),
    /// Open a shell in the directory of a started lab, connected to its node
    Shell(Started),
    /// End the process of a lab's first node with SIGKILL, which leaves its Pods alone
    Kill(Started),
    /// Start the first node of a lab again after its process has ended
    Restart(Started),
    /// Show the labs that are started
    Status,
    /// End a lab's nodes and remove everything that they made
    Reset(Started),
    /// Walk through labs without a learner; fail with the first check that does not pass
    Run(Run),
}

#[derive(clap::Args)]
struct From {
    /// Take labs from this directory instead of those built in
    #[arg(long, value_name = "DIR")]
    labs: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Started {
    /// The lab, by name or number [default: the only one that is started]
    lab: Option<String>,
}

/// How a step is gone through.
#[derive(clap::Args)]
struct Way {
    /// Run the step's commands and show their output
    #[arg(long = "do")]
    perform: bool,
    /// The length of time to wait for the step's checks after its commands
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = wait::duration)]
    timeout: Duration,
}

#[derive(clap::Args)]
struct Run {
    /// The labs, by name or number
    #[arg(required_unless_present = "all", value_name = "LAB")]
    names: Vec<String>,
    /// Walk through all labs
    #[arg(long, conflicts_with = "names")]
    all: bool,
    #[command(flatten)]
    from: From,
    /// The length of time to wait for each step's checks
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = wait::duration)]
    timeout: Duration,
    /// Also prove that each check fails before its step is done
    #[arg(long, hide = true)]
    prove: bool,
}

pub async fn run(args: Args) -> Outcome {
    let root = std::path::absolute(&args.folder)?;
    let outcome = match args.action {
        Action::List(from) => list(&root, &from),
        Action::Start { lab, from } => start(&root, &lab, &from).await,
        Action::Show { of, way } => show(&open(&root, &of)?, &way).await,
        Action::Next { of, way, skip } => next(open(&root, &of)?, &way, skip).await,
        Action::Check(of) => check(&open(&root, &of)?).await,
        Action::Answer(of) => answer(&open(&root, &of)?),
        Action::Shell(of) => shell(&open(&root, &of)?).await,
        Action::Kill(of) => kill(open(&root, &of)?).await,
        Action::Restart(of) => restart(open(&root, &of)?).await,
        Action::Status => status(&root),
        Action::Reset(of) => reset(&open(&root, &of)?).await,
        Action::Run(args) => run_all(&root, &args).await,
    };
    outcome.map_err(Failure::from)
}

fn style() -> Style {
    if std::io::stdout().is_terminal() { Style::Terminal } else { Style::Plain }
}

/// A started lab: the one that is named, or the only one.
fn open(root: &Path, of: &Started) -> anyhow::Result<Place> {
    let started = place::started(root)?;
    match (&of.lab, started.as_slice()) {
        (Some(word), _) => {
            let number = |name: &str| name.split('-').next().map(|n| n.trim_start_matches('0').to_owned());
            let same = |name: &&String| {
                let rest = name.split_once('-').map_or("", |(_, rest)| rest);
                *name == word || rest == word || number(name).as_deref() == Some(word.trim_start_matches('0'))
            };
            let name = started.iter().find(same);
            let name =
                name.with_context(|| format!("{word} is not started; `podwright lab start {word}` does that"))?;
            Place::open(root, name)
        }
        (None, [name]) => Place::open(root, name),
        (None, []) => {
            anyhow::bail!("no lab is started; `podwright lab list` shows all, `podwright lab start` starts one")
        }
        (None, many) => anyhow::bail!("several labs are started; name one of {}", many.join(", ")),
    }
}

fn list(root: &Path, from: &From) -> anyhow::Result<ExitCode> {
    let (library, started) = (Library::open(from.labs.as_deref())?, place::started(root)?);
    let mut rows = vec![["NAME", "LEVEL", "MINUTES", "STARTED", "TITLE"].map(str::to_owned).to_vec()];
    for name in library.names() {
        let lab = library.lab(name)?;
        let is_started = if started.iter().any(|other| other == name) { "yes" } else { "" };
        rows.push(vec![name.into(), lab.level.to_string(), lab.minutes.to_string(), is_started.into(), lab.title]);
    }
    out!("{}", Table::default().render(&rows));
    Ok(ExitCode::SUCCESS)
}

/// Refuses before anything is started: making namespaces needs root, and commands need their programs.
fn check_host(lab: &Lab) -> anyhow::Result<()> {
    anyhow::ensure!(rustix::process::geteuid().is_root(), "a lab's node makes namespaces, which needs root");
    let missing: Vec<&str> =
        lab.tools.iter().map(String::as_str).filter(|tool| busybox::on_path(tool).is_none()).collect();
    anyhow::ensure!(missing.is_empty(), "this lab uses programs that are not installed: {}", missing.join(", "));
    Ok(())
}

async fn start(root: &Path, word: &str, from: &From) -> anyhow::Result<ExitCode> {
    let library = Library::open(from.labs.as_deref())?;
    let name = library.find(word)?;
    let lab = library.lab(name)?;
    check_host(&lab)?;
    Place::start(root, name, &lab, library.files(name)?).await?;
    raw!("{}", introduction(name, &lab, style()));
    Ok(ExitCode::SUCCESS)
}

fn introduction(name: &str, lab: &Lab, style: Style) -> String {
    let nodes = if lab.nodes == 1 { "A node of its own runs".to_owned() } else { format!("{} nodes run", lab.nodes) };
    let commands = format!(
        "podwright lab next {name}     # the first step\npodwright lab shell {name}    # a shell, connected to the lab's node"
    );
    format!(
        "{}\n{}\n\n{}, {} minutes, {} steps. {nodes} for this lab.\n\n{}",
        render::heading(&lab.title, style),
        render::text(lab.goal.trim_end(), style),
        lab.level,
        lab.minutes,
        lab.steps.len(),
        render::commands(&commands, style),
    )
}

/// The current step with its number.
fn current<'a>(place: &Place, lab: &'a Lab) -> anyhow::Result<(usize, &'a Step)> {
    let number = place.record.step;
    let name = &place.name;
    match number.checked_sub(1).map(|index| lab.steps.get(index)) {
        Some(Some(step)) => Ok((number, step)),
        None => anyhow::bail!("{name} is at its beginning; `podwright lab next {name}` shows the first step"),
        Some(None) => anyhow::bail!("{name} is done; `podwright lab reset {name}` ends its node"),
    }
}

async fn show(place: &Place, way: &Way) -> anyhow::Result<ExitCode> {
    let lab = place.lab()?;
    if place.record.step == 0 && !way.perform {
        raw!("{}", introduction(&place.name, &lab, style()));
        return Ok(ExitCode::SUCCESS);
    }
    let (number, step) = current(place, &lab)?;
    raw!("{}", page(step, number, lab.steps.len(), style()));
    if !way.perform {
        return Ok(ExitCode::SUCCESS);
    }
    match walk::perform(step, &place.shell(), way.timeout).await? {
        Ok(shown) => {
            raw!("{}", printed(&shown, style()));
            Ok(ExitCode::SUCCESS)
        }
        Err(Undone { missing, shown }) => {
            raw!("{}", printed(&shown, style()));
            anyhow::bail!("not done: {missing}");
        }
    }
}

/// A step as a page.
fn page(step: &Step, number: usize, count: usize, style: Style) -> String {
    let mut page = render::heading(&format!("{number}/{count} {}", step.title), style);
    page += &format!("\n{}\n", render::text(step.text.trim_end(), style));
    let parts = [
        ("Watch it live, in a second terminal (`podwright lab shell`):", &step.watch),
        ("Run:", &step.run),
        ("Look:", &step.look),
    ];
    for (title, script) in parts {
        if let Some(script) = script {
            page += &format!("\n{}\n{}", render::text(title, style), render::commands(script, style));
        }
    }
    if let Some(observe) = &step.observe {
        page += &format!("\n{}\n", render::text(&format!("Look for: {}", observe.trim_end()), style));
    }
    if let Some(question) = &step.question {
        let ask = format!("**Question:** {} (`podwright lab answer`)", question.ask.trim_end());
        page += &format!("\n{}\n", render::text(&ask, style));
    }
    page
}

/// What the commands of a step printed.
fn printed(shown: &Shown, style: Style) -> String {
    let mut page = String::new();
    for (title, text) in
        [("$ Run", &shown.run), ("$ Look", &shown.look), ("$ Meanwhile, in the second terminal", &shown.watch)]
    {
        if !text.trim().is_empty() {
            page += &format!("\n{}{}\n", render::heading(title, style), super::page::plain(text.trim_end()));
        }
    }
    page
}

async fn next(mut place: Place, way: &Way, skip: bool) -> anyhow::Result<ExitCode> {
    let lab = place.lab()?;
    if place.record.step > 0 {
        let (_, step) = current(&place, &lab)?;
        let verdicts = walk::evaluate(step, &place.shell()).await?;
        let missing: Vec<&str> = verdicts.iter().filter_map(|(_, verdict)| missing(verdict)).collect();
        if !missing.is_empty() && !skip {
            let all = missing.join("\n  ");
            anyhow::bail!(
                "the current step is not done yet:\n  {all}\n`podwright lab next --skip` goes on all the same"
            );
        }
    }
    place.record.step += 1;
    place.save()?;
    if place.record.step > lab.steps.len() {
        let name = &place.name;
        out!("That was the last step. `podwright lab reset {name}` ends the lab's node and leaves nothing.\n");
        return Ok(ExitCode::SUCCESS);
    }
    show(&place, way).await
}

fn missing(verdict: &Verdict) -> Option<&str> {
    if let Verdict::Missing(why) = verdict { Some(why) } else { None }
}

async fn check(place: &Place) -> anyhow::Result<ExitCode> {
    let lab = place.lab()?;
    let (_, step) = current(place, &lab)?;
    let verdicts = walk::evaluate(step, &place.shell()).await?;
    for (check, verdict) in &verdicts {
        match verdict {
            Verdict::Passed => outln!("ok       {}", check::describe(check)),
            Verdict::Skipped => outln!("skipped  {}: not on this host", check::describe(check)),
            Verdict::Missing(why) => outln!("missing  {why}"),
        }
    }
    match verdicts.iter().any(|(_, verdict)| missing(verdict).is_some()) {
        true => Ok(ExitCode::FAILURE),
        false => {
            outln!("The step is done; `podwright lab next` shows the next one.");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn answer(place: &Place) -> anyhow::Result<ExitCode> {
    let lab = place.lab()?;
    let (_, step) = current(place, &lab)?;
    let question = step.question.as_ref().context("this step has no question")?;
    raw!("{}\n", render::text(question.ask.trim_end(), style()));
    if terminal::is_interactive() && style() == Style::Terminal {
        outln!("(Enter shows the answer.)");
        std::io::stdin().read_line(&mut String::new())?;
    }
    raw!("{}\n", render::text(question.answer.trim_end(), style()));
    Ok(ExitCode::SUCCESS)
}

async fn shell(place: &Place) -> anyhow::Result<ExitCode> {
    let program = std::env::var_os("SHELL").unwrap_or_else(|| "sh".into());
    let status = place.shell().command(program).status().await?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

async fn kill(mut place: Place) -> anyhow::Result<ExitCode> {
    place.kill().await?;
    outln!("{} killed", place.name);
    Ok(ExitCode::SUCCESS)
}

async fn restart(mut place: Place) -> anyhow::Result<ExitCode> {
    place.restart().await?;
    outln!("{} restarted", place.name);
    Ok(ExitCode::SUCCESS)
}

fn status(root: &Path) -> anyhow::Result<ExitCode> {
    let mut rows = vec![["NAME", "STEP", "NODES", "FOLDER"].map(str::to_owned).to_vec()];
    for name in place::started(root)? {
        let place = Place::open(root, &name)?;
        let steps = place.lab().map_or(0, |lab| lab.steps.len());
        let step = if place.record.step > steps { "done".into() } else { format!("{}/{steps}", place.record.step) };
        let nodes = if place.runs() { "running" } else { "ended" };
        rows.push(vec![name, step, nodes.into(), place.folder().display().to_string()]);
    }
    match rows.len() {
        1 => outln!("No lab is started."),
        _ => out!("{}", Table::default().render(&rows)),
    }
    Ok(ExitCode::SUCCESS)
}

async fn reset(place: &Place) -> anyhow::Result<ExitCode> {
    place.reset().await?;
    outln!("{} reset", place.name);
    Ok(ExitCode::SUCCESS)
}

async fn run_all(root: &Path, args: &Run) -> anyhow::Result<ExitCode> {
    let library = Library::open(args.from.labs.as_deref())?;
    let names: Vec<&str> = match args.all {
        true => library.names().collect(),
        false => args.names.iter().map(|word| library.find(word)).collect::<Result<_, _>>()?,
    };
    for name in names {
        let lab = library.lab(name)?;
        check_host(&lab)?;
        // Beside one that a learner has started.
        let place =
            Place::start(root, &format!("{name}.run-{}", std::process::id()), &lab, library.files(name)?).await?;
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let walked = tokio::select! {
            walked = walk_through(name, &lab, &place, args) => walked,
            _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
            _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
        };
        // The node ends either way; why the walk failed says more than why its end did.
        let ended = place.reset().await;
        walked.and(ended).with_context(|| name.to_owned())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn walk_through(name: &str, lab: &Lab, place: &Place, args: &Run) -> anyhow::Result<()> {
    let shell = place.shell();
    outln!("{name}: {}", lab.title);
    let mut idle = Vec::new();
    if args.prove {
        idle.extend(walk::idle_checks(lab, 0, &shell).await?);
    }
    for (number, step) in (1..).zip(&lab.steps) {
        let begin = Instant::now();
        if args.prove {
            idle.extend(walk::idle_checks(lab, number, &shell).await?);
        }
        if let Err(Undone { missing, shown }) = walk::perform(step, &shell, args.timeout).await? {
            errln!("{}", printed(&shown, Style::Plain));
            anyhow::bail!("step {number} ({}): {missing}", step.title);
        }
        outln!("  {number}/{} {} ({:.1} s)", lab.steps.len(), step.title, begin.elapsed().as_secs_f64());
    }
    anyhow::ensure!(idle.is_empty(), "checks that cannot fail:\n  {}", idle.join("\n  "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const LAB: &str = "
title: Create a Pod
goal: See what **runs**.
level: beginner
minutes: 5
steps:
- title: Apply
  text: A `Pod` is made.
  watch: podwright get pods -w
  run: |
    podwright apply -f pod.yaml
    podwright get pods
  observe: the phase.
  question: {ask: Why?, answer: Because.}
";

    #[test]
    fn a_step_is_a_page() {
        let lab = Lab::parse(LAB).unwrap();
        expect![[r#"
            1/1 Apply
            ---------

            A `Pod` is made.

            Watch it live, in a second terminal (`podwright lab shell`):
                podwright get pods -w

            Run:
                podwright apply -f pod.yaml
                podwright get pods

            Look for: the phase.

            **Question:** Why? (`podwright lab answer`)
        "#]]
        .assert_eq(&page(&lab.steps[0], 1, 1, Style::Plain));
        expect![[r#"
            Create a Pod
            ------------

            See what **runs**.

            beginner, 5 minutes, 1 steps. A node of its own runs for this lab.

                podwright lab next 01-x     # the first step
                podwright lab shell 01-x    # a shell, connected to the lab's node
        "#]]
        .assert_eq(&introduction("01-x", &lab, Style::Plain));
    }
}
