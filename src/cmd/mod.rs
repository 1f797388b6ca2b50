//! The processes: one file for each assembles its parts. `main` here dispatches to one of them, or to a client command.

mod agent;
mod collector;
mod completion;
mod confine;
mod control_plane;
mod durations;
mod encryption;
mod endpoint;
mod flags;
mod folder;
mod joining;
mod leave;
mod lines;
mod man;
mod node;
mod node_args;
mod node_name;
mod notify;
mod oidc;
mod paths;
mod private;
mod profiles;
mod requests;
mod reset;
mod server;
mod shutdown;
mod state_dir;
mod store;
mod up;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use clap::{
    ArgMatches, CommandFactory, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};

use crate::cli;

/// Kubernetes manifests on a bare Linux host, with no container runtime.
#[derive(Parser)]
#[command(name = "podwright", version, propagate_version = true, max_term_width = 110)]
struct Argv {
    #[command(flatten)]
    global: cli::Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Run the control plane and this machine's node in one process
    Up(up::Args),
    /// Run the control plane alone: store, API server, controllers, scheduler
    Server(server::Args),
    /// Run this machine's node alone, connected to a server
    Agent(agent::Args),
    /// Remove everything that a node has made on this machine
    Reset(reset::ResetArgs),
    /// Manage this machine's, or another's, place in the cluster
    Node(leave::Args),
    /// Print the administrator's kubeconfig, for kubectl
    Kubeconfig(endpoint::PrintArgs),
    /// Output shell completion code for the specified shell
    Completion(completion::Args),
    /// Write the manual pages of all commands
    #[command(hide = true)]
    Man(man::Args),
    #[command(flatten)]
    Client(cli::Command),
}

/// Parses the arguments, accepting boolean values for switches like kubectl: `--all=true` is `--all`, `--all=false` is nothing.
fn parse<T: Parser>(mut words: Vec<OsString>) -> Result<(T, ArgMatches), clap::Error> {
    loop {
        let why = match T::command().try_get_matches_from(&words) {
            Ok(matches) => return T::from_arg_matches(&matches).map(|argv| (argv, matches)),
            Err(why) => why,
        };
        // The error names the switch that was given a value.
        let Some(ContextValue::String(switch)) = why.get(ContextKind::InvalidArg) else { return Err(why) };
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        let given = |value: &str| words[..end].iter().position(|word| *word == *format!("{switch}={value}"));
        match (why.kind(), given("true"), given("false")) {
            (ErrorKind::TooManyValues, Some(at), _) => words[at] = switch.into(),
            (ErrorKind::TooManyValues, None, Some(at)) => drop(words.remove(at)),
            _ => return Err(why),
        }
    }
}

/// An invalid value of a flag, in kubectl's words.
fn refused(why: &clap::Error) -> Option<String> {
    let (ErrorKind::ValueValidation, Some(source)) = (why.kind(), std::error::Error::source(why)) else { return None };
    let (Some(ContextValue::String(flag)), Some(ContextValue::String(value))) =
        (why.get(ContextKind::InvalidArg), why.get(ContextKind::InvalidValue))
    else {
        return Some(source.to_string());
    };
    match flag.split(' ').next().unwrap_or_default() {
        // The parser's error includes the value.
        "--output" | "--for" => Some(source.to_string()),
        flag => Some(format!("invalid argument \"{value}\" for \"{flag}\" flag: {source}")),
    }
}

