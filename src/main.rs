//! `podwright`: argv to one command.

fn main() -> std::process::ExitCode {
    podwright::cmd::main()
}
