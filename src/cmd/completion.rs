//! `completion`: shell completion of commands and flags.

use clap_complete::Shell;

#[derive(clap::Args)]
pub struct Args {
    /// The shell: bash, zsh, fish
    shell: Shell,
}

/// Prints the shell's script for `command`.
pub fn print(args: &Args, mut command: clap::Command) {
    clap_complete::generate(args.shell, &mut command, "podwright", &mut std::io::stdout().lock());
}
