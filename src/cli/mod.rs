//! The client's commands: one file each, kubectl's verbs, flags, output and exit codes.
//!
//! What they share: `target` and `pods` (which objects argv means), `manifest` (what `-f` means), `print`, `page` and
//! `jsonpath` (how objects are shown), `out` (where to), `stream` and `terminal` (sessions with a node), `error` (how
//! failures are worded).

#[macro_use]
mod out;

mod api_resources;
mod api_versions;
mod apply;
mod attach;
mod auth;
mod autoscale;
mod backup;
mod certificate;
mod cluster_info;
mod cp;
mod create;
mod debug;
mod delete;
mod describe;
mod diff;
mod doctor;
mod edit;
mod error;
mod events;
mod exec;
mod explain;
mod expose;
mod fetch;
pub mod fuzz;
mod get;
mod image;
mod inspect;
pub mod jsonpath;
mod known;
mod label;
mod logs;
mod manifest;
mod nodes;
mod page;
mod patch;
mod pods;
mod port_forward;
mod print;
mod progress;
mod proxy;
mod replace;
mod rollout;
mod run;
mod scale;
mod set;
mod stream;
mod target;
mod terminal;
mod top;
mod trace;
mod version;
mod wait;
mod write;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::{
    api::{Kind, Object, Request, Response, Status, Verb, request::Body},
    client::{Client, rpc},
};

pub use progress::Progress;

/// Says something on standard error, of whomever its words are.
pub fn complain(text: std::fmt::Arguments<'_>) {
    out::complaint(text);
}

/// How every command ends: the exit code, or a failure to word.
pub type Outcome = Result<ExitCode, error::Failure>;

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
    /// How long one request may take, as 5s or 1m; 0: as long as it takes
    #[arg(long, global = true, default_value = "0", value_name = "TIME", value_parser = wait::duration, hide_default_value = true)]
    pub request_timeout: Duration,
}

/// One row a command.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Create or change objects to be as the manifests say
    Apply(apply::Args),
    /// Show what apply would change
    Diff(diff::Args),
    /// Create objects from manifests or flags
    Create(create::Args),
    /// Show objects
    Get(get::Args),
    /// Delete objects
    Delete(delete::Args),
    /// Show all about objects, with their events
    Describe(describe::Args),
    /// Change objects in an editor
    Edit(edit::Args),
    /// Change fields of objects
    Patch(patch::Args),
    /// Put manifests in the place of objects that exist
    Replace(replace::Args),
    /// Set and remove labels
    Label(label::Args),
    /// Set and remove annotations
    Annotate(label::Args),
    /// Change images, variables, resources and ServiceAccounts of containers and Pods
    Set(set::Args),
    /// Change how many replicas there shall be
    Scale(scale::Args),
    /// Have the number of replicas follow what Pods use
    Autoscale(autoscale::Args),
    /// Follow, undo, restart or hold back the rollout of a change
    Rollout(rollout::Args),
    /// Show what containers have said
    Logs(logs::Args),
    /// Make a Service for the Pods of an object
    Expose(expose::Args),
    /// Show what has happened
    Events(events::Args),
    /// Make a Pod of an image
    Run(run::Args),
    /// Let local ports lead into a Pod
    PortForward(port_forward::Args),
    /// Run a command in a container
    Exec(exec::Args),
    /// Join the standard streams of a container
    Attach(attach::Args),
    /// Copy files and folders to and from containers
    Cp(cp::Args),
    /// Join a container to a Pod that runs, to look into it
    Debug(debug::Args),
    /// Ask what one may do, and who one is
    Auth(auth::Args),
    /// Close nodes for new Pods
    Cordon(nodes::CordonArgs),
    /// Open nodes for new Pods again
    Uncordon(nodes::CordonArgs),
    /// Close nodes and evict their Pods
    Drain(nodes::DrainArgs),
    /// Set and remove the taints of nodes
    Taint(nodes::TaintArgs),
    /// Show what nodes and Pods use of CPU and memory
    Top(top::Args),
    /// Wait until objects are in a state
    Wait(wait::Args),
    /// Import, load, pull, list and remove images on a node
    Image(image::Args),
    /// Show a Pod as Linux sees it
    Inspect(inspect::Args),
    /// Tell a Pod's story, from the API write to the system calls
    Trace(trace::Args),
    /// Copy the server's store to a file, while it serves
    Backup(backup::Args),
    /// Tell which protections of this host and its cluster are in force, and why others are not
    Doctor(doctor::Args),
    /// List the kinds of objects
    ApiResources(api_resources::Args),
    /// List the groups and versions of the API
    ApiVersions(api_versions::Args),
    /// Show what the fields of objects mean
    Explain(explain::Args),
    /// Approve and deny certificate signing requests
    Certificate(certificate::Args),
    /// Show where the control plane and the services of the cluster are
    ClusterInfo(cluster_info::Args),
    /// Serve the API on a port of this machine, with the rights of who runs it
    Proxy(proxy::Args),
    /// Print the versions of client and server
    Version(version::Args),
}

