//! `podwright`: argv to one command.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    podwright::cmd::main()
}
