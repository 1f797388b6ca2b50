//! The processes: one file each puts the parts together. `main` here turns argv into one of them, or into a client command.

use std::process::ExitCode;

use clap::Parser;

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
    #[command(flatten)]
    Client(cli::Command),
}

/// Parses argv, runs the command, and says how it went.
pub fn main() -> ExitCode {
    let argv = Argv::parse();
    match argv.command {
        Command::Client(command) => cli::main(command, argv.global),
    }
}
