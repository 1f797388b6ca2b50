//! `create job` and `create cronjob`: from an image and a command, or a Job from a CronJob.

use serde_json::{Value, json};

use super::object::{named, with};
use crate::{Session, error::Failure, known, target};
use podwright_api::Object;

/// Marks Jobs created by hand from a CronJob.
const BY_HAND: &str = "cronjob.kubernetes.io/instantiate";

#[derive(clap::Args)]
pub struct Job {
    /// The name of the object to create
    name: String,
    /// Image name to run
    #[arg(long)]
    image: Option<String>,
    /// The name of the resource to create a Job from, as cronjob/NAME
    #[arg(long, value_name = "cronjob/NAME")]
    from: Option<String>,
    /// The container's command, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(clap::Args)]
pub struct CronJob {
    /// The name of the object to create
    name: String,
    /// Image name to run
    #[arg(long)]
    image: String,
    /// A schedule in the Cron format: minute, hour, day, month, day of the week
    #[arg(long)]
    schedule: String,
    /// The restart policy: OnFailure, Never
    #[arg(long, default_value = "OnFailure")]
    restart: String,
    /// The container's command, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Job {
    /// The CronJob of `--from`, if given.
    pub async fn source(&self, session: &Session) -> Result<Option<Object>, Failure> {
        let Some(from) = &self.from else { return Ok(None) };
        let (kind, name) = from.split_once('/').unwrap_or(("cronjob", from));
        known::learn_of(session, [kind]).await;
        let kind = target::kind(kind)?;
        if kind.built_in() != "CronJob" {
            return Err(Failure::usage(format!("from must be an existing cronjob: {from}")));
        }
        Ok(Some(session.get(kind, None, name).await?))
    }

    pub fn object(&self, source: Option<&Object>) -> Result<Value, String> {
        if self.image.is_some() == self.from.is_some() {
            return Err("either --image or --from must be specified".to_owned());
        }
        if self.from.is_some() && !self.command.is_empty() {
            return Err("cannot specify --from and command".to_owned());
        }
        let mut job = named("batch/v1", "Job", &self.name);
        let spec = match source {
            None => spec(&self.name, self.image.as_deref().unwrap_or_default(), &self.command, "Never"),
            Some(cron) => {
                let template = &cron.0["spec"]["jobTemplate"];
                let from = &template["metadata"];
                let mut annotations = json!({ BY_HAND: "manual" });
                annotations = with(annotations, from["annotations"].clone());
                job["metadata"]["annotations"] = annotations;
                if from["labels"].is_object() {
                    job["metadata"]["labels"] = from["labels"].clone();
                }
                job["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "batch/v1", "controller": true, "kind": "CronJob", "name": cron.name(),
                    "uid": cron.uid(),
                }]);
                template["spec"].clone()
            }
        };
        Ok(with(job, json!({ "spec": spec, "status": {} })))
    }
}

impl CronJob {
    pub fn object(&self) -> Value {
        let metadata = json!({ "creationTimestamp": null, "name": self.name });
        let template =
            json!({ "metadata": metadata, "spec": spec(&self.name, &self.image, &self.command, &self.restart) });
        let spec = json!({ "jobTemplate": template, "schedule": self.schedule });
        with(named("batch/v1", "CronJob", &self.name), json!({ "spec": spec, "status": {} }))
    }
}

/// The spec of a Job with one container of this name.
fn spec(name: &str, image: &str, command: &[String], restart: &str) -> Value {
    let mut container = json!({ "image": image, "name": name, "resources": {} });
    if !command.is_empty() {
        container["command"] = json!(command);
    }
    let pod = json!({ "containers": [container], "restartPolicy": restart });
    json!({ "template": { "metadata": { "creationTimestamp": null }, "spec": pod } })
}