impl Command {
    /// Whether it is about objects of any kind.
    fn names_kinds(&self) -> bool {
        use Command::*;
        !matches!(
            self,
            Logs(_)
                | Events(_)
                | Run(_)
                | PortForward(_)
                | Exec(_)
                | Attach(_)
                | Cp(_)
                | Debug(_)
                | Image(_)
                | Inspect(_)
                | Top(_)
                | Trace(_)
                | Backup(_)
                | Doctor(_)
                | Certificate(_)
                | ClusterInfo(_)
                | Proxy(_)
                | Version(_)
        )
    }

    /// The name under which a command's writes manage fields, as kubectl names them.
    fn manager(&self) -> &'static str {
        match self {
            Command::Create(_) => "kubectl-create",
            Command::Edit(_) => "kubectl-edit",
            Command::Patch(_) => "kubectl-patch",
            Command::Replace(_) => "kubectl-replace",
            Command::Label(_) => "kubectl-label",
            Command::Annotate(_) => "kubectl-annotate",
            Command::Set(_) => "kubectl-set",
            Command::Rollout(_) => "kubectl-rollout",
            Command::Expose(_) => "kubectl-expose",
            Command::Autoscale(_) => "kubectl-autoscale",
            Command::Run(_) => "kubectl-run",
            Command::Debug(_) => "kubectl-debug",
            Command::Cordon(_) | Command::Uncordon(_) => "kubectl-cordon",
            Command::Drain(_) => "kubectl-drain",
            Command::Taint(_) => "kubectl-taint",
            _ => "kubectl",
        }
    }
}