/// Parses the arguments, runs the command, and reports its result.
pub fn main() -> ExitCode {
    let (argv, matches) = match parse::<Argv>(std::env::args_os().collect()) {
        Ok(argv) => argv,
        Err(why) => {
            if let Some(said) = refused(&why) {
                eprintln!("error: {said}");
                return ExitCode::FAILURE;
            }
            // Help is not an error; a wrong flag is one, with kubectl's exit code. Output errors are ignored.
            why.print().ok();
            return if why.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    podwright_runtime::image::install_crypto();
    let outcome = match argv.command {
        Command::Up(mut args) => {
            args.control_plane.told = flags::told(&Argv::command(), &matches);
            process(up::run(args))
        }
        Command::Agent(args) => {
            agent::hide_token(&args);
            process(agent::run(args, argv.global))
        }
        Command::Reset(args) => process(reset::run(args)),
        Command::Node(args) => process(leave::run(args, argv.global)),
        Command::Server(mut args) => logged(|| {
            args.control_plane.told = flags::told(&Argv::command(), &matches);
            let confined = server::confined(&args)?;
            run(server::run(args, confined))
        }),
        Command::Kubeconfig(args) => endpoint::print(args, argv.global),
        Command::Completion(args) => {
            completion::print(&args, Argv::command());
            return ExitCode::SUCCESS;
        }
        Command::Man(args) => man::write(&args, Argv::command()),
        Command::Client(command) => return cli::main(command, argv.global),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The message may contain a server's text.
            cli::complain(format_args!("podwright: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Libraries that would log transferred data, including tokens and Secrets, at certain levels (CVE-2019-11250); and warn about
/// peers, which may cause that any number of times.
const WIRES: &[&str] =
    &["jsonrpsee", "h2", "hyper", "rustls", "tungstenite", "tokio_tungstenite", "soketto", "hickory_proto"];

/// Log levels, such as `info,podwright=debug`. Transport libraries only log errors, and on explicit request at most that something
/// happened.
fn levels(words: &str) -> anyhow::Result<Targets> {
    let asked: Targets = match words {
        "" => Targets::new().with_default(LevelFilter::INFO),
        // Former modules are crates now: older units use the module's name.
        words => {
            words.replace("podwright::", "podwright_").parse().with_context(|| format!("PODWRIGHT_LOG={words}"))?
        }
    };
    let quiet = WIRES.iter().fold(asked.clone(), |levels, target| levels.with_target(*target, LevelFilter::ERROR));
    let named = asked.iter().filter(|(target, _)| WIRES.iter().any(|wire| target.starts_with(wire)));
    Ok(named.fold(quiet, |levels, (target, level)| levels.with_target(target, level.min(LevelFilter::INFO))))
}

/// A long-lived process.
fn process(task: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    logged(|| run(task))
}

/// Logs to standard error, and raises the limit of descriptors.
fn logged(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let levels = levels(&std::env::var("PODWRIGHT_LOG").unwrap_or_default())?;
    // A log to a file has no colours.
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt::layer();
    let log = log.with_writer(move || lines::Lines { colours }).with_target(false).with_ansi(colours);
    tracing_subscriber::registry().with(levels).with(log).init();
    if let Err(why) = podwright_runtime::sys::own::raise_descriptor_limit() {
        tracing::warn!("failed to raise the limit of open descriptors: setrlimit RLIMIT_NOFILE: {why}");
    }
    work()
}

/// The stack of each pool thread: a request body, nested as deeply as parsers allow, is parsed far down the stack of a connection.
/// Only the used part takes memory.
const STACK: usize = 8 << 20;

/// Runs a task on a small thread pool.
fn run(task: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_stack_size(STACK)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(task);
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    // The last task has recorded its operations only now.
    podwright_journal::flush();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser, Debug, PartialEq)]
    struct Few {
        #[arg(long)]
        all: bool,
        #[arg(long)]
        no_headers: bool,
        #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
        wait: bool,
        #[arg(last = true)]
        rest: Vec<String>,
    }

    fn parsed<T: Parser>(line: &str) -> Result<T, clap::Error> {
        parse(line.split(' ').map(OsString::from).collect()).map(|(argv, _)| argv)
    }

    /// The error message for arguments.
    fn said(line: &str) -> String {
        let why = parsed::<Argv>(line).err().expect("refused");
        refused(&why).unwrap_or_else(|| why.to_string())
    }

    #[test]
    fn switches_take_values_and_no_other_flag_is_changed_by_that() {
        let few = parsed::<Few>("x --all=true --no-headers=false --wait=false -- --all=false").unwrap();
        let rest = vec!["--all=false".to_owned()];
        assert_eq!(few, Few { all: true, no_headers: false, wait: false, rest });
        assert!(parsed::<Few>("x --all=maybe").is_err());
        let unknown = said("podwright get pods --no-headers=true --sideways=false");
        assert!(unknown.contains("--sideways"), "{unknown}");
    }

    /// The commands, subcommands and flags of `command` without a description in `--help`.
    fn unexplained(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_help().is_none()) {
            found.push(format!("{path} {arg}"));
        }
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            let path = format!("{path} {}", inner.get_name());
            if inner.get_about().is_none() {
                found.push(path.clone());
            }
            unexplained(inner, &path, found);
        }
    }

    #[test]
    fn help_explains_every_command_and_every_flag() {
        let (mut command, mut found) = (Argv::command(), Vec::new());
        command.build();
        unexplained(&command, "podwright", &mut found);
        assert!(found.is_empty(), "without a help text: {found:#?}");
    }

    #[test]
    fn of_the_wire_errors_are_logged_and_never_what_goes_over_it() {
        use tracing::Level;
        let logs = |words: &str, target: &str| {
            let levels = levels(words).unwrap();
            let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
            all.iter().filter(|level| levels.would_enable(target, level)).count()
        };
        for (words, target, most) in [
            ("", "podwright_server", 3),
            ("", "h2::proto::connection", 1),
            ("", "hyper_util::client", 1),
            ("", "rustls::conn", 1),
            ("", "hickory_proto::rr::rdata::opt", 1),
            ("trace", "podwright", 5),
            ("warn,podwright::server=debug", "podwright_server::verbs", 4),
            ("trace", "h2", 1),
            ("warn,h2=warn", "h2", 2),
            ("info,h2::proto=trace", "h2::proto", 3),
            ("info,h2=off", "h2", 0),
            ("error", "rustls", 1),
        ] {
            assert_eq!(logs(words, target), most, "{words:?} {target}");
        }
        assert!(levels("podwright=loud").is_err());
    }

    #[test]
    fn a_wrong_value_is_told_with_its_flag() {
        assert_eq!(
            said("podwright up --node-monitor-grace-period soon"),
            "invalid argument \"soon\" for \"--node-monitor-grace-period\" flag: expected a duration, as 40s or 1m30s"
        );
        assert!(said("podwright get pods -o xml").starts_with("unable to match a printer"));
    }
}
