//! `top`: CPU and memory usage of nodes and Pods, in kubectl's columns.

use std::{cmp::Reverse, process::ExitCode};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::{Outcome, Session, error::Failure, print::Table};
use podwright_api::{
    Options, Quantity, duration,
    metrics::{ContainerMetrics, NodeMetrics, PodMetrics, ResourceList},
};

/// Younger Pods need not have metrics yet.
const METRICS_DELAY: i64 = 120;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Display resource (CPU/memory) usage of nodes
    #[command(visible_aliases = ["nodes", "no"])]
    Node(NodeArgs),
    /// Display resource (CPU/memory) usage of Pods
    #[command(visible_aliases = ["pods", "po"])]
    Pod(PodArgs),
}

/// Flags of both.
#[derive(clap::Args)]
struct Common {
    /// Only the one of this name
    name: Option<String>,
    /// Selector (label query) to filter on, as a=b,c!=d,e in (f,g)
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<String>,
    /// Sort by this field, the largest first: cpu, memory
    #[arg(long, value_name = "RESOURCE")]
    sort_by: Option<String>,
    /// Do not print headers in the default output format
    #[arg(long)]
    no_headers: bool,
}

#[derive(clap::Args)]
struct NodeArgs {
    #[command(flatten)]
    common: Common,
    /// Print node resources based on capacity instead of allocatable
    #[arg(long)]
    show_capacity: bool,
}

