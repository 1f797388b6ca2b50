//! The client's commands: one file each, with kubectl's verbs, flags, output and exit codes.
//!
//! Shared: `target` and `pods` (which objects the arguments name), `manifest` (`-f`), `print`, `page` and `jsonpath` (formatting),
//! `out` (output), `stream` and `terminal` (sessions with a node), `error` (error messages).

#![forbid(unsafe_code)]

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
mod lab;
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
mod token;
mod top;
mod trace;
mod version;
mod wait;
mod who;
mod why;
mod write;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use podwright_api::{Kind, Object, Request, Response, Status, Verb, request::Body};
use podwright_client::{Client, rpc};

pub use nodes::{LeaveArgs, Leaving};
pub use progress::Progress;

/// Prints a message on standard error, escaped, as it may contain others' text.
pub fn complain(text: std::fmt::Arguments<'_>) {
    out::complaint(text);
}

/// The result of every command: the exit code, or a failure to report.
pub type Outcome = Result<ExitCode, error::Failure>;

/// Flags that every command takes.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The address of the API server, as unix:///path/to/api.sock
    #[arg(
        long,
        short = 's',
        global = true,
        env = "PODWRIGHT_SERVER",
        default_value = "unix:///run/podwright/api.sock"
    )]
    pub server: String,
    /// The namespace scope of this request
    #[arg(long, short = 'n', global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The length of time to wait before giving up on a single server request, as 5s or 1m; 0: no timeout
    #[arg(long, global = true, default_value = "0", value_name = "TIME", value_parser = wait::duration, hide_default_value = true)]
    pub request_timeout: Duration,
}

/// One row a command.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Apply a configuration to resources by file name or stdin
    Apply(apply::Args),
    /// Diff the live version against a would-be applied version
    Diff(diff::Args),
    /// Create resources from a file, from stdin or from flags
    Create(create::Args),
    /// Display one or many resources
    Get(get::Args),
    /// Delete resources by file names, stdin, resources and names, or by label selector
    Delete(delete::Args),
    /// Show details of a specific resource or group of resources
    Describe(describe::Args),
    /// Edit resources on the server
    Edit(edit::Args),
    /// Update fields of resources
    Patch(patch::Args),
    /// Replace resources by file name or stdin
    Replace(replace::Args),
    /// Update the labels on resources
    Label(label::Args),
    /// Update the annotations on resources
    Annotate(label::Args),
    /// Set specific features on objects
    Set(set::Args),
    /// Set a new size for a deployment, replica set, replication controller or stateful set
    Scale(scale::Args),
    /// Auto-scale a deployment, replica set, stateful set or replication controller
    Autoscale(autoscale::Args),
    /// Manage the rollout of one or many resources
    Rollout(rollout::Args),
    /// Print the logs for a container in a Pod
    Logs(logs::Args),
    /// Expose a resource as a new Service
    Expose(expose::Args),
    /// List events
    Events(events::Args),
    /// Run a particular image in a Pod
    Run(run::Args),
    /// Forward one or more local ports to a Pod
    PortForward(port_forward::Args),
    /// Execute a command in a container
    Exec(exec::Args),
    /// Attach to a running container
    Attach(attach::Args),
    /// Copy files and directories to and from containers
    Cp(cp::Args),
    /// Debug a running Pod with an ephemeral container
    Debug(debug::Args),
    /// Inspect authorization
    Auth(auth::Args),
    /// Mark nodes as unschedulable
    Cordon(nodes::CordonArgs),
    /// Mark nodes as schedulable
    Uncordon(nodes::CordonArgs),
    /// Drain nodes in preparation for maintenance
    Drain(nodes::DrainArgs),
    /// Update the taints on nodes
    Taint(nodes::TaintArgs),
    /// Manage bootstrap tokens, by which machines join the cluster
    Token(token::Args),
    /// Display resource (CPU/memory) usage
    Top(top::Args),
    /// Wait for a specific condition on one or many resources
    Wait(wait::Args),
    /// Manage the images on a node
    Image(image::Args),
    /// Show a Pod as Linux sees it
    Inspect(inspect::Args),
    /// Show which Pod a process, namespace, cgroup, link, mount, nftables element or port belongs to, and who applied it
    Who(who::Args),
    /// Trace a Pod from the API write to the system calls
    Trace(trace::Args),
    /// Explain which object allows or drops a connection
    Why(why::Args),
    /// Study Pods and Linux in labs, each on an isolated node of its own
    Lab(lab::Args),
    /// Write a consistent backup of the server's store to a file
    Backup(backup::Args),
    /// Check which protections of this host and its cluster are in force
    Doctor(doctor::Args),
    /// Print the supported API resources on the server
    ApiResources(api_resources::Args),
    /// Print the supported API versions on the server, in the form of "group/version"
    ApiVersions(api_versions::Args),
    /// Get documentation for a resource
    Explain(explain::Args),
    /// Modify certificate signing requests
    Certificate(certificate::Args),
    /// Display the addresses of the control plane and cluster services
    ClusterInfo(cluster_info::Args),
    /// Run a proxy to the Kubernetes API server
    Proxy(proxy::Args),
    /// Print the client and server version information
    Version(version::Args),
}