async fn dispatch(command: Command, session: &Session) -> Outcome {
    match command {
        Command::Apply(args) => apply::run(args, session).await,
        Command::Create(args) => create::run(args, session).await,
        Command::Get(args) => get::run(args, session).await,
        Command::Delete(args) => delete::run(args, session).await,
        Command::Describe(args) => describe::run(args, session).await,
        Command::Diff(args) => diff::run(args, session).await,
        Command::Edit(args) => edit::run(args, session).await,
        Command::Expose(args) => expose::run(args, session).await,
        Command::Inspect(args) => inspect::run(args, session).await,
        Command::Trace(args) => trace::run(args, session).await,
        Command::Backup(args) => backup::run(args, session).await,
        Command::Doctor(args) => doctor::run(args, session).await,
        Command::ApiResources(args) => api_resources::run(args).await,
        Command::ApiVersions(args) => api_versions::run(args).await,
        Command::Explain(args) => explain::run(args, session).await,
        Command::Certificate(args) => certificate::run(args, session).await,
        Command::ClusterInfo(args) => cluster_info::run(args, session).await,
        Command::Proxy(args) => proxy::run(args, session).await,
        Command::Patch(args) => patch::run(args, session).await,
        Command::Replace(args) => replace::run(args, session).await,
        Command::Label(args) => label::run(args, session, label::What::Labels).await,
        Command::Annotate(args) => label::run(args, session, label::What::Annotations).await,
        Command::Set(args) => set::run(args, session).await,
        Command::Scale(args) => scale::run(args, session).await,
        Command::Autoscale(args) => autoscale::run(args, session).await,
        Command::Rollout(args) => rollout::run(args, session).await,
        Command::Logs(args) => logs::run(args, session).await,
        Command::Events(args) => events::run(args, session).await,
        Command::Run(args) => run::run(args, session).await,
        Command::PortForward(args) => port_forward::run(args, session).await,
        Command::Exec(args) => exec::run(args, session).await,
        Command::Attach(args) => attach::run(args, session).await,
        Command::Cp(args) => cp::run(args, session).await,
        Command::Debug(args) => debug::run(args, session).await,
        Command::Auth(args) => auth::run(args, session).await,
        Command::Cordon(args) => nodes::cordon(args, session, true).await,
        Command::Uncordon(args) => nodes::cordon(args, session, false).await,
        Command::Drain(args) => nodes::drain(args, session).await,
        Command::Taint(args) => nodes::taint(args, session).await,
        Command::Image(args) => image::run(args, session).await,
        Command::Top(args) => top::run(args, session).await,
        Command::Wait(args) => wait::run(args, session).await,
        Command::Version(args) => version::run(args, session).await,
    }
}

/// Runs one client command.
pub fn main(command: Command, global: Global) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return error::Failure::from(anyhow::Error::from(e)).report(),
    };
    let outcome = runtime.block_on(async {
        let mut session = Session::open(global)?;
        session.client = session.client.named(command.manager());
        if command.names_kinds() {
            known::learn(&session).await;
        }
        dispatch(command, &session).await
    });
    // A reader of stdin may still hang in a thread of its own: do not wait for it.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|failure| failure.report())
}

/// What a command works with: the server and the namespace that argv names.
#[derive(Clone)]
pub struct Session {
    pub client: Client,
    pub namespace: String,
    /// Whether argv named the namespace.
    pub namespace_given: bool,
    socket: PathBuf,
}

impl Session {
    /// Nothing is dialled yet.
    fn open(global: Global) -> Result<Session, error::Failure> {
        let address: rpc::Address = global.server.parse().map_err(error::Failure::usage)?;
        Ok(Session {
            socket: address.0.clone(),
            client: rpc::client(address, "kubectl").to_any_version().within(global.request_timeout),
            namespace_given: global.namespace.is_some(),
            namespace: global.namespace.unwrap_or_else(|| "default".into()),
        })
    }

    /// Where the server is.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A request on one kind; the namespace is left out where the kind has none.
    pub fn request(&self, verb: Verb, kind: &Kind, namespace: Option<&str>, name: Option<&str>) -> Request {
        let namespace = namespace.unwrap_or(&self.namespace);
        Request {
            verb,
            resource: kind.exact(),
            namespace: kind.namespaced.then(|| namespace.to_owned()),
            name: name.map(str::to_owned),
            ..Request::default()
        }
    }

    /// Sends a request; its warnings go to standard error, as kubectl shows them.
    pub async fn call(&self, request: Request) -> Result<Response, Status> {
        let response = self.client.call(request).await?;
        for warning in &response.warnings {
            errln!("Warning: {warning}");
        }
        Ok(response)
    }

    /// Sends a request whose answer is one object.
    pub async fn object(&self, request: Request) -> Result<Object, Status> {
        match self.call(request).await?.body {
            Body::Object { bytes, .. } => Object::from_slice(&bytes),
            Body::Status(status) => Err(*status),
            _ => Err(Status::internal("the server did not answer with an object")),
        }
    }

    /// One object by kind and name.
    pub async fn get(&self, kind: &Kind, namespace: Option<&str>, name: &str) -> Result<Object, Status> {
        self.object(self.request(Verb::Get, kind, namespace, Some(name))).await
    }
}
