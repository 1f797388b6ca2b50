//! The process that holds one sandbox. All of it is in the library: see `podwright_runtime::shim`.

fn main() -> std::process::ExitCode {
    podwright_runtime::shim::main()
}
