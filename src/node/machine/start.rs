//! The start of a container: from its manifest to a process that runs.

use std::{fmt::Display, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::{ContainerId, Error as RuntimeError, oci};
use serde::{Deserialize, Serialize};

use super::{
    Machine,
    error::{self, Error},
    images, managed,
};
use crate::{
    admission::{self, protections::has_own_users},
    disk,
    executor::{ActionError, Reason, StartOrder, Started},
    references::env_references,
    spec::{ContainerRef, PodExt},
    translate::{
        self, Context,
        env::{Env, Sources, env},
        files, sandbox_id,
    },
};

/// What an exec into a container needs, kept with the container.
#[derive(Serialize, Deserialize)]
pub struct Inside {
    pub process: oci::Process,
    pub seccomp: Option<oci::LinuxSeccomp>,
}

fn gone(container: &str) -> ActionError {
    ActionError::new(Reason::CreateContainerError, format!("the Pod has no container \"{container}\""))
}

impl Machine {
    /// How to run another process inside a container: as its own, with other arguments.
    ///
    /// # Errors
    ///
    /// There is no such container, or what was kept with it does not parse.
    pub async fn inside(&self, id: &ContainerId) -> error::Result<Inside> {
        Ok(serde_json::from_str(&self.runtime.annotation(id).await?)?)
    }

    /// A Pod that asks for users of its own has them: its sandbox may be of an agent that did not know of it.
    async fn check_users(&self, pod: &Pod, attempt: u32) -> error::Result<()> {
        if !has_own_users(pod) {
            return Ok(());
        }
        let sandbox = self.runtime.sandbox(&sandbox_id(pod.uid(), attempt)).await;
        match sandbox.and_then(|sandbox| sandbox.spec.users) {
            Some(_) => Ok(()),
            None => Err(Error::NoUserNamespace),
        }
    }

    /// The variables that the manifest asks for. There may be a hundred thousand.
    async fn variables(
        &self,
        pod: &Arc<Pod>,
        part: &ContainerRef<'_>,
        sources: Sources,
        order: &StartOrder,
    ) -> Result<Env, ActionError> {
        let (own, name, facts) = (pod.clone(), part.name().to_owned(), self.facts(&order.ips));
        let made = disk::work(move || {
            let part = own.part(&name).ok_or_else(|| gone(&name))?;
            env(&own, &part.container, &sources, &facts)
        });
        made.await.map_err(|why| ActionError::new(Reason::CreateContainerError, why))?
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
        // What was debugged into the Pod later asks too, and a Pod of an earlier agent was not asked.
        self.protections.admit(pod).map_err(|failure| config_error(failure.message))?;
        let borne = admission::containers::check(pod).and_then(|()| admission::mounts::check(pod));
        borne.map_err(|failure| config_error(failure.message))?;
        self.check_users(pod, order.sandbox).await.map_err(config_error)?;
        let name = part.container.image.clone().unwrap_or_default();
        let image = images::of(self, &name, &order.image_id).await?;
        let (maps, secrets) = env_references(&part.container);
        let mut sources = self.objects.sources(pod, &maps, &secrets).await.map_err(config_error)?;
        sources.services = self.objects.services_for(pod);
        let env = self.variables(pod, part, sources, &order).await?;
        let mut mounts = managed::files(self, pod, part, &order).await?;
        mounts.extend(self.volumes.mounts(pod, part, &env).await?);
        let devices = self.volumes.devices(pod, part)?;
        let hostname = files::hostname(pod, &self.names.domain);
        let sets = self.runtime.sets_app_armor(&sandbox_id(pod.uid(), order.sandbox)).unwrap_or(true);
        let app_armor = self.protections.app_armor.provide(pod, &part.container, sets).await?;
        let (log, memory) = (self.log(pod, part.name(), order.restart), self.facts.memory);
        let (own, name, seccomp_dir) = (pod.clone(), part.name().to_owned(), self.places.seccomp.clone());
        let ids = self.protections.ids;
        // It reads the image's files of users, and a profile.
        let translated = disk::work(move || {
            let part = own.part(&name).ok_or_else(|| gone(&name))?;
            let mut spec = translate::container(Context {
                pod: &own,
                part: &part,
                order: &order,
                image: &image,
                env,
                mounts,
                devices,
                hostname: &hostname,
                log,
                memory,
                seccomp_dir: &seccomp_dir,
                app_armor,
                ids,
            })?;
            if let Some(process) = spec.oci.process().clone() {
                let seccomp = spec.oci.linux().as_ref().and_then(|l| l.seccomp().clone());
                spec.annotation = serde_json::to_string(&Inside { process, seccomp }).unwrap_or_default();
            }
            Ok(spec)
        });
        let spec = translated.await.map_err(|why| ActionError::new(Reason::CreateContainerError, why))??;
        let id = spec.id.clone();
        let journal = self.journal(pod).at(&part.path());
        let start_error = |e: RuntimeError| match e {
            RuntimeError::Start { message, .. } => ActionError::new(Reason::StartError, message),
            other => ActionError::new(Reason::CreateContainerError, other),
        };
        let created = self.runtime.create_container(spec, &journal).await;
        if let Err(error) = created {
            let clear = self.runtime.remove_container(&id, &journal).await;
            if let Err(error) = clear {
                tracing::warn!(%error, "failed to clean up after a container that could not be created");
            }
            return Err(start_error(error));
        }
        let at = self.runtime.start_container(&id, &journal).await.map_err(start_error)?;
        Ok(Started { id: id.to_string(), at })
    }
}
