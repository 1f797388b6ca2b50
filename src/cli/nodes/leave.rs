//! What `node leave` does at the server: it empties a Node and deletes it, so that its name is free.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{Failure, Session, Writing, close, drain, kind_of};
use crate::{Global, wait};
use podwright_api::{Object, Verb, request::Preconditions};
use podwright_client::{informers::NODE_LEASES, kubeconfig, rpc};

#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Also end Pods that declare no controller, and give up those that cannot be drained as the node's agent does not run
    #[arg(long)]
    force: bool,
    /// Period of time in seconds given to each Pod to terminate gracefully; negative: the Pod's own
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    grace_period: i64,
    /// The length of time to wait for Pods; 0s: wait forever
    #[arg(long, default_value = "0s", value_parser = wait::duration)]
    timeout: Duration,
    /// An administrator's kubeconfig, where the server's socket is not on this machine (the server's admin.kubeconfig)
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// A Node that is to leave.
pub struct Leaving {
    args: Args,
    session: Session,
    name: String,
    /// None: it has left.
    node: Option<Object>,
}

impl Leaving {
    /// Looks the Node up.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub async fn begin(args: &Args, global: Global, name: &str) -> anyhow::Result<Leaving> {
        let session = match &args.kubeconfig {
            None => Session::open(global).map_err(Failure::into_error)?,
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("--kubeconfig {}", file.display()))?;
                let server = kubeconfig::server(&text).with_context(|| format!("--kubeconfig {}", file.display()))?;
                Session::with(rpc::over_tls(server, "kubectl"), global)
            }
        };
        let node = match session.get(kind_of("nodes"), None, name).await {
            Ok(node) => Some(node),
            Err(why) if why.is_not_found() => None,
            Err(why) => {
                let why = Failure::from(why).into_error();
                return Err(why.context(
                    "an administrator's access to the cluster is needed: give --kubeconfig FILE, or run 'podwright node leave NAME' \
                     on the server's machine",
                ));
            }
        };
        Ok(Leaving { args: args.clone(), session, name: name.to_owned(), node })
    }

    /// Whether the Node is there no more.
    pub fn has_left(&self) -> bool {
        self.node.is_none()
    }

    /// Closes the Node for new Pods; and, where its agent runs, ends those that are there, but for a DaemonSet's and static ones.
    ///
    /// # Errors
    /// Pods declare no controller, or would stay as no agent runs, and `--force` is not given; or one could not be ended in time.
    pub async fn empty(&self, agent_runs: bool) -> anyhow::Result<()> {
        let Some(node) = &self.node else { return Ok(()) };
        let emptied = async {
            close(&self.session, &Writing::default(), node, true).await?;
            let deadline = Some(self.args.timeout).filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
            let args = drain::Args::of_leaving(self.args.force, self.args.grace_period);
            if agent_runs {
                return drain::empty(&args, &self.session, node, deadline).await;
            }
            match drain::would_evict(&args, &self.session, node).await? {
                pods if pods.is_empty() || self.args.force => Ok(()),
                pods => Err(Failure::usage(format!(
                    "its agent does not run, so these Pods cannot be drained: {}: start it and try again, or give them up by --force",
                    pods.join(", ")
                ))),
            }
        };
        emptied.await.map_err(|why| why.into_error().context(format!("draining the node {}", self.name)))
    }

    /// Whether the Node's agent has renewed its Lease as one does that runs.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub async fn is_alive(&self) -> anyhow::Result<bool> {
        if self.has_left() {
            return Ok(false);
        }
        match self.session.get(kind_of("leases"), Some(NODE_LEASES), &self.name).await {
            Ok(lease) => Ok(counts(&lease, Timestamp::now())),
            Err(why) if why.is_not_found() => Ok(false),
            Err(why) => Err(Failure::from(why).into_error()),
        }
    }

    /// Deletes the Node, and its Lease.
    ///
    /// # Errors
    /// The server refuses it: another Node has the name by now, or one may not.
    pub async fn delete(&self) -> anyhow::Result<()> {
        // A machine that registers just now under this name keeps its Lease.
        let Some(node) = &self.node else { return Ok(()) };
        self.remove("nodes", None, Some(node.uid())).await?;
        outln!("node/{} deleted", self.name);
        self.remove("leases", Some(NODE_LEASES), None).await
    }

    async fn remove(&self, kind: &str, namespace: Option<&str>, uid: Option<&str>) -> anyhow::Result<()> {
        let mut request = self.session.request(Verb::Delete, kind_of(kind), namespace, Some(&self.name));
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        request.options.preconditions = preconditions;
        match self.session.call(request).await {
            Err(why) if !why.is_not_found() => {
                Err(Failure::from(why).into_error().context(format!("deleting {kind}/{}", self.name)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to go on while the Node's agent runs: it would register again what is deleted.
    ///
    /// # Errors
    /// It runs.
    pub async fn ensure_ended(&self) -> anyhow::Result<()> {
        ensure!(
            !self.is_alive().await?,
            "the node {0} is drained, but its agent still runs, or ran less than a minute ago, and would register it again: end the agent \
             there (systemctl stop podwright-agent), then run this again",
            self.name
        );
        Ok(())
    }
}

/// Whether a Lease has been renewed for now.
fn counts(lease: &Object, now: Timestamp) -> bool {
    let renewed = lease.0["spec"]["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let seconds = lease.0["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let end = renewed.and_then(|at| at.checked_add(SignedDuration::from_secs(seconds)).ok());
    end.is_some_and(|end| now < end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_counts_until_its_time_is_over() {
        let lease = Object(json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40}}));
        let at = |time: &str| counts(&lease, time.parse().expect("a time"));
        assert!(at("2026-01-01T00:00:39Z") && !at("2026-01-01T00:00:40Z"));
        assert!(!counts(&Object(json!({"spec": {}})), Timestamp::now()));
    }
}
