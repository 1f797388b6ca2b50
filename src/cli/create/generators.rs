//! Generates objects from flags: `create deployment x --image=...` and the like.

use base64::Engine;
use serde_json::{Map, Value, json};

use super::{
    access, batch, bounds, ingress,
    object::{named, with},
    sources::{DataError, Sources},
};
use crate::error::Failure;
use podwright_api::Object;

#[derive(clap::Subcommand)]
pub enum Generator {
    /// Create a namespace with the specified name
    #[command(visible_alias = "ns")]
    Namespace {
        /// The name of the object to create
        name: String,
    },
    /// Create a service account with the specified name
    #[command(visible_alias = "sa")]
    Serviceaccount {
        /// The name of the object to create
        name: String,
    },
    /// Create a deployment with the specified name
    #[command(visible_alias = "deploy")]
    Deployment(Deployment),
    /// Create a job with the specified name
    Job(batch::Job),
    /// Create a cron job with the specified name
    #[command(visible_alias = "cj")]
    Cronjob(batch::CronJob),
    /// Create a config map from a local file, directory or literal value
    #[command(visible_alias = "cm")]
    Configmap {
        /// The name of the object to create
        name: String,
        #[command(flatten)]
        sources: Sources,
    },
    /// Create a secret using a specified subcommand
    Secret {
        #[command(subcommand)]
        kind: Secret,
    },
    /// Create a service that selects app=NAME
    #[command(visible_alias = "svc")]
    Service {
        #[command(subcommand)]
        kind: Service,
    },
    /// Create a role with single rule
    Role(access::Role),
    /// Create a cluster role
    Clusterrole(access::ClusterRole),
    /// Create a role binding for a particular role or cluster role
    Rolebinding(access::RoleBinding),
    /// Create a cluster role binding for a particular cluster role
    Clusterrolebinding(access::ClusterRoleBinding),
    /// Create a quota with the specified name
    #[command(visible_alias = "resourcequota")]
    Quota(bounds::Quota),
    /// Create a pod disruption budget with the specified name
    #[command(visible_alias = "pdb")]
    Poddisruptionbudget(bounds::PodDisruptionBudget),
    /// Create a priority class with the specified name
    #[command(visible_alias = "pc")]
    Priorityclass(bounds::PriorityClass),
    /// Create an ingress with the specified name
    #[command(visible_alias = "ing")]
    Ingress(ingress::Ingress),
}

#[derive(clap::Args)]
pub struct Deployment {
    /// The name of the object to create
    name: String,
    /// Image names to run, one container each
    #[arg(long, required = true, value_delimiter = ',')]
    image: Vec<String>,
    /// Number of replicas to create
    #[arg(long, short = 'r', default_value_t = 1)]
    replicas: u32,
    /// The port that this container exposes
    #[arg(long)]
    port: Option<u16>,
    /// The container's command, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(clap::Subcommand)]
pub enum Secret {
    /// Create a secret from a local file, directory or literal value
    Generic {
        /// The name of the object to create
        name: String,
        #[command(flatten)]
        sources: Sources,
        /// The type of secret to create
        #[arg(long = "type", value_name = "TYPE")]
        of_type: Option<String>,
    },
    /// Create a secret for use with a container registry
    DockerRegistry {
        /// The name of the object to create
        name: String,
        /// Server location for the registry
        #[arg(long, default_value = "https://index.docker.io/v1/")]
        docker_server: String,
        /// User name for registry authentication
        #[arg(long)]
        docker_username: String,
        /// Password for registry authentication
        #[arg(long)]
        docker_password: String,
        /// Email for the registry
        #[arg(long, default_value = "")]
        docker_email: String,
    },
    /// Create a TLS secret
    Tls {
        /// The name of the object to create
        name: String,
        /// Path to the PEM encoded public key certificate
        #[arg(long)]
        cert: std::path::PathBuf,
        /// Path to the private key associated with the given certificate
        #[arg(long)]
        key: std::path::PathBuf,
    },
}

#[derive(clap::Subcommand)]
pub enum Service {
    /// Create a ClusterIP service
    Clusterip {
        /// The name of the object to create
        name: String,
        /// Port pairs, as PORT or PORT:TARGET
        #[arg(long, value_delimiter = ',')]
        tcp: Vec<String>,
        /// "None" for a headless Service
        #[arg(long)]
        clusterip: Option<String>,
    },
    /// Create a NodePort service
    Nodeport {
        /// The name of the object to create
        name: String,
        /// Port pairs, as PORT or PORT:TARGET
        #[arg(long, value_delimiter = ',', required = true)]
        tcp: Vec<String>,
        /// Port used to expose the service on each node; 0: allocated by the server
        #[arg(long, default_value_t = 0)]
        node_port: u16,
    },
}

impl Generator {
    /// The arguments that name resource types.
    pub fn resources(&self) -> Vec<&str> {
        match self {
            Generator::Role(role) => role.resources().collect(),
            Generator::Clusterrole(role) => role.resources().collect(),
            _ => Vec::new(),
        }
    }

