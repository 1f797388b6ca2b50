//! Starts a container: from its manifest to a running process.

use std::{fmt::Display, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::{
    ContainerId, ContainerSpec, Error as RuntimeError, JournalWriter, RunError, image::ImageStore, oci,
};
use serde::{Deserialize, Serialize};

use super::{
    Machine,
    error::{self, Error},
    images, managed,
    places::Places,
};
use crate::{
    admission, disk,
    executor::{ActionError, Reason, StartOrder, Started},
    id_pool::IdPool,
    references::env_references,
    spec::{ContainerRef, PodExt},
    translate::{
        self, Context,
        env::{Facts, Sources, env},
        files::{self, Names},
        sandbox_id,
    },
    volumes::Volumes,
};

/// What an exec into a container needs, stored with the container.
#[derive(Serialize, Deserialize)]
pub struct Inside {
    pub process: oci::Process,
    pub seccomp: Option<oci::LinuxSeccomp>,
}

fn gone(container: &str) -> ActionError {
    ActionError::new(Reason::CreateContainerError, format!("the Pod has no container \"{container}\""))
}

impl Machine {
    /// A process specification for the container, with other arguments.
    ///
    /// # Errors
    ///
    /// There is no such container, or its stored data does not parse.
    pub async fn inside(&self, id: &ContainerId) -> error::Result<Inside> {
        Ok(serde_json::from_str(&self.runtime.annotation(id).await?)?)
    }

    /// Checks that a Pod requesting a user namespace has one: its sandbox may come from an agent that did not support them.
    async fn check_users(&self, pod: &Pod, attempt: u32) -> error::Result<()> {
        if !pod.has_own_users() {
            return Ok(());
        }
        let sandbox = self.runtime.sandbox(&sandbox_id(pod.uid(), attempt)).await;
        match sandbox.and_then(|sandbox| sandbox.spec.users) {
            Some(_) => Ok(()),
            None => Err(Error::NoUserNamespace),
        }
    }

    pub(super) async fn start_container(
        &self,
        pod: &Arc<Pod>,
        part: &ContainerRef<'_>,
        order: StartOrder,
    ) -> Result<Started, ActionError> {
        fn config_error(why: impl Display) -> ActionError {
            ActionError::new(Reason::CreateContainerConfigError, why)
        }
        // Ephemeral containers may request more than was checked at admission, and a Pod of an earlier agent was not checked.
        self.protections.admit(pod).map_err(|failure| config_error(failure.message))?;
        let borne = admission::containers::check(pod).and_then(|()| admission::mounts::check(pod));
        borne.map_err(|failure| config_error(failure.message))?;
        self.check_users(pod, order.sandbox).await.map_err(config_error)?;
        let (maps, secrets) = env_references(&part.container);
        let mut held = self.objects.hold();
        let mut sources = self.objects.sources(&mut held, pod, &maps, &secrets).await.map_err(config_error)?;
        sources.services = self.objects.services_for(pod);
        let sets = self.runtime.sets_app_armor(&sandbox_id(pod.uid(), order.sandbox)).unwrap_or(true);
        let app_armor = self.protections.app_armor.provide(pod, &part.container, sets).await?;
        let inputs = StartInputs {
            images: self.images.clone(),
            volumes: self.volumes.clone(),
            places: self.places.clone(),
            names: self.names.clone(),
            facts: self.facts(&order.ips),
            log: self.log(pod, part.name(), order.restart),
            ids: self.protections.ids,
            journal: self.journal(pod),
            sources,
            app_armor,
            order,
        };
        let (own, name) = (pod.clone(), part.name().to_owned());
        // In one blocking task: each thread switch costs as much as the work.
        let made = disk::work(move || inputs.spec(&own, &own.part(&name).ok_or_else(|| gone(&name))?));
        let spec = made.await.map_err(|why| ActionError::new(Reason::CreateContainerError, why))??;
        drop(held);
        let id = spec.id.clone();
        let journal = self.journal(pod).at(&part.path());
        let start_error = |e: RuntimeError| match e {
            RuntimeError::Start { message, .. } => ActionError::new(Reason::StartError, message),
            other => ActionError::new(Reason::CreateContainerError, other),
        };
        match self.runtime.run_container(spec, &journal).await {
            Ok(at) => Ok(Started { id: id.to_string(), at }),
            Err(RunError::Start(error)) => Err(start_error(error)),
            Err(RunError::Create(error)) => {
                if let Err(error) = self.runtime.remove_container(&id, &journal).await {
                    tracing::warn!(%error, "failed to clean up after a container that could not be created");
                }
                Err(start_error(error))
            }
        }
    }
}

/// The inputs of a container besides its manifest.
struct StartInputs {
    images: ImageStore,
    volumes: Arc<Volumes>,
    places: Places,
    names: Names,
    facts: Facts,
    sources: Sources,
    app_armor: Option<String>,
    log: PathBuf,
    ids: IdPool,
    journal: JournalWriter,
    order: StartOrder,
}

impl StartInputs {
    /// Writes the agent's files for the container and builds its specification. Blocks: it reads image documents, passwd files and
    /// a profile, and there may be a hundred thousand variables.
    fn spec(self, pod: &Pod, part: &ContainerRef<'_>) -> Result<ContainerSpec, ActionError> {
        let StartInputs { images, volumes, places, names, facts, sources, app_armor, log, ids, journal, order } = self;
        let image = images::of(&images, part.container.image.as_deref().unwrap_or_default(), &order.image_id)?;
        let env = env(pod, &part.container, &sources, &facts)?;
        let mut mounts = managed::files(&places, &names, &volumes.folder(pod), pod, part, &order)?;
        mounts.extend(volumes.mounts(pod, part, &env, &journal)?);
        let devices = volumes.devices(pod, part)?;
        let mut spec = translate::container(Context {
            pod,
            part,
            order: &order,
            image: &image,
            env,
            mounts,
            devices,
            hostname: &files::hostname(pod, &names.domain),
            log,
            memory: facts.memory,
            seccomp_dir: &places.seccomp,
            app_armor,
            ids,
        })?;
        if let Some(process) = spec.oci.process().clone() {
            let seccomp = spec.oci.linux().as_ref().and_then(|l| l.seccomp().clone());
            spec.annotation = serde_json::to_string(&Inside { process, seccomp }).unwrap_or_default();
        }
        Ok(spec)
    }
}