impl Command {
    /// Whether it needs all kinds; other commands request them when an argument is not built in.
    fn lists_kinds(&self) -> bool {
        matches!(self, Command::ApiResources(_) | Command::ApiVersions(_) | Command::Explain(_))
    }

    /// The field manager of a command's writes, as in kubectl.
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
        Command::Who(args) => who::run(args, session).await,
        Command::Trace(args) => trace::run(args, session).await,
        Command::Why(args) => why::run(args, session).await,
        Command::Lab(args) => lab::run(args).await,
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
        Command::Token(args) => token::run(args, session).await,
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
        if command.lists_kinds() {
            known::learn(&session).await;
        }
        dispatch(command, &session).await
    });
    // A thread may still be blocked reading stdin: do not wait for it.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|failure| failure.report())
}

/// The context of a command: the server and the namespace.
#[derive(Clone)]
pub struct Session {
    pub client: Client,
    pub namespace: String,
    /// Whether the namespace was given explicitly.
    pub namespace_given: bool,
    socket: PathBuf,
}

impl Session {
    /// Does not connect yet.
    fn open(global: Global) -> Result<Session, error::Failure> {
        let address: rpc::Address = global.server.parse().map_err(error::Failure::usage)?;
        let socket = address.0.clone();
        Ok(Session { socket, ..Session::with(rpc::client(address, "kubectl"), global) })
    }

    /// The same by a way of its own.
    fn with(client: Client, global: Global) -> Session {
        Session {
            socket: PathBuf::new(),
            client: client.to_any_version().within(global.request_timeout),
            namespace_given: global.namespace.is_some(),
            namespace: global.namespace.unwrap_or_else(|| "default".into()),
        }
    }

    /// The server's address.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A request on one kind, without the namespace if the kind is cluster-scoped.
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

    /// Sends a request; prints warnings on standard error, like kubectl.
    pub async fn call(&self, request: Request) -> Result<Response, Status> {
        let response = self.client.call(request).await?;
        warn(&response);
        Ok(response)
    }

    /// Sends a request whose response is one object.
    pub async fn object(&self, request: Request) -> Result<Object, Status> {
        object_of(self.call(request).await?)
    }

    /// One object by kind and name.
    pub async fn get(&self, kind: &Kind, namespace: Option<&str>, name: &str) -> Result<Object, Status> {
        self.object(self.request(Verb::Get, kind, namespace, Some(name))).await
    }
}

/// Prints a response's warnings on standard error, like kubectl.
fn warn(response: &Response) {
    for warning in &response.warnings {
        errln!("Warning: {warning}");
    }
}

/// The object that a response consists of.
fn object_of(response: Response) -> Result<Object, Status> {
    match response.body {
        Body::Object { bytes, .. } => Object::from_slice(&bytes),
        Body::Status(status) => Err(*status),
        _ => Err(Status::internal("the server did not answer with an object")),
    }
}

/// The flags of one command, for its tests.
#[cfg(test)]
fn flags<'a, A: Args>(words: impl IntoIterator<Item = &'a str>) -> A {
    let command = A::augment_args(clap::Command::new("podwright").no_binary_name(true));
    let matches = command.try_get_matches_from(words).expect("well-formed argv");
    A::from_arg_matches(&matches).expect("well-formed argv")
}