    /// The object, without a namespace.
    pub fn object(&self) -> Result<Object, Failure> {
        let value = match self {
            Generator::Namespace { name } => with(named("v1", "Namespace", name), json!({ "spec": {}, "status": {} })),
            Generator::Serviceaccount { name } => named("v1", "ServiceAccount", name),
            Generator::Deployment(args) => deployment(args).map_err(Failure::usage)?,
            Generator::Job(args) => args.object(None).map_err(Failure::usage)?,
            Generator::Cronjob(args) => args.object(),
            Generator::Configmap { name, sources } => config_map(name, sources).map_err(Failure::usage)?,
            Generator::Secret { kind } => secret(kind)?,
            Generator::Service { kind } => service(kind).map_err(Failure::usage)?,
            Generator::Role(args) => args.object()?,
            Generator::Clusterrole(args) => args.object()?,
            Generator::Rolebinding(args) => args.object()?,
            Generator::Clusterrolebinding(args) => args.object()?,
            Generator::Quota(args) => args.object()?,
            Generator::Poddisruptionbudget(args) => args.object()?,
            Generator::Priorityclass(args) => args.object(),
            Generator::Ingress(args) => args.object()?,
        };
        Ok(Object(value))
    }
}

fn deployment(args: &Deployment) -> Result<Value, String> {
    if args.image.len() > 1 && !args.command.is_empty() {
        return Err("cannot specify multiple --image options and command".to_owned());
    }
    let labels = json!({ "app": args.name });
    let container = |(at, image): (usize, &String)| {
        // The image's last part, without tag and digest.
        let name = image.rsplit('/').next().unwrap_or(image);
        let mut container = json!({ "image": image, "name": name.split([':', '@']).next(), "resources": {} });
        if !args.command.is_empty() {
            container["command"] = json!(args.command);
        }
        if let (0, Some(port)) = (at, args.port) {
            container["ports"] = json!([{ "containerPort": port }]);
        }
        container
    };
    let containers: Vec<Value> = args.image.iter().enumerate().map(container).collect();
    let mut object = named("apps/v1", "Deployment", &args.name);
    object["metadata"]["labels"] = labels.clone();
    let template =
        json!({ "metadata": { "creationTimestamp": null, "labels": labels }, "spec": { "containers": containers } });
    let selector = json!({ "matchLabels": labels });
    let spec = json!({ "replicas": args.replicas, "selector": selector, "strategy": {}, "template": template });
    Ok(with(object, json!({ "spec": spec, "status": {} })))
}

fn config_map(name: &str, sources: &Sources) -> Result<Value, DataError> {
    let (mut text, mut binary) = (Map::new(), Map::new());
    for (key, bytes) in sources.read()? {
        match String::from_utf8(bytes) {
            Ok(value) => drop(text.insert(key, value.into())),
            Err(other) => drop(binary.insert(key, encoded(other.as_bytes()).into())),
        }
    }
    let mut object = named("v1", "ConfigMap", name);
    for (field, map) in [("binaryData", binary), ("data", text)] {
        if !map.is_empty() {
            object[field] = Value::Object(map);
        }
    }
    Ok(object)
}

fn encoded(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn secret(kind: &Secret) -> Result<Value, Failure> {
    let file = |path: &std::path::Path| {
        std::fs::read(path).map_err(|why| Failure::usage(format!("reading {}: {why}", path.display())))
    };
    let (name, data, of_type) = match kind {
        Secret::Generic { name, sources, of_type } => (name, sources.read().map_err(Failure::usage)?, of_type.clone()),
        Secret::DockerRegistry { name, docker_server, docker_username, docker_password, docker_email } => {
            let mut login = json!({ "username": docker_username, "password": docker_password });
            if !docker_email.is_empty() {
                login["email"] = json!(docker_email);
            }
            login["auth"] = encoded(format!("{docker_username}:{docker_password}").as_bytes()).into();
            let config = json!({ "auths": { docker_server: login } }).to_string().into_bytes();
            (name, vec![(".dockerconfigjson".to_owned(), config)], Some("kubernetes.io/dockerconfigjson".to_owned()))
        }
        Secret::Tls { name, cert, key } => {
            let data = vec![("tls.crt".to_owned(), file(cert)?), ("tls.key".to_owned(), file(key)?)];
            (name, data, Some("kubernetes.io/tls".to_owned()))
        }
    };
    let mut object = named("v1", "Secret", name);
    let data: Map<String, Value> = data.into_iter().map(|(key, bytes)| (key, encoded(&bytes).into())).collect();
    if !data.is_empty() {
        object["data"] = Value::Object(data);
    }
    if let Some(of_type) = of_type {
        object["type"] = of_type.into();
    }
    Ok(object)
}

fn service(kind: &Service) -> Result<Value, String> {
    let (name, tcp, node_port, of_type, address) = match kind {
        Service::Clusterip { name, tcp, clusterip } => (name, tcp, 0, "ClusterIP", clusterip.as_deref()),
        Service::Nodeport { name, tcp, node_port } => (name, tcp, *node_port, "NodePort", None),
    };
    if tcp.is_empty() && address != Some("None") {
        return Err("at least one tcp port specifier must be provided".to_owned());
    }
    let mut ports = tcp.iter().map(|text| port(text)).collect::<Result<Vec<_>, _>>()?;
    if node_port > 0 {
        ports.iter_mut().for_each(|port| port["nodePort"] = node_port.into());
    }
    let labels = json!({ "app": name });
    let mut object = named("v1", "Service", name);
    object["metadata"]["labels"] = labels.clone();
    let mut spec = json!({ "ports": ports, "selector": labels, "type": of_type });
    if let Some(address) = address {
        spec["clusterIP"] = address.into();
    }
    Ok(with(object, json!({ "spec": spec, "status": { "loadBalancer": {} } })))
}

/// `80`, `80:8080` or `80:http`: the port, named after itself.
fn port(text: &str) -> Result<Value, String> {
    let (port, target) = text.split_once(':').unwrap_or((text, text));
    let number = |word: &str| word.parse::<u16>().ok().filter(|n| *n > 0);
    let port = number(port).ok_or_else(|| format!("invalid port {text:?}: must be a number of 1 to 65535"))?;
    let target = number(target).map_or_else(|| Value::from(target), Value::from);
    Ok(json!({ "name": text.replace(':', "-"), "port": port, "protocol": "TCP", "targetPort": target }))
}
