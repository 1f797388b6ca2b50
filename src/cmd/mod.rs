//! The processes: one file each puts the parts together. `main` here turns argv into one of them, or into a client command.

mod agent;
mod control_plane;
mod encryption;
mod endpoint;
mod node;
mod notify;
mod paths;
mod requests;
mod reset;
mod server;
mod shutdown;
mod up;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};
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
    /// Run this machine's node alone, against a server
    Agent(agent::Args),
    /// Remove everything that a node of this machine ever made
    Reset(reset::Args),
    /// Print the administrator's kubeconfig, for kubectl
    Kubeconfig(endpoint::PrintArgs),
    #[command(flatten)]
    Client(cli::Command),
}

/// The words read again with their switches as kubectl takes them too: `--all=true` is `--all`, `--all=false` is nothing.
fn switched(words: &[OsString]) -> Option<Argv> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let plain = words.iter().enumerate().filter_map(|(at, word)| match word.to_str() {
        Some(flag) if at < end && flag.starts_with("--") && flag.ends_with("=false") => None,
        Some(flag) if at < end && flag.starts_with("--") => {
            Some(OsString::from(flag.strip_suffix("=true").unwrap_or(flag)))
        }
        _ => Some(word.clone()),
    });
    Argv::try_parse_from(plain).ok()
}

/// Parses argv, runs the command, and says how it went.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let argv = match Argv::try_parse_from(&words).or_else(|why| switched(&words).ok_or(why)) {
        Ok(argv) => argv,
        Err(why) => {
            // What a flag's own reader says is said as kubectl says it.
            if let (ErrorKind::ValueValidation, Some(source)) = (why.kind(), std::error::Error::source(&why)) {
                eprintln!("error: {source}");
                return ExitCode::FAILURE;
            }
            // Help is no failure; a wrong flag is one, with kubectl's exit code. Nobody may read either.
            why.print().ok();
            return if why.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    podwright_runtime::image::install_crypto();
    let outcome = match argv.command {
        Command::Up(args) => process(up::run(args)),
        Command::Agent(args) => process(agent::run(args, argv.global)),
        Command::Reset(args) => process(reset::run(args)),
        Command::Server(args) => process(server::run(args)),
        Command::Kubeconfig(args) => endpoint::print(args, argv.global),
        Command::Client(command) => return cli::main(command, argv.global),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("podwright: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a long-lived process on a small thread pool; its log goes to standard error.
fn process(task: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    // Levels as in `info,podwright=debug`.
    let levels = std::env::var("PODWRIGHT_LOG").ok().and_then(|words| words.parse::<Targets>().ok());
    let levels = levels.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    // A log that goes to a file holds no colours.
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(colours);
    tracing_subscriber::registry().with(levels).with(log).init();
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let outcome = runtime.block_on(task);
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    outcome
}
