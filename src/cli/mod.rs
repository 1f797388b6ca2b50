//! The client's commands: one file each, kubectl's verbs, flags, output and exit codes.

mod version;

use std::process::ExitCode;

use clap::Args;

use crate::client::{Client, rpc};

/// Flags that every command takes.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The server: unix:///path/to/api.sock
    #[arg(
        long,
        short = 's',
        global = true,
        env = "PODWRIGHT_SERVER",
        default_value = "unix:///run/podwright/api.sock"
    )]
    pub server: String,
    /// The namespace of the objects named
    #[arg(long, short = 'n', global = true, value_name = "NAME")]
    pub namespace: Option<String>,
}

#[derive(clap::Subcommand)]
pub enum Command {
    /// Print the versions of client and server
    Version(version::Args),
}

impl Global {
    /// A client of the server that the flags name; nothing is dialled yet.
    pub fn client(&self) -> anyhow::Result<Client> {
        let address: rpc::Address = self.server.parse().map_err(anyhow::Error::msg)?;
        Ok(rpc::client(address, "kubectl"))
    }

    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

/// Runs one client command.
pub fn main(command: Command, global: Global) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(command, global)),
        Err(e) => Err(e.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn dispatch(command: Command, global: Global) -> anyhow::Result<()> {
    match command {
        Command::Version(args) => version::run(args, &global).await,
    }
}