#[derive(clap::Args)]
struct PodArgs {
    #[command(flatten)]
    common: Common,
    /// Selector (field query) to filter on, as metadata.name=x
    #[arg(long, value_name = "FIELDS")]
    field_selector: Option<String>,
    /// Print usage of containers within a Pod
    #[arg(long)]
    containers: bool,
    /// List the requested objects across all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Print the sum of the resource usage
    #[arg(long)]
    sum: bool,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    match args.what {
        What::Node(args) => nodes(args, session).await?,
        What::Pod(args) => pods(args, session).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Common {
    fn check(&self, selectors: &str, selects: bool) -> Result<(), Failure> {
        if self.sort_by.as_deref().is_some_and(|by| !["cpu", "memory"].contains(&by)) {
            return Err(Failure::usage("--sort-by accepts only cpu or memory"));
        }
        if self.name.is_some() && selects {
            return Err(Failure::usage(format!("only one of NAME or {selectors} can be provided")));
        }
        Ok(())
    }

    /// Sorts by `--sort-by`, or else by name.
    fn sort<T, N: Ord>(&self, all: &mut [T], name: impl Fn(&T) -> N, usage: impl Fn(&T) -> Used) {
        match self.sort_by.as_deref() {
            Some("cpu") => all.sort_by_key(|one| Reverse(usage(one).cpu)),
            Some(_) => all.sort_by_key(|one| Reverse(usage(one).memory)),
            None => all.sort_by_key(name),
        }
    }

    fn show(&self, mut rows: Vec<Vec<String>>, headings: &[&str]) {
        if !self.no_headers {
            rows.insert(0, headings.iter().map(|heading| (*heading).to_owned()).collect());
        }
        out!("{}", Table::default().render(&rows));
    }
}

/// CPU and memory.
#[derive(Clone, Copy, Default)]
struct Used {
    cpu: Quantity,
    memory: Quantity,
}

impl Used {
    fn of(list: &ResourceList) -> Used {
        let quantity = |name: &str| list.get(name).and_then(|q| q.0.parse().ok()).unwrap_or_default();
        Used { cpu: quantity("cpu"), memory: quantity("memory") }
    }

    fn sum(containers: &[ContainerMetrics]) -> Used {
        containers.iter().map(|container| Used::of(&container.usage)).fold(Used::default(), Used::add)
    }

    fn add(self, other: Used) -> Used {
        Used { cpu: self.cpu + other.cpu, memory: self.memory + other.memory }
    }

    fn cells(&self) -> [String; 2] {
        [format!("{}m", self.cpu.millis()), format!("{}Mi", self.memory.value() / (1 << 20))]
    }

    /// The same with percentages of the total.
    fn cells_of(&self, there: &Used) -> [String; 4] {
        let percent = |used: Quantity, there: Quantity| match there.is_zero() {
            true => "0%".to_owned(),
            false => format!("{}%", (used.approximately() / there.approximately() * 100.0) as i64),
        };
        let [cpu, memory] = self.cells();
        [cpu, percent(self.cpu, there.cpu), memory, percent(self.memory, there.memory)]
    }
}

async fn nodes(args: NodeArgs, session: &Session) -> Result<(), Failure> {
    let NodeArgs { common, show_capacity } = args;
    common.check("--selector", common.selector.is_some())?;
    let options = Options { label_selector: common.selector.clone(), ..Options::default() };
    let (mut metrics, nodes) = match &common.name {
        Some(name) => {
            let metrics = session.client.get::<NodeMetrics>(None, name).await?;
            (vec![metrics], vec![session.client.get::<Node>(None, name).await?])
        }
        None => {
            let metrics = session.client.list::<NodeMetrics>(None, options.clone()).await?.items;
            (metrics, session.client.list::<Node>(None, options).await?.items)
        }
    };
    if metrics.is_empty() {
        return Err(Failure::usage("metrics not available yet"));
    }
    let name = |metrics: &NodeMetrics| metrics.metadata.name.clone().unwrap_or_default();
    common.sort(&mut metrics, name, |metrics| Used::of(&metrics.usage));
    let mut there: std::collections::BTreeMap<String, Used> = nodes
        .iter()
        .map(|node| {
            let status = node.status.as_ref();
            let list = status.and_then(|s| if show_capacity { s.capacity.as_ref() } else { s.allocatable.as_ref() });
            (node.metadata.name.clone().unwrap_or_default(), list.map(Used::of).unwrap_or_default())
        })
        .collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for metrics in &metrics {
        let there = there.remove(&name(metrics)).unwrap_or_default();
        rows.push([vec![name(metrics)], Used::of(&metrics.usage).cells_of(&there).to_vec()].concat());
    }
    // Nodes without metrics.
    rows.extend(there.into_keys().map(|name| [vec![name], vec!["<unknown>".to_owned(); 4]].concat()));
    common.show(rows, &["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]);
    Ok(())
}

async fn pods(args: PodArgs, session: &Session) -> Result<(), Failure> {
    let common = &args.common;
    common.check("selector", common.selector.is_some() || args.field_selector.is_some())?;
    let namespace = Some(session.namespace.as_str()).filter(|_| !args.all_namespaces);
    let options = Options {
        label_selector: common.selector.clone(),
        field_selector: args.field_selector.clone(),
        ..Options::default()
    };
    let mut metrics = match &common.name {
        Some(name) => vec![session.client.get::<PodMetrics>(namespace, name).await?],
        None => session.client.list::<PodMetrics>(namespace, options.clone()).await?.items,
    };
    if metrics.is_empty() {
        return none(session, namespace, options).await;
    }
    common.sort(&mut metrics, full_name, |metrics| Used::sum(&metrics.containers));
    let mut rows = metrics.iter_mut().flat_map(|metrics| args.rows(metrics)).collect::<Vec<_>>();
    let headings = [("NAMESPACE", args.all_namespaces), ("POD", args.containers)];
    let mut headings: Vec<&str> = headings.iter().filter(|(_, shown)| *shown).map(|(heading, _)| *heading).collect();
    headings.extend(["NAME", "CPU(cores)", "MEMORY(bytes)"]);
    if args.sum {
        let total = metrics.iter().map(|m| Used::sum(&m.containers)).fold(Used::default(), Used::add);
        let blank = vec![String::new(); headings.len() - 2];
        rows.push([blank.clone(), vec!["________".to_owned(); 2]].concat());
        rows.push([blank, total.cells().to_vec()].concat());
    }
    common.show(rows, &headings);
    Ok(())
}

/// Namespace and name, in sort order.
fn full_name(metrics: &PodMetrics) -> (Option<String>, Option<String>) {
    (metrics.metadata.namespace.clone(), metrics.metadata.name.clone())
}

impl PodArgs {
    /// The row of a Pod, or those of its containers.
    fn rows(&self, metrics: &mut PodMetrics) -> Vec<Vec<String>> {
        let meta = &metrics.metadata;
        let mut before: Vec<String> = meta.namespace.iter().filter(|_| self.all_namespaces).cloned().collect();
        before.extend(meta.name.clone());
        if !self.containers {
            return vec![[before, Used::sum(&metrics.containers).cells().to_vec()].concat()];
        }
        self.common.sort(&mut metrics.containers, |c| c.name.clone(), |c| Used::of(&c.usage));
        let row =
            |c: &ContainerMetrics| [before.clone(), vec![c.name.clone()], Used::of(&c.usage).cells().to_vec()].concat();
        metrics.containers.iter().map(row).collect()
    }
}

/// Why there are no metrics: there are no Pods, or they are too young.
async fn none(session: &Session, namespace: Option<&str>, options: Options) -> Result<(), Failure> {
    let pods = session.client.list::<Pod>(namespace, options).await?.items;
    if pods.is_empty() {
        match namespace {
            Some(namespace) => errln!("No resources found in {namespace} namespace."),
            None => errln!("No resources found"),
        }
        return Ok(());
    }
    let now = Timestamp::now();
    for pod in pods {
        let age = pod.metadata.creation_timestamp.map_or(0, |created| now.duration_since(created.0).as_secs());
        if age > METRICS_DELAY {
            let (namespace, name) = (pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default());
            let age = duration::go(std::time::Duration::from_secs(age.unsigned_abs()));
            return Err(Failure::usage(format!("Metrics not available for pod {namespace}/{name}, age: {age}")));
        }
    }
    Err(Failure::usage("metrics not available yet"))
}
